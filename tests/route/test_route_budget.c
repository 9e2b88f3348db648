/*
 * The quality budget: bounds and the running mean by hand, trimming by hand and by property.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "route/budget.h"

static ek_route_params default_params(void)
{
    ek_route_params params;
    ek_route_params_default(&params);
    return params;
}

/** 0.15 up to a mean of 0.02, then linearly to nothing at 0.022. */
static void test_bound(void **state)
{
    (void)state;
    ek_route_params params = default_params();
    static const double cases[][2] = {{0, 0.15},      {0.02, 0.15}, {0.0205, 0.1125},
                                      {0.021, 0.075}, {0.022, 0},   {0.5, 0}};
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        const ek_budget budget = {.mean = cases[i][0]};
        assert_float_equal(ek_route_budget_bound(&budget, &params), cases[i][1], 1e-9);
    }
    params.mean_score_loss = 0; /* none is allowed: not even the first */
    const ek_budget empty = {0}, little = {.mean = 1e-9};
    assert_true(ek_route_budget_bound(&empty, &params) == 0 &&
                ek_route_budget_bound(&little, &params) == 0);
}

static void test_mean(void **state)
{
    (void)state;
    ek_budget a = {0}, b = {0};
    ek_route_budget_spend(&a, 0.1024);
    assert_float_equal(a.mean, 0.0001, 1e-12);
    b = a;
    for (int32_t i = 0; i < 1000; i++)
        ek_route_budget_spend(&a, 0);
    ek_route_budget_rest(&b, 1000);
    assert_true(fabs(a.mean / b.mean - 1) < 1e-6);
    ek_route_budget_spend_more(&b, 0.1024);
    assert_true(fabs(b.mean - a.mean - 0.0001) < 1e-9);
}

/** Tokens that always take all they may: the running mean stops at 1.1 times what is allowed. */
static void test_greedy_tokens_stay_inside(void **state)
{
    (void)state;
    const ek_route_params params = default_params();
    ek_budget budget = {0};
    double sum = 0;
    const int32_t n = 200000;
    for (int32_t i = 0; i < n; i++) {
        double loss = ek_route_budget_bound(&budget, &params);
        assert_true(loss <= params.max_score_loss);
        ek_route_budget_spend(&budget, loss);
        assert_true(budget.mean <= 1.1 * params.mean_score_loss + 0.15 / EK_BUDGET_HORIZON);
        sum += loss;
    }
    assert_true(sum / n <= 1.1 * params.mean_score_loss + 0.15 / EK_BUDGET_HORIZON);
    assert_true(sum / n > 0.9 * params.mean_score_loss); /* and it is used */
}

static void test_loss(void **state)
{
    (void)state;
    assert_float_equal(ek_route_budget_loss(2.0, 1.5), 0.25, 1e-12);
    assert_true(ek_route_budget_loss(2.0, 2.5) == 0);
    assert_true(ek_route_budget_loss(0, 0) == 0 && ek_route_budget_loss(0, 1) == 0);
    assert_true(ek_route_budget_loss(NAN, 1) == 0);
}

/**
 * Static {1, 2, 3, 4} with scores 0.4 0.3 0.2 0.1 against {9, 2, 8, 7} with 0.05 0.3 0.09 0.08: the
 * sum is 0.52, the loss 0.48. Undone first: 9 (0.05, lowest in) makes room for 1 (0.4, highest
 * out): 0.87. Then 7 (0.08) for 3 (0.2): 0.99. Then 8 (0.09) for 4 (0.1): nothing is left.
 */
static void test_trim_by_hand(void **state)
{
    (void)state;
    const int32_t static_id[4] = {1, 2, 3, 4};
    const double static_score[4] = {0.4, 0.3, 0.2, 0.1};
    static const struct {
        double bound;
        int32_t n_undone;
        int32_t id[4];
        double loss;
    } cases[] = {
        {0.48000001, 0, {9, 2, 8, 7}, 0.48},
        {0.2, 1, {1, 2, 8, 7}, 0.13},
        {0.13000001, 1, {1, 2, 8, 7}, 0.13},
        {0.1, 2, {1, 2, 8, 3}, 0.01},
        {0, 3, {1, 2, 4, 3}, 0},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        int32_t id[4] = {9, 2, 8, 7};
        double score[4] = {0.05, 0.3, 0.09, 0.08}, loss = -1;
        int32_t n =
            ek_route_budget_trim(static_id, static_score, 4, cases[i].bound, id, score, &loss);
        assert_int_equal(n, cases[i].n_undone);
        assert_memory_equal(id, cases[i].id, sizeof id);
        assert_float_equal(loss, cases[i].loss, 1e-9);
    }
}

/** Random choices: inside the bound afterwards, distinct, and nothing undone that need not be. */
static void test_trim_property(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 9);
    for (int32_t draw = 0; draw < 50000; draw++) {
        enum { N = 24 };
        double all[N];
        int32_t order[N], k = 1 + (int32_t)ek_rng_below(&rng, 8);
        for (int32_t i = 0; i < N; i++) {
            all[i] = pow(ek_rng_unit(&rng), 3);
            order[i] = i;
        }
        int32_t static_id[8], id[8];
        double static_score[8], score[8], loss;
        for (int32_t set = 0; set < 2; set++)
            for (int32_t i = 0; i < k; i++) {
                int32_t j = i + (int32_t)ek_rng_below(&rng, (uint64_t)(N - i));
                int32_t swap = order[i];
                order[i] = order[j];
                order[j] = swap;
                (set ? id : static_id)[i] = order[i];
                (set ? score : static_score)[i] = all[order[i]];
            }
        int32_t before[8];
        memcpy(before, id, sizeof before);
        double bound = ek_rng_unit(&rng) * 0.4, sum = 0, sum_static = 0, sum_before = 0;
        int32_t n = ek_route_budget_trim(static_id, static_score, k, bound, id, score, &loss);
        int32_t n_moved = 0;
        for (int32_t i = 0; i < k; i++) {
            sum += all[id[i]];
            sum_static += static_score[i];
            sum_before += all[before[i]];
            n_moved += before[i] != id[i];
            assert_true(score[i] == all[id[i]]);
            for (int32_t j = 0; j < i; j++)
                assert_int_not_equal(id[i], id[j]);
        }
        assert_true(loss <= bound);
        assert_float_equal(loss, fmax(0, 1 - sum / sum_static), 1e-9);
        assert_int_equal(n, n_moved);
        assert_true((n == 0) == (1 - sum_before / sum_static <= bound));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_bound),
        cmocka_unit_test(test_mean),
        cmocka_unit_test(test_greedy_tokens_stay_inside),
        cmocka_unit_test(test_loss),
        cmocka_unit_test(test_trim_by_hand),
        cmocka_unit_test(test_trim_property),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
