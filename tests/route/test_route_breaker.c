/*
 * The breaker by hand: each threshold, each weight, each time, with the default params and one
 * sample every 100 ms. What holds for every sequence is test_route_breaker_model's to show.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "route/breaker.h"

#define PERIOD_US 100000

typedef struct rig {
    ek_breaker_params params;
    ek_breaker b;
    int64_t now_us;
} rig;

static rig make_rig(void)
{
    ek_route_params params;
    ek_route_params_default(&params);
    rig r = {.params = params.breaker, .now_us = 1000000};
    ek_route_breaker_init(&r.b);
    return r;
}

static ek_breaker_state feed(rig *r, double load, int32_t n_samples)
{
    ek_breaker_state state = r->b.state;
    for (int32_t i = 0; i < n_samples; i++) {
        const ek_breaker_sample sample = {.load = load};
        r->now_us += PERIOD_US;
        state = ek_route_breaker_step(&r->b, &r->params, &sample, r->now_us);
    }
    return state;
}

static void test_begins_closed(void **state)
{
    (void)state;
    rig r = make_rig();
    assert_int_equal(r.b.state, EK_BREAKER_CLOSED);
    assert_float_equal(r.b.weight, 1, 0);
    assert_int_equal(feed(&r, 0.3, 50), EK_BREAKER_CLOSED);
    assert_float_equal(r.b.weight, 1, 0);
    assert_int_equal(ek_route_breaker_admit(&r.b, &r.params, 1000), 1000);
}

/** One sample, and two of five, change nothing; three do. */
static void test_a_spike_changes_nothing(void **state)
{
    (void)state;
    rig r = make_rig();
    feed(&r, 0.3, 10);
    assert_int_equal(feed(&r, 5.0, 1), EK_BREAKER_CLOSED);
    assert_float_equal(r.b.weight, 1, 0);
    assert_int_equal(feed(&r, 0.3, 10), EK_BREAKER_CLOSED);
    feed(&r, 5.0, 2);
    assert_int_equal(feed(&r, 0.3, 3), EK_BREAKER_CLOSED);
    assert_float_equal(r.b.weight, 1, 0);
    feed(&r, 5.0, 2);
    assert_int_equal(feed(&r, 5.0, 1), EK_BREAKER_DERATED);
}

/** Weight 0.5 at 0.70, 0.1 at 0.85, linear between: 0.3 in the middle. */
static void test_weight_while_derated(void **state)
{
    (void)state;
    static const struct {
        double load, weight;
    } cases[] = {{0.70, 0.5}, {0.775, 0.3}, {0.7375, 0.4}, {0.8499999, 0.1000003}};
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        rig r = make_rig();
        assert_int_equal(feed(&r, cases[i].load, 5), EK_BREAKER_DERATED);
        assert_float_equal(r.b.weight, cases[i].weight, 1e-5);
        assert_int_equal(feed(&r, cases[i].load, 100), EK_BREAKER_DERATED);
        assert_float_equal(r.b.weight, cases[i].weight, 1e-5);
    }
    rig r = make_rig();
    assert_int_equal(feed(&r, 0.6999, 100), EK_BREAKER_CLOSED);
    assert_float_equal(r.b.weight, 1, 0);
    /* Between recover and derate nothing changes, from either side. */
    feed(&r, 0.75, 5);
    assert_int_equal(feed(&r, 0.65, 100), EK_BREAKER_DERATED);
    assert_float_equal(r.b.weight, 0.5, 1e-6);
}

/** A spike in a derated window does not cut the weight either. */
static void test_a_spike_while_derated(void **state)
{
    (void)state;
    rig r = make_rig();
    feed(&r, 0.7375, 20);
    feed(&r, 9.0, 1);
    assert_int_equal(r.b.state, EK_BREAKER_DERATED);
    assert_float_equal(r.b.weight, 0.4, 1e-5);
}

static void test_dwell_between_derating_and_opening(void **state)
{
    (void)state;
    rig r = make_rig();
    assert_int_equal(feed(&r, 0.9, 3), EK_BREAKER_DERATED);
    assert_float_equal(r.b.weight, 0.1, 1e-6);              /* at and above trip_load */
    assert_int_equal(feed(&r, 0.9, 4), EK_BREAKER_DERATED); /* 400 ms */
    assert_int_equal(feed(&r, 0.9, 1), EK_BREAKER_OPEN);    /* 500 ms */
    assert_float_equal(r.b.weight, 0, 0);
    assert_int_equal(ek_route_breaker_admit(&r.b, &r.params, 5), 0);
    assert_int_equal(r.b.n_opened, 1);
}

static void open_it(rig *r)
{
    feed(r, 0.9, 8);
    assert_int_equal(r->b.state, EK_BREAKER_OPEN);
}

/** Open for 1 s; then half-open, 0.1 to 1 in 2 s; then closed. */
static void test_the_way_back(void **state)
{
    (void)state;
    rig r = make_rig();
    open_it(&r);
    assert_int_equal(feed(&r, 0.2, 9), EK_BREAKER_OPEN);
    assert_int_equal(feed(&r, 0.2, 1), EK_BREAKER_HALF_OPEN);
    assert_float_equal(r.b.weight, 0.1, 1e-6);
    for (int32_t i = 1; i < 20; i++) {
        assert_int_equal(feed(&r, 0.2, 1), EK_BREAKER_HALF_OPEN);
        assert_float_equal(r.b.weight, (float)(0.1 + 0.9 * i / 20), 1e-5);
    }
    assert_int_equal(feed(&r, 0.2, 1), EK_BREAKER_CLOSED);
    assert_float_equal(r.b.weight, 1, 1e-5);
}

/** It stays open while the load is not below recover_load, however long. */
static void test_open_waits_for_the_load_to_go(void **state)
{
    (void)state;
    rig r = make_rig();
    open_it(&r);
    assert_int_equal(feed(&r, 0.60, 500), EK_BREAKER_OPEN);
    assert_int_equal(feed(&r, 0.59, 2), EK_BREAKER_OPEN);
    assert_int_equal(feed(&r, 0.59, 1), EK_BREAKER_HALF_OPEN);
}

/** From derated it comes back the slow way, too: 0.5 to 1 takes 0.5/0.9 of 2 s. */
static void test_slow_start_after_derating(void **state)
{
    (void)state;
    rig r = make_rig();
    feed(&r, 0.70, 10);
    assert_float_equal(r.b.weight, 0.5, 1e-6);
    feed(&r, 0.1, 3);
    assert_int_equal(r.b.state, EK_BREAKER_CLOSED);
    for (int32_t i = 1; i <= 11; i++) {
        assert_float_equal(r.b.weight, fmin(1, 0.5 + 0.045 * i), 1e-5);
        feed(&r, 0.1, 1);
    }
    assert_float_equal(r.b.weight, 1, 0);
}

/** 1 s, 2 s, 4 s, ... 30 s while it fails again and again; 1 s again after a long good time. */
static void test_open_time_grows(void **state)
{
    (void)state;
    rig r = make_rig();
    static const int32_t seconds[] = {1, 2, 4, 8, 16, 30, 30};
    open_it(&r);
    for (size_t i = 0; i < EK_COUNT_OF(seconds); i++) {
        assert_int_equal(r.b.open_us, seconds[i] * 1000000LL);
        assert_int_equal(feed(&r, 0.1, seconds[i] * 10 - 1), EK_BREAKER_OPEN);
        assert_int_equal(feed(&r, 0.1, 1), EK_BREAKER_HALF_OPEN);
        assert_int_equal(feed(&r, 0.9, 4), EK_BREAKER_HALF_OPEN);
        assert_int_equal(feed(&r, 0.9, 1), EK_BREAKER_OPEN);
    }
    feed(&r, 0.1, 300 + 20 + 5);
    assert_int_equal(r.b.state, EK_BREAKER_CLOSED);
    /* Soon after: still the longest. */
    rig soon = r;
    open_it(&soon);
    assert_int_equal(soon.b.open_us, 30000000);
    feed(&r, 0.1, 300);
    open_it(&r);
    assert_int_equal(r.b.open_us, 1000000);
}

static void test_probes(void **state)
{
    (void)state;
    rig r = make_rig();
    open_it(&r);
    feed(&r, 0.1, 10);
    assert_int_equal(r.b.state, EK_BREAKER_HALF_OPEN);
    assert_int_equal(ek_route_breaker_admit(&r.b, &r.params, 60), 60);
    assert_int_equal(ek_route_breaker_admit(&r.b, &r.params, 60), 4);
    assert_int_equal(ek_route_breaker_admit(&r.b, &r.params, 60), 0);
    ek_route_breaker_settle(&r.b, 10, 0);
    assert_int_equal(ek_route_breaker_admit(&r.b, &r.params, 60), 10);
    ek_route_breaker_settle(&r.b, 0, 1);
    assert_int_equal(ek_route_breaker_admit(&r.b, &r.params, 1), 0); /* one failed: no more */
    assert_int_equal(feed(&r, 0.1, 4), EK_BREAKER_HALF_OPEN);
    assert_int_equal(feed(&r, 0.1, 1), EK_BREAKER_OPEN);
    assert_int_equal(r.b.open_us, 2000000);
    ek_route_breaker_settle(&r.b, 1000,
                            0); /* more than there were: a caller's slip frees no more */
    assert_int_equal(r.b.n_probes, 0);
}

/** Failures and latency weigh on the scale of load. */
static void test_failures_and_latency(void **state)
{
    (void)state;
    rig r = make_rig();
    r.params.latency_max_us = 200000;
    static const struct {
        ek_breaker_sample sample;
        float pressure;
    } cases[] = {
        {{.load = 0.2, .n_ok = 3, .n_failed = 1}, 0.85f * 0.25f / 0.5f},
        {{.load = 0.2, .n_ok = 1, .n_failed = 1}, 0.85f},
        {{.load = 0.2, .n_failed = 7}, 1.7f},
        {{.load = 0.2, .latency_us = 200000}, 0.85f},
        {{.load = 0.2, .latency_us = 100000}, 0.425f},
        {{.load = 0.9, .n_ok = 3, .n_failed = 1, .latency_us = 100000}, 0.9f},
        {{.load = NAN}, 0},
        {{.load = -1}, 0},
        {{.load = INFINITY}, 1e6f},
        {{.load = 0.1, .n_ok = INT32_MAX, .n_failed = INT32_MAX}, 0.85f},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        r.now_us += PERIOD_US;
        ek_route_breaker_step(&r.b, &r.params, &cases[i].sample, r.now_us);
        assert_float_equal(r.b.recent[r.b.newest], cases[i].pressure, 1e-6);
    }
    r.params.latency_max_us = 0; /* not looked at */
    const ek_breaker_sample slow = {.latency_us = INT64_MAX};
    ek_route_breaker_step(&r.b, &r.params, &slow, r.now_us);
    assert_float_equal(r.b.recent[r.b.newest], 0, 0);

    rig failing = make_rig();
    for (int32_t i = 0; i < 8; i++) {
        const ek_breaker_sample all_fail = {.n_failed = 1};
        failing.now_us += PERIOD_US;
        ek_route_breaker_step(&failing.b, &failing.params, &all_fail, failing.now_us);
    }
    assert_int_equal(failing.b.state, EK_BREAKER_OPEN);
}

static void test_trip(void **state)
{
    (void)state;
    rig r = make_rig();
    ek_route_breaker_trip(&r.b, &r.params, r.now_us);
    assert_int_equal(r.b.state, EK_BREAKER_OPEN);
    assert_float_equal(r.b.weight, 0, 0);
    feed(&r, 0.1, 9);
    ek_route_breaker_trip(&r.b, &r.params, r.now_us); /* again: from the beginning */
    assert_int_equal(r.b.n_opened, 1);
    assert_int_equal(feed(&r, 0.1, 9), EK_BREAKER_OPEN);
    assert_int_equal(feed(&r, 0.1, 1), EK_BREAKER_HALF_OPEN);
    ek_route_breaker_trip(&r.b, &r.params, r.now_us); /* no dwell */
    assert_int_equal(r.b.state, EK_BREAKER_OPEN);
    assert_int_equal(r.b.open_us, 2000000);
}

/** A clock that jumps back stands still; one that jumps far ahead breaks nothing. */
static void test_time_is_odd(void **state)
{
    (void)state;
    rig r = make_rig();
    open_it(&r);
    const ek_breaker_sample calm = {.load = 0};
    for (int32_t i = 0; i < 100; i++)
        assert_int_equal(ek_route_breaker_step(&r.b, &r.params, &calm, -5), EK_BREAKER_OPEN);
    int64_t far_us = INT64_MAX / 4;
    assert_int_equal(ek_route_breaker_step(&r.b, &r.params, &calm, far_us), EK_BREAKER_HALF_OPEN);
    assert_float_equal(r.b.weight, 0.1, 1e-6);
    assert_int_equal(ek_route_breaker_step(&r.b, &r.params, &calm, far_us + 3000000),
                     EK_BREAKER_CLOSED);
    assert_float_equal(r.b.weight, 1, 1e-6);
}

/**
 * Two experts that share one load, of which all goes to whichever has the higher weight: without
 * dwell and ramp they would change places with every sample. With them each state lasts, and so
 * does each place.
 */
static void test_two_do_not_flap(void **state)
{
    (void)state;
    rig r[2] = {make_rig(), make_rig()};
    int32_t n_changes = 0, n_turns = 0, preferred = 0;
    int64_t last_us[2] = {0, 0};
    const int32_t n_samples = 6000; /* ten minutes */
    for (int32_t i = 0; i < n_samples; i++) {
        int32_t now = r[1].b.weight > r[0].b.weight;
        n_turns += now != preferred;
        preferred = now;
        for (int32_t j = 0; j < 2; j++) {
            ek_breaker_state before = r[j].b.state;
            if (feed(&r[j], j == preferred ? 0.95 : 0.1, 1) == before) continue;
            if (last_us[j]) assert_true(r[j].now_us - last_us[j] >= r[j].params.dwell_us);
            last_us[j] = r[j].now_us;
            n_changes++;
        }
    }
    print_message("%d changes of state, %d turns of the load in %d samples\n", n_changes, n_turns,
                  n_samples);
    assert_true(n_changes > 0 && n_turns > 0);
    assert_true(n_turns <= n_samples * PERIOD_US / r[0].params.dwell_us);
}

static void test_names(void **state)
{
    (void)state;
    assert_string_equal(ek_route_breaker_state_name(EK_BREAKER_CLOSED), "closed");
    assert_string_equal(ek_route_breaker_state_name(EK_BREAKER_DERATED), "derated");
    assert_string_equal(ek_route_breaker_state_name(EK_BREAKER_OPEN), "open");
    assert_string_equal(ek_route_breaker_state_name(EK_BREAKER_HALF_OPEN), "half-open");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_begins_closed),
        cmocka_unit_test(test_a_spike_changes_nothing),
        cmocka_unit_test(test_weight_while_derated),
        cmocka_unit_test(test_a_spike_while_derated),
        cmocka_unit_test(test_dwell_between_derating_and_opening),
        cmocka_unit_test(test_the_way_back),
        cmocka_unit_test(test_open_waits_for_the_load_to_go),
        cmocka_unit_test(test_slow_start_after_derating),
        cmocka_unit_test(test_open_time_grows),
        cmocka_unit_test(test_probes),
        cmocka_unit_test(test_failures_and_latency),
        cmocka_unit_test(test_trip),
        cmocka_unit_test(test_time_is_odd),
        cmocka_unit_test(test_two_do_not_flap),
        cmocka_unit_test(test_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
