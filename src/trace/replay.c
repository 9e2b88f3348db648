#include "trace/replay.h"

#include <math.h>

#include "base/assert.h"

/* Recorded shares that add up to more were normalised among the chosen. */
#define SHARE_MAX 0.98
/* By how much an expert that was not chosen stays below the least of those that were. */
#define OTHERS_BELOW 0.9
/* The model's own logits order the others within one unit. */
#define OTHERS_SPREAD 1.0f

enum { CHOICES_MAX = EK_MRT_EXPERTS_MAX };

typedef struct choices {
    int32_t expert[CHOICES_MAX];
    double share[CHOICES_MAX];
    int32_t n;
} choices;

size_t ek_trace_replay_bytes(const ek_mrt *recording, int32_t n)
{
    size_t n_seqs = 0;
    for (int32_t r = 0; r < n; r++)
        n_seqs += (size_t)recording[r].n_sequences;
    return n_seqs * sizeof(ek_trace_replay_seq) + ((size_t)n + 1) * sizeof(int32_t) +
           2 * (size_t)EK_CACHE_LINE;
}

ek_status ek_trace_replay_make(const ek_mrt *recording, int32_t n, int32_t n_layers,
                               int32_t n_experts, int32_t top_k, ek_arena *arena,
                               ek_trace_replay *out_replay)
{
    int64_t n_seqs = 0;
    for (int32_t r = 0; r < n; r++)
        n_seqs += recording[r].n_sequences;
    ek_trace_replay_seq *seq = ek_new(arena, ek_trace_replay_seq, n_seqs);
    int32_t *begin = ek_new(arena, int32_t, n + 1);
    int32_t at = 0;
    for (int32_t r = 0; r < n; r++) {
        int32_t first = 0;
        begin[r] = at;
        for (int32_t s = 0; s < recording[r].n_sequences; s++) {
            const int32_t length = ek_trace_mrt_length(&recording[r], s);
            if (length > 0) seq[at++] = (ek_trace_replay_seq){&recording[r], first, length};
            first += length;
        }
        if (at == begin[r]) return EK_EINVAL;
    }
    begin[n] = at;
    *out_replay = (ek_trace_replay){.seq = seq,
                                    .begin = begin,
                                    .n = n,
                                    .n_layers = n_layers,
                                    .n_experts = n_experts,
                                    .top_k = top_k};
    return EK_OK;
}

/* The first top_k different experts of a recorded token, and their share of all scores. */
static void choose(const ek_trace_replay *r, const ek_mrt *mrt, int32_t token, int32_t layer,
                   choices *out)
{
    const uint8_t *expert = ek_trace_mrt_experts(mrt, token, layer);
    double sum = 0.0;
    out->n = 0;
    for (int32_t k = 0; k < mrt->top_k && out->n < r->top_k; k++) {
        const int32_t e = expert[k] % r->n_experts;
        bool is_new = true;
        for (int32_t i = 0; i < out->n; i++)
            is_new = is_new && out->expert[i] != e;
        if (!is_new) continue;
        const double weight = ek_trace_mrt_weight(mrt, token, layer, k);
        out->expert[out->n] = e;
        out->share[out->n++] = weight > 0.0 ? weight : 1.0 / mrt->top_k;
        sum += out->share[out->n - 1];
    }
    const double share = mrt->weight && sum < SHARE_MAX ? sum : EK_TRACE_CHOSEN_SHARE;
    for (int32_t i = 0; i < out->n; i++)
        out->share[i] *= share / sum;
}

void ek_trace_replay_logits(const ek_trace_replay *replay, uint64_t key, int32_t position,
                            int32_t layer, float *logits)
{
    ek_dassert(position >= 0 && layer >= 0 && layer < replay->n_layers);
    const uint64_t n = (uint64_t)replay->n;
    const int32_t *begin = &replay->begin[key % n];
    const ek_trace_replay_seq *seq =
        &replay->seq[begin[0] + (int32_t)(key / n % (uint64_t)(begin[1] - begin[0]))];
    const ek_mrt *mrt = seq->mrt;
    choices chosen;
    choose(replay, mrt, seq->first + position % seq->n_tokens,
           (int32_t)((int64_t)layer * mrt->n_layers / replay->n_layers), &chosen);
    double sum = 0.0, least = 1.0;
    for (int32_t i = 0; i < chosen.n; i++) {
        sum += chosen.share[i];
        least = fmin(least, chosen.share[i]);
    }
    const int32_t n_others = replay->n_experts - chosen.n;
    const double each = fmin((1.0 - sum) / (n_others > 0 ? n_others : 1), OTHERS_BELOW * least);
    const float others = (float)log(each);
    float highest = -INFINITY;
    for (int32_t e = 0; e < replay->n_experts; e++)
        highest = fmaxf(highest, logits[e]);
    for (int32_t e = 0; e < replay->n_experts; e++)
        logits[e] = others + fmaxf(-OTHERS_SPREAD, logits[e] - highest);
    for (int32_t i = 0; i < chosen.n; i++)
        logits[chosen.expert[i]] = (float)log(chosen.share[i]);
}
