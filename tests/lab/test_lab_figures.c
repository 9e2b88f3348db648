/*
 * Goal: percentiles, balance, a phase's figures and the incident's chain are what a calculation by
 * hand gives. Method: small made-up runs.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "lab/figures.h"

static void assert_near(double got, double expected)
{
    if (fabs(got - expected) > 1e-9 * (1 + fabs(expected)))
        fail_msg("%.12g, not %.12g", got, expected);
}

static void test_quantile(void **state)
{
    (void)state;
    double values[100];
    for (int i = 0; i < 100; i++)
        values[i] = 100 - i; /* 1..100, unsorted */
    assert_near(ek_lab_quantile(values, 100, 0.99), 99);
    assert_near(ek_lab_quantile(values, 100, 0.5), 50);
    assert_near(ek_lab_quantile(values, 100, 1), 100);
    assert_near(ek_lab_quantile(values, 100, 0), 1);
    assert_near(ek_lab_quantile(values, 3, 0.5), 2);
    assert_near(ek_lab_quantile(values, 1, 0.99), 1);
    assert_near(ek_lab_quantile(values, 0, 0.5), 0);
}

static void test_balance(void **state)
{
    (void)state;
    double ratio, cv;
    ek_lab_balance((const double[]){1, 3}, 2, &ratio, &cv);
    assert_near(ratio, 1.5);
    assert_near(cv, 0.5);
    ek_lab_balance((const double[]){4, 4, 4}, 3, &ratio, &cv);
    assert_near(ratio, 1);
    assert_near(cv, 0);
    ek_lab_balance((const double[]){8, 0, 0, 0}, 4, &ratio, &cv);
    assert_near(ratio, 4);
    assert_near(cv, sqrt(3));
    ek_lab_balance((const double[]){0, 0}, 2, &ratio, &cv);
    assert_near(ratio, 0);
    assert_near(cv, 0);
}

static void test_rate_at_a_limit(void **state)
{
    (void)state;
    const double rate[] = {10, 20, 30}, ms[] = {100, 200, 600};
    bool passed;
    assert_near(ek_lab_rate_at(rate, ms, 3, 300, &passed), 22.5);
    assert_true(passed);
    assert_near(ek_lab_rate_at(rate, ms, 3, 200, &passed), 20);
    assert_near(ek_lab_rate_at(rate, ms, 3, 99, &passed), 0);
    assert_true(passed);
    assert_near(ek_lab_rate_at(rate, ms, 3, 600, &passed), 30);
    assert_false(passed);
    /* What comes back under the limit later does not count. */
    assert_near(ek_lab_rate_at(rate, (const double[]){100, 300, 100}, 3, 200, &passed), 15);
}

static void test_knee(void **state)
{
    (void)state;
    const double x[] = {1, 2, 3, 4, 5};
    /* Below the diagonal by 0.15, 0.30, 0.45 and nothing at the ends. */
    assert_int_equal(ek_lab_knee(x, (const double[]){0, 10, 20, 30, 100}, 5), 3);
    assert_int_equal(ek_lab_knee(x, (const double[]){0, 5, 40, 70, 100}, 5), 1);
    assert_int_equal(ek_lab_knee(x, (const double[]){0, 25, 50, 75, 100}, 5), -1); /* straight */
    assert_int_equal(ek_lab_knee(x, (const double[]){0, 90, 95, 99, 100}, 5), -1); /* flattens */
    assert_int_equal(ek_lab_knee(x, (const double[]){5, 5, 5, 5, 5}, 5), -1);
    assert_int_equal(ek_lab_knee(x, x, 2), -1);
}

/* 4 s mixed, 8 s promotion, 4 s after it. */
static ek_lab_plan plan_of_16_s(void)
{
    ek_lab_plan plan;
    ek_lab_plan_incident(16, 1, 1, &plan);
    plan.seconds[EK_LAB_MIXED] = plan.seconds[EK_LAB_RECOVERY] = 4;
    plan.seconds[EK_LAB_PROMOTION] = 8;
    return plan;
}

static void test_phase(void **state)
{
    (void)state;
    const ek_lab_plan plan = plan_of_16_s();
    const ek_lab_answer answers[] = {
        {1, 1.1, 1.5, 5, EK_LAB_MIXED, true},
        {3, 3.5, 5.0, 4, EK_LAB_MIXED, true},      /* ends within the promotion */
        {5, 5.2, 6.2, 11, EK_LAB_PROMOTION, true}, /* 1.2 s; 0.2 s; 0.1 s a token */
        {6, 6.4, 8.0, 5, EK_LAB_PROMOTION, true},  /* 2 s; 0.4 s; 0.4 s a token */
        {7, 8.0, 15, 1, EK_LAB_PROMOTION, true},   /* 8 s, after the promotion; 1 s */
        {8, -1, 9, 0, EK_LAB_PROMOTION, false},
    };
    const ek_lab_sample samples[] = {
        {.at_s = 0},
        {.at_s = 4, .busy_s = {2, 1}, .plan_s = 0.1, .forward_s = 4, .tokens = 100, .loss_sum = 1},
        {.at_s = 9, .busy_s = {3, 1}},
        {.at_s = 12,
         .busy_s = {8, 3},
         .plan_s = 0.15,
         .forward_s = 9,
         .tokens = 300,
         .loss_sum = 7,
         .rerouted = 40,
         .deferred = 3,
         .degraded = 2},
        {.at_s = 16, .busy_s = {9, 4}, .forward_s = 20},
    };
    double scratch[6];
    ek_lab_figures f;
    ek_lab_figures_of(&plan, EK_LAB_PROMOTION, answers, 6, samples, 5, 2, scratch, &f);
    assert_near(f.qps, 3.0 / 8);
    assert_int_equal(f.n_ok, 3);
    assert_int_equal(f.n_failed, 1);
    assert_near(f.p50_ms, 2000);
    assert_near(f.p99_ms, 8000);
    assert_near(f.ttft_p50_ms, 400);
    assert_near(f.ttft_p99_ms, 1000);
    assert_near(f.token_p50_ms, 100);
    assert_near(f.token_p99_ms, 400);
    assert_near(f.max_over_mean, 1.5); /* 6 and 2 */
    assert_near(f.cv, 0.5);
    assert_near(f.utilisation, 0.5);
    assert_near(f.hottest_utilisation, 0.75);
    assert_near(f.router_share, 0.01);
    assert_near(f.score_loss, 0.03);
    assert_near(f.rerouted, 40);
    assert_near(f.deferred, 3);
    assert_near(f.degraded, 2);
    assert_near(ek_lab_latency_ms(answers, 6, 0, 4, 0.99, scratch), 2000);
    assert_near(ek_lab_latency_ms(answers, 6, 9, 10, 0.5, scratch), -1);
}

static void test_chain(void **state)
{
    (void)state;
    const ek_lab_plan plan = plan_of_16_s();
    ek_lab_answer answers[16];
    double scratch[16];
    for (int i = 0; i < 16; i++) /* 0.1 s, but for those due in seconds 6 to 13 */
        answers[i] = (ek_lab_answer){i + 0.5, i + 0.55,     i + (i >= 6 && i < 14 ? 2 : 0.6),
                                     2,       EK_LAB_MIXED, true};
    ek_lab_sample samples[17];
    for (int i = 0; i <= 16; i++) {
        samples[i] = (ek_lab_sample){.at_s = i, .hottest = i < 5 ? 2 : 3};
        /* Worker 1 is wholly busy from 6 to 9. */
        samples[i].busy_s[1] = i <= 6 ? 0.5 * i : i <= 9 ? 3 + (i - 6) : 6 + 0.5 * (i - 9);
        samples[i].alert = i >= 8;
        samples[i].tripped = i >= 7;
    }
    ek_lab_chain c;
    ek_lab_chain_of(&plan, answers, 16, samples, 17, 2, scratch, &c);
    assert_near(c.hot_expert_s, 5);
    assert_near(c.overload_s, 7);
    assert_near(c.overloaded_s, 3);
    assert_near(c.late_s, 6);
    assert_near(c.alert_s, 8);
    assert_near(c.breaker_s, 7);
    assert_near(c.recovery_s, 14);
    for (int i = 0; i < 16; i++) /* late to the end */
        answers[i].end_s = i < 6 ? i + 0.6 : i + 2;
    ek_lab_chain_of(&plan, answers, 16, samples, 17, 2, scratch, &c);
    assert_near(c.recovery_s, -1);
    for (int i = 0; i < 16; i++) /* never late */
        answers[i].end_s = i + 0.6;
    ek_lab_chain_of(&plan, answers, 16, samples, 17, 2, scratch, &c);
    assert_near(c.late_s, -1);
    assert_near(c.recovery_s, -1);
}

static void test_samples(void **state)
{
    (void)state;
    const ek_lab_sample samples[] = {{.at_s = 1}, {.at_s = 2, .busy_s = {5}}, {.at_s = 3}};
    assert_ptr_equal(ek_lab_sample_at(samples, 3, 0), &samples[0]);
    assert_ptr_equal(ek_lab_sample_at(samples, 3, 2), &samples[1]);
    assert_ptr_equal(ek_lab_sample_at(samples, 3, 2.5), &samples[1]);
    assert_ptr_equal(ek_lab_sample_at(samples, 3, 9), &samples[2]);
    assert_near(ek_lab_utilisation(&samples[0], &samples[1], 0), 1); /* more than there is */
    assert_near(ek_lab_utilisation(&samples[1], &samples[2], 0), 0); /* a server that began anew */
    assert_near(ek_lab_utilisation(&samples[1], &samples[1], 0), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quantile),        cmocka_unit_test(test_knee),
        cmocka_unit_test(test_rate_at_a_limit), cmocka_unit_test(test_balance),
        cmocka_unit_test(test_phase),           cmocka_unit_test(test_chain),
        cmocka_unit_test(test_samples),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
