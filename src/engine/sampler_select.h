/*
 * The arithmetic of a draw: logits -> weights, weights cut down to the likeliest few, one picked.
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
 * weights[i] = exp((logits[i] - max) / temperature) to 2e-7 of it, in [0, 1]; the maximum's is
 * exactly 1, even if infinite. Below 1e-37 they are 0. @param temperature > 0
 */
void ek_engine_select_weights(const float *logits, int32_t n, float max, float temperature,
                              float *out_weights);

double ek_engine_select_sum(const float *weights, int32_t n);

/** Zero the weights of all but the `count` highest logits. */
void ek_engine_select_keep_count(const float *logits, int32_t n, int32_t count, float *weights);

/** Zero the weights of all but the fewest highest logits that together weigh at least `amount`. */
void ek_engine_select_keep_amount(const float *logits, int32_t n, double amount, float *weights);

/** Zero the weights below `least`. */
void ek_engine_select_keep_above(int32_t n, float least, float *weights);

/** The position at the point `unit` in [0, 1) of the stacked weights; at least one is positive. */
int32_t ek_engine_select_pick(const float *weights, int32_t n, double unit);

#endif
