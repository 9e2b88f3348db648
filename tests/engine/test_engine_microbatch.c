/*
 * Goal: a step in two micro-batches gives the bits of one that is not cut, counts what it counts,
 * and leaves nothing behind when it fails; the rule takes what is quicker.
 * Method: a dispatcher that computes nothing before combine, and then looks whether what it
 * borrowed at dispatch is still what it was; failures at each place of a step.
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
#include "engine/microbatch.h"
#include "forward_rig.h"
#include "support/fixtures.h"

enum { N_SEQS = 3, N_TOKENS = 83, N_STEPS_MAX = 64 };

/* ---- experts that are far away ---- */

typedef enum place { NOWHERE, AT_DISPATCH, AT_COMBINE } place;

typedef struct away {
    ek_dispatcher base;
    ek_dispatcher *inner; /* owned */
    const ek_expert_work *out[EK_MICRO_BATCHES_MAX];
    uint64_t seal[EK_MICRO_BATCHES_MAX];
    uint8_t *step;
    int32_t n_together; /* layers that were dispatched while another was under way */
    int32_t n_looks;    /* while something was under way */
    int32_t n_cancelled;
    place fails;
    int32_t fails_layer, fails_micro;
} away;

static ek_micro_batching next_batching; /* of the rig that is opened next */

static uint64_t mix(uint64_t seal, const void *data, size_t bytes)
{
    const uint8_t *at = data;
    for (size_t i = 0; i < bytes; i++)
        seal = (seal ^ at[i]) * UINT64_C(0x100000001b3);
    return seal;
}

/* All that is borrowed. */
static uint64_t seal_of(const ek_expert_work *w)
{
    size_t n_pairs = (size_t)w->n_tokens * (size_t)w->top_k;
    size_t n_shares = (size_t)w->device_beg[w->n_devices];
    uint64_t seal = mix(0, w->expert_beg, ((size_t)w->n_experts + 1) * sizeof(int32_t));
    seal = mix(seal, w->row_token, (size_t)w->expert_beg[w->n_experts] * sizeof(int32_t));
    seal = mix(seal, w->row_of, n_pairs * sizeof(int32_t));
    seal = mix(seal, w->weight, n_pairs * sizeof(float));
    seal = mix(seal, w->share_expert, n_shares * sizeof(int32_t));
    seal = mix(seal, w->share_row, 2 * n_shares * sizeof(int32_t));
    return mix(seal, w->x->f32, (size_t)w->n_tokens * (size_t)w->x->n_cols * sizeof(float));
}

static bool fails_here(const away *self, const ek_expert_work *work, place where)
{
    return self->fails == where && self->fails_layer == work->layer &&
           self->fails_micro == work->micro_batch;
}

static ek_status away_dispatch(ek_dispatcher *base, const ek_expert_work *work,
                               ek_arena *step EK_UNUSED)
{
    away *self = (away *)base;
    assert_in_range(work->micro_batch, 0, EK_MICRO_BATCHES_MAX - 1);
    assert_null(self->out[work->micro_batch]);
    if (fails_here(self, work, AT_DISPATCH)) return EK_EPEER;
    self->n_together += self->out[1 - work->micro_batch] != NULL;
    self->out[work->micro_batch] = work;
    self->seal[work->micro_batch] = seal_of(work);
    return EK_OK;
}

static ek_status away_combine(ek_dispatcher *base, const ek_expert_work *work, float *out)
{
    away *self = (away *)base;
    assert_ptr_equal(self->out[work->micro_batch], work);
    assert_true(self->seal[work->micro_batch] == seal_of(work));
    self->out[work->micro_batch] = NULL;
    if (fails_here(self, work, AT_COMBINE)) return EK_EPEER;
    ek_arena step = ek_arena_over(self->step, ek_expert_step_bytes(self->inner, work->n_tokens));
    ek_status status = ek_expert_dispatch(self->inner, work, &step);
    return status == EK_OK ? ek_expert_combine(self->inner, work, out) : status;
}

static void away_cancel(ek_dispatcher *base, const ek_expert_work *work)
{
    away *self = (away *)base;
    assert_ptr_equal(self->out[work->micro_batch], work);
    self->out[work->micro_batch] = NULL;
    self->n_cancelled++;
}

static void away_progress(ek_dispatcher *base)
{
    away *self = (away *)base;
    self->n_looks += self->out[0] || self->out[1];
}

static size_t away_step_bytes(const ek_dispatcher *base EK_UNUSED, int32_t n_tokens EK_UNUSED)
{
    return 0;
}

static void away_destroy(ek_dispatcher *base)
{
    away *self = (away *)base;
    ek_expert_destroy(self->inner);
    free(self->step);
    free(self);
}

static const ek_dispatcher_ops away_ops = {
    .dispatch = away_dispatch,
    .combine = away_combine,
    .cancel = away_cancel,
    .progress = away_progress,
    .step_bytes = away_step_bytes,
    .destroy = away_destroy,
};

static ek_dispatcher *send_away(ek_dispatcher *inner)
{
    away *self = calloc(1, sizeof *self);
    assert_non_null(self);
    self->base = (ek_dispatcher){.ops = &away_ops, .micro_batching = next_batching};
    self->inner = inner;
    self->step = malloc(ek_expert_step_bytes(inner, 256));
    assert_non_null(self->step);
    return &self->base;
}

/* ---- one traffic, any way ---- */

typedef struct traffic {
    ek_rig rig;
    ek_rig_seq seq[N_SEQS];
    int32_t token[N_SEQS][N_TOKENS];
    int32_t done[N_SEQS];
    uint64_t *seen[N_SEQS]; /* (n_layers * n_experts) bits */
    size_t seen_bytes;
} traffic;

static void open_traffic(const char *model, ek_micro_batching batching, int32_t n_threads,
                         const ek_route_params *route, traffic *t)
{
    char file[128];
    ek_fixture_path path;
    ek_rng rng;
    snprintf(file, sizeof file, "tests/support/tiny-%s.gguf", model);
    ek_fixture_build(file, &path);
    ek_rig_params params = ek_rig_defaults(path.text);
    params.n_threads = n_threads;
    params.wrap = send_away;
    if (route) params.route = *route;
    next_batching = batching;
    memset(t, 0, sizeof *t);
    ek_rig_open(&params, &t->rig);
    const ek_model_params *p = &t->rig.model->params;
    t->seen_bytes = ((size_t)p->n_layers * (size_t)p->n_experts / 64 + 1) * sizeof(uint64_t);
    ek_rng_init(&rng, 11);
    for (int32_t s = 0; s < N_SEQS; s++) {
        ek_rig_seq_init(&t->seq[s]);
        t->seen[s] = calloc(1, t->seen_bytes);
        for (int32_t i = 0; i < N_TOKENS; i++)
            t->token[s][i] = (int32_t)ek_rng_below(&rng, (uint64_t)p->n_vocab);
    }
}

static void close_traffic(traffic *t)
{
    for (int32_t s = 0; s < N_SEQS; s++) {
        ek_engine_kv_free(t->rig.kv, &t->seq[s].kv, 0);
        free(t->seen[s]);
    }
    ek_rig_close(&t->rig);
}

/* Prompts that end at different steps, then decoding beside a prompt that goes on. */
static int32_t share_of(int32_t seq, int32_t step)
{
    static const int32_t chunk[N_SEQS] = {40, 7, 1};
    return step % 5 == 4 && seq != 2 ? 1 : chunk[seq];
}

/* The next step. @return rows of logits: all of its tokens; 0 when nothing is left */
static int32_t run_step(traffic *t, int32_t step, float *out_logits, ek_status expected)
{
    ek_batch_seq seqs[N_SEQS];
    int32_t n_seqs = 0, n_rows = 0, share[N_SEQS] = {0};
    for (int32_t s = 0; s < N_SEQS; s++) {
        share[s] = share_of(s, step);
        if (share[s] > N_TOKENS - t->done[s]) share[s] = N_TOKENS - t->done[s];
        if (share[s] == 0) continue;
        ek_kv_seq *kv = &t->seq[s].kv;
        assert_int_equal(ek_engine_kv_reserve(t->rig.kv, kv, kv->n_tokens + share[s]), EK_OK);
        seqs[n_seqs++] = (ek_batch_seq){
            .kv = kv,
            .tokens = t->token[s] + t->done[s],
            .n_tokens = share[s],
            .wants_every_logit = true,
            .expert_seen = t->seen[s],
        };
        n_rows += share[s];
    }
    if (n_seqs == 0) return 0;
    ek_batch batch = {seqs, n_seqs};
    assert_int_equal(ek_engine_forward_run(t->rig.forward, &batch, out_logits), expected);
    for (int32_t s = 0; s < N_SEQS; s++) {
        if (expected == EK_OK) t->done[s] += share[s];
        assert_int_equal(t->seq[s].kv.n_tokens, t->done[s]);
    }
    return n_rows;
}

static void compare_counts(const traffic *a, const traffic *b)
{
    const ek_model_params *p = &a->rig.model->params;
    size_t n = (size_t)p->n_layers * (size_t)p->n_experts;
    int64_t *count = calloc(4 * n, sizeof *count);
    ek_telemetry_experts_read(a->rig.stats, 0, count, count + n, NULL);
    ek_telemetry_experts_read(b->rig.stats, 0, count + 2 * n, count + 3 * n, NULL);
    assert_memory_equal(count, count + 2 * n, 2 * n * sizeof *count);
    for (int32_t s = 0; s < N_SEQS; s++)
        assert_memory_equal(a->seen[s], b->seen[s], a->seen_bytes);
    const ek_route_stats *x = ek_route_stats_of(a->rig.router);
    const ek_route_stats *y = ek_route_stats_of(b->rig.router);
    assert_true(x->n_tokens == y->n_tokens && x->n_executed == y->n_executed);
    free(count);
}

static void test_two_halves_change_no_bit(void **state)
{
    static const char *const models[] = {"qwen2moe-q8_0", "qwen3moe-f32", "olmoe-f32"};
    (void)state;
    for (size_t m = 0; m < EK_COUNT_OF(models); m++) {
        for (int32_t n_threads = 1; n_threads <= 2; n_threads++) {
            traffic whole, halves;
            open_traffic(models[m], EK_MICRO_BATCHING_ONE, 1, NULL, &whole);
            open_traffic(models[m], EK_MICRO_BATCHING_TWO, n_threads, NULL, &halves);
            size_t n = (size_t)whole.rig.model->params.n_vocab * 64;
            float *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
            int32_t step = 0;
            for (int32_t n_rows; (n_rows = run_step(&whole, step, want, EK_OK)) > 0; step++) {
                assert_int_equal(run_step(&halves, step, got, EK_OK), n_rows);
                assert_memory_equal(got, want, n / 64 * (size_t)n_rows * sizeof *want);
            }
            compare_counts(&whole, &halves);
            const away *a = (const away *)halves.rig.dispatcher;
            const away *b = (const away *)whole.rig.dispatcher;
            assert_true(a->n_together > step / 4 && a->n_looks > 0);
            assert_true(b->n_together == 0 && b->n_looks == 0);
            free(want);
            free(got);
            close_traffic(&whole);
            close_traffic(&halves);
        }
    }
}

static void test_a_failure_leaves_nothing_under_way(void **state)
{
    (void)state;
    traffic whole, halves;
    open_traffic("qwen2moe-q8_0", EK_MICRO_BATCHING_ONE, 1, NULL, &whole);
    open_traffic("qwen2moe-q8_0", EK_MICRO_BATCHING_TWO, 2, NULL, &halves);
    size_t n = (size_t)whole.rig.model->params.n_vocab * 64;
    float *want = calloc(n, sizeof *want), *got = calloc(n, sizeof *got);
    away *a = (away *)halves.rig.dispatcher;
    int32_t n_layers = whole.rig.model->params.n_layers, n_failed = 0;
    assert_true(run_step(&whole, 0, want, EK_OK) > 0 && run_step(&halves, 0, got, EK_OK) > 0);
    int32_t n_rows = run_step(&whole, 1, want, EK_OK);
    for (a->fails_layer = 0; a->fails_layer < n_layers; a->fails_layer++) {
        for (a->fails_micro = 0; a->fails_micro < 2; a->fails_micro++) {
            for (int32_t where = AT_DISPATCH; where <= AT_COMBINE; where++) {
                a->fails = (place)where;
                assert_int_equal(run_step(&halves, 1, got, EK_EPEER), n_rows);
                assert_true(!a->out[0] && !a->out[1]);
                n_failed++;
            }
        }
    }
    /* All but a first dispatch, and the last combine, have the other half under way. */
    assert_int_equal(a->n_cancelled, n_failed - 2);
    a->fails = NOWHERE;
    assert_int_equal(run_step(&halves, 1, got, EK_OK), n_rows); /* the same batch again */
    assert_memory_equal(got, want, n / 64 * (size_t)n_rows * sizeof *want);
    free(want);
    free(got);
    close_traffic(&whole);
    close_traffic(&halves);
}

/* ---- when ---- */

static void test_plans_over_the_whole_batch_are_not_cut(void **state)
{
    (void)state;
    ek_route_params capped, coalesced;
    ek_route_params_default(&capped);
    ek_route_params_default(&coalesced);
    capped.capacity_factor = 1.0;
    coalesced.coalesce = 0.1;
    coalesced.coalesce_tokens = 64;
    const ek_route_params *const all[] = {&capped, &coalesced};
    for (size_t i = 0; i < EK_COUNT_OF(all); i++) {
        traffic t;
        open_traffic("olmoe-f32", EK_MICRO_BATCHING_TWO, 1, all[i], &t);
        float *logits = calloc((size_t)t.rig.model->params.n_vocab * 64, sizeof *logits);
        for (int32_t step = 0; run_step(&t, step, logits, EK_OK) > 0; step++)
            continue;
        assert_int_equal(((const away *)t.rig.dispatcher)->n_together, 0);
        free(logits);
        close_traffic(&t);
    }
    ek_microbatch_rule rule;
    ek_engine_microbatch_init(&rule, EK_MICRO_BATCHING_TWO);
    assert_int_equal(ek_engine_microbatch_choose(&rule, &coalesced, 128), 1); /* halves would be */
    assert_int_equal(ek_engine_microbatch_choose(&rule, &coalesced, 130), 2);
    assert_int_equal(ek_engine_microbatch_choose(&rule, &capped, 1000), 1);
}

/* @return how many of n steps were cut, each taking one of two times */
static int32_t play(ek_microbatch_rule *rule, int32_t n_tokens, int32_t n, int64_t one_ns,
                    int64_t two_ns)
{
    ek_route_params route;
    ek_route_params_default(&route);
    int32_t n_cut = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t n_micro = ek_engine_microbatch_choose(rule, &route, n_tokens);
        n_cut += n_micro == 2;
        ek_engine_microbatch_learn(rule, n_tokens, n_micro, n_micro == 2 ? two_ns : one_ns);
    }
    return n_cut;
}

static void test_the_rule_takes_what_is_quicker(void **state)
{
    (void)state;
    ek_microbatch_rule rule;
    ek_engine_microbatch_init(&rule, EK_MICRO_BATCHING_AUTO);
    assert_int_equal(play(&rule, 256, 2 * EK_MICROBATCH_TRIALS, 1000, 800), EK_MICROBATCH_TRIALS);
    int32_t n_cut = play(&rule, 300, 640, 1000, 800); /* the same class */
    assert_in_range(n_cut, 640 - 640 / EK_MICROBATCH_AGAIN, 639);
    /* Another size, another answer. */
    n_cut = play(&rule, 20, 640, 1000, 1500);
    assert_in_range(n_cut, EK_MICROBATCH_TRIALS + 1,
                    EK_MICROBATCH_TRIALS + 640 / EK_MICROBATCH_AGAIN);
    /* What was slower becomes quicker, and is found. */
    play(&rule, 256, 40 * EK_MICROBATCH_AGAIN, 500, 800);
    assert_in_range(play(&rule, 256, 640, 500, 800), 1, 640 / EK_MICROBATCH_AGAIN);
    /* One that was stuck says little. */
    assert_int_equal(play(&rule, 256, 1, 1000000000, 1000000000), 0);
    assert_in_range(play(&rule, 256, 640, 500, 800), 1, 20 + 640 / EK_MICROBATCH_AGAIN);
}

static void test_the_rule_does_as_it_is_told(void **state)
{
    (void)state;
    ek_microbatch_rule rule;
    ek_engine_microbatch_init(&rule, EK_MICRO_BATCHING_TWO);
    assert_int_equal(play(&rule, 1, 100, 1000, 800), 0); /* one row has no half */
    assert_int_equal(play(&rule, 2, 100, 1000, 8000), 100);
    ek_engine_microbatch_init(&rule, EK_MICRO_BATCHING_ONE);
    assert_int_equal(play(&rule, 256, 100, 1000, 800), 0);
    ek_engine_microbatch_init(&rule, EK_MICRO_BATCHING_AUTO);
    assert_int_equal(play(&rule, EK_MICROBATCH_TOKENS_MIN - 1, 100, 1000, 800), 0);
    for (int32_t n = 2; n < 100; n++) {
        int32_t first = ek_engine_microbatch_first(n);
        assert_true(first >= n - first && n - first >= 1);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_two_halves_change_no_bit),
        cmocka_unit_test(test_a_failure_leaves_nothing_under_way),
        cmocka_unit_test(test_plans_over_the_whole_batch_are_not_cut),
        cmocka_unit_test(test_the_rule_takes_what_is_quicker),
        cmocka_unit_test(test_the_rule_does_as_it_is_told),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
