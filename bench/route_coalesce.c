/*
 * Coalescing on recorded routing: how many experts a small batch reads, and what that gives up.
 *
 * Each batch has one token of each of `batch` sequences of one domain, domains in turn, as decoding
 * has; logits as route_recorded.h tells. N_WARM batches go before, so that the running mean is
 * where it stays. Every setting plans the same batches, in turn. Experts and losses are exact and
 * repeatable; times are processor time of the thread.
 */
#include <stdio.h>

#include "base/assert.h"
#include "bench.h"
#include "route_parts.h"
#include "route_recorded.h"
#include "sys/clock.h"
#include "sys/mem.h"

enum { N_BATCHES = 120, TOKENS_WARM = 4096, LOGITS_MAX = 64 * 256 };

typedef struct setting {
    double coalesce, mean;
} setting;

static const setting settings[] = {
    {0, 0.02}, {0.05, 0.005}, {0.05, 0.02}, {0.15, 0.02}, {0.15, 0.05},
};
enum { N_SETTINGS = EK_COUNT_OF(settings) };
static const int32_t batches[] = {8, 16, 32, 64};

typedef struct figures {
    double experts; /* a layer's, mean */
    double loss;    /* of scores, mean */
    double changed; /* share of tokens */
    double plan_us; /* of a layer */
} figures;

typedef struct bench {
    const ek_bench_set *set;
    ek_route_gate gate;
    ek_router *router[N_SETTINGS];
    ek_route_stats before[N_SETTINGS];
    int64_t n_active[N_SETTINGS], ns[N_SETTINGS];
    ek_arena step;
} bench;

static void plan_batch(bench *b, const ek_bench_stream *stream, const int32_t *tokens, ek_rng *rng)
{
    static float logits[LOGITS_MAX];
    for (int32_t l = 0; l < b->set->n_layers; l++) {
        for (int32_t i = 0; i < stream->n_streams; i++)
            ek_bench_stream_logits(stream, tokens[i], l, rng,
                                   logits + (ptrdiff_t)i * b->gate.n_experts);
        /* Whoever is first finds the logits in no near cache: each is, in turn. */
        for (int32_t i = 0; i < N_SETTINGS; i++) {
            int32_t s = (l + i) % N_SETTINGS;
            ek_arena step = b->step;
            ek_route_plan plan;
            int64_t beg_ns = ek_sys_thread_cpu_ns();
            ek_status status = ek_route_plan_layer(b->router[s], l, logits, NULL, stream->n_streams,
                                                   NULL, &step, &plan);
            b->ns[s] += ek_sys_thread_cpu_ns() - beg_ns;
            ek_assert(status == EK_OK);
            b->n_active[s] += plan.n_active;
        }
    }
}

/** Whatever was counted until now was warming up. */
static void begin(bench *b)
{
    for (int32_t s = 0; s < N_SETTINGS; s++) {
        b->before[s] = *ek_route_stats_of(b->router[s]);
        b->n_active[s] = b->ns[s] = 0;
    }
}

static ek_status run(const ek_bench_set *set, int32_t n_tokens, ek_arena arena, figures *out,
                     ek_err *err)
{
    bench b = {.set = set, .gate = ek_bench_set_gate(set)};
    for (int32_t s = 0; s < N_SETTINGS; s++) {
        ek_route_params params;
        ek_route_params_default(&params);
        params.coalesce = settings[s].coalesce;
        params.mean_score_loss = settings[s].mean;
        ek_status status =
            ek_route_create(&b.gate, set->n_layers, &params, &arena, &b.router[s], err);
        if (status != EK_OK) return status;
    }
    b.step = arena;
    ek_rng rng;
    ek_rng_init(&rng, 1);
    const int32_t n_warm = TOKENS_WARM / n_tokens;
    for (int32_t i = 0, domain = 0; i < n_warm + N_BATCHES;
         domain = (domain + 1) % set->n_domains) {
        ek_bench_stream stream;
        ek_bench_stream_start(&stream, set, domain, n_tokens, &rng);
        for (int32_t j = 0; j < 10 && i < n_warm + N_BATCHES; j++, i++) {
            int32_t tokens[EK_BENCH_STREAMS_MAX];
            if (i == n_warm) begin(&b);
            ek_bench_stream_next(&stream, &rng, tokens);
            plan_batch(&b, &stream, tokens, &rng);
        }
    }
    double n_plans = (double)N_BATCHES * set->n_layers;
    for (int32_t s = 0; s < N_SETTINGS; s++) {
        const ek_route_stats *stats = ek_route_stats_of(b.router[s]);
        out[s] = (figures){
            .experts = (double)b.n_active[s] / n_plans,
            .loss = (stats->loss_sum - b.before[s].loss_sum) / (n_plans * n_tokens),
            .changed = (double)(stats->n_changed - b.before[s].n_changed) / (n_plans * n_tokens),
            .plan_us = (double)b.ns[s] / n_plans / 1e3,
        };
    }
    return EK_OK;
}

static void print_row(const ek_bench_set *set, int32_t n_tokens, const figures *f, bool json,
                      bool first)
{
    if (json)
        printf("%s{\"set\":\"%s\",\"batch\":%d,\"settings\":[", first ? "" : ",", set->name,
               n_tokens);
    else
        printf("%-22s %5d", set->name, n_tokens);
    for (int32_t s = 0; s < N_SETTINGS; s++) {
        if (json)
            printf("%s{\"coalesce\":%g,\"mean_score_loss\":%g,\"experts\":%.2f,\"loss\":%.5f,"
                   "\"changed\":%.4f,\"plan_us\":%.2f}",
                   s > 0 ? "," : "", settings[s].coalesce, settings[s].mean, f[s].experts,
                   f[s].loss, f[s].changed, f[s].plan_us);
        else if (s == 0)
            printf(" %7.2f %6.1f", f[s].experts, f[s].plan_us);
        else
            printf(" | %6.2f %5.1f%% %6.4f %3.0f%% %5.1f", f[s].experts,
                   100 * (f[s].experts / f[0].experts - 1), f[s].loss, 100 * f[s].changed,
                   f[s].plan_us);
    }
    printf(json ? "]}" : "\n");
    fflush(stdout);
}

static void print_head(bool json)
{
    if (json) {
        printf("\"coalesce\":[");
        return;
    }
    printf("\nexperts that a layer reads for a batch, in %% less, mean score loss, tokens changed, "
           "us to plan a layer\n%-22s %5s %14s",
           "recording", "batch", "off");
    for (int32_t s = 1; s < N_SETTINGS; s++)
        printf(" |   coalesce %4.2f, mean %5.3f   ", settings[s].coalesce, settings[s].mean);
    printf("\n");
}

bool ek_bench_route_coalesce(const char *dir, bool json, ek_err *err)
{
    static ek_bench_set set;
    ek_sys_region region;
    if (ek_sys_region_open(64 << 20, 0, &region) != EK_OK) return false;
    bool good = true, first = true;
    print_head(json);
    for (int32_t i = 0; good && i < ek_bench_n_sets; i++) {
        if (!ek_bench_set_open(dir, i, &set, err)) {
            good = false;
            break;
        }
        for (size_t b = 0; good && b < EK_COUNT_OF(batches); b++) {
            figures f[N_SETTINGS];
            good = run(&set, batches[b], ek_sys_region_arena(&region), f, err) == EK_OK;
            if (good) print_row(&set, batches[b], f, json, first);
            first = false;
        }
        ek_bench_set_close(&set);
    }
    if (json) printf("]");
    ek_sys_region_close(&region);
    return good;
}
