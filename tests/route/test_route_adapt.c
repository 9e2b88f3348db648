/*
 * `adaptive`: the controller by hand, and the whole loop against a small plant.
 *
 * The plant has the incident's shape: experts with queues, whose service rate falls by 35 % above
 * 85 % utilisation. Its tail is what the slowest expert makes the batch wait. In each scenario and
 * with each seed adaptive must not be more than 3 % worse than the better of static and breaker.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "route/adapt.h"
#include "route/route.h"

static ek_route_params adaptive_params(void)
{
    ek_route_params params;
    ek_route_params_default(&params);
    params.policy = EK_ROUTE_POLICY_ADAPTIVE;
    return params;
}

static double discounted(const ek_route_params *tuned, double load)
{
    return (1 - tuned->discount_alpha) * exp(-tuned->discount_beta * (load - tuned->discount_load));
}

/** At 1/2 through the breaker's own points, at 0 nothing, at 1 sooner and steeper. */
static void test_tuning(void **state)
{
    (void)state;
    const ek_route_params params = adaptive_params();
    ek_route_params tuned;
    ek_route_adapt_tune(0.5, &params, &tuned);
    assert_true(tuned.discount_load == params.breaker.recover_load);
    assert_float_equal(discounted(&tuned, params.breaker.derate_load), params.breaker.derate_weight,
                       1e-6);
    double home = tuned.discount_beta;
    ek_route_adapt_tune(0, &params, &tuned);
    assert_true(tuned.discount_alpha == 0 && tuned.discount_beta == 0);
    ek_route_adapt_tune(0.25, &params, &tuned);
    assert_true(fabs(tuned.discount_beta - home / 2) < 1e-9);
    assert_true(tuned.discount_load == params.breaker.recover_load);
    ek_route_adapt_tune(1, &params, &tuned);
    assert_true(fabs(tuned.discount_beta - 2 * home) < 1e-9);
    assert_float_equal(tuned.discount_load, 0.45, 1e-6);
    assert_float_equal(tuned.discount_alpha, 0.1, 1e-6);
    /* What is heavy but works is not left out at any gain; what fails is. */
    assert_true(tuned.breaker.trip_load == 4 && tuned.breaker.derate_weight == 1);
    assert_true(tuned.breaker.trip_weight == params.breaker.trip_weight);
}

/** Whatever is configured, and at every gain, thresholds rise in their order and stay in bounds. */
static void test_tuned_params_are_sound(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 4);
    for (int32_t i = 0; i < 20000; i++) {
        ek_route_params params = adaptive_params(), tuned;
        params.breaker.recover_load = 0.01 + ek_rng_unit(&rng);
        params.breaker.derate_load = params.breaker.recover_load + 0.01 + ek_rng_unit(&rng);
        params.breaker.trip_load = params.breaker.derate_load + 0.01 + ek_rng_unit(&rng);
        ek_route_adapt_tune(ek_rng_unit(&rng), &params, &tuned);
        const ek_breaker_params *b = &tuned.breaker;
        assert_true(b->recover_load < b->derate_load && b->derate_load < b->trip_load);
        assert_true(b->recover_load > 0 && b->trip_load <= fmax(params.breaker.trip_load, 4));
        assert_true(tuned.discount_load > 0 && tuned.discount_load <= params.breaker.recover_load);
        assert_true(tuned.discount_alpha >= 0 && tuned.discount_alpha <= 0.1);
        assert_true(tuned.discount_beta >= 0 && tuned.discount_beta <= 100);
    }
}

/** One phase of the controller. */
static void feed(ek_adapt *a, const ek_route_params *params, int64_t tail_us, double load_max)
{
    for (int32_t i = 0; i < params->adaptive_samples; i++)
        ek_route_adapt_sample(a, params, tail_us, load_max);
}

/** Before, trial, after: kept when it beats both sides' mean by 2 %. */
static void test_trials(void **state)
{
    (void)state;
    const ek_route_params params = adaptive_params();
    ek_adapt a;
    ek_route_adapt_init(&a);
    feed(&a, &params, 0, 0.9);     /* tail not known */
    feed(&a, &params, 1000, 0.59); /* nothing is loaded */
    feed(&a, &params, 1000, NAN);
    assert_true(a.gain == 0.5 && a.phase == EK_ADAPT_BEFORE && a.tails[0].n == 0);

    feed(&a, &params, 1000, 0.9);
    assert_float_equal(a.gain, 0.6, 1e-9);
    feed(&a, &params, 975, 0.9);
    assert_true(a.gain == 0.5 && a.phase == EK_ADAPT_AFTER);
    feed(&a, &params, 1000, 0.9);
    assert_float_equal(a.gain, 0.6, 1e-9); /* kept: 975 < 0.98 * 1000 */
    assert_int_equal(a.n_kept, 1);

    feed(&a, &params, 975, 0.9);
    assert_true(a.gain == 0.5); /* is 1/2 as good by now? */
    feed(&a, &params, 980, 0.9);
    feed(&a, &params, 975, 0.9);
    assert_float_equal(a.kept, 0.6, 1e-9); /* no */

    feed(&a, &params, 975, 0.9);
    assert_float_equal(a.gain, 0.75, 1e-9); /* on in the same direction, a longer stride */
    feed(&a, &params, 960, 0.9);
    feed(&a, &params, 975, 0.9);
    assert_float_equal(a.kept, 0.6, 1e-9); /* not kept: 960 > 0.98 * 975 */
    feed(&a, &params, 975, 0.9);           /* waits for one phase */
    feed(&a, &params, 975, 0.9);
    assert_true(a.gain == 0.5); /* is 1/2 as good by now? */
    feed(&a, &params, 975, 0.9);
    feed(&a, &params, 975, 0.9);
    assert_true(a.kept == 0.5); /* yes: back */
    feed(&a, &params, 975, 0.9);
    assert_float_equal(a.gain, 0.425, 1e-9); /* the other way, half as far */
}

/** A trial that is 5 % better is kept, but not where scatter could explain it. */
static void test_chance_is_no_merit(void **state)
{
    (void)state;
    const ek_route_params params = adaptive_params();
    for (int32_t scatter = 0; scatter <= 200; scatter += 200) {
        ek_adapt a;
        ek_route_adapt_init(&a);
        for (int32_t i = 0; i < 3 * params.adaptive_samples; i++) {
            int64_t mean_us = a.phase == EK_ADAPT_TRIAL ? 950 : 1000;
            ek_route_adapt_sample(&a, &params, mean_us + (i % 2 ? scatter : -scatter), 0.9);
        }
        assert_int_equal(a.n_trials, 1);
        assert_int_equal(a.n_kept, scatter == 0);
    }
}

/** Under a load that falls all the time each trial is better than before. It is not kept. */
static void test_a_trend_is_no_merit(void **state)
{
    (void)state;
    const ek_route_params params = adaptive_params();
    ek_adapt a;
    ek_route_adapt_init(&a);
    double tail_us = 1e9;
    for (int32_t i = 0; i < 300; i++, tail_us *= 0.96)
        feed(&a, &params, (int64_t)tail_us, 0.9);
    assert_true(a.n_trials > 10);
    assert_int_equal(a.n_kept, 0);
    assert_true(a.kept == 0.5);
}

/** Two samples that are half as bad again end a trial; a single one does not. */
static void test_a_bad_trial_is_short(void **state)
{
    (void)state;
    const ek_route_params params = adaptive_params();
    ek_adapt a;
    ek_route_adapt_init(&a);
    feed(&a, &params, 1000, 0.9);
    assert_int_equal(a.phase, EK_ADAPT_TRIAL);
    assert_false(ek_route_adapt_sample(&a, &params, 1600, 0.9));
    assert_false(ek_route_adapt_sample(&a, &params, 1000, 0.9));
    assert_false(ek_route_adapt_sample(&a, &params, 1600, 0.9));
    assert_true(ek_route_adapt_sample(&a, &params, 1600, 0.9));
    assert_true(a.gain == 0.5 && a.phase == EK_ADAPT_BEFORE);
    /* Each one that fails makes the next wait longer: 1, 2, 4, 8, 16, 16 phases. */
    int32_t n_phases = 0;
    for (int32_t i = 0; i < 10; i++) {
        for (; a.phase == EK_ADAPT_BEFORE; n_phases++)
            feed(&a, &params, 1000, 0.9);
        ek_route_adapt_sample(&a, &params, 9000, 0.9);
        ek_route_adapt_sample(&a, &params, 9000, 0.9);
    }
    assert_int_equal(n_phases, (1 + 2 + 4 + 8 + 16 * 6) + 10);
}

/** Where more is always better it ends at 1, where less is, at 0; after a long rest it is 1/2. */
static void test_ends_and_rest(void **state)
{
    (void)state;
    const ek_route_params params = adaptive_params();
    for (int32_t best = 0; best <= 1; best++) {
        ek_adapt a;
        ek_route_adapt_init(&a);
        for (int32_t i = 0; i < 20000; i++) {
            assert_true(a.gain >= 0 && a.gain <= 1);
            ek_route_adapt_sample(&a, &params, (int64_t)(1000 + 2000 * fabs(best - a.gain)), 0.9);
        }
        assert_true(a.kept == best);
        for (int32_t i = 0; i < 10 * params.adaptive_samples - 1; i++)
            assert_false(ek_route_adapt_sample(&a, &params, 1000, 0.1) &&
                         a.phase == EK_ADAPT_BEFORE);
        assert_true(a.kept == best);
        ek_route_adapt_sample(&a, &params, 1000, 0.1);
        assert_true(a.gain == 0.5 && a.kept == 0.5);
    }
}

/* ---- the plant ---- */

enum { N_EXPERTS = 16, TOP_K = 2, T = 96, N_STEPS = 4000, PERIOD_US = 100000, N_SEEDS = 3 };

typedef struct scenario {
    const char *name;
    double hot;          /* what the hot expert's logits have on the others' */
    int32_t hot_from;    /* period in which it becomes hot, and ... */
    int32_t hot_until;   /* ... stops being it */
    int32_t moves_every; /* periods after which another expert is the hot one; 0: never */
    double offered;      /* token-slots over what all experts serve */
} scenario;

static const scenario scenarios[] = {
    {"calm", 0, 0, 0, 0, 0.4},
    {"even, heavy", 0, 0, 0, 0, 0.7},
    {"even, too heavy", 0, 0, 0, 0, 0.82},
    {"promotion", 0.5, 500, 2500, 0, 0.45},
    {"hot for ever", 0.5, 0, N_STEPS, 0, 0.5},
    {"hot and full", 0.5, 0, N_STEPS, 0, 0.75},
    {"very hot", 1.5, 0, N_STEPS, 0, 0.5},
    {"wandering", 0.5, 0, N_STEPS, 200, 0.45},
};

typedef struct plant {
    double queue[N_EXPERTS]; /* token-slots that wait */
    float load[N_EXPERTS];   /* smoothed utilisation */
    double tail_us;
} plant;

/** One period's work arrives; what is served depends on how loaded an expert is. */
static void work(plant *p, const ek_route_plan *plan, double capacity)
{
    p->tail_us = 0;
    for (int32_t e = 0; e < N_EXPERTS; e++) {
        int32_t n = plan->expert_beg[e + 1] - plan->expert_beg[e];
        double rate = p->load[e] > 0.85f ? 0.65 * capacity : capacity;
        double todo = p->queue[e] + n;
        double wait_us = PERIOD_US * todo / rate;
        p->tail_us = fmax(p->tail_us, wait_us);
        p->load[e] += 0.3f * ((float)fmin(todo / rate, 4) - p->load[e]);
        p->queue[e] = fmin(fmax(todo - rate, 0), 20 * capacity); /* beyond, requests time out */
    }
}

static double run(const scenario *s, ek_route_policy policy, uint64_t seed, double *out_gain)
{
    static uint8_t perm_mem[1 << 16], step_mem[1 << 17];
    const ek_route_gate gate = {EK_ROUTE_SOFTMAX, N_EXPERTS, TOP_K, 1, 1, true, 1.0f};
    ek_route_params params = adaptive_params();
    params.policy = policy;
    params.max_score_loss = 0.5;
    params.mean_score_loss = 0.2;
    ek_arena perm = ek_arena_over(perm_mem, sizeof perm_mem);
    ek_router *router;
    assert_int_equal(ek_route_create(&gate, 1, &params, &perm, &router, NULL), EK_OK);
    plant p = {0};
    ek_rng rng;
    ek_rng_init(&rng, seed);
    double sum = 0;
    for (int32_t i = 0; i < N_STEPS; i++) {
        static float logits[T * N_EXPERTS];
        int32_t hot = s->moves_every ? i / s->moves_every % N_EXPERTS : 3;
        bool is_hot = i >= s->hot_from && i < s->hot_until;
        for (int32_t j = 0; j < T * N_EXPERTS; j++) {
            logits[j] = (float)(2 * ek_rng_unit(&rng));
            if (is_hot && j % N_EXPERTS == hot) logits[j] += (float)s->hot;
        }
        const ek_route_view view = {
            .version = (uint64_t)i + 1,
            .utilisation = p.load,
            .sampled_us = (int64_t)(i + 1) * PERIOD_US,
            .tail_us = (int64_t)p.tail_us,
        };
        ek_arena step = ek_arena_over(step_mem, sizeof step_mem);
        ek_route_plan plan;
        assert_int_equal(ek_route_plan_layer(router, 0, logits, NULL, T, &view, &step, &plan),
                         EK_OK);
        work(&p, &plan, (double)T * TOP_K / N_EXPERTS / s->offered);
        sum += p.tail_us;
    }
    *out_gain = ek_route_gain(router);
    return sum / N_STEPS;
}

static void test_never_much_worse(void **state)
{
    (void)state;
    print_message("%-16s %10s %10s %10s %10s  gain, worst ratio of %d (mean tail, ms)\n",
                  "scenario", "static", "discount", "breaker", "adaptive", N_SEEDS);
    for (size_t i = 0; i < EK_COUNT_OF(scenarios); i++) {
        double sum[EK_ROUTE_N_POLICIES] = {0}, gain = 0, worst = 0;
        for (uint64_t seed = 1; seed <= N_SEEDS; seed++) {
            double tail[EK_ROUTE_N_POLICIES] = {0};
            for (int32_t p = 0; p < EK_ROUTE_N_POLICIES; p++) {
                if (p == EK_ROUTE_POLICY_LEAST_LOAD) continue;
                tail[p] = run(&scenarios[i], (ek_route_policy)p, seed, &gain);
                sum[p] += tail[p] / 1e3 / N_SEEDS;
            }
            double best = fmin(tail[EK_ROUTE_POLICY_STATIC], tail[EK_ROUTE_POLICY_BREAKER]);
            worst = fmax(worst, tail[EK_ROUTE_POLICY_ADAPTIVE] / best);
        }
        print_message("%-16s %10.1f %10.1f %10.1f %10.1f  %.2f, %.4f\n", scenarios[i].name,
                      sum[EK_ROUTE_POLICY_STATIC], sum[EK_ROUTE_POLICY_DISCOUNT],
                      sum[EK_ROUTE_POLICY_BREAKER], sum[EK_ROUTE_POLICY_ADAPTIVE], gain, worst);
        assert_true(worst <= 1.03);
        /* The plant is one in which policies matter, or the above would say little. */
        if (strcmp(scenarios[i].name, "promotion") == 0)
            assert_true(sum[EK_ROUTE_POLICY_BREAKER] < 0.1 * sum[EK_ROUTE_POLICY_STATIC]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tuning),
        cmocka_unit_test(test_tuned_params_are_sound),
        cmocka_unit_test(test_trials),
        cmocka_unit_test(test_chance_is_no_merit),
        cmocka_unit_test(test_a_trend_is_no_merit),
        cmocka_unit_test(test_a_bad_trial_is_short),
        cmocka_unit_test(test_ends_and_rest),
        cmocka_unit_test(test_never_much_worse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
