/*
 * build/bench/place --data DIR [--json]: balance and time of placements, fresh and incremental.
 *
 * DIR holds NAME.csv (loads), NAME.{global,hierarchical}.deepseek_phy2log.csv (EPLB's placements of
 * them) and NAME.stale<S>.phy2log.csv (placements that went stale). One time is the processor time
 * of all layers of an input on one core; medians of N_RUNS with the fastest and slowest. Balance is
 * busiest device over mean device, with equal split over replicas.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "place/csv.h"
#include "place/place.h"
#include "place/rebalance.h"
#include "sys/clock.h"
#include "sys/file.h"
#include "sys/mem.h"

enum { N_RUNS = 21 };

static const char *const names[] = {
    "dsv3_zipf0.8", "dsv3_zipf1.0", "dsv3_zipf1.2", "dsv3_logn0.5", "dsv3_logn1.0", "dsv3_logn1.5",
    "k2_zipf0.8",   "k2_zipf1.0",   "k2_zipf1.2",   "k2_logn0.5",   "k2_logn1.0",   "k2_logn1.5",
};
static const char *const drifts[] = {"0.1", "0.3", "0.6"};

typedef struct row {
    const char *name;
    const char *kind; /* "quick", "best", "nodes" (groups on nodes), "stale0.1" .. */
    double worst, mean, eplb_worst, eplb_mean;
    double above; /* share by which the busiest device is above the layer's lower bound, mean */
    double above_tight; /* the same of the tight bound; fresh "nodes" only */
    double moved;       /* share of the slots; incremental only */
    int32_t n_duplicates;
    ek_bench_samples ms;
} row;

static bool read_table(const char *dir, const char *name, const char *suffix, ek_arena *arena,
                       ek_place_table *out, ek_err *err)
{
    char path[4096];
    ek_str text;
    snprintf(path, sizeof path, "%s/%s%s", dir, name, suffix);
    if (ek_sys_file_read(path, 64 << 20, &text, err) != EK_OK) return false;
    ek_status status = ek_place_csv_parse(text, 0.0, true, path, arena, out, err);
    ek_sys_free((void *)(uintptr_t)text.data);
    return status == EK_OK;
}

static ek_place_topology topology_of(const ek_place_table *loads, int32_t n_groups)
{
    bool is_k2 = loads->n_columns == 384;
    return (ek_place_topology){
        .n_experts = loads->n_columns,
        .n_slots = is_k2 ? 448 : 288,
        .n_devices = is_k2 ? 64 : 32,
        .n_nodes = 8,
        .n_groups = n_groups,
    };
}

static void to_ints(const ek_place_table *table, int32_t layer, int32_t *out)
{
    for (int32_t c = 0; c < table->n_columns; c++)
        out[c] = (int32_t)table->value[(int64_t)layer * table->n_columns + c];
}

static void must(ek_status status)
{
    if (status == EK_OK) return;
    fprintf(stderr, "place: %s\n", ek_status_text(status));
    exit(1);
}

static void measure_eplb(const ek_place_topology *t, const ek_place_table *loads,
                         const ek_place_table *eplb, ek_arena scratch, row *r)
{
    int32_t *slot_expert = ek_new(&scratch, int32_t, t->n_slots);
    for (int32_t l = 0; l < loads->n_rows; l++) {
        ek_place_balance b;
        to_ints(eplb, l, slot_expert);
        must(ek_place_measure(t, loads->value + (int64_t)l * loads->n_columns, slot_expert, scratch,
                              &b));
        r->eplb_worst = fmax(r->eplb_worst, b.max_over_mean);
        r->eplb_mean += b.max_over_mean / loads->n_rows;
    }
}

static void run_fresh(const ek_place_topology *t, const ek_place_table *loads, ek_place_mode mode,
                      ek_arena scratch, row *r)
{
    ek_place_params params;
    ek_place_params_default(&params);
    params.mode = mode;
    int32_t *slot_expert = ek_new(&scratch, int32_t, t->n_slots);
    for (int32_t run = 0; run < N_RUNS; run++) {
        ek_place_hint hint = {0};
        r->worst = r->mean = r->above = 0.0;
        r->n_duplicates = 0;
        int64_t beg_ns = ek_sys_thread_cpu_ns();
        for (int32_t l = 0; l < loads->n_rows; l++) {
            ek_place_balance b;
            must(ek_place_layer(t, &params, loads->value + (int64_t)l * loads->n_columns, &hint,
                                scratch, slot_expert, &b));
            r->worst = fmax(r->worst, b.max_over_mean);
            r->mean += b.max_over_mean / loads->n_rows;
            r->above += (b.max_over_mean / b.lower_bound - 1.0) / loads->n_rows;
            r->n_duplicates += b.n_duplicates;
        }
        ek_bench_add(&r->ms, (double)(ek_sys_thread_cpu_ns() - beg_ns) / 1e6);
    }
}

/* The last run's placements against the tight bound; not part of any time. */
static void measure_tight(const ek_place_topology *t, const ek_place_table *loads, ek_arena scratch,
                          row *r)
{
    ek_place_params params;
    ek_place_hint hint = {0};
    ek_place_params_default(&params);
    int32_t *slot_expert = ek_new(&scratch, int32_t, t->n_slots);
    for (int32_t l = 0; l < loads->n_rows; l++) {
        const double *layer = loads->value + (int64_t)l * loads->n_columns;
        ek_place_balance b;
        must(ek_place_layer(t, &params, layer, &hint, scratch, slot_expert, &b));
        double bound = ek_place_tight_bound(t, layer, b.max_over_mean);
        r->above_tight += (b.max_over_mean / bound - 1.0) / loads->n_rows;
    }
}

static void run_stale(const ek_place_topology *t, const ek_place_table *loads,
                      const ek_place_table *stale, ek_arena scratch, row *r)
{
    const ek_place_move_params params = {.target = 1.01, .max_moves = t->n_slots / 4};
    int32_t *slot_expert = ek_new(&scratch, int32_t, t->n_slots);
    ek_place_move *moves = ek_new(&scratch, ek_place_move, params.max_moves + 1);
    for (int32_t run = 0; run < N_RUNS; run++) {
        int64_t spent_ns = 0;
        r->worst = r->mean = r->above = r->moved = 0.0;
        for (int32_t l = 0; l < loads->n_rows; l++) {
            ek_place_balance b;
            int32_t n_moves, n_replicas;
            to_ints(stale, l, slot_expert);
            int64_t beg_ns = ek_sys_thread_cpu_ns();
            must(ek_place_rebalance(t, &params, loads->value + (int64_t)l * loads->n_columns,
                                    scratch, slot_expert, moves, &n_moves, &n_replicas, &b));
            spent_ns += ek_sys_thread_cpu_ns() - beg_ns;
            r->worst = fmax(r->worst, b.max_over_mean);
            r->mean += b.max_over_mean / loads->n_rows;
            r->above += (b.max_over_mean / b.lower_bound - 1.0) / loads->n_rows;
            r->moved += (double)n_replicas / t->n_slots / loads->n_rows;
        }
        ek_bench_add(&r->ms, (double)spent_ns / 1e6);
    }
}

static void print_row(row *r, bool json, bool *first)
{
    double ms = ek_bench_quantile(&r->ms, 0.5);
    double low = ek_bench_quantile(&r->ms, 0.0), high = ek_bench_quantile(&r->ms, 1.0);
    if (json)
        printf("%s{\"input\":\"%s\",\"kind\":\"%s\",\"worst\":%.6f,\"mean\":%.6f,"
               "\"above_bound\":%.6f,\"above_tight_bound\":%.6f,\"eplb_worst\":%.6f,\"eplb_mean\":%"
               ".6f,\"moved\":%.4f,"
               "\"duplicates\":%d,"
               "\"solve_ms\":%.3f,\"solve_ms_min\":%.3f,\"solve_ms_max\":%.3f}",
               *first ? "" : ",", r->name, r->kind, r->worst, r->mean, r->above, r->above_tight,
               r->eplb_worst, r->eplb_mean, r->moved, r->n_duplicates, ms, low, high);
    else
        printf(
            "%-13s %-9s %9.6f %9.6f %7.3f %% %7.3f %% %9.6f %9.6f %6.1f %% %5d %8.3f (%.3f-%.3f)\n",
            r->name, r->kind, r->worst, r->mean, 100.0 * r->above, 100.0 * r->above_tight,
            r->eplb_worst, r->eplb_mean, 100.0 * r->moved, r->n_duplicates, ms, low, high);
    *first = false;
}

static bool run_input(const char *dir, const char *name, ek_arena arena, bool json, bool *first,
                      ek_err *err)
{
    static row r;
    ek_place_table loads, eplb;
    if (!read_table(dir, name, ".csv", &arena, &loads, err)) return false;
    const struct {
        const char *kind, *eplb;
        int32_t n_groups;
        ek_place_mode mode;
    } fresh[] = {
        {"quick", ".global.deepseek_phy2log.csv", 1, EK_PLACE_QUICK},
        {"best", ".global.deepseek_phy2log.csv", 1, EK_PLACE_BEST},
        {"nodes", ".hierarchical.deepseek_phy2log.csv", 8, EK_PLACE_BEST},
    };
    for (size_t i = 0; i < EK_COUNT_OF(fresh); i++) {
        if (!read_table(dir, name, fresh[i].eplb, &arena, &eplb, err)) return false;
        ek_place_topology t = topology_of(&loads, fresh[i].n_groups);
        memset(&r, 0, sizeof r);
        r.name = name;
        r.kind = fresh[i].kind;
        measure_eplb(&t, &loads, &eplb, arena, &r);
        run_fresh(&t, &loads, fresh[i].mode, arena, &r);
        r.above_tight = r.above;
        if (fresh[i].n_groups > 1) {
            r.above_tight = 0.0;
            measure_tight(&t, &loads, arena, &r);
        }
        print_row(&r, json, first);
    }
    for (size_t i = 0; i < EK_COUNT_OF(drifts); i++) {
        char suffix[64], kind[16];
        ek_place_table stale;
        snprintf(suffix, sizeof suffix, ".stale%s.phy2log.csv", drifts[i]);
        snprintf(kind, sizeof kind, "stale%s", drifts[i]);
        if (!read_table(dir, name, suffix, &arena, &stale, err))
            continue; /* not made for every input */
        ek_place_topology t = topology_of(&loads, 1);
        memset(&r, 0, sizeof r);
        r.name = name;
        r.kind = kind;
        measure_eplb(&t, &loads, &stale, arena, &r); /* here: what the stale placement comes to */
        run_stale(&t, &loads, &stale, arena, &r);
        r.above_tight = r.above;
        print_row(&r, json, first);
    }
    return true;
}

int main(int argc, char **argv)
{
    const char *dir = NULL;
    bool json = false, good = true;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--data") == 0 && i + 1 < argc)
            dir = argv[++i];
        else if (strcmp(argv[i], "--json") == 0)
            json = true;
        else
            good = false;
    }
    if (!dir || !good) {
        fprintf(stderr, "usage: place --data DIR [--json]\n");
        return 2;
    }
    ek_sys_region region;
    ek_err err = {0};
    bool first = true;
    if (ek_sys_region_open(256 << 20, 0, &region) != EK_OK) return 1;
    if (json) {
        printf("{");
        ek_bench_print_machine_json();
        printf(",\"rows\":[");
    } else {
        ek_bench_print_machine();
        printf("the EPLB columns of stale* rows are the stale placement itself\n");
        printf("%-13s %-9s %9s %9s %9s %9s %9s %9s %8s %5s %8s\n", "input", "kind", "worst", "mean",
               "> bound", "> tight", "EPLB wst", "EPLB mean", "moved", "dup", "ms");
    }
    for (size_t i = 0; i < EK_COUNT_OF(names); i++)
        if (!run_input(dir, names[i], ek_sys_region_arena(&region), json, &first, &err)) {
            fprintf(stderr, "place: %s\n", err.text);
            return 1;
        }
    if (json) printf("]}\n");
    ek_sys_region_close(&region);
    return 0;
}
