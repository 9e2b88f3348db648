#include "engine/sampler_cut.h"

#include <math.h>
#include <stdbool.h>

#include "base/assert.h"
#include "engine/sampler_select.h"

/* Tokens whose maximum stands for them when a bound is looked for. */
#define BLOCK 32

typedef struct row {
    int32_t n;
    int32_t *id;
    float *logit, *weight;
} row;

float *ek_engine_sampler_row(ek_arena *scratch, int32_t n)
{
    float *mem = ek_arena_try_raw(scratch, (size_t)n, sizeof *mem, _Alignof(float));
    ek_assert(mem != NULL);
    return mem;
}

/*
 * A logit that at least `count` tokens reach: the count-th highest of the blocks' maxima, each of
 * which is a token. tmp has room for all blocks.
 */
static float bound_of_count(const float *logits, int32_t n, int32_t count, row *tmp)
{
    int32_t n_blocks = n / BLOCK;
    if (count > n_blocks) return -INFINITY;
    for (int32_t b = 0; b < n_blocks; b++) {
        tmp->logit[b] = ek_engine_select_max(logits + b * BLOCK, BLOCK, NULL);
        tmp->weight[b] = 1.0f;
    }
    ek_engine_select_keep_count(tmp->logit, n_blocks, count, tmp->weight);
    float bound = INFINITY;
    for (int32_t b = 0; b < n_blocks; b++)
        if (tmp->weight[b] > 0.0f && tmp->logit[b] < bound) bound = tmp->logit[b];
    return bound;
}

/*
 * A weight that every token of the share reaches: all tokens below sum * (1 - share) / n together
 * weigh less than what may be missing. A little less, since weights are rounded.
 */
static float bound_of_share(double sum, int32_t n, float share)
{
    return (float)(sum * (1.0 - (double)share) / (double)n * (1.0 - 1e-5));
}

static void gather(const float *logits, const float *weights, int32_t n, float least_logit,
                   float least_weight, row *out)
{
    out->n = 0;
    for (int32_t id = 0; id < n; id++) {
        if (logits[id] < least_logit || weights[id] < least_weight) continue;
        out->id[out->n] = id;
        out->logit[out->n] = logits[id];
        out->weight[out->n++] = weights[id];
    }
}

void ek_engine_sampler_cut(const float *logits, int32_t n, float max, const ek_sampling *sampling,
                           ek_arena *scratch, ek_candidates *out_candidates)
{
    bool by_count = sampling->top_k > 0 && sampling->top_k < n;
    bool by_share = sampling->top_p < 1.0f;
    float *weights = ek_engine_sampler_row(scratch, n);
    ek_engine_select_weights(logits, n, max, sampling->temperature, weights);
    *out_candidates = (ek_candidates){.n = n, .weight = weights};
    if (!by_count && !by_share && sampling->min_p <= 0.0f) return;

    row kept = {
        .id = ek_arena_try_raw(scratch, (size_t)n, sizeof(int32_t), _Alignof(int32_t)),
        .logit = ek_engine_sampler_row(scratch, n),
        .weight = ek_engine_sampler_row(scratch, n),
    };
    ek_assert(kept.id != NULL);
    double sum = 0.0;
    if (by_count) {
        float least = bound_of_count(logits, n, sampling->top_k, &kept);
        gather(logits, weights, n, least, 0.0f, &kept);
        ek_engine_select_keep_count(kept.logit, kept.n, sampling->top_k, kept.weight);
        sum = ek_engine_select_sum(kept.weight, kept.n);
    } else {
        sum = ek_engine_select_sum(weights, n);
        float least = by_share ? bound_of_share(sum, n, sampling->top_p) : sampling->min_p;
        gather(logits, weights, n, -INFINITY, least, &kept);
    }
    if (by_share)
        ek_engine_select_keep_amount(kept.logit, kept.n, (double)sampling->top_p * sum,
                                     kept.weight);
    ek_engine_select_keep_above(kept.n, sampling->min_p, kept.weight);
    *out_candidates = (ek_candidates){.n = kept.n, .id = kept.id, .weight = kept.weight};
}
