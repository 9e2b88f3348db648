/*
 * Goal: the generator is xoshiro256** seeded by splitmix64, draws repeat from their seed, and
 * bounded draws are even. Method: published outputs of splitmix64; the update of xoshiro256**
 * spelled out a second time, from its definition; counts of a small range against their expected
 * spread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"

static void test_mix_is_splitmix64(void **state)
{
    (void)state;
    /*
     * First outputs for the seed 1234567, as the Rosetta Code task "Pseudo-random
     * numbers/Splitmix64" lists them.
     */
    static const uint64_t expected[] = {
        UINT64_C(6457827717110365317), UINT64_C(3203168211198807973), UINT64_C(9817491932198370423),
        UINT64_C(4593380528125082431), UINT64_C(16408922859458223821)};
    uint64_t seed = 1234567;
    for (size_t i = 0; i < 5; i++, seed += UINT64_C(0x9e3779b97f4a7c15))
        assert_true(ek_mix64(seed) == expected[i]);
}

static uint64_t rotate(uint64_t x, unsigned k)
{
    return x << k | x >> (64 - k);
}

static void test_next_is_xoshiro256_star_star(void **state)
{
    (void)state;
    ek_rng rng = {{1, 2, 3, 4}};
    uint64_t a = 1, b = 2, c = 3, d = 4;
    /* From that state in other implementations. */
    static const uint64_t first[] = {11520, 0, 1509978240, UINT64_C(1215971899390074240),
                                     UINT64_C(1216172134540287360)};
    for (size_t i = 0; i < 5; i++)
        assert_true(ek_rng_next(&rng) == first[i]);
    rng = (ek_rng){{1, 2, 3, 4}};
    for (int i = 0; i < 1000; i++) {
        uint64_t expected = rotate(b * 5, 7) * 9;
        /* The same linear step, written as new from old instead of in place. */
        uint64_t c1 = c ^ a, d1 = d ^ b;
        uint64_t new_a = a ^ d1, new_b = b ^ c1, new_c = c1 ^ (b << 17), new_d = rotate(d1, 45);
        a = new_a, b = new_b, c = new_c, d = new_d;
        assert_true(ek_rng_next(&rng) == expected);
    }
}

static void test_seeds_repeat_and_differ(void **state)
{
    (void)state;
    ek_rng a, b, c;
    ek_rng_init(&a, 0);
    ek_rng_init(&b, 0);
    ek_rng_init(&c, 1);
    assert_memory_equal(&a, &b, sizeof a);
    assert_memory_not_equal(&a, &c, sizeof a);
    assert_true((a.s[0] | a.s[1] | a.s[2] | a.s[3]) != 0); /* the one state it would never leave */
    uint64_t x = ek_rng_next(&a);
    assert_true(x == ek_rng_next(&b));
    assert_true(x != ek_rng_next(&c));
}

static void test_unit_stays_inside(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 7);
    double sum = 0.0, low = 1.0, high = 0.0;
    enum { N = 100000 };
    for (int i = 0; i < N; i++) {
        double x = ek_rng_unit(&rng);
        assert_true(x >= 0.0 && x < 1.0);
        low = x < low ? x : low;
        high = x > high ? x : high;
        sum += x;
    }
    assert_true(low < 0.001 && high > 0.999);
    assert_true(sum / N > 0.495 && sum / N < 0.505); /* five and a half standard errors */
}

static void test_below_is_even(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 3);
    enum { SIDES = 6, N = 60000 };
    int count[SIDES] = {0};
    for (int i = 0; i < N; i++)
        count[ek_rng_below(&rng, SIDES)]++;
    double chi = 0.0;
    for (int i = 0; i < SIDES; i++)
        chi += (count[i] - N / SIDES) * (double)(count[i] - N / SIDES) / (N / SIDES);
    assert_true(chi < 25.7); /* 5 degrees of freedom, one in 10,000; the seed is fixed */
    assert_int_equal(ek_rng_below(&rng, 1), 0);
}

static void test_below_rejects_the_uneven_rest(void **state)
{
    (void)state;
    /* n = 2^63 + 1 turns down nearly half of all draws; what is left lies below n. */
    uint64_t n = (UINT64_C(1) << 63) + 1;
    ek_rng rng;
    ek_rng_init(&rng, 9);
    for (int i = 0; i < 1000; i++)
        assert_true(ek_rng_below(&rng, n) < n);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mix_is_splitmix64),
        cmocka_unit_test(test_next_is_xoshiro256_star_star),
        cmocka_unit_test(test_seeds_repeat_and_differ),
        cmocka_unit_test(test_unit_stays_inside),
        cmocka_unit_test(test_below_is_even),
        cmocka_unit_test(test_below_rejects_the_uneven_rest),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
