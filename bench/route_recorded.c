#include "route_recorded.h"

#include <math.h>
#include <string.h>

#define RANKED_MAX 24 /* experts behind the chosen that get a place of their own */

/* Of a softmax over 64 experts whose best six have 0.36 in all, as in DeepSeek-V2-Lite. */
#define FALL_UNKNOWN 0.93
#define FALL_MIN     0.5
#define FALL_MAX     0.98

ek_route_gate ek_bench_set_gate(const ek_bench_set *set)
{
    ek_route_gate gate = {EK_ROUTE_SOFTMAX, set->n_experts, set->top_k, 1, 1, false, 1.0f};
    if (strncmp(set->name, "gptoss", 6) == 0) gate.score = EK_ROUTE_SOFTMAX_CHOSEN;
    if (strncmp(set->name, "dsv4", 4) == 0) {
        gate.renormalise = true;
        gate.scale = 1.5f;
    }
    return gate;
}

static ek_bench_sequence draw(const ek_bench_domain *domain, ek_rng *rng)
{
    return domain->sequence[ek_rng_below(rng, (uint64_t)domain->n_sequences)];
}

void ek_bench_stream_start(ek_bench_stream *stream, const ek_bench_set *set, int32_t domain,
                           int32_t n_streams, ek_rng *rng)
{
    *stream = (ek_bench_stream){.set = set, .domain = domain, .n_streams = n_streams};
    for (int32_t i = 0; i < n_streams; i++) {
        ek_bench_sequence *s = &stream->left[i];
        *s = draw(&set->domain[domain], rng);
        s->beg += (int32_t)ek_rng_below(rng, (uint64_t)(s->end - s->beg));
    }
}

void ek_bench_stream_next(ek_bench_stream *stream, ek_rng *rng, int32_t *out_tokens)
{
    for (int32_t i = 0; i < stream->n_streams; i++) {
        ek_bench_sequence *s = &stream->left[i];
        if (s->beg == s->end) *s = draw(&stream->set->domain[stream->domain], rng);
        out_tokens[i] = s->beg++;
    }
}

/** Logits of the chosen, best first as their ids are. @return by how much they fall a place */
static double recall_chosen(const ek_mrt *mrt, int32_t token, int32_t layer, double *out)
{
    if (!mrt->weight) {
        for (int32_t k = 0; k < mrt->top_k; k++)
            out[k] = k * log(FALL_UNKNOWN);
        return -log(FALL_UNKNOWN);
    }
    for (int32_t k = 0; k < mrt->top_k; k++)
        out[k] = log(fmax(ek_trace_mrt_weight(mrt, token, layer, k), 1e-4));
    double most = out[0], least = out[0];
    for (int32_t k = 1; k < mrt->top_k; k++) {
        most = fmax(most, out[k]);
        least = fmin(least, out[k]);
    }
    double fall = mrt->top_k > 1 ? (most - least) / (mrt->top_k - 1) : 0;
    return fmin(fmax(fall, -log(FALL_MAX)), -log(FALL_MIN));
}

void ek_bench_stream_logits(const ek_bench_stream *stream, int32_t token, int32_t layer,
                            ek_rng *rng, float *out_logits)
{
    const ek_bench_set *set = stream->set;
    const ek_mrt *mrt = set->domain[stream->domain].mrt;
    const int64_t *total =
        set->totals + ((ptrdiff_t)stream->domain * set->n_layers + layer) * set->n_experts;
    const uint8_t *chosen = ek_trace_mrt_experts(mrt, token, layer);
    double chosen_logit[EK_ROUTE_TOP_K_MAX], key[RANKED_MAX], least = INFINITY;
    double fall = recall_chosen(mrt, token, layer, chosen_logit);
    bool is_chosen[EK_MRT_EXPERTS_MAX] = {false};
    for (int32_t k = 0; k < mrt->top_k; k++) {
        is_chosen[chosen[k]] = true;
        least = fmin(least, chosen_logit[k]);
    }
    /* The lowest of exponential times with rates in proportion come first. */
    int32_t ranked[RANKED_MAX], n = 0;
    for (int32_t e = 0; e < set->n_experts; e++) {
        out_logits[e] = (float)(least - fall * (RANKED_MAX + 1));
        if (is_chosen[e]) continue;
        double time = -log(1 - ek_rng_unit(rng)) / (double)(total[e] + 1);
        if (n == RANKED_MAX && time >= key[n - 1]) continue;
        int32_t at = n < RANKED_MAX ? n++ : n - 1;
        for (; at > 0 && key[at - 1] > time; at--) {
            key[at] = key[at - 1];
            ranked[at] = ranked[at - 1];
        }
        key[at] = time;
        ranked[at] = e;
    }
    for (int32_t i = 0; i < n; i++)
        out_logits[ranked[i]] = (float)(least - fall * (i + 1));
    for (int32_t k = 0; k < mrt->top_k; k++)
        out_logits[chosen[k]] = (float)chosen_logit[k];
}
