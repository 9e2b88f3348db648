#include <math.h>

#include "kernels/reference/reference.h"
#include "quant/convert.h"

/* The vector of position p in a paged cache. */
static const uint16_t *vector_at(const uint16_t *const *blocks, int32_t block_tokens, int32_t p,
                                 int32_t dim)
{
    return blocks[p / block_tokens] + (int64_t)(p % block_tokens) * dim;
}

/* Scores of query i against the positions it sees; returns the largest. */
static float score_positions(const ek_attend_args *args, int32_t i, float *scores)
{
    float largest = -INFINITY;
    for (int32_t p = 0; p < args->n_pos[i]; p++) {
        const uint16_t *k = vector_at(args->k_blocks, args->block_tokens, p, args->head_dim_k);
        double sum = 0.0;
        for (int32_t c = 0; c < args->head_dim_k; c++)
            sum += (double)args->q[i][c] * (double)ek_quant_f16_to_f32(k[c]);
        scores[p] = (float)((double)args->scale * sum);
        largest = fmaxf(largest, scores[p]);
    }
    return largest;
}

void ek_kernels_reference_attend(const ek_attend_args *args)
{
    float *weights = args->scratch;
    for (int32_t i = 0; i < args->n_q; i++) {
        double largest = score_positions(args, i, weights);
        double denominator = 0.0;
        for (int32_t p = 0; p < args->n_pos[i]; p++) {
            weights[p] = (float)exp((double)weights[p] - largest);
            denominator += (double)weights[p];
        }
        for (int32_t c = 0; c < args->head_dim_v; c++) {
            double sum = 0.0;
            for (int32_t p = 0; p < args->n_pos[i]; p++) {
                const uint16_t *v =
                    vector_at(args->v_blocks, args->block_tokens, p, args->head_dim_v);
                sum += (double)weights[p] * (double)ek_quant_f16_to_f32(v[c]);
            }
            args->out[i][c] = (float)(sum / denominator);
        }
        if (args->lse) args->lse[i] = (float)(largest + log(denominator));
    }
}
