/*
 * kcheck [--cpu reference|avx2|avx512] [--bench] [--seed N] [NAME]
 *
 * Goal: hold every kernel of one table against the scalar reference. Method: see kcheck.h; each
 * operation counts as one test, and the last lines read like cmocka's. Without the instruction set
 * the run is skipped, saying so.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kcheck.h"
#include "sys/cpu.h"

static void matmul_f32(kc *k)
{
    kc_check_matmul(k, EK_TYPE_F32);
}

static void matmul_f16(kc *k)
{
    kc_check_matmul(k, EK_TYPE_F16);
}

static void matmul_bf16(kc *k)
{
    kc_check_matmul(k, EK_TYPE_BF16);
}

static void matmul_q8_0(kc *k)
{
    kc_check_matmul(k, EK_TYPE_Q8_0);
}

static void matmul_q4_0(kc *k)
{
    kc_check_matmul(k, EK_TYPE_Q4_0);
}

static void matmul_q4_k(kc *k)
{
    kc_check_matmul(k, EK_TYPE_Q4_K);
}

static void matmul_q5_k(kc *k)
{
    kc_check_matmul(k, EK_TYPE_Q5_K);
}

static void matmul_q6_k(kc *k)
{
    kc_check_matmul(k, EK_TYPE_Q6_K);
}

static const struct {
    const char *name;
    void (*run)(kc *k);
} check_table[] = {
    {"act_quantize", kc_check_act}, {"matmul_f32", matmul_f32},      {"matmul_f16", matmul_f16},
    {"matmul_bf16", matmul_bf16},   {"matmul_q8_0", matmul_q8_0},    {"matmul_q4_0", matmul_q4_0},
    {"matmul_q4_k", matmul_q4_k},   {"matmul_q5_k", matmul_q5_k},    {"matmul_q6_k", matmul_q6_k},
    {"attend", kc_check_attend},    {"rms_norm", kc_check_rms_norm}, {"rope", kc_check_rope},
    {"swiglu", kc_check_swiglu},    {"axpy", kc_check_axpy},         {"f32_to_f16", kc_check_f16},
    {"softmax", kc_check_softmax},
};

typedef struct options {
    const char *cpu, *only;
    uint64_t seed;
    bool bench;
} options;

static bool options_parse(int argc, char **argv, options *out)
{
    *out = (options){.cpu = "auto", .seed = 1};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--bench") == 0)
            out->bench = true;
        else if (strcmp(argv[i], "--cpu") == 0 && i + 1 < argc)
            out->cpu = argv[++i];
        else if (strcmp(argv[i], "--seed") == 0 && i + 1 < argc)
            out->seed = strtoull(argv[++i], NULL, 10);
        else if (argv[i][0] != '-' && !out->only)
            out->only = argv[i];
        else
            return false;
    }
    return true;
}

static bool wanted(const options *opts, size_t i)
{
    return !opts->only || strcmp(opts->only, check_table[i].name) == 0;
}

static int count_wanted(const options *opts)
{
    int n = 0;
    for (size_t i = 0; i < EK_COUNT_OF(check_table); i++)
        n += wanted(opts, i);
    return n;
}

static int run_checks(const options *opts, kc *k)
{
    int n = count_wanted(opts), n_failed = 0;
    printf("[==========] Running %d test(s).\n", n);
    for (size_t i = 0; i < EK_COUNT_OF(check_table); i++) {
        if (!wanted(opts, i)) continue;
        const char *name = check_table[i].name;
        printf("[ RUN      ] %s/%s\n", k->table->name, name);
        k->n_failures = 0;
        k->n_cases = 0;
        ek_rng_init(&k->rng, opts->seed);
        check_table[i].run(k);
        printf("[ %s ] %s/%s: %lld cases, %d failures\n", k->n_failures ? " FAILED " : "      OK",
               k->table->name, name, (long long)k->n_cases, k->n_failures);
        fflush(stdout);
        n_failed += k->n_failures > 0;
    }
    printf("[==========] %d test(s) run.\n", n);
    printf("[  PASSED  ] %d test(s).\n", n - n_failed);
    if (n_failed) printf("[  FAILED  ] %d test(s).\n", n_failed);
    return n == 0 || n_failed > 0;
}

int main(int argc, char **argv)
{
    options opts;
    ek_kernels_choice choice;
    if (!options_parse(argc, argv, &opts) || !ek_kernels_choice_parse(opts.cpu, &choice)) {
        fprintf(stderr,
                "usage: kcheck [--cpu auto|reference|avx2|avx512] [--bench] [--seed N] [NAME]\n");
        return 2;
    }
    uint32_t flags = ek_sys_cpu_flags();
    ek_kernels reference, table, twin;
    if (ek_kernels_select(EK_KERNELS_REFERENCE, 0, &reference) != EK_OK) return 1;
    if (ek_kernels_select(choice, flags, &table) != EK_OK) {
        printf("this machine or build has no %s kernels\n", opts.cpu);
        printf("[  PASSED  ] 0 test(s).\n[  SKIPPED ] %d test(s).\n", count_wanted(&opts));
        return 0;
    }
    kc k = {.reference = &reference, .table = &table};
    /* The vector tables promise the same bits, so each is the other's twin. */
    bool is_avx2 = strcmp(table.name, "avx2") == 0, is_avx512 = strcmp(table.name, "avx512") == 0;
    if ((is_avx2 && ek_kernels_select(EK_KERNELS_AVX512, flags, &twin) == EK_OK) ||
        (is_avx512 && ek_kernels_select(EK_KERNELS_AVX2, flags, &twin) == EK_OK))
        k.twin = &twin;
    if (opts.bench) {
        kc_bench(&table);
        return 0;
    }
    return run_checks(&opts, &k);
}
