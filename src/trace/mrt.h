/*
 * Recorded routing: which experts each token of some sequences was given, in every MoE layer, as an
 * MRT1 container (docs/formats/mrt.md).
 *
 * A recording is read in place: opening checks every size and every id once, and takes no memory;
 * after that no access can fail. The bytes are the caller's and have to stay as long as the
 * recording is used. Pure; any number of threads may read.
 */
#ifndef EK_TRACE_MRT_H
#define EK_TRACE_MRT_H

#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"
#include "base/status.h"

#define EK_MRT_EXPERTS_MAX 256     /* an id is one byte */
#define EK_MRT_WEIGHT_UNIT 10000.0 /* a stored weight of this is 1 */

typedef struct ek_mrt {
    int32_t n_tokens; /* of all sequences, one after the other */
    int32_t n_sequences;
    int32_t n_layers; /* MoE layers recorded */
    int32_t n_experts;
    int32_t top_k;
    int32_t first_layer;    /* number in the model of the recording's layer 0 */
    const uint8_t *seq_len; /* borrowed; (n_sequences) u32 */
    const uint8_t *expert;  /* borrowed; (n_tokens, n_layers, top_k) u8 */
    const uint8_t *weight;  /* borrowed; (n_tokens, n_layers, top_k) u16; NULL: not recorded */
} ek_mrt;

/**
 * @param bytes  a whole file; borrowed as long as out_mrt is used
 * @param origin shown in errors ("law.mrt")
 * @return EK_OK; EK_ETRUNCATED the bytes end too early; EK_EFORMAT anything else that is wrong; the
 *         text names the offset
 * Cost: one look at every id.
 */
EK_MUST ek_status ek_trace_mrt_open(ek_span bytes, const char *origin, ek_mrt *out_mrt,
                                    ek_err *err);

/** Tokens of a sequence. */
int32_t ek_trace_mrt_length(const ek_mrt *mrt, int32_t sequence);

/** The experts of a token in a layer: (top_k) ids, all different, in the order of the recording. */
static inline const uint8_t *ek_trace_mrt_experts(const ek_mrt *mrt, int32_t token, int32_t layer)
{
    return mrt->expert + ((int64_t)token * mrt->n_layers + layer) * mrt->top_k;
}

/** Weight of a token's choice; 0 where the recording has none. */
double ek_trace_mrt_weight(const ek_mrt *mrt, int32_t token, int32_t layer, int32_t choice);

/**
 * Add the token-slots of tokens beg .. end - 1 to what stands in counts.
 * @param counts (n_layers, n_experts)
 */
void ek_trace_mrt_count(const ek_mrt *mrt, int32_t beg, int32_t end, int64_t *counts);

#endif
