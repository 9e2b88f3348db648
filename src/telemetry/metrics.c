#include "telemetry/metrics.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "telemetry/prometheus.h"

const double ek_latency_bounds[] = {0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                                    0.5,   1,      2.5,   5,    10,    30,   60};
const int32_t ek_latency_n_bounds = EK_COUNT_OF(ek_latency_bounds);

#define NONE (-1)

typedef enum series_kind { SERIES_COUNTER, SERIES_GAUGE, SERIES_HIST } series_kind;

typedef struct series {
    union {
        ek_counter counter;
        ek_gauge gauge;
        ek_hist *hist; /* in the registry's arena */
    } of;
    const char *name; /* borrowed for good, like help and bounds */
    const char *help;
    const double *bounds;
    int32_t n_bounds;
    series_kind kind;
    double scale;
    _Atomic int32_t next; /* next series of the same name, or NONE */
    bool is_first;        /* of its name */
    char labels[EK_METRICS_LABELS_MAX + 1];
} series;

/*
 * A renderer may look while series are still added (a model loads while /metrics is asked for): a
 * series is complete before its number, or a link to it, is stored, and neither ever changes again.
 */
struct ek_metrics {
    ek_arena *perm; /* borrowed until the last registration */
    _Atomic int32_t n_series;
    series series[EK_METRICS_MAX];
};

ek_status ek_telemetry_metrics_create(ek_arena *perm, ek_metrics **out_metrics)
{
    ek_metrics *metrics = ek_try_new(perm, ek_metrics, 1);
    if (!metrics) return EK_ENOMEM;
    metrics->perm = perm;
    *out_metrics = metrics;
    return EK_OK;
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

/*
 * Snake case, and `_total` exactly on counters; a colon only where another engine's name is echoed.
 */
static bool name_valid(const char *name, series_kind kind)
{
    size_t n = strlen(name);
    bool starts_well = name[0] >= 'a' && name[0] <= 'z';
    return starts_well && strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789_:") == n &&
           ends_with(name, "_total") == (kind == SERIES_COUNTER);
}

/* The series of this name and these labels; NULL: there is none yet. */
static series *find(ek_metrics *metrics, const series *wanted, const char *labels,
                    int32_t *out_last_of_name)
{
    int32_t n_series = atomic_load_explicit(&metrics->n_series, memory_order_relaxed);
    *out_last_of_name = NONE;
    for (int32_t i = 0; i < n_series; i++) {
        series *s = &metrics->series[i];
        if (strcmp(s->name, wanted->name) != 0) continue;
        ek_assert(s->kind == wanted->kind);
        ek_assert(s->scale == wanted->scale);
        ek_assert(s->bounds == wanted->bounds && s->n_bounds == wanted->n_bounds);
        if (strcmp(s->labels, labels) == 0) return s;
        *out_last_of_name = i;
    }
    return NULL;
}

/*
 * The series that is asked for: an old one of the same name and labels, or a new one without a
 * value yet.
 */
static series *find_or_add(ek_metrics *metrics, const series *wanted, const char *labels)
{
    const char *own_labels = labels ? labels : "";
    int32_t last_of_name;
    ek_assert(name_valid(wanted->name, wanted->kind));
    ek_assert(strlen(own_labels) <= EK_METRICS_LABELS_MAX);
    series *found = find(metrics, wanted, own_labels, &last_of_name);
    if (found) return found;
    int32_t idx = atomic_load_explicit(&metrics->n_series, memory_order_relaxed);
    ek_assert(idx < EK_METRICS_MAX);
    series *added = &metrics->series[idx];
    *added = *wanted;
    atomic_init(&added->next, NONE);
    added->is_first = last_of_name == NONE;
    snprintf(added->labels, sizeof added->labels, "%s", own_labels);
    if (added->kind == SERIES_HIST) added->of.hist = ek_new_aligned(metrics->perm, ek_hist, 1);
    /* Both are acquired by render: whoever sees the series sees all of it. */
    if (last_of_name != NONE)
        atomic_store_explicit(&metrics->series[last_of_name].next, idx, memory_order_release);
    atomic_store_explicit(&metrics->n_series, idx + 1, memory_order_release);
    return added;
}

ek_counter *ek_telemetry_counter(ek_metrics *metrics, const char *name, const char *labels,
                                 const char *help)
{
    series wanted = {.name = name, .help = help, .kind = SERIES_COUNTER, .scale = 1.0};
    return &find_or_add(metrics, &wanted, labels)->of.counter;
}

ek_gauge *ek_telemetry_gauge(ek_metrics *metrics, const char *name, const char *labels,
                             double scale, const char *help)
{
    series wanted = {.name = name, .help = help, .kind = SERIES_GAUGE, .scale = scale};
    return &find_or_add(metrics, &wanted, labels)->of.gauge;
}

ek_hist *ek_telemetry_hist(ek_metrics *metrics, const char *name, const char *labels, double scale,
                           const double *bounds, int32_t n_bounds, const char *help)
{
    ek_assert(n_bounds >= 1 && n_bounds <= EK_METRICS_HIST_BOUNDS);
    for (int32_t i = 1; i < n_bounds; i++)
        ek_assert(bounds[i] > bounds[i - 1]);
    series wanted = {.name = name,
                     .help = help,
                     .kind = SERIES_HIST,
                     .scale = scale,
                     .bounds = bounds,
                     .n_bounds = n_bounds};
    return find_or_add(metrics, &wanted, labels)->of.hist;
}

/*
 * One pass over the fine buckets gives all cumulated ones. A fine bucket counts where the bound
 * that it holds does, whole. The total is the last cumulated value, not hist->count, since
 * recorders are at work meanwhile and a text whose +Inf bucket differs from its count would be
 * refused.
 */
static void render_hist(ek_prom *prom, const series *s)
{
    uint64_t seen = 0;
    uint32_t fine = 0;
    for (int32_t i = 0; i < s->n_bounds; i++) {
        char le[48];
        /* Half a unit guards against 0.001 / 1e-6 = 999.99... */
        uint32_t last = ek_hist_bucket_of((uint64_t)(s->bounds[i] / s->scale + 0.5));
        for (; fine <= last; fine++)
            seen += atomic_load_explicit(&s->of.hist->bucket[fine], memory_order_relaxed);
        ek_telemetry_prom_bound(prom, s->bounds[i], le);
        ek_telemetry_prom_series(prom, s->name, "_bucket", s->labels, le);
        ek_telemetry_prom_u64(prom, seen);
    }
    for (; fine < EK_HIST_BUCKETS; fine++)
        seen += atomic_load_explicit(&s->of.hist->bucket[fine], memory_order_relaxed);
    ek_telemetry_prom_series(prom, s->name, "_bucket", s->labels, "le=\"+Inf\"");
    ek_telemetry_prom_u64(prom, seen);
    uint64_t sum = atomic_load_explicit(&s->of.hist->sum, memory_order_relaxed);
    ek_telemetry_prom_series(prom, s->name, "_sum", s->labels, NULL);
    ek_telemetry_prom_f64(prom, (double)sum * s->scale);
    ek_telemetry_prom_series(prom, s->name, "_count", s->labels, NULL);
    ek_telemetry_prom_u64(prom, seen);
}

static void render_series(ek_prom *prom, const series *s)
{
    switch (s->kind) {
    case SERIES_COUNTER:
        ek_telemetry_prom_series(prom, s->name, "", s->labels, NULL);
        ek_telemetry_prom_u64(prom, ek_counter_get(&s->of.counter));
        break;
    case SERIES_GAUGE:
        ek_telemetry_prom_series(prom, s->name, "", s->labels, NULL);
        ek_telemetry_prom_f64(prom, (double)ek_gauge_get(&s->of.gauge) * s->scale);
        break;
    case SERIES_HIST: render_hist(prom, s); break;
    }
}

size_t ek_telemetry_metrics_render(const ek_metrics *metrics, ek_prom_format format, char *out_text,
                                   size_t bytes)
{
    static const char *const type_name[] = {"counter", "gauge", "histogram"};
    ek_prom prom = {.format = format, .out = out_text, .room = bytes};
    int32_t n_series = atomic_load_explicit(&metrics->n_series, memory_order_acquire);
    for (int32_t i = 0; i < n_series; i++) {
        if (!metrics->series[i].is_first) continue;
        const series *s = &metrics->series[i];
        ek_telemetry_prom_family(&prom, s->name, type_name[s->kind], s->help);
        for (int32_t next = i; next != NONE;) {
            s = &metrics->series[next];
            render_series(&prom, s);
            next = atomic_load_explicit(&s->next, memory_order_acquire);
        }
    }
    return prom.len;
}
