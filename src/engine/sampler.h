/*
 * Sampling one token from logits: penalties, bias, temperature, top-k, top-p, min-p, a draw.
 *
 * Order: logit_bias -> repetition, frequency, presence penalties -> (temperature 0: the highest,
 * lowest id of equals) -> temperature -> top_k -> top_p -> min_p -> draw. Penalties look at the
 * generated tokens and the prompt's (repetition) or the generated ones (frequency, presence), as
 * OpenAI and the common engines define them:
 *     repetition  z / r for z > 0, z * r otherwise  once for each token seen
 *     frequency   z - count * f                     for each token generated
 *     presence    z - p                             once for each token generated
 * The draw uses the request's own generator, so a seed repeats a request whatever else is running.
 * NaN counts as the lowest logit. When every logit is -inf or banned, the answer is id 0.
 * Pure but for the caller's state; one owner at a time per sampler.
 */
#ifndef EK_ENGINE_SAMPLER_H
#define EK_ENGINE_SAMPLER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/rng.h"

#define EK_SAMPLER_TOP_LOGPROBS_MAX  20
#define EK_SAMPLER_BIAS_MAX          300
#define EK_SAMPLER_SCRATCH_PER_TOKEN 20
#define EK_SAMPLER_LOGPROB_MIN       (-9999.0f) /* what JSON gets in place of -inf */

typedef struct ek_logit_bias {
    int32_t id;
    float bias; /* -100..100; -100 bans */
} ek_logit_bias;

typedef struct ek_sampling {
    float temperature;        /* 0 greedy .. 2 */
    int32_t top_k;            /* 0: all */
    float top_p;              /* (0, 1] */
    float min_p;              /* [0, 1) of the most likely one's probability */
    float repetition_penalty; /* > 0; 1: none */
    float frequency_penalty;  /* -2..2 */
    float presence_penalty;   /* -2..2 */
    uint64_t seed;
    const ek_logit_bias *bias; /* (n_bias) borrowed for the request's life */
    int32_t n_bias;
    int32_t n_logprobs; /* -1: none; 0..20 alternatives per token */
} ek_sampling;

typedef struct ek_sampler ek_sampler; /* counts of seen tokens, generator: one per request */

typedef struct ek_token_logprob {
    int32_t id;
    float logprob; /* natural log of the model's own softmax (temperature 1, before bias and
                      penalties), >= EK_SAMPLER_LOGPROB_MIN */
} ek_token_logprob;

typedef struct ek_sampled {
    int32_t id;
    float logprob;                                     /* valid when n_logprobs >= 0 */
    int32_t n_top;                                     /* min(n_logprobs, n_vocab) */
    ek_token_logprob top[EK_SAMPLER_TOP_LOGPROBS_MAX]; /* most likely first, lower id of equals */
} ek_sampled;

/**
 * Check what a client gave.
 * @return EK_OK; EK_EINVAL, the text names the parameter and its range
 */
EK_MUST ek_status ek_engine_sampling_check(const ek_sampling *sampling, int32_t n_vocab,
                                           ek_err *err);

/** @param n_tokens_max prompt and generated tokens that it will be told of, at most */
size_t ek_engine_sampler_bytes(int32_t n_vocab, int32_t n_tokens_max, const ek_sampling *sampling);

/** @param sampling checked; borrowed as long as the sampler, like its bias. @return in perm */
ek_sampler *ek_engine_sampler_init(ek_arena *perm, int32_t n_vocab, int32_t n_tokens_max,
                                   const ek_sampling *sampling);

/** Tell the sampler of prompt tokens (repetition penalty). */
void ek_engine_sampler_prompt(ek_sampler *sampler, const int32_t *tokens, int32_t n_tokens);

/**
 * Choose the next token and remember it.
 * @param logits (n_vocab), changed by the call
 * @param scratch at least n_vocab * EK_SAMPLER_SCRATCH_PER_TOKEN bytes and a cache line
 * Cost O(n_vocab), nothing is sorted.
 */
void ek_engine_sampler_draw(ek_sampler *sampler, float *logits, ek_arena scratch,
                            ek_sampled *out_sampled);

#endif
