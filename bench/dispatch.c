/*
 * build/bench/dispatch --data DIR [--json]: how evenly, and how fast, batches are split over
 * replicas; and how few replicas small batches need.
 *
 * DIR holds NAME.p2l.csv (placement), NAME.hist.csv (what it was made from) and NAME.T<T>.ids.u16
 * (20 batches of T tokens x 8 expert ids) for the eight sets below. Balance is the busiest device's
 * tokens over the mean, averaged over the batches; times are medians of N_RUNS per batch, and of
 * those the median and the worst over the batches.
 *
 * Decode batches are the first 64 tokens of each batch of 128, over placements with more replicas
 * that are made here from the history. Compared are a hash of the token-slot's place, the token
 * split and least activation: replicas with tokens on the most activated device, and the busiest
 * device's time in token-slots, both averaged over the batches; how far a device's tokens come
 * towards its knee; in how many batches the answer is proven optimal.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "base/rng.h"
#include "bench.h"
#include "place/csv.h"
#include "place/place.h"
#include "route/activate.h"
#include "route/split.h"
#include "sys/clock.h"
#include "sys/file.h"
#include "sys/mem.h"

enum { N_RUNS = 41, N_BATCHES = 20, TOP_K = 8, T_MAX = 16384 };

typedef struct set {
    const char *name;
    int32_t n_experts, n_slots, n_devices;
} set;

static const set sets[] = {
    {"dsv3_zipf0.8", 256, 288, 32}, {"dsv3_zipf1.2", 256, 288, 32}, {"dsv3_logn0.5", 256, 288, 32},
    {"dsv3_logn1.0", 256, 288, 32}, {"k2_zipf0.8", 384, 448, 64},   {"k2_zipf1.2", 384, 448, 64},
    {"k2_logn0.5", 384, 448, 64},   {"k2_logn1.0", 384, 448, 64},
};

/* Knees of a CPU socket (57 GB/s, 1.75 int8 TOP/s) and of an accelerator (4.8 TB/s, 2 PFLOP/s). */
static const int32_t knees[] = {16, 208};
enum { DECODE_TOKENS = 64, DECODE_FILE_TOKENS = 128 };

static const set decode_sets[] = {
    {"dsv3_zipf0.8", 256, 512, 32}, {"dsv3_zipf1.2", 256, 512, 32}, {"dsv3_logn0.5", 256, 512, 32},
    {"dsv3_logn1.0", 256, 512, 32}, {"k2_zipf0.8", 384, 512, 64},   {"k2_zipf1.2", 384, 512, 64},
    {"k2_logn0.5", 384, 512, 64},   {"k2_logn1.0", 384, 512, 64},   {"k2_zipf0.8", 384, 768, 64},
    {"k2_zipf1.2", 384, 768, 64},   {"k2_logn0.5", 384, 768, 64},   {"k2_logn1.0", 384, 768, 64},
};

typedef struct figures {
    double balance;
    ek_bench_samples solve_us;
    ek_bench_samples slot_ns; /* counting, splitting and assigning, per token-slot */
} figures;

static bool load_placement(const char *dir, const set *s, ek_arena *arena,
                           ek_route_replicas *out_replicas, ek_err *err)
{
    char path[4096];
    ek_str text;
    ek_place_table table;
    snprintf(path, sizeof path, "%s/%s.p2l.csv", dir, s->name);
    if (ek_sys_file_read(path, 1 << 20, &text, err) != EK_OK) return false;
    ek_status status = ek_place_csv_parse(text, 0.0, true, path, arena, &table, err);
    ek_sys_free((void *)(uintptr_t)text.data);
    if (status != EK_OK) return false;
    if (table.n_columns != s->n_slots) {
        (void)ek_err_set(err, EK_EFORMAT, "%s: %d slots, expected %d", path, table.n_columns,
                         s->n_slots);
        return false;
    }
    int32_t *slot_expert = ek_new(arena, int32_t, s->n_slots);
    int32_t *slot_beg = ek_new(arena, int32_t, s->n_devices + 1);
    for (int32_t i = 0; i < s->n_slots; i++)
        slot_expert[i] = (int32_t)table.value[i];
    for (int32_t d = 0; d <= s->n_devices; d++)
        slot_beg[d] = d * (s->n_slots / s->n_devices);
    return ek_route_replicas_build(slot_expert, slot_beg, s->n_experts, s->n_devices, arena,
                                   out_replicas, err) == EK_OK;
}

static void run_batch(const set *s, const ek_route_replicas *replicas, const uint16_t *ids,
                      int32_t n_ids, ek_arena scratch, figures *out)
{
    int32_t *tokens = ek_new(&scratch, int32_t, s->n_experts);
    int32_t *quota = ek_new(&scratch, int32_t, s->n_slots);
    int32_t *device = ek_new(&scratch, int32_t, s->n_devices);
    uint16_t *slot = ek_new(&scratch, uint16_t, n_ids);
    ek_bench_samples solve = {0}, total = {0};
    for (int32_t run = 0; run < N_RUNS; run++) {
        int64_t beg_ns = ek_sys_now_ns();
        ek_route_count(ids, n_ids, s->n_experts, tokens);
        int64_t counted_ns = ek_sys_now_ns();
        ek_status status = ek_route_split(replicas, tokens, scratch, quota, device);
        int64_t split_ns = ek_sys_now_ns();
        if (status == EK_OK) status = ek_route_assign(replicas, quota, ids, n_ids, scratch, slot);
        int64_t end_ns = ek_sys_now_ns();
        if (status != EK_OK) exit(1);
        ek_bench_add(&solve, (double)(split_ns - counted_ns) / 1e3);
        ek_bench_add(&total, (double)(end_ns - beg_ns) / n_ids);
    }
    int32_t busiest = 0;
    for (int32_t d = 0; d < s->n_devices; d++)
        busiest = device[d] > busiest ? device[d] : busiest;
    out->balance += busiest / ((double)n_ids / s->n_devices) / N_BATCHES;
    ek_bench_add(&out->solve_us, ek_bench_quantile(&solve, 0.5));
    ek_bench_add(&out->slot_ns, ek_bench_quantile(&total, 0.5));
}

static bool run_set(const char *dir, const set *s, int32_t n_tokens, ek_arena arena, figures *out,
                    ek_err *err)
{
    char path[4096];
    ek_route_replicas replicas;
    ek_sys_map map;
    if (!load_placement(dir, s, &arena, &replicas, err)) return false;
    snprintf(path, sizeof path, "%s/%s.T%d.ids.u16", dir, s->name, n_tokens);
    if (ek_sys_map_open(path, &map, err) != EK_OK) return false;
    int32_t n_ids = n_tokens * TOP_K;
    bool fits = map.bytes.len == (size_t)N_BATCHES * (size_t)n_ids * sizeof(uint16_t);
    if (!fits)
        (void)ek_err_set(err, EK_EFORMAT, "%s: not %d batches of %d tokens", path, N_BATCHES,
                         n_tokens);
    memset(out, 0, sizeof *out);
    const uint16_t *ids = (const uint16_t *)(const void *)map.bytes.data;
    for (int32_t b = 0; fits && b < N_BATCHES; b++)
        run_batch(s, &replicas, ids + (int64_t)b * n_ids, n_ids, arena, out);
    ek_sys_map_close(&map);
    return fits;
}

/* ---- decode ---- */

enum { BY_HASH, BY_TOKENS, BY_ACTIVATION, N_WAYS };

typedef struct decode_figures {
    double active[N_WAYS]; /* replicas with tokens on the most activated device */
    double time[N_WAYS];   /* of the busiest device, in token-slots */
    double fill_max;       /* tokens of a device over what it reads its weights in; worst batch */
    int32_t n_above;       /* devices of all batches beyond that, and beyond the busiest's knees */
    int32_t n_optimal;     /* batches */
    ek_bench_samples solve_us;
} decode_figures;

typedef struct device_sums {
    int32_t active[EK_ROUTE_DEVICES_MAX], tokens[EK_ROUTE_DEVICES_MAX];
    int32_t active_max;
    int64_t time;
} device_sums;

static void sum_devices(const ek_route_replicas *r, const int32_t *quota, int32_t knee,
                        device_sums *out)
{
    memset(out, 0, sizeof *out);
    for (int32_t k = 0; k < r->beg[r->n_experts]; k++) {
        out->active[r->device[k]] += quota[k] > 0;
        out->tokens[r->device[k]] += quota[k];
    }
    for (int32_t d = 0; d < r->n_devices; d++) {
        int64_t reading = (int64_t)knee * out->active[d];
        int64_t time = reading > out->tokens[d] ? reading : out->tokens[d];
        out->time = time > out->time ? time : out->time;
        out->active_max = out->active[d] > out->active_max ? out->active[d] : out->active_max;
    }
}

static void add_way(const ek_route_replicas *r, const int32_t *quota, int32_t knee, int32_t way,
                    decode_figures *out)
{
    device_sums sums;
    sum_devices(r, quota, knee, &sums);
    out->active[way] += (double)sums.active_max / N_BATCHES;
    out->time[way] += (double)sums.time / N_BATCHES;
    if (way != BY_ACTIVATION) return;
    for (int32_t d = 0; d < r->n_devices; d++) {
        if (sums.active[d] == 0) continue;
        double fill = (double)sums.tokens[d] / ((double)knee * sums.active[d]);
        out->fill_max = fill > out->fill_max ? fill : out->fill_max;
        out->n_above += sums.tokens[d] > (int64_t)knee * sums.active_max;
    }
}

static void decode_batch(const ek_route_replicas *r, const uint16_t *ids, int32_t knee,
                         ek_arena scratch, decode_figures *out)
{
    enum { N_IDS = DECODE_TOKENS * TOP_K };
    int32_t *tokens = ek_new(&scratch, int32_t, r->n_experts);
    int32_t *quota = ek_new(&scratch, int32_t, r->n_slots);
    int32_t *device = ek_new(&scratch, int32_t, r->n_devices);
    ek_route_count(ids, N_IDS, r->n_experts, tokens);
    for (int32_t i = 0; i < N_IDS; i++) {
        uint64_t n = (uint64_t)(r->beg[ids[i] + 1] - r->beg[ids[i]]);
        quota[r->beg[ids[i]] + (int32_t)(ek_mix64((uint64_t)i) % n)]++;
    }
    add_way(r, quota, knee, BY_HASH, out);
    ek_status status = ek_route_split(r, tokens, scratch, quota, device);
    ek_assert(status == EK_OK);
    add_way(r, quota, knee, BY_TOKENS, out);
    ek_route_activation activation;
    ek_bench_samples solve = {0};
    for (int32_t run = 0; run < N_RUNS; run++) {
        int64_t beg_ns = ek_sys_now_ns();
        status = ek_route_activate(r, tokens, knee, scratch, quota, &activation);
        ek_bench_add(&solve, (double)(ek_sys_now_ns() - beg_ns) / 1e3);
        ek_assert(status == EK_OK);
    }
    add_way(r, quota, knee, BY_ACTIVATION, out);
    out->n_optimal += activation.busiest == activation.bound;
    ek_bench_add(&out->solve_us, ek_bench_quantile(&solve, 0.5));
}

/* A placement of the set's slots from its history, as good as place can make it. */
static bool place_history(const char *dir, const set *s, ek_arena *arena,
                          ek_route_replicas *out_replicas, ek_err *err)
{
    char path[4096];
    ek_str text;
    ek_place_table table;
    snprintf(path, sizeof path, "%s/%s.hist.csv", dir, s->name);
    if (ek_sys_file_read(path, 1 << 20, &text, err) != EK_OK) return false;
    ek_status status = ek_place_csv_parse(text, 0.0, true, path, arena, &table, err);
    ek_sys_free((void *)(uintptr_t)text.data);
    if (status == EK_OK && table.n_columns != s->n_experts)
        status = ek_err_set(err, EK_EFORMAT, "%s: %d experts, expected %d", path, table.n_columns,
                            s->n_experts);
    if (status != EK_OK) return false;
    const ek_place_topology topology = {
        .n_experts = s->n_experts,
        .n_slots = s->n_slots,
        .n_devices = s->n_devices,
        .n_nodes = 1,
        .n_groups = 1,
    };
    ek_place_params params;
    ek_place_hint hint = {0};
    ek_place_balance balance;
    ek_place_params_default(&params);
    int32_t *slot_expert = ek_new(arena, int32_t, s->n_slots);
    int32_t *slot_beg = ek_new(arena, int32_t, s->n_devices + 1);
    status = ek_place_layer(&topology, &params, table.value, &hint, *arena, slot_expert, &balance);
    if (status != EK_OK) {
        (void)ek_err_set(err, status, "%s: cannot be placed", path);
        return false;
    }
    for (int32_t d = 0; d <= s->n_devices; d++)
        slot_beg[d] = d * (s->n_slots / s->n_devices);
    return ek_route_replicas_build(slot_expert, slot_beg, s->n_experts, s->n_devices, arena,
                                   out_replicas, err) == EK_OK;
}

static bool decode_set(const char *dir, const set *s, int32_t knee, ek_arena arena,
                       decode_figures *out, ek_err *err)
{
    char path[4096];
    ek_route_replicas replicas;
    ek_sys_map map;
    if (!place_history(dir, s, &arena, &replicas, err)) return false;
    snprintf(path, sizeof path, "%s/%s.T%d.ids.u16", dir, s->name, DECODE_FILE_TOKENS);
    if (ek_sys_map_open(path, &map, err) != EK_OK) return false;
    const int32_t n_ids = DECODE_FILE_TOKENS * TOP_K;
    bool fits = map.bytes.len == (size_t)N_BATCHES * (size_t)n_ids * sizeof(uint16_t);
    if (!fits)
        (void)ek_err_set(err, EK_EFORMAT, "%s: not %d batches of %d tokens", path, N_BATCHES,
                         DECODE_FILE_TOKENS);
    memset(out, 0, sizeof *out);
    const uint16_t *ids = (const uint16_t *)(const void *)map.bytes.data;
    for (int32_t b = 0; fits && b < N_BATCHES; b++)
        decode_batch(&replicas, ids + (int64_t)b * n_ids, knee, arena, out);
    ek_sys_map_close(&map);
    return fits;
}

static void print_decode(const set *s, int32_t knee, decode_figures *f, bool json, bool first)
{
    double solve = ek_bench_quantile(&f->solve_us, 0.5), worst = ek_bench_quantile(&f->solve_us, 1);
    double less = 1 - f->active[BY_ACTIVATION] / f->active[BY_HASH];
    const char *form =
        json ? "%s{\"set\":\"%s\",\"slots\":%d,\"devices\":%d,\"knee\":%d,\"active_hash\":%.2f,"
               "\"active_split\":%.2f,\"active_least\":%.2f,\"less\":%.3f,\"time_hash\":%.0f,"
               "\"time_split\":%.0f,\"time_least\":%.0f,\"fill_max\":%.2f,\"above_knee\":%d,"
               "\"optimal\":%d,\"solve_us\":%.2f,\"solve_us_worst\":%.2f}"
             : "%s%-14s %5d %7d %5d %7.2f %7.2f %7.2f %5.3f %7.0f %7.0f %7.0f %6.2f %6d %8d %8.2f "
               "%8.2f\n";
    printf(form, json && !first ? "," : "", s->name, s->n_slots, s->n_devices, knee,
           f->active[BY_HASH], f->active[BY_TOKENS], f->active[BY_ACTIVATION], less,
           f->time[BY_HASH], f->time[BY_TOKENS], f->time[BY_ACTIVATION], f->fill_max, f->n_above,
           f->n_optimal, solve, worst);
}

static bool run_decode(const char *dir, bool json, const ek_sys_region *region, ek_err *err)
{
    static decode_figures f;
    if (json)
        printf("],\"decode\":[");
    else
        printf("\n%d tokens: most activated device, busiest device's time by hash, split, least\n"
               "%-14s %5s %7s %5s %7s %7s %7s %5s %7s %7s %7s %6s %6s %8s %8s %8s\n",
               DECODE_TOKENS, "set", "slots", "devices", "knee", "hash", "split", "least", "less",
               "t hash", "t split", "t least", "fill", "above", "optimal", "solve us", "worst us");
    bool first = true;
    for (size_t k = 0; k < EK_COUNT_OF(knees); k++)
        for (size_t i = 0; i < EK_COUNT_OF(decode_sets); i++) {
            if (!decode_set(dir, &decode_sets[i], knees[k], ek_sys_region_arena(region), &f, err))
                return false;
            print_decode(&decode_sets[i], knees[k], &f, json, first);
            first = false;
        }
    return true;
}

/* ---- output of the splits, and all of it ---- */

static void print_row(const set *s, int32_t n_tokens, figures *f, bool json, bool first)
{
    double solve = ek_bench_quantile(&f->solve_us, 0.5), worst = ek_bench_quantile(&f->solve_us, 1);
    double slot = ek_bench_quantile(&f->slot_ns, 0.5);
    if (json)
        printf("%s{\"set\":\"%s\",\"tokens\":%d,\"balance\":%.4f,\"solve_us\":%.2f,"
               "\"solve_us_worst\":%.2f,\"slot_ns\":%.2f}",
               first ? "" : ",", s->name, n_tokens, f->balance, solve, worst, slot);
    else
        printf("%-14s %6d %9.4f %9.2f %9.2f %9.2f\n", s->name, n_tokens, f->balance, solve, worst,
               slot);
}

int main(int argc, char **argv)
{
    const char *dir = NULL;
    bool json = false;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--data") == 0 && i + 1 < argc)
            dir = argv[++i];
        else if (strcmp(argv[i], "--json") == 0)
            json = true;
        else
            dir = NULL, i = argc;
    }
    if (!dir) {
        fprintf(stderr, "usage: dispatch --data DIR [--json]\n");
        return 2;
    }
    static figures f;
    ek_sys_region region;
    ek_err err = {0};
    if (ek_sys_region_open(64 << 20, 0, &region) != EK_OK) return 1;
    if (json) {
        printf("{");
        ek_bench_print_machine_json();
        printf(",\"rows\":[");
    } else {
        ek_bench_print_machine();
        printf("%-14s %6s %9s %9s %9s %9s\n", "set", "tokens", "balance", "solve us", "worst us",
               "ns/slot");
    }
    bool first = true;
    for (size_t i = 0; i < EK_COUNT_OF(sets); i++)
        for (int32_t n_tokens = 128; n_tokens <= 1024; n_tokens *= 8) {
            ek_arena arena = ek_sys_region_arena(&region);
            if (!run_set(dir, &sets[i], n_tokens, arena, &f, &err)) {
                fprintf(stderr, "dispatch: %s\n", err.text);
                return 1;
            }
            print_row(&sets[i], n_tokens, &f, json, first);
            first = false;
        }
    if (!run_decode(dir, json, &region, &err)) {
        fprintf(stderr, "dispatch: %s\n", err.text);
        return 1;
    }
    if (json) printf("]}\n");
    ek_sys_region_close(&region);
    return 0;
}
