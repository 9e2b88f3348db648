/*
 * Logits and greedy answers against those of an independent implementation, for every architecture
 * and element type (../shared/data/models/README.md has the tolerances; the files are generated
 * from seeds).
 *
 * With float activations (the reference kernels) the logits of a quantised file have to be those of
 * its dequantised weights; with the fast kernels, which round activations to int8, the error may be
 * twice the peer's own. Greedy answers have to be equal wherever no race was closer than rounding
 * can turn.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "forward_rig.h"
#include "support/fixtures.h"

/* Below this margin between the two best logits a greedy race may go either way. */
#define MARGIN_CLOSE 0.05

typedef struct golden_file {
    const char *preset;
    const char *quant;
} golden_file;

static const golden_file files[] = {
    {"tiny-qwen2moe", "f32"},    {"tiny-qwen2moe", "f16"},   {"tiny-qwen2moe", "bf16"},
    {"tiny-qwen2moe", "q8_0"},   {"tiny-qwen2moe", "q4_0"},  {"tiny-qwen2moe", "q4_k_m"},
    {"tiny-qwen2moe", "q5_k_m"}, {"tiny-qwen2moe", "q6_k"},  {"tiny-qwen3moe", "f32"},
    {"tiny-qwen3moe", "q4_k_m"}, {"tiny-olmoe", "f32"},      {"tiny-olmoe", "q4_k_m"},
    {"tiny-mixtral", "f32"},     {"tiny-mixtral", "q4_k_m"},
};

typedef struct score {
    double max_diff;
    double nmse;         /* worst of the cases */
    double nmse_of_peer; /* of the same case */
    double log_nmse;     /* sums over the cases */
    double log_nmse_of_peer;
    int32_t n_greedy; /* tokens compared */
    int32_t n_close;  /* cases whose comparison ended at a close race */
} score;

static double max_diff(const float *a, const float *b, int32_t n)
{
    double max = 0;
    for (int32_t i = 0; i < n; i++)
        max = fmax(max, fabs((double)a[i] - (double)b[i]));
    return max;
}

static double nmse(const float *a, const float *truth, int32_t n)
{
    double error = 0;
    double power = 0;
    for (int32_t i = 0; i < n; i++) {
        double diff = (double)a[i] - (double)truth[i];
        error += diff * diff;
        power += (double)truth[i] * (double)truth[i];
    }
    return error / power;
}

/** Distance between the two highest logits. */
static double margin_of(const float *logits, int32_t n)
{
    int32_t best = ek_rig_argmax(logits, n);
    double second = -INFINITY;
    for (int32_t i = 0; i < n; i++)
        if (i != best) second = fmax(second, (double)logits[i]);
    return (double)logits[best] - second;
}

/**
 * Follow a greedy answer. `close` is the margin below which a different token is not an error; the
 * comparison of that case ends there, because from then on the texts differ.
 */
static void check_greedy(ek_rig *rig, ek_rig_seq *seq, const ek_fixture_case *item, double close,
                         float *logits, score *out)
{
    int32_t n_vocab = rig->model->params.n_vocab;
    for (int32_t i = 0; i < item->n_exact_greedy; i++) {
        int32_t token = ek_rig_argmax(logits, n_vocab);
        if (token != item->exact_greedy[i]) {
            double margin = margin_of(logits, n_vocab);
            if (margin > close)
                fail_msg("greedy token %d is %d, expected %d (margin %.4f, %d tokens of prompt)", i,
                         token, item->exact_greedy[i], margin, item->n_tokens);
            out->n_close++;
            return;
        }
        out->n_greedy++;
        if (i + 1 < item->n_exact_greedy) ek_rig_feed(rig, seq, &token, 1, 1, logits);
    }
}

static score run_cases(const char *path, ek_kernels_choice kernels, const ek_fixture_golden *golden,
                       double close, bool check_nmse)
{
    score total = {0};
    ek_rig rig;
    ek_rig_params params = ek_rig_defaults(path);
    params.kernels = kernels;
    params.n_threads = 2;
    ek_rig_open(&params, &rig);
    int32_t n_vocab = rig.model->params.n_vocab;
    float *logits = calloc((size_t)n_vocab, sizeof *logits);
    for (int32_t c = 0; c < golden->n_cases; c++) {
        const ek_fixture_case *item = &golden->cases[c];
        assert_int_equal(item->n_logits, n_vocab);
        ek_rig_seq seq;
        ek_rig_seq_init(&seq);
        ek_rig_feed(&rig, &seq, item->tokens, item->n_tokens, 256, logits);
        total.max_diff = fmax(total.max_diff, max_diff(logits, item->exact_logits, n_vocab));
        double error = nmse(logits, item->exact_logits, n_vocab);
        double allowed = fmax(2 * item->nmse_of_peer, 1e-4);
        total.log_nmse += log(error);
        total.log_nmse_of_peer += log(item->nmse_of_peer);
        if (check_nmse && error > allowed)
            fail_msg("%s, case %d: NMSE %.2e, allowed %.2e", path, c, error, allowed);
        if (error > total.nmse) {
            total.nmse = error;
            total.nmse_of_peer = item->nmse_of_peer;
        }
        check_greedy(&rig, &seq, item, close, logits, &total);
        ek_engine_kv_free(rig.kv, &seq.kv, 0);
    }
    free(logits);
    ek_rig_close(&rig);
    return total;
}

static void check_file(const golden_file *file, ek_kernels_choice kernels)
{
    ek_fixture_path path;
    ek_fixture_golden golden;
    char name[64];
    snprintf(name, sizeof name, "%s-%s.gguf", file->preset, file->quant);
    if (!ek_fixture_shared_gguf(file->preset, file->quant, &path) ||
        !ek_fixture_golden_load(name, &golden))
        skip();
    bool exact = strcmp(file->quant, "f32") == 0;
    bool reference = kernels == EK_KERNELS_REFERENCE;
    score s = run_cases(path.text, kernels, &golden, exact ? 0 : MARGIN_CLOSE, !reference);
    print_message("%s %s: max diff %.1e, NMSE %.1e (peer %.1e), %d greedy tokens, "
                  "%d close races\n",
                  name, reference ? "reference" : "auto", s.max_diff, s.nmse, s.nmse_of_peer,
                  s.n_greedy, s.n_close);
    if (exact) assert_true(s.max_diff <= 2e-4);
    if (reference) assert_true(s.max_diff <= 1e-3);
    ek_fixture_golden_free(&golden);
}

static void test_auto(void **state)
{
    check_file(*state, EK_KERNELS_AUTO);
}

static void test_reference(void **state)
{
    check_file(*state, EK_KERNELS_REFERENCE);
}

/**
 * The demo model. The peer's values come with its int8 activations and no exact ones are given, so
 * the reference kernels say what is exact: they are held to 1e-3 of the truth by the tests above.
 * The error of a single prompt jumps by a factor of ten when rounding turns a gate's close race,
 * for the peer as for us, so the geometric mean over the prompts is compared. A trained model's
 * answers have wide margins: the text has to be the peer's.
 */
static void test_demo(void **state)
{
    (void)state;
    ek_fixture_path path;
    ek_fixture_golden golden;
    if (!ek_fixture_shared("data/models/demo-q8_0.gguf", &path) ||
        !ek_fixture_golden_load("demo-q8_0.gguf", &golden))
        skip();
    ek_rig rig;
    ek_rig_params params = ek_rig_defaults(path.text);
    params.kernels = EK_KERNELS_REFERENCE;
    ek_rig_open(&params, &rig);
    int32_t n_vocab = rig.model->params.n_vocab;
    ek_fixture_case *cases = calloc((size_t)golden.n_cases, sizeof *cases);
    float *exact = calloc((size_t)golden.n_cases * (size_t)n_vocab, sizeof *exact);
    for (int32_t c = 0; c < golden.n_cases; c++) {
        float *logits = exact + (ptrdiff_t)c * n_vocab;
        ek_rig_logits(&rig, golden.cases[c].tokens, golden.cases[c].n_tokens, 256, logits);
        cases[c] = golden.cases[c];
        cases[c].nmse_of_peer = nmse(cases[c].logits, logits, n_vocab);
        cases[c].exact_logits = logits;
    }
    ek_rig_close(&rig);

    const ek_fixture_golden ours = {.cases = cases, .n_cases = golden.n_cases};
    score s = run_cases(path.text, EK_KERNELS_AUTO, &ours, MARGIN_CLOSE, false);
    double mean = exp(s.log_nmse / ours.n_cases);
    double mean_of_peer = exp(s.log_nmse_of_peer / ours.n_cases);
    print_message("demo-q8_0.gguf: mean NMSE %.1e (peer %.1e), %d greedy tokens, %d close races\n",
                  mean, mean_of_peer, s.n_greedy, s.n_close);
    assert_true(mean <= 4 * mean_of_peer);
    assert_int_equal(s.n_close, 0);
    free(exact);
    free(cases);
    ek_fixture_golden_free(&golden);
}

int main(void)
{
    struct CMUnitTest tests[2 * EK_COUNT_OF(files) + 1];
    char names[2 * EK_COUNT_OF(files)][64];
    size_t n = 0;
    for (size_t i = 0; i < EK_COUNT_OF(files); i++) {
        for (int reference = 0; reference < 2; reference++) {
            snprintf(names[n], sizeof names[n], "%s %s-%s", reference ? "reference" : "auto",
                     files[i].preset, files[i].quant);
            tests[n] = (struct CMUnitTest){
                .name = names[n],
                .test_func = reference ? test_reference : test_auto,
                .initial_state = (void *)(uintptr_t)&files[i],
            };
            n++;
        }
    }
    tests[n++] = (struct CMUnitTest){.name = "demo", .test_func = test_demo};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
