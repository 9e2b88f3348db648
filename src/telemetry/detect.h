/*
 * Detectors: readings that stay bad become alerts, with their evidence in numbers and the next
 * thing to do.
 *
 * Each window of counts and loads is read once per layer (telemetry/readings.h). A kind's reading
 * has to be at its `raise` limit or above for raise_windows windows in a row to become an alert,
 * and below its `clear` limit for clear_windows in a row to end it; between the two limits nothing
 * changes. A window in which too little happened to say anything is left out. So an alert neither
 * begins nor ends with one odd window.
 *
 * What to do is always said in the same order: routing rules first, then experts and their
 * replicas, more machines last. An alert that follows from another one of the same layer says so.
 *
 * Pure: no clock, no heap; one thread.
 */
#ifndef EK_TELEMETRY_DETECT_H
#define EK_TELEMETRY_DETECT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/status.h"
#include "telemetry/readings.h"

#define EK_ALERT_TEXT_MAX 320

/** In this order: what explains others comes before them. */
typedef enum ek_detect_kind {
    EK_DETECT_STALE_VIEW,    /* loads are too old to route by; of no layer */
    EK_DETECT_CONSTANT_GATE, /* the gate does not look at its input */
    EK_DETECT_COLLAPSE,      /* few experts get nearly all tokens */
    EK_DETECT_ZERO_HIT,      /* an expert gets nothing for long */
    EK_DETECT_OSCILLATION,   /* traffic goes to and fro between experts */
    EK_DETECT_IMBALANCE,     /* one expert gets far more than the mean */
    EK_DETECT_OVERLOAD,      /* one expert is busy nearly all the time */
    EK_DETECT_N_KINDS,
} ek_detect_kind;

typedef struct ek_detect_limit {
    double raise; /* a reading at or above this is bad */
    double clear; /* and one below this is good; at most `raise` */
    int32_t raise_windows;
    int32_t clear_windows;
} ek_detect_limit;

typedef struct ek_detect_params {
    ek_detect_limit limit[EK_DETECT_N_KINDS]; /* of the stale view: in sampling periods */
    int32_t n_windows;             /* looked at together for zero-hit and oscillation, 3..64 */
    int32_t tokens_per_expert_min; /* token-slots, on average, that make a window worth reading */
    int64_t sample_us;             /* the load view's period */
} ek_detect_params;

/** One window. Arrays are borrowed for the call. */
typedef struct ek_detect_window {
    int64_t end_us;
    const int64_t *tokens;    /* (n_layers, n_experts) token-slots */
    const float *utilisation; /* (n_layers, n_experts) smoothed; NULL: not known */
    int64_t view_age_us;      /* of the load view; -1: nobody routes by it */
} ek_detect_window;

typedef struct ek_alert {
    ek_detect_kind kind;
    bool is_raised;       /* false: it has just ended, and the rest is as it was last */
    int32_t layer;        /* -1: of no layer */
    int32_t expert;       /* -1: of none in particular */
    int64_t since_us;     /* end of the window with which it was raised */
    double value;         /* last reading */
    double limit;         /* the limit that was passed */
    int32_t explained_by; /* kind of another alert of this layer that brings this one with it; -1 */
    char evidence[EK_ALERT_TEXT_MAX];  /* "layer 3: expert 17 is busy 0.91 of the time ..." */
    char next_step[EK_ALERT_TEXT_MAX]; /* "routing: ... experts: ... scale-out: ..." */
} ek_alert;

typedef struct ek_detect ek_detect;

void ek_telemetry_detect_params_default(ek_detect_params *out_params);

/** "stale_view", "constant_gate", ...: for metric labels and logs. */
const char *ek_telemetry_detect_name(ek_detect_kind kind);

/** Arena bytes that create takes; 0 for numbers that it refuses. */
size_t ek_telemetry_detect_bytes(const ek_detect_params *params, int32_t n_layers,
                                 int32_t n_experts);

/**
 * @param top_k experts that a token visits, 1..min(n_experts, EK_READING_TOP_K_MAX)
 * @return EK_OK; EK_ERANGE a number outside its range, a limit's clear above its raise; EK_ENOMEM
 */
EK_MUST ek_status ek_telemetry_detect_create(const ek_detect_params *params, int32_t n_layers,
                                             int32_t n_experts, int32_t top_k, ek_arena *perm,
                                             ek_detect **out_detect);

/**
 * Read a window.
 * @param out_changes alerts that were raised or have ended, in the order of kinds, then layers
 * @param max         room there
 * @return how many there were; those beyond max are not written, but are in the detector's state
 * Cost O(n_layers * n_experts * n_windows).
 */
int32_t ek_telemetry_detect_step(ek_detect *detect, const ek_detect_window *window,
                                 ek_alert *out_changes, int32_t max);

/**
 * The alert of a kind and layer (any number for EK_DETECT_STALE_VIEW), with its last reading.
 * @return whether it is raised; out_alert is written only then
 */
bool ek_telemetry_detect_get(const ek_detect *detect, ek_detect_kind kind, int32_t layer,
                             ek_alert *out_alert);

/** How many alerts of a kind are raised. */
int32_t ek_telemetry_detect_count(const ek_detect *detect, ek_detect_kind kind);

#endif
