/*
 * Goal: the cost model learns what steps cost, and chunks keep steps within their target. Method:
 * machines whose costs are known, with noise, accidents and changes of speed.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "sched/pace.h"

typedef struct machine {
    double base_us, decode_us, prompt_us;
    double noise; /* relative, uniform */
} machine;

static int64_t run(const machine *m, ek_rng *rng, int32_t n_decode, int32_t n_prompt)
{
    double us = m->base_us + m->decode_us * n_decode + m->prompt_us * n_prompt;
    return (int64_t)(us * (1 + m->noise * (2 * ek_rng_unit(rng) - 1)));
}

static void test_costs_are_learnt(void **state)
{
    (void)state;
    static const machine machines[] = {{20000, 900, 2500, 0.0},
                                       {300, 40, 60, 0.05},
                                       {200000, 100, 9000, 0.1},
                                       {0, 5000, 5000, 0.05}};
    for (size_t i = 0; i < sizeof machines / sizeof *machines; i++) {
        const machine *m = &machines[i];
        ek_rng rng;
        ek_sched_pace pace;
        ek_rng_init(&rng, i);
        ek_sched_pace_init(&pace);
        for (int32_t s = 0; s < 400; s++) {
            int32_t n_decode = (int32_t)ek_rng_below(&rng, 33);
            int32_t n_prompt = ek_rng_below(&rng, 2) ? (int32_t)ek_rng_below(&rng, 257) : 0;
            if (n_decode + n_prompt == 0) continue;
            ek_sched_pace_learn(&pace, n_decode, n_prompt, run(m, &rng, n_decode, n_prompt));
        }
        for (int32_t n = 8; n <= 32; n += 8) {
            double want = m->base_us + m->decode_us * n + m->prompt_us * 100;
            double got = (double)ek_sched_pace_expect_us(&pace, n, 100);
            assert_true(fabs(got - want) <= (0.01 + m->noise) * want);
        }
    }
}

/** Steps with prompts stay near the target, or near 2.5 times what decoding takes. */
static void test_steps_keep_their_target(void **state)
{
    (void)state;
    static const struct {
        machine m;
        int32_t n_decode;
        int64_t target_us;
    } cases[] = {
        {{20000, 900, 2500, 0.05}, 8, 100000},    /* decoding is quick: the target rules */
        {{20000, 10000, 5000, 0.05}, 32, 100000}, /* decoding alone takes 340 ms */
        {{200, 20, 50, 0.05}, 4, 100000},         /* whole chunks fit */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const machine *m = &cases[i].m;
        ek_rng rng;
        ek_sched_pace pace;
        ek_rng_init(&rng, 5);
        ek_sched_pace_init(&pace);
        int32_t n_decode = cases[i].n_decode;
        double alone = m->base_us + m->decode_us * n_decode, worst = 0;
        for (int32_t s = 0; s < 500; s++) {
            int32_t n =
                s % 3 ? 0
                      : ek_sched_pace_chunk(&pace, n_decode, n_decode, cases[i].target_us, 16, 256);
            assert_true(n == 0 || (n >= 16 && n <= 256));
            int64_t took_us = run(m, &rng, n_decode, n);
            ek_sched_pace_learn(&pace, n_decode, n, took_us);
            if (s >= 30 && (double)took_us > worst) worst = (double)took_us;
        }
        double limit = fmax((double)cases[i].target_us, 2.5 * alone);
        assert_true(worst <= 1.2 * limit);
        /* And they are not timid: a chunk uses what it is allowed to. */
        int32_t n = ek_sched_pace_chunk(&pace, n_decode, n_decode, cases[i].target_us, 16, 256);
        assert_true(n == 256 || alone + m->prompt_us * n >= 0.8 * limit);
    }
}

/** Prompts of those who will decode soon get what their decoding will cost the others anyway. */
static void test_prompts_do_not_starve(void **state)
{
    (void)state;
    const machine m = {20000, 10000, 5000, 0.02};
    ek_rng rng;
    ek_sched_pace pace;
    ek_rng_init(&rng, 6);
    ek_sched_pace_init(&pace);
    for (int32_t s = 0; s < 400; s++) {
        int32_t n_decode = 1 + s % 32, n_prompt = s % 3 ? 0 : 16 + s % 64;
        ek_sched_pace_learn(&pace, n_decode, n_prompt, run(&m, &rng, n_decode, n_prompt));
    }
    /* 2.5 * (20 + 32 * 10) ms, less the 60 ms that four answers take, at 5 ms each. */
    int32_t n = ek_sched_pace_chunk(&pace, 4, 32, 100000, 16, 256);
    assert_true(n >= 145 && n <= 170);
    assert_true(ek_sched_pace_chunk(&pace, 4, 4, 100000, 16, 256) <= 20); /* nobody waits */

    /* Also when few have decoded so far: 2.5 * (40 + 30 * 5) ms at least, less 40 ms. */
    ek_sched_pace_init(&pace);
    for (int32_t s = 0; s < 40; s++)
        ek_sched_pace_learn(&pace, 2, s % 2 ? 16 : 0, run(&m, &rng, 2, s % 2 ? 16 : 0));
    assert_true(ek_sched_pace_chunk(&pace, 2, 32, 100000, 16, 256) >= 80);
}

static void test_an_accident_is_not_believed(void **state)
{
    (void)state;
    const machine m = {20000, 900, 2500, 0.02};
    ek_rng rng;
    ek_sched_pace pace;
    ek_rng_init(&rng, 1);
    ek_sched_pace_init(&pace);
    for (int32_t s = 0; s < 200; s++) {
        int32_t n_prompt = s % 2 ? 40 : 0;
        ek_sched_pace_learn(&pace, 8, n_prompt, run(&m, &rng, 8, n_prompt));
    }
    int32_t before = ek_sched_pace_chunk(&pace, 8, 8, 150000, 8, 256);
    ek_sched_pace_learn(&pace, 8, 40, 20000000); /* the machine slept for 20 s */
    assert_true(ek_sched_pace_chunk(&pace, 8, 8, 150000, 8, 256) >= before / 3);
    for (int32_t s = 0; s < 60; s++) {
        int32_t n_prompt = s % 2 ? 40 : 0;
        ek_sched_pace_learn(&pace, 8, n_prompt, run(&m, &rng, 8, n_prompt));
    }
    assert_true(abs(ek_sched_pace_chunk(&pace, 8, 8, 150000, 8, 256) - before) <= before / 8);
}

static void test_a_machine_that_slows_down_is_followed(void **state)
{
    (void)state;
    machine m = {10000, 500, 1000, 0.02};
    ek_rng rng;
    ek_sched_pace pace;
    ek_rng_init(&rng, 2);
    ek_sched_pace_init(&pace);
    for (int32_t half = 0; half < 2; half++) {
        for (int32_t s = 0; s < 300; s++) {
            int32_t n_prompt = s % 2 ? ek_sched_pace_chunk(&pace, 8, 8, 60000, 8, 256) : 0;
            ek_sched_pace_learn(&pace, 8, n_prompt, run(&m, &rng, 8, n_prompt));
        }
        double room = 60000 - m.base_us - 8 * m.decode_us;
        double want = fmax(room, 1.5 * (m.base_us + 8 * m.decode_us)) / m.prompt_us;
        assert_true(fabs(ek_sched_pace_chunk(&pace, 8, 8, 60000, 8, 256) - want) <= 0.1 * want);
        m.prompt_us *= 2; /* somebody else began to work */
        m.decode_us *= 2;
        m.base_us *= 2;
    }
}

/** An hour of decoding alone must not make one prompt upset everything. */
static void test_what_was_not_seen_for_long_is_still_known(void **state)
{
    (void)state;
    const machine m = {20000, 900, 2500, 0.05};
    ek_rng rng;
    ek_sched_pace pace;
    ek_rng_init(&rng, 3);
    ek_sched_pace_init(&pace);
    for (int32_t s = 0; s < 200; s++) {
        int32_t n_prompt = s % 2 ? 60 : 0;
        ek_sched_pace_learn(&pace, 8, n_prompt, run(&m, &rng, 8, n_prompt));
    }
    for (int32_t s = 0; s < 100000; s++)
        ek_sched_pace_learn(&pace, 8, 0, run(&m, &rng, 8, 0));
    int32_t n = ek_sched_pace_chunk(&pace, 8, 8, 150000, 8, 256);
    assert_true(n >= 35 && n <= 62); /* (150 - 27.2) / 2.5 is 49 */
    ek_sched_pace_learn(&pace, 8, n, run(&m, &rng, 8, n));
    assert_true(isfinite(pace.us[0]) && isfinite(pace.us[1]) && isfinite(pace.us[2]));
    n = ek_sched_pace_chunk(&pace, 8, 8, 150000, 8, 256);
    assert_true(n >= 35 && n <= 62);
}

static void test_nothing_learnt_and_nobody_waiting(void **state)
{
    (void)state;
    ek_sched_pace pace;
    ek_sched_pace_init(&pace);
    assert_int_equal(ek_sched_pace_expect_us(&pace, 1, 1), 0);
    assert_int_equal(ek_sched_pace_chunk(&pace, 5, 5, 1000, 16, 256), 256);
    for (int32_t s = 0; s < 50; s++)
        ek_sched_pace_learn(&pace, 4, s % 2 ? 100 : 0, s % 2 ? 1000000 : 100000);
    assert_int_equal(ek_sched_pace_chunk(&pace, 0, 0, 1000, 16, 256), 256); /* nobody decodes */
    assert_int_equal(ek_sched_pace_chunk(&pace, 4, 4, 0, 16, 256), 256);    /* no target */
    assert_int_equal(ek_sched_pace_chunk(&pace, 4, 4, 1000, 16, 256), 16);
    assert_int_equal(ek_sched_pace_chunk(&pace, 4, 4, 1000, 5, 5), 5);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_costs_are_learnt),
        cmocka_unit_test(test_steps_keep_their_target),
        cmocka_unit_test(test_prompts_do_not_starve),
        cmocka_unit_test(test_an_accident_is_not_believed),
        cmocka_unit_test(test_a_machine_that_slows_down_is_followed),
        cmocka_unit_test(test_what_was_not_seen_for_long_is_still_known),
        cmocka_unit_test(test_nothing_learnt_and_nobody_waiting),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
