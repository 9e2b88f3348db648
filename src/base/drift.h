/*
 * Drift: how far two windows of counts are apart, and how far chance alone would put them. Defined
 * here once for whoever decides or reports by it. Pure.
 */
#ifndef EK_BASE_DRIFT_H
#define EK_BASE_DRIFT_H

#include <stdint.h>

/**
 * Total variation distance of the shares: the part of one window's tokens that would have to change
 * experts to make it look like the other; 0 the same, 1 nothing in common.
 * @param a, b (n) counts >= 0 whose sums fit; 0 where one of the windows is empty: nothing is known
 */
double ek_drift(const int64_t *a, const int64_t *b, int32_t n);

/**
 * What ek_drift of two windows of these sizes comes to on average when both were drawn from their
 * common distribution, one token-slot at a time: half of sum sqrt(2/pi p (1-p) (1/A + 1/B)), the
 * mean of a normal distribution's absolute value. Tokens of one text resemble each other, so what
 * real windows of the same traffic show is somewhat higher.
 */
double ek_drift_noise(const int64_t *a, const int64_t *b, int32_t n);

#endif
