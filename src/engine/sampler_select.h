/*
 * The arithmetic of a draw: logits -> weights, weights cut down to the likeliest few, one id
 * picked.
 *
 * A cut needs the border between kept and dropped, not an order: it is found by three counting
 * passes over the bits of the logits (a radix select that counts either tokens or their weight),
 * so that the cost is linear whatever the logits are. Ties at a border keep the lower ids. Logits
 * hold no NaN. Pure.
 */
#ifndef EK_ENGINE_SAMPLER_SELECT_H
#define EK_ENGINE_SAMPLER_SELECT_H

#include <stdint.h>

/**
 * The highest logit and, if asked for, its lowest id; -inf and id 0 when there is none above
 * -inf.
 */
float ek_engine_select_max(const float *logits, int32_t n, int32_t *out_id);

/**
 * weights[i] = exp((logits[i] - max) / temperature), in [0, 1]; the maximum's is exactly 1, even
 * if infinite.
 */
void ek_engine_select_weights(const float *logits, int32_t n, float max, float temperature,
                              float *out_weights);

/** Zero the weights of all but the `count` highest logits. */
void ek_engine_select_keep_count(const float *logits, int32_t n, int32_t count, float *weights);

/**
 * Zero the weights of all but the fewest highest logits that together have at least `share` of
 * the weight.
 */
void ek_engine_select_keep_share(const float *logits, int32_t n, float share, float *weights);

/** Zero the weights below `least`. */
void ek_engine_select_keep_above(int32_t n, float least, float *weights);

/** The id at the point `unit` in [0, 1) of the stacked weights; at least one is positive. */
int32_t ek_engine_select_pick(const float *weights, int32_t n, double unit);

#endif
