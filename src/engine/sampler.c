#include "engine/sampler.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "engine/sampler_cut.h"
#include "engine/sampler_select.h"

#define BIAS_BAN (-100.0f)

/* One distinct token that was seen: a slot of an open-addressing table keyed by id. */
typedef struct seen_token {
    int32_t id_plus_1; /* 0: empty slot */
    int32_t n_generated;
} seen_token;

struct ek_sampler {
    const ek_sampling *sampling; /* borrowed from the request */
    int32_t n_vocab;
    int32_t n_slots;  /* power of two, at least twice the distinct tokens; 0: no penalties */
    seen_token *seen; /* (n_slots) */
    ek_rng rng;
};

/* ---- what has been seen ---- */

static bool has_penalties(const ek_sampling *s)
{
    return s->repetition_penalty != 1.0f || s->frequency_penalty != 0.0f ||
           s->presence_penalty != 0.0f;
}

static int32_t slots_for(int32_t n_vocab, int32_t n_tokens_max, const ek_sampling *sampling)
{
    if (!has_penalties(sampling)) return 0;
    int64_t distinct = n_tokens_max < n_vocab ? n_tokens_max : n_vocab;
    int32_t n = 16;
    while (n < 2 * distinct)
        n *= 2;
    return n;
}

static seen_token *find_seen(ek_sampler *sampler, int32_t id)
{
    uint32_t mask = (uint32_t)sampler->n_slots - 1;
    uint32_t at = (uint32_t)ek_mix64((uint64_t)(uint32_t)id) & mask;
    while (sampler->seen[at].id_plus_1 != 0 && sampler->seen[at].id_plus_1 != id + 1)
        at = (at + 1) & mask;
    sampler->seen[at].id_plus_1 = id + 1;
    return &sampler->seen[at];
}

size_t ek_engine_sampler_bytes(int32_t n_vocab, int32_t n_tokens_max, const ek_sampling *sampling)
{
    size_t n_slots = (size_t)slots_for(n_vocab, n_tokens_max, sampling);
    return sizeof(ek_sampler) + _Alignof(ek_sampler) + n_slots * sizeof(seen_token) +
           _Alignof(seen_token);
}

ek_sampler *ek_engine_sampler_init(ek_arena *perm, int32_t n_vocab, int32_t n_tokens_max,
                                   const ek_sampling *sampling)
{
    ek_sampler *sampler = ek_new(perm, ek_sampler, 1);
    sampler->sampling = sampling;
    sampler->n_vocab = n_vocab;
    sampler->n_slots = slots_for(n_vocab, n_tokens_max, sampling);
    sampler->seen = ek_new(perm, seen_token, sampler->n_slots);
    ek_rng_init(&sampler->rng, sampling->seed);
    return sampler;
}

void ek_engine_sampler_prompt(ek_sampler *sampler, const int32_t *tokens, int32_t n_tokens)
{
    /* Only the repetition penalty looks at the prompt. */
    if (sampler->sampling->repetition_penalty == 1.0f) return;
    for (int32_t i = 0; i < n_tokens; i++)
        (void)find_seen(sampler, tokens[i]);
}

static void remember(ek_sampler *sampler, int32_t id)
{
    if (sampler->n_slots > 0) find_seen(sampler, id)->n_generated++;
}

/* ---- what the client asked for, applied to the logits ---- */

static void apply_bias(const ek_sampling *s, float *logits)
{
    for (int32_t i = 0; i < s->n_bias; i++) {
        float *z = &logits[s->bias[i].id];
        *z = s->bias[i].bias <= BIAS_BAN ? -INFINITY : *z + s->bias[i].bias;
    }
}

static void apply_penalties(const ek_sampler *sampler, float *logits)
{
    const ek_sampling *s = sampler->sampling;
    for (int32_t i = 0; i < sampler->n_slots; i++) {
        const seen_token *seen = &sampler->seen[i];
        if (seen->id_plus_1 == 0) continue;
        float *z = &logits[seen->id_plus_1 - 1];
        *z = *z > 0.0f ? *z / s->repetition_penalty : *z * s->repetition_penalty;
        *z -= (float)seen->n_generated * s->frequency_penalty;
        if (seen->n_generated > 0) *z -= s->presence_penalty;
    }
}

/* ---- the model's own opinion ---- */

static float logprob_of(float logit, float max, double log_sum)
{
    double logprob = (logit == max ? 0.0 : (double)logit - (double)max) - log_sum;
    return logprob > EK_SAMPLER_LOGPROB_MIN ? (float)logprob : EK_SAMPLER_LOGPROB_MIN;
}

/* The n highest by insertion; ids come ascending, so that an equal one never overtakes. */
static int32_t find_top(const float *logits, int32_t n_vocab, int32_t n, ek_token_logprob *top)
{
    int32_t n_top = 0;
    for (int32_t id = 0; id < n_vocab && n > 0; id++) {
        if (n_top == n && !(logits[id] > top[n - 1].logprob)) continue;
        int32_t at = n_top < n ? n_top++ : n - 1;
        for (; at > 0 && logits[id] > top[at - 1].logprob; at--)
            top[at] = top[at - 1];
        top[at] = (ek_token_logprob){.id = id, .logprob = logits[id]};
    }
    return n_top;
}

/* Logprobs of the chosen token and the alternatives, from the logits as the model gave them. */
static void report_logprobs(const float *raw, int32_t n_vocab, int32_t n_logprobs, ek_arena scratch,
                            ek_sampled *out)
{
    float max = ek_engine_select_max(raw, n_vocab, NULL);
    double log_sum = log((double)n_vocab); /* all -inf: nothing is likelier than anything else */
    if (max > -INFINITY) {
        float *weights = ek_engine_sampler_row(&scratch, n_vocab);
        ek_engine_select_weights(raw, n_vocab, max, 1.0f, weights);
        log_sum = log(ek_engine_select_sum(weights, n_vocab));
    }
    out->logprob = logprob_of(raw[out->id], max, log_sum);
    out->n_top = find_top(raw, n_vocab, n_logprobs, out->top);
    for (int32_t i = 0; i < out->n_top; i++)
        out->top[i].logprob = logprob_of(out->top[i].logprob, max, log_sum);
}

/* ---- the choice ---- */

static int32_t choose(ek_sampler *sampler, const float *logits, ek_arena scratch)
{
    const ek_sampling *s = sampler->sampling;
    int32_t best;
    float max = ek_engine_select_max(logits, sampler->n_vocab, &best);
    if (s->temperature <= 0.0f || max == -INFINITY) return best;
    ek_candidates candidates;
    ek_engine_sampler_cut(logits, sampler->n_vocab, max, s, &scratch, &candidates);
    double unit = ek_rng_unit(&sampler->rng);
    int32_t at = ek_engine_select_pick(candidates.weight, candidates.n, unit);
    return candidates.id ? candidates.id[at] : at;
}

void ek_engine_sampler_draw(ek_sampler *sampler, float *logits, ek_arena scratch,
                            ek_sampled *out_sampled)
{
    const ek_sampling *s = sampler->sampling;
    int32_t n_vocab = sampler->n_vocab;
    float *raw = NULL;
    for (int32_t id = 0; id < n_vocab; id++)
        logits[id] = isnan(logits[id]) ? -INFINITY : logits[id];
    if (s->n_logprobs >= 0) {
        raw = ek_engine_sampler_row(&scratch, n_vocab);
        memcpy(raw, logits, (size_t)n_vocab * sizeof *raw);
    }
    apply_bias(s, logits);
    if (sampler->n_slots > 0) apply_penalties(sampler, logits);
    ek_sampled sampled = {.id = choose(sampler, logits, scratch)};
    if (raw) report_logprobs(raw, n_vocab, s->n_logprobs, scratch, &sampled);
    remember(sampler, sampled.id);
    *out_sampled = sampled;
}

/* ---- what may be asked for ---- */

static ek_status out_of_range(ek_err *err, const char *name, double value, const char *range)
{
    return ek_err_set(err, EK_EINVAL, "%s is %g; it must be %s", name, value, range);
}

/* Written as "inside" so that NaN is refused too. */
ek_status ek_engine_sampling_check(const ek_sampling *s, int32_t n_vocab, ek_err *err)
{
    if (!(s->temperature >= 0.0f && s->temperature <= 2.0f))
        return out_of_range(err, "temperature", (double)s->temperature, "from 0 to 2");
    if (s->top_k < 0) return out_of_range(err, "top_k", s->top_k, "0 (all) or more");
    if (!(s->top_p > 0.0f && s->top_p <= 1.0f))
        return out_of_range(err, "top_p", (double)s->top_p, "above 0 and at most 1");
    if (!(s->min_p >= 0.0f && s->min_p < 1.0f))
        return out_of_range(err, "min_p", (double)s->min_p, "at least 0 and below 1");
    if (!(s->repetition_penalty > 0.0f && s->repetition_penalty <= 1e6f))
        return out_of_range(err, "repetition_penalty", (double)s->repetition_penalty,
                            "above 0 and at most 1e6");
    if (!(s->frequency_penalty >= -2.0f && s->frequency_penalty <= 2.0f))
        return out_of_range(err, "frequency_penalty", (double)s->frequency_penalty, "from -2 to 2");
    if (!(s->presence_penalty >= -2.0f && s->presence_penalty <= 2.0f))
        return out_of_range(err, "presence_penalty", (double)s->presence_penalty, "from -2 to 2");
    if (s->n_logprobs < -1 || s->n_logprobs > EK_SAMPLER_TOP_LOGPROBS_MAX)
        return out_of_range(err, "top_logprobs", s->n_logprobs, "from 0 to 20");
    if (s->n_bias < 0 || s->n_bias > EK_SAMPLER_BIAS_MAX)
        return out_of_range(err, "the number of logit_bias entries", s->n_bias, "from 0 to 300");
    for (int32_t i = 0; i < s->n_bias; i++) {
        if (s->bias[i].id < 0 || s->bias[i].id >= n_vocab)
            return ek_err_set(err, EK_EINVAL, "logit_bias names token %d; ids go from 0 to %d",
                              (int)s->bias[i].id, (int)(n_vocab - 1));
        if (!(s->bias[i].bias >= -100.0f && s->bias[i].bias <= 100.0f))
            return out_of_range(err, "a logit_bias", (double)s->bias[i].bias, "from -100 to 100");
    }
    return EK_OK;
}
