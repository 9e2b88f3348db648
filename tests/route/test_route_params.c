/*
 * The table of routing numbers: complete, default inside its range, read by somebody; and the check
 * names the key that is wrong and what would be right.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "route/params.h"

static void test_rows(void **state)
{
    (void)state;
    for (int32_t i = 0; i < ek_route_n_params; i++) {
        const ek_route_param *row = &ek_route_param_rows[i];
        assert_true(row->min <= row->max);
        assert_true((row->value >= row->min && row->value <= row->max) ||
                    (row->zero && row->value == 0));
        assert_true(row->read_by != 0 && strlen(row->help) > 10);
        ek_route_params params;
        ek_route_params_default(&params);
        assert_true(ek_route_param_get(row, &params) == row->value);
        ek_route_param_set(row, row->max, &params);
        assert_true(ek_route_param_get(row, &params) == row->max);
        for (int32_t j = 0; j < ek_route_n_params; j++) {
            const ek_route_param *other = &ek_route_param_rows[j];
            if (j == i) continue; /* every row has a field of its own */
            assert_true(ek_route_param_get(other, &params) == other->value);
            assert_string_not_equal(other->name, row->name);
        }
    }
}

/** Each number at its ends and beyond, under a policy that reads it. */
static void test_ranges(void **state)
{
    (void)state;
    for (int32_t i = 0; i < ek_route_n_params; i++) {
        const ek_route_param *row = &ek_route_param_rows[i];
        ek_route_params params;
        ek_route_params_default(&params);
        params.capacity_factor = 1;
        params.coalesce = 0.1;
        while (!(row->read_by & (EK_ROUTE_READ_BY(params.policy) | EK_ROUTE_READ_CAPACITY |
                                 EK_ROUTE_READ_COALESCE)))
            params.policy++;
        double step = row->type == EK_ROUTE_PARAM_REAL ? 1e-4 * (row->max - row->min) : 1;
        const double bad[] = {row->min - step, row->max + step, NAN};
        size_t n_bad = row->type == EK_ROUTE_PARAM_REAL ? 3 : 2;
        for (size_t j = 0; j < n_bad; j++) {
            ek_err err = {0};
            ek_route_params wrong = params;
            if (row->zero && bad[j] == 0) continue;
            if (row->type == EK_ROUTE_PARAM_COUNT && bad[j] > INT32_MAX) continue;
            ek_route_param_set(row, bad[j], &wrong);
            assert_int_equal(ek_route_params_check(&wrong, &err), EK_EINVAL);
            assert_non_null(strstr(err.text, row->name));
            assert_non_null(strstr(err.text, "allowed are"));
        }
    }
}

/** What a policy does not read may be anything: zeroed params are good for static. */
static void test_unread_is_not_checked(void **state)
{
    (void)state;
    ek_route_params params = {.policy = EK_ROUTE_POLICY_STATIC};
    assert_int_equal(ek_route_params_check(&params, NULL), EK_OK);
    params.policy = EK_ROUTE_POLICY_BREAKER;
    assert_int_equal(ek_route_params_check(&params, NULL), EK_EINVAL);
    ek_route_params_default(&params);
    params.policy = EK_ROUTE_POLICY_DISCOUNT;
    params.breaker.window = 0;
    assert_int_equal(ek_route_params_check(&params, NULL), EK_OK);
}

static void check_refused(const ek_route_params *params, const char *says)
{
    ek_err err = {0};
    assert_int_equal(ek_route_params_check(params, &err), EK_EINVAL);
    if (!strstr(err.text, says)) fail_msg("\"%s\" is not in: %s", says, err.text);
}

static void test_numbers_fit_together(void **state)
{
    (void)state;
    ek_route_params good, bad;
    ek_route_params_default(&good);
    good.policy = EK_ROUTE_POLICY_ADAPTIVE;
    bad = good;
    bad.breaker.recover_load = 0.7;
    check_refused(&bad, "have to rise in this order");
    bad = good;
    bad.breaker.derate_load = 0.85;
    check_refused(&bad, "have to rise in this order");
    bad = good;
    bad.breaker.trip_weight = 0.6;
    check_refused(&bad, "breaker_trip_weight (0.6) is above");
    bad = good;
    bad.breaker.window_need = 6;
    check_refused(&bad, "breaker_window_need is 6; allowed are 3 to 5");
    bad = good;
    bad.breaker.window = 6;
    check_refused(&bad, "breaker_window_need is 3; allowed are 4 to 6");
    bad = good;
    bad.breaker.open_us = 31000000;
    check_refused(&bad, "breaker_open is longer");
    bad = good;
    bad.policy = (ek_route_policy)5;
    check_refused(&bad, "policy 5 is not known");
    bad.policy = (ek_route_policy)-1;
    check_refused(&bad, "policy -1 is not known");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rows),
        cmocka_unit_test(test_ranges),
        cmocka_unit_test(test_unread_is_not_checked),
        cmocka_unit_test(test_numbers_fit_together),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
