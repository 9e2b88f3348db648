#include "telemetry/detect.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "telemetry/detect_text.h"
#include "telemetry/experts.h"

/* One kind in one layer. */
typedef struct watch {
    ek_reading last; /* that was known */
    int64_t since_us;
    int32_t n_bad;  /* windows in a row at or above raise */
    int32_t n_good; /* below clear */
    bool is_raised;
} watch;

struct ek_detect {
    ek_detect_params params;
    int32_t n_layers;
    int32_t n_experts;
    int32_t top_k;
    int64_t n_seen;  /* windows; number i lies in place i % params.n_windows */
    int64_t *tokens; /* (params.n_windows, n_layers, n_experts) */
    watch *watches;  /* (EK_DETECT_N_KINDS, n_layers); the stale view has the first of its row */
};

void ek_telemetry_detect_params_default(ek_detect_params *out_params)
{
    *out_params = (ek_detect_params){
        .limit =
            {
                [EK_DETECT_STALE_VIEW] = {5.0, 2.0, 1, 1},
                [EK_DETECT_CONSTANT_GATE] = {0.99, 0.95, 2, 3},
                [EK_DETECT_COLLAPSE] = {0.9, 0.8, 2, 3},
                [EK_DETECT_ZERO_HIT] = {1.0, 1.0, 1, 1}, /* many windows make this reading */
                [EK_DETECT_OSCILLATION] = {0.1, 0.05, 2, 3},
                [EK_DETECT_IMBALANCE] = {2.0, 1.6, 3, 3},
                [EK_DETECT_OVERLOAD] = {0.85, 0.6, 3, 3},
            },
        .n_windows = 8,
        .tokens_per_expert_min = 32,
        .sample_us = 100000,
    };
}

const char *ek_telemetry_detect_name(ek_detect_kind kind)
{
    static const char *const names[] = {"stale_view",  "constant_gate", "collapse", "zero_hit",
                                        "oscillation", "imbalance",     "overload"};
    return names[kind];
}

static bool params_valid(const ek_detect_params *p)
{
    for (int32_t k = 0; k < EK_DETECT_N_KINDS; k++) {
        const ek_detect_limit *l = &p->limit[k];
        bool good = l->clear <= l->raise && isfinite(l->raise) && isfinite(l->clear) &&
                    l->raise_windows >= 1 && l->clear_windows >= 1;
        if (!good) return false;
    }
    return p->n_windows >= 3 && p->n_windows <= EK_READING_WINDOWS_MAX &&
           p->tokens_per_expert_min >= 1 && p->sample_us > 0;
}

static bool sizes_valid(int32_t n_layers, int32_t n_experts)
{
    return n_layers >= 1 && n_layers <= EK_EXPERTS_LAYERS_MAX && n_experts >= 1 &&
           n_experts <= EK_EXPERTS_PER_LAYER_MAX;
}

size_t ek_telemetry_detect_bytes(const ek_detect_params *params, int32_t n_layers,
                                 int32_t n_experts)
{
    if (!params_valid(params) || !sizes_valid(n_layers, n_experts)) return 0;
    size_t cells = (size_t)n_layers * (size_t)n_experts;
    return sizeof(ek_detect) + (size_t)params->n_windows * cells * sizeof(int64_t) +
           EK_DETECT_N_KINDS * (size_t)n_layers * sizeof(watch) + 4 * EK_CACHE_LINE;
}

ek_status ek_telemetry_detect_create(const ek_detect_params *params, int32_t n_layers,
                                     int32_t n_experts, int32_t top_k, ek_arena *perm,
                                     ek_detect **out_detect)
{
    size_t bytes = ek_telemetry_detect_bytes(params, n_layers, n_experts);
    if (bytes == 0 || top_k < 1 || top_k > n_experts || top_k > EK_READING_TOP_K_MAX)
        return EK_ERANGE;
    if (ek_arena_free_bytes(perm) < bytes) return EK_ENOMEM;
    ek_detect *d = ek_new(perm, ek_detect, 1);
    d->params = *params;
    d->n_layers = n_layers;
    d->n_experts = n_experts;
    d->top_k = top_k;
    d->tokens = ek_new(perm, int64_t, (int64_t)params->n_windows * n_layers * n_experts);
    d->watches = ek_new(perm, watch, EK_DETECT_N_KINDS * n_layers);
    *out_detect = d;
    return EK_OK;
}

static watch *watch_of(const ek_detect *d, ek_detect_kind kind, int32_t layer)
{
    int32_t row = kind == EK_DETECT_STALE_VIEW ? 0 : layer;
    return &d->watches[(int64_t)kind * d->n_layers + row];
}

/* A layer's row of window number `window`. */
static const int64_t *row_of(const ek_detect *d, int64_t window, int32_t layer)
{
    int64_t row = window % d->params.n_windows * d->n_layers + layer;
    return d->tokens + row * d->n_experts;
}

static ek_reading read_layer(const ek_detect *d, ek_detect_kind kind, int32_t layer,
                             const ek_detect_window *window)
{
    static const ek_reading unknown = {.expert = -1};
    const int64_t *rows[EK_READING_WINDOWS_MAX];
    int32_t n = d->n_experts, n_windows = d->params.n_windows;
    int64_t least = (int64_t)d->params.tokens_per_expert_min * n;
    const int64_t *now = row_of(d, d->n_seen - 1, layer);
    bool is_full = d->n_seen >= n_windows;
    for (int32_t w = 0; is_full && w < n_windows; w++)
        rows[w] = row_of(d, d->n_seen - n_windows + w, layer);
    switch (kind) {
    case EK_DETECT_OVERLOAD:
        if (!window->utilisation) return unknown;
        return ek_telemetry_read_overload(window->utilisation + (int64_t)layer * n, n);
    case EK_DETECT_IMBALANCE: return ek_telemetry_read_imbalance(now, n, least);
    case EK_DETECT_COLLAPSE: return ek_telemetry_read_collapse(now, n, d->top_k, least);
    case EK_DETECT_CONSTANT_GATE:
        if (d->n_seen < 2) return unknown;
        return ek_telemetry_read_constant(now, row_of(d, d->n_seen - 2, layer), n, d->top_k, least);
    case EK_DETECT_ZERO_HIT:
        return is_full ? ek_telemetry_read_zero_hit(rows, n_windows, n, least * n_windows)
                       : unknown;
    case EK_DETECT_OSCILLATION:
        return is_full ? ek_telemetry_read_oscillation(rows, n_windows, n, least) : unknown;
    case EK_DETECT_STALE_VIEW:
        if (layer > 0 || window->view_age_us < 0) return unknown;
        return (ek_reading){.known = true,
                            .value = (double)window->view_age_us / (double)d->params.sample_us,
                            .expert = -1,
                            .with = {(double)window->view_age_us}};
    case EK_DETECT_N_KINDS: break;
    }
    return unknown;
}

/* @return whether the alert was raised or ended by this reading */
static bool watch_step(watch *w, const ek_detect_limit *limit, const ek_reading *reading,
                       int64_t now_us)
{
    if (!reading->known) return false;
    w->last = *reading;
    w->n_bad = reading->value >= limit->raise ? w->n_bad + 1 : 0;
    w->n_good = reading->value < limit->clear ? w->n_good + 1 : 0;
    if (!w->is_raised && w->n_bad >= limit->raise_windows) {
        w->is_raised = true;
        w->since_us = now_us;
        return true;
    }
    if (w->is_raised && w->n_good >= limit->clear_windows) {
        w->is_raised = false;
        return true;
    }
    return false;
}

/* Alerts that bring others of the same layer with them. */
static int32_t explanation(const ek_detect *d, ek_detect_kind kind, int32_t layer)
{
    static const struct {
        ek_detect_kind what, by;
    } rules[] = {
        {EK_DETECT_COLLAPSE, EK_DETECT_CONSTANT_GATE},
        {EK_DETECT_ZERO_HIT, EK_DETECT_CONSTANT_GATE},
        {EK_DETECT_ZERO_HIT, EK_DETECT_COLLAPSE},
        {EK_DETECT_IMBALANCE, EK_DETECT_CONSTANT_GATE},
        {EK_DETECT_IMBALANCE, EK_DETECT_COLLAPSE},
        {EK_DETECT_OVERLOAD, EK_DETECT_CONSTANT_GATE},
        {EK_DETECT_OVERLOAD, EK_DETECT_COLLAPSE},
        {EK_DETECT_OVERLOAD, EK_DETECT_OSCILLATION},
        {EK_DETECT_OVERLOAD, EK_DETECT_IMBALANCE},
    };
    for (size_t i = 0; i < EK_COUNT_OF(rules); i++)
        if (rules[i].what == kind && watch_of(d, rules[i].by, layer)->is_raised)
            return (int32_t)rules[i].by;
    return -1;
}

static void alert_make(const ek_detect *d, ek_detect_kind kind, int32_t layer, ek_alert *out)
{
    const watch *w = watch_of(d, kind, layer);
    const ek_detect_limit *limit = &d->params.limit[kind];
    *out = (ek_alert){
        .kind = kind,
        .is_raised = w->is_raised,
        .layer = kind == EK_DETECT_STALE_VIEW ? -1 : layer,
        .expert = w->last.expert,
        .since_us = w->since_us,
        .value = w->last.value,
        .limit = w->is_raised ? limit->raise : limit->clear,
        .explained_by = explanation(d, kind, layer),
    };
    const ek_detect_shape shape = {d->n_experts, d->top_k, d->params.n_windows};
    ek_telemetry_detect_evidence(out, &w->last, &shape, out->evidence);
    ek_telemetry_detect_next_step(out, &w->last, out->next_step);
}

int32_t ek_telemetry_detect_step(ek_detect *d, const ek_detect_window *window,
                                 ek_alert *out_changes, int32_t max)
{
    int64_t place = d->n_seen % d->params.n_windows;
    size_t cells = (size_t)d->n_layers * (size_t)d->n_experts;
    memcpy(d->tokens + place * (int64_t)cells, window->tokens, cells * sizeof *d->tokens);
    d->n_seen++;
    int32_t n_changes = 0;
    for (int32_t k = 0; k < EK_DETECT_N_KINDS; k++)
        for (int32_t l = 0; l < d->n_layers; l++) {
            ek_reading r = read_layer(d, (ek_detect_kind)k, l, window);
            watch *w = watch_of(d, (ek_detect_kind)k, l);
            if (!watch_step(w, &d->params.limit[k], &r, window->end_us)) continue;
            if (n_changes < max) alert_make(d, (ek_detect_kind)k, l, &out_changes[n_changes]);
            n_changes++;
        }
    return n_changes;
}

bool ek_telemetry_detect_get(const ek_detect *d, ek_detect_kind kind, int32_t layer,
                             ek_alert *out_alert)
{
    ek_assert(kind == EK_DETECT_STALE_VIEW || (layer >= 0 && layer < d->n_layers));
    if (!watch_of(d, kind, layer)->is_raised) return false;
    alert_make(d, kind, layer, out_alert);
    return true;
}

int32_t ek_telemetry_detect_count(const ek_detect *d, ek_detect_kind kind)
{
    int32_t n = 0, n_rows = kind == EK_DETECT_STALE_VIEW ? 1 : d->n_layers;
    for (int32_t l = 0; l < n_rows; l++)
        n += watch_of(d, kind, l)->is_raised;
    return n;
}
