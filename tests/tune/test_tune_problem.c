/*
 * Goal: a problem has the recording's states, split by chunk, and a teacher whose broken rows are
 * mended and whose other rows are the model's. Method: a made-up layer, rows made too long and too
 * short.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "synthetic.h"
#include "tune/adam.h"

static ek_gate_problem make(const synthetic *s, void **out_mem)
{
    size_t bytes = ek_tune_problem_bytes(&s->shape);
    *out_mem = malloc(bytes);
    ek_arena perm = ek_arena_over(*out_mem, bytes);
    ek_gate_problem p;
    assert_int_equal(synthetic_problem(s, &perm, &p), EK_OK);
    return p;
}

static void test_split_by_chunk(void **state)
{
    (void)state;
    synthetic s;
    void *mem;
    synthetic_open(&s, 200, 1); /* chunks 0..6; the fifth is kept back */
    ek_gate_problem p = make(&s, &mem);
    assert_int_equal(p.n_held, 32);
    assert_int_equal(p.n_train, 168);
    const float *hidden = ek_tune_states_hidden(&s.states, 0);
    assert_memory_equal(p.held, hidden + 128 * SYN_WIDTH, 32 * SYN_WIDTH * sizeof(float));
    assert_memory_equal(p.train, hidden, 128 * SYN_WIDTH * sizeof(float));
    assert_memory_equal(p.train + 128 * SYN_WIDTH, hidden + 160 * SYN_WIDTH,
                        40 * SYN_WIDTH * sizeof(float));
    assert_int_equal(p.n_mended, 0);
    for (int32_t i = 0; i < SYN_EXPERTS * SYN_WIDTH; i++)
        assert_true(p.teacher[i] == (double)s.weight[i]);
    free(mem);
    synthetic_close(&s);
}

static void test_rows_of_odd_length_are_mended(void **state)
{
    (void)state;
    synthetic s;
    void *mem;
    synthetic_open(&s, 200, 1);
    float was[SYN_WIDTH];
    memcpy(was, s.weight + 2 * SYN_WIDTH, sizeof was);
    for (int32_t c = 0; c < SYN_WIDTH; c++) {
        s.weight[2 * SYN_WIDTH + c] *= 40;
        s.weight[5 * SYN_WIDTH + c] *= 0.01f;
    }
    ek_gate_problem p = make(&s, &mem);
    assert_int_equal(p.n_mended, 2);
    assert_int_equal(p.mended[0], 2);
    assert_int_equal(p.mended[1], 5);
    double length = ek_tune_norm(p.teacher + 2 * SYN_WIDTH, SYN_WIDTH), before = 0;
    assert_true(fabs(length - ek_tune_norm(p.teacher + 5 * SYN_WIDTH, SYN_WIDTH)) < 1e-5);
    for (int32_t c = 0; c < SYN_WIDTH; c++)
        before += (double)was[c] * (double)was[c];
    for (int32_t c = 0; c < SYN_WIDTH; c++) /* the direction is kept */
        assert_true(fabs(p.teacher[2 * SYN_WIDTH + c] / length - (double)was[c] / sqrt(before)) <
                    1e-5);
    free(mem);
    synthetic_close(&s);
}

static void test_too_few_chunks(void **state)
{
    (void)state;
    synthetic s;
    synthetic_open(&s, 100, 1); /* four chunks: none is kept back */
    size_t bytes = ek_tune_problem_bytes(&s.shape);
    void *mem = malloc(bytes);
    ek_arena perm = ek_arena_over(mem, bytes), small = ek_arena_over(mem, bytes / 2);
    ek_gate_problem p;
    assert_int_equal(synthetic_problem(&s, &perm, &p), EK_EINVAL);
    synthetic_close(&s);
    synthetic_open(&s, 200, 1);
    assert_int_equal(synthetic_problem(&s, &small, &p), EK_ENOMEM);
    free(mem);
    synthetic_close(&s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_split_by_chunk),
        cmocka_unit_test(test_rows_of_odd_length_are_mended),
        cmocka_unit_test(test_too_few_chunks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
