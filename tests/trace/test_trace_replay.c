/*
 * Goal: with a replay the experts of highest logit are those of the recording, folded to the
 * model's shape, whatever the model's own gate says; and requests follow the sequence of their key.
 * Method: a recording of three sequences made by hand, read through models of its own shape, of
 * fewer experts and of more layers, with logits that contradict it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "trace/replay.h"

enum { N_EXPERTS = 8, TOP_K = 2, N_LAYERS = 2, N_TOKENS = 4, N_SEQUENCES = 3 };

/* Sequences of 1, 0 and 3 tokens. */
static const uint8_t lengths[N_SEQUENCES][4] = {{1}, {0}, {3}};
static const uint8_t experts[N_TOKENS][N_LAYERS][TOP_K] = {
    {{0, 1}, {2, 3}}, {{4, 5}, {6, 7}}, {{1, 5}, {7, 0}}, {{3, 2}, {1, 0}}};
/* 0.6 and 0.2, little-endian ten-thousandths. */
static const uint8_t weights[N_TOKENS][N_LAYERS][TOP_K][2] = {
    {{{0x70, 0x17}, {0xd0, 0x07}}, {{0x70, 0x17}, {0xd0, 0x07}}},
    {{{0x70, 0x17}, {0xd0, 0x07}}, {{0x70, 0x17}, {0xd0, 0x07}}},
    {{{0x70, 0x17}, {0xd0, 0x07}}, {{0x70, 0x17}, {0xd0, 0x07}}},
    {{{0x70, 0x17}, {0xd0, 0x07}}, {{0x70, 0x17}, {0xd0, 0x07}}}};

static ek_mrt recording(bool has_weights)
{
    return (ek_mrt){.n_tokens = N_TOKENS,
                    .n_sequences = N_SEQUENCES,
                    .n_layers = N_LAYERS,
                    .n_experts = N_EXPERTS,
                    .top_k = TOP_K,
                    .seq_len = &lengths[0][0],
                    .expert = &experts[0][0][0],
                    .weight = has_weights ? &weights[0][0][0][0] : NULL};
}

static EK_ALIGNED(64) char memory[4096];

static ek_trace_replay make(const ek_mrt *mrt, int32_t n, int32_t n_layers, int32_t n_experts,
                            int32_t top_k)
{
    ek_trace_replay replay;
    assert_true(ek_trace_replay_bytes(mrt, n) <= sizeof memory);
    ek_arena arena = ek_arena_over(memory, ek_trace_replay_bytes(mrt, n));
    assert_int_equal(ek_trace_replay_make(mrt, n, n_layers, n_experts, top_k, &arena, &replay),
                     EK_OK);
    return replay;
}

/* The expert of rank `rank` by logit. */
static int32_t ranked(const float *logits, int32_t n, int32_t rank)
{
    for (int32_t e = 0; e < n; e++) {
        int32_t above = 0;
        for (int32_t i = 0; i < n; i++)
            above += logits[i] > logits[e];
        if (above == rank) return e;
    }
    fail_msg("no expert has rank %d", (int)rank);
    return -1;
}

static void assert_choice(const ek_trace_replay *r, uint64_t key, int32_t position, int32_t layer,
                          int32_t first, int32_t second)
{
    float logits[N_EXPERTS];
    for (int32_t e = 0; e < r->n_experts; e++)
        logits[e] = 100.0f - (float)(7 * e % r->n_experts); /* an opinion of its own */
    ek_trace_replay_logits(r, key, position, layer, logits);
    assert_int_equal(ranked(logits, r->n_experts, 0), first);
    assert_int_equal(ranked(logits, r->n_experts, 1), second);
}

static void test_choices_are_those_of_the_recording(void **state)
{
    (void)state;
    const ek_mrt mrt = recording(true);
    const ek_trace_replay r = make(&mrt, 1, N_LAYERS, N_EXPERTS, TOP_K);
    assert_choice(&r, 0, 0, 0, 0, 1);
    assert_choice(&r, 0, 0, 1, 2, 3);
    assert_choice(&r, 0, 5, 1, 2, 3); /* one token, again and again */
    assert_choice(&r, 1, 0, 0, 4, 5); /* the empty sequence is none */
    assert_choice(&r, 1, 2, 1, 1, 0);
    assert_choice(&r, 1, 3, 0, 4, 5); /* begins again */
    assert_choice(&r, 2, 0, 0, 0, 1); /* keys count around */
}

static void test_scores_are_the_recorded_shares(void **state)
{
    (void)state;
    const ek_mrt mrt = recording(true);
    const ek_trace_replay r = make(&mrt, 1, N_LAYERS, N_EXPERTS, TOP_K);
    float logits[N_EXPERTS] = {0};
    ek_trace_replay_logits(&r, 0, 0, 0, logits);
    double sum = 0;
    for (int32_t e = 0; e < N_EXPERTS; e++)
        sum += exp(logits[e]);
    assert_float_equal(sum, 1.0, 1e-6);
    assert_float_equal(exp(logits[0]), 0.6, 1e-6);
    assert_float_equal(exp(logits[1]), 0.2, 1e-6);
    /* The rest in the order of the model's own logits, within a factor of e. */
    for (int32_t e = 0; e < N_EXPERTS; e++)
        logits[e] = (float)e * 50;
    ek_trace_replay_logits(&r, 0, 0, 0, logits);
    assert_int_equal(ranked(logits, N_EXPERTS, 2), 7);
    assert_float_equal(logits[7] - logits[2], 1.0f, 1e-6f);
}

static void test_without_weights_the_chosen_share_equally(void **state)
{
    (void)state;
    const ek_mrt mrt = recording(false);
    const ek_trace_replay r = make(&mrt, 1, N_LAYERS, N_EXPERTS, TOP_K);
    float logits[N_EXPERTS] = {0};
    ek_trace_replay_logits(&r, 0, 0, 0, logits);
    assert_float_equal(exp(logits[0]), EK_TRACE_CHOSEN_SHARE / 2, 1e-6);
    assert_float_equal(exp(logits[1]), EK_TRACE_CHOSEN_SHARE / 2, 1e-6);
}

static void test_other_shapes(void **state)
{
    (void)state;
    const ek_mrt mrt = recording(true);
    /* Four layers: each recorded one twice. */
    ek_trace_replay r = make(&mrt, 1, 4, N_EXPERTS, TOP_K);
    assert_choice(&r, 0, 0, 1, 0, 1);
    assert_choice(&r, 0, 0, 2, 2, 3);
    /* Four experts: 4 and 5 are 0 and 1; of 1 and 5 only one is left. */
    r = make(&mrt, 1, N_LAYERS, 4, TOP_K);
    assert_choice(&r, 1, 0, 0, 0, 1);
    float logits[4] = {0, 0, 3, 0};
    ek_trace_replay_logits(&r, 1, 1, 0, logits);
    assert_int_equal(ranked(logits, 4, 0), 1);
    assert_int_equal(ranked(logits, 4, 1), 2); /* the gate's own favourite of the others */
    /* As many experts as are chosen: nobody is left over. */
    r = make(&mrt, 1, N_LAYERS, 2, TOP_K);
    assert_choice(&r, 0, 0, 0, 0, 1);
}

static void test_keys_choose_among_recordings(void **state)
{
    (void)state;
    const ek_mrt mrt[2] = {recording(true), recording(true)};
    const ek_trace_replay r = make(mrt, 2, N_LAYERS, N_EXPERTS, TOP_K);
    for (uint64_t key = 0; key < 8; key++) {
        const int32_t *begin = &r.begin[key % 2];
        assert_ptr_equal(r.seq[begin[0]].mrt, &mrt[key % 2]);
        assert_choice(&r, key, 0, 0, key / 2 % 2 == 0 ? 0 : 4, key / 2 % 2 == 0 ? 1 : 5);
    }
}

static void test_a_recording_without_tokens_is_refused(void **state)
{
    (void)state;
    ek_mrt mrt[2] = {recording(true), recording(true)};
    mrt[1].n_sequences = 0;
    ek_trace_replay r;
    ek_arena arena = ek_arena_over(memory, sizeof memory);
    assert_int_equal(ek_trace_replay_make(mrt, 2, 2, 8, 2, &arena, &r), EK_EINVAL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_choices_are_those_of_the_recording),
        cmocka_unit_test(test_scores_are_the_recorded_shares),
        cmocka_unit_test(test_without_weights_the_chosen_share_equally),
        cmocka_unit_test(test_other_shapes),
        cmocka_unit_test(test_keys_choose_among_recordings),
        cmocka_unit_test(test_a_recording_without_tokens_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
