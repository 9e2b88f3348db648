/*
 * Capacity in the forward pass: what a plan defers is computed in rounds of its own and adds up to
 * the same logits but for the order of additions; what it leaves out is neither computed nor
 * counted.
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
#include "support/fixtures.h"

enum { N_TOKENS = 61, CHUNK = 20 };

typedef struct outcome {
    float *logits;  /* (n_vocab) */
    int64_t *count; /* (n_layers, n_experts) tokens */
    int32_t n_vocab, n_counts;
    ek_route_stats stats;
} outcome;

static outcome run(const char *model, const ek_route_params *route)
{
    char file[128];
    ek_fixture_path path;
    ek_rig rig;
    snprintf(file, sizeof file, "tests/support/tiny-%s.gguf", model);
    ek_fixture_build(file, &path);
    ek_rig_params params = ek_rig_defaults(path.text);
    params.n_threads = 2;
    params.route = *route;
    ek_rig_open(&params, &rig);
    const ek_model_params *p = &rig.model->params;
    int32_t tokens[N_TOKENS];
    ek_rng rng;
    ek_rng_init(&rng, 3);
    for (int32_t i = 0; i < N_TOKENS; i++)
        tokens[i] = (int32_t)ek_rng_below(&rng, (uint64_t)p->n_vocab);
    outcome out = {.n_vocab = p->n_vocab, .n_counts = p->n_layers * p->n_experts};
    out.logits = calloc((size_t)out.n_vocab, sizeof *out.logits);
    out.count = calloc((size_t)out.n_counts, sizeof *out.count);
    ek_rig_logits(&rig, tokens, N_TOKENS, CHUNK, out.logits);
    ek_telemetry_experts_read(rig.stats, 0, out.count, NULL, NULL);
    out.stats = *ek_route_stats_of(rig.router);
    ek_rig_close(&rig);
    return out;
}

static void end(outcome *out)
{
    free(out->logits);
    free(out->count);
}

static int64_t sum_of(const outcome *out)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < out->n_counts; i++)
        sum += out->count[i];
    return sum;
}

static void test_deferred_work_is_done(void **state)
{
    static const char *const models[] = {"qwen2moe-f32", "olmoe-f32"};
    (void)state;
    for (size_t i = 0; i < EK_COUNT_OF(models); i++) {
        ek_route_params plain, capped;
        ek_route_params_default(&plain);
        ek_route_params_default(&capped);
        capped.capacity_factor = 0.6;
        capped.max_score_loss = capped.mean_score_loss = 0; /* nothing is rerouted */
        capped.defer_rounds = EK_ROUTE_DEFERRALS_MAX;
        outcome want = run(models[i], &plain), got = run(models[i], &capped);
        assert_true(got.stats.n_deferred > 100);
        assert_true(got.stats.n_degraded == 0 && got.stats.n_rerouted == 0);
        assert_memory_equal(want.count, got.count, (size_t)want.n_counts * sizeof *want.count);
        float most = 0, apart = 0;
        for (int32_t v = 0; v < want.n_vocab; v++) {
            most = fmaxf(most, fabsf(want.logits[v]));
            apart = fmaxf(apart, fabsf(want.logits[v] - got.logits[v]));
        }
        print_message("%s: %lld deferred, logits up to %g are %g apart\n", models[i],
                      (long long)got.stats.n_deferred, (double)most, (double)apart);
        assert_true(apart <= 1e-4f * most);
        end(&want);
        end(&got);
    }
}

static void test_degraded_work_is_not(void **state)
{
    (void)state;
    ek_route_params capped;
    ek_route_params_default(&capped);
    capped.capacity_factor = 0.4;
    capped.defer_rounds = 0;
    outcome got = run("qwen2moe-f32", &capped);
    assert_true(got.stats.n_degraded > 100 && got.stats.n_deferred == 0);
    assert_int_equal(sum_of(&got), got.stats.n_executed + got.stats.n_rerouted);
    for (int32_t v = 0; v < got.n_vocab; v++)
        assert_true(isfinite(got.logits[v]));
    end(&got);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_deferred_work_is_done),
        cmocka_unit_test(test_degraded_work_is_not),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
