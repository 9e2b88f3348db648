/*
 * Coalescing: a small batch chooses fewer distinct experts.
 *
 * While a batch is small its cost is the weights that are read, one expert's for each expert that
 * any token visits. An expert that few tokens visit, none of which loses much by visiting the next
 * best expert that the batch reads anyway, is not worth reading: it is *closed*, and its tokens
 * move. That changes what is computed, so it happens inside the quality budget (route/budget.h):
 *
 *   - no token gives up more than `coalesce` of its gate score for this, nor more than
 *     `max_score_loss` in all;
 *   - nothing is given up that would bring a layer's running mean above `mean_score_loss`;
 *   - no token moves to an expert that load speaks against more than against the one it leaves, or
 *     out of the groups that the model allows it.
 *
 * (A bent choice whose score is above the model's own, which a bias can bring about, counts as one
 * that is as good: what it had to spare is not given away.)
 *
 * What a token chooses then depends on the other tokens of its batch: with coalescing even `static`
 * answers differently in other company. It is therefore off unless asked for. Pure; deterministic.
 */
#ifndef EK_ROUTE_COALESCE_H
#define EK_ROUTE_COALESCE_H

#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/status.h"
#include "route/budget.h"
#include "route/gate.h"
#include "route/policy.h"

/** One batch of one layer, after the choice of experts. */
typedef struct ek_coalesce_job {
    const ek_route_gate *gate;
    const ek_policy_bank *bank; /* of the layer */
    const ek_route_params *params;
    ek_gate_scratch *scratch;
    const float *logits; /* (n_tokens, n_experts) */
    const float *bias;   /* (n_experts) or NULL */
    float *loss;         /* (n_tokens) in and out: what each token has lost so far */
    ek_budget *budget;   /* the policy's losses in this batch are spent already */
} ek_coalesce_job;

typedef struct ek_coalesce_counts {
    int32_t n_closed;  /* experts that are not read any more */
    int32_t n_changed; /* tokens that moved */
    double loss_sum;   /* of what these gave up for it */
} ek_coalesce_counts;

/** Scratch bytes of ek_route_coalesce. */
size_t ek_route_coalesce_bytes(const ek_route_gate *gate, int32_t n_tokens);

/**
 * Close experts, cheapest first, until none is left that the budget allows.
 * @param scratch    ek_route_coalesce_bytes
 * @param plan       in: n_tokens, top_k, n_experts, expert_id, weight and token_flags as chosen;
 *                   out: these three. An expert stands in the place of the one that it stands for.
 *                   Rows are not packed yet.
 * The greedy order is not always the best one: test_route_coalesce says by how much.
 * Cost: one pass over the token-slots, one over the logits of tokens that could move, and about
 * 0.2 us for each expert closed.
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_route_coalesce(const ek_coalesce_job *job, ek_arena scratch,
                                    ek_route_plan *plan, ek_coalesce_counts *out_counts);

#endif
