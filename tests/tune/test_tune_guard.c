/*
 * Goal: what explodes or collapses is stopped with the expert and the remedy named; what does not
 * is left alone. Method: figures and gradients on either side of each limit.
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
#include "tune/guard.h"

#define N SYN_EXPERTS
#define D SYN_WIDTH

static void test_explosion(void **state)
{
    (void)state;
    const ek_guard_limits limits = ek_tune_guard_default();
    double gradient[N * D] = {0}, weight[N * D];
    char why[EK_GUARD_TEXT_MAX] = "";
    for (int32_t i = 0; i < N * D; i++)
        weight[i] = 0.25; /* rows of length 1 */
    gradient[5 * D + 1] = 999;
    assert_false(ek_tune_guard_exploded(&limits, gradient, weight, N, D, 1, why));
    gradient[5 * D + 1] = 1001;
    assert_true(ek_tune_guard_exploded(&limits, gradient, weight, N, D, 1, why));
    assert_non_null(strstr(why, "most of it expert 5's"));
    assert_non_null(strstr(why, "--rate"));
    gradient[5 * D + 1] = 0;
    gradient[2 * D] = NAN;
    assert_true(ek_tune_guard_exploded(&limits, gradient, weight, N, D, 1, why));
    assert_non_null(strstr(why, "expert 2's"));
    gradient[2 * D] = 0;
    for (int32_t c = 0; c < D; c++)
        weight[6 * D + c] = 5.1;
    assert_true(ek_tune_guard_exploded(&limits, gradient, weight, N, D, 1, why));
    assert_non_null(strstr(why, "row of expert 6"));
    assert_false(ek_tune_guard_exploded(&limits, gradient, weight, N, D, 2, why));
}

static void test_collapse(void **state)
{
    (void)state;
    const ek_guard_limits limits = ek_tune_guard_default();
    const ek_gate_figures fine = {.collapse = 0.2, .constant = 0.3, .mass_top1 = 0.1};
    ek_gate_figures now = fine;
    char why[EK_GUARD_TEXT_MAX] = "";
    assert_false(ek_tune_guard_collapsed(&limits, &now, &fine, why));
    now.collapse = 0.91;
    now.balance.hottest = 4;
    assert_true(ek_tune_guard_collapsed(&limits, &now, &fine, why));
    assert_non_null(strstr(why, "expert 4"));
    assert_false(ek_tune_guard_collapsed(&limits, &now, &now, why)); /* found like that */
    now = fine;
    now.mass_top1 = 0.95;
    now.mass_hottest = 7;
    assert_true(ek_tune_guard_collapsed(&limits, &now, &fine, why));
    assert_non_null(strstr(why, "expert 7 has 95 %"));
    now = fine;
    now.constant = 0.995;
    assert_true(ek_tune_guard_collapsed(&limits, &now, &fine, why));
    assert_non_null(strstr(why, "constant"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_explosion),
        cmocka_unit_test(test_collapse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
