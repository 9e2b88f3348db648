/*
 * The forward pass of one step: a batch of tokens from any number of sequences, prefill and decode
 * mixed.
 *
 * For every token: embedding; per layer: norm, attention over the paged cache, gate logits -> route
 * plan -> dispatch -> combine (+ shared expert); final norm; and logits for the rows asked for.
 * Where the dispatcher has it so, a step goes through its layers in two halves, of which one is
 * with the experts while the other attends (engine/microbatch.h).
 *
 * A token's result depends on its own sequence only, never on who shares the batch, how a prompt
 * was cut into chunks, or how many threads compute. One owner: the engine thread; compute is spread
 * over the pool. Nothing here allocates or locks after creation.
 */
#ifndef EK_ENGINE_FORWARD_H
#define EK_ENGINE_FORWARD_H

#include <stdint.h>

#include "base/err.h"
#include "engine/kv.h"
#include "expert/dispatch.h"
#include "keel/keel.h"
#include "kernels/kernels.h"
#include "model/desc.h"
#include "route/route.h"
#include "sys/pool.h"
#include "telemetry/experts.h"
#include "trace/replay.h"

typedef struct ek_forward ek_forward;

/** One sequence's part of a batch: n_tokens consecutive positions starting at kv->n_tokens. */
typedef struct ek_batch_seq {
    ek_kv_seq *kv; /* room for the new positions is reserved; n_tokens is advanced by the run */
    const int32_t *tokens;  /* (n_tokens) ids */
    int32_t n_tokens;       /* >= 1 */
    bool wants_logits;      /* of its last token */
    bool wants_every_logit; /* of all of its tokens, in their order */
    /* Bitmap (n_layers * n_experts) of the request, or NULL: which experts it has met. */
    uint64_t *expert_seen;
    uint64_t replay_key; /* of the request, where a replay stands in for the gate */
} ek_batch_seq;

typedef struct ek_batch {
    const ek_batch_seq *seqs;
    int32_t n_seqs;
} ek_batch;

typedef struct ek_forward_params {
    const ek_model *model; /* all borrowed until destroy */
    const ek_kernels *kernels;
    ek_sys_pool *pool;
    ek_kv *kv;
    ek_router *router;
    ek_dispatcher *dispatcher;
    ek_keel *keel;                 /* NULL: one device, and nothing is known of loads */
    const ek_route_view *view;     /* without a keel: loads of a run, as they are when it begins;
                                  NULL: not known */
    ek_expert_stats *stats;        /* NULL: not counted */
    const ek_trace_replay *replay; /* in the place of the model's gate; NULL: none */
    int32_t batch_tokens_max;      /* most tokens of one run */
    int32_t context_tokens;        /* highest position + 1 */
    int32_t logits_rows_max;       /* most rows of logits that are wanted in one run */
} ek_forward_params;

/** The model's gate in the words of the route room: what the router is created with. */
ek_route_gate ek_engine_gate_of(const ek_model_params *params);

/** @return EK_OK; EK_ENOMEM; EK_EINVAL a limit is out of range, or kv was made for another model */
EK_MUST ek_status ek_engine_forward_create(const ek_forward_params *params,
                                           ek_forward **out_forward, ek_err *err);
/** Accepts NULL. */
void ek_engine_forward_destroy(ek_forward *forward);

/** Between runs: the model's tensors say something else (expert/pack.h), look again. */
void ek_engine_forward_refresh(ek_forward *forward);

/**
 * Bytes that create will reserve (activations, step arena) and a full batch will touch, for the
 * memory check before loading. Needs model, kernels, pool, dispatcher and the limits (kv, router
 * and stats may be NULL); no weights are read.
 */
int64_t ek_engine_forward_bytes(const ek_forward_params *params);

/**
 * Run one step.
 * @param out_logits (rows wanted, n_vocab) f32 in the order of seqs; may be NULL when nobody wants
 *   any
 * @return EK_OK; EK_EPEER (or what else the dispatcher failed with): no KV position was advanced
 *   and the same batch can be run again; EK_EINVAL the batch exceeds its limits or has an id
 *   outside the vocabulary: nothing was computed
 */
EK_MUST ek_status ek_engine_forward_run(ek_forward *forward, const ek_batch *batch,
                                        float *out_logits);

/**
 * Watch each layer's route plan while runs go on (tests, traces); with two micro-batches there are
 * two of a layer.
 */
typedef struct ek_forward_probe {
    void *ctx;
    void (*on_plan)(void *ctx, int32_t layer, const ek_route_plan *plan);
    /* Before the plan is made: (n_tokens, n_experts) logits, borrowed for the call. May be NULL. */
    void (*on_gate)(void *ctx, int32_t layer, const float *logits, int32_t n_tokens);
} ek_forward_probe;

/** @param probe copied; NULL: none */
void ek_engine_forward_set_probe(ek_forward *forward, const ek_forward_probe *probe);

/** Nanoseconds since creation: in route planning, and in runs altogether (plan / total <= 1 %). */
void ek_engine_forward_times(const ek_forward *forward, int64_t *out_plan_ns,
                             int64_t *out_total_ns);

#endif
