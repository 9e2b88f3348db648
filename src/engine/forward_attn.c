/*
 * The attention half of a layer.
 *
 * Keys and values of the new tokens go to the cache as f16. A query reads all positions before its
 * own from there, and its own position from the f32 values at hand: rounding a token's own value
 * would be the largest error of a short prompt, and it costs nothing to avoid. Which positions are
 * read from where follows from the query's position alone, so a prompt's chunks do not matter.
 */
#include <math.h>

#include "engine/forward_internal.h"

enum {
    PHASE_NORM,
    PHASE_QKV,
    PHASE_ROPE,
    PHASE_ATTEND,
    PHASE_OUT,
    PHASE_FFN_NORM,
    PHASE_GATE,
    DOT_LANES = 8,
    GATE_TILE_ROWS = 16, /* gates are small, and in f32 */
};
static_assert(PHASE_GATE < EK_FORWARD_TICKETS, "a ticket for each phase");

static int32_t take(ek_forward *f, int32_t phase)
{
    return ek_sys_ticket_take(&f->tickets[phase]);
}

static int32_t n_rows(const ek_forward *f)
{
    return f->rows.token_end - f->rows.token_beg;
}

/** The next token of a phase that goes token by token, or token_end and more. */
static int32_t take_token(ek_forward *f, int32_t phase)
{
    return f->rows.token_beg + take(f, phase);
}

/** The end of a phase: what others wrote in it may be read. */
static void finish_phase(const ek_forward *f, int32_t thread_idx)
{
    ek_engine_forward_look(f, thread_idx);
    ek_sys_pool_barrier(f->params.pool);
}

static void norm_token(const ek_forward *f, const float *weight, int32_t t)
{
    int32_t d = f->model->d_model;
    f->params.kernels->rms_norm(f->x + (int64_t)t * d, weight, d, f->model->rms_eps,
                                f->normed.f32 + (int64_t)t * d);
    ek_expert_act_prepare(f->params.kernels, &f->normed, t, 0, d);
}

static void project_qkv(ek_forward *f, const ek_forward_layer *layer)
{
    const ek_mat *mat[3] = {&layer->q, &layer->k, &layer->v};
    float *y[3] = {f->q, f->k, f->v};
    int32_t tile[3];
    int32_t n_units[3];
    int32_t first = f->rows.token_beg;
    ek_act x = ek_expert_act_rows(&f->normed, first);
    for (int32_t m = 0; m < 3; m++) {
        tile[m] = ek_expert_tile_rows(mat[m], 3, f->n_threads);
        n_units[m] = ek_expert_tile_count(mat[m]->n_rows, tile[m]);
    }
    for (int32_t i; (i = take(f, PHASE_QKV)) < n_units[0] + n_units[1] + n_units[2];) {
        int32_t m = 0;
        for (; i >= n_units[m]; m++)
            i -= n_units[m];
        ek_engine_forward_tile(f, mat[m], tile[m], i, &x, n_rows(f),
                               y[m] + (int64_t)first * mat[m]->n_rows);
    }
}

static void add_bias(float *y, const float *bias, int32_t n)
{
    for (int32_t i = 0; bias && i < n; i++)
        y[i] += bias[i];
}

/** Norm (where the model has one) and rotate one token's heads. */
static void finish_heads(const ek_forward *f, float *heads, int32_t n_heads, const float *norm,
                         int32_t t)
{
    const ek_kernels *kernels = f->params.kernels;
    const ek_model_params *p = f->model;
    int32_t dim = p->head_dim_k;
    int32_t n_pairs = p->n_rot / 2;
    ek_rope_kind kind = p->rope_neox ? EK_ROPE_NEOX : EK_ROPE_NORM;
    if (p->qk_norm == EK_QK_NORM_FULL)
        kernels->rms_norm(heads, norm, n_heads * dim, p->rms_eps, heads);
    for (int32_t h = 0; h < n_heads; h++) {
        float *head = heads + (int64_t)h * dim;
        if (p->qk_norm == EK_QK_NORM_HEAD) kernels->rms_norm(head, norm, dim, p->rms_eps, head);
        kernels->rope(kind, head, p->n_rot, f->rope_cos + (int64_t)t * n_pairs,
                      f->rope_sin + (int64_t)t * n_pairs);
    }
}

static void store_token(const ek_forward *f, int32_t t, const float *k, const float *v)
{
    const ek_kernels *kernels = f->params.kernels;
    const ek_model_params *p = f->model;
    int32_t block_tokens = ek_engine_kv_params(f->params.kv)->block_tokens;
    int32_t block = f->batch->seqs[f->token_seq[t]].kv->block[f->token_pos[t] / block_tokens];
    int32_t slot = f->token_pos[t] % block_tokens;
    for (int32_t h = 0; h < p->n_kv_heads; h++) {
        uint16_t *keys = ek_engine_kv_keys(f->params.kv, block, f->layer_idx, h);
        uint16_t *values = ek_engine_kv_values(f->params.kv, block, f->layer_idx, h);
        kernels->f32_to_f16(k + (int64_t)h * p->head_dim_k, p->head_dim_k,
                            keys + (int64_t)slot * p->head_dim_k);
        kernels->f32_to_f16(v + (int64_t)h * p->head_dim_v, p->head_dim_v,
                            values + (int64_t)slot * p->head_dim_v);
    }
}

static void rope_token(const ek_forward *f, const ek_forward_layer *layer, int32_t t)
{
    const ek_model_params *p = f->model;
    int32_t n_q = p->n_heads * p->head_dim_k;
    int32_t n_k = p->n_kv_heads * p->head_dim_k;
    int32_t n_v = p->n_kv_heads * p->head_dim_v;
    float *q = f->q + (int64_t)t * n_q;
    float *k = f->k + (int64_t)t * n_k;
    float *v = f->v + (int64_t)t * n_v;
    add_bias(q, layer->q_bias, n_q);
    add_bias(k, layer->k_bias, n_k);
    add_bias(v, layer->v_bias, n_v);
    finish_heads(f, q, p->n_heads, layer->q_norm, t);
    finish_heads(f, k, p->n_kv_heads, layer->k_norm, t);
    store_token(f, t, k, v);
}

/** Sum of products in a fixed order that vector units can follow. */
static float dot(const float *a, const float *b, int32_t n)
{
    float lane[DOT_LANES] = {0};
    for (int32_t i = 0; i < n; i += DOT_LANES) /* head dimensions are multiples of 8 */
        for (int32_t j = 0; j < DOT_LANES; j++)
            lane[j] += a[i + j] * b[i + j];
    return ((lane[0] + lane[4]) + (lane[1] + lane[5])) +
           ((lane[2] + lane[6]) + (lane[3] + lane[7]));
}

/**
 * Add the query's own position to a softmax over the ones before it: out holds their weighted mean
 * and lse the log of their denominator.
 */
static void merge_own(const ek_forward *f, const float *q, const float *k, const float *v,
                      float lse, float *out)
{
    float score = f->attend_scale * dot(q, k, f->model->head_dim_k);
    float largest = score > lse ? score : lse;
    float before = expf(lse - largest);
    float own = expf(score - largest);
    float inverse = 1.0f / (before + own);
    for (int32_t i = 0; i < f->model->head_dim_v; i++)
        out[i] = (before * out[i] + own * v[i]) * inverse;
}

static int32_t ceil_div(int32_t n, int32_t d)
{
    return n / d + (n % d != 0);
}

/** All queries of one unit that belong to one KV head. */
static void attend_head(ek_forward *f, const ek_attend_unit *unit, int32_t kv_head,
                        ek_forward_thread *thread)
{
    const ek_model_params *p = f->model;
    const ek_kv_seq *seq = f->batch->seqs[unit->seq_idx].kv;
    int32_t block_tokens = ek_engine_kv_params(f->params.kv)->block_tokens;
    int32_t n_blocks = ceil_div(f->token_pos[unit->token_end - 1], block_tokens);
    for (int32_t b = 0; b < n_blocks; b++) {
        thread->k_blocks[b] = ek_engine_kv_keys(f->params.kv, seq->block[b], f->layer_idx, kv_head);
        thread->v_blocks[b] =
            ek_engine_kv_values(f->params.kv, seq->block[b], f->layer_idx, kv_head);
    }

    int32_t n_q = 0;
    for (int32_t t = unit->token_beg; t < unit->token_end; t++) {
        const float *v = f->v + ((int64_t)t * p->n_kv_heads + kv_head) * p->head_dim_v;
        for (int32_t g = 0; g < f->group_heads; g++) {
            int64_t head = (int64_t)t * p->n_heads + (int64_t)kv_head * f->group_heads + g;
            float *out = f->attended.f32 + head * p->head_dim_v;
            if (f->token_pos[t] == 0) { /* nothing before it: its own value is the mean */
                for (int32_t i = 0; i < p->head_dim_v; i++)
                    out[i] = v[i];
                continue;
            }
            thread->q[n_q] = f->q + head * p->head_dim_k;
            thread->out[n_q] = out;
            thread->n_pos[n_q++] = f->token_pos[t];
        }
    }
    if (n_q == 0) return;

    f->params.kernels->attend(&(ek_attend_args){
        .q = thread->q,
        .out = thread->out,
        .lse = thread->lse,
        .n_pos = thread->n_pos,
        .k_blocks = thread->k_blocks,
        .v_blocks = thread->v_blocks,
        .n_q = n_q,
        .head_dim_k = p->head_dim_k,
        .head_dim_v = p->head_dim_v,
        .block_tokens = block_tokens,
        .scale = f->attend_scale,
        .scratch = thread->attend_scratch,
    });
    int32_t first = f->token_pos[unit->token_beg]; /* positions are consecutive inside a unit */
    for (int32_t i = 0; i < n_q; i++) {
        int64_t t = unit->token_beg + (thread->n_pos[i] - first);
        int64_t at = t * p->n_kv_heads + kv_head;
        merge_own(f, thread->q[i], f->k + at * p->head_dim_k, f->v + at * p->head_dim_v,
                  thread->lse[i], thread->out[i]);
    }
}

static void attend(ek_forward *f, int32_t thread_idx)
{
    int32_t per_unit = f->model->n_kv_heads / f->unit_heads;
    int32_t cols = f->unit_heads * f->group_heads * f->model->head_dim_v;
    int32_t n_units = (f->rows.unit_end - f->rows.unit_beg) * per_unit;
    for (int32_t i; (i = take(f, PHASE_ATTEND)) < n_units;) {
        const ek_attend_unit *unit = &f->units[f->rows.unit_beg + i / per_unit];
        int32_t part = i % per_unit;
        for (int32_t h = 0; h < f->unit_heads; h++)
            attend_head(f, unit, part * f->unit_heads + h, &f->threads[thread_idx]);
        for (int32_t t = unit->token_beg; t < unit->token_end; t++)
            ek_expert_act_prepare(f->params.kernels, &f->attended, t, part * cols,
                                  (part + 1) * cols);
        ek_engine_forward_look(f, thread_idx); /* a long context takes its time */
    }
}

static void project_out(ek_forward *f, const ek_forward_layer *layer)
{
    int32_t first = f->rows.token_beg;
    ek_act x = ek_expert_act_rows(&f->attended, first);
    float *y = f->delta + (int64_t)first * f->model->d_model;
    int32_t tile = ek_expert_tile_rows(&layer->out, 1, f->n_threads);
    int32_t n_units = ek_expert_tile_count(layer->out.n_rows, tile);
    for (int32_t i; (i = take(f, PHASE_OUT)) < n_units;)
        ek_engine_forward_tile(f, &layer->out, tile, i, &x, n_rows(f), y);
}

/** Gate logits, and with them the shared expert's one. */
static void project_gate(ek_forward *f, const ek_forward_layer *layer)
{
    int32_t first = f->rows.token_beg;
    ek_act x = ek_expert_act_rows(&f->normed, first);
    float *logits = f->gate_logits + (int64_t)first * layer->gate.n_rows;
    int32_t n_units = ek_expert_tile_count(layer->gate.n_rows, GATE_TILE_ROWS);
    int32_t n_shared = layer->shared_gate.data ? 1 : 0;
    for (int32_t i; (i = take(f, PHASE_GATE)) < n_units + n_shared;) {
        if (i < n_units)
            ek_engine_forward_tile(f, &layer->gate, GATE_TILE_ROWS, i, &x, n_rows(f), logits);
        else
            ek_engine_forward_tile(f, &layer->shared_gate, 1, 0, &x, n_rows(f),
                                   f->shared_logit + first);
    }
}

void ek_engine_forward_attention(void *ctx, int32_t thread_idx)
{
    ek_forward *f = ctx;
    const ek_forward_layer *layer = &f->layers[f->layer_idx];
    int32_t d = f->model->d_model;

    for (int32_t t; (t = take_token(f, PHASE_NORM)) < f->rows.token_end;)
        norm_token(f, layer->attn_norm, t);
    finish_phase(f, thread_idx);

    project_qkv(f, layer);
    finish_phase(f, thread_idx);

    for (int32_t t; (t = take_token(f, PHASE_ROPE)) < f->rows.token_end;)
        rope_token(f, layer, t);
    finish_phase(f, thread_idx);

    attend(f, thread_idx);
    finish_phase(f, thread_idx);

    project_out(f, layer);
    finish_phase(f, thread_idx);

    for (int32_t t; (t = take_token(f, PHASE_FFN_NORM)) < f->rows.token_end;) {
        f->params.kernels->axpy(1.0f, f->delta + (int64_t)t * d, d, f->x + (int64_t)t * d);
        norm_token(f, layer->ffn_norm, t);
    }
    finish_phase(f, thread_idx);

    project_gate(f, layer);
}
