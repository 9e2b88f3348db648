/*
 * Capacity: what happens to the tokens of an expert that gets more of a batch than it may take.
 *
 * A replica takes at most cap = ceil(factor * tokens * top_k / experts) token-slots of a batch, an
 * expert as many times that as it has usable replicas: moving to another replica of the same expert
 * costs nothing, so it is the first thing that happens, and only what is beyond that is overflow.
 * The token-slots that weigh least overflow. Each of them then ends in exactly one way, tried in
 * this order:
 *
 *   rerouted  the next best expert that has room, if the token's loss stays inside its budget
 *   deferred  same expert, in one of the `defer_rounds` micro-batches after this one, each with
 *             its own cap
 *   degraded  left out; the token's other weights grow so that their sum stays, it is flagged
 *
 * Everything else is executed. A half-open breaker's probes are a softer cap: what goes beyond them
 * is rerouted where the budget allows, and executed where it does not. Pure.
 */
#ifndef EK_ROUTE_CAPACITY_H
#define EK_ROUTE_CAPACITY_H

#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/status.h"
#include "route/bend.h"
#include "route/budget.h"

/** What became of token-slots. They add up to tokens * top_k. */
typedef struct ek_capacity_counts {
    int64_t n_executed;
    int64_t n_rerouted;
    int64_t n_deferred;
    int64_t n_degraded;
} ek_capacity_counts;

/** One batch of one layer, after the choice of experts. */
typedef struct ek_capacity_job {
    ek_bend bend; /* bank->n_bent may be 0 */
    const ek_route_params *params;
    const float *logits; /* (n_tokens, n_experts) */
    const float *bias;   /* (n_experts) or NULL */
    const int32_t *cap;  /* (n_experts) token-slots that fit; 0: the expert has no usable replica */
    const int32_t
        *soft;   /* (n_experts) at most that, if the budget allows; INT32_MAX: no such limit */
    float *loss; /* (n_tokens) in and out: what each token has lost so far */
    ek_budget *budget;
} ek_capacity_job;

/** ceil(factor * n_tokens * top_k / n_experts), at least 1. */
int32_t ek_route_capacity_cap(double factor, int32_t n_tokens, int32_t top_k, int32_t n_experts);

/** Scratch bytes of ek_route_capacity_apply. */
size_t ek_route_capacity_scratch_bytes(const ek_route_gate *gate, int32_t n_tokens);

/**
 * Make a choice fit.
 * @param scratch    ek_route_capacity_scratch_bytes
 * @param plan       in: n_tokens, top_k, n_experts, expert_id, weight and token_flags as chosen,
 *                   memory for deferred (n_tokens * top_k) and deferred_beg (EK_ROUTE_DEFERRALS_MAX
 *                   + 1); out: all of these, n_deferred and n_rounds. Rows are not packed yet.
 * @param out_counts of this batch Cost: one pass over the token-slots where nothing overflows; else
 *                   for each overflowing expert a sort of its token-slots, and for each token of
 *                   overflow about a choice.
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_route_capacity_apply(const ek_capacity_job *job, ek_arena scratch,
                                          ek_route_plan *plan, ek_capacity_counts *out_counts);

#endif
