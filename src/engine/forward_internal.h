/*
 * The forward pass's own state, shared by its parts: forward.c (memory, one run), forward_ends.c
 * (embedding, logits), forward_attn.c and forward_moe.c (the halves of a layer).
 *
 * Each part is a function that all threads of the pool execute together: phases in which units of
 * work are taken by ticket, with a barrier where a phase reads what another thread wrote in the one
 * before. What a unit computes does not depend on who takes it.
 *
 * Layers work on `rows`: all of the batch, or one of two micro-batches (microbatch.h).
 */
#ifndef EK_ENGINE_FORWARD_INTERNAL_H
#define EK_ENGINE_FORWARD_INTERNAL_H

#include "engine/forward.h"
#include "engine/microbatch.h"
#include "expert/ffn.h"
#include "sys/mem.h"

/** Query tokens that attend together: they read the same keys while those are in the cache. */
#define EK_ATTEND_TOKENS 32

/**
 * One layer's weights as the kernels take them; vectors are f32 copies, NULL where there is none.
 */
typedef struct ek_forward_layer {
    const float *attn_norm;
    const float *ffn_norm;
    const float *q_bias, *k_bias, *v_bias;
    const float *q_norm, *k_norm;
    const float *gate_bias;
    ek_mat q, k, v, out;
    ek_mat gate;        /* (n_experts rows, d) */
    ek_mat shared_gate; /* (1 row, d); data NULL: ungated */
    ek_ffn shared;      /* only where shared_ff > 0 */
} ek_forward_layer;

/** Query tokens [token_beg, token_end) of one sequence that attend as one unit. */
typedef struct ek_attend_unit {
    int32_t seq_idx;
    int32_t token_beg; /* into the batch's tokens */
    int32_t token_end;
} ek_attend_unit;

/** The rows that go through a layer together: those of a micro-batch. */
typedef struct ek_forward_rows {
    int32_t token_beg, token_end; /* of the batch */
    int32_t unit_beg, unit_end;   /* attention units */
} ek_forward_rows;

/**
 * A micro-batch and, from its layer's dispatch to its combine, what the dispatcher has borrowed.
 * With two of them one is with the dispatcher while the other is computed here.
 */
typedef struct ek_forward_micro {
    ek_forward_rows rows;
    int32_t layer_idx;
    bool is_out; /* dispatched, and not combined yet */
    ek_route_plan plan;
    ek_expert_work work;
    ek_act x;
    ek_arena scratch;   /* of the rounds: what dispatch took is free again after combine */
    uint8_t *step;      /* (step_bytes) plan and experts */
    int64_t handing_ns; /* what dispatch took of this thread */
} ek_forward_micro;

/** What one thread writes to while it attends or computes a hidden tile. */
typedef struct ek_forward_thread {
    const float **q; /* (queries of a unit) */
    float **out;
    float *lse;
    int32_t *n_pos;
    const uint16_t **k_blocks; /* (blocks of the context) */
    const uint16_t **v_blocks;
    float *attend_scratch;
    float *ffn_scratch;
} ek_forward_thread;

/** One ticket for each phase of the longest sequence of phases. */
#define EK_FORWARD_TICKETS 7

struct ek_forward {
    ek_forward_params params;
    const ek_model_params *model; /* of params.model */
    int32_t n_threads;
    int32_t group_heads; /* query heads of one KV head */
    int32_t unit_heads;  /* KV heads of one attention unit: whole EK_ACT_BLOCKs of its output */
    float attend_scale;
    bool x_int8; /* some matrix that reads normalised activations wants them as int8 */
    bool attended_int8;
    bool hidden_int8;

    ek_forward_layer *layers; /* (n_layers) */
    const float *output_norm;
    ek_mat output;
    double *rope_freq; /* (n_rot / 2) radians per position */

    /* The batch that is being run. */
    const ek_batch *batch;
    int32_t n_tokens;
    int32_t *token_id;  /* (batch_tokens_max) */
    int32_t *token_seq; /* sequence of the batch */
    int32_t *token_pos; /* position in it */
    ek_attend_unit *units;
    int32_t *logits_token; /* (logits_rows_max) token whose logits are wanted */
    int32_t n_logits;
    float *logits;             /* borrowed for the run */
    const ek_route_view *view; /* loads as they were when the run began; NULL: not known */

    /* What is being computed: rows of the batch, in a layer. */
    int32_t layer_idx;
    ek_forward_rows rows;
    ek_forward_micro micro[EK_MICRO_BATCHES_MAX];
    int32_t n_micro;
    int64_t service_ns; /* of the layer, by its first micro-batch */
    ek_microbatch_rule microbatch_rule;

    /* Activations, all (batch_tokens_max, ..). */
    float *x;                 /* (.., d) the residual stream */
    ek_act_buf normed;        /* (.., d) */
    float *delta;             /* (.., d) what a half layer adds to x */
    float *rope_cos;          /* (.., n_rot / 2) */
    float *rope_sin;          /* (.., n_rot / 2) */
    float *q;                 /* (.., n_heads, head_dim_k) */
    float *k;                 /* (.., n_kv_heads, head_dim_k) */
    float *v;                 /* (.., n_kv_heads, head_dim_v) */
    ek_act_buf attended;      /* (.., n_heads * head_dim_v) */
    float *gate_logits;       /* (.., n_experts) */
    float *shared_logit;      /* (..) */
    ek_act_buf shared_hidden; /* (.., shared_ff) */
    size_t step_bytes; /* of each micro-batch; with one it shares memory with q .. attended */

    ek_forward_thread *threads; /* (n_threads) */
    ek_sys_ticket tickets[EK_FORWARD_TICKETS];
    ek_forward_probe probe;
    int64_t plan_ns;
    int64_t total_ns;
    ek_sys_region region; /* owned; this struct lies in it */
};

/** Run `phases` on all threads, all tickets at 0. */
void ek_engine_forward_phases(ek_forward *f, void (*phases)(void *ctx, int32_t thread_idx));

/** Tile `unit` of a matrix times all rows of x: y (n_rows, mat's rows). */
void ek_engine_forward_tile(const ek_forward *f, const ek_mat *mat, int32_t tile_rows, int32_t unit,
                            const ek_act *x, int32_t n_rows, float *y);

/** As pool functions: token embeddings and rotary tables; logits of the rows wanted. */
void ek_engine_forward_embed(void *ctx, int32_t thread_idx);
void ek_engine_forward_logits(void *ctx, int32_t thread_idx);

/**
 * As a pool function: x += attention(norm(x)); leaves the FFN's normed activations and gate logits.
 */
void ek_engine_forward_attention(void *ctx, int32_t thread_idx);

/**
 * The first half of x += experts(normed), of one micro-batch: plan, and hand over.
 * @return EK_OK: it is under way; what the router or the dispatcher failed with: it is not
 */
EK_MUST ek_status ek_engine_forward_moe_begin(ek_forward *f, ek_forward_micro *micro);
/**
 * The second half: compute the shared expert, wait, and sum up.
 * @return EK_OK; what the dispatcher failed with. It is not under way any more either way
 */
EK_MUST ek_status ek_engine_forward_moe_end(ek_forward *f, ek_forward_micro *micro);

/** On every thread, between pieces of work: the owner's lets the dispatcher move bytes. */
static inline void ek_engine_forward_look(const ek_forward *f, int32_t thread_idx)
{
    if (thread_idx == 0 && f->n_micro > 1) ek_expert_progress(f->params.dispatcher);
}

#endif
