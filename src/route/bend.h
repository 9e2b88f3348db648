/*
 * Bending one token's choice: the gate's selection values with the penalties of a bank in them, the
 * choice on those, and what the quality budget leaves of it.
 *
 * a(e) = s(e) * p(e) + bias(e), the product as exp(log s + log p). Where the gate chooses on logits
 * (nothing is added or summed), the penalty is moved to the logit instead: the z' whose score is
 * s(e) * p(e). That orders the same, and leaves the values of experts without penalty untouched to
 * the last bit. A policy that puts load first chooses by p alone, and logits only decide between
 * penalties that are alike. Pure; one token at a time, in the scratch of the router.
 */
#ifndef EK_ROUTE_BEND_H
#define EK_ROUTE_BEND_H

#include <stdbool.h>
#include <stdint.h>

#include "route/gate.h"
#include "route/policy.h"

typedef struct ek_bend {
    const ek_route_gate *gate;
    const ek_policy_bank *bank; /* of the layer */
    bool reads_scores;          /* of the policy */
    ek_gate_scratch *scratch;   /* as ek_route_gate_choose left it for this token */
    float *value;               /* (n_experts) scratch: bent values */
    uint8_t *groups;            /* (n_groups) scratch: the static choice's */
} ek_bend;

typedef struct ek_bend_outcome {
    bool changed;     /* the set of experts is not the static one */
    int32_t n_undone; /* substitutions that the budget took back */
    double loss;
} ek_bend_outcome;

/**
 * @param value (n_experts) as ek_route_gate_choose returned it
 * @return (n_experts) b->value, or `value` itself where nothing is bent
 */
const float *ek_route_bend_values(const ek_bend *b, const float *bias, const float *value);

/** Logit that scores of this token are measured from: the highest of the static choice's. */
float ek_route_bend_scale(const ek_bend *b, const int32_t *static_id);

/**
 * Score of an expert without bias, on the scale of that logit. Ratios of sums of scores mean
 * something; where scores are a softmax, the sums themselves do not.
 */
double ek_route_bend_score(const ek_bend *b, float scale, int32_t e);

/**
 * The logit at which an expert has this score on that scale: -inf for 0 and less, +inf for what
 * none has.
 */
double ek_route_bend_logit(const ek_bend *b, float scale, double score);

/**
 * Choose again under load.
 * @param bound     what the token may lose
 * @param id,weight (top_k) in: the static choice; out: the choice, best first by unbent values, and
 *                  weights from unbent scores. Not touched where nothing changes. Cost: nothing
 *                  much where no chosen expert is bent; else about that of another choice.
 */
void ek_route_bend_token(const ek_bend *b, const float *bias, const float *value, double bound,
                         int32_t *id, float *weight, ek_bend_outcome *out_outcome);

/**
 * Kullback-Leibler divergence of the bent gate from the model's: sum of P log(P/Q) with P the
 * scores of all experts, Q those times their penalties (the penalties alone where load comes
 * first), both normalised. In nats, >= 0; finite, because penalties are. For the token that was
 * chosen for last.
 */
double ek_route_bend_divergence(const ek_bend *b);

#endif
