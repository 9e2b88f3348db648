/*
 * Goal: each reading is what its header says. Method: windows whose figures were worked out by
 * hand, the borders of what counts as known, and traffic that differs by chance alone, which must
 * read as nothing.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "telemetry/readings.h"

static void assert_near(double got, double expected)
{
    if (fabs(got - expected) > 1e-6 * fmax(1.0, fabs(expected)))
        fail_msg("%.12g is not %.12g", got, expected);
}

static void test_overload(void **state)
{
    (void)state;
    static const float load[] = {0.25f, 0.75f, 0.5f, 0.75f};
    ek_reading r = ek_telemetry_read_overload(load, 4);
    assert_true(r.known);
    assert_near(r.value, 0.75);
    assert_int_equal(r.expert, 1); /* the first of equals */
    assert_near(r.with[0], 0.5625);
    assert_false(ek_telemetry_read_overload(NULL, 4).known);
}

static void test_imbalance(void **state)
{
    (void)state;
    static const int64_t tokens[] = {6, 1, 0, 3};
    ek_reading r = ek_telemetry_read_imbalance(tokens, 4, 10);
    assert_true(r.known);
    assert_near(r.value, 2.4);
    assert_int_equal(r.expert, 0);
    assert_int_equal(r.tokens, 10);
    assert_near(r.with[0], sqrt(21.0 / 4.0) / 2.5);
    assert_false(ek_telemetry_read_imbalance(tokens, 4, 11).known);
    static const int64_t none[4] = {0};
    assert_false(ek_telemetry_read_imbalance(none, 4, 0).known);
}

static void test_collapse(void **state)
{
    (void)state;
    static const int64_t even[] = {5, 5, 5, 5}, pair[] = {0, 9, 9, 0}, half[] = {6, 2, 2, 2};
    ek_reading r = ek_telemetry_read_collapse(even, 4, 2, 0);
    assert_near(r.value, 0.0);
    r = ek_telemetry_read_collapse(pair, 4, 2, 0); /* all tokens visit experts 1 and 2 */
    assert_near(r.value, 1.0);
    assert_int_equal(r.expert, 1);
    assert_near(r.with[0], 2.0);
    assert_near(r.with[1], 1.0);
    /* Shares 1/2 and three of 1/6: exp(ln 2 / 2 + ln 6 / 2) = sqrt(12) = 3.4641 effective. */
    r = ek_telemetry_read_collapse(half, 4, 2, 0);
    assert_near(r.with[0], sqrt(12.0));
    assert_near(r.value, 1.0 - (sqrt(12.0) - 2.0) / 2.0);
    assert_near(r.with[1], 8.0 / 12.0);
    assert_false(ek_telemetry_read_collapse(half, 4, 4, 0).known);
    assert_false(ek_telemetry_read_collapse(half, 4, 2, 13).known);
}

static void test_constant_gate(void **state)
{
    (void)state;
    /* 100 tokens, top-2: 98 of them visit expert 0, 90 visit expert 2, 12 go elsewhere. */
    static const int64_t now[] = {98, 5, 90, 7}, before[] = {98, 7, 90, 5},
                         other[] = {5, 98, 7, 90};
    ek_reading r = ek_telemetry_read_constant(now, before, 4, 2, 200);
    assert_true(r.known);
    assert_near(r.with[0], 0.90); /* the second hottest */
    assert_near(r.with[1], 0.01);
    assert_near(r.value, 0.90);
    assert_int_equal(r.tokens, 200);
    /* As narrow a choice, but of other experts: this gate looks at its input. */
    r = ek_telemetry_read_constant(now, other, 4, 2, 200);
    assert_near(r.with[1], 0.88); /* (93 + 93 + 83 + 83) / 2 / 200 */
    assert_near(r.value, 0.12);
    static const int64_t always[] = {100, 0, 100, 0};
    assert_near(ek_telemetry_read_constant(always, always, 4, 2, 200).value, 1.0);
    assert_false(ek_telemetry_read_constant(always, always, 4, 4, 0).known);
    static const int64_t little[] = {1, 0, 1, 0};
    assert_false(ek_telemetry_read_constant(always, little, 4, 2, 200).known);
}

static void test_zero_hit(void **state)
{
    (void)state;
    static const int64_t a[] = {4, 0, 0, 6}, b[] = {3, 1, 0, 6}, c[] = {0, 0, 1, 9};
    const int64_t *const two[] = {a, b}, *const three[] = {a, b, c}, *const one[] = {a};
    ek_reading r = ek_telemetry_read_zero_hit(two, 2, 4, 20);
    assert_true(r.known);
    assert_near(r.value, 1.0);
    assert_int_equal(r.expert, 2);
    assert_int_equal(r.tokens, 20);
    r = ek_telemetry_read_zero_hit(three, 3, 4, 20);
    assert_near(r.value, 0.0);
    assert_int_equal(r.expert, -1);
    r = ek_telemetry_read_zero_hit(one, 1, 4, 10);
    assert_near(r.value, 2.0);
    assert_int_equal(r.expert, 1);
    assert_false(ek_telemetry_read_zero_hit(one, 1, 4, 11).known);
}

static void test_oscillation_by_hand(void **state)
{
    (void)state;
    /* Shares .6 .4 and .4 .6 in turn: three drifts of .2 on the way, the last .2 from the first. */
    static const int64_t a[] = {600000, 400000}, b[] = {400000, 600000};
    const int64_t *const swing[] = {a, b, a, b};
    ek_reading r = ek_telemetry_read_oscillation(swing, 4, 2, 1000000);
    assert_true(r.known);
    assert_near(r.with[0], 0.6);
    assert_near(r.with[1], 0.2);
    /* Chance: p = 1/2, half of 2 sqrt(2/pi 1/4 2e-6), three times, over three. */
    double chance = sqrt(2.0 / 3.14159265358979323846 * 0.25 * 2e-6);
    assert_near(r.value, 0.4 / 3.0 - chance);
    assert_false(ek_telemetry_read_oscillation(swing, 4, 2, 1000001).known);
    /* The same steps in one direction are a drift, no oscillation. */
    static const int64_t c[] = {200000, 800000}, d[] = {0, 1000000};
    const int64_t *const away[] = {a, b, c, d};
    r = ek_telemetry_read_oscillation(away, 4, 2, 1000000);
    assert_near(r.with[0], 0.6);
    assert_near(r.with[1], 0.6);
    assert_near(r.value, 0.0);
}

static void test_who_oscillates(void **state)
{
    (void)state;
    static const int64_t a[] = {300, 300, 400}, b[] = {300, 100, 600}, c[] = {300, 320, 380};
    const int64_t *const windows[] = {a, b, c};
    ek_reading r = ek_telemetry_read_oscillation(windows, 3, 3, 0);
    assert_int_equal(r.expert,
                     1); /* down .2 and up .22, against up .2 and down .22 that came .02 */
}

/* Windows of the same traffic differ by chance, and that reads as nothing. */
static void test_chance_is_no_oscillation(void **state)
{
    (void)state;
    enum { N = 32, WINDOWS = 8 };
    ek_rng rng;
    ek_rng_init(&rng, 9);
    double worst = 0.0;
    for (int32_t round = 0; round < 200; round++) {
        int64_t tokens[WINDOWS][N];
        const int64_t *rows[WINDOWS];
        memset(tokens, 0, sizeof tokens);
        for (int32_t w = 0; w < WINDOWS; w++) {
            for (int32_t i = 0; i < 1024; i++)
                tokens[w][ek_rng_below(&rng, N)]++;
            rows[w] = tokens[w];
        }
        worst = fmax(worst, ek_telemetry_read_oscillation(rows, WINDOWS, N, 1024).value);
    }
    print_message("worst of 200: %.4f\n", worst);
    assert_true(worst < 0.01);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_overload),       cmocka_unit_test(test_imbalance),
        cmocka_unit_test(test_collapse),       cmocka_unit_test(test_constant_gate),
        cmocka_unit_test(test_zero_hit),       cmocka_unit_test(test_oscillation_by_hand),
        cmocka_unit_test(test_who_oscillates), cmocka_unit_test(test_chance_is_no_oscillation),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
