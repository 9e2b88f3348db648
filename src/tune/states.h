/*
 * Recorded gate states: what the gates of a model saw while it read some texts, and the logits that
 * they gave, as a GSR1 container (docs/formats/states.md).
 *
 * `evenkeel calibrate record` writes them, the rest of this room learns from them. A recording is a
 * sample of tokens; of each token every layer is there. It names the model by its fingerprint. Like
 * a recording of routing it is read in place: opening checks every size and every number once and
 * takes no memory. The bytes are the caller's. Pure; any number of threads may read.
 */
#ifndef EK_TUNE_STATES_H
#define EK_TUNE_STATES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"

#define EK_STATES_LAYERS_MAX  1024
#define EK_STATES_EXPERTS_MAX 1024
#define EK_STATES_WIDTH_MAX   (1 << 20)
#define EK_STATES_TOKENS_MAX  (1 << 24)
#define EK_STATES_MODEL_CHARS 64 /* of a fingerprint, without a NUL */

typedef struct ek_states_shape {
    int32_t n_tokens; /* sampled */
    int32_t n_layers;
    int32_t n_experts;
    int32_t d_model;
    int32_t top_k;
    int32_t n_chunks; /* that the texts were cut into */
    int64_t n_seen;   /* tokens that the sample was drawn from */
} ek_states_shape;

typedef struct ek_states {
    ek_states_shape shape;
    char model[EK_STATES_MODEL_CHARS + 1]; /* fingerprint */
    const uint32_t *chunk;                 /* (n_tokens) which chunk a token is of; borrowed */
    const float *layers;                   /* (n_layers) of hidden and logits; borrowed */
} ek_states;

/** Bytes of a recording; 0: a number is outside its range, or there is no such amount of memory. */
size_t ek_tune_states_bytes(const ek_states_shape *shape);

/**
 * Write the head of a recording; the caller then fills in the arrays that the functions below give.
 * @param model fingerprint, EK_STATES_MODEL_CHARS characters
 * @param mem   (ek_tune_states_bytes(shape), which is not 0), 4-byte aligned
 */
void ek_tune_states_begin(const ek_states_shape *shape, const char *model, uint8_t *mem);
uint32_t *ek_tune_states_chunks(const ek_states_shape *shape, uint8_t *mem); /* (n_tokens) */
float *ek_tune_states_hidden_of(const ek_states_shape *shape, int32_t layer, uint8_t *mem);
float *ek_tune_states_logits_of(const ek_states_shape *shape, int32_t layer, uint8_t *mem);

/**
 * @param bytes  a whole file, 4-byte aligned; borrowed as long as out_states is used
 * @param origin shown in errors ("mixed.states")
 * @return EK_OK; EK_ETRUNCATED the bytes end too early; EK_EFORMAT anything else that is wrong; the
 *         text names the place
 * Cost: one look at every number.
 */
EK_MUST ek_status ek_tune_states_open(ek_span bytes, const char *origin, ek_states *out_states,
                                      ek_err *err);

/** (n_tokens, d_model) what the layer's gate multiplied. */
const float *ek_tune_states_hidden(const ek_states *states, int32_t layer);
/** (n_tokens, n_experts) what the model's own gate made of it. */
const float *ek_tune_states_logits(const ek_states *states, int32_t layer);

/**
 * Is a token kept back to judge by? Chunks are, as a whole, so that no judged token stands in a
 * text that was learned from.
 */
static inline bool ek_tune_held_out(uint32_t chunk)
{
    return chunk % 5 == 4;
}

#endif
