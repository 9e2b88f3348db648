/*
 * Goal: buckets cover every value once and in order, quantiles err by no more than the stated
 * share, and the counts at or below a bound take in that bound. Method: bucket borders walked one
 * by one; quantiles against a sorted array; four threads recording at once.
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/hist.h"
#include "base/rng.h"

static ek_hist *fresh(void)
{
    static ek_hist hist;
    memset(&hist, 0, sizeof hist);
    return &hist;
}

static void test_buckets_tile_the_numbers(void **state)
{
    (void)state;
    uint64_t low = 0;
    for (uint32_t i = 0; i + 1 < EK_HIST_BUCKETS; i++) {
        uint64_t high = ek_hist_bucket_max(i);
        assert_true(high >= low);
        assert_int_equal(ek_hist_bucket_of(low), i);
        assert_int_equal(ek_hist_bucket_of(high), i);
        low = high + 1;
    }
    assert_int_equal(ek_hist_bucket_of(low), EK_HIST_BUCKETS - 1);
    assert_int_equal(ek_hist_bucket_of(UINT64_MAX), EK_HIST_BUCKETS - 1);
    assert_true(ek_hist_bucket_max(EK_HIST_BUCKETS - 1) == UINT64_MAX);
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void test_quantiles_are_close(void **state)
{
    (void)state;
    enum { N = 10000 };
    static uint64_t values[N];
    ek_hist *hist = fresh();
    ek_rng rng;
    ek_rng_init(&rng, 1);
    for (int i = 0; i < N; i++) { /* spread over nine octaves, like latencies */
        values[i] = ek_rng_below(&rng, UINT64_C(1) << (8 + ek_rng_below(&rng, 9)));
        ek_hist_record(hist, values[i]);
    }
    qsort(values, N, sizeof values[0], compare_u64);
    static const double quantiles[] = {0.001, 0.25, 0.5, 0.9, 0.99, 0.999, 1.0};
    for (size_t i = 0; i < sizeof quantiles / sizeof quantiles[0]; i++) {
        double exact = (double)values[(int)(quantiles[i] * N) - 1];
        double got = (double)ek_hist_quantile(hist, quantiles[i]);
        assert_true(got >= exact);
        /* The upper end of a bucket is given, so at most a whole bucket too high. */
        assert_true(got <= exact * (1.0 + 1.0 / (1 << EK_HIST_SUB_BITS)) + 1.0);
    }
}

static void test_quantile_borders(void **state)
{
    (void)state;
    ek_hist *hist = fresh();
    assert_int_equal(ek_hist_quantile(hist, 0.5), 0);
    ek_hist_record(hist, 7);
    ek_hist_record(hist, 9);
    assert_int_equal(ek_hist_quantile(hist, -1.0), 7);
    assert_int_equal(ek_hist_quantile(hist, 0.0), 7);
    assert_int_equal(ek_hist_quantile(hist, 0.5), 7);
    assert_int_equal(ek_hist_quantile(hist, 0.51), 9);
    assert_int_equal(ek_hist_quantile(hist, 2.0), 9);
}

static void test_count_le_takes_in_the_bound(void **state)
{
    (void)state;
    ek_hist *hist = fresh();
    static const uint64_t values[] = {0, 1, 31, 32, 64, 64, 1000, 4096};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++)
        ek_hist_record(hist, values[i]);
    assert_int_equal(ek_hist_count_le(hist, 0), 1);
    assert_int_equal(ek_hist_count_le(hist, 31), 3);
    assert_int_equal(ek_hist_count_le(hist, 63), 4);
    assert_int_equal(ek_hist_count_le(hist, 64), 6);
    assert_int_equal(ek_hist_count_le(hist, 1000), 7);
    assert_int_equal(ek_hist_count_le(hist, UINT64_MAX), 8);
}

static void test_merge_adds(void **state)
{
    (void)state;
    static ek_hist other;
    memset(&other, 0, sizeof other);
    ek_hist *hist = fresh();
    ek_hist_record(hist, 5);
    ek_hist_record(&other, 5);
    ek_hist_record(&other, UINT64_C(1) << 50);
    ek_hist_merge(hist, &other);
    assert_int_equal(hist->count, 3);
    assert_int_equal(hist->sum, 10 + (UINT64_C(1) << 50));
    assert_int_equal(hist->bucket[5], 2);
    assert_int_equal(hist->bucket[EK_HIST_BUCKETS - 1], 1);
}

enum { RECORDS_PER_THREAD = 20000 };

static void *record_many(void *arg)
{
    for (int i = 0; i < RECORDS_PER_THREAD; i++)
        ek_hist_record(arg, (uint64_t)i % 100);
    return NULL;
}

static void test_no_record_is_lost(void **state)
{
    (void)state;
    ek_hist *hist = fresh();
    pthread_t threads[4];
    for (int i = 0; i < 4; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, record_many, hist), 0);
    for (int i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(hist->count, 4 * RECORDS_PER_THREAD);
    assert_int_equal(ek_hist_count_le(hist, 99), 4 * RECORDS_PER_THREAD);
    assert_int_equal(hist->bucket[17], 4 * RECORDS_PER_THREAD / 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_buckets_tile_the_numbers),
        cmocka_unit_test(test_quantiles_are_close),
        cmocka_unit_test(test_quantile_borders),
        cmocka_unit_test(test_count_le_takes_in_the_bound),
        cmocka_unit_test(test_merge_adds),
        cmocka_unit_test(test_no_record_is_lost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
