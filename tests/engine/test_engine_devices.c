/*
 * Goal: which device computes an expert, and whether its replicas move meanwhile, changes no bit of
 * any output. Method: the same tokens through one device and through many, with placements that
 * rebalancing changes between steps.
 */
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
#include "sys/clock.h"

enum { N_TOKENS = 90, CHUNK = 24, STEPS = 40 };

static void open_rig(const char *model, int32_t n_threads, int32_t n_devices, int32_t n_slots,
                     ek_rig *rig)
{
    char file[128];
    ek_fixture_path path;
    snprintf(file, sizeof file, "tests/support/tiny-%s.gguf", model);
    ek_fixture_build(file, &path);
    ek_rig_params params = ek_rig_defaults(path.text);
    params.n_threads = n_threads;
    params.keel.n_devices = n_devices;
    params.keel.n_slots = n_slots;
    params.keel.min_gain = 0;
    params.keel.pause_us = 0;
    ek_rig_open(&params, rig);
}

static void draw_tokens(int32_t n_vocab, uint64_t seed, int32_t *out_tokens)
{
    ek_rng rng;
    ek_rng_init(&rng, seed);
    for (int32_t i = 0; i < N_TOKENS; i++)
        out_tokens[i] = (int32_t)ek_rng_below(&rng, (uint64_t)n_vocab);
}

static void test_devices_change_no_bit(void **state)
{
    static const char *const models[] = {"qwen2moe-q8_0", "qwen3moe-f32", "qwen2moe-q4_k",
                                         "llama-f32"};
    (void)state;
    for (size_t m = 0; m < EK_COUNT_OF(models); m++) {
        ek_rig one;
        int32_t tokens[N_TOKENS];
        open_rig(models[m], 1, 1, 0, &one);
        const int32_t n_vocab = one.model->params.n_vocab, n_experts = one.model->params.n_experts;
        float *want = calloc((size_t)n_vocab, sizeof *want);
        float *got = calloc((size_t)n_vocab, sizeof *got);
        draw_tokens(n_vocab, m, tokens);
        ek_rig_logits(&one, tokens, N_TOKENS, CHUNK, want);
        for (int32_t n_devices = 2; n_devices <= 4; n_devices++) {
            const int32_t slots[] = {0, n_experts, n_devices * n_experts};
            for (size_t s = 0; s < EK_COUNT_OF(slots); s++) {
                ek_rig many;
                open_rig(models[m], 1 + (int32_t)s, n_devices, slots[s], &many);
                ek_rig_logits(&many, tokens, N_TOKENS, CHUNK, got);
                assert_memory_equal(got, want, (size_t)n_vocab * sizeof *want);
                ek_rig_logits(&many, tokens, N_TOKENS, 1, got); /* decode: other shares */
                assert_memory_equal(got, want, (size_t)n_vocab * sizeof *want);
                ek_rig_close(&many);
            }
        }
        free(want);
        free(got);
        ek_rig_close(&one);
    }
}

/** Every row that a plan has is computed by exactly one device. */
static void test_devices_count_every_row(void **state)
{
    (void)state;
    ek_rig rig;
    open_rig("olmoe-f32", 2, 3, 0, &rig);
    const ek_model_params *p = &rig.model->params;
    float *logits = calloc((size_t)p->n_vocab, sizeof *logits);
    int64_t *rows = calloc((size_t)p->n_layers * 3, sizeof *rows);
    int64_t *counts = calloc((size_t)p->n_layers * (size_t)p->n_experts, sizeof *counts);
    int32_t tokens[N_TOKENS];
    draw_tokens(p->n_vocab, 5, tokens);
    ek_rig_logits(&rig, tokens, N_TOKENS, CHUNK, logits);
    ek_telemetry_experts_read(rig.devices, 0, rows, NULL, NULL);
    ek_telemetry_experts_read(rig.stats, 0, counts, NULL, NULL);
    for (int32_t l = 0; l < p->n_layers; l++) {
        int64_t by_device = 0, by_expert = 0;
        for (int32_t d = 0; d < 3; d++)
            by_device += rows[l * 3 + d];
        for (int32_t e = 0; e < p->n_experts; e++)
            by_expert += counts[l * p->n_experts + e];
        assert_int_equal(by_device, (int64_t)N_TOKENS * p->top_k);
        assert_int_equal(by_expert, by_device);
    }
    free(logits);
    free(rows);
    free(counts);
    ek_rig_close(&rig);
}

/**
 * Traffic that always looks the same makes replicas move, one layer after the other, while its
 * answers stay what they are.
 */
static void test_rebalancing_under_load_changes_no_bit(void **state)
{
    (void)state;
    ek_rig one, many;
    open_rig("olmoe-f32", 1, 1, 0, &one);
    open_rig("olmoe-f32", 2, 4, one.model->params.n_experts + 2, &many);
    const size_t n_vocab = (size_t)one.model->params.n_vocab;
    float *want = calloc(n_vocab, sizeof *want);
    float *got = calloc(n_vocab, sizeof *got);
    int32_t tokens[N_TOKENS];
    ek_keel_news *news = calloc(1, sizeof *news);
    int32_t n_moves = 0;
    draw_tokens((int32_t)n_vocab, 1, tokens);
    ek_rig_logits(&one, tokens, N_TOKENS, CHUNK, want);
    int64_t now_us = 1000000;
    for (int32_t i = 0; i < STEPS; i++) {
        /* Windows end a second apart; between them each sample looks at one layer. */
        for (int32_t k = 0; k < 10; k++) {
            now_us += 100000;
            ek_keel_tick(many.keel, now_us, false, news);
            n_moves += news->moved;
        }
        ek_rig_logits(&many, tokens, N_TOKENS, CHUNK, got);
        assert_memory_equal(got, want, n_vocab * sizeof *want);
    }
    ek_place_controller_stats stats;
    ek_place_outlook outlook;
    assert_true(ek_keel_rebalance_stats(many.keel, &stats, &outlook));
    print_message("%d steps of rebalancing moved %lld replicas\n", (int)n_moves,
                  (long long)stats.n_replicas);
    assert_true(n_moves > 0 && stats.n_replicas > 0);
    assert_int_equal(stats.n_steps, n_moves);
    assert_true(stats.n_failed == 0 && stats.n_timeouts == 0);
    /* It comes to rest: the last windows ask for nothing more. */
    assert_int_equal(stats.state, EK_PLACE_IDLE);
    free(want);
    free(got);
    free(news);
    ek_rig_close(&many);
    ek_rig_close(&one);
}

/** A breaker on devices that are far too busy reroutes; with the budget at 0 it may not. */
static void test_policies_see_devices(void **state)
{
    (void)state;
    char file[] = "tests/support/tiny-olmoe-f32.gguf";
    ek_fixture_path path;
    ek_fixture_build(file, &path);
    for (int32_t is_bent = 0; is_bent < 2; is_bent++) {
        ek_rig rig;
        ek_rig_params params = ek_rig_defaults(path.text);
        params.route.policy = EK_ROUTE_POLICY_DISCOUNT;
        params.route.discount_load = 0.05;
        params.route.discount_beta = 2;
        params.route.discount_smoothing = 1;
        params.route.max_score_loss = params.route.mean_score_loss = is_bent ? 1 : 0;
        params.route.sample_us = 10000;
        params.keel.n_devices = 4;
        ek_rig_open(&params, &rig);
        const ek_model_params *p = &rig.model->params;
        float *logits = calloc((size_t)p->n_vocab, sizeof *logits);
        ek_keel_news *news = calloc(1, sizeof *news);
        int32_t tokens[N_TOKENS];
        draw_tokens(p->n_vocab, 9, tokens);
        /* Samples are of this machine's clock, since busy times are. */
        for (int32_t i = 0; i < 200; i++) {
            ek_keel_tick(rig.keel, ek_sys_now_us(), true, news);
            ek_rig_logits(&rig, tokens, N_TOKENS, CHUNK, logits);
        }
        const ek_route_stats *stats = ek_route_stats_of(rig.router);
        assert_non_null(ek_keel_view(rig.keel, ek_sys_now_us()));
        assert_true(stats->n_stale_plans < stats->n_plans);
        assert_true(stats->n_bent > 0);
        assert_true(is_bent ? stats->n_changed > 0 : stats->n_changed == 0);
        free(logits);
        free(news);
        ek_rig_close(&rig);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_devices_change_no_bit),
        cmocka_unit_test(test_devices_count_every_row),
        cmocka_unit_test(test_rebalancing_under_load_changes_no_bit),
        cmocka_unit_test(test_policies_see_devices),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
