#include "telemetry/prom_experts.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/attr.h"
#include "telemetry/prometheus.h"

#define LABEL_BYTES 48

/* What is shown of each layer's balance, one family each. */
enum { FIGURE_MAX_OVER_MEAN, FIGURE_CV, FIGURE_GINI, FIGURE_EFFECTIVE, FIGURE_IDLE, N_FIGURES };

static const struct {
    const char *name;
    const char *help;
} figures[N_FIGURES] = {
    [FIGURE_MAX_OVER_MEAN] =
        {"evenkeel_layer_expert_load_max_over_mean_ratio",
         "Tokens of the layer's hottest expert over the mean of its experts; 1 is even."},
    [FIGURE_CV] =
        {"evenkeel_layer_expert_load_cv_ratio",
         "Standard deviation of the layer's tokens per expert over their mean; 0 is even."},
    [FIGURE_GINI] = {"evenkeel_layer_expert_load_gini_ratio",
                     "Gini coefficient of the layer's tokens per expert; 0 is even."},
    [FIGURE_EFFECTIVE] =
        {"evenkeel_layer_experts_effective",
         "How many experts do the layer's work: exp of the entropy of their shares."},
    [FIGURE_IDLE] = {"evenkeel_layer_experts_idle",
                     "Experts of the layer that got no token in the window."},
};

/* Bounds of the service time histogram: 50 us .. 1 s. */
static const uint64_t service_bounds_us[] = {50,    100,   250,   500,    1000,   2500,   5000,
                                             10000, 25000, 50000, 100000, 250000, 500000, 1000000};

typedef struct ranked_expert {
    int32_t layer;
    int32_t expert;
    double load; /* tokens over its layer's mean */
    double key;  /* what the list is ordered by */
} ranked_expert;

typedef struct ranked_list {
    ranked_expert item[EK_PROM_EXPERTS_TOP_MAX]; /* highest key first, equal ones as they came */
    int32_t n, max;
} ranked_list;

static void offer(ranked_list *list, ranked_expert candidate)
{
    int32_t at = list->n;
    while (at > 0 && list->item[at - 1].key < candidate.key)
        at--;
    if (at == list->max) return;
    if (list->n < list->max) list->n++;
    memmove(&list->item[at + 1], &list->item[at],
            (size_t)(list->n - 1 - at) * sizeof list->item[0]);
    list->item[at] = candidate;
}

static void layer_label(int32_t layer, char out_label[LABEL_BYTES])
{
    snprintf(out_label, LABEL_BYTES, "layer=\"%d\"", layer);
}

/* The figures of all layers, taken before anything is written: a family's lines belong together. */
typedef struct overview {
    double figure[N_FIGURES][EK_EXPERTS_LAYERS_MAX];
    ranked_list hot;
    ranked_list cold;
} overview;

static void look_over(const ek_expert_stats *stats, int64_t window_us, overview *view)
{
    int32_t n = ek_telemetry_experts_count(stats);
    for (int32_t l = 0; l < ek_telemetry_experts_layers(stats); l++) {
        int64_t tokens[EK_EXPERTS_PER_LAYER_MAX];
        ek_balance b;
        ek_telemetry_experts_read_layer(stats, l, window_us, tokens, NULL, NULL);
        ek_telemetry_balance(tokens, n, &b);
        view->figure[FIGURE_MAX_OVER_MEAN][l] = b.max_over_mean;
        view->figure[FIGURE_CV][l] = b.cv;
        view->figure[FIGURE_GINI][l] = b.gini;
        view->figure[FIGURE_EFFECTIVE][l] = b.effective;
        view->figure[FIGURE_IDLE][l] = b.n_zero;
        /* In a layer without traffic nobody is cold: there is nothing to compare with. */
        for (int32_t e = 0; b.tokens > 0 && e < n; e++) {
            double load = (double)tokens[e] * n / (double)b.tokens;
            if (tokens[e] > 0) offer(&view->hot, (ranked_expert){l, e, load, load});
            offer(&view->cold, (ranked_expert){l, e, load, -load});
        }
    }
}

static void render_figures(ek_prom *prom, const overview *view, int32_t n_layers)
{
    for (int32_t f = 0; f < N_FIGURES; f++) {
        ek_telemetry_prom_family(prom, figures[f].name, "gauge", figures[f].help);
        for (int32_t l = 0; l < n_layers; l++) {
            char label[LABEL_BYTES];
            layer_label(l, label);
            ek_telemetry_prom_series(prom, figures[f].name, "", label, NULL);
            ek_telemetry_prom_f64(prom, view->figure[f][l]);
        }
    }
}

static void render_ranked(ek_prom *prom, const char *name, const char *help,
                          const ranked_list *list)
{
    if (list->n == 0) return;
    ek_telemetry_prom_family(prom, name, "gauge", help);
    for (int32_t i = 0; i < list->n; i++) {
        char layer[LABEL_BYTES], expert[LABEL_BYTES];
        layer_label(list->item[i].layer, layer);
        snprintf(expert, sizeof expert, "expert=\"%d\"", list->item[i].expert);
        ek_telemetry_prom_series(prom, name, "", layer, expert);
        ek_telemetry_prom_f64(prom, list->item[i].load);
    }
}

static int64_t sum_of(const int64_t *values, int32_t n)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += values[i];
    return sum;
}

static void render_totals(ek_prom *prom, const ek_expert_stats *stats)
{
    static const char tokens_name[] = "evenkeel_layer_expert_tokens_total";
    static const char busy_name[] = "evenkeel_layer_expert_busy_seconds_total";
    int32_t n_layers = ek_telemetry_experts_layers(stats), n = ek_telemetry_experts_count(stats);
    int64_t values[EK_EXPERTS_PER_LAYER_MAX];
    char label[LABEL_BYTES];
    ek_telemetry_prom_family(prom, tokens_name, "counter",
                             "Tokens times experts per token that the layer's experts computed.");
    for (int32_t l = 0; l < n_layers; l++) {
        ek_telemetry_experts_read_layer(stats, l, 0, values, NULL, NULL);
        layer_label(l, label);
        ek_telemetry_prom_series(prom, tokens_name, "", label, NULL);
        ek_telemetry_prom_u64(prom, (uint64_t)sum_of(values, n));
    }
    ek_telemetry_prom_family(prom, busy_name, "counter",
                             "Compute time that the layer's experts took, over all threads.");
    for (int32_t l = 0; l < n_layers; l++) {
        ek_telemetry_experts_read_layer(stats, l, 0, NULL, NULL, values);
        layer_label(l, label);
        ek_telemetry_prom_series(prom, busy_name, "", label, NULL);
        ek_telemetry_prom_f64(prom, (double)sum_of(values, n) * 1e-9);
    }
}

/* The service times of a layer's experts, added up. */
static void merge_service(const ek_expert_stats *stats, int32_t layer,
                          uint64_t out_bucket[EK_SERVICE_BUCKETS], uint64_t *out_sum_us)
{
    memset(out_bucket, 0, EK_SERVICE_BUCKETS * sizeof out_bucket[0]);
    *out_sum_us = 0;
    for (int32_t e = 0; e < ek_telemetry_experts_count(stats); e++) {
        const ek_service_hist *hist = ek_telemetry_experts_service(stats, layer, e);
        *out_sum_us += atomic_load_explicit(&hist->sum_us, memory_order_relaxed);
        for (int32_t i = 0; i < EK_SERVICE_BUCKETS; i++)
            out_bucket[i] += atomic_load_explicit(&hist->bucket[i], memory_order_relaxed);
    }
}

static void render_service(ek_prom *prom, const ek_expert_stats *stats)
{
    static const char name[] = "evenkeel_layer_expert_service_seconds";
    ek_telemetry_prom_family(
        prom, name, "histogram",
        "From the start of a layer's dispatch until an expert of it was done.");
    for (int32_t l = 0; l < ek_telemetry_experts_layers(stats); l++) {
        uint64_t bucket[EK_SERVICE_BUCKETS], sum_us, seen = 0;
        uint32_t fine = 0;
        char label[LABEL_BYTES], le[LABEL_BYTES];
        merge_service(stats, l, bucket, &sum_us);
        layer_label(l, label);
        for (size_t i = 0; i < EK_COUNT_OF(service_bounds_us); i++) {
            /* A fine bucket counts, whole, where the bound that it holds does. */
            while (fine <= ek_telemetry_service_bucket_of(service_bounds_us[i]))
                seen += bucket[fine++];
            ek_telemetry_prom_bound(prom, (double)service_bounds_us[i] / 1e6, le);
            ek_telemetry_prom_series(prom, name, "_bucket", label, le);
            ek_telemetry_prom_u64(prom, seen);
        }
        while (fine < EK_SERVICE_BUCKETS)
            seen += bucket[fine++];
        ek_telemetry_prom_series(prom, name, "_bucket", label, "le=\"+Inf\"");
        ek_telemetry_prom_u64(prom, seen);
        ek_telemetry_prom_series(prom, name, "_sum", label, NULL);
        ek_telemetry_prom_f64(prom, (double)sum_us / 1e6);
        ek_telemetry_prom_series(prom, name, "_count", label, NULL);
        ek_telemetry_prom_u64(prom, seen);
    }
}

size_t ek_telemetry_experts_render(const ek_expert_stats *stats, int64_t window_us, int32_t top_k,
                                   ek_prom_format format, char *out, size_t bytes)
{
    ek_assert(top_k >= 0 && top_k <= EK_PROM_EXPERTS_TOP_MAX);
    ek_prom prom = {.format = format, .out = out, .room = bytes};
    overview view = {.hot.max = top_k, .cold.max = top_k};
    look_over(stats, window_us, &view);
    render_figures(&prom, &view, ek_telemetry_experts_layers(stats));
    render_ranked(&prom, "evenkeel_hot_expert_load_ratio",
                  "Tokens over the layer's mean, of the few experts where this is highest.",
                  &view.hot);
    render_ranked(&prom, "evenkeel_cold_expert_load_ratio",
                  "Tokens over the layer's mean, of the few experts where this is lowest.",
                  &view.cold);
    render_totals(&prom, stats);
    render_service(&prom, stats);
    return prom.len;
}
