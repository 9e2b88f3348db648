/*
 * Goal: figures of a gate are what its choices are. Method: the gate itself, of which all distances
 * are 0; gates that choose one expert, or the same ones whatever comes in.
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
#include "tune/figures.h"

typedef struct fixture {
    synthetic s;
    void *mem;
    ek_gate_problem problem;
    void *scratch;
    size_t scratch_bytes;
    double weight[SYN_EXPERTS * SYN_WIDTH], bias[SYN_EXPERTS];
} fixture;

static void open_fixture(fixture *f)
{
    *f = (fixture){0};
    synthetic_open(&f->s, 1600, 1);
    size_t bytes = ek_tune_problem_bytes(&f->s.shape);
    f->mem = malloc(bytes);
    ek_arena perm = ek_arena_over(f->mem, bytes);
    assert_int_equal(synthetic_problem(&f->s, &perm, &f->problem), EK_OK);
    f->scratch_bytes = ek_tune_figures_bytes(&f->problem);
    f->scratch = malloc(f->scratch_bytes);
    memcpy(f->weight, f->problem.teacher, sizeof f->weight);
}

static void close_fixture(fixture *f)
{
    free(f->scratch);
    free(f->mem);
    synthetic_close(&f->s);
}

static ek_gate_figures figures_of(fixture *f, bool with_bias)
{
    const ek_gate_weights gate = {f->weight, with_bias ? f->bias : NULL};
    ek_gate_figures figures;
    assert_int_equal(ek_tune_figures(&f->problem, &gate, true,
                                     ek_arena_over(f->scratch, f->scratch_bytes), NULL, &figures),
                     EK_OK);
    return figures;
}

static void test_the_gate_itself(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    const ek_gate_weights gate = {f.weight, NULL};
    int32_t *ids = calloc((size_t)f.problem.n_train * SYN_TOP_K, sizeof *ids);
    ek_gate_figures g;
    assert_int_equal(ek_tune_figures(&f.problem, &gate, false,
                                     ek_arena_over(f.scratch, f.scratch_bytes), ids, &g),
                     EK_OK);
    assert_true(fabs(g.kl) < 1e-12 && fabs(g.score_loss) < 1e-12);
    assert_int_equal(g.balance.tokens, f.problem.n_train * SYN_TOP_K);
    int64_t counts[SYN_EXPERTS] = {0};
    for (int32_t i = 0; i < f.problem.n_train * SYN_TOP_K; i++)
        counts[ids[i]]++;
    ek_balance balance;
    ek_telemetry_balance(counts, SYN_EXPERTS, &balance);
    assert_memory_equal(&balance, &g.balance, sizeof balance);
    /* The best of a row's logits is among the ids. */
    const float *row = f.problem.train;
    int32_t best = 0;
    double most = -1e9;
    for (int32_t e = 0; e < SYN_EXPERTS; e++) {
        double z = 0;
        for (int32_t c = 0; c < SYN_WIDTH; c++)
            z += f.weight[e * SYN_WIDTH + c] * (double)row[c];
        if (z > most) {
            most = z;
            best = e;
        }
    }
    assert_int_equal(ids[0], best);
    free(ids);
    close_fixture(&f);
}

static void test_one_expert_has_it_all(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    for (int32_t c = 0; c < SYN_WIDTH; c++)
        f.weight[3 * SYN_WIDTH + c] *= 50;
    ek_gate_figures g = figures_of(&f, false);
    assert_int_equal(g.mass_hottest, 3);
    assert_true(g.mass_top1 > 0.4 && g.kl > 1 && g.score_loss > 0.01);
    close_fixture(&f);
}

static void test_a_constant_gate(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f);
    f.bias[1] = f.bias[6] = 10;
    ek_gate_figures g = figures_of(&f, true);
    assert_true(g.constant > 0.999 && g.collapse > 0.999);
    assert_int_equal(g.balance.n_zero, SYN_EXPERTS - SYN_TOP_K);
    assert_true(fabs(g.kl) < 1e-12); /* a bias changes no score */
    assert_true(g.score_loss > 0.1);
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_the_gate_itself),
        cmocka_unit_test(test_one_expert_has_it_all),
        cmocka_unit_test(test_a_constant_gate),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
