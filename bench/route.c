/*
 * build/bench/route [--data DIR] [--only plan|coalesce|adaptive] [--json]: what planning costs, per
 * token, for each policy; what coalescing saves (route_coalesce.c); what `adaptive` is worth when
 * traffic changes its kind (route_adaptive.c). The last two replay recordings and need DIR.
 *
 * *plain* is the gate's own top-k and a packing by expert, written out here without any router.
 * Each policy's plan of the same tokens is quoted as a ratio to it, measured in turn within the
 * same run: ratios are medians over N_RUNS runs, in processor time of the thread. A new load view
 * comes once a run. "calm" has nothing overloaded; "hot" has one expert of ten at a load of 0.8 to
 * 1.0; "capped" is static with a capacity factor that the tokens do exceed.
 *
 * Without DIR, logits are normal with a preference per expert. With DIR, recorded routing
 * (DIR/NAME/FILE.mrt) is added: chosen experts' logits are the logarithms of their recorded
 * weights, the others lie below them at random.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/rng.h"
#include "bench.h"
#include "route/gate.h"
#include "route/route.h"
#include "route_parts.h"
#include "sys/clock.h"
#include "sys/file.h"
#include "sys/mem.h"
#include "trace/mrt.h"

enum { N_RUNS = 25, N_TOKENS = 4096, N_MAX = 256, K_MAX = 8 };

typedef struct shape {
    const char *name;
    ek_route_gate gate;
    bool has_bias;
    const char *recording; /* below DIR; NULL: drawn */
} shape;

static const shape shapes[] = {
    {"64/8", {EK_ROUTE_SOFTMAX, 64, 8, 1, 1, false, 1.0f}, false, NULL},
    {"128/8", {EK_ROUTE_SOFTMAX, 128, 8, 1, 1, true, 1.0f}, false, NULL},
    {"256/8 grouped", {EK_ROUTE_SIGMOID, 256, 8, 8, 4, true, 2.5f}, true, NULL},
    {"64/6 recorded",
     {EK_ROUTE_SOFTMAX, 64, 6, 1, 1, false, 1.0f},
     false,
     "dsv2lite-esft/intent.mrt"},
    {"32/4 recorded",
     {EK_ROUTE_SOFTMAX_CHOSEN, 32, 4, 1, 1, false, 1.0f},
     false,
     "gptoss20b-fingerprint/decode_mix.mrt"},
};

static const int32_t batches[] = {1, 16, 256, 4096};

typedef struct config {
    const char *name;
    ek_route_policy policy;
    bool hot;
    double capacity_factor;
} config;

static const config configs[] = {
    {"static", EK_ROUTE_POLICY_STATIC, false, 0},
    {"discount", EK_ROUTE_POLICY_DISCOUNT, false, 0},
    {"breaker", EK_ROUTE_POLICY_BREAKER, false, 0},
    {"adaptive", EK_ROUTE_POLICY_ADAPTIVE, false, 0},
    {"least-load", EK_ROUTE_POLICY_LEAST_LOAD, false, 0},
    {"discount hot", EK_ROUTE_POLICY_DISCOUNT, true, 0},
    {"breaker hot", EK_ROUTE_POLICY_BREAKER, true, 0},
    {"static capped", EK_ROUTE_POLICY_STATIC, false, 1.25},
};
enum { N_CONFIGS = EK_COUNT_OF(configs) };

typedef struct work {
    const shape *shape;
    float *logits;   /* (N_TOKENS, n_experts) */
    float *bias;     /* (n_experts) or NULL */
    float *loads[2]; /* (n_experts) calm, hot */
    ek_gate_scratch scratch;
    ek_router *router[N_CONFIGS];
    uint64_t version;
    ek_arena step;
} work;

/* ---- what is planned ---- */

static double normal(ek_rng *rng)
{
    double radius = sqrt(-2 * log(1 - ek_rng_unit(rng)));
    return radius * cos(6.283185307179586 * ek_rng_unit(rng));
}

static void draw_logits(const ek_route_gate *gate, ek_rng *rng, float *out)
{
    double preference[N_MAX];
    for (int32_t e = 0; e < gate->n_experts; e++)
        preference[e] = 0.7 * normal(rng);
    for (int32_t i = 0; i < N_TOKENS * gate->n_experts; i++)
        out[i] = (float)(1.2 * normal(rng) + preference[i % gate->n_experts]);
}

static ek_status replay_logits(const char *dir, const shape *s, ek_rng *rng, float *out,
                               ek_err *err)
{
    char path[4096];
    ek_sys_map map;
    ek_mrt mrt;
    snprintf(path, sizeof path, "%s/%s", dir, s->recording);
    ek_status status = ek_sys_map_open(path, &map, err);
    if (status != EK_OK) return status;
    status = ek_trace_mrt_open(map.bytes, path, &mrt, err);
    if (status == EK_OK && (mrt.n_experts != s->gate.n_experts || mrt.top_k != s->gate.top_k))
        status = ek_err_set(err, EK_EFORMAT, "%s: %d experts, %d chosen", path, mrt.n_experts,
                            mrt.top_k);
    for (int32_t t = 0; status == EK_OK && t < N_TOKENS; t++) {
        float *z = out + (ptrdiff_t)t * mrt.n_experts;
        int32_t token = t % mrt.n_tokens, layer = mrt.n_layers / 2;
        const uint8_t *chosen = ek_trace_mrt_experts(&mrt, token, layer);
        double least = 0;
        for (int32_t k = 0; k < mrt.top_k; k++) {
            double weight = ek_trace_mrt_weight(&mrt, token, layer, k);
            double logit = log(weight > 1e-4 ? weight : 1e-4);
            least = fmin(least, logit);
        }
        for (int32_t e = 0; e < mrt.n_experts; e++)
            z[e] = (float)(least - 0.01 + log(1 - ek_rng_unit(rng)));
        for (int32_t k = 0; k < mrt.top_k; k++) {
            double weight = ek_trace_mrt_weight(&mrt, token, layer, k);
            z[chosen[k]] = (float)log(weight > 1e-4 ? weight : 1e-4);
        }
    }
    ek_sys_map_close(&map);
    return status;
}

static void draw_loads(const ek_route_gate *gate, ek_rng *rng, work *w)
{
    for (int32_t e = 0; e < gate->n_experts; e++) {
        w->loads[0][e] = (float)(0.45 * ek_rng_unit(rng));
        w->loads[1][e] = e % 10 == 3 ? (float)(0.8 + 0.2 * ek_rng_unit(rng)) : w->loads[0][e];
    }
}

static ek_status make_work(const char *dir, const shape *s, ek_arena *arena, work *w, ek_err *err)
{
    int32_t n = s->gate.n_experts;
    ek_rng rng;
    ek_rng_init(&rng, 1);
    memset(w, 0, sizeof *w);
    w->shape = s;
    w->logits = ek_new_aligned(arena, float, N_TOKENS *n);
    w->bias = s->has_bias ? ek_new(arena, float, n) : NULL;
    w->loads[0] = ek_new(arena, float, n);
    w->loads[1] = ek_new(arena, float, n);
    w->scratch = (ek_gate_scratch){
        .logit = ek_new(arena, float, n),
        .score = ek_new(arena, float, n),
        .value = ek_new(arena, float, n),
        .group_used = ek_new(arena, uint8_t, s->gate.n_groups),
        .candidate = ek_new(arena, int32_t, n + 1),
        .top = ek_new(arena, uint64_t, n),
    };
    for (int32_t e = 0; w->bias && e < n; e++)
        w->bias[e] = (float)(0.05 * normal(&rng));
    if (s->recording) {
        ek_status status = replay_logits(dir, s, &rng, w->logits, err);
        if (status != EK_OK) return status;
    } else {
        draw_logits(&s->gate, &rng, w->logits);
    }
    draw_loads(&s->gate, &rng, w);
    for (int32_t c = 0; c < N_CONFIGS; c++) {
        ek_route_params params;
        ek_route_params_default(&params);
        params.policy = configs[c].policy;
        params.capacity_factor = configs[c].capacity_factor;
        ek_status status = ek_route_create(&s->gate, 1, &params, arena, &w->router[c], err);
        if (status != EK_OK) return status;
    }
    w->step =
        ek_arena_over(ek_new_aligned(arena, uint8_t, 2 * ek_route_plan_bytes(&s->gate, N_TOKENS)),
                      2 * ek_route_plan_bytes(&s->gate, N_TOKENS));
    return EK_OK;
}

/* ---- plain and planned ---- */

/** Top-k and packing, as one would write it who never heard of load. */
static int32_t plan_plain(work *w, const float *logits, int32_t n_tokens)
{
    const ek_route_gate *gate = &w->shape->gate;
    int32_t n = gate->n_experts, k = gate->top_k, n_pairs = n_tokens * k;
    ek_arena step = w->step;
    int32_t *id = ek_arena_try_raw(&step, (size_t)n_pairs, sizeof *id, sizeof *id);
    float *weight = ek_arena_try_raw(&step, (size_t)n_pairs, sizeof *weight, sizeof *weight);
    int32_t *token = ek_arena_try_raw(&step, (size_t)n_pairs, sizeof *token, sizeof *token);
    int32_t *row_of = ek_arena_try_raw(&step, (size_t)n_pairs, sizeof *row_of, sizeof *row_of);
    int32_t beg[N_MAX + 1] = {0}, next[N_MAX];
    ek_assert(id && weight && token && row_of);
    for (int32_t t = 0; t < n_tokens; t++)
        ek_route_gate_choose(gate, logits + (ptrdiff_t)t * n, w->bias, &w->scratch, id + t * k,
                             weight + t * k);
    for (int32_t i = 0; i < n_pairs; i++)
        beg[id[i] + 1]++;
    for (int32_t e = 0; e < n; e++) {
        next[e] = beg[e];
        beg[e + 1] += beg[e];
    }
    for (int32_t t = 0, i = 0; t < n_tokens; t++)
        for (int32_t j = 0; j < k; j++, i++) {
            row_of[i] = next[id[i]]++;
            token[row_of[i]] = t;
        }
    return token[0] + row_of[n_pairs - 1];
}

static int32_t plan_routed(work *w, int32_t c, const float *logits, int32_t n_tokens)
{
    const ek_route_view view = {
        .version = w->version,
        .utilisation = w->loads[configs[c].hot],
        .sampled_us = (int64_t)w->version * 100000,
        .tail_us = 1000,
    };
    ek_arena step = w->step;
    ek_route_plan plan;
    ek_status status =
        ek_route_plan_layer(w->router[c], 0, logits, w->bias, n_tokens, &view, &step, &plan);
    ek_assert(status == EK_OK);
    return plan.n_rows;
}

/** Nanoseconds per token of all N_TOKENS in batches; c < 0: plain. */
static double measure(work *w, int32_t c, int32_t n_tokens, int64_t *sink)
{
    int64_t beg_ns = ek_sys_thread_cpu_ns();
    for (int32_t t = 0; t < N_TOKENS; t += n_tokens) {
        const float *logits = w->logits + (ptrdiff_t)t * w->shape->gate.n_experts;
        *sink += c < 0 ? plan_plain(w, logits, n_tokens) : plan_routed(w, c, logits, n_tokens);
    }
    return (double)(ek_sys_thread_cpu_ns() - beg_ns) / N_TOKENS;
}

typedef struct figures {
    ek_bench_samples plain_ns;
    ek_bench_samples ratio[N_CONFIGS];
} figures;

static void run(work *w, int32_t n_tokens, figures *out, int64_t *sink)
{
    memset(out, 0, sizeof *out);
    for (int32_t i = -10; i < N_RUNS; i++) {
        w->version++; /* the first ones settle breakers and caches */
        double plain = measure(w, -1, n_tokens, sink);
        if (i >= 0) ek_bench_add(&out->plain_ns, plain);
        for (int32_t c = 0; c < N_CONFIGS; c++) {
            double ns = measure(w, c, n_tokens, sink);
            if (i >= 0) ek_bench_add(&out->ratio[c], ns / plain);
        }
    }
}

/* ---- output ---- */

static void print_row(const shape *s, int32_t n_tokens, figures *f, bool json, bool first)
{
    double plain = ek_bench_quantile(&f->plain_ns, 0.5);
    if (json)
        printf("%s{\"shape\":\"%s\",\"batch\":%d,\"plain_ns\":%.1f", first ? "" : ",", s->name,
               n_tokens, plain);
    else
        printf("%-15s %6d %9.0f", s->name, n_tokens, plain);
    for (int32_t c = 0; c < N_CONFIGS; c++) {
        double median = ek_bench_quantile(&f->ratio[c], 0.5);
        double low = ek_bench_quantile(&f->ratio[c], 0.25);
        double high = ek_bench_quantile(&f->ratio[c], 0.75);
        if (json)
            printf(",\"%s\":{\"ratio\":%.4f,\"q25\":%.4f,\"q75\":%.4f}", configs[c].name, median,
                   low, high);
        else
            printf(" %13.3f", median);
    }
    printf(json ? "}" : "\n");
    fflush(stdout);
}

static void print_head(bool json)
{
    if (json) {
        printf("\"runs\":%d,\"rows\":[", N_RUNS);
        return;
    }
    printf("ratios to plain, medians of %d runs\n%-15s %6s %9s", N_RUNS, "experts/chosen", "batch",
           "plain ns");
    for (int32_t c = 0; c < N_CONFIGS; c++)
        printf(" %13s", configs[c].name);
    printf("\n");
}

static bool run_plans(const char *dir, bool json, ek_err *err)
{
    static work w;
    static figures f;
    int64_t sink = 0;
    bool first = true, good = true;
    ek_sys_region region;
    if (ek_sys_region_open(64 << 20, 0, &region) != EK_OK) return false;
    print_head(json);
    for (size_t s = 0; good && s < EK_COUNT_OF(shapes); s++) {
        if (shapes[s].recording && !dir) continue;
        ek_arena arena = ek_sys_region_arena(&region);
        good = make_work(dir, &shapes[s], &arena, &w, err) == EK_OK;
        for (size_t b = 0; good && b < EK_COUNT_OF(batches); b++) {
            run(&w, batches[b], &f, &sink);
            print_row(&shapes[s], batches[b], &f, json, first);
            first = false;
        }
    }
    if (json) printf("],\"sink\":%lld", (long long)sink);
    ek_sys_region_close(&region);
    return good && sink != 0;
}

/* ---- all parts ---- */

static bool run_parts(const char *dir, const char *only, bool json, ek_err *err)
{
    bool is_first = true, good = true;
    for (int32_t part = 0; good && part < 3; part++) {
        static const char *const names[] = {"plan", "coalesce", "adaptive"};
        if (only && strcmp(only, names[part]) != 0) continue;
        if (part > 0 && !dir) continue;
        if (json && !is_first) printf(",");
        is_first = false;
        good = part == 0   ? run_plans(dir, json, err)
               : part == 1 ? ek_bench_route_coalesce(dir, json, err)
                           : ek_bench_route_adaptive(dir, json, err);
    }
    return good;
}

int main(int argc, char **argv)
{
    const char *dir = NULL, *only = NULL;
    bool json = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--data") == 0 && i + 1 < argc) {
            dir = argv[++i];
        } else if (strcmp(argv[i], "--only") == 0 && i + 1 < argc) {
            only = argv[++i];
        } else if (strcmp(argv[i], "--json") == 0) {
            json = true;
        } else {
            fprintf(stderr, "usage: route [--data DIR] [--only plan|coalesce|adaptive] [--json]\n");
            return 2;
        }
    }
    ek_err err = {0};
    if (json) {
        printf("{");
        ek_bench_print_machine_json();
        printf(",");
    } else {
        ek_bench_print_machine();
    }
    if (!run_parts(dir, only, json, &err)) {
        fprintf(stderr, "route: %s\n", err.text);
        return 1;
    }
    if (json) printf("}\n");
    return 0;
}
