/*
 * The gate of one token: logits -> chosen experts, best first, and their weights.
 *
 * This is the model's own rule and nothing else; a policy that bends the choice works on the
 * selection values in between (route/bend.h). Pure: the scratch is the caller's.
 */
#ifndef EK_ROUTE_GATE_H
#define EK_ROUTE_GATE_H

#include <float.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "route/route.h"

/**
 * What the gate of one token writes to while it works; owned by the router, reused for every token.
 */
typedef struct ek_gate_scratch {
    float *logit;        /* (n_experts) NaN replaced by -inf, +inf by the largest float */
    float *score;        /* (n_experts) softmax or sigmoid of the logits, where it is needed */
    float *value;        /* (n_experts) what the choice is made on, where it is not the logits */
    uint8_t *group_used; /* (n_groups) 1: its experts may be chosen */
    int32_t *candidate;  /* (n_experts + 1) experts that may be among the best */
    uint64_t *top;       /* (max(top_k, n_groups_used)) best keys so far, descending */
} ek_gate_scratch;

/**
 * Is this a gate that the functions here can carry out? @return EK_OK; EK_EINVAL, the text says
 * what is wrong
 */
EK_MUST ek_status ek_route_gate_check(const ek_route_gate *gate, ek_err *err);

/**
 * Choose the experts of one token: values, pick and weigh in one.
 * Order as in the models: score -> + bias -> groups -> top-k -> weights from scores without bias ->
 * renormalise -> scale.
 * @param logits     (n_experts) f32; borrowed; NaN scores lowest and weighs 0
 * @param bias       (n_experts) f32 added for selection only, or NULL
 * @param out_id     (top_k) distinct ids, best first; ties go to the lower id
 * @param out_weight (top_k) finite, >= 0
 * @return (n_experts) the values that the choice was made on: logits or scratch->value
 */
const float *ek_route_gate_choose(const ek_route_gate *gate, const float *logits, const float *bias,
                                  ek_gate_scratch *scratch, int32_t *out_id, float *out_weight);

/**
 * True where the choice on logits is the choice on scores: they rise together, and nothing is
 * added or summed. Then values are logits.
 */
static inline bool ek_route_gate_plain(const ek_route_gate *gate, const float *bias)
{
    return bias == NULL && gate->n_groups_used == gate->n_groups;
}

/** Mark the groups whose two best experts add up highest in scratch->group_used. */
void ek_route_gate_pick_groups(const ek_route_gate *gate, const float *value,
                               ek_gate_scratch *scratch);

/**
 * The best experts by value among the groups marked in scratch->group_used (not looked at where all
 * are used), best first, lower id first of equals.
 */
void ek_route_gate_pick(const ek_route_gate *gate, const float *value, ek_gate_scratch *scratch,
                        int32_t *out_id);

/**
 * The weights of a set of experts; call after ek_route_gate_choose for the same token.
 * @param ids        (top_k) any set, in any order
 * @param out_weight (top_k)
 */
void ek_route_gate_weigh(const ek_route_gate *gate, const float *bias,
                         const ek_gate_scratch *scratch, const int32_t *ids, float *out_weight);

/** The same for a token of which nothing but its logits is at hand. */
void ek_route_gate_weigh_alone(const ek_route_gate *gate, const float *bias, const float *logits,
                               ek_gate_scratch *scratch, const int32_t *ids, float *out_weight);

/**
 * Does a choice keep to as many groups as the model allows with expert e in place of ids[k]?
 * @param k -1: besides all of them
 */
bool ek_route_gate_keeps_groups(const ek_route_gate *gate, const int32_t *ids, int32_t k,
                                int32_t e);

/** A logit as it is reckoned with: NaN is nothing, infinity the largest number. */
static inline float ek_route_gate_logit(float z)
{
    if (z != z) return -INFINITY;
    return z > FLT_MAX ? FLT_MAX : z;
}

/** Put n ids into the order of pick: higher value first, lower id first of equals. */
void ek_route_gate_order(const float *value, int32_t *ids, int32_t n);

#endif
