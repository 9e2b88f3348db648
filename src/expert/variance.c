#include "expert/variance.h"

#include <string.h>

#include "expert/act.h"
#include "expert/ffn.h"

/* One expert's tokens on their way through its network. */
typedef struct bench {
    ek_act_buf x; /* (EK_VARIANCE_ROWS_MAX, d) */
    ek_act_buf h; /* (EK_VARIANCE_ROWS_MAX, ff) */
    float *y;     /* (EK_VARIANCE_ROWS_MAX, d) */
    float *scratch;
} bench;

size_t ek_expert_variance_bytes(const ek_model *model)
{
    const ek_model_params *p = &model->params;
    return ek_expert_act_bytes(EK_VARIANCE_ROWS_MAX, p->d_model, true) +
           ek_expert_act_bytes(EK_VARIANCE_ROWS_MAX, p->expert_ff, true) +
           (size_t)EK_VARIANCE_ROWS_MAX * (size_t)p->d_model * sizeof(float) +
           EK_EXPERT_FFN_SCRATCH_FLOATS * sizeof(float) + 4 * (size_t)EK_CACHE_LINE;
}

static bool take(bench *b, const ek_model_params *p, const ek_model_layer *layer,
                 const ek_kernels *kernels, ek_arena *arena)
{
    bool x_int8 =
        kernels->act_int8[layer->expert_gate->type] || kernels->act_int8[layer->expert_up->type];
    bool h_int8 = kernels->act_int8[layer->expert_down->type];
    if (!ek_expert_act_take(arena, EK_VARIANCE_ROWS_MAX, p->d_model, x_int8, &b->x) ||
        !ek_expert_act_take(arena, EK_VARIANCE_ROWS_MAX, p->expert_ff, h_int8, &b->h))
        return false;
    b->y = ek_arena_try_raw(arena, (size_t)EK_VARIANCE_ROWS_MAX * (size_t)p->d_model, sizeof(float),
                            EK_CACHE_LINE);
    b->scratch =
        ek_arena_try_raw(arena, EK_EXPERT_FFN_SCRATCH_FLOATS, sizeof(float), EK_CACHE_LINE);
    return b->y && b->scratch;
}

static void compute(const bench *b, const ek_kernels *kernels, const ek_ffn *ffn, int32_t n_rows)
{
    int32_t d = ffn->down.n_rows, ff = ffn->gate.n_rows;
    ek_act x = ek_expert_act_rows(&b->x, 0);
    const ek_ffn_rows rows = {.x = &x, .n_rows = n_rows, .h = &b->h, .y = b->y};
    int32_t tile = ek_expert_tile_rows(&ffn->gate, 1, 1);
    for (int32_t beg = 0; beg < ff; beg += tile)
        ek_expert_ffn_hidden(kernels, ffn, &rows, beg, beg + tile < ff ? beg + tile : ff,
                             b->scratch);
    ek_expert_ffn_down(kernels, ffn, &rows, 0, d);
}

/* Over rows, averaged over columns. */
static double variance_of(const float *y, int32_t n_rows, int32_t d)
{
    double total = 0;
    for (int32_t c = 0; c < d; c++) {
        double sum = 0, squares = 0;
        for (int32_t i = 0; i < n_rows; i++)
            sum += (double)y[(int64_t)i * d + c];
        double mean = sum / n_rows;
        for (int32_t i = 0; i < n_rows; i++) {
            double off = (double)y[(int64_t)i * d + c] - mean;
            squares += off * off;
        }
        total += squares / n_rows;
    }
    return total / d;
}

ek_status ek_expert_variance(const ek_model *model, const ek_kernels *kernels, int32_t layer,
                             const float *hidden, int32_t n_tokens, const int32_t *expert_id,
                             ek_arena scratch, double *out)
{
    const ek_model_params *p = &model->params;
    const ek_model_layer *l = &model->layers[layer];
    bench b;
    if (!take(&b, p, l, kernels, &scratch)) return EK_ENOMEM;
    int64_t n_slots = (int64_t)n_tokens * p->top_k;
    for (int32_t e = 0; e < p->n_experts; e++) {
        int32_t n = 0;
        for (int64_t i = 0; i < n_slots && n < EK_VARIANCE_ROWS_MAX; i++) {
            if (expert_id[i] != e) continue;
            memcpy(b.x.f32 + (int64_t)n * p->d_model, hidden + i / p->top_k * p->d_model,
                   (size_t)p->d_model * sizeof(float));
            ek_expert_act_prepare(kernels, &b.x, n, 0, p->d_model);
            n++;
        }
        out[e] = -1;
        if (n < 2) continue;
        const ek_ffn ffn = {.gate = ek_expert_mat(l->expert_gate, e),
                            .up = ek_expert_mat(l->expert_up, e),
                            .down = ek_expert_mat(l->expert_down, e)};
        compute(&b, kernels, &ffn, n);
        out[e] = variance_of(b.y, n, p->d_model);
    }
    return EK_OK;
}
