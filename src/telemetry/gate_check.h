/*
 * A first look at gates, before requests depend on them: what they made of a short text, layer by
 * layer, and whether that is what a gate in order makes. It finds what is broken, not what is
 * uneven: that is for the detectors, once there is traffic. Pure.
 */
#ifndef EK_TELEMETRY_GATE_CHECK_H
#define EK_TELEMETRY_GATE_CHECK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"

typedef struct ek_gate_counts {
    int32_t n_layers, n_experts, top_k;
    int64_t n_tokens;      /* of the text; all layers saw that many */
    int64_t *early, *late; /* (n_layers, n_experts) token-slots of the text's two halves */
    double *weight;        /* (n_layers, n_experts) sum of what outputs are multiplied with */
    int64_t *n_not_finite; /* (n_layers) gate logits that were no numbers */
} ek_gate_counts;

/** Zeroed arrays for a model's sizes. @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_telemetry_gate_counts_make(int32_t n_layers, int32_t n_experts, int32_t top_k,
                                                ek_arena *perm, ek_gate_counts *out_counts);

/**
 * Are they sane? Not, if in some layer a gate logit is no number; one expert is visited by every
 * token, where each has many to choose from; it has nearly all of the weight; few experts get
 * nearly all (the reading `collapse`), or the same ones in both halves (`constant`). The limits
 * are those of the detectors. A text that is too short for a figure says nothing about it.
 * @return EK_OK; EK_ERANGE the first layer that is not, and err says which, what and how much
 */
EK_MUST ek_status ek_telemetry_gate_check(const ek_gate_counts *counts, ek_err *err);

#endif
