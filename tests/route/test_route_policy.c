/*
 * Penalties by hand: each policy's formula, clipping, odd loads, noise, and what a bank makes of
 * them. Params are the defaults where nothing else is said.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "route/policy.h"

#define N         8
#define PERIOD_US 100000

typedef struct rig {
    ek_route_params params;
    ek_policy_core core;
    ek_policy_bank bank;
    int64_t now_us;
    uint8_t mem[4096];
} rig;

static void make_rig(rig *r, ek_route_policy policy)
{
    memset(r, 0, sizeof *r);
    ek_route_params_default(&r->params);
    r->params.policy = policy;
    r->now_us = 1000000;
}

static void start(rig *r)
{
    ek_err err = {0};
    assert_int_equal(ek_route_params_check(&r->params, &err), EK_OK);
    ek_arena arena = ek_arena_over(r->mem, ek_route_policy_bank_bytes(N));
    assert_true(ek_route_policy_bank_bytes(N) <= sizeof r->mem);
    ek_route_policy_core_init(&r->core, &r->params);
    assert_true(ek_route_policy_bank_create(N, &arena, &r->bank));
    ek_route_policy_bank_init(&r->core, &r->bank, 2, 77);
}

static void feed(rig *r, const float *loads, int32_t n_samples)
{
    for (int32_t i = 0; i < n_samples; i++) {
        r->now_us += PERIOD_US;
        const ek_policy_sample sample = {.load = loads, .now_us = r->now_us};
        ek_route_policy_core_sample(&r->core, 0);
        ek_route_policy_bank_sample(&r->core, &r->bank, &sample);
    }
}

/** p of each candidate: what is expected, but for the noise. */
static void check_p(const rig *r, const double *want)
{
    int32_t n_bent = 0;
    for (int32_t i = 0; i < N; i++) {
        double p = (double)r->bank.p[i];
        assert_true(p <= want[i] + 1e-6 && p >= want[i] * (1 - EK_ROUTE_NOISE) - 1e-6);
        assert_float_equal((float)exp((double)r->bank.log_p[i]), r->bank.p[i], 1e-6);
        assert_true(p >= r->core.params.penalty_min * (1 - 1e-6));
        if (r->bank.is_bent[i]) assert_int_equal(r->bank.bent[n_bent++], i);
    }
    assert_int_equal(n_bent, r->bank.n_bent);
}

static const float odd_loads[N] = {0, 0.5f, 0.50001f, 1.5f, NAN, -3, INFINITY, 100};

static void test_table(void **state)
{
    (void)state;
    static const char *const names[] = {"static", "least-load", "discount", "breaker", "adaptive"};
    for (int32_t i = 0; i < EK_ROUTE_N_POLICIES; i++) {
        assert_int_equal(ek_route_policies[i].id, i);
        assert_string_equal(ek_route_policies[i].name, names[i]);
        assert_non_null(ek_route_policies[i].init);
        assert_true((ek_route_policies[i].penalty == NULL) == (i == EK_ROUTE_POLICY_STATIC));
    }
}

static void test_static_never_bends(void **state)
{
    (void)state;
    rig r;
    make_rig(&r, EK_ROUTE_POLICY_STATIC);
    start(&r);
    feed(&r, odd_loads, 20);
    const double want[N] = {1, 1, 1, 1, 1, 1, 1, 1};
    check_p(&r, want);
    assert_int_equal(r.bank.n_bent, 0);
}

/** 0.5 + 0.5/(1 + L) below load_max, 0.5/(1 + L) from there on; unknown counts as idle. */
static void test_least_load(void **state)
{
    (void)state;
    rig r;
    make_rig(&r, EK_ROUTE_POLICY_LEAST_LOAD);
    r.params.load_max = 1.5;
    start(&r);
    feed(&r, odd_loads, 3);
    const double want[N] = {1,   0.5 + 0.5 / 1.5, 0.5 + 0.5 / 1.50001, 0.2, 1, 1, 0.01,
                            0.01 /* 0.00495 clipped */};
    check_p(&r, want);
    assert_int_equal(r.bank.n_bent, N); /* even the idle ones: their noise decides between them */
}

/** 0.8 exp(-(L - 0.5)) above 0.5, of the smoothed load. */
static void test_discount(void **state)
{
    (void)state;
    rig r;
    make_rig(&r, EK_ROUTE_POLICY_DISCOUNT);
    start(&r);
    feed(&r, odd_loads, 1); /* the first sample is not smoothed */
    const double want[N] = {1, 1, 0.8 * exp(-0.00001), 0.8 * exp(-1.0), 1, 1, 0.01, 0.01};
    check_p(&r, want);
    assert_int_equal(r.bank.n_bent, 4);

    const float idle[N] = {0};
    feed(&r, idle, 1); /* 1.5 -> 1.05 */
    const double after[N] = {1, 1, 1, 0.8 * exp(-0.55), 1, 1, 0.01, 0.01};
    check_p(&r, after);
    feed(&r, idle, 1); /* -> 0.735 */
    assert_float_equal(r.bank.smooth[3], 0.735, 1e-6);

    make_rig(&r, EK_ROUTE_POLICY_DISCOUNT);
    r.params.discount_alpha = 0.3;
    r.params.discount_beta = 2;
    r.params.discount_load = 0.4;
    start(&r);
    const float loads[N] = {0.9f};
    feed(&r, loads, 1);
    const double steep[N] = {0.7 * exp(-1.0), 1, 1, 1, 1, 1, 1, 1}; /* 0.2575 */
    check_p(&r, steep);
}

static void test_breaker(void **state)
{
    (void)state;
    rig r;
    make_rig(&r, EK_ROUTE_POLICY_BREAKER);
    start(&r);
    const float loads[N] = {0.1f, 0.7f, 0.775f, 0.9f, NAN, 0.69f, 0.1f, 0.1f};
    feed(&r, loads, 2);
    assert_int_equal(r.bank.n_bent, 0);
    feed(&r, loads, 1);
    const double derated[N] = {1, 0.5, 0.3, 0.1, 1, 1, 1, 1};
    check_p(&r, derated);
    assert_true(r.bank.mask[3] == 0);
    feed(&r, loads, 5);
    const double open[N] = {1, 0.5, 0.3, 0.01, 1, 1, 1, 1};
    check_p(&r, open);
    assert_true(r.bank.mask[3] == EK_ROUTE_EXCLUDED);
    for (int32_t i = 0; i < N; i++)
        assert_true(i == 3 || r.bank.mask[i] == 0);
}

/** Open ones come back, derated, while those that are left could not carry the load of all. */
static void test_too_many_open(void **state)
{
    (void)state;
    rig r;
    make_rig(&r, EK_ROUTE_POLICY_BREAKER);
    start(&r);
    const float all[N] = {1.5f, 0.9f, 1.2f, 3, 0.95f, 2, 1.1f, 1.3f};
    feed(&r, all, 8);
    for (int32_t i = 0; i < N; i++) {
        assert_int_equal(r.bank.breaker[i].state, EK_BREAKER_OPEN);
        assert_true(r.bank.mask[i] == 0);
        assert_float_equal(r.bank.p[i], 0.1, 1e-4);
    }
    /* 4.4 in sum: 6 can carry it at 0.85, 5 cannot. So of three the least loaded comes back. */
    make_rig(&r, EK_ROUTE_POLICY_BREAKER);
    start(&r);
    const float some[N] = {0.3f, 1, 0.3f, 0.9f, 0.3f, 1.2f, 0.3f, 0.1f};
    feed(&r, some, 8);
    const double want[N] = {1, 0.01, 1, 0.1, 1, 0.01, 1, 1};
    check_p(&r, want);
    for (int32_t i = 0; i < N; i++)
        assert_true((r.bank.mask[i] < 0) == (i == 1 || i == 5));
    /* A choice needs two, whatever the loads are. */
    make_rig(&r, EK_ROUTE_POLICY_BREAKER);
    start(&r);
    for (int32_t i = 0; i < N; i++)
        ek_route_breaker_trip(&r.bank.breaker[i], &r.params.breaker, r.now_us);
    const float idle[N] = {0.1f, 0.1f, 0.1f, 0, 0.1f, 0.1f, 0, 0.1f};
    feed(&r, idle, 1);
    for (int32_t i = 0; i < N; i++)
        assert_true((r.bank.mask[i] == 0) == (i == 3 || i == 6));
}

/** At gain 1/2 adaptive is the breaker; at 1 both penalties, whichever is lower. */
static void test_adaptive(void **state)
{
    (void)state;
    const float loads[N] = {0.1f, 0.7f, 0.775f, 0.56f, 0.52f, 0.58f, 0.1f, 2};
    rig r;
    make_rig(&r, EK_ROUTE_POLICY_ADAPTIVE);
    start(&r);
    feed(&r, loads, 3);
    /* 0.9 at a load of 0.6, 0.5 at 0.7. Nothing is left out, however loaded. */
    const double slope = log(0.9 / 0.5) / 0.1;
    const double middle[N] = {1, 0.5, 0.9 * exp(-slope * 0.175), 1, 1, 1, 1, 0.01};
    check_p(&r, middle);
    assert_true(r.bank.mask[7] == 0);

    make_rig(&r, EK_ROUTE_POLICY_ADAPTIVE);
    start(&r);
    r.core.adapt.gain = 1;
    ek_route_adapt_tune(1, &r.core.params, &r.core.tuned);
    feed(&r, loads, 3);
    /* From 0.45, twice as steeply. */
    const double strong[N] = {1,
                              0.9 * exp(-2 * slope * 0.25),
                              0.9 * exp(-2 * slope * 0.325),
                              0.9 * exp(-2 * slope * 0.11),
                              0.9 * exp(-2 * slope * 0.07),
                              0.9 * exp(-2 * slope * 0.13),
                              1,
                              0.01};
    check_p(&r, strong);
}

static void test_noise(void **state)
{
    (void)state;
    rig a, b;
    make_rig(&a, EK_ROUTE_POLICY_LEAST_LOAD);
    make_rig(&b, EK_ROUTE_POLICY_LEAST_LOAD);
    start(&a);
    start(&b);
    ek_route_policy_bank_init(&b.core, &b.bank, 2, 78);
    const float idle[N] = {0};
    feed(&a, idle, 1);
    feed(&b, idle, 1);
    int32_t n_same = 0;
    for (int32_t i = 0; i < N; i++) {
        assert_true(a.bank.log_p[i] <= 0 && a.bank.log_p[i] > -1.001 * EK_ROUTE_NOISE);
        n_same += a.bank.log_p[i] == b.bank.log_p[i];
        for (int32_t j = 0; j < i; j++)
            assert_true(a.bank.log_p[i] != a.bank.log_p[j]);
    }
    assert_int_equal(n_same, 0); /* another front turns elsewhere */
    float before[N];
    memcpy(before, a.bank.log_p, sizeof before);
    feed(&a, idle, 1);
    assert_memory_equal(before, a.bank.log_p, sizeof before); /* and stays there */
}

/** No load whatsoever gives a penalty outside [penalty_min, 1]. */
static void test_any_load(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 11);
    for (int32_t policy = 0; policy < EK_ROUTE_N_POLICIES; policy++) {
        rig r;
        make_rig(&r, (ek_route_policy)policy);
        start(&r);
        for (int32_t i = 0; i < 5000; i++) {
            float loads[N];
            for (int32_t j = 0; j < N; j++) {
                uint32_t bits = (uint32_t)ek_rng_next(&rng);
                memcpy(&loads[j], &bits, sizeof bits);
                if (ek_rng_below(&rng, 2)) loads[j] = (float)ek_rng_unit(&rng) * 1.5f;
            }
            feed(&r, loads, 1);
            int32_t n_choosable = 0;
            for (int32_t j = 0; j < N; j++) {
                assert_true(r.bank.log_p[j] <= 0 && r.bank.p[j] >= 0.0099999f && r.bank.p[j] <= 1);
                assert_true(r.bank.mask[j] == 0 || r.bank.mask[j] == EK_ROUTE_EXCLUDED);
                n_choosable += r.bank.mask[j] == 0;
            }
            assert_true(n_choosable >= 2);
        }
    }
}

static void test_blind_and_back(void **state)
{
    (void)state;
    rig r;
    make_rig(&r, EK_ROUTE_POLICY_DISCOUNT);
    start(&r);
    const float loads[N] = {0.9f};
    const double ones[N] = {1, 1, 1, 1, 1, 1, 1, 1};
    const double bent[N] = {0.8 * exp(-0.4), 1, 1, 1, 1, 1, 1, 1};
    feed(&r, loads, 1);
    ek_route_policy_bank_blind(&r.bank);
    check_p(&r, ones);
    assert_int_equal(r.bank.n_bent, 0);
    ek_route_policy_bank_refresh(&r.core, &r.bank);
    check_p(&r, bent);
}

static void test_create_needs_what_it_says(void **state)
{
    (void)state;
    uint8_t mem[4096];
    ek_policy_bank bank;
    for (size_t bytes = 0; bytes + 64 < ek_route_policy_bank_bytes(N); bytes += 7) {
        ek_arena arena = ek_arena_over(mem + 1, bytes);
        assert_false(ek_route_policy_bank_create(N, &arena, &bank));
        assert_true(arena.beg == mem + 1);
    }
    ek_arena arena = ek_arena_over(mem + 1, ek_route_policy_bank_bytes(N));
    assert_true(ek_route_policy_bank_create(N, &arena, &bank));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_table),
        cmocka_unit_test(test_static_never_bends),
        cmocka_unit_test(test_least_load),
        cmocka_unit_test(test_discount),
        cmocka_unit_test(test_breaker),
        cmocka_unit_test(test_too_many_open),
        cmocka_unit_test(test_adaptive),
        cmocka_unit_test(test_noise),
        cmocka_unit_test(test_any_load),
        cmocka_unit_test(test_blind_and_back),
        cmocka_unit_test(test_create_needs_what_it_says),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
