#include "engine/forward.h"

#include <math.h>

#include "base/assert.h"
#include "base/size.h"
#include "engine/forward_internal.h"
#include "quant/convert.h"
#include "sys/clock.h"

#define NS_PER_US        1000
#define BATCH_TOKENS_MAX (1 << 20)
#define BLOCK_TOKENS_MIN 16 /* that a configuration can ask for */

/* ---- memory ---- */

/**
 * Lays buffers out one after the other. Without a base it only counts, so that the same code says
 * how much is needed and then hands it out.
 */
typedef struct carve {
    uint8_t *base; /* NULL: count only */
    size_t used;
} carve;

static void *take(carve *c, size_t n, size_t size)
{
    c->used = ek_size_align(c->used, EK_CACHE_LINE);
    void *mem = c->base ? c->base + c->used : NULL;
    c->used += n * size;
    return mem;
}

#define TAKE(c, type, n) ((type *)take((c), (size_t)(n), sizeof(type)))

static ek_act_buf take_act(carve *c, int32_t n_rows, int32_t n_cols, bool int8)
{
    size_t bytes = ek_expert_act_bytes(n_rows, n_cols, int8);
    void *mem = take(c, bytes, 1);
    ek_act_buf buf = {0};
    if (mem) {
        ek_arena arena = ek_arena_over(mem, bytes);
        bool fits = ek_expert_act_take(&arena, n_rows, n_cols, int8, &buf);
        ek_assert(fits);
    }
    return buf;
}

static const float *take_vector(carve *c, const ek_tensor *tensor)
{
    if (!tensor) return NULL;
    float *copy = TAKE(c, float, tensor->dim[0]);
    if (copy) ek_quant_row_to_f32(tensor->type, tensor->data, tensor->dim[0], copy);
    return copy;
}

static void layer_mats(const ek_model_layer *layer, ek_forward_layer *out)
{
    out->q = ek_expert_mat(layer->attn_q, 0);
    out->k = ek_expert_mat(layer->attn_k, 0);
    out->v = ek_expert_mat(layer->attn_v, 0);
    out->out = ek_expert_mat(layer->attn_out, 0);
    out->gate = ek_expert_mat(layer->gate, 0);
    if (layer->shared_gate_inp) out->shared_gate = ek_expert_mat(layer->shared_gate_inp, 0);
    if (!layer->shared_down) return;
    out->shared.gate = ek_expert_mat(layer->shared_gate, 0);
    out->shared.up = ek_expert_mat(layer->shared_up, 0);
    out->shared.down = ek_expert_mat(layer->shared_down, 0);
}

static ek_forward_layer take_layer(carve *c, const ek_model_layer *layer)
{
    ek_forward_layer own = {
        .attn_norm = take_vector(c, layer->attn_norm),
        .ffn_norm = take_vector(c, layer->ffn_norm),
        .q_bias = take_vector(c, layer->attn_q_bias),
        .k_bias = take_vector(c, layer->attn_k_bias),
        .v_bias = take_vector(c, layer->attn_v_bias),
        .q_norm = take_vector(c, layer->attn_q_norm),
        .k_norm = take_vector(c, layer->attn_k_norm),
        .gate_bias = take_vector(c, layer->gate_bias),
    };
    layer_mats(layer, &own);
    return own;
}

static void take_thread(carve *c, const ek_forward *f, ek_forward_thread *thread)
{
    size_t n_q = (size_t)EK_ATTEND_TOKENS * (size_t)f->group_heads;
    /* Before there is a cache: the smallest blocks, of which a context takes the most. */
    int32_t block_tokens = f->params.kv ? ek_engine_kv_params(f->params.kv)->block_tokens : 16;
    size_t n_blocks = (size_t)(f->params.context_tokens / block_tokens + 1);
    ek_forward_thread own = {
        .q = TAKE(c, const float *, n_q),
        .out = TAKE(c, float *, n_q),
        .lse = TAKE(c, float, n_q),
        .n_pos = TAKE(c, int32_t, n_q),
        .k_blocks = TAKE(c, const uint16_t *, n_blocks),
        .v_blocks = TAKE(c, const uint16_t *, n_blocks),
        .attend_scratch = TAKE(c, float, f->params.context_tokens + 16),
        .ffn_scratch = TAKE(c, float, EK_EXPERT_FFN_SCRATCH_FLOATS),
    };
    if (c->base) *thread = own;
}

/** Weights as the kernels take them, and what depends on the model only. */
static void lay_out_model(carve *c, ek_forward *f)
{
    const ek_model *model = f->params.model;
    int32_t n_pairs = f->model->n_rot / 2;
    f->layers = TAKE(c, ek_forward_layer, f->model->n_layers);
    for (int32_t l = 0; l < f->model->n_layers; l++) {
        ek_forward_layer own = take_layer(c, &model->layers[l]);
        if (c->base) f->layers[l] = own;
    }
    f->output_norm = take_vector(c, model->output_norm);
    f->output = ek_expert_mat(model->output, 0);
    f->rope_freq = TAKE(c, double, n_pairs);
    for (int32_t i = 0; c->base && i < n_pairs; i++)
        f->rope_freq[i] = pow((double)f->model->rope_base, -2.0 * i / (double)f->model->n_rot);
}

/** How much each micro-batch's plan and experts take; with two it is taken, too. */
static void take_steps(carve *c, ek_forward *f, bool is_split)
{
    const ek_model_params *p = f->model;
    int32_t n = f->params.batch_tokens_max;
    ek_route_gate gate = ek_engine_gate_of(p);
    size_t share_bytes = f->params.keel ? ek_keel_share_bytes(f->params.keel)
                                        : ek_keel_shares_bytes(p->n_experts, p->n_experts, 1);
    /* A layer's plan, and that of one round of what it defers. */
    f->step_bytes = 2 * (ek_route_plan_bytes(&gate, n) + share_bytes) +
                    ek_expert_step_bytes(f->params.dispatcher, n);
    for (int32_t i = 0; is_split && i < EK_MICRO_BATCHES_MAX; i++)
        f->micro[i].step = TAKE(c, uint8_t, f->step_bytes);
}

/** Everything that a batch writes to. */
static void lay_out_batch(carve *c, ek_forward *f)
{
    const ek_model_params *p = f->model;
    int32_t n = f->params.batch_tokens_max;
    size_t rows = (size_t)n;
    f->token_id = TAKE(c, int32_t, rows);
    f->token_seq = TAKE(c, int32_t, rows);
    f->token_pos = TAKE(c, int32_t, rows);
    f->units = TAKE(c, ek_attend_unit, rows);
    f->logits_token = TAKE(c, int32_t, f->params.logits_rows_max);
    f->x = TAKE(c, float, rows *(size_t)p->d_model);
    f->normed = take_act(c, n, p->d_model, f->x_int8);
    f->delta = TAKE(c, float, rows *(size_t)p->d_model);
    f->rope_cos = TAKE(c, float, rows *(size_t)(p->n_rot / 2));
    f->rope_sin = TAKE(c, float, rows *(size_t)(p->n_rot / 2));
    f->gate_logits = TAKE(c, float, rows *(size_t)p->n_experts);
    f->shared_logit = TAKE(c, float, rows);
    f->shared_hidden = take_act(c, n, p->shared_ff, f->hidden_int8);
    f->threads = TAKE(c, ek_forward_thread, f->n_threads);
    for (int32_t t = 0; t < f->n_threads; t++)
        take_thread(c, f, c->base ? &f->threads[t] : NULL);

    /*
     * What attention holds is done with when the experts begin: both use the same memory, unless
     * one micro-batch attends while the other's experts are at work.
     */
    bool is_split = f->params.dispatcher->micro_batching != EK_MICRO_BATCHING_ONE;
    take_steps(c, f, is_split);
    carve attention = *c;
    f->q = TAKE(&attention, float, rows *(size_t)(p->n_heads * p->head_dim_k));
    f->k = TAKE(&attention, float, rows *(size_t)(p->n_kv_heads * p->head_dim_k));
    f->v = TAKE(&attention, float, rows *(size_t)(p->n_kv_heads * p->head_dim_v));
    f->attended = take_act(&attention, n, p->n_heads * p->head_dim_v, f->attended_int8);
    if (!is_split) f->micro[0].step = TAKE(c, uint8_t, f->step_bytes);
    if (attention.used > c->used) c->used = attention.used;
}

/* ---- life ---- */

ek_route_gate ek_engine_gate_of(const ek_model_params *params)
{
    ek_route_gate gate = {
        .score = EK_ROUTE_SOFTMAX,
        .n_experts = params->n_experts,
        .top_k = params->top_k,
        .n_groups = params->gate.n_groups,
        .n_groups_used = params->gate.n_groups_used,
        .renormalise = params->gate.renormalise,
        .scale = params->gate.scale,
    };
    if (params->gate.score == EK_GATE_SIGMOID) gate.score = EK_ROUTE_SIGMOID;
    if (params->gate.score == EK_GATE_SOFTMAX_CHOSEN) gate.score = EK_ROUTE_SOFTMAX_CHOSEN;
    return gate;
}

static bool reads_int8(const ek_forward_params *params, const ek_tensor *tensor)
{
    return tensor && params->kernels->act_int8[tensor->type];
}

/** The fields that follow from params, before any memory is there. */
static ek_forward describe(const ek_forward_params *params)
{
    const ek_model *model = params->model;
    const ek_model_params *p = &model->params;
    ek_forward f = {
        .params = *params,
        .model = p,
        .n_threads = ek_sys_pool_threads(params->pool),
        .group_heads = p->n_heads / p->n_kv_heads,
        .unit_heads = 1,
        .attend_scale = (float)(1.0 / sqrt((double)p->head_dim_k)),
        .x_int8 = reads_int8(params, model->output),
    };
    for (int32_t l = 0; l < p->n_layers; l++) {
        const ek_model_layer *layer = &model->layers[l];
        const ek_tensor *x_readers[] = {
            layer->attn_q,      layer->attn_k,    layer->attn_v,
            layer->expert_gate, layer->expert_up, layer->gate,
            layer->shared_gate, layer->shared_up, layer->shared_gate_inp};
        for (size_t i = 0; i < EK_COUNT_OF(x_readers); i++)
            f.x_int8 |= reads_int8(params, x_readers[i]);
        f.attended_int8 |= reads_int8(params, layer->attn_out);
        f.hidden_int8 |= reads_int8(params, layer->shared_down);
    }
    /* A unit brings its own columns into int8 form, so it has to own whole blocks of them. */
    while (f.attended_int8 && (f.unit_heads * f.group_heads * p->head_dim_v % EK_ACT_BLOCK != 0 ||
                               p->n_kv_heads % f.unit_heads != 0))
        f.unit_heads++;
    return f;
}

static ek_status check_params(const ek_forward_params *params, ek_err *err)
{
    const ek_model_params *p = &params->model->params;
    const ek_kv_params *kv = ek_engine_kv_params(params->kv);
    if (params->batch_tokens_max < 1 || params->batch_tokens_max > BATCH_TOKENS_MAX)
        return ek_err_set(err, EK_EINVAL, "steps of %d tokens, allowed are 1..%d",
                          params->batch_tokens_max, BATCH_TOKENS_MAX);
    if (params->logits_rows_max < 1 || params->logits_rows_max > params->batch_tokens_max)
        return ek_err_set(err, EK_EINVAL, "logits of %d rows, allowed are 1..%d",
                          params->logits_rows_max, params->batch_tokens_max);
    if (params->context_tokens < 1)
        return ek_err_set(err, EK_EINVAL, "a context of %d tokens", params->context_tokens);
    if (kv->n_layers != p->n_layers || kv->n_kv_heads != p->n_kv_heads ||
        kv->head_dim_k != p->head_dim_k || kv->head_dim_v != p->head_dim_v)
        return ek_err_set(err, EK_EINVAL, "the KV cache was made for another model");
    return EK_OK;
}

static size_t lay_out(carve c, ek_forward *f)
{
    lay_out_model(&c, f);
    lay_out_batch(&c, f);
    return c.used;
}

void ek_engine_forward_refresh(ek_forward *f)
{
    const ek_model *model = f->params.model;
    for (int32_t l = 0; l < f->model->n_layers; l++)
        layer_mats(&model->layers[l], &f->layers[l]);
    f->output = ek_expert_mat(model->output, 0);
}

int64_t ek_engine_forward_bytes(const ek_forward_params *params)
{
    ek_forward f = describe(params);
    return (int64_t)lay_out((carve){.used = sizeof(ek_forward)}, &f);
}

ek_status ek_engine_forward_create(const ek_forward_params *params, ek_forward **out_forward,
                                   ek_err *err)
{
    ek_status status = check_params(params, err);
    if (status != EK_OK) return status;
    size_t bytes = (size_t)ek_engine_forward_bytes(params);
    ek_sys_region region;
    status = ek_sys_region_open(bytes, 1, &region);
    if (status != EK_OK)
        return ek_err_set(err, status, "no memory for activations (%zu bytes)", bytes);

    ek_forward *f = region.base;
    *f = describe(params);
    f->region = region;
    lay_out((carve){.base = region.base, .used = sizeof *f}, f);
    ek_engine_microbatch_init(&f->microbatch_rule, params->dispatcher->micro_batching);
    *out_forward = f;
    return EK_OK;
}

void ek_engine_forward_destroy(ek_forward *forward)
{
    if (!forward) return;
    ek_sys_region region = forward->region; /* a copy, since forward lies in it */
    ek_sys_region_close(&region);
}

void ek_engine_forward_set_probe(ek_forward *forward, const ek_forward_probe *probe)
{
    forward->probe = probe ? *probe : (ek_forward_probe){0};
}

void ek_engine_forward_times(const ek_forward *forward, int64_t *out_plan_ns, int64_t *out_total_ns)
{
    *out_plan_ns = forward->plan_ns;
    *out_total_ns = forward->total_ns;
}

/* ---- one run ---- */

void ek_engine_forward_phases(ek_forward *f, void (*phases)(void *ctx, int32_t thread_idx))
{
    for (int32_t i = 0; i < EK_FORWARD_TICKETS; i++)
        ek_sys_ticket_reset(&f->tickets[i]);
    ek_sys_pool_run(f->params.pool, phases, f);
}

void ek_engine_forward_tile(const ek_forward *f, const ek_mat *mat, int32_t tile_rows, int32_t unit,
                            const ek_act *x, int32_t n_rows, float *y)
{
    int32_t beg = unit * tile_rows;
    int32_t end = beg + tile_rows < mat->n_rows ? beg + tile_rows : mat->n_rows;
    f->params.kernels->matmul[mat->type](mat, beg, end, x, NULL, n_rows, y, mat->n_rows);
}

/** One sequence's tokens into the batch's rows. */
static ek_status add_seq(ek_forward *f, int32_t seq_idx, const ek_batch_seq *seq)
{
    int32_t n = seq->n_tokens;
    int32_t first_pos = seq->kv->n_tokens;
    int32_t block_tokens = ek_engine_kv_params(f->params.kv)->block_tokens;
    if (n < 1 || n > f->params.batch_tokens_max - f->n_tokens) return EK_EINVAL;
    if (first_pos < 0 || first_pos > f->params.context_tokens - n) return EK_EINVAL;
    if ((int64_t)seq->kv->n_blocks * block_tokens < first_pos + n) return EK_EINVAL;
    int32_t n_rows = seq->wants_every_logit ? n : seq->wants_logits ? 1 : 0;
    if (n_rows > f->params.logits_rows_max - f->n_logits) return EK_EINVAL;
    for (int32_t i = 0; i < n; i++) {
        if (seq->tokens[i] < 0 || seq->tokens[i] >= f->model->n_vocab) return EK_EINVAL;
        int32_t t = f->n_tokens + i;
        f->token_id[t] = seq->tokens[i];
        f->token_seq[t] = seq_idx;
        f->token_pos[t] = first_pos + i;
    }
    f->n_tokens += n;
    for (int32_t i = n_rows; i > 0; i--)
        f->logits_token[f->n_logits++] = f->n_tokens - i;
    return EK_OK;
}

static ek_status add_batch(ek_forward *f, const ek_batch *batch)
{
    f->batch = batch;
    f->n_tokens = 0;
    f->n_logits = 0;
    for (int32_t i = 0; i < batch->n_seqs; i++) {
        ek_status status = add_seq(f, i, &batch->seqs[i]);
        if (status != EK_OK) return status;
    }
    return EK_OK;
}

/** Tokens [beg, end) as rows of their own, cut into attention units. */
static ek_forward_rows cut_rows(ek_forward *f, int32_t beg, int32_t end, int32_t unit_beg)
{
    ek_forward_rows rows = {beg, end, unit_beg, unit_beg};
    for (int32_t t = beg; t < end;) {
        int32_t first = t, seq = f->token_seq[t];
        while (t < end && f->token_seq[t] == seq && t - first < EK_ATTEND_TOKENS)
            t++;
        f->units[rows.unit_end++] = (ek_attend_unit){seq, first, t};
    }
    return rows;
}

/**
 * One micro-batch or two halves. A token reads the keys of those before it in its own layer, so the
 * border may lie anywhere, also within a prompt: the first half attends first, in every layer.
 */
static void cut_batch(ek_forward *f)
{
    f->n_micro = ek_engine_microbatch_choose(&f->microbatch_rule,
                                             ek_route_params_of(f->params.router), f->n_tokens);
    int32_t n_first = f->n_micro == 1 ? f->n_tokens : ek_engine_microbatch_first(f->n_tokens);
    f->micro[0].rows = cut_rows(f, 0, n_first, 0);
    if (f->n_micro > 1)
        f->micro[1].rows = cut_rows(f, n_first, f->n_tokens, f->micro[0].rows.unit_end);
}

/** A micro-batch's part of a layer up to where its experts are handed over. */
static ek_status begin_layer(ek_forward *f, int32_t micro_idx, int32_t layer_idx)
{
    ek_forward_micro *micro = &f->micro[micro_idx];
    micro->layer_idx = f->layer_idx = layer_idx;
    f->rows = micro->rows;
    ek_engine_forward_phases(f, ek_engine_forward_attention);
    return ek_engine_forward_moe_begin(f, micro);
}

static ek_status end_layer(ek_forward *f, int32_t micro_idx)
{
    ek_forward_micro *micro = &f->micro[micro_idx];
    f->layer_idx = micro->layer_idx;
    f->rows = micro->rows;
    return ek_engine_forward_moe_end(f, micro);
}

/**
 * All layers. With two micro-batches each is handed over before the other is waited for:
 * A0 | B0 A0' A1 | B0' B1 | A1' A2 | ... where ' is the end of a layer.
 */
static ek_status run_layers(ek_forward *f)
{
    int32_t n_layers = f->model->n_layers;
    ek_status status = begin_layer(f, 0, 0);
    for (int32_t l = 0; l < n_layers && status == EK_OK; l++) {
        if (f->n_micro > 1) status = begin_layer(f, 1, l);
        if (status == EK_OK) status = end_layer(f, 0);
        if (status == EK_OK && l + 1 < n_layers) status = begin_layer(f, 0, l + 1);
        if (status == EK_OK && f->n_micro > 1) status = end_layer(f, 1);
    }
    for (int32_t i = 0; i < f->n_micro; i++) {
        if (f->micro[i].is_out) ek_expert_cancel(f->params.dispatcher, &f->micro[i].work);
        f->micro[i].is_out = false;
    }
    return status;
}

ek_status ek_engine_forward_run(ek_forward *forward, const ek_batch *batch, float *out_logits)
{
    ek_forward *f = forward;
    int64_t beg_ns = ek_sys_now_ns();
    ek_status status = add_batch(f, batch);
    if (status != EK_OK || f->n_tokens == 0) return status;

    f->view = f->params.keel ? ek_keel_view(f->params.keel, beg_ns / NS_PER_US) : f->params.view;
    cut_batch(f);
    ek_engine_forward_phases(f, ek_engine_forward_embed);
    int64_t layers_ns = ek_sys_now_ns();
    status = run_layers(f);
    if (status != EK_OK) return status;
    int64_t now_ns = ek_sys_now_ns();
    ek_engine_microbatch_learn(&f->microbatch_rule, f->n_tokens, f->n_micro, now_ns - layers_ns);
    if (f->n_logits > 0) {
        f->logits = out_logits;
        ek_engine_forward_phases(f, ek_engine_forward_logits);
    }
    for (int32_t i = 0; i < batch->n_seqs; i++)
        batch->seqs[i].kv->n_tokens += batch->seqs[i].n_tokens;
    f->total_ns += ek_sys_now_ns() - beg_ns;
    return EK_OK;
}
