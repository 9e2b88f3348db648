/*
 * What a lab's run comes to: percentiles, balance over workers, and when which link of the
 * incident's chain was there. Pure.
 */
#ifndef EK_LAB_FIGURES_H
#define EK_LAB_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "lab/schedule.h"
#include "lab/spread.h"

#define EK_LAB_OVERLOAD 0.85 /* utilisation of a worker that is called overloaded */

/** One answer. */
typedef struct ek_lab_answer {
    double due_s, first_s, end_s; /* since the start; first_s < 0: no text came */
    int32_t n_output;             /* tokens */
    ek_lab_phase phase;
    bool ok;
} ek_lab_answer;

/** What the server said at one moment. Counters count since its start. */
typedef struct ek_lab_sample {
    double at_s;                       /* since the run's start */
    double busy_s[EK_LAB_WORKERS_MAX]; /* of each worker, so far */
    double plan_s, forward_s;          /* spent so far */
    double tokens, loss_sum;           /* planned (in a layer each), and the score they gave up */
    double rerouted, deferred, degraded;
    double waiting;   /* requests that are there and do not run */
    double hottest;   /* of all layers' experts: load over mean in the last seconds */
    double tripped;   /* breakers that are not closed */
    bool alert;       /* one of the kind `overload` is raised */
    bool alert_other; /* one of another kind */
} ek_lab_sample;

/** Of one phase. */
typedef struct ek_lab_figures {
    double qps;            /* answers that were complete within it, per second */
    double p50_ms, p99_ms; /* from due to complete, of the requests that were due in it */
    double ttft_p50_ms, ttft_p99_ms;
    double token_p50_ms, token_p99_ms;       /* mean time from token to token of an answer */
    double max_over_mean, cv;                /* of the workers' busy times */
    double utilisation, hottest_utilisation; /* mean of workers, and the busiest's */
    double router_share;                     /* planning over steps */
    double score_loss;                       /* mean share of gate score given up */
    double rerouted, deferred, degraded;
    int32_t n_ok, n_failed;
} ek_lab_figures;

/** When what happened, in seconds since the start; -1: it did not. */
typedef struct ek_lab_chain {
    double hot_expert_s; /* an expert is hotter than any was in the mixed phase */
    double overload_s;   /* a worker passes EK_LAB_OVERLOAD */
    double late_s;       /* requests of a second take more than twice the mixed phase's P99 */
    double alert_s;      /* the server says so */
    double breaker_s;    /* a breaker opens or derates */
    double recovery_s;   /* latency is what it was in the mixed phase, and stays so */
    double overloaded_s; /* how long a worker was overloaded in all */
} ek_lab_chain;

/**
 * Nearest rank: the smallest value that a share q of all is not above. Sorts the values.
 * @return 0 when there are none
 */
double ek_lab_quantile(double *values, int64_t n, double q);

/**
 * Where a rising curve turns steep: the point that is farthest below the straight line from the
 * first to the last, both axes scaled to 0..1.
 * Source: Satopaa et al., "Finding a 'Kneedle' in a Haystack", ICDCSW 2011, section III; differs:
 * points are taken as measured, without smoothing.
 * @param x (n) ascending
 * @param y (n)
 * @return index; -1: fewer than three points, or nothing lies below the line
 */
int32_t ek_lab_knee(const double *x, const double *y, int32_t n);

/**
 * Up to which rate latency stays within a limit: between two points the curve is a straight line.
 * @param rate       (n) ascending, n >= 1
 * @param ms         (n) latency at each of them
 * @param out_passed whether a point is above the limit; if not, the rate may be higher
 * @return 0: the first point is above it
 */
double ek_lab_rate_at(const double *rate, const double *ms, int32_t n, double limit_ms,
                      bool *out_passed);

/** max/mean and population cv. Both 0 when nothing was busy. */
void ek_lab_balance(const double *busy, int32_t n, double *out_max_over_mean, double *out_cv);

/**
 * Utilisation of a worker between two samples, in [0, 1].
 */
double ek_lab_utilisation(const ek_lab_sample *before, const ek_lab_sample *after, int32_t worker);

/** The last sample that is not after at_s; the first one when all are. */
const ek_lab_sample *ek_lab_sample_at(const ek_lab_sample *samples, int32_t n, double at_s);

/**
 * Figures of one phase.
 * @param samples (n_samples) ascending, at least one
 * @param scratch (n_answers)
 */
void ek_lab_figures_of(const ek_lab_plan *plan, ek_lab_phase phase, const ek_lab_answer *answers,
                       int32_t n_answers, const ek_lab_sample *samples, int32_t n_samples,
                       int32_t n_workers, double *scratch, ek_lab_figures *out_figures);

/**
 * Quantile of the latency, in ms, of the requests that were due in [beg_s, end_s).
 * @param scratch (n_answers)
 * @return -1 when there were none
 */
double ek_lab_latency_ms(const ek_lab_answer *answers, int32_t n_answers, double beg_s,
                         double end_s, double q, double *scratch);

/** The chain of one run. Arguments as above. */
void ek_lab_chain_of(const ek_lab_plan *plan, const ek_lab_answer *answers, int32_t n_answers,
                     const ek_lab_sample *samples, int32_t n_samples, int32_t n_workers,
                     double *scratch, ek_lab_chain *out_chain);

#endif
