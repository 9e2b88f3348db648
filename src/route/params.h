/*
 * What a configuration may say about routing: the params struct, and the one table of its numbers.
 *
 * EK_ROUTE_PARAM_TABLE is the only place that knows a number's key, default, range and meaning. The
 * configuration's schema, the reference in docs/CONFIG.md, the check at creation and whoever
 * searches for better values all read it.
 */
#ifndef EK_ROUTE_PARAMS_H
#define EK_ROUTE_PARAMS_H

#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/status.h"

typedef enum ek_route_policy {
    EK_ROUTE_POLICY_STATIC,     /* the model's own choice */
    EK_ROUTE_POLICY_LEAST_LOAD, /* whoever has least to do */
    EK_ROUTE_POLICY_DISCOUNT,   /* scores fall with load */
    EK_ROUTE_POLICY_BREAKER,    /* thresholds with hysteresis, per expert */
    EK_ROUTE_POLICY_ADAPTIVE,   /* breaker and discount, tuned by the tail they lead to */
} ek_route_policy;

#define EK_ROUTE_N_POLICIES    5
#define EK_BREAKER_WINDOW_MAX  16
#define EK_ROUTE_DEFERRALS_MAX 8
#define EK_ROUTE_COALESCE_MAX  1024

/** Loads here are utilisations: 0 idle, 1 busy all the time, more when work waits. */
typedef struct ek_breaker_params {
    double derate_load;     /* from here on the weight is bent */
    double trip_load;       /* from here on nothing is sent */
    double recover_load;    /* below this it has calmed down */
    double derate_weight;   /* at derate_load, falling linearly ... */
    double trip_weight;     /* ... to this at trip_load; where the half-open ramp begins, too */
    double error_share;     /* failures over all that weigh as much as trip_load */
    int64_t latency_max_us; /* that weighs as much as trip_load; 0: latency is not looked at */
    int32_t window;         /* samples that are looked at together */
    int32_t window_need;    /* so many of them have to agree; more than half */
    int64_t dwell_us;       /* no state is left sooner */
    int64_t open_us;        /* how long it stays open the first time */
    int64_t open_max_us;    /* and at most */
    double open_growth;     /* factor from one opening to the next */
    int64_t recovery_us;    /* in which a weight rises from trip_weight to 1 */
    int32_t probes;         /* units outstanding at once while half open */
} ek_breaker_params;

typedef struct ek_route_params {
    ek_route_policy policy; /* default static */
    int32_t seed;           /* of the noise that decides ties; differs from front to front */
    int64_t sample_us;      /* how often load samples come */
    double penalty_min;     /* p_min: what a score is multiplied with at least */
    double load_max;        /* least-load: an expert at this load is full */
    double discount_alpha;
    double discount_beta;
    double discount_load;      /* L0 */
    double discount_smoothing; /* weight of a new sample */
    ek_breaker_params breaker;
    int32_t adaptive_samples; /* between two moves of the controller */
    double max_score_loss;    /* of one token */
    double mean_score_loss;   /* of a layer's tokens, running */
    double capacity_factor;   /* 0: no cap */
    int32_t defer_rounds;     /* further micro-batches that overflow may wait for */
    double coalesce;          /* score that a token may give up to it; 0: off */
    int32_t coalesce_tokens;  /* batches of at most so many */
    int32_t shadow_every;     /* one token of so many is compared with the static gate; 0: none */
} ek_route_params;

/* Who reads a parameter: the policies as bits, capacity, and coalescing. */
#define EK_ROUTE_READ_BY(policy)  (1u << (policy))
#define EK_ROUTE_READ_LEAST_LOAD  EK_ROUTE_READ_BY(EK_ROUTE_POLICY_LEAST_LOAD)
#define EK_ROUTE_READ_DISCOUNT    EK_ROUTE_READ_BY(EK_ROUTE_POLICY_DISCOUNT)
#define EK_ROUTE_READ_BREAKER     EK_ROUTE_READ_BY(EK_ROUTE_POLICY_BREAKER)
#define EK_ROUTE_READ_ADAPTIVE    EK_ROUTE_READ_BY(EK_ROUTE_POLICY_ADAPTIVE)
#define EK_ROUTE_READ_DISCOUNTING (EK_ROUTE_READ_DISCOUNT | EK_ROUTE_READ_ADAPTIVE)
#define EK_ROUTE_READ_BREAKING    (EK_ROUTE_READ_BREAKER | EK_ROUTE_READ_ADAPTIVE)
#define EK_ROUTE_READ_BENDING \
    (EK_ROUTE_READ_LEAST_LOAD | EK_ROUTE_READ_DISCOUNTING | EK_ROUTE_READ_BREAKING)
#define EK_ROUTE_READ_CAPACITY (1u << EK_ROUTE_N_POLICIES)
#define EK_ROUTE_READ_COALESCE (2u << EK_ROUTE_N_POLICIES)
#define EK_ROUTE_READ_SHADOWED (EK_ROUTE_READ_BENDING | EK_ROUTE_READ_COALESCE)
#define EK_ROUTE_READ_BUDGET   (EK_ROUTE_READ_SHADOWED | EK_ROUTE_READ_CAPACITY)
#define EK_ROUTE_READ_ALWAYS   UINT32_MAX

#define EK_ROUTE_MS INT64_C(1000)
#define EK_ROUTE_S  (1000 * EK_ROUTE_MS)

/*
 * ROW(key, field, default, the same as a file has it, min, max, word for 0, who reads it, help)
 * with ROW one of REAL (double), COUNT (int32_t) and TIME (int64_t, microseconds). What has a word
 * for 0 may be 0 besides its range.
 */
#define EK_ROUTE_PARAM_TABLE(REAL, COUNT, TIME)                                                    \
    COUNT(                                                                                         \
        seed, seed, 0, "0", 0, INT32_MAX, NULL, EK_ROUTE_READ_ALWAYS,                              \
        "Seed of the noise that decides between equals. Give each front its own, or all of them "  \
        "turn to the same alternative at the same time.")                                          \
    TIME(sample_period, sample_us, 100 * EK_ROUTE_MS, "100ms", 10 * EK_ROUTE_MS, 10 * EK_ROUTE_S,  \
         NULL, EK_ROUTE_READ_BENDING,                                                              \
         "How often loads are sampled. A view older than five periods is stale, and routing "      \
         "is `static` until a fresh one comes.")                                                   \
    REAL(penalty_min, penalty_min, 0.01, "0.01", 0.000001, 0.5, NULL, EK_ROUTE_READ_BENDING,       \
         "The least that a score is multiplied with, whatever the load.")                          \
    REAL(load_max, load_max, 0.85, "0.85", 0.05, 10, NULL, EK_ROUTE_READ_LEAST_LOAD,               \
         "`least-load`: an expert with this load is full, and taken only when all are.")           \
    REAL(discount_alpha, discount_alpha, 0.2, "0.2", 0.1, 0.3, NULL, EK_ROUTE_READ_DISCOUNT,       \
         "`discount`: what a score loses at once when the load passes `discount_load`.")           \
    REAL(discount_beta, discount_beta, 1, "1", 0.5, 2, NULL, EK_ROUTE_READ_DISCOUNT,               \
         "`discount`: how steeply it falls from there on.")                                        \
    REAL(discount_load, discount_load, 0.5, "0.5", 0.05, 2, NULL, EK_ROUTE_READ_DISCOUNT,          \
         "`discount`: load from which scores are discounted.")                                     \
    REAL(                                                                                          \
        discount_smoothing, discount_smoothing, 0.3, "0.3", 0.01, 1, NULL,                         \
        EK_ROUTE_READ_DISCOUNTING,                                                                 \
        "`discount`, `adaptive`: weight of a new sample in the smoothed load; 1 does not smooth.") \
    REAL(breaker_derate, breaker.derate_load, 0.7, "0.7", 0.05, 4, NULL, EK_ROUTE_READ_BREAKING,   \
         "Load from which an expert's weight is bent.")                                            \
    REAL(breaker_trip, breaker.trip_load, 0.85, "0.85", 0.05, 4, NULL, EK_ROUTE_READ_BREAKING,     \
         "Load from which an expert gets nothing while there is an alternative.")                  \
    REAL(breaker_recover, breaker.recover_load, 0.6, "0.6", 0.01, 4, NULL, EK_ROUTE_READ_BREAKING, \
         "Load below which it has calmed down; below `breaker_derate`, so that it does not flap.") \
    REAL(breaker_derate_weight, breaker.derate_weight, 0.5, "0.5", 0.01, 1, NULL,                  \
         EK_ROUTE_READ_BREAKING, "Weight at `breaker_derate`, falling linearly from there on.")    \
    REAL(breaker_trip_weight, breaker.trip_weight, 0.1, "0.1", 0.01, 1, NULL,                      \
         EK_ROUTE_READ_BREAKING, "Weight at `breaker_trip`, and where the way back begins.")       \
    REAL(breaker_error_share, breaker.error_share, 0.5, "0.5", 0.01, 1, NULL,                      \
         EK_ROUTE_READ_BREAKING,                                                                   \
         "Share of failures that weighs as much as the load `breaker_trip`.")                      \
    TIME(breaker_latency, breaker.latency_max_us, 0, "unlimited", 0, 600 * EK_ROUTE_S,             \
         "unlimited", EK_ROUTE_READ_BREAKING,                                                      \
         "Latency that weighs as much as the load `breaker_trip`.")                                \
    COUNT(breaker_window, breaker.window, 5, "5", 1, EK_BREAKER_WINDOW_MAX, NULL,                  \
          EK_ROUTE_READ_BREAKING, "Samples that a breaker looks at together.")                     \
    COUNT(                                                                                         \
        breaker_window_need, breaker.window_need, 3, "3", 1, EK_BREAKER_WINDOW_MAX, NULL,          \
        EK_ROUTE_READ_BREAKING,                                                                    \
        "So many of the window's samples have to agree before anything changes; more than half.")  \
    TIME(breaker_dwell, breaker.dwell_us, 500 * EK_ROUTE_MS, "500ms", 0, 60 * EK_ROUTE_S, NULL,    \
         EK_ROUTE_READ_BREAKING, "No breaker leaves a state sooner than this.")                    \
    TIME(breaker_open, breaker.open_us, 1 * EK_ROUTE_S, "1s", 0, 600 * EK_ROUTE_S, NULL,           \
         EK_ROUTE_READ_BREAKING, "How long a breaker stays open the first time.")                  \
    TIME(breaker_open_max, breaker.open_max_us, 30 * EK_ROUTE_S, "30s", 0, 3600 * EK_ROUTE_S,      \
         NULL, EK_ROUTE_READ_BREAKING, "How long it stays open at most.")                          \
    REAL(breaker_open_growth, breaker.open_growth, 2, "2", 1, 10, NULL, EK_ROUTE_READ_BREAKING,    \
         "By how much the time grows when it has to open again soon.")                             \
    TIME(breaker_recovery, breaker.recovery_us, 2 * EK_ROUTE_S, "2s", 0, 600 * EK_ROUTE_S, NULL,   \
         EK_ROUTE_READ_BREAKING,                                                                   \
         "Time in which a weight rises back from `breaker_trip_weight` to 1.")                     \
    COUNT(breaker_probes, breaker.probes, 64, "64", 1, 65536, NULL, EK_ROUTE_READ_BREAKING,        \
          "Tokens or requests that may be under way at once while a breaker is half open.")        \
    COUNT(adaptive_period, adaptive_samples, 20, "20", 2, 10000, NULL, EK_ROUTE_READ_ADAPTIVE,     \
          "`adaptive`: samples whose tail is averaged before thresholds move.")                    \
    REAL(max_score_loss, max_score_loss, 0.15, "0.15", 0, 1, NULL, EK_ROUTE_READ_BUDGET,           \
         "Share of its gate score that one token may give up for the sake of load or speed.")      \
    REAL(mean_score_loss, mean_score_loss, 0.02, "0.02", 0, 1, NULL, EK_ROUTE_READ_BUDGET,         \
         "The same as a running mean over a layer's tokens; above it the bound of single tokens "  \
         "narrows.")                                                                               \
    REAL(capacity_factor, capacity_factor, 0, "unlimited", 0.1, 1024, "unlimited",                 \
         EK_ROUTE_READ_ALWAYS,                                                                     \
         "A replica takes at most this times its even share of a batch; the rest goes to other "   \
         "replicas, the next best expert, the next micro-batch, or is left out and counted.")      \
    COUNT(defer_rounds, defer_rounds, 1, "1", 0, EK_ROUTE_DEFERRALS_MAX, NULL,                     \
          EK_ROUTE_READ_CAPACITY,                                                                  \
          "Micro-batches after the first that overflow may wait for before it is left out.")       \
    REAL(coalesce, coalesce, 0, "never", 0.0001, 1, "never", EK_ROUTE_READ_ALWAYS,                 \
         "Share of its gate score that a token of a small batch may give up, within the bounds "   \
         "above, so that the batch reads fewer experts' weights. Then the other requests of a "    \
         "batch can change an answer, under `static`, too.")                                       \
    COUNT(coalesce_tokens, coalesce_tokens, 64, "64", 2, EK_ROUTE_COALESCE_MAX, NULL,              \
          EK_ROUTE_READ_COALESCE,                                                                  \
          "Larger batches are not coalesced: they read nearly all experts anyway.")                \
    COUNT(shadow_every, shadow_every, 64, "64", 0, 1000000, "never", EK_ROUTE_READ_SHADOWED,       \
          "One token of so many is compared with the model's own choice, for the figures of "      \
          "quality.")

typedef enum ek_route_param_type {
    EK_ROUTE_PARAM_REAL,
    EK_ROUTE_PARAM_COUNT,
    EK_ROUTE_PARAM_TIME,
} ek_route_param_type;

/** A row of the table: what a policy search or another front end needs to know about a number. */
typedef struct ek_route_param {
    const char *name;
    ek_route_param_type type;
    size_t offset; /* of the field in ek_route_params */
    double value;  /* default */
    double min, max;
    const char *zero; /* word for 0, which is then allowed besides min..max; NULL: none */
    uint32_t read_by; /* EK_ROUTE_READ_* */
    const char *help;
} ek_route_param;

extern const ek_route_param ek_route_param_rows[];
extern const int32_t ek_route_n_params;

void ek_route_params_default(ek_route_params *out_params);

/** The field of a row as a number. */
double ek_route_param_get(const ek_route_param *row, const ek_route_params *params);
/** Set it, unchecked; counts and times are rounded. */
void ek_route_param_set(const ek_route_param *row, double value, ek_route_params *params);

/**
 * Are these params usable? Only what the policy and capacity read is looked at.
 * @return EK_OK; EK_EINVAL, the text names the key ("routing.breaker_trip is ...") and the remedy
 */
EK_MUST ek_status ek_route_params_check(const ek_route_params *params, ek_err *err);

#endif
