/*
 * One choice per request: the policies of route/policy.h over n upstream services instead of over a
 * layer's experts. The same penalties, breakers, quality budget and staleness; what differs is that
 * exactly one is chosen, that failures and latency come with the load, and that a half-open
 * upstream gets single probes.
 *
 * A *score* says how well an upstream fits a request, from a rule or a classifier: 0 means it
 * cannot serve it, else higher is better; only ratios matter. One owner at a time; pure.
 */
#ifndef EK_ROUTE_CHOOSE_H
#define EK_ROUTE_CHOOSE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/status.h"
#include "route/breaker.h"
#include "route/params.h"
#include "route/route.h"

#define EK_CHOOSE_CANDIDATES_MAX 1024

typedef struct ek_chooser ek_chooser;

typedef struct ek_choice {
    int32_t id;           /* -1: no upstream can serve this request */
    int32_t static_id;    /* what `static` would have chosen; -1: the same */
    bool is_probe;        /* sent to a half-open one: give the outcome to ek_route_choose_settle */
    bool is_last_resort;  /* every upstream that fits is open; whoever asks may rather refuse */
    bool load_view_stale; /* loads were not known: the choice is the static one */
    double loss;          /* of score, against the static choice */
} ek_choice;

typedef struct ek_chooser_stats {
    int64_t n_choices;
    int64_t n_stale;
    int64_t n_changed; /* not what `static` would have chosen */
    int64_t n_probes;
    int64_t n_last_resort;
    int64_t n_refused; /* no upstream fits */
    double loss_sum;
    double loss_max;
} ek_chooser_stats;

/** Arena bytes that create takes at most. */
size_t ek_route_chooser_bytes(int32_t n);

/**
 * @param n    upstreams, 1..EK_CHOOSE_CANDIDATES_MAX
 * @param perm lives as long as the chooser
 * @return EK_OK; EK_EINVAL with a text; EK_ENOMEM perm full
 */
EK_MUST ek_status ek_route_chooser_create(int32_t n, const ek_route_params *params, ek_arena *perm,
                                          ek_chooser **out_chooser, ek_err *err);

/**
 * Other params from the next choice on; what is known of the upstreams stays where the policy
 * stays.
 * @return EK_OK; EK_EINVAL with a text, and the params in force stay
 */
EK_MUST ek_status ek_route_chooser_switch(ek_chooser *c, const ek_route_params *params,
                                          ek_err *err);

/**
 * Take a load sample, once a sampling period. Failures and latency since the last one come from
 * ek_route_choose_report.
 * @param view utilisation is (1, n); n_replicas is not looked at
 */
void ek_route_chooser_sample(ek_chooser *c, const ek_route_view *view);

/**
 * Choose an upstream for one request.
 * @param scores (n) >= 0; NaN and infinities count as 0
 * @param loads  (n) utilisations of this moment, NaN: not known; NULL: those of the last sample.
 *               Where the caller counts what is under way itself, they keep the requests of one
 *               period from going all the same way.
 * @param age_us of the last sample now
 * @param salt   anything that differs from request to request: it decides between equals
 * @return the choice; ties under `static` go to the lower id Cost O(n).
 */
ek_choice ek_route_choose(ek_chooser *c, const double *scores, const float *loads, int64_t age_us,
                          uint64_t salt);

/** How a request ended, for the next sample. A failure is what the upstream is to blame for. */
void ek_route_choose_report(ek_chooser *c, int32_t id, bool ok, int64_t latency_us);

/**
 * The same for a probe, besides the report: frees its place and, failed, ends the half-open time.
 */
void ek_route_choose_settle(ek_chooser *c, int32_t id, bool ok);

const ek_breaker *ek_route_chooser_breakers(const ek_chooser *c); /* (n) */
const ek_chooser_stats *ek_route_chooser_stats_of(const ek_chooser *c);

#endif
