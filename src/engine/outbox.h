/*
 * One request's output on its way from the step thread to its reader: two rings of fixed size,
 * one of text and one of token records, without a lock.
 *
 * The step thread puts, the reader takes; each owns its own counters and publishes them by a
 * release store that the other side's acquire load meets. A token and its text become visible
 * together, with the token's count; text after the last token becomes visible with the finish.
 *
 * When a ring is nearly full the outbox is paused: the step thread leaves the request out until
 * the reader has emptied half of it. Both sides touch `paused` with sequentially consistent
 * operations, so that either the step thread sees the room or the reader sees that it has to wake
 * the step thread.
 */
#ifndef EK_ENGINE_OUTBOX_H
#define EK_ENGINE_OUTBOX_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "engine/engine.h"

#define EK_OUTBOX_TEXT_BYTES 16384 /* power of two */
#define EK_OUTBOX_TOKENS     64    /* power of two */

typedef struct ek_outbox_token {
    uint64_t text_end; /* bytes of the whole text that are out after it */
    int32_t id;
    int32_t n_top;
    float logprob;
} ek_outbox_token;

typedef struct ek_outbox {
    char *text;             /* (EK_OUTBOX_TEXT_BYTES) ring */
    ek_outbox_token *token; /* (EK_OUTBOX_TOKENS) ring */
    ek_token_logprob *top;  /* (EK_OUTBOX_TOKENS, n_top_max) */
    int32_t n_top_max;
    /* written by the step thread */
    EK_ALIGNED(EK_CACHE_LINE) _Atomic uint64_t n_put; /* tokens */
    uint64_t text_end;                                /* bytes put, visible or not */
    _Atomic int finish;                               /* ek_finish */
    _Atomic bool paused;
    /* written by the reader */
    EK_ALIGNED(EK_CACHE_LINE) _Atomic uint64_t n_taken; /* tokens */
    _Atomic uint64_t text_taken;                        /* bytes */
} ek_outbox;

size_t ek_engine_outbox_bytes(int32_t n_top_max);
void ek_engine_outbox_init(ek_outbox *outbox, ek_arena *perm, int32_t n_top_max);

/* ---- step thread ---- */

/**
 * True when there is no room for one more token and the last words; while paused, until half of
 * it is read.
 */
bool ek_engine_outbox_pauses(ek_outbox *outbox);

/** Add a token and the text it let out. Not while paused. @param n_text at most EK_TEXT_FEED_MAX */
void ek_engine_outbox_put(ek_outbox *outbox, const char *text, int32_t n_text,
                          const ek_sampled *sampled);

/**
 * Add text without a token; it becomes visible with the finish.
 * @param n_text at most EK_TEXT_FLUSH_MAX, all calls together
 */
void ek_engine_outbox_put_rest(ek_outbox *outbox, const char *text, int32_t n_text);

void ek_engine_outbox_finish(ek_outbox *outbox, ek_finish finish);

/* ---- reader ---- */

/**
 * Move what is there into out_output (all of it but usage).
 * @return true when the step thread waits for the room this made
 */
bool ek_engine_outbox_take(ek_outbox *outbox, ek_output *out_output);

#endif
