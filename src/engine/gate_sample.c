/* A prompt through the model, only to see what its gates choose (engine/watch.h). */
#include <math.h>
#include <string.h>

#include "engine/engine_internal.h"
#include "engine/watch.h"
#include "sys/mem.h"

typedef struct sample {
    ek_gate_counts *counts;
    int64_t n_prompt;
    int64_t *seen; /* (n_layers) tokens so far */
} sample;

static void on_gate(void *ctx, int32_t layer, const float *logits, int32_t n_tokens)
{
    const sample *s = ctx;
    for (int64_t i = 0; i < (int64_t)n_tokens * s->counts->n_experts; i++)
        s->counts->n_not_finite[layer] += !isfinite(logits[i]);
}

static void on_plan(void *ctx, int32_t layer, const ek_route_plan *plan)
{
    sample *s = ctx;
    ek_gate_counts *c = s->counts;
    int64_t at = (int64_t)layer * c->n_experts;
    for (int32_t t = 0; t < plan->n_tokens; t++) {
        int64_t *half = s->seen[layer]++ < s->n_prompt / 2 ? c->early : c->late;
        for (int32_t k = 0; k < plan->top_k; k++) {
            int32_t e = plan->expert_id[(int64_t)t * plan->top_k + k];
            if (e < 0) continue;
            half[at + e]++;
            c->weight[at + e] += plan->weight[(int64_t)t * plan->top_k + k];
        }
    }
}

static void clear(ek_gate_counts *c)
{
    size_t cells = (size_t)c->n_layers * (size_t)c->n_experts;
    memset(c->early, 0, cells * sizeof *c->early);
    memset(c->late, 0, cells * sizeof *c->late);
    memset(c->weight, 0, cells * sizeof *c->weight);
    memset(c->n_not_finite, 0, (size_t)c->n_layers * sizeof *c->n_not_finite);
}

ek_status ek_engine_sample_gates(ek_engine *engine, const int32_t *prompt, int32_t n_prompt,
                                 ek_gate_counts *counts, ek_err *err)
{
    sample s = {.counts = counts, .n_prompt = n_prompt};
    float *logits = ek_sys_calloc((size_t)engine->shape.n_vocab, sizeof *logits);
    s.seen = ek_sys_calloc((size_t)counts->n_layers, sizeof *s.seen);
    ek_status status = EK_ENOMEM;
    if (logits && s.seen) {
        clear(counts);
        /*
         * The step thread sees the probe because it takes the request out of its inbox later, and
         * is done with it when the answer is here; nobody else has requests inside.
         */
        const ek_forward_probe probe = {.ctx = &s, .on_plan = on_plan, .on_gate = on_gate};
        ek_engine_forward_set_probe(engine->forward, &probe);
        status = ek_engine_logits(engine, prompt, n_prompt, logits, err);
        ek_engine_forward_set_probe(engine->forward, NULL);
        counts->n_tokens = s.seen[0];
        for (int32_t i = 0; status == EK_OK && i < engine->shape.n_vocab; i++)
            if (isnan(logits[i]))
                status = ek_err_set(err, EK_ERANGE, "the output of the last layer is no number");
    } else {
        ek_err_set(err, EK_ENOMEM, "no memory to sample the gates");
    }
    ek_sys_free(logits);
    ek_sys_free(s.seen);
    return status;
}
