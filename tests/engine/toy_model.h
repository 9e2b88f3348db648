/*
 * A model that is a hash function, for tests of everything around the forward pass.
 *
 * toy_model.c defines the functions by which the engine opens models, cuts text and runs steps; a
 * test that is linked with it gets those instead of the real ones. What the toy "computes" for a
 * sequence is a hash of the token ids it finds in the sequence's KV blocks, where it wrote them
 * itself. So a block that is shared wrongly, lost or overwritten changes the answer, while a step
 * takes microseconds, or as long as a test wants it to.
 */
#ifndef EK_TESTS_ENGINE_TOY_MODEL_H
#define EK_TESTS_ENGINE_TOY_MODEL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

#define TOY_N_VOCAB   96
#define TOY_CONTEXT   4096
#define TOY_END       0 /* the end token */
#define TOY_CONTROL   1 /* a special token without text */
#define TOY_N_LAYERS  2
#define TOY_N_EXPERTS 4

/** How the toy behaves; shared with the step thread. */
typedef struct toy_knobs {
    _Atomic int64_t step_us;      /* each step takes at least this long */
    _Atomic int32_t fail_steps;   /* the next n steps fail */
    _Atomic int64_t n_steps;      /* so far, like those below */
    _Atomic int64_t n_positions;  /* computed */
    _Atomic int32_t n_tokens_max; /* of one step */
    _Atomic int32_t n_prompt_max; /* of one step: tokens of sequences with more than one */
} toy_knobs;

extern toy_knobs toy;

/** Logits (TOY_N_VOCAB) after these tokens. */
void toy_logits(const int32_t *tokens, int32_t n_tokens, float *out_logits);

/**
 * Text of one token, NUL-terminated: letters, halves of characters, empty for TOY_END and
 * TOY_CONTROL.
 */
const char *toy_piece(int32_t id);

/** The engine's parameters that most tests start from: 4 places, 8 waiting, 16 tokens per block. */
ek_engine_params toy_params(void);
/** Bytes of one KV block of such an engine. */
int64_t toy_block_bytes(const ek_engine_params *params);

/** Create an engine on the toy; fails the test when it cannot. Resets the knobs. */
ek_engine *toy_engine(const ek_engine_params *params, ek_metrics *metrics);

#endif
