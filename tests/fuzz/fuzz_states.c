/*
 * Any bytes as recorded gate states: open, then every chunk, state and logit. That what opens is
 * finite and in range is checked here, the rest by the sanitizers. Seeds: a recording, and small
 * breaches.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "tune/states.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const ek_states *s)
{
    const ek_states_shape *shape = &s->shape;
    ek_assert(strlen(s->model) == EK_STATES_MODEL_CHARS);
    ek_assert(shape->top_k >= 1 && shape->top_k <= shape->n_experts);
    for (int32_t t = 0; t < shape->n_tokens; t++)
        ek_assert(s->chunk[t] < (uint32_t)shape->n_chunks);
    for (int32_t l = 0; l < shape->n_layers; l++) {
        const float *hidden = ek_tune_states_hidden(s, l), *logits = ek_tune_states_logits(s, l);
        for (int64_t i = 0; i < (int64_t)shape->n_tokens * shape->d_model; i++)
            ek_assert(isfinite(hidden[i]));
        for (int64_t i = 0; i < (int64_t)shape->n_tokens * shape->n_experts; i++)
            ek_assert(isfinite(logits[i]));
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ek_states s;
    ek_err err;
    uint8_t *copy = malloc(size > 0 ? size : 1); /* aligned as a map is, and exactly as long */
    ek_assert(copy != NULL);
    memcpy(copy, data, size);
    if (ek_tune_states_open((ek_span){copy, size}, "fuzz", &s, &err) == EK_OK) walk(&s);
    free(copy);
    return 0;
}
