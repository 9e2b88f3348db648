/*
 * Goal: a schedule is the same for the same seed, has the rates and shares that were asked for, and
 * refuses what is no plan. Method: long schedules counted against their means, with bounds of six
 * deviations; bad plans one by one.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "lab/schedule.h"
#include "lab/texts.h"

#define ROOM 400000

static ek_lab_request first[ROOM], second[ROOM];

static int32_t draw(const ek_lab_plan *plan, ek_lab_request *out)
{
    int32_t n = -1;
    assert_int_equal(ek_lab_schedule(plan, ROOM, out, &n), EK_OK);
    return n;
}

static bool same(const ek_lab_request *a, const ek_lab_request *b)
{
    return a->due_us == b->due_us && a->draw == b->draw && a->phase == b->phase &&
           a->kind == b->kind;
}

static void test_same_seed_same_schedule(void **state)
{
    (void)state;
    ek_lab_plan plan;
    ek_lab_plan_incident(60, 12, 7, &plan);
    const int32_t n = draw(&plan, first);
    assert_int_equal(draw(&plan, second), n);
    for (int32_t i = 0; i < n; i++)
        assert_true(same(&first[i], &second[i]));
    plan.seed = 8;
    const int32_t other = draw(&plan, second);
    assert_false(other == n && same(&first[0], &second[0]));
}

static void test_rates_and_shares(void **state)
{
    (void)state;
    ek_lab_plan plan;
    ek_lab_plan_incident(4000, 50, 3, &plan);
    plan.rate[EK_LAB_PROMOTION] = 80;
    const int32_t n = draw(&plan, first);
    double n_of[EK_LAB_N_PHASES][EK_LAB_N_KINDS] = {{0}}, n_in[EK_LAB_N_PHASES] = {0};
    for (int32_t i = 0; i < n; i++) {
        const ek_lab_request *r = &first[i];
        const double at_s = 1e-6 * (double)r->due_us;
        assert_true(i == 0 || r->due_us >= first[i - 1].due_us);
        assert_true(at_s >= ek_lab_plan_begins(&plan, (int)r->phase) - 1e-6);
        assert_true(at_s < ek_lab_plan_begins(&plan, (int)r->phase + 1));
        n_of[r->phase][r->kind]++;
        n_in[r->phase]++;
    }
    for (int p = 0; p < EK_LAB_N_PHASES; p++) {
        const double mean = plan.rate[p] * plan.seconds[p];
        assert_true(fabs(n_in[p] - mean) < 6 * sqrt(mean));
        for (int k = 0; k < EK_LAB_N_KINDS; k++) {
            const double share = plan.share[p][k];
            assert_true(fabs(n_of[p][k] - n_in[p] * share) <
                        6 * sqrt(n_in[p] * share * (1 - share)));
        }
    }
}

/* Gaps of a Poisson process: mean 1/rate, and a deviation as large as the mean. */
static void test_gaps(void **state)
{
    (void)state;
    ek_lab_plan plan;
    ek_lab_plan_incident(4000, 50, 11, &plan);
    plan.seconds[EK_LAB_PROMOTION] = plan.seconds[EK_LAB_RECOVERY] = 0;
    const int32_t n = draw(&plan, first);
    double sum = 0, squares = 0;
    for (int32_t i = 1; i < n; i++) {
        const double gap = 1e-6 * (double)(first[i].due_us - first[i - 1].due_us);
        sum += gap;
        squares += gap * gap;
    }
    const double mean = sum / (n - 1), deviation = sqrt(squares / (n - 1) - mean * mean);
    assert_true(fabs(mean - 0.02) < 6 * 0.02 / sqrt(n));
    assert_true(fabs(deviation / mean - 1) < 0.05);
}

static void test_the_incident_is_that_of_the_requirements(void **state)
{
    (void)state;
    ek_lab_plan plan;
    ek_lab_plan_incident(100, 10, 1, &plan);
    assert_true(plan.share[EK_LAB_PROMOTION][EK_LAB_LOGISTICS] == 0.9);
    for (int p = 0; p < EK_LAB_N_PHASES; p++) {
        double sum = 0;
        for (int k = 0; k < EK_LAB_N_KINDS; k++)
            sum += plan.share[p][k];
        assert_true(fabs(sum - 1) < 1e-12);
        assert_true(plan.rate[p] == 10);
    }
    assert_true(ek_lab_plan_begins(&plan, EK_LAB_PROMOTION) == 20);
    assert_true(ek_lab_plan_begins(&plan, EK_LAB_RECOVERY) == 60);
    assert_true(ek_lab_plan_begins(&plan, EK_LAB_N_PHASES) == 100);
}

static void test_limits(void **state)
{
    (void)state;
    ek_lab_plan plan;
    int32_t n = -1;
    ek_lab_plan_incident(100, 10, 1, &plan);
    for (uint64_t seed = 0; seed < 200; seed++) {
        plan.seed = seed;
        assert_int_equal(
            ek_lab_schedule(&plan, (int32_t)ek_lab_plan_requests_max(&plan), first, &n), EK_OK);
    }
    n = -1;
    assert_int_equal(ek_lab_schedule(&plan, 10, first, &n), EK_ERANGE);
    assert_int_equal(n, -1);
    plan.rate[1] = NAN;
    assert_int_equal(ek_lab_schedule(&plan, ROOM, first, &n), EK_EINVAL);
    plan.rate[1] = 1;
    plan.seconds[2] = -1;
    assert_int_equal(ek_lab_schedule(&plan, ROOM, first, &n), EK_EINVAL);
    plan.seconds[2] = 1;
    plan.share[0][0] = -0.1;
    assert_int_equal(ek_lab_schedule(&plan, ROOM, first, &n), EK_EINVAL);
    plan.share[0][0] = 0;
    for (int p = 0; p < EK_LAB_N_PHASES; p++)
        plan.rate[p] = 0;
    assert_int_equal(ek_lab_schedule(&plan, 0, first, &n), EK_OK);
    assert_int_equal(n, 0);
}

static void test_texts(void **state)
{
    (void)state;
    for (int k = 0; k < EK_LAB_N_KINDS; k++) {
        int n = 0;
        while (ek_lab_texts[k][n])
            assert_true(strlen(ek_lab_texts[k][n++]) > 10);
        assert_true(n >= 5);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_same_seed_same_schedule),
        cmocka_unit_test(test_rates_and_shares),
        cmocka_unit_test(test_gaps),
        cmocka_unit_test(test_the_incident_is_that_of_the_requirements),
        cmocka_unit_test(test_limits),
        cmocka_unit_test(test_texts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
