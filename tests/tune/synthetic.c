#include "synthetic.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#define CHUNK_TOKENS 32

static const char model[EK_STATES_MODEL_CHARS + 1] =
    "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

void synthetic_open(synthetic *s, int32_t n_tokens, double skew)
{
    ek_rng rng;
    ek_rng_init(&rng, 7);
    *s = (synthetic){
        .shape = {.n_tokens = n_tokens,
                  .n_layers = 1,
                  .n_experts = SYN_EXPERTS,
                  .d_model = SYN_WIDTH,
                  .top_k = SYN_TOP_K,
                  .n_chunks = (n_tokens - 1) / CHUNK_TOKENS + 1,
                  .n_seen = n_tokens},
        .gate = {.score = EK_ROUTE_SOFTMAX,
                 .n_experts = SYN_EXPERTS,
                 .top_k = SYN_TOP_K,
                 .n_groups = 1,
                 .n_groups_used = 1,
                 .scale = 1},
    };
    for (int32_t i = 0; i < SYN_EXPERTS * SYN_WIDTH; i++)
        s->weight[i] = (float)(0.5 * ek_tune_normal(&rng));
    s->bytes = ek_tune_states_bytes(&s->shape);
    s->mem = calloc(1, s->bytes);
    assert_non_null(s->mem);
    ek_tune_states_begin(&s->shape, model, s->mem);
    float *hidden = ek_tune_states_hidden_of(&s->shape, 0, s->mem);
    float *logits = ek_tune_states_logits_of(&s->shape, 0, s->mem);
    for (int32_t t = 0; t < n_tokens; t++) {
        ek_tune_states_chunks(&s->shape, s->mem)[t] = (uint32_t)(t / CHUNK_TOKENS);
        /* A direction of the gate, the first ones more often, and noise. */
        double pick = ek_rng_unit(&rng);
        int32_t e = (int32_t)(SYN_EXPERTS * (skew > 1 ? pick * pick : pick));
        for (int32_t c = 0; c < SYN_WIDTH; c++)
            hidden[t * SYN_WIDTH + c] =
                (float)(0.6 * (double)s->weight[e * SYN_WIDTH + c] + 0.8 * ek_tune_normal(&rng));
        for (int32_t j = 0; j < SYN_EXPERTS; j++)
            for (int32_t c = 0; c < SYN_WIDTH; c++)
                logits[t * SYN_EXPERTS + j] +=
                    s->weight[j * SYN_WIDTH + c] * hidden[t * SYN_WIDTH + c];
    }
    ek_err err = {0};
    if (ek_tune_states_open((ek_span){s->mem, s->bytes}, "synthetic", &s->states, &err) != EK_OK)
        fail_msg("%s", err.text);
}

void synthetic_close(synthetic *s)
{
    free(s->mem);
    *s = (synthetic){0};
}

ek_status synthetic_problem(const synthetic *s, ek_arena *perm, ek_gate_problem *out_problem)
{
    const ek_gate_setup setup = {
        .gemm = cblas_dgemm, .gate = s->gate, .weight = s->weight, .mend = 3};
    return ek_tune_problem_make(&s->states, 0, &setup, perm, out_problem);
}
