/*
 * The routing keys come from route/params.h; here the configuration and that table are held against
 * each other: same names, same defaults, same ranges, and what a file may say a router accepts.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "config/config.h"
#include "config/schema.h"
#include "config/value.h"
#include "route/params.h"

static const ek_config_key *key_of(const ek_route_param *row)
{
    int32_t i = ek_config_key_find(EK_STR("routing"), ek_str_from(row->name));
    assert_true(i >= 0);
    return &ek_config_keys[i];
}

static void test_defaults_are_the_rooms(void **state)
{
    (void)state;
    ek_config config;
    ek_route_params params;
    ek_config_defaults(&config);
    ek_route_params_default(&params);
    assert_int_equal(config.engine.route.policy, params.policy);
    for (int32_t i = 0; i < ek_route_n_params; i++) {
        const ek_route_param *row = &ek_route_param_rows[i];
        assert_true(ek_route_param_get(row, &config.engine.route) == row->value);
        assert_true(ek_route_param_get(row, &params) == row->value);
    }
    for (int32_t i = 0; i < EK_ROUTE_N_POLICIES; i++) {
        ek_err err = {0};
        params.policy = (ek_route_policy)i;
        assert_int_equal(ek_route_params_check(&params, &err), EK_OK);
    }
}

/* Both ends of every range are taken by the configuration and arrive as what the table says. */
static void test_ranges_are_the_rooms(void **state)
{
    (void)state;
    ek_arena none = {0};
    for (int32_t i = 0; i < ek_route_n_params; i++) {
        const ek_route_param *row = &ek_route_param_rows[i];
        const ek_config_key *key = key_of(row);
        double unit = row->type == EK_ROUTE_PARAM_REAL ? 1e6 : 1;
        assert_true((double)key->min == row->min * unit && (double)key->max == row->max * unit);
        assert_true((row->zero == NULL) == (key->zero == NULL));
        const int64_t ends[] = {key->min, key->max};
        for (size_t j = 0; j < EK_COUNT_OF(ends); j++) {
            ek_config config;
            char text[EK_CONFIG_VALUE_TEXT_MAX];
            ek_config_defaults(&config);
            ek_config_number_print(key, ends[j], text);
            assert_int_equal(ek_config_value_apply(key, ek_str_from(text), &none, &config, NULL),
                             EK_OK);
            double want = j == 0 ? row->min : row->max;
            assert_true(ek_route_param_get(row, &config.engine.route) == want);
        }
    }
}

static void test_every_routing_key_has_a_row(void **state)
{
    (void)state;
    int32_t n = 0;
    for (int32_t i = 0; i < ek_config_n_keys; i++)
        n += strcmp(ek_config_keys[i].section, "routing") == 0;
    assert_int_equal(n, ek_route_n_params + 2); /* and the policy, and recordings */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_defaults_are_the_rooms),
        cmocka_unit_test(test_ranges_are_the_rooms),
        cmocka_unit_test(test_every_routing_key_has_a_row),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
