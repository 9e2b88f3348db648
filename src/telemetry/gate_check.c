#include "telemetry/gate_check.h"

#include "telemetry/detect.h"
#include "telemetry/experts.h"
#include "telemetry/readings.h"

#define TOKENS_MIN       64   /* below, chance may send every token to one expert */
#define SLOTS_PER_EXPERT 8    /* on average, that make collapse and constant gates readable */
#define VISITS_MAX       0.99 /* part of all tokens that one expert may get */
#define WEIGHT_MAX       0.9  /* of the weight that one expert may have */

ek_status ek_telemetry_gate_counts_make(int32_t n_layers, int32_t n_experts, int32_t top_k,
                                        ek_arena *perm, ek_gate_counts *out_counts)
{
    int64_t cells = (int64_t)n_layers * n_experts;
    ek_gate_counts c = {.n_layers = n_layers, .n_experts = n_experts, .top_k = top_k};
    c.early = ek_try_new(perm, int64_t, cells);
    c.late = ek_try_new(perm, int64_t, cells);
    c.weight = ek_try_new(perm, double, cells);
    c.n_not_finite = ek_try_new(perm, int64_t, n_layers);
    if (!c.early || !c.late || !c.weight || !c.n_not_finite) return EK_ENOMEM;
    *out_counts = c;
    return EK_OK;
}

/* An expert that has too much of a layer: of its tokens, or of the weight. */
static ek_status check_hottest(const ek_gate_counts *c, int32_t layer, ek_err *err)
{
    int64_t at = (int64_t)layer * c->n_experts;
    double all = 0;
    int32_t visited = 0, heavy = 0;
    for (int32_t e = 0; e < c->n_experts; e++) {
        all += c->weight[at + e];
        if (c->weight[at + e] > c->weight[at + heavy]) heavy = e;
        if (c->early[at + e] + c->late[at + e] > c->early[at + visited] + c->late[at + visited])
            visited = e;
    }
    double visits = (double)(c->early[at + visited] + c->late[at + visited]) / (double)c->n_tokens;
    double heavy_part = all > 0 ? c->weight[at + heavy] / all : 0;
    if (visits >= VISITS_MAX)
        return ek_err_set(
            err, EK_ERANGE,
            "layer %d: expert %d gets %.1f %% of %lld tokens (at most %g %% is sane), "
            "and %.0f %% of the weight",
            (int)layer, (int)visited, 100 * visits, (long long)c->n_tokens, 100 * VISITS_MAX,
            all > 0 ? 100 * c->weight[at + visited] / all : 0);
    if (heavy_part >= WEIGHT_MAX)
        return ek_err_set(err, EK_ERANGE,
                          "layer %d: expert %d has %.1f %% of the weight of %lld tokens (at most "
                          "%g %% is sane)",
                          (int)layer, (int)heavy, 100 * heavy_part, (long long)c->n_tokens,
                          100 * WEIGHT_MAX);
    return EK_OK;
}

static ek_status check_readings(const ek_gate_counts *c, int32_t layer, ek_err *err)
{
    ek_detect_params limits;
    int64_t at = (int64_t)layer * c->n_experts, least = (int64_t)SLOTS_PER_EXPERT * c->n_experts;
    int64_t both[EK_EXPERTS_PER_LAYER_MAX];
    ek_telemetry_detect_params_default(&limits);
    for (int32_t e = 0; e < c->n_experts; e++)
        both[e] = c->early[at + e] + c->late[at + e];
    ek_reading r = ek_telemetry_read_collapse(both, c->n_experts, c->top_k, least);
    if (r.known && r.value >= limits.limit[EK_DETECT_COLLAPSE].raise)
        return ek_err_set(
            err, EK_ERANGE,
            "layer %d: %.1f of %d experts are in use, and the hottest %d have %.0f %% "
            "of the token-slots",
            (int)layer, r.with[0], (int)c->n_experts, (int)c->top_k, 100 * r.with[1]);
    r = ek_telemetry_read_constant(c->late + at, c->early + at, c->n_experts, c->top_k, least / 2);
    if (r.known && r.value >= limits.limit[EK_DETECT_CONSTANT_GATE].raise)
        return ek_err_set(err, EK_ERANGE,
                          "layer %d: the gate is constant: %.1f %% of the tokens go to the same %d "
                          "experts",
                          (int)layer, 100 * r.with[0], (int)c->top_k);
    return EK_OK;
}

ek_status ek_telemetry_gate_check(const ek_gate_counts *c, ek_err *err)
{
    for (int32_t l = 0; l < c->n_layers; l++) {
        if (c->n_not_finite[l] > 0)
            return ek_err_set(
                err, EK_ERANGE, "layer %d: %lld of %lld gate logits are no finite numbers", (int)l,
                (long long)c->n_not_finite[l], (long long)(c->n_tokens * c->n_experts));
        bool chooses = c->n_experts >= 2 * c->top_k && c->n_tokens >= TOKENS_MIN;
        ek_status status = chooses ? check_hottest(c, l, err) : EK_OK;
        if (status == EK_OK && c->n_experts > c->top_k && c->top_k <= EK_READING_TOP_K_MAX)
            status = check_readings(c, l, err);
        if (status != EK_OK) return status;
    }
    return EK_OK;
}
