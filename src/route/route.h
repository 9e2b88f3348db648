/*
 * Routing: gate logits in, plan out. The plan says for each token which experts it visits with what
 * weight, and for each expert which tokens it gets (CSR lists), so that whoever executes it needs
 * to know no policy.
 *
 * Today's policy is `static`: the model's own choice, bit for bit. The others (least-load,
 * discount, breaker, adaptive) enter through the same call: they bend the *selection* score by the
 * load view, never the weights' scores. Deterministic given (inputs, view, seed). Pure; one caller
 * at a time per router.
 */
#ifndef EK_ROUTE_ROUTE_H
#define EK_ROUTE_ROUTE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"
#include "base/status.h"
#include "route/params.h"

#define EK_ROUTE_EXPERTS_MAX 1024
#define EK_ROUTE_TOP_K_MAX   64

typedef enum ek_route_score {
    EK_ROUTE_SOFTMAX,        /* s = softmax(z) over all experts */
    EK_ROUTE_SIGMOID,        /* s = 1 / (1 + exp(-z)) */
    EK_ROUTE_SOFTMAX_CHOSEN, /* choose on z, weights = softmax over the chosen z */
} ek_route_score;

/** A model's gate, the same for all of its layers. */
typedef struct ek_route_gate {
    ek_route_score score;
    int32_t n_experts;     /* 1..EK_ROUTE_EXPERTS_MAX */
    int32_t top_k;         /* 1..min(experts of the groups used, EK_ROUTE_TOP_K_MAX) */
    int32_t n_groups;      /* >= 1, divides n_experts */
    int32_t n_groups_used; /* 1..n_groups */
    bool renormalise;
    float scale;
} ek_route_gate;

/**
 * What is known about load when a step is planned: one immutable snapshot, read without locks.
 * `static` never looks at it.
 */
typedef struct ek_route_view {
    uint64_t version;
    int64_t age_us; /* of the youngest sample */
    /* (n_layers, n_experts) in [0, inf) of the best replica; NULL: load-blind */
    const float *utilisation;
} ek_route_view;

/**
 * One layer's plan for one batch. Arrays live in the arena given to ek_route_plan (a step's
 * lifetime). Rows are (token, choice) pairs, packed by expert: expert e has rows expert_beg[e] ..
 * expert_beg[e + 1] - 1, tokens ascending inside an expert. row_of[t * top_k + k] finds the row of
 * a token's k-th choice again.
 */
typedef struct ek_route_plan {
    int32_t n_tokens;
    int32_t n_experts;
    int32_t top_k;
    int32_t *expert_id;  /* (n_tokens, top_k) best first; -1: degraded, contributes nothing */
    float *weight;       /* (n_tokens, top_k) what the expert's output is multiplied with */
    int32_t *expert_beg; /* (n_experts + 1) */
    int32_t *row_token;  /* (n_rows) token index */
    int32_t *row_of;     /* (n_tokens, top_k) row; -1 where expert_id is -1 */
    int32_t n_rows;      /* = expert_beg[n_experts] */
    int32_t n_active;    /* experts with at least one row */
} ek_route_plan;

typedef struct ek_router ek_router;

/**
 * @param gate   checked here: a gate out of range is EK_EINVAL with a text
 * @param params policy and budgets (route/params.h)
 * @param perm   lives as long as the router
 * @return EK_OK; EK_EINVAL; EK_ENOMEM perm full
 */
EK_MUST ek_status ek_route_create(const ek_route_gate *gate, const ek_route_params *params,
                                  ek_arena *perm, ek_router **out_router, ek_err *err);

/**
 * Plan one layer of one step.
 * Source: the gates of the supported models (docs/ARCHITECTURE.md); group-limited choice as in
 * arXiv:2412.19437 2.1.2.
 * @param layer    >= 0
 * @param logits   (n_tokens, n_experts) f32; borrowed; a NaN logit scores lowest
 * @param bias     (n_experts) added for selection only, or NULL
 * @param view     may be NULL
 * @param step     the plan's memory; ek_route_plan_bytes says how much
 * @param out_plan written only on EK_OK; ties went to the lower id
 * Cost O(n_tokens * (n_experts + top_k^2 log(n_experts / top_k))) for logits in no special order,
 * O(n_tokens * n_experts * top_k) for ascending ones.
 * @return EK_OK; EK_ENOMEM step full (nothing was taken from it)
 */
EK_MUST ek_status ek_route_plan_layer(ek_router *router, int32_t layer, const float *logits,
                                      const float *bias, int32_t n_tokens,
                                      const ek_route_view *view, ek_arena *step,
                                      ek_route_plan *out_plan);

/** Arena bytes that a plan of n_tokens takes at most. */
size_t ek_route_plan_bytes(const ek_route_gate *gate, int32_t n_tokens);

#endif
