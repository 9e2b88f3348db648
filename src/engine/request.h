/*
 * One request inside the engine: what its user asked for, what has become of it, and its output
 * on the way out.
 *
 * Everything lives in one heap block (the request's arena), made by the thread that submits and
 * freed by whoever drops the last of two references, the user's handle and the engine's. Fields
 * are grouped by who may touch them.
 */
#ifndef EK_ENGINE_REQUEST_H
#define EK_ENGINE_REQUEST_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "engine/kv.h"
#include "engine/news.h"
#include "engine/outbox.h"
#include "engine/sampler.h"
#include "engine/text_stream.h"
#include "sys/thread.h"

#define EK_REQUEST_STOP_IDS_MAX 16

/** A thread that waits for the logits of a prompt; lives on its stack. */
typedef struct ek_logits_call {
    ek_sys_mutex mutex;
    ek_sys_cond cond;
    float *logits;    /* (n_vocab) borrowed; written by the step thread before done is set */
    ek_finish finish; /* under the mutex, like done */
    bool done;
} ek_logits_call;

struct ek_request {
    /* ---- step thread and user ---- */
    ek_outbox outbox;
    ek_news_item news; /* under the lock of the engine's news */
    _Atomic int32_t n_refs;
    _Atomic bool canceled;
    _Atomic int32_t n_cached;      /* prompt tokens found in the prefix cache */
    _Atomic int32_t n_completion;  /* tokens sampled and counted */
    _Atomic int64_t started_us;    /* first step; 0: not yet */
    _Atomic int64_t first_seen_us; /* first token; 0: not yet */
    _Atomic int64_t finished_us;   /* 0: not yet */

    /* ---- fixed by submit ---- */
    void *memory; /* owned: the block that all of this lies in */
    int64_t submitted_us;
    int64_t deadline_us; /* 0: none */
    int32_t n_prompt;
    int32_t max_tokens;
    ek_sampling sampling;
    const int32_t *stop_ids; /* (n_stop_ids) */
    int32_t n_stop_ids;
    bool ignore_eos;
    ek_logits_call *logits_call; /* borrowed until done is set; NULL: an ordinary request */

    /* ---- step thread only ---- */
    struct ek_request *prev, *next; /* in the waiting list or the list of the finished */
    int64_t order;                  /* of arrival */
    bool runs;                      /* holds a place in the batch */
    bool admitted;                  /* has had a place: its time in the queue is over */
    ek_finish outcome;              /* decided, perhaps not yet told to the user */
    int32_t *tokens;                /* (n_prompt + max_tokens) the prompt and what came after */
    int32_t n_tokens;
    int64_t last_token_us;
    ek_kv_seq kv;
    ek_sampler *sampler; /* NULL for a logits call, like the next */
    ek_text_stream *text;
    uint64_t *expert_seen;  /* bitmap of (layer, expert) it has met */
    _Atomic bool lost_rows; /* part of it was computed without an expert: not for reuse */
};

/** What the sizes of a request depend on besides its parameters. */
typedef struct ek_request_shape {
    int32_t n_vocab;
    int32_t n_layers;
    int32_t n_experts;
    int32_t kv_block_tokens;
    bool texts_begin_with_space; /* as the tokenizer spells them: fresh texts drop it */
} ek_request_shape;

/**
 * @param params checked: n_prompt + max_tokens fits into an int32_t, stops and stop ids keep
 *          their limits
 * @param call   NULL for an ordinary request
 * @return a request with two references; NULL when out of memory
 */
ek_request *ek_engine_request_create(const ek_request_shape *shape, const ek_request_params *params,
                                     ek_logits_call *call, int64_t now_us);

/** Drop one reference; the last one frees. */
void ek_engine_request_unref(ek_request *request);

/** What has been used until now_us, or until it finished. Any thread. */
void ek_engine_request_usage(const ek_request *request, int64_t now_us, ek_usage *out_usage);

bool ek_engine_request_canceled(const ek_request *request);

/**
 * When its time is up, INT64_MAX for never: its deadline, or before it had a place the queue's
 * limit.
 */
int64_t ek_engine_request_due(const ek_request *request, int64_t queue_timeout_us);

#endif
