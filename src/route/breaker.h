/*
 * A circuit breaker: one small state machine that guards whatever can be overloaded or fail: an
 * expert (load), a worker (health), an upstream service (errors, latency, load).
 *
 *     CLOSED -> DERATED -> OPEN -> HALF_OPEN -> CLOSED     DERATED -> CLOSED, HALF_OPEN -> OPEN
 *
 * It is fed one sample a period. Load, share of failures and latency become one number, the
 * *pressure*, on the scale of load: each of them equals trip_load exactly at its own limit, and the
 * worst counts. What decides is not a sample but the window: `window_need` of its samples have to
 * agree, so that a single one changes nothing. No state is left before the dwell time is over, and
 * a state once opened comes back only through the half-open ramp.
 *
 * What it says is a weight in [0, 1] for the guarded thing's score. It falls at once and rises no
 * faster than from trip_weight to 1 in the recovery time, wherever it comes from.
 *
 * Plain memory of the caller's; pure; one owner at a time.
 */
#ifndef EK_ROUTE_BREAKER_H
#define EK_ROUTE_BREAKER_H

#include <stdbool.h>
#include <stdint.h>

#include "route/params.h"

typedef enum ek_breaker_state {
    EK_BREAKER_CLOSED,    /* weight 1, or rising to it */
    EK_BREAKER_DERATED,   /* weight bent by the pressure */
    EK_BREAKER_OPEN,      /* weight 0: only where there is no alternative */
    EK_BREAKER_HALF_OPEN, /* weight rises; so many probes at once */
} ek_breaker_state;

/**
 * What happened in one period. Zero-initialise: what is not known stays 0 and is held against
 * nobody.
 */
typedef struct ek_breaker_sample {
    double load;        /* utilisation; NaN or negative: not known */
    int32_t n_ok;       /* units that succeeded ... */
    int32_t n_failed;   /* ... or failed in this period */
    int64_t latency_us; /* of those, as the caller prefers: tail or mean */
} ek_breaker_sample;

/** Read by anybody, written by the functions below only. */
typedef struct ek_breaker {
    ek_breaker_state state;
    float weight;
    float recent[EK_BREAKER_WINDOW_MAX]; /* pressures, a ring */
    int32_t newest;                      /* index into it */
    int32_t n_quiet;    /* samples below recover_load in a row, counted up to the window */
    int32_t n_probes;   /* outstanding */
    int32_t n_opened;   /* since init */
    bool probe_failed;  /* of the current half-open time */
    int64_t since_us;   /* when the state was entered */
    int64_t stepped_us; /* when the last sample came */
    int64_t closed_us;  /* when it last closed after having been open */
    int64_t open_us;    /* how long it stays open this time, or did the last time */
} ek_breaker;

/** Closed, with an empty window. The first change needs no dwell. */
void ek_route_breaker_init(ek_breaker *b);

/**
 * Take one sample. At most one change of state.
 * @param now_us monotonic; a time before the last one is taken for the last one
 * Cost: a few ns while all is quiet, some 100 ns else.
 * @return the state from now on
 */
ek_breaker_state ek_route_breaker_step(ek_breaker *b, const ek_breaker_params *params,
                                       const ek_breaker_sample *sample, int64_t now_us);

/**
 * Open at once: the guarded thing is known to be gone. The one change that asks neither window nor
 * dwell; on an open one the open time begins anew.
 */
void ek_route_breaker_trip(ek_breaker *b, const ek_breaker_params *params, int64_t now_us);

/**
 * Ask for n units to be sent.
 * @return how many may: all while closed or derated, none while open; while half open what is left
 *         of the probes, and those have to be settled
 */
int32_t ek_route_breaker_admit(ek_breaker *b, const ek_breaker_params *params, int32_t n);

/**
 * Probes came to their end. A failed one makes the half-open time end in OPEN as soon as the dwell
 * allows, and no further probe is given until then.
 */
void ek_route_breaker_settle(ek_breaker *b, int32_t n_ok, int32_t n_failed);

/**
 * The weight that a load asks for where it is derated: derate_weight at derate_load and below,
 * falling linearly to trip_weight at trip_load and beyond.
 */
double ek_route_breaker_derated_weight(const ek_breaker_params *params, double load);

/** "closed", "derated", "open", "half-open". */
const char *ek_route_breaker_state_name(ek_breaker_state state);

#endif
