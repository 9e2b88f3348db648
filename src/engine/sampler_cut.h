/*
 * Which tokens a draw may give, and with what weight: temperature -> top_k -> top_p -> min_p.
 *
 * A vocabulary has a hundred thousand tokens and a cut leaves a handful, so those that certainly
 * fall are left out first, by a bound that costs one pass; the exact cut works on the few that
 * remain. Pure.
 */
#ifndef EK_ENGINE_SAMPLER_CUT_H
#define EK_ENGINE_SAMPLER_CUT_H

#include <stdint.h>

#include "base/arena.h"
#include "engine/sampler.h"

typedef struct ek_candidates {
    int32_t n;
    const int32_t *id;   /* (n) ascending; NULL: candidate i is token i */
    const float *weight; /* (n) in [0, 1], 0: cut away; at least one is positive */
} ek_candidates;

/**
 * @param logits  (n) no NaN
 * @param max     their maximum, above -inf
 * @param sampling temperature > 0
 * @param scratch what the result lives in, at least n * 16 bytes + 4 alignments
 */
void ek_engine_sampler_cut(const float *logits, int32_t n, float max, const ek_sampling *sampling,
                           ek_arena *scratch, ek_candidates *out_candidates);

/** A row of n floats in scratch, not zeroed. */
float *ek_engine_sampler_row(ek_arena *scratch, int32_t n);

#endif
