/*
 * Capacity. By hand: the cap, and each way that overflow can take, in their order. By property:
 * whatever is random about gate, batch, replicas and params, every (token, choice) pair is executed
 * once in exactly one round or degraded, no round gives an expert more than its cap, and the
 * counters say the same.
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
#include "route/budget.h"
#include "route/capacity.h"
#include "route/route.h"

static uint8_t perm_mem[1 << 20];
static uint8_t step_mem[1 << 22];

static ek_route_params capped(double factor)
{
    ek_route_params params;
    ek_route_params_default(&params);
    params.capacity_factor = factor;
    return params;
}

static ek_router *make_router(const ek_route_gate *gate, const ek_route_params *params)
{
    ek_arena perm = ek_arena_over(perm_mem, sizeof perm_mem);
    ek_router *router = NULL;
    ek_err err = {0};
    assert_true(ek_route_bytes(gate, 1) <= sizeof perm_mem);
    perm.end = perm.beg + ek_route_bytes(gate, 1);
    if (ek_route_create(gate, 1, params, &perm, &router, &err) != EK_OK) fail_msg("%s", err.text);
    return router;
}

static ek_route_plan plan(ek_router *router, const ek_route_gate *gate, const float *logits,
                          int32_t n_tokens, const ek_route_view *view)
{
    ek_route_plan out;
    assert_true(ek_route_plan_bytes(gate, n_tokens) <= sizeof step_mem);
    ek_arena step = ek_arena_over(step_mem, ek_route_plan_bytes(gate, n_tokens));
    assert_int_equal(ek_route_plan_layer(router, 0, logits, NULL, n_tokens, view, &step, &out),
                     EK_OK);
    return out;
}

static void test_cap(void **state)
{
    (void)state;
    assert_int_equal(ek_route_capacity_cap(1.0, 64, 8, 64), 8);
    assert_int_equal(ek_route_capacity_cap(1.25, 64, 8, 64), 10);
    assert_int_equal(ek_route_capacity_cap(1.25, 1, 8, 64), 1);
    assert_int_equal(ek_route_capacity_cap(1.25, 7, 8, 64), 2);  /* 1.09 */
    assert_int_equal(ek_route_capacity_cap(1.1, 80, 8, 64), 11); /* 11.000000000000002 */
    assert_int_equal(ek_route_capacity_cap(1.0, 0, 8, 64), 1);
    assert_int_equal(ek_route_capacity_cap(1024, 1 << 20, 64, 1), INT32_MAX);
}

/* Four experts, one per token; six tokens, of which five want expert 0. */
static const ek_route_gate one_of_four = {EK_ROUTE_SOFTMAX, 4, 1, 1, 1, true, 1.0f};
static const float crowd[6 * 4] = {
    3.0f, 2.9f, 0,     0, /* 0, else 1: loses 10 % */
    3.1f, 0,    3.05f, 0, /* 0, else 2: loses 5 % */
    4.0f, 0,    0,     0, 5.0f, 0, 0, 0, 6.0f, 0, 0, 0, 0, 0, 0, 7.0f,
};

static void check_slot(const ek_route_plan *p, int32_t t, int32_t expert, uint8_t flags, bool now)
{
    assert_int_equal(p->expert_id[t], expert);
    assert_int_equal(p->token_flags[t], flags);
    assert_int_equal(p->row_of[t] >= 0, now);
}

/**
 * cap = ceil(1.0 * 6 * 1 / 4) = 2. With one choice each weight is 1, so earlier tokens stay: 0 and
 * 1. Tokens 2 to 4 have no alternative inside the budget: two of them wait, one is left out.
 */
static void test_defer_and_degrade(void **state)
{
    (void)state;
    ek_route_params params = capped(1.0);
    ek_router *router = make_router(&one_of_four, &params);
    ek_route_plan p = plan(router, &one_of_four, crowd, 6, NULL);
    check_slot(&p, 0, 0, 0, true);
    check_slot(&p, 1, 0, 0, true);
    check_slot(&p, 2, 0, EK_ROUTE_TOKEN_DEFERRED, false);
    check_slot(&p, 3, 0, EK_ROUTE_TOKEN_DEFERRED, false);
    check_slot(&p, 4, -1, EK_ROUTE_TOKEN_DEGRADED, false);
    check_slot(&p, 5, 3, 0, true);
    assert_true(p.weight[4] == 0 && p.weight[3] == 1);
    assert_int_equal(p.n_rows, 3);
    assert_true(p.n_rounds == 1 && p.n_deferred == 2 && p.n_degraded == 1 && p.n_rerouted == 0);
    assert_true(p.deferred[0] == 2 && p.deferred[1] == 3);

    params.defer_rounds = 2; /* a third round has room for it */
    router = make_router(&one_of_four, &params);
    p = plan(router, &one_of_four, crowd, 6, NULL);
    check_slot(&p, 4, 0, EK_ROUTE_TOKEN_DEFERRED, false);
    assert_true(p.n_rounds == 2 && p.deferred_beg[1] == 2 && p.deferred_beg[2] == 3);

    params.defer_rounds = 0;
    router = make_router(&one_of_four, &params);
    p = plan(router, &one_of_four, crowd, 6, NULL);
    assert_true(p.n_degraded == 3 && p.n_deferred == 0);
}

/** The next best comes before waiting, where it is good enough; another replica before both. */
static void test_order(void **state)
{
    (void)state;
    /* Tokens 0 and 1 last, so that they are the ones who overflow. */
    float logits[6 * 4];
    memcpy(logits, crowd + 8, 12 * sizeof *logits);
    memcpy(logits + 12, crowd + 20, 4 * sizeof *logits);
    memcpy(logits + 16, crowd, 8 * sizeof *logits);
    ek_route_params params = capped(1.0);
    params.mean_score_loss = 1;
    ek_router *router = make_router(&one_of_four, &params);
    ek_route_plan p = plan(router, &one_of_four, logits, 6, NULL);
    check_slot(&p, 0, 0, 0, true);
    check_slot(&p, 1, 0, 0, true);
    check_slot(&p, 2, 0, EK_ROUTE_TOKEN_DEFERRED, false);
    check_slot(&p, 4, 1, EK_ROUTE_TOKEN_REROUTED, true); /* lost 0.095 */
    check_slot(&p, 5, 2, EK_ROUTE_TOKEN_REROUTED, true); /* lost 0.049 */
    const ek_route_stats *stats = ek_route_stats_of(router);
    assert_true(stats->n_rerouted == 2 && stats->n_deferred == 1 && stats->n_executed == 3);
    assert_float_equal((float)stats->loss_sum, (float)(2 - exp(-0.1) - exp(-0.05)), 1e-5);

    params.max_score_loss = 0.06; /* token 4's alternative is too dear now */
    router = make_router(&one_of_four, &params);
    p = plan(router, &one_of_four, logits, 6, NULL);
    check_slot(&p, 4, 0, EK_ROUTE_TOKEN_DEFERRED, false);
    check_slot(&p, 5, 2, EK_ROUTE_TOKEN_REROUTED, true);

    /* Three replicas of expert 0 take 6: nothing happens at all. */
    const int32_t replicas[4] = {3, 1, 1, 1};
    const ek_route_view view = {.version = 1, .n_replicas = replicas};
    router = make_router(&one_of_four, &params);
    p = plan(router, &one_of_four, logits, 6, &view);
    assert_true(p.n_rows == 6 && p.n_rerouted + p.n_deferred + p.n_degraded == 0);

    /* None at all: what cannot go elsewhere is left out at once, waiting would not help. */
    const int32_t dead[4] = {0, 1, 1, 1};
    const ek_route_view view_dead = {.version = 1, .n_replicas = dead};
    router = make_router(&one_of_four, &params);
    p = plan(router, &one_of_four, logits, 6, &view_dead);
    assert_true(p.n_degraded == 4 && p.n_rerouted == 1 && p.n_deferred == 0);
}

/** The slots that weigh least overflow; what is left out is made up for by the others' weights. */
static void test_least_weight_goes_first(void **state)
{
    (void)state;
    const ek_route_gate gate = {EK_ROUTE_SOFTMAX, 4, 2, 1, 1, true, 1.0f};
    /* Expert 0 weighs 0.7, 0.6 and 0.8 in three tokens; cap = ceil(0.5 * 3 * 2 / 4) = 1. */
    const float logits[3 * 4] = {
        logf(0.7f), logf(0.3f), -20,        -20, logf(0.6f), -20,
        logf(0.4f), -20,        logf(0.8f), -20, -20,        logf(0.2f),
    };
    ek_route_params params = capped(0.5);
    params.defer_rounds = 1;
    ek_router *router = make_router(&gate, &params);
    ek_route_plan p = plan(router, &gate, logits, 3, NULL);
    assert_true(p.row_of[4] >= 0);                         /* 0.8 stays */
    assert_true(p.row_of[0] < 0 && p.expert_id[0] == 0);   /* 0.7 waits */
    assert_true(p.expert_id[2] == -1 && p.weight[2] == 0); /* 0.6 is left out ... */
    assert_true(p.expert_id[3] == 2);
    assert_float_equal(p.weight[3], 1, 1e-6); /* ... and expert 2 stands for it */
    assert_float_equal(p.weight[0], 0.7, 1e-6);
    assert_float_equal(p.weight[5], 0.2, 1e-6);
}

/** A model that does not renormalise: the sum of the weights stays what it was. */
static void test_degraded_weight_sum(void **state)
{
    (void)state;
    const ek_route_gate gate = {EK_ROUTE_SIGMOID, 4, 2, 1, 1, false, 2.5f};
    const float logits[2 * 4] = {2, 1, -9, -9, 2, 1, -9, -9};
    ek_route_params params = capped(0.5); /* cap 1 */
    params.defer_rounds = 0;
    ek_router *router = make_router(&gate, &params);
    ek_route_plan p = plan(router, &gate, logits, 2, NULL);
    double sum = 2.5 * (1 / (1 + exp(-2.0)) + 1 / (1 + exp(-1.0)));
    assert_float_equal(p.weight[0] + p.weight[1], (float)sum, 1e-5);
    assert_true(p.weight[2] == 0 && p.weight[3] == 0); /* all of token 1 is left out */
    assert_true(p.expert_id[2] == -1 && p.expert_id[3] == -1);
    assert_int_equal(p.token_flags[1], EK_ROUTE_TOKEN_DEGRADED);
    assert_int_equal(p.n_degraded, 2);
}

/* ---- conservation ---- */

static int32_t cap_of(const ek_route_params *params, const ek_route_gate *gate, int32_t n_tokens,
                      const int32_t *replicas, int32_t e)
{
    int64_t cap =
        ek_route_capacity_cap(params->capacity_factor, n_tokens, gate->top_k, gate->n_experts);
    cap *= replicas ? replicas[e] : 1;
    return cap < INT32_MAX ? (int32_t)cap : INT32_MAX;
}

/** One round as an executor would do it: every row belongs to a slot, and counts as one visit. */
static void execute(const ek_route_plan *round, const int32_t *cap, int32_t *visits)
{
    int32_t n_pairs = round->n_tokens * round->top_k, n_rows = 0;
    for (int32_t i = 0; i < n_pairs; i++) {
        int32_t row = round->row_of[i];
        if (row < 0) continue;
        int32_t e = round->expert_id[i];
        assert_in_range(e, 0, round->n_experts - 1);
        assert_in_range(row, round->expert_beg[e], round->expert_beg[e + 1] - 1);
        assert_int_equal(round->row_token[row], i / round->top_k);
        visits[i]++;
        n_rows++;
    }
    assert_int_equal(n_rows, round->n_rows);
    int32_t n_active = 0;
    for (int32_t e = 0; e < round->n_experts; e++) {
        int32_t n = round->expert_beg[e + 1] - round->expert_beg[e];
        assert_true(n <= cap[e]);
        n_active += n > 0;
        for (int32_t row = round->expert_beg[e] + 1; row < round->expert_beg[e + 1]; row++)
            assert_true(round->row_token[row - 1] < round->row_token[row]);
    }
    assert_int_equal(n_active, round->n_active);
}

static void check_conserved(const ek_route_gate *gate, const ek_route_plan *p, const int32_t *cap,
                            const ek_route_stats *before, const ek_route_stats *after)
{
    int32_t n_pairs = p->n_tokens * p->top_k;
    int32_t *visits = calloc((size_t)n_pairs + 1, sizeof *visits);
    execute(p, cap, visits);
    static uint8_t mem[1 << 21];
    for (int32_t round = 1; round <= p->n_rounds; round++) {
        ek_arena step = ek_arena_over(mem, sizeof mem);
        step.end = step.beg + ek_route_plan_bytes(gate, p->n_tokens);
        ek_route_plan later;
        assert_int_equal(ek_route_plan_deferred(p, round, &step, &later), EK_OK);
        assert_int_equal(later.n_rows, p->deferred_beg[round] - p->deferred_beg[round - 1]);
        assert_true(later.n_rows > 0 && later.n_deferred == 0);
        execute(&later, cap, visits);
    }
    int64_t n_degraded = 0;
    for (int32_t i = 0; i < n_pairs; i++) {
        bool out = p->expert_id[i] < 0;
        n_degraded += out;
        assert_int_equal(visits[i], out ? 0 : 1);
        if (out) assert_true(p->weight[i] == 0);
        if (out) assert_true(p->token_flags[i / p->top_k] & EK_ROUTE_TOKEN_DEGRADED);
        assert_true(isfinite(p->weight[i]) && p->weight[i] >= 0);
    }
    free(visits);
    assert_int_equal(n_degraded, p->n_degraded);
    assert_int_equal(after->n_degraded - before->n_degraded, p->n_degraded);
    assert_int_equal(after->n_deferred - before->n_deferred, p->n_deferred);
    assert_int_equal(after->n_rerouted - before->n_rerouted, p->n_rerouted);
    int64_t n_executed = after->n_executed - before->n_executed;
    assert_int_equal(n_executed + p->n_degraded + p->n_deferred + p->n_rerouted, n_pairs);
    assert_int_equal(n_executed + p->n_rerouted, p->n_rows);
}

static ek_route_gate random_gate(ek_rng *rng)
{
    static const int32_t experts[] = {4, 8, 16, 64};
    ek_route_gate gate = {
        .score = (ek_route_score)ek_rng_below(rng, 3),
        .n_experts = experts[ek_rng_below(rng, EK_COUNT_OF(experts))],
        .n_groups = 1,
        .n_groups_used = 1,
        .renormalise = ek_rng_below(rng, 2) != 0,
        .scale = 1.0f,
    };
    if (ek_rng_below(rng, 3) == 0) {
        gate.n_groups = 4;
        gate.n_groups_used = 1 + (int32_t)ek_rng_below(rng, 4);
    }
    int32_t most = gate.n_experts / gate.n_groups * gate.n_groups_used;
    gate.top_k = 1 + (int32_t)ek_rng_below(rng, (uint64_t)(most < 6 ? most : 6));
    return gate;
}

static void test_conservation(void **state)
{
    (void)state;
    enum { T_MAX = 200, N_MAX = 64 };
    static float logits[T_MAX * N_MAX], loads[N_MAX];
    ek_rng rng;
    ek_rng_init(&rng, 31);
    int64_t n_rerouted = 0, n_deferred = 0, n_degraded = 0, n_grouped = 0;
    for (int32_t draw = 0; draw < 4000; draw++) {
        const ek_route_gate gate = random_gate(&rng);
        ek_route_params params = capped(0.1 + 2 * ek_rng_unit(&rng));
        params.policy = (ek_route_policy)ek_rng_below(&rng, EK_ROUTE_N_POLICIES);
        params.max_score_loss = ek_rng_unit(&rng);
        params.mean_score_loss = ek_rng_unit(&rng);
        params.defer_rounds = (int32_t)ek_rng_below(&rng, EK_ROUTE_DEFERRALS_MAX + 1);
        params.breaker.probes = 1 + (int32_t)ek_rng_below(&rng, 5);
        params.breaker.open_us = params.breaker.dwell_us = 100000;
        int32_t replicas[N_MAX], cap[N_MAX];
        for (int32_t e = 0; e < gate.n_experts; e++)
            replicas[e] = (int32_t)ek_rng_below(&rng, 4);
        bool has_replicas = ek_rng_below(&rng, 2);
        ek_router *router = make_router(&gate, &params);
        for (uint64_t version = 1; version <= 6; version++) {
            int32_t n_tokens = (int32_t)ek_rng_below(&rng, ek_rng_below(&rng, 2) ? 4 : T_MAX);
            for (int32_t i = 0; i < n_tokens * gate.n_experts; i++)
                logits[i] = (float)(2 * ek_rng_unit(&rng)) - (float)(i % gate.n_experts) * 0.1f;
            for (int32_t e = 0; e < gate.n_experts; e++)
                loads[e] = version < 4 ? (float)ek_rng_unit(&rng) * 1.3f : 0.1f;
            for (int32_t e = 0; e < gate.n_experts; e++)
                cap[e] = cap_of(&params, &gate, n_tokens, has_replicas ? replicas : NULL, e);
            const ek_route_view view = {.version = version,
                                        .utilisation = loads,
                                        .sampled_us = (int64_t)version * 100000,
                                        .n_replicas = has_replicas ? replicas : NULL};
            ek_route_stats before = *ek_route_stats_of(router);
            ek_route_plan p = plan(router, &gate, logits, n_tokens, &view);
            check_conserved(&gate, &p, cap, &before, ek_route_stats_of(router));
            n_rerouted += p.n_rerouted;
            n_deferred += p.n_deferred;
            n_degraded += p.n_degraded;
            n_grouped += gate.n_groups > 1;
        }
    }
    print_message("%lld rerouted, %lld deferred, %lld degraded\n", (long long)n_rerouted,
                  (long long)n_deferred, (long long)n_degraded);
    assert_true(n_rerouted > 1000 && n_deferred > 1000 && n_degraded > 1000 && n_grouped > 1000);
}

/** Rerouting keeps the gate's group limit and the token's budget. */
static void test_reroutes_are_legal(void **state)
{
    (void)state;
    enum { T = 64, N = 32 };
    static float logits[T * N];
    const ek_route_gate gate = {EK_ROUTE_SIGMOID, N, 4, 8, 2, true, 1.0f};
    ek_route_params params = capped(1.0), open = capped(0);
    params.mean_score_loss = params.max_score_loss = 0.1;
    ek_rng rng;
    ek_rng_init(&rng, 32);
    int32_t n_rerouted = 0;
    for (int32_t draw = 0; draw < 200; draw++) {
        for (int32_t i = 0; i < T * N; i++)
            logits[i] = (float)(3 * ek_rng_unit(&rng)) - (float)(i % N) * 0.02f;
        ek_router *router = make_router(&gate, &open);
        ek_route_plan free_plan = plan(router, &gate, logits, T, NULL);
        int32_t static_id[T * 4];
        memcpy(static_id, free_plan.expert_id, sizeof static_id);
        router = make_router(&gate, &params);
        ek_route_plan p = plan(router, &gate, logits, T, NULL);
        for (int32_t t = 0; t < T; t++) {
            if (!(p.token_flags[t] & EK_ROUTE_TOKEN_REROUTED)) continue;
            if (p.token_flags[t] & EK_ROUTE_TOKEN_DEGRADED) continue;
            double sum = 0, sum_static = 0;
            uint32_t groups = 0;
            for (int32_t k = 0; k < 4; k++) {
                sum += 1 / (1 + exp(-(double)logits[t * N + p.expert_id[t * 4 + k]]));
                sum_static += 1 / (1 + exp(-(double)logits[t * N + static_id[t * 4 + k]]));
                groups |= 1u << p.expert_id[t * 4 + k] / 4;
            }
            assert_true(1 - sum / sum_static <= 0.1 + 1e-9);
            assert_true((groups & (groups - 1) & ((groups & (groups - 1)) - 1)) == 0); /* two */
            n_rerouted++;
        }
        assert_true(ek_route_stats_of(router)->loss_max <= 0.1 + 1e-6);
    }
    assert_true(n_rerouted > 200);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cap),
        cmocka_unit_test(test_defer_and_degrade),
        cmocka_unit_test(test_order),
        cmocka_unit_test(test_least_weight_goes_first),
        cmocka_unit_test(test_degraded_weight_sum),
        cmocka_unit_test(test_conservation),
        cmocka_unit_test(test_reroutes_are_legal),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
