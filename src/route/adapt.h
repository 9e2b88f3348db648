/*
 * The controller of `adaptive`: how strongly load bends scores, found by looking at what it does to
 * the tail of service times.
 *
 * All thresholds hang on one number, the *gain* in [0, 1]: at 1/2 they are the configured breaker's
 * and nothing is discounted; towards 0 the breaker's thresholds move up to where they act on
 * saturation only, which is nearly `static`; towards 1 they move down and the discount's alpha and
 * beta grow from nothing to their upper bounds. The bounds are rows of a table in adapt.c.
 *
 * The gain climbs: after every `adaptive_samples` samples the mean tail is compared with the one
 * before. Better: on in the same direction, faster. Worse: back, slower. The same: slowly to the
 * milder side, because bending scores costs quality. While nothing is loaded nothing can be learnt,
 * and the gain stays. Pure; deterministic.
 */
#ifndef EK_ROUTE_ADAPT_H
#define EK_ROUTE_ADAPT_H

#include <stdbool.h>
#include <stdint.h>

#include "route/params.h"

#define EK_ADAPT_GAIN_START 0.5 /* the configured breaker */

typedef struct ek_adapt {
    double gain;
    double stride;    /* what the next move adds, with its sign */
    double tail_sum;  /* of the samples since the last move */
    double tail_last; /* mean before it; 0: none yet */
    int32_t n_samples;
    int32_t n_moves; /* since init */
} ek_adapt;

void ek_adapt_init(ek_adapt *adapt);

/**
 * Take one sample.
 * @param tail_us  measured tail of service times (P99 of the period); 0: not known
 * @param load_max of the most loaded expert; below the configured recover_load the sample is not used
 * @return true when the gain moved, and ek_adapt_tune has a new answer
 */
bool ek_adapt_sample(ek_adapt *adapt, const ek_route_params *params, int64_t tail_us,
                     double load_max);

/** The configured params with thresholds, alpha and beta as the gain has them. */
void ek_adapt_tune(double gain, const ek_route_params *params, ek_route_params *out_tuned);

#endif
