/*
 * build/bench/rebalance --data DIR [--json]: how even devices are while traffic changes its kind.
 *
 * DIR is the folder of recorded routing (docs/formats/mrt.md) with dsv2lite-esft/,
 * gptoss20b-fingerprint/ and dsv4flash-reaploop/. Their texts fall into domains (tasks, question
 * sets, languages). Batches of one domain follow each other for a while, then those of the next,
 * round and round; sequences are drawn at random, seeded. Each arm places experts in its own way in
 * E + 12.5 % slots and meets the same batches. A batch's figure is busiest device over mean device,
 * averaged over layers; shown are its mean and its 99th percentile over the batches, its mean in
 * the first EARLY batches after a change and in the second half before the next one, and how much
 * was moved per change, as a share of all slots. The first stretch only warms up.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "bench.h"
#include "place/controller.h"
#include "rebalance_traffic.h"
#include "route/split.h"
#include "sys/file.h"
#include "sys/mem.h"

/*
 * The replay's clock and the controller's economy, printed with the result: workers with the
 * arithmetic of a CPU socket and 10 Gbit/s, which spend half of their time on experts when all are
 * equally busy.
 */
enum { BATCHES = 100, ROUNDS = 2, EARLY = 8, TOP_DEVICES = 32 };
#define FLOPS_PER_S      0.5e12
#define LINK_BYTES_PER_S 1.25e9
#define BUSY_SHARE       0.5

typedef enum arm_kind {
    ARM_NONE,     /* experts in order, no replicas */
    ARM_BEFORE,   /* planned from the whole domain before this one */
    ARM_LAST,     /* planned anew for every batch from the batch before it */
    ARM_OWN,      /* planned from the whole domain itself: what nobody can know in advance */
    ARM_CONTROL,  /* the controller; tokens in equal parts to replicas, as in all arms above */
    ARM_DISPATCH, /* experts in order, replicas of any; each batch split over replicas at best */
    ARM_BOTH,     /* the controller and that split */
    N_ARMS,
} arm_kind;

static const char *const arm_names[] = {"no plan",
                                        "plan of the domain before",
                                        "plan of the last batch",
                                        "plan of the domain itself",
                                        "controller",
                                        "dispatch only",
                                        "controller and dispatch"};

typedef struct arm {
    int32_t *slot_expert; /* (n_layers, n_slots); not of the controller's arms */
    ek_place_controller *controller;
    ek_place_step step;   /* under way */
    int64_t step_done_us; /* 0: none is */
    int64_t n_replicas;   /* moved after the first stretch */
    int64_t warm_replicas;
    ek_bench_samples all, early, settled;
} arm;

typedef struct plant {
    const ek_bench_set *set;
    ek_place_topology topology;
    int32_t *slot_beg; /* (n_devices + 1) */
    double seconds_per_row;
    int64_t batch_us;
    ek_arena scratch;
    arm arms[N_ARMS];
} plant;

static void must(ek_status status, const char *what)
{
    if (status == EK_OK) return;
    fprintf(stderr, "rebalance: %s: %s\n", what, ek_status_text(status));
    exit(1);
}

/* ---- placements ---- */

/*
 * Experts in order; a device's slots beyond its share are empty, or hold replicas spread
 * load-blind.
 */
static void place_in_order(const plant *p, bool replicate, int32_t *slots)
{
    const ek_place_topology *t = &p->topology;
    int32_t expert = 0, replica = t->n_experts / 2;
    for (int32_t d = 0; d < t->n_devices; d++) {
        int32_t n_own = (d + 1) * t->n_experts / t->n_devices - d * t->n_experts / t->n_devices;
        for (int32_t s = p->slot_beg[d]; s < p->slot_beg[d + 1]; s++) {
            bool is_own = s - p->slot_beg[d] < n_own;
            slots[s] = is_own ? expert++ : EK_PLACE_EMPTY;
            if (!is_own && replicate) {
                slots[s] = replica % t->n_experts;
                replica += t->n_experts / (t->n_slots - t->n_experts);
            }
        }
    }
}

static int32_t device_of(const plant *p, int32_t slot)
{
    int32_t d = 0;
    while (p->slot_beg[d + 1] <= slot)
        d++;
    return d;
}

static bool holds(const plant *p, const int32_t *slots, int32_t device, int32_t expert)
{
    for (int32_t s = p->slot_beg[device]; s < p->slot_beg[device + 1]; s++)
        if (slots[s] == expert) return true;
    return false;
}

/* A fresh solve for each layer. @return replicas that lie where they did not lie before */
static int64_t plan(const plant *p, const int64_t *tokens, int32_t *slot_expert)
{
    const ek_place_topology *t = &p->topology;
    ek_arena scratch = p->scratch;
    ek_place_params params;
    ek_place_hint hint = {0};
    ek_place_params_default(&params);
    double *loads = ek_new(&scratch, double, t->n_experts);
    int32_t *fresh = ek_new(&scratch, int32_t, t->n_slots);
    int64_t n_moved = 0;
    for (int32_t l = 0; l < p->set->n_layers; l++) {
        ek_place_balance b;
        int32_t *slots = slot_expert + (int64_t)l * t->n_slots;
        for (int32_t e = 0; e < t->n_experts; e++)
            loads[e] = (double)tokens[(int64_t)l * t->n_experts + e];
        must(ek_place_layer(t, &params, loads, &hint, scratch, fresh, &b), "placing");
        for (int32_t d = 0; d < t->n_devices; d++)
            for (int32_t s = p->slot_beg[d]; s < p->slot_beg[d + 1]; s++)
                n_moved += fresh[s] >= 0 && !holds(p, slots, d, fresh[s]);
        memcpy(slots, fresh, (size_t)t->n_slots * sizeof *fresh);
    }
    return n_moved;
}

/* ---- what a placement comes to ---- */

static double balance_equal(const plant *p, const int64_t *tokens, const int32_t *slots)
{
    ek_arena scratch = p->scratch;
    double *loads = ek_new(&scratch, double, p->topology.n_experts);
    for (int32_t e = 0; e < p->topology.n_experts; e++)
        loads[e] = (double)tokens[e];
    ek_place_balance b;
    must(ek_place_measure(&p->topology, loads, slots, scratch, &b), "measuring");
    return b.max_over_mean;
}

static double balance_split(const void *ctx, const int32_t *tokens, const int32_t *slots,
                            ek_arena scratch)
{
    const plant *p = ctx;
    const ek_place_topology *t = &p->topology;
    ek_route_replicas replicas;
    must(ek_route_replicas_build(slots, p->slot_beg, t->n_experts, t->n_devices, &scratch,
                                 &replicas, NULL),
         "listing replicas");
    int32_t *quota = ek_new(&scratch, int32_t, t->n_slots);
    int32_t *device = ek_new(&scratch, int32_t, t->n_devices);
    must(ek_route_split(&replicas, tokens, scratch, quota, device), "splitting");
    int64_t busiest = 0, total = 0;
    for (int32_t d = 0; d < t->n_devices; d++) {
        busiest = device[d] > busiest ? device[d] : busiest;
        total += device[d];
    }
    return total > 0 ? (double)busiest * t->n_devices / (double)total : 1.0;
}

static double balance_of(const plant *p, arm_kind kind, const int64_t *tokens)
{
    const arm *a = &p->arms[kind];
    double sum = 0.0;
    for (int32_t l = 0; l < p->set->n_layers; l++) {
        const int64_t *row = tokens + (int64_t)l * p->topology.n_experts;
        const int32_t *slots = a->controller ? ek_place_controller_slots(a->controller, l)
                                             : a->slot_expert + (int64_t)l * p->topology.n_slots;
        if (kind != ARM_DISPATCH && kind != ARM_BOTH) {
            sum += balance_equal(p, row, slots);
            continue;
        }
        ek_arena scratch = p->scratch;
        int32_t *few = ek_new(&scratch, int32_t, p->topology.n_experts);
        for (int32_t e = 0; e < p->topology.n_experts; e++)
            few[e] = (int32_t)row[e];
        sum += balance_split(p, few, slots, scratch);
    }
    return sum / p->set->n_layers;
}

/* ---- the controller's arms ---- */

static void control_open(plant *p, arm *a, bool by_split, ek_arena *perm)
{
    ek_place_controller_params params;
    ek_place_controller_params_default(&params);
    params.bytes_per_expert = p->set->expert_bytes;
    params.link_bytes_per_s = LINK_BYTES_PER_S;
    params.seconds_per_row = p->seconds_per_row;
    const ek_place_controller_setup setup = {
        .topology = p->topology,
        .n_layers = p->set->n_layers,
        .slot_expert = a->slot_expert,
        .balance = by_split ? balance_split : NULL,
        .balance_ctx = p,
        .balance_scratch_bytes = 1 << 20,
    };
    ek_err err;
    if (ek_place_controller_create(&setup, &params, perm, &a->controller, &err) != EK_OK) {
        fprintf(stderr, "rebalance: %s\n", err.text);
        exit(1);
    }
}

/* Each device has a link of its own; the one that receives most replicas takes longest. */
static int64_t transfer_us(const plant *p, const ek_place_step *step)
{
    int32_t n_received[TOP_DEVICES] = {0}, most = 1;
    for (int32_t i = 0; i < step->n_moves; i++) {
        const ek_place_move *m = &step->moves[i];
        bool is_two = m->other_slot >= 0 && m->other_expert >= 0;
        n_received[device_of(p, m->slot)]++;
        if (is_two) n_received[device_of(p, m->other_slot)]++;
    }
    for (int32_t d = 0; d < p->topology.n_devices; d++)
        most = n_received[d] > most ? n_received[d] : most;
    return (int64_t)(1e6 * most * (double)p->set->expert_bytes / LINK_BYTES_PER_S) + 1;
}

/* The time between two batches: decisions, and the transfers for which there is time. */
static void control_run(const plant *p, arm *a, int64_t now_us, const int64_t *tokens)
{
    int64_t until_us = now_us + p->batch_us, at_us = now_us;
    ek_place_controller_feed(a->controller, now_us, p->batch_us, tokens);
    for (;;) {
        if (a->step_done_us > 0) {
            if (a->step_done_us > until_us) return;
            at_us = a->step_done_us > at_us ? a->step_done_us : at_us;
            must(ek_place_controller_confirm(a->controller, at_us, a->step.id), "confirming");
            a->step_done_us = 0;
            a->n_replicas += a->step.n_replicas;
        }
        if (ek_place_controller_next(a->controller, at_us, &a->step) == EK_OK) {
            a->step_done_us = at_us + transfer_us(p, &a->step);
            continue;
        }
        ek_place_outlook o;
        if (ek_place_controller_decide(a->controller, at_us, p->scratch, &o) != EK_OK) return;
    }
}

/* ---- the replay ---- */

static void plant_open(plant *p, const ek_bench_set *set, int32_t n_devices, ek_arena *perm)
{
    memset(p, 0, sizeof *p);
    int32_t n_slots = set->n_experts + set->n_experts / 8;
    int32_t *device_slots = ek_new(perm, int32_t, n_devices);
    p->set = set;
    p->seconds_per_row = 2.0 * (double)set->expert_weights / FLOPS_PER_S;
    double rows = (double)set->n_layers * set->batch_tokens * set->top_k;
    p->batch_us = (int64_t)(1e6 * rows / n_devices * p->seconds_per_row / BUSY_SHARE);
    p->slot_beg = ek_new(perm, int32_t, n_devices + 1);
    for (int32_t d = 0; d <= n_devices; d++)
        p->slot_beg[d] = d * n_slots / n_devices;
    for (int32_t d = 0; d < n_devices; d++)
        device_slots[d] = p->slot_beg[d + 1] - p->slot_beg[d];
    p->topology = (ek_place_topology){.n_experts = set->n_experts,
                                      .n_slots = n_slots,
                                      .n_devices = n_devices,
                                      .n_nodes = 1,
                                      .n_groups = 1,
                                      .device_slots = device_slots};
    for (int32_t k = 0; k < N_ARMS; k++) {
        arm *a = &p->arms[k];
        a->slot_expert = ek_new(perm, int32_t, (int64_t)set->n_layers * n_slots);
        for (int32_t l = 0; l < set->n_layers; l++)
            place_in_order(p, k == ARM_DISPATCH, a->slot_expert + (int64_t)l * n_slots);
        if (k == ARM_CONTROL || k == ARM_BOTH) control_open(p, a, k == ARM_BOTH, perm);
    }
    p->scratch = *perm;
}

/* What the arms do that plan from whole domains. */
static void change_domain(plant *p, int32_t before, int32_t now)
{
    int64_t n_cells = (int64_t)p->set->n_layers * p->topology.n_experts;
    const int64_t *totals = p->set->totals;
    arm *a = &p->arms[ARM_BEFORE];
    if (before >= 0) a->n_replicas += plan(p, totals + before * n_cells, a->slot_expert);
    a = &p->arms[ARM_OWN];
    a->n_replicas += plan(p, totals + now * n_cells, a->slot_expert);
}

static void replay(plant *p)
{
    ek_arena scratch = p->scratch;
    const ek_bench_set *set = p->set;
    ek_bench_reader reader;
    ek_rng rng;
    ek_rng_init(&rng, 1);
    int64_t *tokens = ek_new(&scratch, int64_t, (int64_t)set->n_layers * set->n_experts);
    p->scratch = scratch;
    int32_t n_stretches = ROUNDS * set->n_domains + 1, before = -1;
    int64_t now_us = p->batch_us;
    for (int32_t stretch = 0; stretch < n_stretches; stretch++) {
        int32_t domain = stretch % set->n_domains;
        change_domain(p, before, domain);
        before = domain;
        ek_bench_reader_start(&reader, set, domain, &rng);
        for (int32_t k = 0; stretch == 1 && k < N_ARMS; k++)
            p->arms[k].warm_replicas = p->arms[k].n_replicas;
        for (int32_t b = 0; b < BATCHES; b++, now_us += p->batch_us) {
            ek_bench_reader_batch(&reader, &rng, tokens);
            for (int32_t k = 0; k < N_ARMS; k++) {
                arm *a = &p->arms[k];
                double balance = balance_of(p, (arm_kind)k, tokens);
                if (stretch > 0) ek_bench_add(&a->all, balance);
                if (stretch > 0 && b < EARLY) ek_bench_add(&a->early, balance);
                if (stretch > 0 && b >= BATCHES / 2) ek_bench_add(&a->settled, balance);
                if (a->controller) control_run(p, a, now_us, tokens);
                if (k == ARM_LAST) a->n_replicas += plan(p, tokens, a->slot_expert);
            }
        }
    }
}

static double mean_of(const ek_bench_samples *samples)
{
    double sum = 0.0;
    for (int32_t i = 0; i < samples->n; i++)
        sum += samples->value[i];
    return samples->n > 0 ? sum / samples->n : 0.0;
}

static void print_arm(plant *p, arm_kind kind, bool json, bool first)
{
    arm *a = &p->arms[kind];
    /* Of all slots, per change of domain. */
    double moved = (double)(a->n_replicas - a->warm_replicas) /
                   ((double)p->set->n_layers * p->topology.n_slots) / (ROUNDS * p->set->n_domains);
    double mean = mean_of(&a->all), early = mean_of(&a->early), settled = mean_of(&a->settled);
    double p99 = ek_bench_quantile(&a->all, 0.99);
    if (!json) {
        printf("%-26s %7.3f %7.3f %7.3f %7.3f %9.1f %%\n", arm_names[kind], mean, p99, early,
               settled, 100.0 * moved);
        return;
    }
    printf("%s{\"set\":\"%s\",\"devices\":%d,\"slots\":%d,\"batch_tokens\":%d,\"batch_s\":%.3f,"
           "\"placement\":\"%s\",\"mean\":%.4f,\"p99\":%.4f,\"early\":%.4f,\"settled\":%.4f,"
           "\"moved_per_change\":%.4f}",
           first ? "" : ",", p->set->name, p->topology.n_devices, p->topology.n_slots,
           p->set->batch_tokens, (double)p->batch_us / 1e6, arm_names[kind], mean, p99, early,
           settled, moved);
}

static void print_head(bool json)
{
    if (json) {
        printf("{");
        ek_bench_print_machine_json();
        printf(",\"batches_per_domain\":%d,\"flops_per_s\":%g,\"link_bytes_per_s\":%g,"
               "\"busy_share\":%g,\"rows\":[",
               BATCHES, FLOPS_PER_S, LINK_BYTES_PER_S, BUSY_SHARE);
        return;
    }
    ek_bench_print_machine();
    printf("%d batches of each domain, %d rounds; workers of %.1f TFLOP/s, half of it used; links "
           "of %.2f GB/s\n",
           BATCHES, ROUNDS, FLOPS_PER_S / 1e12, LINK_BYTES_PER_S / 1e9);
}

static void print_plant(const plant *p, bool json)
{
    if (json) return;
    printf("\n%s: %d layers of %d experts, %d devices, %d slots, %d domains; %d tokens each "
           "%.2f s\n",
           p->set->name, p->set->n_layers, p->set->n_experts, p->topology.n_devices,
           p->topology.n_slots, p->set->n_domains, p->set->batch_tokens, (double)p->batch_us / 1e6);
    printf("%-26s %7s %7s %7s %7s %11s\n", "placement", "mean", "p99", "early", "settled", "moved");
}

int main(int argc, char **argv)
{
    const char *dir = NULL;
    bool json = false, good = true, first = true;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--data") == 0 && i + 1 < argc)
            dir = argv[++i];
        else if (strcmp(argv[i], "--json") == 0)
            json = true;
        else
            good = false;
    }
    if (!dir || !good) {
        fprintf(stderr, "usage: rebalance --data DIR [--json]\n");
        return 2;
    }
    static plant p;
    ek_sys_region region;
    ek_err err = {0};
    if (ek_sys_region_open(256 << 20, 0, &region) != EK_OK) return 1;
    print_head(json);
    for (int32_t i = 0; i < ek_bench_n_sets; i++) {
        ek_bench_set set;
        if (!ek_bench_set_open(dir, i, &set, &err)) {
            fprintf(stderr, "rebalance: %s\n", err.text);
            return 1;
        }
        for (int32_t n_devices = 8; n_devices <= TOP_DEVICES && 2 * n_devices <= set.n_experts;
             n_devices *= 4) {
            ek_arena arena = ek_sys_region_arena(&region);
            plant_open(&p, &set, n_devices, &arena);
            print_plant(&p, json);
            replay(&p);
            for (int32_t k = 0; k < N_ARMS; k++, first = false)
                print_arm(&p, (arm_kind)k, json, first);
        }
        ek_bench_set_close(&set);
    }
    if (json) printf("]}\n");
    ek_sys_region_close(&region);
    return 0;
}
