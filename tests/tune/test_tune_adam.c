/*
 * Goal: the optimiser finds a minimum, decays towards its anchor, clips, and follows its schedule.
 * Method: a quadratic, whose minimum is known; the first step, which Adam makes as long as the
 * rate.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tune/adam.h"

#define N 4

static void test_finds_a_minimum(void **state)
{
    (void)state;
    static const double minimum[N] = {1, -2, 0.5, 3}, none[N] = {0};
    double x[N] = {0}, m[N] = {0}, v[N] = {0}, gradient[N];
    ek_adam adam = {.m = m, .v = v, .n = N};
    for (int64_t step = 0; step < 4000; step++) {
        for (int32_t i = 0; i < N; i++)
            gradient[i] = 2 * (i + 1) * (x[i] - minimum[i]);
        ek_tune_adam_step(&adam, x, gradient, none, ek_tune_rate(0.02, step, 4000), 0);
    }
    assert_int_equal(adam.n_steps, 4000);
    for (int32_t i = 0; i < N; i++)
        assert_true(fabs(x[i] - minimum[i]) < 1e-3);
}

static void test_first_step_and_decay(void **state)
{
    (void)state;
    static const double anchor[N] = {5, 5, 5, 5};
    double x[N] = {0, 0, 0, 0}, m[N] = {0}, v[N] = {0}, gradient[N] = {3, -1e-3, 0, 7};
    ek_adam adam = {.m = m, .v = v, .n = N};
    ek_tune_adam_step(&adam, x, gradient, anchor, 0.1, 0.2);
    assert_true(fabs(x[0] - (-0.1 + 0.1)) < 1e-6); /* one rate down, 0.1 * 0.2 * 5 back */
    assert_true(fabs(x[1] - (0.1 + 0.1)) < 1e-6);
    assert_true(fabs(x[2] - 0.1) < 1e-6);
}

static void test_clip(void **state)
{
    (void)state;
    double x[2] = {3, 4}, y[2] = {0.3, 0.4};
    assert_true(fabs(ek_tune_clip(x, 2, 1) - 5) < 1e-12);
    assert_true(fabs(x[0] - 0.6) < 1e-12 && fabs(x[1] - 0.8) < 1e-12);
    assert_true(fabs(ek_tune_clip(y, 2, 1) - 0.5) < 1e-12);
    assert_true(y[0] == 0.3 && y[1] == 0.4);
    double z[2] = {1, NAN};
    assert_true(isnan(ek_tune_norm(z, 2)));
}

static void test_schedule(void **state)
{
    (void)state;
    assert_true(ek_tune_rate(1, 0, 1000) < 0.05);
    assert_true(fabs(ek_tune_rate(1, 49, 1000) - 1) < 0.01);
    for (int64_t step = 50; step + 1 < 1000; step++)
        assert_true(ek_tune_rate(1, step + 1, 1000) <= ek_tune_rate(1, step, 1000));
    assert_true(fabs(ek_tune_rate(1, 999, 1000) - 0.05) < 1e-6);
    assert_true(fabs(ek_tune_rate(1, 0, 1) - 0.05) < 1e-6);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_finds_a_minimum),
        cmocka_unit_test(test_first_step_and_decay),
        cmocka_unit_test(test_clip),
        cmocka_unit_test(test_schedule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
