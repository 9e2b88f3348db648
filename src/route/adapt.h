/*
 * The controller of `adaptive`: how strongly load bends scores, found by trying and looking at what
 * it does to the tail of service times.
 *
 * Load bends scores by a discount (route/policy.h) whose threshold and slope hang on one number,
 * the *gain* in [0, 1]: at 1/2 it begins where the configured breaker would recover and comes down
 * to the breaker's weight where that would derate; towards 0 it vanishes, which is `static`;
 * towards 1 it begins sooner and falls twice as fast. The breaker itself only guards against
 * failure and against several periods of waiting work: under load that is merely heavy, an expert
 * that is left out altogether pushes the next one over, and a discount that follows load without a
 * step does not. The bounds are constants in adapt.c.
 *
 * The gain changes by trials. The mean tail is measured at the gain in force, then at one a stride
 * away, then at the first again; only a trial that beats the mean of the two around it, by more
 * than their scatter explains, is kept: a load that rises or falls meanwhile, or mere chance, is
 * not taken for merit. A trial that goes badly is broken off at once; after one that was not kept
 * the next waits longer and goes the other way. Every second trial is of the gain 1/2, which is
 * returned to unless it is worse: who leaves it has to show again and again that it pays. When
 * nothing has been loaded for long, the gain is 1/2, too. Pure; deterministic.
 */
#ifndef EK_ROUTE_ADAPT_H
#define EK_ROUTE_ADAPT_H

#include <stdbool.h>
#include <stdint.h>

#include "route/params.h"

#define EK_ADAPT_GAIN_START 0.5

typedef enum ek_adapt_phase {
    EK_ADAPT_BEFORE, /* measuring at `kept` */
    EK_ADAPT_TRIAL,  /* measuring a stride away */
    EK_ADAPT_AFTER,  /* measuring at `kept` again */
} ek_adapt_phase;

/** Tails of one phase. */
typedef struct ek_adapt_tails {
    double sum, sum_squares; /* us, us^2 */
    int32_t n;
} ek_adapt_tails;

typedef struct ek_adapt {
    double gain;   /* in force */
    double kept;   /* that a trial is measured against */
    double trial;  /* gain of the last trial */
    double stride; /* from kept to the next trial, with its sign */
    ek_adapt_phase phase;
    ek_adapt_tails tails[3];  /* by phase, of the last trial */
    int32_t n_bad;            /* trial samples in a row that were far worse */
    int32_t n_idle;           /* samples in a row with nothing loaded */
    int32_t hold, hold_next;  /* further phases before the next trial; and after one that fails */
    int32_t n_trials, n_kept; /* since init */
} ek_adapt;

void ek_route_adapt_init(ek_adapt *adapt);

/**
 * Take one sample.
 * @param tail_us  measured tail of service times (P99 of the period); 0: not known
 * @param load_max of the most loaded expert; below the configured recover_load nothing is loaded
 * @return true when the gain moved, and ek_route_adapt_tune has a new answer
 */
bool ek_route_adapt_sample(ek_adapt *adapt, const ek_route_params *params, int64_t tail_us,
                           double load_max);

/** The configured params with thresholds, weight, alpha and beta as the gain has them. */
void ek_route_adapt_tune(double gain, const ek_route_params *params, ek_route_params *out_tuned);

#endif
