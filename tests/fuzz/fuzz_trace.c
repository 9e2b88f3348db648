/*
 * Any bytes as a recording: open, then every length, id, weight and count. That ids stay within the
 * layer and differ within a choice, and that counts add up, is checked here, the rest by the
 * sanitizers. Seeds: a recording with weights, one without, an empty one, and small breaches.
 */
#include <stdint.h>
#include <stdlib.h>

#include "base/assert.h"
#include "trace/mrt.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const ek_mrt *m)
{
    int64_t n_tokens = 0;
    for (int32_t i = 0; i < m->n_sequences; i++)
        n_tokens += ek_trace_mrt_length(m, i);
    ek_assert(n_tokens == m->n_tokens);
    for (int32_t t = 0; t < m->n_tokens; t++)
        for (int32_t l = 0; l < m->n_layers; l++)
            for (int32_t k = 0; k < m->top_k; k++) {
                const uint8_t *expert = ek_trace_mrt_experts(m, t, l);
                ek_assert(expert[k] < m->n_experts);
                for (int32_t earlier = 0; earlier < k; earlier++)
                    ek_assert(expert[earlier] != expert[k]);
                double weight = ek_trace_mrt_weight(m, t, l, k);
                ek_assert(weight >= 0.0 && weight < 6.5536);
            }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ek_mrt m;
    ek_err err;
    if (ek_trace_mrt_open((ek_span){data, size}, "fuzz", &m, &err) != EK_OK) return 0;
    walk(&m);
    /* The matrix is as large as the header says; a recording of many layers may be a short file. */
    size_t cells = (size_t)m.n_layers * (size_t)m.n_experts;
    if (cells > 1u << 16) return 0;
    int64_t *counts = calloc(cells, sizeof *counts), sum = 0;
    ek_assert(counts != NULL);
    ek_trace_mrt_count(&m, 0, m.n_tokens, counts);
    for (size_t i = 0; i < cells; i++)
        sum += counts[i];
    ek_assert(sum == (int64_t)m.n_tokens * m.n_layers * m.top_k);
    free(counts);
    return 0;
}
