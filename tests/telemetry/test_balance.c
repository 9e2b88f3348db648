/*
 * Goal: each figure of balance is what its definition says. Method: distributions whose figures
 * were worked out by hand, and laws that hold for all (order does not matter, scale does not
 * matter).
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/rng.h"
#include "telemetry/balance.h"

static void assert_near(double got, double expected)
{
    if (fabs(got - expected) > 1e-12 * (1.0 + fabs(expected)))
        fail_msg("%.17g is not %.17g", got, expected);
}

static void test_even(void **state)
{
    (void)state;
    static const int64_t counts[] = {5, 5, 5, 5};
    ek_balance b;
    ek_telemetry_balance(counts, 4, &b);
    assert_near(b.max_over_mean, 1.0);
    assert_near(b.cv, 0.0);
    assert_near(b.gini, 0.0);
    assert_near(b.entropy, log(4.0));
    assert_near(b.effective, 4.0);
    assert_near(b.top1_share, 0.25);
    assert_int_equal(b.n_zero, 0);
    assert_int_equal(b.hottest, 0); /* the lowest of equals */
    assert_int_equal(b.tokens, 20);
}

static void test_one_takes_all(void **state)
{
    (void)state;
    static const int64_t counts[] = {0, 0, 12, 0};
    ek_balance b;
    ek_telemetry_balance(counts, 4, &b);
    assert_near(b.max_over_mean, 4.0);
    assert_near(b.cv, sqrt(3.0)); /* off by 9, 3, 3, 3 from the mean 3: sqrt(108 / 4) / 3 */
    assert_near(b.gini, 0.75);
    assert_near(b.entropy, 0.0);
    assert_near(b.effective, 1.0);
    assert_near(b.top1_share, 1.0);
    assert_int_equal(b.n_zero, 3);
    assert_int_equal(b.hottest, 2);
    assert_int_equal(b.tokens, 12);
}

static void test_by_hand(void **state)
{
    (void)state;
    static const int64_t counts[] = {6, 1, 0, 3}; /* sum 10, mean 2.5 */
    ek_balance b;
    ek_telemetry_balance(counts, 4, &b);
    assert_near(b.max_over_mean, 2.4);
    /* squares of 3.5, 1.5, 2.5, 0.5: 12.25 + 2.25 + 6.25 + 0.25 = 21 */
    assert_near(b.cv, sqrt(21.0 / 4.0) / 2.5);
    /* pairs differ by 5, 6, 3, 1, 2, 3: twice 20 over 2 * 16 * 2.5 */
    assert_near(b.gini, 40.0 / 80.0);
    assert_near(b.entropy, -(0.6 * log(0.6) + 0.1 * log(0.1) + 0.3 * log(0.3)));
    assert_near(b.effective, exp(b.entropy));
    assert_near(b.top1_share, 0.6);
    assert_int_equal(b.n_zero, 1);
    assert_int_equal(b.hottest, 0);
    assert_int_equal(b.tokens, 10);
}

static void test_the_incident(void **state)
{
    (void)state;
    static const int64_t counts[] = {90, 5, 3, 2}; /* the shares of the promotion, mean 25 */
    ek_balance b;
    ek_telemetry_balance(counts, 4, &b);
    assert_near(b.max_over_mean, 3.6);
    assert_near(b.cv, sqrt((65.0 * 65 + 20 * 20 + 22 * 22 + 23 * 23) / 4) / 25);
    assert_near(b.gini, (3.0 * 90 + 5 - 3 - 3.0 * 2) / (4 * 100.0));
}

static void test_nothing_counted(void **state)
{
    (void)state;
    static const int64_t counts[] = {0, 0, 0};
    ek_balance b;
    ek_telemetry_balance(counts, 3, &b);
    assert_near(b.max_over_mean, 0.0);
    assert_near(b.cv, 0.0);
    assert_near(b.gini, 0.0);
    assert_near(b.entropy, 0.0);
    assert_near(b.effective, 0.0);
    assert_near(b.top1_share, 0.0);
    assert_int_equal(b.n_zero, 3);
    assert_int_equal(b.hottest, 0);
    assert_int_equal(b.tokens, 0);
}

static void test_a_single_expert(void **state)
{
    (void)state;
    static const int64_t counts[] = {INT64_C(1) << 50};
    ek_balance b;
    ek_telemetry_balance(counts, 1, &b);
    assert_near(b.max_over_mean, 1.0);
    assert_near(b.gini, 0.0);
    assert_near(b.effective, 1.0);
}

/* The sum over all pairs, which is what the sorted form stands for. */
static double gini_by_pairs(const int64_t *counts, int32_t n)
{
    double pairs = 0.0, sum = 0.0;
    for (int32_t i = 0; i < n; i++) {
        sum += (double)counts[i];
        for (int32_t j = 0; j < n; j++)
            pairs += fabs((double)(counts[i] - counts[j]));
    }
    return pairs / (2.0 * n * sum);
}

static void test_laws(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 11);
    static const int32_t sizes[] = {2, 3, 7, 64, 128, 1000, EK_BALANCE_COUNTS_MAX};
    for (size_t s = 0; s < sizeof sizes / sizeof sizes[0]; s++) {
        static int64_t counts[EK_BALANCE_COUNTS_MAX], mirrored[EK_BALANCE_COUNTS_MAX];
        int32_t n = sizes[s];
        for (int32_t i = 0; i < n; i++)
            counts[i] = (int64_t)ek_rng_below(&rng, 1 + ek_rng_below(&rng, 10000));
        counts[0]++; /* never all zero */
        for (int32_t i = 0; i < n; i++)
            mirrored[n - 1 - i] = 3 * counts[i];
        ek_balance a, b;
        ek_telemetry_balance(counts, n, &a);
        ek_telemetry_balance(mirrored, n, &b);
        assert_near(a.gini, gini_by_pairs(counts, n));
        assert_near(a.gini, b.gini);
        assert_near(a.cv, b.cv);
        assert_near(a.entropy, b.entropy);
        assert_near(a.max_over_mean, b.max_over_mean);
        assert_true(a.gini >= 0.0 && a.gini <= (n - 1.0) / n);
        assert_true(a.effective >= 1.0 - 1e-9 && a.effective <= n + 1e-9);
        assert_int_equal(counts[a.hottest], mirrored[b.hottest] / 3);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_even),
        cmocka_unit_test(test_one_takes_all),
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_the_incident),
        cmocka_unit_test(test_nothing_counted),
        cmocka_unit_test(test_a_single_expert),
        cmocka_unit_test(test_laws),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
