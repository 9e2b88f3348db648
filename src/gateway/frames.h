/*
 * The shapes of answers: chunks of an event stream, and the one object of a plain answer.
 *
 * A frame is one line: "data: ", JSON without raw line breaks, and an empty line. Each chunk of an
 * answer has the same id, created and model. Pure: state in, text out.
 */
#ifndef EK_GATEWAY_FRAMES_H
#define EK_GATEWAY_FRAMES_H

#include "gateway/generation.h"

/** What frames need besides the generation itself. */
typedef struct ek_frame_context {
    const ek_generation *generation;
    const ek_engine *engine; /* spells tokens; only used when logprobs were asked for */
    const char *model_id;
} ek_frame_context;

/**
 * First chunk of a choice: the role of a chat, the echoed prompt of a completion (if there is one).
 */
void ek_gateway_frame_begin(const ek_frame_context *context, const ek_choice *choice, ek_buf *out);

/**
 * A chunk with text and, when asked for, the log-probabilities of the tokens that are shown by now.
 */
void ek_gateway_frame_text(const ek_frame_context *context, ek_choice *choice, ek_str text,
                           ek_buf *out);

/**
 * A choice's last chunk: why it ended. @param last of all choices: timings go with it when asked
 * for
 */
void ek_gateway_frame_finish(const ek_frame_context *context, const ek_choice *choice, bool last,
                             ek_buf *out);

/** The chunk without choices that has the usage. */
void ek_gateway_frame_usage(const ek_frame_context *context, ek_buf *out);

void ek_gateway_frame_fault(const ek_fault *fault, ek_buf *out);
void ek_gateway_frame_done(ek_buf *out);
void ek_gateway_frame_ping(ek_buf *out);

/** The whole answer of a request that did not ask for a stream. */
void ek_gateway_answer_json(const ek_frame_context *context, ek_generation *generation,
                            ek_buf *out);

#endif
