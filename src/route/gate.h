/*
 * The gate of one token: logits -> chosen experts, best first, and their weights.
 *
 * This is the model's own rule and nothing else; a policy that bends the choice works on the
 * selection values in between. Pure: the scratch is the caller's.
 */
#ifndef EK_ROUTE_GATE_H
#define EK_ROUTE_GATE_H

#include <stdint.h>

#include "base/err.h"
#include "route/route.h"

/**
 * What the gate of one token writes to while it works; owned by the router, reused for every token.
 */
typedef struct ek_gate_scratch {
    float *logit;        /* (n_experts) NaN replaced by -inf, +inf by the largest float */
    float *score;        /* (n_experts) softmax or sigmoid of the logits */
    float *value;        /* (n_experts) what the choice is made on */
    uint8_t *group_used; /* (n_groups) 1: its experts may be chosen */
    uint64_t *top;       /* (max(top_k, n_groups_used)) best keys so far, descending */
} ek_gate_scratch;

/**
 * Is this a gate that the functions here can carry out? @return EK_OK; EK_EINVAL, the text says
 * what is wrong
 */
EK_MUST ek_status ek_route_gate_check(const ek_route_gate *gate, ek_err *err);

/**
 * Choose the experts of one token.
 * Order as in the models: score -> + bias -> groups -> top-k -> weights from scores without bias ->
 * renormalise -> scale.
 * @param logits     (n_experts) f32; borrowed; NaN scores lowest and weighs 0
 * @param bias       (n_experts) f32 added for selection only, or NULL
 * @param out_id     (top_k) distinct ids, best first; ties go to the lower id
 * @param out_weight (top_k) finite, >= 0
 */
void ek_route_gate_choose(const ek_route_gate *gate, const float *logits, const float *bias,
                          ek_gate_scratch *scratch, int32_t *out_id, float *out_weight);

#endif
