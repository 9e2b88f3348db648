/*
 * Policies: how load bends the choice. Five rows of a table over one mechanism.
 *
 * A candidate e with score s(e) is chosen by a(e) = s(e) * p(L(e)) + bias(e). A policy is its p: a
 * penalty in [penalty_min, 1] computed from load, or "excluded". What candidates are is the
 * caller's affair: experts of a layer (route/route.h) or upstream services (route/choose.h). One
 * *bank* holds what a policy knows of one set of candidates; it is brought up to date once per load
 * sample, and choices only read it.
 *
 * Pure; a bank and its core have one owner at a time.
 */
#ifndef EK_ROUTE_POLICY_H
#define EK_ROUTE_POLICY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "route/adapt.h"
#include "route/breaker.h"
#include "route/params.h"

/** Sampling periods after which a view is stale. */
#define EK_ROUTE_STALE_PERIODS 5

/** In a penalty's logarithm: decides between equals, far below what means something. */
#define EK_ROUTE_NOISE 1e-4

/**
 * Where load comes first: what a logit (or the logarithm of a score) adds to log p. A difference of
 * 1 weighs as much as some 2 % of load: more than chance, less than load.
 */
#define EK_ROUTE_TIEBREAK 0.01

/** Added to what an excluded candidate is chosen by: below every other, but above NaN. */
#define EK_ROUTE_EXCLUDED (-1e30f)

typedef struct ek_policy_bank {
    int32_t n;           /* candidates */
    int32_t n_needed;    /* so many always stay choosable */
    uint64_t noise_seed; /* of this bank */
    float *load;         /* (n) of the last sample; 0 where unknown */
    float *smooth;       /* (n) smoothed by discount_smoothing */
    ek_breaker *breaker; /* (n) */
    bool sampled;        /* since init */

    /* What choices read. */
    float *log_p;     /* (n) <= 0 */
    float *p;         /* (n) its exponential */
    float *mask;      /* (n) 0, or EK_ROUTE_EXCLUDED */
    uint8_t *is_bent; /* (n) 1: log_p < 0 or excluded */
    int32_t *bent;    /* (n_bent) those, ascending */
    int32_t n_bent;   /* 0: the policy has nothing to say, the static choice stands */
} ek_policy_bank;

/** One period of one bank's candidates. */
typedef struct ek_policy_sample {
    const float *load; /* (n) utilisation; NaN or negative: not known */
    const ek_breaker_sample
        *service;   /* (n) failures and latency (its load is not looked at), or NULL */
    int64_t now_us; /* when the sample was taken */
} ek_policy_sample;

typedef struct ek_policy {
    ek_route_policy id;
    const char *name; /* as in a configuration */
    const char *help;
    bool reads_scores; /* false: load comes first, scores decide between loads that are alike */
    /** Forget what was known of the candidates. */
    void (*init)(ek_policy_bank *bank);
    /** Take a sample; NULL: nothing is kept from one to the next. */
    void (*step)(const ek_route_params *params, ek_policy_bank *bank,
                 const ek_policy_sample *sample);
    /**
     * p of candidate i at this load, not yet clipped; 0: excluded while there is an alternative.
     * NULL: p is 1 for all, and loads are never looked at.
     */
    double (*penalty)(const ek_route_params *params, const ek_policy_bank *bank, int32_t i,
                      double load);
} ek_policy;

/** (EK_ROUTE_N_POLICIES) by id. */
extern const ek_policy ek_route_policies[];

/** The policy in force and its params, shared by all banks of one router. */
typedef struct ek_policy_core {
    const ek_policy *policy;
    ek_route_params params; /* as configured */
    ek_route_params tuned;  /* as penalties are computed; differs for `adaptive` only */
    ek_adapt adapt;
    double
        load_max; /* most loaded candidate that any bank saw since the controller's last sample */
} ek_policy_core;

/** @param params have passed ek_route_params_check */
void ek_route_policy_core_init(ek_policy_core *core, const ek_route_params *params);

/** Other params; the controller of `adaptive` goes on where it stood. */
void ek_route_policy_core_switch(ek_policy_core *core, const ek_route_params *params);

/** One sample for the controller of `adaptive`; once per view, before the banks' own. */
void ek_route_policy_core_sample(ek_policy_core *core, int64_t tail_us);

size_t ek_route_policy_bank_bytes(int32_t n);
/**
 * Memory for n candidates; ek_route_policy_bank_init comes next. @return false: the arena is full,
 * and nothing was taken
 */
EK_MUST bool ek_route_policy_bank_create(int32_t n, ek_arena *perm, ek_policy_bank *out_bank);

/**
 * Nothing known, nothing bent.
 * @param n_needed candidates that a choice needs: so many are never excluded at once
 */
void ek_route_policy_bank_init(const ek_policy_core *core, ek_policy_bank *bank, int32_t n_needed,
                               uint64_t noise_seed);

/** Take a sample and compute the penalties that follow from it. Cost O(n). */
void ek_route_policy_bank_sample(ek_policy_core *core, ek_policy_bank *bank,
                                 const ek_policy_sample *sample);

/** Compute the penalties again from what is known: other params, or a view that is usable again. */
void ek_route_policy_bank_refresh(const ek_policy_core *core, ek_policy_bank *bank);

/** No usable view: p = 1 for all until the next sample. What was known is kept. */
void ek_route_policy_bank_blind(ek_policy_bank *bank);

/**
 * log p of candidate i at a load that may be newer than the last sample, clipped and without noise.
 * @param out_excluded whether it is to be left out
 */
double ek_route_policy_log_p(const ek_policy_core *core, const ek_policy_bank *bank, int32_t i,
                             double load, bool *out_excluded);

/** In [0, 1): the noise of one candidate, the same whenever it is asked for. */
double ek_route_policy_noise(uint64_t seed, uint64_t what);

#endif
