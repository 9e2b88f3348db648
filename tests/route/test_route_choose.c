/*
 * One choice per request, by hand: each policy over a few upstreams, the budget, probes, failures,
 * staleness; and the incident's traffic, 0.90/0.05/0.03/0.02 over four upstreams.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "route/choose.h"

enum { N = 4, PERIOD_US = 100000 };

typedef struct rig {
    uint8_t mem[8192];
    ek_chooser *c;
    ek_route_params params;
    int64_t now_us;
} rig;

static rig r;

/** The budget is open, unless a test closes it: scores of requests are far apart. */
static void make(ek_route_policy policy)
{
    ek_err err = {0};
    memset(&r, 0, sizeof r);
    ek_route_params_default(&r.params);
    r.params.policy = policy;
    r.params.max_score_loss = r.params.mean_score_loss = 1;
    assert_true(ek_route_chooser_bytes(N) <= sizeof r.mem);
    ek_arena perm = ek_arena_over(r.mem, ek_route_chooser_bytes(N));
    if (ek_route_chooser_create(N, &r.params, &perm, &r.c, &err) != EK_OK) fail_msg("%s", err.text);
}

static void change(void)
{
    assert_int_equal(ek_route_chooser_switch(r.c, &r.params, NULL), EK_OK);
}

static void sample(const float *loads, int32_t n_samples)
{
    for (int32_t i = 0; i < n_samples; i++) {
        r.now_us += PERIOD_US;
        const ek_route_view view = {.utilisation = loads, .sampled_us = r.now_us};
        ek_route_chooser_sample(r.c, &view);
    }
}

static int32_t choose(const double *scores)
{
    static uint64_t salt;
    return ek_route_choose(r.c, scores, NULL, 0, salt++).id;
}

static const double logistics[N] = {0.9, 0.05, 0.03, 0.02};
static const double equal[N] = {1, 1, 1, 1};

static void test_static(void **state)
{
    (void)state;
    make(EK_ROUTE_POLICY_STATIC);
    const float full[N] = {9, 0, 0, 0};
    sample(full, 10);
    assert_int_equal(choose(logistics), 0);
    assert_int_equal(choose(equal), 0); /* ties go to the lower id */
    const double odd[N] = {NAN, -1, 0.2, INFINITY}, none[N] = {0, NAN, -3, INFINITY};
    assert_int_equal(choose(odd), 2);
    ek_choice c = ek_route_choose(r.c, none, NULL, INT64_MAX, 0);
    assert_true(c.id == -1 && !c.load_view_stale && c.loss == 0);
    const ek_chooser_stats *stats = ek_route_chooser_stats_of(r.c);
    assert_true(stats->n_choices == 4 && stats->n_refused == 1 && stats->n_changed == 0);
}

/** The least loaded that is not full; all full: the least loaded; never one that does not fit. */
static void test_least_load(void **state)
{
    (void)state;
    make(EK_ROUTE_POLICY_LEAST_LOAD);
    const float loads[N] = {0.9f, 0.5f, 0.2f, 0.7f};
    sample(loads, 1);
    assert_int_equal(choose(logistics), 2);
    const double not_two[N] = {0.9, 0.05, 0, 0.02};
    assert_int_equal(choose(not_two), 1);
    const float full[N] = {1.4f, 1.2f, 3, 1.3f};
    sample(full, 1);
    assert_int_equal(choose(logistics), 1);
    /* What the caller counts itself at this moment comes before the last sample. */
    const float now[N] = {0.1f, 0.9f, 0.9f, 0.9f};
    assert_int_equal(ek_route_choose(r.c, logistics, now, 0, 0).id, 0);
    const float partly[N] = {NAN, NAN, 0.1f, NAN};
    assert_int_equal(ek_route_choose(r.c, logistics, partly, 0, 0).id, 2);
}

/** Equals share requests evenly, and differently in each front. */
static void test_equals(void **state)
{
    (void)state;
    static const ek_route_policy policies[] = {EK_ROUTE_POLICY_LEAST_LOAD, EK_ROUTE_POLICY_DISCOUNT,
                                               EK_ROUTE_POLICY_BREAKER};
    const float idle[N] = {0};
    for (size_t i = 0; i < EK_COUNT_OF(policies); i++) {
        make(policies[i]);
        sample(idle, 1);
        int32_t count[N] = {0};
        for (int32_t j = 0; j < 4000; j++)
            count[choose(equal)]++;
        for (int32_t e = 0; e < N; e++)
            assert_in_range(count[e], 900, 1100);
    }
}

/** 0.9 (0.8 exp(-(L - 0.5))) against 0.45: equal at L = 0.5 + ln 1.6 = 0.97. */
static void test_discount(void **state)
{
    (void)state;
    const double scores[N] = {0.9, 0.45, 0, 0};
    make(EK_ROUTE_POLICY_DISCOUNT);
    const float below[N] = {0.96f}, above[N] = {0.98f};
    sample(below, 1);
    assert_int_equal(choose(scores), 0);
    make(EK_ROUTE_POLICY_DISCOUNT);
    sample(above, 1);
    ek_choice c = ek_route_choose(r.c, scores, NULL, 0, 5);
    assert_true(c.id == 1 && c.static_id == 0 && fabs(c.loss - 0.5) < 1e-9);
    r.params.max_score_loss = 0.49; /* too dear */
    change();
    assert_int_equal(choose(scores), 0);
}

/** With a budget the best of what is inside it is taken, not the static choice. */
static void test_budget_picks_inside(void **state)
{
    (void)state;
    make(EK_ROUTE_POLICY_LEAST_LOAD);
    r.params.max_score_loss = 0.15;
    change();
    const double scores[N] = {1, 0.9, 0.86, 0.5};
    const float loads[N] = {0.9f, 0.6f, 0.3f, 0};
    sample(loads, 1);
    assert_int_equal(choose(scores), 2);
    /* The running mean: 0.14 each time stops at 1.1 times 0.02. */
    r.params.mean_score_loss = 0.02;
    change();
    for (int32_t i = 0; i < 20000; i++)
        choose(scores);
    const ek_chooser_stats *stats = ek_route_chooser_stats_of(r.c);
    double mean = stats->loss_sum / (double)stats->n_choices;
    assert_true(mean > 0.018 && mean < 0.0221 && stats->loss_max < 0.15);
}

static void test_breaker_and_probes(void **state)
{
    (void)state;
    make(EK_ROUTE_POLICY_BREAKER);
    r.params.breaker.probes = 2;
    change();
    const float hot[N] = {0.95f}, idle[N] = {0};
    sample(hot, 8);
    assert_int_equal(ek_route_chooser_breakers(r.c)[0].state, EK_BREAKER_OPEN);
    assert_int_equal(choose(logistics), 1);
    const double only[N] = {0.9, 0, 0, 0};
    ek_choice c = ek_route_choose(r.c, only, NULL, 0, 0);
    assert_true(c.id == 0 && c.is_last_resort && !c.is_probe);

    sample(idle, 10);
    assert_int_equal(ek_route_chooser_breakers(r.c)[0].state, EK_BREAKER_HALF_OPEN);
    /* A tenth of 0.9 is still more than 0.05: two probes go there, the third request does not. */
    for (int32_t i = 0; i < 2; i++) {
        c = ek_route_choose(r.c, logistics, NULL, 0, 0);
        assert_true(c.id == 0 && c.is_probe && c.loss == 0);
    }
    assert_int_equal(choose(logistics), 1);
    ek_route_choose_settle(r.c, 0, true);
    c = ek_route_choose(r.c, logistics, NULL, 0, 0);
    assert_true(c.id == 0 && c.is_probe);
    ek_route_choose_settle(r.c, 0, false); /* failed: none any more, and open again */
    assert_int_equal(choose(logistics), 1);
    sample(idle, 5);
    assert_int_equal(ek_route_chooser_breakers(r.c)[0].state, EK_BREAKER_OPEN);
    assert_int_equal(ek_route_chooser_stats_of(r.c)->n_probes, 3);
}

/** Failures open a breaker without any load; the counts of one period are forgotten in the next. */
static void test_failures(void **state)
{
    (void)state;
    make(EK_ROUTE_POLICY_BREAKER);
    const float idle[N] = {0};
    for (int32_t i = 0; i < 8; i++) {
        ek_route_choose_report(r.c, 2, false, 100);
        ek_route_choose_report(r.c, 3, true, 100);
        sample(idle, 1);
    }
    const ek_breaker *breakers = ek_route_chooser_breakers(r.c);
    assert_int_equal(breakers[2].state, EK_BREAKER_OPEN);
    assert_int_equal(breakers[3].state, EK_BREAKER_CLOSED);
    sample(idle, 10);
    assert_int_equal(breakers[2].state, EK_BREAKER_HALF_OPEN);

    make(EK_ROUTE_POLICY_BREAKER);
    r.params.breaker.latency_max_us = 1000;
    change();
    for (int32_t i = 0; i < 8; i++) {
        ek_route_choose_report(r.c, 1, true, 10);
        ek_route_choose_report(r.c, 1, true, 1200);
        sample(idle, 1);
    }
    assert_int_equal(ek_route_chooser_breakers(r.c)[1].state, EK_BREAKER_OPEN);
}

static void test_stale(void **state)
{
    (void)state;
    make(EK_ROUTE_POLICY_LEAST_LOAD);
    ek_choice c = ek_route_choose(r.c, logistics, NULL, 0, 0); /* before the first sample */
    assert_true(c.id == 0 && c.load_view_stale);
    const float loads[N] = {0.9f, 0.5f, 0.2f, 0.7f};
    sample(loads, 1);
    c = ek_route_choose(r.c, logistics, NULL, 5 * PERIOD_US, 0);
    assert_true(c.id == 2 && !c.load_view_stale);
    c = ek_route_choose(r.c, logistics, NULL, 5 * PERIOD_US + 1, 0);
    assert_true(c.id == 0 && c.load_view_stale);
    assert_int_equal(ek_route_chooser_stats_of(r.c)->n_stale, 2);
    const ek_route_view nothing = {0};
    ek_route_chooser_sample(r.c, &nothing); /* is no sample */
    assert_int_equal(choose(logistics), 2);
}

static void test_switch_and_refusals(void **state)
{
    (void)state;
    make(EK_ROUTE_POLICY_BREAKER);
    const float hot[N] = {0.95f};
    sample(hot, 8);
    r.params.breaker.open_us = 2000000;
    change();
    assert_int_equal(choose(logistics), 1); /* what was known is known */
    r.params.policy = EK_ROUTE_POLICY_STATIC;
    change();
    assert_int_equal(choose(logistics), 0);
    r.params.policy = (ek_route_policy)9;
    ek_err err = {0};
    assert_int_equal(ek_route_chooser_switch(r.c, &r.params, &err), EK_EINVAL);
    assert_int_equal(choose(logistics), 0);

    ek_route_params params;
    ek_route_params_default(&params);
    ek_chooser *c = NULL;
    ek_arena perm = ek_arena_over(r.mem, 100);
    assert_int_equal(ek_route_chooser_create(0, &params, &perm, &c, &err), EK_EINVAL);
    assert_int_equal(ek_route_chooser_create(1025, &params, &perm, &c, &err), EK_EINVAL);
    assert_int_equal(ek_route_chooser_create(N, &params, &perm, &c, &err), EK_ENOMEM);
    assert_true(c == NULL && perm.beg == r.mem);
}

/**
 * The incident: nine requests of ten want the first upstream, each can serve 40 of 100 a period.
 * `static` sends the first 90; every other policy sends it far fewer.
 */
static void test_incident(void **state)
{
    (void)state;
    for (int32_t policy = 0; policy < EK_ROUTE_N_POLICIES; policy++) {
        make((ek_route_policy)policy);
        float loads[N] = {0};
        ek_rng rng;
        ek_rng_init(&rng, 51);
        double busiest = 0;
        const int32_t n_periods = 600;
        for (int32_t i = 0; i < n_periods; i++) {
            double count[N] = {0};
            sample(loads, 1);
            for (int32_t j = 0; j < 100; j++) {
                double draw = ek_rng_unit(&rng);
                int32_t kind = draw < 0.9 ? 0 : draw < 0.95 ? 1 : draw < 0.98 ? 2 : 3;
                double scores[N] = {0.25, 0.25, 0.25, 0.25};
                float now[N];
                scores[kind] = 0.5;
                for (int32_t e = 0; e < N; e++)
                    now[e] = (float)(0.7 * (double)loads[e] + 0.3 * count[e] / 40);
                count[ek_route_choose(r.c, scores, now, 0, ek_rng_next(&rng)).id]++;
            }
            double most = 0;
            for (int32_t e = 0; e < N; e++) {
                loads[e] += 0.3f * ((float)count[e] / 40 - loads[e]);
                most = fmax(most, count[e]);
            }
            if (i >= 100) busiest += most / (n_periods - 100);
        }
        print_message("policy %d: busiest upstream gets %.1f of 100\n", policy, busiest);
        if (policy == EK_ROUTE_POLICY_STATIC)
            assert_true(busiest > 88);
        else
            assert_true(busiest < 60);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_static),
        cmocka_unit_test(test_least_load),
        cmocka_unit_test(test_equals),
        cmocka_unit_test(test_discount),
        cmocka_unit_test(test_budget_picks_inside),
        cmocka_unit_test(test_breaker_and_probes),
        cmocka_unit_test(test_failures),
        cmocka_unit_test(test_stale),
        cmocka_unit_test(test_switch_and_refusals),
        cmocka_unit_test(test_incident),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
