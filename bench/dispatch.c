/*
 * build/bench/dispatch --data DIR [--json]: how evenly, and how fast, batches are split over
 * replicas.
 *
 * DIR holds NAME.p2l.csv (placement) and NAME.T<T>.ids.u16 (20 batches of T tokens x 8 expert ids)
 * for the eight sets below. Balance is the busiest device's tokens over the mean, averaged over the
 * batches; times are medians of N_RUNS per batch, and of those the median and the worst over the
 * batches.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "place/csv.h"
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
    if (json) printf("]}\n");
    ek_sys_region_close(&region);
    return 0;
}
