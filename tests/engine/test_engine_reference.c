/*
 * The project's own tiny models against a double-precision forward pass of our own, so that a clone
 * without ../shared still proves that the arithmetic is right: four architectures, all element
 * types.
 *
 * With float activations only f32 rounding and the f16 cache separate the two: logits agree to 3e-4
 * of their size, and so do the experts chosen wherever the gate's race was not too close. Kernels
 * that round activations to int8 get a tolerance that a wrong scale, sign or index would miss by
 * far.
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

#include "base/rng.h"
#include "forward_rig.h"
#include "reference_forward.h"
#include "support/fixtures.h"

#define N_TOKENS  37
#define N_PROMPTS 3

static const char *const models[] = {
    "qwen2moe-f32",  "qwen3moe-f32",  "olmoe-f32",     "llama-f32",
    "qwen2moe-f16",  "qwen2moe-bf16", "qwen2moe-q8_0", "qwen2moe-q4_0",
    "qwen2moe-q4_k", "qwen2moe-q5_k", "qwen2moe-q6_k",
};

/** What the probe compares each layer's plan with. */
typedef struct expected_plan {
    const int32_t *chosen; /* (n_layers, n_tokens, top_k) */
    int32_t n_different;   /* (token, choice) pairs */
    int32_t n_seen;
} expected_plan;

static void compare_plan(void *ctx, int32_t layer, const ek_route_plan *plan)
{
    expected_plan *expected = ctx;
    int32_t n = plan->n_tokens * plan->top_k;
    assert_int_equal(plan->n_tokens, N_TOKENS);
    for (int32_t i = 0; i < n; i++)
        expected->n_different += plan->expert_id[i] != expected->chosen[(ptrdiff_t)layer * n + i];
    expected->n_seen += n;
}

static double relative_error(const float *logits, const double *truth, int32_t n)
{
    double error = 0;
    double power = 0;
    for (int32_t i = 0; i < n; i++) {
        error += ((double)logits[i] - truth[i]) * ((double)logits[i] - truth[i]);
        power += truth[i] * truth[i];
    }
    return sqrt(error / power);
}

static void check_prompt(ek_rig *rig, uint64_t seed)
{
    const ek_model_params *p = &rig->model->params;
    bool int8 = rig->kernels.act_int8[rig->model->layers[0].attn_q->type];
    double tolerance = int8 ? 3e-2 : 3e-4;
    double margin_min = int8 ? 5e-3 : 1e-4;
    size_t n_chosen = (size_t)p->n_layers * N_TOKENS * (size_t)p->top_k;
    double *truth = calloc((size_t)p->n_vocab, sizeof *truth);
    float *logits = calloc((size_t)p->n_vocab, sizeof *logits);
    int32_t *chosen = calloc(n_chosen, sizeof *chosen);
    int32_t tokens[N_TOKENS];
    ek_rng rng;
    ek_rng_init(&rng, seed);
    for (int32_t i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)ek_rng_below(&rng, (uint64_t)p->n_vocab);

    double margin;
    ek_reference_forward(rig->model, tokens, N_TOKENS, truth, chosen, &margin);
    expected_plan expected = {.chosen = chosen};
    ek_engine_forward_set_probe(rig->forward, &(ek_forward_probe){&expected, compare_plan, NULL});
    ek_rig_logits(rig, tokens, N_TOKENS, N_TOKENS, logits);
    ek_engine_forward_set_probe(rig->forward, NULL);

    double error = relative_error(logits, truth, p->n_vocab);
    print_message("relative error %.1e, gate margin %.1e, %d of %d choices differ\n", error, margin,
                  expected.n_different, expected.n_seen);
    assert_int_equal(expected.n_seen, n_chosen);
    if (margin > margin_min) {
        assert_int_equal(expected.n_different, 0);
        assert_true(error <= tolerance);
    } else {
        /*
         * Rounding may have turned a race: that costs few choices, and the model is still the same.
         */
        assert_true(expected.n_different <= expected.n_seen / 20);
        assert_true(error <= 0.3);
    }
    free(truth);
    free(logits);
    free(chosen);
}

static void check_model(const char *name, ek_kernels_choice kernels)
{
    if (!ek_rig_has_kernels(kernels)) skip();
    ek_fixture_path path;
    char file[128];
    snprintf(file, sizeof file, "tests/support/tiny-%s.gguf", name);
    ek_fixture_build(file, &path);
    ek_rig rig;
    ek_rig_params params = ek_rig_defaults(path.text);
    params.kernels = kernels;
    params.n_threads = 2;
    ek_rig_open(&params, &rig);
    for (uint64_t i = 0; i < N_PROMPTS; i++)
        check_prompt(&rig, i);
    ek_rig_close(&rig);
}

static void test_reference(void **state)
{
    check_model(*state, EK_KERNELS_REFERENCE);
}

static void test_avx2(void **state)
{
    check_model(*state, EK_KERNELS_AVX2);
}

static void test_avx512(void **state)
{
    check_model(*state, EK_KERNELS_AVX512);
}

int main(void)
{
    static const struct {
        const char *name;
        CMUnitTestFunction function;
    } tables[] = {{"reference", test_reference}, {"avx2", test_avx2}, {"avx512", test_avx512}};
    struct CMUnitTest tests[EK_COUNT_OF(tables) * EK_COUNT_OF(models)];
    char names[EK_COUNT_OF(tables) * EK_COUNT_OF(models)][64];
    size_t n = 0;
    for (size_t t = 0; t < EK_COUNT_OF(tables); t++) {
        for (size_t m = 0; m < EK_COUNT_OF(models); m++, n++) {
            snprintf(names[n], sizeof names[n], "%s %s", tables[t].name, models[m]);
            tests[n] = (struct CMUnitTest){
                .name = names[n],
                .test_func = tables[t].function,
                .initial_state = (void *)(uintptr_t)models[m],
            };
        }
    }
    return cmocka_run_group_tests(tests, NULL, NULL);
}
