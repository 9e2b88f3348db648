/*
 * Coalescing: the batch reads fewer experts, nobody pays more than the budget says, and who does
 * not pay gets what the gate alone gives, bit for bit.
 *
 * Tiny batches are compared with every set of experts that could be read instead. Drawn batches of
 * all kinds of gates are checked against a second router that does not coalesce: what changed, by
 * how much, to which experts, and whether the figures say the same. Losses and weights are computed
 * anew, plainly and in double.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "route/coalesce.h"
#include "route/route.h"
#include "route/router.h"

enum { N_MAX = 256, K_MAX = 8, T_MAX = 80 };

typedef struct rig {
    uint8_t perm[1 << 18], step[1 << 19];
    ek_router *router;
} rig;

static void make(rig *r, const ek_route_gate *gate, const ek_route_params *params)
{
    ek_arena perm = ek_arena_over(r->perm, sizeof r->perm);
    ek_err err = {0};
    if (ek_route_create(gate, 1, params, &perm, &r->router, &err) != EK_OK)
        fail_msg("%s", err.text);
}

static ek_route_plan plan(rig *r, const float *logits, const float *bias, int32_t n_tokens,
                          const ek_route_view *view)
{
    size_t bytes = ek_route_plan_bytes(&r->router->gate, n_tokens);
    assert_true(bytes <= sizeof r->step);
    ek_arena step = ek_arena_over(r->step, bytes);
    ek_route_plan made;
    assert_int_equal(ek_route_plan_layer(r->router, 0, logits, bias, n_tokens, view, &step, &made),
                     EK_OK);
    return made;
}

static ek_route_params params_of(double coalesce)
{
    ek_route_params params;
    ek_route_params_default(&params);
    params.coalesce = coalesce;
    params.shadow_every = 1;
    return params;
}

static void draw_logits(ek_rng *rng, int32_t n, float *out)
{
    for (int32_t i = 0; i < n; i++)
        out[i] = (float)(6 * ek_rng_unit(rng) - 3 + 2 * ek_rng_unit(rng));
}

static double score_of(const ek_route_gate *gate, float z)
{
    if (z != z) return 0;
    return gate->score == EK_ROUTE_SIGMOID ? 1 / (1 + exp(-(double)z)) : exp((double)z);
}

static double score_sum(const ek_route_gate *gate, const float *z, const int32_t *id)
{
    double sum = 0;
    for (int32_t k = 0; k < gate->top_k; k++)
        sum += score_of(gate, z[id[k]]);
    return sum;
}

/* ---- against all sets of experts ---- */

/** Scores of the best k of a set, or -1: there are not so many. */
static double best_of(const ek_route_gate *gate, const float *z, uint32_t set, uint32_t *out_used)
{
    double sum = 0;
    for (int32_t k = 0; k < gate->top_k; k++) {
        int32_t best = -1;
        for (int32_t e = 0; e < gate->n_experts; e++)
            if (set >> e & 1 && (best < 0 || z[e] > z[best])) best = e;
        if (best < 0) return -1;
        sum += score_of(gate, z[best]);
        set &= ~(1u << best);
        *out_used |= 1u << best;
    }
    return sum;
}

/** The fewest experts that the batch can do with inside the bounds. */
static int32_t fewest(const ek_route_gate *gate, const float *logits, int32_t n_tokens,
                      uint32_t active, const ek_route_params *params)
{
    int32_t fewest = 32;
    double bound = fmin(params->max_score_loss, params->coalesce);
    double allowance = EK_BUDGET_HORIZON * params->mean_score_loss;
    for (uint32_t set = active; set > 0; set = (set - 1) & active) {
        double lost = 0;
        uint32_t used = 0;
        bool fits = true;
        for (int32_t t = 0; t < n_tokens && fits; t++) {
            const float *z = logits + t * gate->n_experts;
            uint32_t all = 0;
            double whole = best_of(gate, z, (1u << gate->n_experts) - 1, &all);
            double loss = 1 - best_of(gate, z, set, &used) / whole;
            fits = loss <= bound;
            lost += loss;
        }
        int32_t n = __builtin_popcount(used);
        if (fits && lost <= allowance && n < fewest) fewest = n;
    }
    return fewest;
}

static void test_against_all_sets(void **state)
{
    (void)state;
    static rig r;
    ek_rng rng;
    ek_rng_init(&rng, 11);
    int64_t closed = 0, closed_best = 0;
    int32_t n_problems = 0, n_best = 0;
    for (int32_t i = 0; i < 3000; i++) {
        int32_t n = 5 + (int32_t)ek_rng_below(&rng, 5);
        const ek_route_gate gate = {
            (ek_route_score)(i % 3), n, 1 + (int32_t)ek_rng_below(&rng, 3), 1, 1, true, 1.0f};
        int32_t n_tokens = 2 + (int32_t)ek_rng_below(&rng, 4);
        float logits[5 * 9];
        draw_logits(&rng, n_tokens * n, logits);
        ek_route_params params = params_of(0.05 + 0.4 * ek_rng_unit(&rng));
        params.max_score_loss = 0.05 + 0.4 * ek_rng_unit(&rng);
        params.mean_score_loss = 0.0006 * ek_rng_unit(&rng);
        make(&r, &gate, &params);
        ek_route_plan made = plan(&r, logits, NULL, n_tokens, NULL);
        uint32_t active = 0;
        for (int32_t t = 0; t < n_tokens; t++)
            (void)best_of(&gate, logits + t * n, (1u << n) - 1, &active);
        int32_t before = __builtin_popcount(active);
        int32_t best = fewest(&gate, logits, n_tokens, active, &params);
        assert_true(made.n_active >= best && made.n_active <= before);
        closed += before - made.n_active;
        closed_best += before - best;
        n_problems += before > best;
        n_best += before > best && made.n_active == best;
    }
    print_message("closed %d of %d that could be; %d of %d problems solved best\n", (int)closed,
                  (int)closed_best, n_best, n_problems);
    assert_true(n_problems > 1000);
    assert_true((double)closed >= 0.95 * (double)closed_best && n_best >= 0.93 * n_problems);
}

/* ---- against a router that does not coalesce ---- */

static const ek_route_gate gates[] = {
    {EK_ROUTE_SOFTMAX, 64, 8, 1, 1, false, 1.0f},
    {EK_ROUTE_SOFTMAX, 128, 8, 1, 1, true, 1.0f},
    {EK_ROUTE_SIGMOID, 256, 8, 8, 4, true, 2.5f},
    {EK_ROUTE_SOFTMAX_CHOSEN, 32, 4, 1, 1, true, 1.0f},
    {EK_ROUTE_SOFTMAX, 64, 6, 8, 3, false, 16.0f},
    {EK_ROUTE_SIGMOID, 48, 1, 1, 1, false, 1.0f},
    {EK_ROUTE_SOFTMAX, 40, 4, 4, 2, true, 1.0f},
};

static bool holds(const int32_t *id, int32_t k, int32_t e)
{
    for (int32_t i = 0; i < k; i++)
        if (id[i] == e) return true;
    return false;
}

/** Weights by the gate's rule, in double. */
static void check_weights(const ek_route_gate *gate, const float *z, const int32_t *id,
                          const float *weight)
{
    double chosen = score_sum(gate, z, id), all = 0;
    for (int32_t e = 0; e < gate->n_experts; e++)
        all += score_of(gate, z[e]);
    bool normalised = gate->renormalise || gate->score == EK_ROUTE_SOFTMAX_CHOSEN;
    double unit = normalised ? chosen : gate->score == EK_ROUTE_SIGMOID ? 1 : all;
    for (int32_t k = 0; k < gate->top_k; k++) {
        double exact = score_of(gate, z[id[k]]) / unit * (double)gate->scale;
        assert_true(fabs((double)weight[k] - exact) <= 2e-5 * exact + 1e-7);
    }
}

static int32_t count_groups(const ek_route_gate *gate, const int32_t *id)
{
    uint64_t used = 0;
    for (int32_t k = 0; k < gate->top_k; k++)
        used |= UINT64_C(1) << id[k] / (gate->n_experts / gate->n_groups);
    return __builtin_popcountll(used);
}

/** One token: @return what it lost against `whole`, the model's own sum of scores. */
static double check_token(const ek_route_gate *gate, const float *z, const ek_route_plan *on,
                          const ek_route_plan *off, int32_t t, const ek_policy_bank *bank,
                          double whole)
{
    int32_t k = gate->top_k;
    const int32_t *id = on->expert_id + t * k, *was = off->expert_id + t * k;
    const float *weight = on->weight + t * k;
    if (!(on->token_flags[t] & EK_ROUTE_TOKEN_COALESCED)) {
        assert_memory_equal(id, was, (size_t)k * sizeof *id);
        assert_memory_equal(weight, off->weight + t * k, (size_t)k * sizeof *weight);
    } else {
        assert_true(on->token_flags[t] & EK_ROUTE_TOKEN_CHANGED);
        assert_memory_not_equal(id, was, (size_t)k * sizeof *id);
        check_weights(gate, z, id, weight);
    }
    for (int32_t i = 0; i < k; i++) {
        assert_in_range(id[i], 0, gate->n_experts - 1);
        assert_false(holds(id, i, id[i]));
        if (id[i] == was[i]) continue;
        /* One that it has not had, that others have, and that load speaks against no more. */
        assert_true(off->expert_beg[id[i] + 1] > off->expert_beg[id[i]]);
        assert_int_equal(on->expert_beg[was[i] + 1], on->expert_beg[was[i]]);
        assert_true(bank->log_p[id[i]] >= bank->log_p[was[i]]);
        assert_true(bank->mask[id[i]] == 0);
    }
    assert_true(count_groups(gate, id) <= gate->n_groups_used);
    double loss = 1 - score_sum(gate, z, id) / whole;
    return loss > 0 ? loss : 0;
}

typedef struct totals {
    double loss;
    int64_t closed, changed, tokens;
} totals;

static void check_batch(const ek_route_gate *gate, const ek_route_params *params,
                        const float *logits, const float *bias, int32_t n_tokens,
                        const ek_route_view *view, rig *on, rig *off, rig *model, totals *sum)
{
    static int32_t static_id[T_MAX * K_MAX];
    ek_route_plan p = plan(model, logits, bias, n_tokens, NULL);
    memcpy(static_id, p.expert_id, (size_t)(n_tokens * gate->top_k) * sizeof *static_id);
    /* Without what was lost before, so that both policies stand at the same point. */
    off->router->layers[0].budget = on->router->layers[0].budget;
    ek_route_plan with = plan(on, logits, bias, n_tokens, view);
    ek_route_plan without = plan(off, logits, bias, n_tokens, view);
    const ek_policy_bank *bank = &on->router->layers[0].bank;
    for (int32_t t = 0; t < n_tokens; t++) {
        const float *z = logits + t * gate->n_experts;
        double whole = score_sum(gate, z, static_id + t * gate->top_k);
        double before =
            fmax(1 - score_sum(gate, z, without.expert_id + t * gate->top_k) / whole, 0);
        double loss = check_token(gate, z, &with, &without, t, bank, whole);
        if (with.token_flags[t] & EK_ROUTE_TOKEN_COALESCED) {
            assert_true(loss <= fmin(params->max_score_loss, before + params->coalesce) + 1e-5);
            sum->changed++;
        }
        sum->loss += loss;
    }
    sum->closed += without.n_active - with.n_active;
    sum->tokens += n_tokens;
    assert_true(with.n_rows == n_tokens * gate->top_k);
    assert_true(on->router->layers[0].budget.mean <=
                fmax(params->mean_score_loss, off->router->layers[0].budget.mean) + 1e-9);
}

static void check_figures(const ek_route_stats *stats, const totals *sum, bool is_plain)
{
    assert_int_equal(stats->n_closed, sum->closed);
    assert_int_equal(stats->n_coalesced, sum->changed);
    assert_true(stats->n_coalesced <= stats->n_changed);
    /* A bent choice with more score than the model's, which a bias allows, counts as one with as
     * much; so a move away from it costs more on paper than it does. */
    assert_true(stats->loss_sum >= sum->loss - 1e-4 * (1 + sum->loss));
    assert_true(stats->loss_sum <= sum->loss * (is_plain ? 1.0001 : 1.2) + 1e-4);
    assert_true(stats->coalesced_loss <= stats->loss_sum + 1e-6);
    /* The shadow looks at every token here. */
    assert_int_equal(stats->n_shadow, stats->n_bent);
    assert_int_equal(stats->n_shadow_changed, stats->n_changed);
    assert_float_equal(stats->shadow_loss_sum, stats->loss_sum, 1e-6);
    assert_int_equal(stats->n_tokens, sum->tokens);
}

static void run_gate(const ek_route_gate *gate, ek_route_policy policy, ek_rng *rng)
{
    static rig on, off, model;
    static float logits[T_MAX * N_MAX];
    float load[N_MAX], bias[N_MAX], *bias_or_none = ek_rng_below(rng, 2) ? bias : NULL;
    ek_route_params params = params_of(0.02 + 0.1 * ek_rng_unit(rng));
    params.policy = policy;
    make(&on, gate, &params);
    ek_route_params other = params_of(0);
    make(&model, gate, &other);
    other.policy = policy;
    make(&off, gate, &other);
    totals sum = {0};
    for (int32_t e = 0; e < gate->n_experts; e++) {
        load[e] = (float)(1.1 * ek_rng_unit(rng) * ek_rng_unit(rng));
        bias[e] = (float)(0.2 * ek_rng_unit(rng));
    }
    for (int32_t i = 0; i < 40; i++) {
        int32_t n_tokens = 2 + (int32_t)ek_rng_below(rng, 63);
        const ek_route_view view = {
            .version = (uint64_t)i + 1,
            .utilisation = load,
            .sampled_us = (i + 1) * 100000,
        };
        draw_logits(rng, n_tokens * gate->n_experts, logits);
        check_batch(gate, &params, logits, bias_or_none, n_tokens, &view, &on, &off, &model, &sum);
    }
    check_figures(ek_route_stats_of(on.router), &sum, ek_route_gate_plain(gate, bias_or_none));
    assert_true(ek_route_stats_of(off.router)->n_closed == 0);
    if (policy != EK_ROUTE_POLICY_STATIC) return;
    print_message("%d experts, %d chosen: %d closed, %d of %d tokens changed\n", gate->n_experts,
                  gate->top_k, (int)sum.closed, (int)sum.changed, (int)sum.tokens);
    assert_true(sum.closed > 0);
}

static void test_inside_the_budget(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 12);
    const ek_route_policy policies[] = {EK_ROUTE_POLICY_STATIC, EK_ROUTE_POLICY_DISCOUNT,
                                        EK_ROUTE_POLICY_BREAKER};
    for (size_t g = 0; g < EK_COUNT_OF(gates); g++)
        for (size_t p = 0; p < EK_COUNT_OF(policies); p++)
            run_gate(&gates[g], policies[p], &rng);
}

/* ---- off, alone, and in large company ---- */

static void test_unchanged(void **state)
{
    (void)state;
    static rig on, off;
    static float logits[T_MAX * N_MAX];
    ek_rng rng;
    ek_rng_init(&rng, 13);
    for (size_t g = 0; g < EK_COUNT_OF(gates); g++) {
        const ek_route_gate *gate = &gates[g];
        ek_route_params params = params_of(0.15);
        params.coalesce_tokens = 16;
        make(&on, gate, &params);
        params.coalesce = 0;
        make(&off, gate, &params);
        assert_true(off.router->is_plain);
        const int32_t n_tokens[] = {1, 17, 64};
        for (int32_t i = 0; i < 3; i++) {
            size_t n_pairs = (size_t)(n_tokens[i] * gate->top_k);
            draw_logits(&rng, n_tokens[i] * gate->n_experts, logits);
            ek_route_plan a = plan(&on, logits, NULL, n_tokens[i], NULL);
            ek_route_plan b = plan(&off, logits, NULL, n_tokens[i], NULL);
            assert_memory_equal(a.expert_id, b.expert_id, n_pairs * sizeof *a.expert_id);
            assert_memory_equal(a.weight, b.weight, n_pairs * sizeof *a.weight);
            assert_null(a.token_flags);
        }
        assert_true(ek_route_stats_of(on.router)->n_closed == 0);
    }
}

/** The same batch, the same plan; and what one token pays for is spent for all after it. */
static void test_deterministic_and_finite(void **state)
{
    (void)state;
    static rig a, b;
    static float logits[64 * 64];
    ek_rng rng;
    ek_rng_init(&rng, 14);
    ek_route_params params = params_of(0.1);
    params.mean_score_loss = 0.001;
    make(&a, &gates[0], &params);
    make(&b, &gates[0], &params);
    int64_t closed_first = 0;
    for (int32_t i = 0; i < 200; i++) {
        draw_logits(&rng, 64 * 64, logits);
        ek_route_plan p = plan(&a, logits, NULL, 64, NULL);
        ek_route_plan q = plan(&b, logits, NULL, 64, NULL);
        assert_memory_equal(p.expert_id, q.expert_id, 64 * 8 * sizeof *p.expert_id);
        assert_memory_equal(p.weight, q.weight, 64 * 8 * sizeof *p.weight);
        if (i == 0) closed_first = ek_route_stats_of(a.router)->n_closed;
    }
    const ek_route_stats *stats = ek_route_stats_of(a.router);
    /* Over many batches the running mean is what binds. */
    assert_true(stats->loss_sum / (double)stats->n_tokens <= 0.001 * 1.2);
    assert_true(stats->n_closed < 200 * closed_first && stats->loss_sum > 0);
}

static void test_odd_logits(void **state)
{
    (void)state;
    static rig r;
    static float logits[16 * N_MAX];
    ek_rng rng;
    ek_rng_init(&rng, 15);
    const float odd[] = {NAN, INFINITY, -INFINITY, 1e30f, -1e30f, 0, -2000};
    for (size_t g = 0; g < EK_COUNT_OF(gates); g++) {
        ek_route_params params = params_of(1);
        params.max_score_loss = params.mean_score_loss = 1;
        make(&r, &gates[g], &params);
        for (int32_t i = 0; i < 60; i++) {
            draw_logits(&rng, 16 * gates[g].n_experts, logits);
            for (int32_t j = 0; j < 16 * gates[g].n_experts; j++)
                if (ek_rng_below(&rng, 60) < (uint64_t)i) logits[j] = odd[ek_rng_below(&rng, 7)];
            ek_route_plan p = plan(&r, logits, NULL, 16, NULL);
            for (int32_t j = 0; j < 16 * gates[g].top_k; j++) {
                int32_t row = j / gates[g].top_k * gates[g].top_k;
                assert_in_range(p.expert_id[j], 0, gates[g].n_experts - 1);
                assert_false(holds(p.expert_id + row, j - row, p.expert_id[j]));
                assert_true(isfinite(p.weight[j]) && p.weight[j] >= 0);
            }
        }
        assert_true(isfinite(ek_route_stats_of(r.router)->loss_sum));
    }
}

static void test_memory(void **state)
{
    (void)state;
    static rig r;
    static uint8_t scratch[1 << 16];
    const ek_route_params params = params_of(0.1);
    make(&r, &gates[0], &params);
    float logits[2 * 64] = {0}, loss[2] = {0};
    ek_route_plan p = plan(&r, logits, NULL, 2, NULL);
    const ek_coalesce_job job = {
        .gate = &gates[0],
        .bank = &r.router->layers[0].bank,
        .params = &params,
        .scratch = &r.router->scratch,
        .logits = logits,
        .loss = loss,
        .budget = &r.router->layers[0].budget,
    };
    size_t bytes = ek_route_coalesce_bytes(&gates[0], 2);
    ek_coalesce_counts counts;
    assert_true(bytes <= sizeof scratch);
    assert_int_equal(ek_route_coalesce(&job, ek_arena_over(scratch, bytes), &p, &counts), EK_OK);
    assert_int_equal(ek_route_coalesce(&job, ek_arena_over(scratch, bytes / 2), &p, &counts),
                     EK_ENOMEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_all_sets), cmocka_unit_test(test_inside_the_budget),
        cmocka_unit_test(test_unchanged),        cmocka_unit_test(test_deterministic_and_finite),
        cmocka_unit_test(test_odd_logits),       cmocka_unit_test(test_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
