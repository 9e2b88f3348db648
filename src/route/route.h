/*
 * Routing: gate logits in, plan out. The plan says for each token which experts it visits with what
 * weight, and for each expert which tokens it gets (CSR lists), so that whoever executes it needs
 * to know no policy.
 *
 * `static` is the model's own choice, bit for bit. The other policies bend the *selection* score by
 * the load view, never the weights' scores, inside a quality budget. On request small batches are
 * then *coalesced* to fewer experts, inside the same budget and under `static`, too; and capacity
 * may move or leave out what an expert cannot take. docs/ROUTING.md tells all of it. Deterministic
 * given (inputs, views, seed). Pure; one caller at a time per router, but for ek_route_switch.
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
#include "route/breaker.h"
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
 * `static` without capacity never looks at it. A sampler makes a new one every `sample_period`; a
 * reader may keep using it, with its age going up, until the next.
 */
typedef struct ek_route_view {
    uint64_t version; /* another one for each snapshot */
    int64_t age_us;   /* of the youngest sample */
    /*
     * (n_layers, n_experts) in [0, inf) of the best replica; NULL: load-blind; NaN: this one is not
     * known
     */
    const float *utilisation;
    int64_t sampled_us; /* when, on a monotonic clock: what breakers tell the time by */
    int64_t tail_us; /* P99 of service times since the last sample, for `adaptive`; 0: not known */
    /* (n_layers, n_experts) usable replicas, 0: none; NULL: one each. Read by capacity only. */
    const int32_t *n_replicas;
} ek_route_view;

/* What happened to a token in a layer, as bits. */
#define EK_ROUTE_TOKEN_CHANGED  1u /* load or its batch chose other experts than the model would */
#define EK_ROUTE_TOKEN_REROUTED 2u /* an expert was full: the next best took its place */
#define EK_ROUTE_TOKEN_DEFERRED \
    4u /* an expert was full: some of its work waits for a later round */
#define EK_ROUTE_TOKEN_DEGRADED 8u /* an expert was full: its contribution is left out */
#define EK_ROUTE_TOKEN_COALESCED \
    16u /* it visits an expert that the batch reads anyway instead of its own */

/**
 * One layer's plan for one batch. Arrays live in the arena given to ek_route_plan_layer (a step's
 * lifetime). Rows are (token, choice) pairs, packed by expert: expert e has rows expert_beg[e] ..
 * expert_beg[e + 1] - 1, tokens ascending inside an expert. row_of[t * top_k + k] finds the row of
 * a token's k-th choice again.
 */
typedef struct ek_route_plan {
    int32_t n_tokens;
    int32_t n_experts;
    int32_t top_k;
    /*
     * (n_tokens, top_k) best first, a rerouted or coalesced one in the place of the one it stands
     * for; -1: degraded, contributes nothing
     */
    int32_t *expert_id;
    float *weight;       /* (n_tokens, top_k) what the expert's output is multiplied with */
    int32_t *expert_beg; /* (n_experts + 1) */
    int32_t *row_token;  /* (n_rows) token index */
    int32_t *row_of;     /* (n_tokens, top_k) row; -1: not in this round (deferred), or degraded */
    int32_t n_rows;      /* = expert_beg[n_experts] */
    int32_t n_active;    /* experts with at least one row */

    uint8_t *token_flags; /* (n_tokens) EK_ROUTE_TOKEN_*; NULL: nothing happened to any */
    /*
     * Token-slots t * top_k + k that wait: those of round r (1..n_rounds) are deferred_beg[r - 1]
     * .. deferred_beg[r] - 1, ascending. Each round becomes a plan of its own by
     * ek_route_plan_deferred.
     */
    int32_t *deferred;     /* (n_deferred) */
    int32_t *deferred_beg; /* (n_rounds + 1) */
    int32_t n_deferred;
    int32_t n_rounds;
    int32_t n_rerouted; /* token-slots */
    int32_t n_degraded;
    uint32_t params_version; /* of the params it was made with: 1 from creation on */
    bool load_view_stale;    /* the policy wanted to know loads and could not: it was `static` */
} ek_route_plan;

/**
 * What a router has done since it was created. Token means token in one layer. Means over all
 * tokens are sums over n_tokens; those of a shadow sum over n_shadow stand for the n_bent tokens of
 * which they are a sample.
 */
typedef struct ek_route_stats {
    int64_t n_tokens;
    int64_t n_plans;
    int64_t n_stale_plans; /* of those, made without the loads that the policy wanted */
    int64_t n_bent;        /* tokens that were planned while some expert was bent, or coalesced */
    int64_t n_changed;     /* tokens whose set of experts is not the model's */
    int64_t n_undone;      /* substitutions that the quality budget took back */
    double loss_sum;       /* of score losses */
    double loss_max;
    /* Token-slots: these four add up to n_tokens * top_k. */
    int64_t n_executed, n_rerouted, n_deferred, n_degraded;
    int64_t n_closed;         /* experts of a batch that it need not read, thanks to coalescing */
    int64_t n_coalesced;      /* tokens that visit others for that; part of n_changed */
    double coalesced_loss;    /* what these gave up for it; part of loss_sum */
    int64_t n_shadow;         /* sampled tokens */
    int64_t n_shadow_changed; /* of those */
    double shadow_loss_sum;
    double shadow_divergence_sum; /* Kullback-Leibler, nats: the gate bent by load against the
                                     model's */
} ek_route_stats;

typedef struct ek_router ek_router;

/** Arena bytes that ek_route_create takes at most: 160 bytes for each layer and expert. */
size_t ek_route_bytes(const ek_route_gate *gate, int32_t n_layers);

/**
 * @param gate     checked here: a gate out of range is EK_EINVAL with a text
 * @param n_layers layers that will be planned, numbered from 0
 * @param params   policy and budgets (route/params.h), checked here
 * @param perm     lives as long as the router
 * @return EK_OK; EK_EINVAL; EK_ENOMEM perm full
 */
EK_MUST ek_status ek_route_create(const ek_route_gate *gate, int32_t n_layers,
                                  const ek_route_params *params, ek_arena *perm,
                                  ek_router **out_router, ek_err *err);

/**
 * Leave other params for the router's owner, who takes them with ek_route_adopt. Any thread, at any
 * time, wait-free; of several, the last one is taken.
 * @return EK_OK; EK_EINVAL, the text says what is wrong; EK_AGAIN somebody else leaves or takes
 *         params at this very moment
 */
EK_MUST ek_status ek_route_switch(ek_router *router, const ek_route_params *params, ek_err *err);

/**
 * Take over what ek_route_switch left; between two steps, by the router's owner. Breakers and
 * smoothed loads stay known where the policy stays the same. @return true when params changed
 */
bool ek_route_adopt(ek_router *router);

/**
 * Plan one layer of one step.
 * Source: the gates of the supported models (docs/ARCHITECTURE.md); group-limited choice as in
 * arXiv:2412.19437 2.1.2.
 * @param layer    in [0, n_layers)
 * @param logits   (n_tokens, n_experts) f32; borrowed; a NaN logit scores lowest
 * @param bias     (n_experts) added for selection only, or NULL
 * @param view     may be NULL; penalties are computed once for each layer and version
 * @param step     the plan's memory; ek_route_plan_bytes says how much
 * Ties go to the lower id. Cost O(n_tokens * (n_experts + top_k^2 log(n_experts / top_k))) for
 * logits in no special order, O(n_tokens * n_experts * top_k) for ascending ones; about twice that
 * for tokens whose experts are bent.
 * @return EK_OK; EK_ENOMEM step full (nothing was taken from it)
 */
EK_MUST ek_status ek_route_plan_layer(ek_router *router, int32_t layer, const float *logits,
                                      const float *bias, int32_t n_tokens,
                                      const ek_route_view *view, ek_arena *step,
                                      ek_route_plan *out_plan);

/**
 * One round of what a plan deferred, as a plan of its own: same experts, same weights, rows for
 * that round's token-slots only. Executing the plan and each of its rounds once does all the work.
 * @param plan  from ek_route_plan_layer; expert_id and weight of the result are its
 * @param round in [1, plan->n_rounds]
 * @param step  at most ek_route_plan_bytes
 * @return EK_OK; EK_ENOMEM step full (nothing was taken from it)
 */
EK_MUST ek_status ek_route_plan_deferred(const ek_route_plan *plan, int32_t round, ek_arena *step,
                                         ek_route_plan *out_plan);

/** Arena bytes that a plan of n_tokens takes at most, whatever the policy. */
size_t ek_route_plan_bytes(const ek_route_gate *gate, int32_t n_tokens);

/* For the router's owner: figures, the breakers of one layer's experts (n_experts), the policy. */
const ek_route_stats *ek_route_stats_of(const ek_router *router);
const ek_breaker *ek_route_breakers(const ek_router *router, int32_t layer);
const ek_route_params *ek_route_params_of(const ek_router *router);
/** Version of the params in force: 1 from creation on, one higher with each that is adopted. */
uint32_t ek_route_params_version(const ek_router *router);
/** The controller's gain under `adaptive` (route/adapt.h). */
double ek_route_gain(const ek_router *router);

#endif
