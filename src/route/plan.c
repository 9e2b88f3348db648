/*
 * Planning one layer: choose, coalesce, fit, pack. Where the gate alone decides, nothing else is
 * done.
 */
#include <string.h>

#include "base/assert.h"
#include "base/rng.h"
#include "base/size.h"
#include "route/capacity.h"
#include "route/coalesce.h"
#include "route/pack.h"
#include "route/router.h"

/* One call of ek_route_plan_layer. */
typedef struct planner {
    ek_router *router;
    ek_router_layer *layer;
    int32_t layer_idx;
    const float *logits;
    const float *bias;
    const ek_route_view *view;
    ek_route_plan *plan;
    ek_bend bend;
} planner;

/* ---- what is known of loads ---- */

/** Units that were sent as probes since the last sample have come to their end by now. */
static void settle_probes(ek_policy_bank *bank)
{
    for (int32_t e = 0; e < bank->n; e++)
        if (bank->breaker[e].n_probes > 0)
            ek_route_breaker_settle(&bank->breaker[e], bank->breaker[e].n_probes, 0);
}

static void take_sample(planner *p)
{
    ek_router *router = p->router;
    const ek_route_view *view = p->view;
    if (router->view_version != view->version) {
        router->view_version = view->version;
        ek_route_policy_core_sample(&router->core, view->tail_us);
    }
    const ek_policy_sample sample = {
        .load = view->utilisation + (ptrdiff_t)p->layer_idx * router->gate.n_experts,
        .now_us = view->sampled_us,
    };
    ek_policy_bank *bank = &p->layer->bank;
    settle_probes(bank);
    ek_route_policy_bank_sample(&router->core, bank, &sample);
    p->layer->view_version = view->version;
}

/** While the policy cannot see, and until it looks again, there are no penalties and no probes. */
static void look_away(ek_router_layer *layer)
{
    if (layer->is_current) ek_route_policy_bank_blind(&layer->bank);
    layer->is_current = false;
    layer->n_half_open = 0;
}

/** Bring the layer's penalties up to date with params and view; mostly they are. */
static void refresh(planner *p)
{
    ek_router *router = p->router;
    ek_router_layer *layer = p->layer;
    if (layer->params_version != router->params_version) {
        if (layer->policy_version != router->policy_version)
            ek_route_layer_init(router, p->layer_idx);
        layer->params_version = router->params_version;
        look_away(layer);
    }
    if (!router->core.policy->penalty) return;
    const ek_route_view *view = p->view;
    int64_t age_max_us = EK_ROUTE_STALE_PERIODS * router->core.params.sample_us;
    if (!view || !view->utilisation || view->age_us > age_max_us) {
        look_away(layer);
        p->plan->load_view_stale = true;
        return;
    }
    if (layer->is_current && layer->view_version == view->version) return;
    layer->n_half_open = 0;
    if (layer->bank.sampled && layer->view_version == view->version)
        ek_route_policy_bank_refresh(&router->core, &layer->bank);
    else
        take_sample(p);
    layer->is_current = true;
    for (int32_t e = 0; e < layer->bank.n; e++)
        layer->n_half_open += layer->bank.breaker[e].state == EK_BREAKER_HALF_OPEN;
}

/* ---- the choice ---- */

static void choose_static(planner *p)
{
    const ek_route_gate *gate = &p->router->gate;
    ek_route_plan *plan = p->plan;
    for (int32_t t = 0; t < plan->n_tokens; t++)
        ek_route_gate_choose(gate, p->logits + (ptrdiff_t)t * gate->n_experts, p->bias,
                             &p->router->scratch, plan->expert_id + (ptrdiff_t)t * gate->top_k,
                             plan->weight + (ptrdiff_t)t * gate->top_k);
}

/** One token of `every`, always the same ones. */
static bool is_sampled(const planner *p, int64_t token_idx)
{
    uint64_t every = (uint64_t)p->router->core.params.shadow_every;
    uint64_t hash = ek_mix64(p->layer->bank.noise_seed ^ (uint64_t)token_idx);
    return every > 0 && ((hash >> 32) * every) >> 32 == 0;
}

/** What the shadow says of a batch, once its choice of experts is made. */
static void shadow(planner *p, const float *loss)
{
    ek_route_stats *stats = &p->router->stats;
    const ek_route_plan *plan = p->plan;
    for (int32_t t = 0; t < plan->n_tokens; t++) {
        bool is_changed = plan->token_flags[t] & EK_ROUTE_TOKEN_CHANGED;
        stats->n_changed += is_changed;
        if (!is_sampled(p, p->layer->n_seen + t)) continue;
        stats->n_shadow++;
        stats->n_shadow_changed += is_changed;
        stats->shadow_loss_sum += (double)loss[t];
    }
    p->layer->n_seen += plan->n_tokens;
    stats->n_bent += plan->n_tokens;
}

static void choose_bent(planner *p, float *loss)
{
    ek_router *router = p->router;
    const ek_route_gate *gate = &router->gate;
    ek_route_plan *plan = p->plan;
    ek_budget *budget = &p->layer->budget;
    ek_route_stats *stats = &router->stats;
    for (int32_t t = 0; t < plan->n_tokens; t++) {
        int32_t *id = plan->expert_id + (ptrdiff_t)t * gate->top_k;
        float *weight = plan->weight + (ptrdiff_t)t * gate->top_k;
        const float *value = ek_route_gate_choose(gate, p->logits + (ptrdiff_t)t * gate->n_experts,
                                                  p->bias, &router->scratch, id, weight);
        ek_bend_outcome outcome;
        ek_route_bend_token(&p->bend, p->bias, value,
                            ek_route_budget_bound(budget, &router->core.params), id, weight,
                            &outcome);
        ek_route_budget_spend(budget, outcome.loss);
        loss[t] = (float)outcome.loss;
        plan->token_flags[t] = outcome.changed ? EK_ROUTE_TOKEN_CHANGED : 0;
        stats->n_undone += outcome.n_undone;
        if (is_sampled(p, p->layer->n_seen + t))
            stats->shadow_divergence_sum += ek_route_bend_divergence(&p->bend);
    }
}

/* ---- what is read anyway ---- */

/** One token alone has nobody to share with; large batches read nearly everything. */
static bool is_coalesced(const planner *p)
{
    const ek_route_params *params = &p->router->core.params;
    return params->coalesce > 0 && p->plan->n_tokens >= 2 &&
           p->plan->n_tokens <= params->coalesce_tokens;
}

static ek_status coalesce(planner *p, float *loss, ek_arena scratch)
{
    const ek_coalesce_job job = {
        .gate = &p->router->gate,
        .bank = &p->layer->bank,
        .params = &p->router->core.params,
        .scratch = &p->router->scratch,
        .logits = p->logits,
        .bias = p->bias,
        .loss = loss,
        .budget = &p->layer->budget,
    };
    ek_coalesce_counts counts;
    ek_status status = ek_route_coalesce(&job, scratch, p->plan, &counts);
    if (status != EK_OK) return status;
    p->router->stats.n_closed += counts.n_closed;
    p->router->stats.n_coalesced += counts.n_changed;
    p->router->stats.coalesced_loss += counts.loss_sum;
    return EK_OK;
}

/* ---- what fits ---- */

/** How many token-slots each expert may take, and should. */
static void set_caps(planner *p)
{
    ek_router *router = p->router;
    const ek_route_gate *gate = &router->gate;
    const ek_route_params *params = &router->core.params;
    bool is_capped = params->capacity_factor > 0;
    int64_t cap = INT32_MAX;
    if (is_capped)
        cap = ek_route_capacity_cap(params->capacity_factor, p->plan->n_tokens, gate->top_k,
                                    gate->n_experts);
    const int32_t *n_replicas = NULL;
    if (is_capped && p->view && p->view->n_replicas)
        n_replicas = p->view->n_replicas + (ptrdiff_t)p->layer_idx * gate->n_experts;
    for (int32_t e = 0; e < gate->n_experts; e++) {
        int64_t own = n_replicas ? cap * (n_replicas[e] > 0 ? n_replicas[e] : 0) : cap;
        router->cap[e] = own < INT32_MAX ? (int32_t)own : INT32_MAX;
        const ek_breaker *b = &p->layer->bank.breaker[e];
        int32_t left = params->breaker.probes - b->n_probes;
        router->soft[e] = INT32_MAX;
        if (p->layer->n_half_open > 0 && b->state == EK_BREAKER_HALF_OPEN)
            router->soft[e] = left > 0 ? left : 0;
    }
}

/** What half-open experts got in this round counts against their probes. */
static void admit_probes(planner *p)
{
    const ek_route_plan *plan = p->plan;
    if (p->layer->n_half_open == 0) return;
    for (int32_t e = 0; e < plan->n_experts; e++)
        if (p->layer->bank.breaker[e].state == EK_BREAKER_HALF_OPEN)
            (void)ek_route_breaker_admit(&p->layer->bank.breaker[e],
                                         &p->router->core.params.breaker,
                                         plan->expert_beg[e + 1] - plan->expert_beg[e]);
}

static ek_status fit(planner *p, float *loss, ek_arena scratch, ek_capacity_counts *out_counts)
{
    set_caps(p);
    const ek_capacity_job job = {
        .bend = p->bend,
        .params = &p->router->core.params,
        .logits = p->logits,
        .bias = p->bias,
        .cap = p->router->cap,
        .soft = p->router->soft,
        .loss = loss,
        .budget = &p->layer->budget,
    };
    return ek_route_capacity_apply(&job, scratch, p->plan, out_counts);
}

/* ---- all of it ---- */

static void *take(ek_arena *arena, size_t n, size_t size)
{
    return ek_arena_try_raw(arena, n, size, size);
}

static void tell(planner *p, const ek_capacity_counts *counts, const float *loss)
{
    ek_route_stats *stats = &p->router->stats;
    stats->n_tokens += p->plan->n_tokens;
    stats->n_plans++;
    stats->n_stale_plans += p->plan->load_view_stale;
    stats->n_executed += counts->n_executed;
    stats->n_rerouted += counts->n_rerouted;
    stats->n_deferred += counts->n_deferred;
    stats->n_degraded += counts->n_degraded;
    p->plan->n_rerouted = (int32_t)counts->n_rerouted;
    p->plan->n_degraded = (int32_t)counts->n_degraded;
    for (int32_t t = 0; loss && t < p->plan->n_tokens; t++) {
        stats->loss_sum += (double)loss[t];
        if ((double)loss[t] > stats->loss_max) stats->loss_max = (double)loss[t];
    }
}

/**
 * The way of policies that look at loads, of coalescing and of capacity. Everything that lasts is
 * taken from the arena before scratch is.
 */
static ek_status plan_loaded(planner *p, int32_t *next, ek_arena *arena)
{
    const ek_router *router = p->router;
    ek_route_plan *plan = p->plan;
    ek_capacity_counts counts = {.n_executed = (int64_t)plan->n_tokens * plan->top_k};
    refresh(p);
    bool is_bent = p->layer->bank.n_bent > 0;
    bool is_fitted = router->core.params.capacity_factor > 0 || p->layer->n_half_open > 0;
    bool is_gathered = is_coalesced(p);
    if (!is_bent && !is_fitted && !is_gathered) {
        choose_static(p);
        ek_route_pack(plan, next);
        ek_route_budget_rest(&p->layer->budget, plan->n_tokens);
        tell(p, &counts, NULL);
        return EK_OK;
    }
    size_t n_pairs = (size_t)plan->n_tokens * (size_t)plan->top_k;
    plan->token_flags = ek_try_new(arena, uint8_t, plan->n_tokens);
    plan->deferred = is_fitted ? take(arena, n_pairs, sizeof(int32_t)) : NULL;
    plan->deferred_beg =
        is_fitted ? take(arena, EK_ROUTE_DEFERRALS_MAX + 1, sizeof(int32_t)) : NULL;
    ek_arena scratch = *arena;
    float *loss = ek_try_new(&scratch, float, plan->n_tokens);
    if (!plan->token_flags || !loss || (is_fitted && (!plan->deferred || !plan->deferred_beg)))
        return EK_ENOMEM;
    if (is_bent) {
        choose_bent(p, loss);
    } else {
        choose_static(p);
        ek_route_budget_rest(&p->layer->budget, plan->n_tokens);
    }
    ek_status status = is_gathered ? coalesce(p, loss, scratch) : EK_OK;
    if (status != EK_OK) return status;
    if (is_bent || is_gathered) shadow(p, loss);
    if (is_fitted) status = fit(p, loss, scratch, &counts);
    if (status != EK_OK) return status;
    if (plan->n_deferred > 0)
        ek_route_pack_undeferred(plan, next);
    else
        ek_route_pack(plan, next);
    admit_probes(p);
    tell(p, &counts, loss);
    return EK_OK;
}

ek_status ek_route_plan_layer(ek_router *router, int32_t layer, const float *logits,
                              const float *bias, int32_t n_tokens, const ek_route_view *view,
                              ek_arena *step, ek_route_plan *out_plan)
{
    ek_assert(layer >= 0 && layer < router->n_layers && n_tokens >= 0);
    const ek_route_gate *gate = &router->gate;
    ek_arena arena = *step;
    size_t n_pairs;
    if (!ek_size_mul((size_t)n_tokens, (size_t)gate->top_k, &n_pairs) || n_pairs > INT32_MAX)
        return EK_ENOMEM;
    /* One piece for all that every plan has; written before anybody reads it. */
    size_t n_beg = (size_t)gate->n_experts + 1;
    int32_t *ints = take(&arena, 4 * n_pairs + 2 * n_beg, sizeof(int32_t));
    if (!ints) return EK_ENOMEM;
    ek_route_plan plan = {
        .n_tokens = n_tokens,
        .n_experts = gate->n_experts,
        .top_k = gate->top_k,
        .params_version = router->params_version,
        .expert_id = ints,
        .weight = (float *)(void *)(ints + n_pairs),
        .row_token = ints + 2 * n_pairs,
        .row_of = ints + 3 * n_pairs,
        .expert_beg = ints + 4 * n_pairs,
    };
    int32_t *next = plan.expert_beg + n_beg;

    planner p = {
        .router = router,
        .layer = &router->layers[layer],
        .layer_idx = layer,
        .logits = logits,
        .bias = bias,
        .view = view,
        .plan = &plan,
    };
    if (router->is_plain) {
        const ek_capacity_counts counts = {.n_executed = (int64_t)n_pairs};
        choose_static(&p);
        ek_route_pack(&plan, next);
        tell(&p, &counts, NULL);
    } else {
        p.bend = (ek_bend){
            .gate = gate,
            .bank = &p.layer->bank,
            .reads_scores = router->core.policy->reads_scores,
            .scratch = &router->scratch,
            .value = router->bent_value,
            .groups = router->groups,
        };
        ek_status status = plan_loaded(&p, next, &arena);
        if (status != EK_OK) return status;
    }
    *step = arena;
    *out_plan = plan;
    return EK_OK;
}

size_t ek_route_plan_bytes(const ek_route_gate *gate, int32_t n_tokens)
{
    size_t n_pairs = (size_t)n_tokens * (size_t)gate->top_k;
    size_t n_experts = (size_t)gate->n_experts;
    /* Four arrays of pairs, first rows, counters; flags, losses, what waits; scratch to fit. */
    size_t lasting = (4 * n_pairs + 2 * n_experts + 2) * sizeof(int32_t);
    size_t fitted = (size_t)n_tokens * (sizeof(uint8_t) + sizeof(float)) +
                    (n_pairs + EK_ROUTE_DEFERRALS_MAX + 1) * sizeof(int32_t);
    size_t fitting = ek_route_capacity_scratch_bytes(gate, n_tokens), coalescing = 0;
    if (n_tokens <= EK_ROUTE_COALESCE_MAX) coalescing = ek_route_coalesce_bytes(gate, n_tokens);
    size_t scratch = fitting > coalescing ? fitting : coalescing;
    return lasting + fitted + scratch + 4 * sizeof(int32_t);
}
