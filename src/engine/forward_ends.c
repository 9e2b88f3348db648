/*
 * Both ends of the forward pass: from ids to embeddings, from the last layer's output to logits.
 */
#include <math.h>

#include "engine/forward_internal.h"
#include "quant/convert.h"

void ek_engine_forward_embed(void *ctx, int32_t thread_idx EK_UNUSED)
{
    ek_forward *f = ctx;
    int32_t d = f->model->d_model;
    int32_t n_pairs = f->model->n_rot / 2;
    const ek_mat embd = ek_expert_mat(f->params.model->token_embd, 0);
    for (int32_t t; (t = ek_sys_ticket_take(&f->tickets[0])) < f->n_tokens;) {
        const uint8_t *row = (const uint8_t *)embd.data + (size_t)f->token_id[t] * embd.row_bytes;
        ek_quant_row_to_f32(embd.type, row, d, f->x + (int64_t)t * d);
        double pos = (double)f->token_pos[t] / (double)f->model->rope_scale;
        for (int32_t i = 0; i < n_pairs; i++) {
            f->rope_cos[(int64_t)t * n_pairs + i] = (float)cos(pos * f->rope_freq[i]);
            f->rope_sin[(int64_t)t * n_pairs + i] = (float)sin(pos * f->rope_freq[i]);
        }
    }
}

void ek_engine_forward_logits(void *ctx, int32_t thread_idx EK_UNUSED)
{
    ek_forward *f = ctx;
    const ek_kernels *kernels = f->params.kernels;
    int32_t d = f->model->d_model;
    for (int32_t i; (i = ek_sys_ticket_take(&f->tickets[0])) < f->n_logits;) {
        kernels->rms_norm(f->x + (int64_t)f->logits_token[i] * d, f->output_norm, d,
                          f->model->rms_eps, f->normed.f32 + (int64_t)i * d);
        ek_expert_act_prepare(kernels, &f->normed, i, 0, d);
    }

    ek_sys_pool_barrier(f->params.pool);

    ek_act x = ek_expert_act_rows(&f->normed, 0);
    int32_t tile = ek_expert_tile_rows(&f->output, 1, f->n_threads);
    int32_t n_units = ek_expert_tile_count(f->output.n_rows, tile);
    for (int32_t i; (i = ek_sys_ticket_take(&f->tickets[1])) < n_units;)
        ek_engine_forward_tile(f, &f->output, tile, i, &x, f->n_logits, f->logits);
}
