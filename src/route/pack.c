#include "route/pack.h"

#include <string.h>

#include "base/assert.h"

/** Turns the counts in expert_beg[e + 1] into first rows, which `next` gets, too. */
static void sum_up(ek_route_plan *plan, int32_t *next)
{
    int32_t *beg = plan->expert_beg;
    int32_t n_experts = plan->n_experts, n_rows = 0;
    for (int32_t e = 0; e < n_experts; e++) {
        int32_t n = beg[e + 1];
        next[e] = n_rows;
        n_rows += n;
        beg[e + 1] = n_rows;
    }
    plan->n_rows = n_rows;
}

/*
 * The loops work on copies of the plan's fields: what they store could be one of those, for all
 * that the compiler knows, and they would be read again each time.
 */

/** Counts rows in expert_beg[e + 1], and experts that have any. */
static void count(ek_route_plan *plan)
{
    int32_t n_pairs = plan->n_tokens * plan->top_k, n_active = 0;
    const int32_t *expert_id = plan->expert_id;
    int32_t *n_of = plan->expert_beg + 1;
    memset(plan->expert_beg, 0, ((size_t)plan->n_experts + 1) * sizeof *plan->expert_beg);
    for (int32_t i = 0; i < n_pairs; i++)
        if (expert_id[i] >= 0) n_active += n_of[expert_id[i]]++ == 0;
    plan->n_active = n_active;
}

static void place(ek_route_plan *plan, int32_t *next)
{
    int32_t n_tokens = plan->n_tokens, top_k = plan->top_k;
    const int32_t *expert_id = plan->expert_id;
    int32_t *row_of = plan->row_of, *row_token = plan->row_token;
    for (int32_t t = 0, i = 0; t < n_tokens; t++) {
        for (int32_t k = 0; k < top_k; k++, i++) {
            int32_t row = expert_id[i] >= 0 ? next[expert_id[i]]++ : -1;
            row_of[i] = row;
            if (row >= 0) row_token[row] = t;
        }
    }
}

/**
 * One token: no expert has more than one row, so its first row is the row. No branch hangs on which
 * experts were chosen, because that cannot be predicted; sorting the choices instead takes fewer
 * instructions and more time.
 */
static void pack_token(ek_route_plan *plan)
{
    int32_t n_experts = plan->n_experts, top_k = plan->top_k, n_rows = 0;
    const int32_t *expert_id = plan->expert_id;
    int32_t *row_of = plan->row_of, *beg = plan->expert_beg;
    memset(beg, 0, ((size_t)n_experts + 1) * sizeof *beg);
    for (int32_t k = 0; k < top_k; k++)
        if (expert_id[k] >= 0) beg[expert_id[k] + 1] = 1;
    for (int32_t e = 1; e <= n_experts; e++)
        beg[e] = n_rows += beg[e];
    for (int32_t k = 0; k < top_k; k++)
        row_of[k] = expert_id[k] >= 0 ? beg[expert_id[k]] : -1;
    memset(plan->row_token, 0, (size_t)n_rows * sizeof *plan->row_token);
    plan->n_rows = plan->n_active = n_rows;
}

void ek_route_pack(ek_route_plan *plan, int32_t *next)
{
    if (plan->n_tokens == 1) {
        pack_token(plan);
        return;
    }
    count(plan);
    sum_up(plan, next);
    place(plan, next);
}

void ek_route_pack_undeferred(ek_route_plan *plan, int32_t *next)
{
    int32_t n_pairs = plan->n_tokens * plan->top_k;
    count(plan);
    for (int32_t i = 0; i < n_pairs; i++)
        plan->row_of[i] = plan->expert_id[i] >= 0 ? 0 : -1;
    for (int32_t i = 0; i < plan->n_deferred; i++) {
        plan->row_of[plan->deferred[i]] = -1;
        plan->n_active -= --plan->expert_beg[plan->expert_id[plan->deferred[i]] + 1] == 0;
    }
    sum_up(plan, next);
    for (int32_t i = 0; i < n_pairs; i++) {
        if (plan->row_of[i] < 0) continue;
        int32_t row = next[plan->expert_id[i]]++;
        plan->row_of[i] = row;
        plan->row_token[row] = i / plan->top_k;
    }
}

ek_status ek_route_plan_deferred(const ek_route_plan *plan, int32_t round, ek_arena *step,
                                 ek_route_plan *out_plan)
{
    ek_assert(round >= 1 && round <= plan->n_rounds);
    size_t n_pairs = (size_t)plan->n_tokens * (size_t)plan->top_k;
    const int32_t *pairs = plan->deferred + plan->deferred_beg[round - 1];
    int32_t n = plan->deferred_beg[round] - plan->deferred_beg[round - 1];
    ek_arena arena = *step;
    ek_route_plan later = *plan;
    later.expert_beg = ek_try_new(&arena, int32_t, plan->n_experts + 1);
    later.row_token = ek_try_new(&arena, int32_t, n);
    later.row_of = ek_try_new(&arena, int32_t, n_pairs);
    ek_arena scratch = arena;
    int32_t *next = ek_try_new(&scratch, int32_t, plan->n_experts);
    if (!later.expert_beg || !later.row_token || !later.row_of || !next) return EK_ENOMEM;

    later.n_active = 0;
    for (int32_t i = 0; i < n; i++)
        later.n_active += later.expert_beg[plan->expert_id[pairs[i]] + 1]++ == 0;
    sum_up(&later, next);
    memset(later.row_of, 0xff, n_pairs * sizeof *later.row_of); /* -1 */
    for (int32_t i = 0; i < n; i++) {
        int32_t row = next[plan->expert_id[pairs[i]]]++;
        later.row_of[pairs[i]] = row;
        later.row_token[row] = pairs[i] / plan->top_k;
    }
    /* What waits and what was counted is the first plan's to say. */
    later.deferred = later.deferred_beg = NULL;
    later.n_deferred = later.n_rounds = later.n_rerouted = later.n_degraded = 0;
    *step = arena;
    *out_plan = later;
    return EK_OK;
}
