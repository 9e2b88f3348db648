/*
 * build/bench/steps --model FILE --kernels K --phase prefill|decode [--batch N] [--steps N]
 *
 * A fixed number of steps of the forward pass on one thread, and no clock: what
 * tools/guard_instructions.py counts the instructions of. prefill takes one prompt of N tokens in
 * each step, decode one token of N sequences. Prints JSON: the tokens that it ran and the compiler
 * that built it.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "rig.h"

enum { PROMPT = 16 }; /* context of the decoding sequences */

typedef struct args {
    ek_bench_rig_params rig;
    bool prefill, has_phase;
    int32_t batch, n_steps;
} args;

static ek_status run(const args *a, ek_bench_rig *rig)
{
    int64_t ns;
    ek_status status = EK_OK;
    if (a->prefill) return ek_bench_rig_steps(rig, 0, a->batch, a->n_steps);
    for (int32_t s = 0; s < a->batch && status == EK_OK; s++)
        status = ek_bench_rig_step(rig, s, 1, PROMPT, &ns);
    return status == EK_OK ? ek_bench_rig_steps(rig, a->batch, 1, a->n_steps) : status;
}

static bool parse_number(const char *text, int32_t *out_value)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < 1 || value > EK_BENCH_RIG_TOKENS) return false;
    *out_value = (int32_t)value;
    return true;
}

static bool parse(int argc, char **argv, args *a)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        const char *name = argv[i], *value = argv[i + 1];
        bool ok = true;
        if (strcmp(name, "--model") == 0) {
            a->rig.model_path = value;
        } else if (strcmp(name, "--phase") == 0) {
            a->prefill = strcmp(value, "prefill") == 0;
            ok = a->has_phase = a->prefill || strcmp(value, "decode") == 0;
        } else if (strcmp(name, "--batch") == 0) {
            ok = parse_number(value, &a->batch);
        } else if (strcmp(name, "--steps") == 0) {
            ok = parse_number(value, &a->n_steps);
        } else {
            ok = strcmp(name, "--kernels") == 0 && ek_kernels_choice_parse(value, &a->rig.choice);
        }
        if (!ok) return false;
    }
    const bool fits = a->prefill || (a->batch <= EK_BENCH_RIG_SEQS &&
                                     a->n_steps <= EK_BENCH_RIG_SEQ_TOKENS - PROMPT);
    return argc % 2 == 1 && a->rig.model_path && a->has_phase && fits;
}

int main(int argc, char **argv)
{
    static ek_bench_rig rig;
    args a = {.rig = {.n_threads = 1}, .batch = 1, .n_steps = 1};
    ek_err err = {0};
    if (!parse(argc, argv, &a)) {
        fprintf(stderr, "usage: steps --model FILE --kernels K --phase prefill|decode "
                        "[--batch 1..512 (decode: 64)] [--steps 1..512 (decode: 48)]\n");
        return 64;
    }
    ek_status status = ek_bench_rig_open(&rig, &a.rig, &err);
    if (status == EK_OK) {
        status = run(&a, &rig);
        ek_err_set(&err, status, "%s", ek_status_text(status));
    }
    if (status == EK_OK) {
        printf("{");
        ek_bench_print_machine_json();
        printf(",\"kernels\":\"%s\",\"tokens\":%d}\n", rig.kernels.name, a.batch * a.n_steps);
    } else {
        fprintf(stderr, "steps: %s\n", err.text);
    }
    ek_bench_rig_close(&rig);
    return status == EK_OK ? 0 : 1;
}
