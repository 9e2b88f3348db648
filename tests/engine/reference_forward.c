#include "reference_forward.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "quant/convert.h"

/** y = matrix `idx` of a tensor times x. */
static void multiply(const ek_tensor *w, int64_t idx, const double *x, double *y)
{
    int64_t n_cols = w->dim[0];
    int64_t n_rows = w->dim[1];
    size_t row_bytes = ek_quant_row_bytes(w->type, n_cols);
    float *row = calloc((size_t)n_cols, sizeof *row);
    for (int64_t r = 0; r < n_rows; r++) {
        ek_quant_row_to_f32(w->type,
                            (const uint8_t *)w->data + (size_t)(idx * n_rows + r) * row_bytes,
                            n_cols, row);
        y[r] = 0;
        for (int64_t c = 0; c < n_cols; c++)
            y[r] += (double)row[c] * x[c];
    }
    free(row);
}

/** y += w, or y *= w where `scale`; nothing for no tensor. */
static void apply(const ek_tensor *w, bool scale, double *y)
{
    if (!w) return;
    float *row = calloc((size_t)w->dim[0], sizeof *row);
    ek_quant_row_to_f32(w->type, w->data, w->dim[0], row);
    for (int64_t i = 0; i < w->dim[0]; i++)
        y[i] = scale ? y[i] * (double)row[i] : y[i] + (double)row[i];
    free(row);
}

static void rms_norm(const double *x, const ek_tensor *weight, int32_t n, float eps, double *y)
{
    double squares = 0;
    for (int32_t i = 0; i < n; i++)
        squares += x[i] * x[i];
    for (int32_t i = 0; i < n; i++)
        y[i] = x[i] / sqrt(squares / n + (double)eps);
    apply(weight, true, y);
}

static void rotate(const ek_model_params *p, double *head, int32_t pos)
{
    for (int32_t i = 0; i < p->n_rot / 2; i++) {
        double angle = pos / (double)p->rope_scale * pow((double)p->rope_base, -2.0 * i / p->n_rot);
        int32_t a = p->rope_neox ? i : 2 * i;
        int32_t b = p->rope_neox ? i + p->n_rot / 2 : 2 * i + 1;
        double at_a = head[a];
        double at_b = head[b];
        head[a] = at_a * cos(angle) - at_b * sin(angle);
        head[b] = at_a * sin(angle) + at_b * cos(angle);
    }
}

static void heads(const ek_model_params *p, const ek_tensor *w, const ek_tensor *bias,
                  const ek_tensor *norm, int32_t n_heads, const double *x, int32_t pos, double *y)
{
    int32_t dim = p->head_dim_k;
    multiply(w, 0, x, y);
    apply(bias, false, y);
    if (p->qk_norm == EK_QK_NORM_FULL) rms_norm(y, norm, n_heads * dim, p->rms_eps, y);
    for (int32_t h = 0; h < n_heads; h++) {
        if (p->qk_norm == EK_QK_NORM_HEAD)
            rms_norm(y + h * dim, norm, dim, p->rms_eps, y + h * dim);
        rotate(p, y + h * dim, pos);
    }
}

/** Weighted mean of the values of positions 0..pos for one query head. */
static void attend(const ek_model_params *p, const double *q, const double *k, const double *v,
                   int32_t kv_head, int32_t pos, double *out)
{
    int64_t k_stride = (int64_t)p->n_kv_heads * p->head_dim_k;
    int64_t v_stride = (int64_t)p->n_kv_heads * p->head_dim_v;
    double *score = calloc((size_t)pos + 1, sizeof *score);
    double largest = -INFINITY;
    double sum = 0;
    for (int32_t j = 0; j <= pos; j++) {
        for (int32_t c = 0; c < p->head_dim_k; c++)
            score[j] += q[c] * k[j * k_stride + kv_head * p->head_dim_k + c];
        score[j] /= sqrt((double)p->head_dim_k);
        largest = fmax(largest, score[j]);
    }
    for (int32_t j = 0; j <= pos; j++)
        sum += exp(score[j] - largest);
    for (int32_t c = 0; c < p->head_dim_v; c++) {
        out[c] = 0;
        for (int32_t j = 0; j <= pos; j++)
            out[c] += exp(score[j] - largest) / sum * v[j * v_stride + kv_head * p->head_dim_v + c];
    }
    free(score);
}

static void attention(const ek_model *model, const ek_model_layer *layer, double *x, int32_t n)
{
    const ek_model_params *p = &model->params;
    int32_t n_q = p->n_heads * p->head_dim_k;
    int32_t n_k = p->n_kv_heads * p->head_dim_k;
    int32_t n_v = p->n_kv_heads * p->head_dim_v;
    int32_t n_out = p->n_heads * p->head_dim_v;
    double *normed = calloc((size_t)p->d_model, sizeof *normed);
    double *q = calloc((size_t)(n * n_q), sizeof *q);
    double *k = calloc((size_t)(n * n_k), sizeof *k);
    double *v = calloc((size_t)(n * n_v), sizeof *v);
    double *out = calloc((size_t)n_out, sizeof *out);
    double *delta = calloc((size_t)p->d_model, sizeof *delta);
    for (int32_t t = 0; t < n; t++) {
        rms_norm(x + t * p->d_model, layer->attn_norm, p->d_model, p->rms_eps, normed);
        heads(p, layer->attn_q, layer->attn_q_bias, layer->attn_q_norm, p->n_heads, normed, t,
              q + t * n_q);
        heads(p, layer->attn_k, layer->attn_k_bias, layer->attn_k_norm, p->n_kv_heads, normed, t,
              k + t * n_k);
        multiply(layer->attn_v, 0, normed, v + t * n_v);
        apply(layer->attn_v_bias, false, v + t * n_v);
    }
    for (int32_t t = 0; t < n; t++) {
        for (int32_t h = 0; h < p->n_heads; h++)
            attend(p, q + t * n_q + h * p->head_dim_k, k, v, h / (p->n_heads / p->n_kv_heads), t,
                   out + h * p->head_dim_v);
        multiply(layer->attn_out, 0, out, delta);
        for (int32_t i = 0; i < p->d_model; i++)
            x[t * p->d_model + i] += delta[i];
    }
    free(normed);
    free(q);
    free(k);
    free(v);
    free(out);
    free(delta);
}

/**
 * The gate of the four architectures: softmax over all, the k best, normalised where the model
 * does.
 */
static double choose(const ek_model_params *p, const double *z, int32_t *chosen, double *weight)
{
    double largest = -INFINITY;
    double all = 0;
    double sum = 0;
    double score[EK_MODEL_EXPERTS_MAX];
    bool taken[EK_MODEL_EXPERTS_MAX] = {false};
    for (int32_t e = 0; e < p->n_experts; e++)
        largest = fmax(largest, z[e]);
    for (int32_t e = 0; e < p->n_experts; e++)
        all += exp(z[e] - largest);
    for (int32_t e = 0; e < p->n_experts; e++)
        score[e] = exp(z[e] - largest) / all;
    for (int32_t k = 0; k <= p->top_k && k < p->n_experts; k++) {
        int32_t best = -1;
        for (int32_t e = 0; e < p->n_experts; e++)
            if (!taken[e] && (best < 0 || score[e] > score[best])) best = e;
        if (k == p->top_k) return weight[k - 1] * (p->gate.renormalise ? sum : 1) - score[best];
        taken[best] = true;
        chosen[k] = best;
        weight[k] = score[best];
        sum += score[best];
        if (k + 1 == p->top_k && p->gate.renormalise)
            for (int32_t i = 0; i <= k; i++)
                weight[i] /= sum;
    }
    return INFINITY;
}

/** out += factor * down(silu(gate x) * up x) */
static void add_ffn(const ek_tensor *gate, const ek_tensor *up, const ek_tensor *down, int32_t idx,
                    const double *x, double factor, double *out)
{
    int64_t ff = gate->dim[1];
    int64_t d = down->dim[1];
    double *g = calloc((size_t)ff, sizeof *g);
    double *u = calloc((size_t)ff, sizeof *u);
    double *y = calloc((size_t)d, sizeof *y);
    multiply(gate, idx, x, g);
    multiply(up, idx, x, u);
    for (int64_t i = 0; i < ff; i++)
        g[i] = g[i] / (1 + exp(-g[i])) * u[i];
    multiply(down, idx, g, y);
    for (int64_t i = 0; i < d; i++)
        out[i] += factor * y[i];
    free(g);
    free(u);
    free(y);
}

static double experts(const ek_model *model, const ek_model_layer *layer, double *x, int32_t n,
                      int32_t *chosen)
{
    const ek_model_params *p = &model->params;
    double margin = INFINITY;
    double *normed = calloc((size_t)p->d_model, sizeof *normed);
    for (int32_t t = 0; t < n; t++) {
        double z[EK_MODEL_EXPERTS_MAX];
        double weight[EK_MODEL_EXPERTS_MAX];
        double *row = x + t * p->d_model;
        rms_norm(row, layer->ffn_norm, p->d_model, p->rms_eps, normed);
        multiply(layer->gate, 0, normed, z);
        margin = fmin(margin, choose(p, z, chosen + t * p->top_k, weight));
        for (int32_t k = 0; k < p->top_k; k++)
            add_ffn(layer->expert_gate, layer->expert_up, layer->expert_down,
                    chosen[t * p->top_k + k], normed, weight[k], row);
        if (p->shared_ff > 0) {
            double gate;
            multiply(layer->shared_gate_inp, 0, normed, &gate);
            add_ffn(layer->shared_gate, layer->shared_up, layer->shared_down, 0, normed,
                    1 / (1 + exp(-gate)), row);
        }
    }
    free(normed);
    return margin;
}

void ek_reference_forward(const ek_model *model, const int32_t *tokens, int32_t n_tokens,
                          double *out_logits, int32_t *out_chosen, double *out_margin)
{
    const ek_model_params *p = &model->params;
    int32_t d = p->d_model;
    size_t row_bytes = ek_quant_row_bytes(model->token_embd->type, d);
    double *x = calloc((size_t)n_tokens * (size_t)d, sizeof *x);
    float *row = calloc((size_t)d, sizeof *row);
    for (int32_t t = 0; t < n_tokens; t++) {
        const uint8_t *embd = (const uint8_t *)model->token_embd->data;
        ek_quant_row_to_f32(model->token_embd->type, embd + (size_t)tokens[t] * row_bytes, d, row);
        for (int32_t i = 0; i < d; i++)
            x[t * d + i] = (double)row[i];
    }
    double margin = INFINITY;
    for (int32_t l = 0; l < p->n_layers; l++) {
        attention(model, &model->layers[l], x, n_tokens);
        margin = fmin(margin, experts(model, &model->layers[l], x, n_tokens,
                                      out_chosen + (ptrdiff_t)l * n_tokens * p->top_k));
    }
    double *last = x + (ptrdiff_t)(n_tokens - 1) * d;
    rms_norm(last, model->output_norm, d, p->rms_eps, last);
    multiply(model->output, 0, last, out_logits);
    *out_margin = margin;
    free(x);
    free(row);
}
