/*
 * evenkeel place: from measured expert loads to a placement of replicas on devices, fresh or from
 * an old one.
 */
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/args.h"
#include "cli/exit.h"
#include "cli/placement.h"
#include "place/csv.h"
#include "place/place.h"
#include "place/rebalance.h"
#include "sys/clock.h"
#include "sys/file.h"
#include "sys/mem.h"

#define N_SOLVES       21 /* of which the median is shown */
#define CELL_BYTES_MAX 8  /* "-1," .. "16383," and a line end */

enum {
    OPTION_LOADS,
    OPTION_SLOTS,
    OPTION_DEVICES,
    OPTION_NODES,
    OPTION_GROUPS,
    OPTION_FROM,
    OPTION_MODE,
    OPTION_TARGET,
    OPTION_MAX_MOVES,
    OPTION_SPREAD,
    OPTION_OUT,
    OPTION_JSON,
};

static const ek_cli_option options[] = {
    {OPTION_LOADS, "loads", "FILE", "CSV: a line per layer, tokens per expert", NULL},
    {OPTION_SLOTS, "slots", "S", "replica slots of all devices together", NULL},
    {OPTION_DEVICES, "devices", "G", "devices", NULL},
    {OPTION_NODES, "nodes", "N", "nodes that the devices belong to (default 1)", NULL},
    {OPTION_GROUPS, "groups", "K", "expert groups that stay on one node each (default: none)",
     NULL},
    {OPTION_FROM, "from", "FILE", "CSV: the placement in force; move as few replicas as it takes",
     NULL},
    {OPTION_MODE, "mode", "quick|best", "effort of a fresh placement (default best)", NULL},
    {OPTION_TARGET, "target", "R", "stop at busiest/mean R (default 1.00045, with --from 1.01)",
     NULL},
    {OPTION_MAX_MOVES, "max-moves", "PERCENT", "of a layer's slots that may change (default 25)",
     NULL},
    {OPTION_SPREAD, "spread", "N", "replicas of the N hottest experts on two nodes at least", NULL},
    {OPTION_OUT, "out", "FILE", "write the placement: a line per layer, expert of each slot", NULL},
    {OPTION_JSON, "json", NULL, "print one JSON object", NULL},
};

typedef struct job {
    const char *loads_path, *from_path, *out_path;
    int64_t n_slots, n_devices, n_nodes, n_groups, spread;
    double target, max_moves_percent;
    bool quick, json;

    ek_arena arena;
    ek_place_topology topology;
    ek_place_table loads;
    int32_t *from;        /* (n_layers, n_slots) or NULL */
    int32_t *slot_expert; /* (n_layers, n_slots) result */
} job;

/* What all layers came to. */
typedef struct result {
    double worst, mean, lower_bound;
    double above; /* share by which the busiest device is above its layer's bound, mean */
    int32_t worst_layer;
    int64_t n_moves, n_duplicates;
    double solve_ms;
} result;

static ek_status read_from(job *j, ek_err *err)
{
    ek_place_table table;
    ek_status status =
        ek_cli_table_read(j->from_path, EK_PLACE_EMPTY, true, &j->arena, &table, err);
    if (status != EK_OK) return status;
    if (table.n_rows != j->loads.n_rows || table.n_columns != j->topology.n_slots)
        return ek_err_set(err, EK_EFORMAT,
                          "%s: %d layers of %d slots, but %s has %d and --slots is %d",
                          j->from_path, table.n_rows, table.n_columns, j->loads_path,
                          j->loads.n_rows, j->topology.n_slots);
    int64_t n = (int64_t)table.n_rows * table.n_columns;
    j->from = ek_try_new(&j->arena, int32_t, n);
    if (!j->from) return ek_err_set(err, EK_ENOMEM, "%s: no memory", j->from_path);
    for (int64_t i = 0; i < n; i++) {
        if (table.value[i] >= j->topology.n_experts)
            return ek_err_set(err, EK_EFORMAT,
                              "%s:%" PRId64 ": slot %" PRId64 " holds expert %.0f, but %s has %d",
                              j->from_path, i / table.n_columns + 1, i % table.n_columns,
                              table.value[i], j->loads_path, j->topology.n_experts);
        j->from[i] = (int32_t)table.value[i];
    }
    return EK_OK;
}

static ek_status read_inputs(job *j, ek_err *err)
{
    ek_status status = ek_cli_table_read(j->loads_path, 0.0, false, &j->arena, &j->loads, err);
    if (status != EK_OK) return status;
    j->topology = (ek_place_topology){
        .n_experts = j->loads.n_columns,
        .n_slots = (int32_t)j->n_slots,
        .n_devices = (int32_t)j->n_devices,
        .n_nodes = (int32_t)j->n_nodes,
        .n_groups = (int32_t)j->n_groups,
    };
    ek_place_params params;
    ek_place_params_default(&params);
    status = ek_place_check(&j->topology, &params, err);
    if (status != EK_OK) return status;
    if (j->from_path) status = read_from(j, err);
    if (status != EK_OK) return status;
    j->slot_expert = ek_try_new(&j->arena, int32_t, (int64_t)j->loads.n_rows * j->n_slots);
    return j->slot_expert ? EK_OK : ek_err_set(err, EK_ENOMEM, "no memory for the placement");
}

static ek_status solve_layer(job *j, int32_t layer, ek_place_hint *hint, ek_place_balance *out,
                             int32_t *out_n_moves)
{
    const double *loads = j->loads.value + (int64_t)layer * j->loads.n_columns;
    int32_t *slot_expert = j->slot_expert + (int64_t)layer * j->n_slots;
    *out_n_moves = 0;
    if (!j->from) {
        ek_place_params params;
        ek_place_params_default(&params);
        params.mode = j->quick ? EK_PLACE_QUICK : EK_PLACE_BEST;
        params.spread_hottest = (int32_t)j->spread;
        if (j->target > 0.0) params.target = j->target;
        return ek_place_layer(&j->topology, &params, loads, hint, j->arena, slot_expert, out);
    }
    ek_arena scratch = j->arena;
    int32_t max_moves = (int32_t)((double)j->n_slots * j->max_moves_percent / 100.0);
    const ek_place_move_params params = {.target = j->target > 0.0 ? j->target : 1.01,
                                         .max_moves = max_moves};
    ek_place_move *moves = ek_try_new(&scratch, ek_place_move, max_moves + 1);
    int32_t n_steps;
    if (!moves) return EK_ENOMEM;
    memcpy(slot_expert, j->from + (int64_t)layer * j->n_slots,
           (size_t)j->n_slots * sizeof *slot_expert);
    return ek_place_rebalance(&j->topology, &params, loads, scratch, slot_expert, moves, &n_steps,
                              out_n_moves, out);
}

static ek_status solve_all(job *j, result *out, ek_err *err)
{
    ek_place_hint hint = {0};
    *out = (result){0};
    for (int32_t l = 0; l < j->loads.n_rows; l++) {
        ek_place_balance balance;
        int32_t n_moves;
        ek_status status = solve_layer(j, l, &hint, &balance, &n_moves);
        if (status != EK_OK)
            return ek_err_set(err, status, "layer %d: %s%s", l, ek_status_text(status),
                              j->from && status == EK_EINVAL
                                  ? " (an expert without a replica that --max-moves cannot restore)"
                                  : "");
        if (balance.max_over_mean > out->worst) {
            out->worst = balance.max_over_mean;
            out->worst_layer = l;
        }
        if (balance.lower_bound > out->lower_bound) out->lower_bound = balance.lower_bound;
        out->mean += balance.max_over_mean / j->loads.n_rows;
        out->above += (balance.max_over_mean / balance.lower_bound - 1.0) / j->loads.n_rows;
        out->n_moves += n_moves;
        out->n_duplicates += balance.n_duplicates;
    }
    return EK_OK;
}

static int compare_ns(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static ek_status solve_timed(job *j, result *out, ek_err *err)
{
    int64_t ns[N_SOLVES];
    for (int32_t i = 0; i < N_SOLVES; i++) {
        int64_t beg_ns = ek_sys_thread_cpu_ns();
        ek_status status = solve_all(j, out, err);
        if (status != EK_OK) return status;
        ns[i] = ek_sys_thread_cpu_ns() - beg_ns;
    }
    qsort(ns, N_SOLVES, sizeof ns[0], compare_ns);
    out->solve_ms = (double)ns[N_SOLVES / 2] / 1e6;
    return EK_OK;
}

static ek_status write_out(job *j, ek_err *err)
{
    int64_t n = (int64_t)j->loads.n_rows * j->n_slots;
    size_t bytes = (size_t)n * CELL_BYTES_MAX, used = 0;
    char *text = ek_try_new(&j->arena, char, bytes + 1);
    if (!text) return ek_err_set(err, EK_ENOMEM, "no memory to write %s", j->out_path);
    for (int64_t i = 0; i < n; i++)
        used += (size_t)snprintf(text + used, bytes + 1 - used, "%" PRId32 "%c", j->slot_expert[i],
                                 (i + 1) % j->n_slots == 0 ? '\n' : ',');
    return ek_sys_file_write(j->out_path, (ek_span){(const uint8_t *)text, used}, err);
}

static void print_result(const job *j, const result *r)
{
    if (j->json) {
        json_t *root =
            json_pack("{s:f, s:f, s:f, s:I, s:I, s:f}", "worst", r->worst, "mean", r->mean,
                      "lower_bound", r->lower_bound, "moves", (json_int_t)r->n_moves, "duplicates",
                      (json_int_t)r->n_duplicates, "solve_ms", r->solve_ms);
        json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(8));
        putchar('\n');
        json_decref(root);
        return;
    }
    printf("layers      %d of %d experts in %" PRId64 " slots on %" PRId64 " devices, %" PRId64
           " nodes\n",
           j->loads.n_rows, j->loads.n_columns, j->n_slots, j->n_devices, j->n_nodes);
    printf("balance     worst layer %.6f (layer %d), mean %.6f (busiest device / mean device)\n",
           r->worst, r->worst_layer, r->mean);
    printf("lower bound %.6f for the worst layer; a layer is %.3f %% above its own on average\n",
           r->lower_bound, 100.0 * r->above);
    if (j->from)
        printf("moves       %" PRId64 " replicas, %.1f %% of the slots\n", r->n_moves,
               100.0 * (double)r->n_moves / ((double)j->n_slots * j->loads.n_rows));
    printf("duplicates  %" PRId64 "\n", r->n_duplicates);
    printf("solve time  %.3f ms of one core for all layers, median of %d\n", r->solve_ms, N_SOLVES);
}

static int place(job *j)
{
    ek_err err = {0};
    ek_sys_region region;
    result r;
    ek_status status = ek_sys_region_open((size_t)8 << 30, 0, &region);
    if (status != EK_OK) return ek_cli_fail(EK_EXIT_FAILURE, "place: no memory");
    j->arena = ek_sys_region_arena(&region);
    status = read_inputs(j, &err);
    if (status == EK_OK) status = solve_timed(j, &r, &err);
    if (status == EK_OK && j->out_path) status = write_out(j, &err);
    int code = EK_EXIT_OK;
    if (status == EK_OK)
        print_result(j, &r);
    else if (status == EK_EINVAL)
        code = ek_cli_fail(EK_EXIT_DATA, "place: %s", err.text);
    else
        code = ek_cli_fail_err(&err);
    ek_sys_region_close(&region);
    return code;
}

static bool take_mode(job *j, const char *value)
{
    j->quick = strcmp(value, "quick") == 0;
    if (j->quick || strcmp(value, "best") == 0) return true;
    (void)ek_cli_fail(EK_EXIT_USAGE, "place: --mode is quick or best, not '%s'", value);
    return false;
}

static int run(int argc, char **argv)
{
    job j = {.n_nodes = 1, .n_groups = 1, .max_moves_percent = 25.0};
    ek_cli_args args = ek_cli_args_start(&ek_cli_place, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        bool good = true;
        switch (id) {
        case OPTION_LOADS: j.loads_path = args.value; break;
        case OPTION_SLOTS: good = ek_cli_args_int(&args, 1, EK_PLACE_SLOTS_MAX, &j.n_slots); break;
        case OPTION_DEVICES:
            good = ek_cli_args_int(&args, 1, EK_PLACE_DEVICES_MAX, &j.n_devices);
            break;
        case OPTION_NODES:
            good = ek_cli_args_int(&args, 1, EK_PLACE_DEVICES_MAX, &j.n_nodes);
            break;
        case OPTION_GROUPS:
            good = ek_cli_args_int(&args, 1, EK_PLACE_EXPERTS_MAX, &j.n_groups);
            break;
        case OPTION_FROM: j.from_path = args.value; break;
        case OPTION_MODE: good = take_mode(&j, args.value); break;
        case OPTION_TARGET: good = ek_cli_args_number(&args, 1.0, 1000.0, &j.target); break;
        case OPTION_MAX_MOVES:
            good = ek_cli_args_number(&args, 0.0, 200.0, &j.max_moves_percent);
            break;
        case OPTION_SPREAD:
            good = ek_cli_args_int(&args, 0, EK_PLACE_EXPERTS_MAX, &j.spread);
            break;
        case OPTION_OUT: j.out_path = args.value; break;
        case OPTION_JSON: j.json = true; break;
        default: return ek_cli_args_exit(&args, id);
        }
        if (!good) return EK_EXIT_USAGE;
    }
    if (!j.loads_path || j.n_slots == 0 || j.n_devices == 0)
        return ek_cli_fail(EK_EXIT_USAGE, "place: --loads, --slots and --devices are needed");
    return place(&j);
}

const ek_cli_command ek_cli_place = {
    .name = "place",
    .operands = "",
    .summary = "place expert replicas on devices",
    .about =
        "Reads the load of every expert (a line per layer) and decides how many replicas each\n"
        "expert gets and which device's slot holds them, so that the busiest device has as\n"
        "little to do as possible. With --from it starts from the placement in force and moves\n"
        "few replicas. Prints the balance, the bound that no placement can beat, and the time.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
