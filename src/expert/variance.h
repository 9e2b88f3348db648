/*
 * How much the outputs of each expert of a layer differ from token to token. An expert whose output
 * hardly varies adds a constant whatever comes in: dead weight that counts of tokens do not show.
 */
#ifndef EK_EXPERT_VARIANCE_H
#define EK_EXPERT_VARIANCE_H

#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/status.h"
#include "kernels/kernels.h"
#include "model/desc.h"

#define EK_VARIANCE_ROWS_MAX 64 /* tokens of an expert that are computed, at most */

/** Scratch that the function below takes at most. */
size_t ek_expert_variance_bytes(const ek_model *model);

/**
 * For each expert the variance over its first EK_VARIANCE_ROWS_MAX tokens of its output, averaged
 * over columns; -1 for one that has fewer than two tokens.
 * @param model      its matrices are not packed
 * @param hidden     (n_tokens, d) normalised activations, f32
 * @param expert_id  (n_tokens, top_k) experts of each token; below 0: none
 * @param scratch    at least ek_expert_variance_bytes
 * @param out        (n_experts)
 * Pure; one thread. Cost: the experts' networks over those tokens.
 * @return EK_OK; EK_ENOMEM scratch is too small
 */
EK_MUST ek_status ek_expert_variance(const ek_model *model, const ek_kernels *kernels,
                                     int32_t layer, const float *hidden, int32_t n_tokens,
                                     const int32_t *expert_id, ek_arena scratch, double *out);

#endif
