/*
 * Goal: each method gets to the target on a skewed layer, near to the teacher; a broken gate is
 * repaired; a run goes on from its saved state to the same result; what explodes stops at a good
 * gate. Method: a made-up layer whose states are skewed.
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
#include "tune/tuner.h"

typedef struct fixture {
    synthetic s;
    void *mem;
    ek_arena arena;
    ek_gate_problem problem;
    ek_tune_params params;
} fixture;

/* @param broken expert whose row is 40 times as long; -1: none */
static void open_fixture(fixture *f, ek_tune_method method, int32_t broken)
{
    *f = (fixture){0};
    synthetic_open(&f->s, 8000, 2);
    for (int32_t c = 0; broken >= 0 && c < SYN_WIDTH; c++)
        f->s.weight[broken * SYN_WIDTH + c] *= 40;
    f->mem = malloc((size_t)64 << 20);
    f->arena = ek_arena_over(f->mem, (size_t)64 << 20);
    assert_int_equal(synthetic_problem(&f->s, &f->arena, &f->problem), EK_OK);
    ek_tune_params_default(&f->params);
    f->params.method = method;
    f->params.n_steps = 600;
    f->params.batch = 512;
    f->params.look_steps = 25;
}

static void close_fixture(fixture *f)
{
    free(f->mem);
    synthetic_close(&f->s);
}

static ek_tuner *create(fixture *f)
{
    ek_tuner *tuner;
    ek_err err = {0};
    ek_arena before = f->arena;
    if (ek_tune_tuner_create(&f->problem, &f->params, &f->arena, &tuner, &err) != EK_OK)
        fail_msg("%s", err.text);
    assert_true((size_t)(f->arena.beg - before.beg) <=
                ek_tune_tuner_bytes(&f->problem, &f->params));
    return tuner;
}

static const ek_tune_report *finish(ek_tuner *tuner)
{
    while (ek_tune_tuner_run(tuner) == EK_AGAIN)
        ;
    return ek_tune_tuner_report(tuner);
}

static void test_methods_reach_the_target(void **state)
{
    (void)state;
    for (ek_tune_method method = EK_TUNE_BIAS; method <= EK_TUNE_BOTH; method++) {
        fixture f;
        open_fixture(&f, method, -1);
        const ek_tune_report *r = finish(create(&f));
        assert_true(r->start.balance.max_over_mean > 1.35);
        if (r->end != EK_TUNE_REACHED)
            fail_msg("%s: %s at %g", ek_tune_method_name(method), r->why,
                     r->best.balance.max_over_mean);
        assert_true(r->best.balance.max_over_mean <= 1.2);
        assert_true(r->best.kl < 0.2 && r->best.score_loss < 0.1);
        assert_true(method == EK_TUNE_BIAS ? fabs(r->best.kl) < 1e-12 : r->best.kl > 0);
        close_fixture(&f);
    }
}

static void test_bias_leaves_weights_alone(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, EK_TUNE_BIAS, -1);
    ek_tuner *tuner = create(&f);
    finish(tuner);
    ek_gate_weights best = ek_tune_tuner_best(tuner);
    assert_non_null(best.bias);
    double sum = 0;
    for (int32_t e = 0; e < SYN_EXPERTS; e++)
        sum += fabs(best.bias[e]);
    assert_true(sum > 0);
    assert_memory_equal(best.weight, f.problem.teacher, SYN_EXPERTS * SYN_WIDTH * sizeof(double));
    close_fixture(&f);
}

static void test_a_broken_gate_is_repaired(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, EK_TUNE_BOTH, 0);
    const ek_tune_report *r = finish(create(&f));
    assert_int_equal(f.problem.n_mended, 1);
    assert_true(r->start.mass_top1 > 0.4);
    assert_int_equal(r->start.mass_hottest, 0);
    assert_int_equal(r->end, EK_TUNE_REACHED);
    assert_true(r->best.mass_top1 < 0.25);
    close_fixture(&f);
}

static void test_reset_learns_the_teacher_again(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, EK_TUNE_ROUTER, -1);
    f.params.reset = true;
    f.params.target = 4; /* even enough from the start: only distance counts */
    f.params.decay = 0;
    f.params.rate = 0.03;
    ek_tuner *tuner = create(&f);
    ek_status status = ek_tune_tuner_run(tuner);
    double kl = ek_tune_tuner_report(tuner)->now.kl;
    assert_int_equal(status, EK_AGAIN);
    const ek_tune_report *r = finish(tuner);
    assert_true(kl > 0.1);
    assert_true(r->best.kl < 0.02);
    close_fixture(&f);
}

static void test_saved_state_goes_on_to_the_same_gate(void **state)
{
    (void)state;
    for (int32_t cut = 2; cut <= 40; cut += 19) {
        fixture f, g;
        open_fixture(&f, EK_TUNE_BOTH, -1);
        open_fixture(&g, EK_TUNE_BOTH, -1);
        f.params.n_steps = g.params.n_steps = 100;
        f.params.target = g.params.target = 1.02; /* so that biases have something to do */
        f.params.n_passes = g.params.n_passes = 300;
        ek_tuner *whole = create(&f), *first = create(&g);
        for (int32_t i = 0; i < cut; i++)
            (void)!ek_tune_tuner_run(first);
        size_t bytes = ek_tune_tuner_state_bytes(first);
        uint8_t *saved = malloc(bytes);
        ek_tune_tuner_save(first, saved);
        ek_tuner *second = create(&g);
        ek_tune_tuner_load(second, saved);
        const ek_tune_report *a = finish(whole), *b = finish(second);
        assert_true(a->in_bias);
        assert_int_equal(a->end, b->end);
        assert_int_equal(a->n_done, b->n_done);
        assert_true(a->best.balance.max_over_mean == b->best.balance.max_over_mean);
        ek_gate_weights x = ek_tune_tuner_best(whole), y = ek_tune_tuner_best(second);
        assert_memory_equal(x.weight, y.weight, SYN_EXPERTS * SYN_WIDTH * sizeof(double));
        assert_memory_equal(x.bias, y.bias, SYN_EXPERTS * sizeof(double));
        free(saved);
        close_fixture(&f);
        close_fixture(&g);
    }
}

static void test_seeds_repeat_a_run(void **state)
{
    (void)state;
    double kl[3];
    for (int32_t i = 0; i < 3; i++) {
        fixture f;
        open_fixture(&f, EK_TUNE_ROUTER, -1);
        f.params.seed = i < 2 ? 5 : 6;
        f.params.n_steps = 50;
        kl[i] = finish(create(&f))->now.kl;
        close_fixture(&f);
    }
    assert_true(kl[0] == kl[1]);
    assert_true(kl[0] != kl[2]);
}

static void test_explosion_goes_back_to_a_good_gate(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, EK_TUNE_ROUTER, -1);
    f.params.rate = 3e3;
    f.params.z_weight = 1;
    ek_tuner *tuner = create(&f);
    const ek_tune_report *r = finish(tuner);
    assert_int_equal(r->end, EK_TUNE_EXPLODED);
    assert_non_null(strstr(r->why, "explosion"));
    ek_gate_weights best = ek_tune_tuner_best(tuner);
    double norm = ek_tune_norm(best.weight, SYN_EXPERTS * SYN_WIDTH);
    assert_true(norm < 20 * ek_tune_norm(f.problem.teacher, SYN_EXPERTS * SYN_WIDTH));
    assert_true(r->now.kl < 10);
    assert_true(r->best.kl < 1 && r->best.score_loss < 0.2);
    assert_int_equal(ek_tune_tuner_run(tuner), EK_END);
    close_fixture(&f);
}

static void test_collapse_is_stopped(void **state)
{
    (void)state;
    fixture f;
    open_fixture(&f, EK_TUNE_ROUTER, -1);
    f.params.guard.mass_top1 = 0.25; /* a gate of this layer at rest has 0.19 */
    f.params.guard.gradient_norm = f.params.guard.row_growth = 1e9;
    f.params.rate = 300; /* throws all rows about: some expert wins */
    f.params.balance_weight = 0;
    const ek_tune_report *r = finish(create(&f));
    if (r->end != EK_TUNE_COLLAPSED) fail_msg("ended with %d: %g", r->end, r->now.mass_top1);
    assert_non_null(strstr(r->why, "% of the probability"));
    assert_true(r->now.mass_top1 < 0.25);
    close_fixture(&f);
}

static void test_ranges(void **state)
{
    (void)state;
    fixture f;
    ek_tuner *tuner;
    ek_err err;
    open_fixture(&f, EK_TUNE_ROUTER, -1);
    f.params.target = 1;
    assert_int_equal(ek_tune_tuner_create(&f.problem, &f.params, &f.arena, &tuner, &err),
                     EK_EINVAL);
    assert_non_null(strstr(err.text, "target is 1"));
    ek_tune_params_default(&f.params);
    ek_arena small = ek_arena_over(f.arena.beg, 4096);
    assert_int_equal(ek_tune_tuner_create(&f.problem, &f.params, &small, &tuner, &err), EK_ENOMEM);
    ek_tune_method method;
    assert_true(ek_tune_method_parse("router", &method));
    assert_int_equal(method, EK_TUNE_ROUTER);
    assert_false(ek_tune_method_parse("routers", &method));
    close_fixture(&f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_methods_reach_the_target),
        cmocka_unit_test(test_bias_leaves_weights_alone),
        cmocka_unit_test(test_a_broken_gate_is_repaired),
        cmocka_unit_test(test_reset_learns_the_teacher_again),
        cmocka_unit_test(test_saved_state_goes_on_to_the_same_gate),
        cmocka_unit_test(test_seeds_repeat_a_run),
        cmocka_unit_test(test_explosion_goes_back_to_a_good_gate),
        cmocka_unit_test(test_collapse_is_stopped),
        cmocka_unit_test(test_ranges),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
