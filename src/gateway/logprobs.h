/*
 * Log-probabilities of one choice's tokens, held back together with their text.
 *
 * The engine reports a token when it is sampled, but its text may still be held back, and never
 * come, when a stop string begins in it. A token counts as shown once text at or behind it is out.
 * Tokens wait here until then; those that a stop string swallowed are forgotten. Guarded by the
 * call's lock.
 */
#ifndef EK_GATEWAY_LOGPROBS_H
#define EK_GATEWAY_LOGPROBS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "engine/engine.h"
#include "http/buf.h"

typedef struct ek_logprobs {
    ek_output_token *token; /* owned, (cap): oldest first */
    int32_t n;
    int32_t cap;
    int32_t n_shown; /* leading tokens whose text is out */
    int64_t n_chars; /* characters of the tokens that were already written and dropped */
} ek_logprobs;

void ek_gateway_logprobs_fini(ek_logprobs *logprobs);

/** Take in what a read brought. @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_gateway_logprobs_take(ek_logprobs *logprobs, const ek_output *output);

/**
 * The generation is over. @param swallowed it ended with a stop: what is not shown never will be
 */
void ek_gateway_logprobs_end(ek_logprobs *logprobs, bool swallowed);

/**
 * Write the shown tokens as a chat's "logprobs" object, or as a completion's (four parallel
 * arrays), and drop them.
 * @param engine spells the tokens
 */
void ek_gateway_logprobs_json(ek_logprobs *logprobs, const ek_engine *engine, bool chat,
                              ek_buf *out_json);

#endif
