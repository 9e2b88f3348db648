/*
 * Goal: drift is what its definition says, and its noise what chance really does. Method: windows
 * worked out by hand; laws of a distance; draws from one distribution, whose mean drift has to be
 * the noise foretold.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/drift.h"
#include "base/rng.h"

static void assert_near(double got, double expected)
{
    if (fabs(got - expected) > 1e-12) fail_msg("%.17g is not %.17g", got, expected);
}

static void test_by_hand(void **state)
{
    (void)state;
    static const int64_t a[] = {6, 1, 0, 3}, b[] = {1, 1, 1, 2}, c[] = {0, 0, 7, 0};
    /* shares .6 .1 0 .3 and .2 .2 .2 .4: differences .4 .1 .2 .1 */
    assert_near(ek_drift(a, b, 4), 0.4);
    assert_near(ek_drift(b, a, 4), 0.4);
    assert_near(ek_drift(a, a, 4), 0.0);
    assert_near(ek_drift(a, c, 4), 1.0); /* nothing in common */
    static const int64_t twice[] = {12, 2, 0, 6}, none[] = {0, 0, 0, 0};
    assert_near(ek_drift(a, twice, 4), 0.0); /* more traffic of the same kind */
    assert_near(ek_drift(a, none, 4), 0.0);
    assert_near(ek_drift(none, a, 4), 0.0);
}

static void test_noise_by_hand(void **state)
{
    (void)state;
    /* p = 1/2 each; half of 2 sqrt(2/pi 1/4 (1/8 + 1/8)) = sqrt(1 / (8 pi)) */
    static const int64_t a[] = {2, 6}, b[] = {6, 2}, none[] = {0, 0}, one[] = {0, 4};
    assert_near(ek_drift_noise(a, b, 2), sqrt(0.125 / 3.14159265358979323846));
    assert_near(ek_drift_noise(a, none, 2), 0.0);
    assert_near(ek_drift_noise(one, one, 2), 0.0); /* certainty has no noise */
}

static void draw(ek_rng *rng, int32_t n, int32_t n_tokens, int64_t *out)
{
    memset(out, 0, (size_t)n * sizeof *out);
    for (int32_t t = 0; t < n_tokens; t++) /* the smaller of two: linearly falling shares */
    {
        uint64_t x = ek_rng_below(rng, (uint64_t)n), y = ek_rng_below(rng, (uint64_t)n);
        out[x < y ? x : y]++;
    }
}

static void test_noise_is_what_chance_does(void **state)
{
    (void)state;
    enum { N = 64, ROUNDS = 200 };
    ek_rng rng;
    ek_rng_init(&rng, 5);
    double drift = 0.0, noise = 0.0;
    for (int32_t i = 0; i < ROUNDS; i++) {
        int64_t a[N], b[N];
        draw(&rng, N, 2000, a);
        draw(&rng, N, 6000, b);
        drift += ek_drift(a, b, N) / ROUNDS;
        noise += ek_drift_noise(a, b, N) / ROUNDS;
    }
    print_message("drift %.5f, foretold %.5f\n", drift, noise);
    assert_true(fabs(drift / noise - 1.0) < 0.02);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_noise_by_hand),
        cmocka_unit_test(test_noise_is_what_chance_does),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
