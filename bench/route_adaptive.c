/*
 * `adaptive` against static and breaker on recorded traffic that changes its kind.
 *
 * The traffic is recorded, what serves it is a model. N_TOKENS tokens come each period (100 ms),
 * one of each of as many sequences of a domain; after DOMAIN_PERIODS periods the next domain
 * follows. Experts lie on devices as the placement of the first domain's history has it, an eighth
 * of the slots being replicas, and stay there: this is what routing has to live with until a
 * rebalance. Tokens are planned by each policy on the same logits, counts are split over replicas,
 * and each device works off its queue at a rate that falls by 35 % while its utilisation is above
 * 85 %, as devices do that run out of cache, clock or memory bandwidth. A queue holds 20 periods'
 * work; what is beyond has timed out. A layer waits for its busiest device: the tail is the longest
 * wait. Its mean over all periods is what policies are compared by. Exact and repeatable, no times.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "place/place.h"
#include "route/split.h"
#include "route_parts.h"
#include "route_recorded.h"
#include "sys/mem.h"

enum {
    N_TOKENS = 64,
    N_PERIODS = 3600,
    DOMAIN_PERIODS = 600,
    PERIOD_US = 100000,
    DEVICES_MAX = 32,
    EXPERTS_MAX = 256,
    SLOTS_MAX = 288,
    N_SEEDS = 5,
};

static const ek_route_policy policies[] = {
    EK_ROUTE_POLICY_STATIC,
    EK_ROUTE_POLICY_DISCOUNT,
    EK_ROUTE_POLICY_BREAKER,
    EK_ROUTE_POLICY_ADAPTIVE,
};
enum { STATIC, DISCOUNT, BREAKER, ADAPTIVE, N_POLICIES };

static const double offered[] = {0.40, 0.50, 0.60, 0.70, 0.80};

/** What one policy's traffic meets. */
typedef struct plant {
    ek_router *router;
    double queue[DEVICES_MAX]; /* token-slots */
    double load[DEVICES_MAX];  /* smoothed utilisation */
    double tail_us, tail_sum;
    double gain_sum;
} plant;

typedef struct scene {
    const ek_bench_set *set;
    ek_route_gate gate;
    ek_route_replicas replicas;
    int32_t layer;
    double capacity; /* of a device, token-slots a period */
    plant plant[N_POLICIES];
    ek_arena step;
} scene;

/* ---- the plant ---- */

static void serve(const scene *s, plant *p, const ek_route_plan *plan)
{
    int32_t tokens[EXPERTS_MAX], quota[SLOTS_MAX], device[DEVICES_MAX];
    for (int32_t e = 0; e < plan->n_experts; e++)
        tokens[e] = plan->expert_beg[e + 1] - plan->expert_beg[e];
    ek_status status = ek_route_split(&s->replicas, tokens, s->step, quota, device);
    ek_assert(status == EK_OK);
    p->tail_us = 0;
    for (int32_t d = 0; d < s->replicas.n_devices; d++) {
        double rate = p->load[d] > 0.85 ? 0.65 * s->capacity : s->capacity;
        double todo = p->queue[d] + device[d];
        p->tail_us = fmax(p->tail_us, PERIOD_US * todo / rate);
        p->load[d] += 0.3 * (fmin(todo / rate, 4) - p->load[d]);
        p->queue[d] = fmin(fmax(todo - rate, 0), 20 * s->capacity);
    }
    p->tail_sum += p->tail_us;
}

static void plan_and_serve(const scene *s, plant *p, int32_t period, const float *logits)
{
    float utilisation[EXPERTS_MAX];
    const ek_route_replicas *r = &s->replicas;
    for (int32_t e = 0; e < r->n_experts; e++) {
        double best = INFINITY;
        for (int32_t k = r->beg[e]; k < r->beg[e + 1]; k++)
            best = fmin(best, p->load[r->device[k]]);
        utilisation[e] = (float)best;
    }
    /* The layer under test is the router's only one. */
    const ek_route_view view = {
        .version = (uint64_t)period + 1,
        .utilisation = utilisation,
        .sampled_us = (int64_t)(period + 1) * PERIOD_US,
        .tail_us = (int64_t)p->tail_us,
    };
    ek_arena step = s->step;
    ek_route_plan plan;
    ek_status status =
        ek_route_plan_layer(p->router, 0, logits, NULL, N_TOKENS, &view, &step, &plan);
    ek_assert(status == EK_OK);
    serve(s, p, &plan);
    p->gain_sum += ek_route_gain(p->router);
}

/* ---- a scene ---- */

static ek_status place(scene *s, int32_t n_devices, ek_arena *arena, ek_err *err)
{
    const ek_bench_set *set = s->set;
    int32_t n_slots = set->n_experts + set->n_experts / 8;
    n_slots -= n_slots % n_devices;
    const ek_place_topology topology = {
        .n_experts = set->n_experts,
        .n_slots = n_slots,
        .n_devices = n_devices,
        .n_nodes = 1,
        .n_groups = 1,
    };
    ek_place_params params;
    ek_place_hint hint = {0};
    ek_place_balance balance;
    double loads[EXPERTS_MAX];
    int32_t slot_expert[SLOTS_MAX], slot_beg[DEVICES_MAX + 1];
    ek_place_params_default(&params);
    for (int32_t e = 0; e < set->n_experts; e++)
        loads[e] = (double)set->totals[(ptrdiff_t)s->layer * set->n_experts + e];
    ek_status status =
        ek_place_layer(&topology, &params, loads, &hint, *arena, slot_expert, &balance);
    if (status != EK_OK) return ek_err_set(err, status, "%s cannot be placed", set->name);
    for (int32_t d = 0; d <= n_devices; d++)
        slot_beg[d] = d * (n_slots / n_devices);
    return ek_route_replicas_build(slot_expert, slot_beg, set->n_experts, n_devices, arena,
                                   &s->replicas, err);
}

static ek_status scene_open(const ek_bench_set *set, int32_t n_devices, int32_t layer, double load,
                            ek_arena arena, scene *s, ek_err *err)
{
    memset(s, 0, sizeof *s);
    s->set = set;
    s->gate = ek_bench_set_gate(set);
    s->layer = layer;
    s->capacity = (double)N_TOKENS * set->top_k / n_devices / load;
    ek_status status = place(s, n_devices, &arena, err);
    for (int32_t p = 0; status == EK_OK && p < N_POLICIES; p++) {
        ek_route_params params;
        ek_route_params_default(&params);
        params.policy = policies[p];
        params.max_score_loss = 0.3;
        params.mean_score_loss = 0.1;
        status = ek_route_create(&s->gate, 1, &params, &arena, &s->plant[p].router, err);
    }
    s->step = arena;
    return status;
}

static void scene_play(scene *s, uint64_t seed)
{
    static float logits[N_TOKENS * EXPERTS_MAX];
    ek_rng rng;
    ek_rng_init(&rng, seed);
    ek_bench_stream stream;
    for (int32_t i = 0; i < N_PERIODS; i++) {
        int32_t tokens[N_TOKENS];
        if (i % DOMAIN_PERIODS == 0)
            ek_bench_stream_start(&stream, s->set, i / DOMAIN_PERIODS % s->set->n_domains, N_TOKENS,
                                  &rng);
        ek_bench_stream_next(&stream, &rng, tokens);
        for (int32_t t = 0; t < N_TOKENS; t++)
            ek_bench_stream_logits(&stream, tokens[t], s->layer, &rng,
                                   logits + (ptrdiff_t)t * s->gate.n_experts);
        for (int32_t p = 0; p < N_POLICIES; p++)
            plan_and_serve(s, &s->plant[p], i, logits);
    }
}

/* ---- output ---- */

typedef struct row {
    double tail_ms[N_POLICIES];
    double worst; /* adaptive over the better of static and breaker, worst seed */
    double gain;
} row;

static void print_row(const ek_bench_set *set, int32_t n_devices, double load, const row *r,
                      bool json, bool first)
{
    double best = fmin(r->tail_ms[STATIC], r->tail_ms[BREAKER]);
    const char *form =
        json ? "%s{\"set\":\"%s\",\"devices\":%d,\"offered\":%.2f,\"static_ms\":%.2f,"
               "\"discount_ms\":%.2f,\"breaker_ms\":%.2f,\"adaptive_ms\":%.2f,\"ratio\":%.4f,"
               "\"ratio_worst\":%.4f,\"gain\":%.3f}"
             : "%s%-22s %7d %7.2f %9.1f %9.1f %9.1f %9.1f %7.4f %7.4f %5.2f\n";
    printf(form, json && !first ? "," : "", set->name, n_devices, load, r->tail_ms[STATIC],
           r->tail_ms[DISCOUNT], r->tail_ms[BREAKER], r->tail_ms[ADAPTIVE],
           r->tail_ms[ADAPTIVE] / best, r->worst, r->gain);
    fflush(stdout);
}

static bool run_set(const ek_bench_set *set, const ek_sys_region *region, bool json, bool first,
                    ek_err *err)
{
    static scene s;
    int32_t n_devices = set->n_experts > 64 ? 32 : 8;
    for (size_t o = 0; o < EK_COUNT_OF(offered); o++) {
        row r = {0};
        for (int32_t seed = 0; seed < N_SEEDS; seed++) {
            int32_t layer = (2 * seed + 1) * set->n_layers / (2 * N_SEEDS);
            if (scene_open(set, n_devices, layer, offered[o], ek_sys_region_arena(region), &s,
                           err) != EK_OK)
                return false;
            scene_play(&s, (uint64_t)seed + 1);
            for (int32_t p = 0; p < N_POLICIES; p++)
                r.tail_ms[p] += s.plant[p].tail_sum / N_PERIODS / 1e3 / N_SEEDS;
            double best = fmin(s.plant[STATIC].tail_sum, s.plant[BREAKER].tail_sum);
            r.worst = fmax(r.worst, s.plant[ADAPTIVE].tail_sum / best);
            r.gain += s.plant[ADAPTIVE].gain_sum / N_PERIODS / N_SEEDS;
        }
        print_row(set, n_devices, offered[o], &r, json, first && o == 0);
    }
    return true;
}

bool ek_bench_route_adaptive(const char *dir, bool json, ek_err *err)
{
    static ek_bench_set set;
    ek_sys_region region;
    if (ek_sys_region_open(64 << 20, 0, &region) != EK_OK) return false;
    if (json)
        printf("\"adaptive\":[");
    else
        printf("\nmean tail in ms, traffic that changes its kind every %d s; ratio of adaptive to "
               "the better of static and breaker: mean, worst of %d layers and seeds\n"
               "%-22s %7s %7s %9s %9s %9s %9s %7s %7s %5s\n",
               DOMAIN_PERIODS / 10, N_SEEDS, "recording", "devices", "offered", "static",
               "discount", "breaker", "adaptive", "ratio", "worst", "gain");
    bool good = true;
    for (int32_t i = 0; good && i < ek_bench_n_sets; i++) {
        good = ek_bench_set_open(dir, i, &set, err);
        if (!good) break;
        good = run_set(&set, &region, json, i == 0, err);
        ek_bench_set_close(&set);
    }
    if (json) printf("]");
    ek_sys_region_close(&region);
    return good;
}
