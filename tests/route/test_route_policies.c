/*
 * Whole plans under each policy: `static` and every policy without overload are bit for bit the
 * gate's own; overload moves tokens and the budget bounds it; stale views fall back and come back;
 * the same inputs, views and seed give the same plans; other params take force between steps.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "route/gate.h"
#include "route/route.h"

enum { N_LAYERS = 3, N_MAX = 256, T = 50, PERIOD_US = 100000 };

static const ek_route_gate gates[] = {
    {EK_ROUTE_SOFTMAX, 64, 8, 1, 1, false, 1.0f},
    {EK_ROUTE_SOFTMAX, 128, 8, 1, 1, true, 1.0f},
    {EK_ROUTE_SIGMOID, 256, 8, 8, 4, true, 2.5f},
    {EK_ROUTE_SOFTMAX_CHOSEN, 32, 4, 1, 1, false, 1.0f},
};

/** A router with memory of its own, a batch, and a view. */
typedef struct rig {
    uint8_t perm_mem[1 << 18];
    uint8_t step_mem[1 << 17];
    const ek_route_gate *gate;
    ek_router *router;
    float loads[N_LAYERS * N_MAX];
    ek_route_view view;
} rig;

static rig rigs[2];
static float logits[T * N_MAX];
static float bias[N_MAX];

static ek_route_params params_of(ek_route_policy policy)
{
    ek_route_params params;
    ek_route_params_default(&params);
    params.policy = policy;
    return params;
}

static void make_rig(rig *r, const ek_route_gate *gate, const ek_route_params *params)
{
    ek_err err = {0};
    ek_arena perm = ek_arena_over(r->perm_mem, sizeof r->perm_mem);
    memset(r->loads, 0, sizeof r->loads);
    r->gate = gate;
    r->view = (ek_route_view){.utilisation = r->loads};
    if (ek_route_create(gate, N_LAYERS, params, &perm, &r->router, &err) != EK_OK)
        fail_msg("%s", err.text);
}

static ek_route_plan plan(rig *r, int32_t layer)
{
    ek_route_plan out;
    const float *bias_or_null = r->gate->score == EK_ROUTE_SIGMOID ? bias : NULL;
    assert_true(ek_route_plan_bytes(r->gate, T) <= sizeof r->step_mem);
    ek_arena step = ek_arena_over(r->step_mem, ek_route_plan_bytes(r->gate, T));
    assert_int_equal(
        ek_route_plan_layer(r->router, layer, logits, bias_or_null, T, &r->view, &step, &out),
        EK_OK);
    return out;
}

/** So many samples go by; all layers take each of them. */
static void pass(rig *r, int32_t n_samples)
{
    for (int32_t i = 0; i < n_samples; i++) {
        r->view.version++;
        r->view.sampled_us += PERIOD_US;
        for (int32_t l = 0; l < N_LAYERS; l++)
            plan(r, l);
    }
}

static void draw_batch(ek_rng *rng, int32_t n_experts)
{
    for (int32_t i = 0; i < T * n_experts; i++)
        logits[i] = (float)(3 * ek_rng_unit(rng));
    for (int32_t e = 0; e < n_experts; e++)
        bias[e] = (float)(0.1 * ek_rng_unit(rng));
}

/** Is the plan the gate's own choice, bit for bit? */
static bool is_static(const rig *r, const ek_route_plan *p)
{
    static float logit[N_MAX], score[N_MAX], value[N_MAX];
    static uint8_t group_used[N_MAX];
    static int32_t candidate[N_MAX + 1];
    static uint64_t top[N_MAX];
    ek_gate_scratch scratch = {logit, score, value, group_used, candidate, top};
    const float *bias_or_null = r->gate->score == EK_ROUTE_SIGMOID ? bias : NULL;
    size_t k = (size_t)r->gate->top_k;
    for (int32_t t = 0; t < T; t++) {
        int32_t id[8];
        float weight[8];
        ek_route_gate_choose(r->gate, logits + t * r->gate->n_experts, bias_or_null, &scratch, id,
                             weight);
        if (memcmp(id, p->expert_id + (size_t)t * k, k * sizeof *id) != 0) return false;
        if (memcmp(weight, p->weight + (size_t)t * k, k * sizeof *weight) != 0) return false;
    }
    return true;
}

static int32_t tokens_of(const ek_route_plan *p, int32_t expert)
{
    return p->expert_beg[expert + 1] - p->expert_beg[expert];
}

static void test_static_is_the_gate(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 41);
    const ek_route_params params = params_of(EK_ROUTE_POLICY_STATIC);
    for (size_t g = 0; g < EK_COUNT_OF(gates); g++) {
        rig *r = &rigs[0];
        make_rig(r, &gates[g], &params);
        for (int32_t e = 0; e < N_LAYERS * N_MAX; e++)
            r->loads[e] = 5; /* it does not look */
        for (int32_t i = 0; i < 20; i++) {
            draw_batch(&rng, gates[g].n_experts);
            pass(r, 1);
            ek_route_plan p = plan(r, i % N_LAYERS);
            assert_true(is_static(r, &p) && p.token_flags == NULL && !p.load_view_stale);
        }
    }
}

/** Where nothing is loaded, every policy that reads scores is static. */
static void test_no_overload_is_static(void **state)
{
    (void)state;
    static const ek_route_policy policies[] = {EK_ROUTE_POLICY_DISCOUNT, EK_ROUTE_POLICY_BREAKER,
                                               EK_ROUTE_POLICY_ADAPTIVE};
    ek_rng rng;
    ek_rng_init(&rng, 42);
    for (size_t i = 0; i < EK_COUNT_OF(policies); i++)
        for (size_t g = 0; g < EK_COUNT_OF(gates); g++) {
            ek_route_params params = params_of(policies[i]);
            params.capacity_factor = 1024; /* looked at, never reached */
            rig *r = &rigs[0];
            make_rig(r, &gates[g], &params);
            for (int32_t e = 0; e < N_LAYERS * gates[g].n_experts; e++)
                r->loads[e] = (float)(0.5 * ek_rng_unit(&rng));
            draw_batch(&rng, gates[g].n_experts);
            pass(r, 10);
            ek_route_plan p = plan(r, 1);
            assert_true(is_static(r, &p));
            assert_true(p.n_deferred == 0 && p.n_rerouted == 0 && p.n_degraded == 0);
            const ek_route_stats *stats = ek_route_stats_of(r->router);
            assert_true(stats->n_changed == 0 && stats->n_bent == 0 && stats->loss_sum == 0);
            assert_int_equal(stats->n_executed, stats->n_tokens * gates[g].top_k);
        }
}

/** A hot expert in one layer: fewer of its tokens go there, the other layers do not care. */
static void test_overload_moves_tokens(void **state)
{
    (void)state;
    static const ek_route_policy policies[] = {EK_ROUTE_POLICY_LEAST_LOAD, EK_ROUTE_POLICY_DISCOUNT,
                                               EK_ROUTE_POLICY_BREAKER, EK_ROUTE_POLICY_ADAPTIVE};
    ek_rng rng;
    ek_rng_init(&rng, 43);
    for (size_t i = 0; i < EK_COUNT_OF(policies); i++)
        for (size_t g = 0; g < EK_COUNT_OF(gates); g++) {
            const int32_t n = gates[g].n_experts, hot = n / 3;
            ek_route_params params = params_of(policies[i]);
            params.mean_score_loss = 1; /* only single tokens are bounded */
            params.shadow_every = 4;
            rig *r = &rigs[0];
            make_rig(r, &gates[g], &params);
            draw_batch(&rng, n);
            /* Wanted by nearly all, dear to few; with its neighbours, so that groups choose it. */
            for (int32_t i_near = 0; i_near < T * 3; i_near++)
                logits[i_near / 3 * n + hot - 1 + i_near % 3] = i_near % 3 == 1 ? 2.9f : 2.8f;
            bias[hot - 1] = bias[hot] = bias[hot + 1] = 0.1f;
            ek_route_plan before = plan(r, 2);
            int32_t n_before = tokens_of(&before, hot);
            assert_true(before.load_view_stale == false);
            for (int32_t e = 0; e < N_LAYERS * n; e++)
                r->loads[e] = 0.2f;
            r->loads[2 * n + hot] = 0.95f;
            pass(r, 12);
            ek_route_plan p = plan(r, 2);
            assert_true(n_before > 0 && tokens_of(&p, hot) < n_before * 3 / 4);
            int32_t n_changed = 0;
            for (int32_t t = 0; t < T; t++)
                n_changed += p.token_flags[t] == EK_ROUTE_TOKEN_CHANGED;
            assert_true(n_changed >= n_before - tokens_of(&p, hot));
            if (policies[i] != EK_ROUTE_POLICY_LEAST_LOAD) {
                p = plan(r, 1);
                assert_true(is_static(r, &p));
            }
            const ek_route_stats *stats = ek_route_stats_of(r->router);
            /* With a bias, what takes its place may even have the higher score. */
            assert_true(stats->loss_max > 0 || gates[g].score == EK_ROUTE_SIGMOID);
            assert_true(stats->loss_max <= 0.15 + 1e-6);
            assert_true(stats->n_changed > 0 && stats->n_shadow > 0);
            /* The shadow's sample is fair: its figures are near those of all that it stands for. */
            double all = (double)stats->n_changed / (double)stats->n_bent;
            double sampled = (double)stats->n_shadow_changed / (double)stats->n_shadow;
            assert_true(fabs(all - sampled) < 0.15);
            assert_true(stats->shadow_divergence_sum > 0);
        }
}

/** Overload for ever: the running mean of each layer stays inside the budget. */
static void test_mean_loss_is_bounded(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 44);
    const ek_route_params params = params_of(EK_ROUTE_POLICY_LEAST_LOAD);
    rig *r = &rigs[0];
    make_rig(r, &gates[0], &params);
    for (int32_t i = 0; i < 400; i++) {
        draw_batch(&rng, gates[0].n_experts);
        for (int32_t e = 0; e < N_LAYERS * gates[0].n_experts; e++)
            r->loads[e] = (float)(1.5 * ek_rng_unit(&rng));
        pass(r, 1);
    }
    const ek_route_stats *stats = ek_route_stats_of(r->router);
    double mean = stats->loss_sum / (double)stats->n_tokens;
    assert_true(mean > 0.018 && mean < 0.0225);
    assert_true(stats->n_undone > 0 && stats->loss_max <= 0.15 + 1e-6);
}

static void heat(rig *r, float load)
{
    for (int32_t e = 0; e < N_LAYERS * r->gate->n_experts; e++)
        r->loads[e] = e % 5 == 0 ? load : 0.1f;
}

/** Older than five periods, or none: static, and it says so; a fresh one, and it is back. */
static void test_stale_views(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 45);
    for (int32_t policy = EK_ROUTE_POLICY_LEAST_LOAD; policy < EK_ROUTE_N_POLICIES; policy++) {
        const ek_route_params params = params_of((ek_route_policy)policy);
        rig *r = &rigs[0];
        make_rig(r, &gates[1], &params);
        draw_batch(&rng, gates[1].n_experts);
        heat(r, 0.95f);
        pass(r, 12);
        ek_route_plan p = plan(r, 0);
        assert_true(!is_static(r, &p) && !p.load_view_stale);
        int32_t n_hot = tokens_of(&p, 0);

        r->view.age_us = 5 * PERIOD_US;
        p = plan(r, 0);
        assert_true(!is_static(r, &p) && !p.load_view_stale);
        r->view.age_us = 5 * PERIOD_US + 1;
        p = plan(r, 0);
        assert_true(is_static(r, &p) && p.load_view_stale);
        int64_t n_stale = ek_route_stats_of(r->router)->n_stale_plans;
        assert_int_equal(n_stale, 1);
        r->view.age_us = 0;
        r->view.utilisation = NULL;
        p = plan(r, 0);
        assert_true(is_static(r, &p) && p.load_view_stale);

        r->view.utilisation = r->loads;
        p = plan(r, 0); /* the same version again: what was known is still known */
        assert_true(!is_static(r, &p) && !p.load_view_stale);
        assert_int_equal(tokens_of(&p, 0), n_hot);
        ek_arena step = ek_arena_over(r->step_mem, sizeof r->step_mem);
        assert_int_equal(ek_route_plan_layer(r->router, 0, logits, NULL, T, NULL, &step, &p),
                         EK_OK);
        assert_true(is_static(r, &p) && p.load_view_stale);
        pass(r, 1);
        p = plan(r, 0);
        assert_true(!is_static(r, &p) && !p.load_view_stale);
    }
}

/** Penalties are computed once for a version: a view that changes without one is not looked at. */
static void test_once_per_version(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 46);
    const ek_route_params params = params_of(EK_ROUTE_POLICY_DISCOUNT);
    rig *r = &rigs[0];
    make_rig(r, &gates[1], &params);
    draw_batch(&rng, gates[1].n_experts);
    pass(r, 1);
    heat(r, 3);
    ek_route_plan p = plan(r, 0);
    assert_true(is_static(r, &p));
    r->view.version++;
    p = plan(r, 0);
    assert_false(is_static(r, &p));
}

static void test_determinism(void **state)
{
    (void)state;
    for (int32_t policy = 0; policy < EK_ROUTE_N_POLICIES; policy++) {
        for (int32_t other_seed = 0; other_seed < 2; other_seed++) {
            ek_route_params params = params_of((ek_route_policy)policy);
            params.capacity_factor = 1.5;
            make_rig(&rigs[0], &gates[2], &params);
            params.seed = other_seed;
            make_rig(&rigs[1], &gates[2], &params);
            ek_rng rng;
            ek_rng_init(&rng, 47);
            int32_t n_differing = 0;
            for (int32_t i = 0; i < 60; i++) {
                draw_batch(&rng, gates[2].n_experts);
                /* All loads are equal, so that with least-load nothing but the seed decides. */
                heat(&rigs[0], i % 30 < 20 ? 0.9f : 0.1f);
                memcpy(rigs[1].loads, rigs[0].loads, sizeof rigs[0].loads);
                rigs[0].view.tail_us = rigs[1].view.tail_us = 1000 + i;
                pass(&rigs[0], 1);
                pass(&rigs[1], 1);
                ek_route_plan a = plan(&rigs[0], 1), b = plan(&rigs[1], 1);
                size_t n_pairs = T * 8;
                bool same = memcmp(a.expert_id, b.expert_id, n_pairs * sizeof(int32_t)) == 0 &&
                            memcmp(a.weight, b.weight, n_pairs * sizeof(float)) == 0 &&
                            memcmp(a.row_of, b.row_of, n_pairs * sizeof(int32_t)) == 0;
                n_differing += !same;
            }
            if (!other_seed) assert_int_equal(n_differing, 0);
            if (other_seed && policy == EK_ROUTE_POLICY_LEAST_LOAD) assert_true(n_differing > 0);
        }
    }
}

/** Other params wait for the owner; breakers stay known while the policy does. */
static void test_switch(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 48);
    ek_route_params params = params_of(EK_ROUTE_POLICY_STATIC);
    ek_err err = {0};
    rig *r = &rigs[0];
    make_rig(r, &gates[1], &params);
    draw_batch(&rng, gates[1].n_experts);
    heat(r, 0.95f);
    assert_false(ek_route_adopt(r->router));

    params.policy = EK_ROUTE_POLICY_BREAKER;
    assert_int_equal(ek_route_switch(r->router, &params, &err), EK_OK);
    pass(r, 12);
    ek_route_plan p = plan(r, 0);
    assert_true(is_static(r, &p) && p.params_version == 1);
    assert_true(ek_route_adopt(r->router));
    assert_false(ek_route_adopt(r->router));
    pass(r, 12);
    p = plan(r, 0);
    assert_true(!is_static(r, &p) && p.params_version == 2);
    assert_int_equal(ek_route_breakers(r->router, 0)[0].state, EK_BREAKER_OPEN);
    assert_int_equal(ek_route_breakers(r->router, 0)[1].state, EK_BREAKER_CLOSED);

    params.breaker.open_us = 5000000; /* same policy: still open */
    assert_int_equal(ek_route_switch(r->router, &params, &err), EK_OK);
    assert_true(ek_route_adopt(r->router));
    p = plan(r, 0);
    assert_true(!is_static(r, &p) && p.params_version == 3);
    assert_int_equal(ek_route_breakers(r->router, 0)[0].state, EK_BREAKER_OPEN);

    params.breaker.window = 0; /* refused, nothing changes */
    assert_int_equal(ek_route_switch(r->router, &params, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "breaker_window"));
    assert_false(ek_route_adopt(r->router));

    ek_route_params last = params_of(EK_ROUTE_POLICY_STATIC),
                    first = params_of(EK_ROUTE_POLICY_DISCOUNT);
    assert_int_equal(ek_route_switch(r->router, &first, &err), EK_OK);
    assert_int_equal(ek_route_switch(r->router, &last, &err), EK_OK);
    assert_true(ek_route_adopt(r->router)); /* of two, the last */
    assert_int_equal(ek_route_params_of(r->router)->policy, EK_ROUTE_POLICY_STATIC);
    p = plan(r, 0);
    assert_true(is_static(r, &p) && p.params_version == 4);

    ek_route_params again = params_of(EK_ROUTE_POLICY_BREAKER); /* anew: closed */
    assert_int_equal(ek_route_switch(r->router, &again, &err), EK_OK);
    assert_true(ek_route_adopt(r->router));
    pass(r, 1);
    assert_int_equal(ek_route_breakers(r->router, 0)[0].state, EK_BREAKER_CLOSED);
}

/** A half-open expert gets at most its probes in a period, while the others have room. */
static void test_half_open_gets_probes(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 49);
    ek_route_params params = params_of(EK_ROUTE_POLICY_BREAKER);
    params.breaker.probes = 7;
    params.mean_score_loss = params.max_score_loss = 1;
    rig *r = &rigs[0];
    make_rig(r, &gates[1], &params);
    draw_batch(&rng, gates[1].n_experts);
    for (int32_t t = 0; t < T; t++)
        logits[t * 128 + 64] = 9; /* so wanted that a tenth of its score would still win */
    for (int32_t i = 0; i < 8; i++) {
        r->loads[64] = 0.95f;
        pass(r, 1);
    }
    assert_int_equal(ek_route_breakers(r->router, 0)[64].state, EK_BREAKER_OPEN);
    ek_route_plan p = plan(r, 0);
    assert_int_equal(tokens_of(&p, 64), 0);
    r->loads[64] = 0.1f;
    while (ek_route_breakers(r->router, 0)[64].state == EK_BREAKER_OPEN) {
        r->view.version++;
        r->view.sampled_us += PERIOD_US;
        p = plan(r, 0);
    }
    assert_int_equal(tokens_of(&p, 64), 7);
    p = plan(r, 0);
    assert_int_equal(tokens_of(&p, 64), 0); /* of this period's, none is left */
    r->view.version++;
    r->view.sampled_us += PERIOD_US;
    p = plan(r, 0);
    assert_int_equal(tokens_of(&p, 64), 7);
    while (ek_route_breakers(r->router, 0)[64].state == EK_BREAKER_HALF_OPEN) {
        r->view.version++;
        r->view.sampled_us += PERIOD_US;
        p = plan(r, 0);
    }
    assert_int_equal(tokens_of(&p, 64), T);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_static_is_the_gate),    cmocka_unit_test(test_no_overload_is_static),
        cmocka_unit_test(test_overload_moves_tokens), cmocka_unit_test(test_mean_loss_is_bounded),
        cmocka_unit_test(test_stale_views),           cmocka_unit_test(test_once_per_version),
        cmocka_unit_test(test_determinism),           cmocka_unit_test(test_switch),
        cmocka_unit_test(test_half_open_gets_probes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
