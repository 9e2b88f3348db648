/*
 * evenkeel place: from measured expert loads to a placement of replicas on devices, fresh or from
 * an old one.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/args.h"
#include "cli/exit.h"
#include "cli/place_report.h"
#include "cli/placement.h"
#include "place/csv.h"
#include "place/place.h"
#include "place/rebalance.h"
#include "sys/clock.h"
#include "sys/file.h"
#include "sys/mem.h"

#define CELL_BYTES_MAX 8 /* "-1," .. "16383," and a line end */

enum {
    OPTION_LOADS,
    OPTION_SLOTS,
    OPTION_DEVICES,
    OPTION_NODES,
    OPTION_RACKS,
    OPTION_GROUPS,
    OPTION_FROM,
    OPTION_MODE,
    OPTION_TARGET,
    OPTION_MAX_MOVES,
    OPTION_SPREAD,
    OPTION_SPREAD_OVER,
    OPTION_EXPERT_BYTES,
    OPTION_OUT,
    OPTION_JSON,
};

static const ek_cli_option options[] = {
    {OPTION_LOADS, "loads", "FILE", "CSV: a line per layer, tokens per expert", NULL},
    {OPTION_SLOTS, "slots", "S", "replica slots of all devices together", NULL},
    {OPTION_DEVICES, "devices", "G", "devices", NULL},
    {OPTION_NODES, "nodes", "N", "nodes of the devices, equal ones, or sizes: 8,8,4 (default 1)",
     NULL},
    {OPTION_RACKS, "racks", "R", "racks of the nodes, equal ones, or sizes: 2,1 (default 1)", NULL},
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
    {OPTION_SPREAD_OVER, "spread-over", "node|rack", "what --spread has two of (default node)",
     NULL},
    {OPTION_EXPERT_BYTES, "expert-bytes", "B",
     "weights of one expert: moves are shown in bytes too", NULL},
    {OPTION_OUT, "out", "FILE", "write the placement: a line per layer, expert of each slot", NULL},
    {OPTION_JSON, "json", NULL, "print one JSON object", NULL},
};

static ek_status read_from(ek_cli_place_job *j, ek_err *err)
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

/* Which of `sizes` each of n members is in, in order. */
static ek_status list_members(const ek_cli_place_sizes *s, int64_t n, const char *option,
                              const char *members, int32_t *out_of, ek_err *err)
{
    int64_t sum = 0;
    for (int64_t i = 0; i < s->n; i++)
        sum += s->of[i];
    if (sum != n)
        return ek_err_set(err, EK_EINVAL, "--%s lists %" PRId64 " %s, but there are %" PRId64,
                          option, sum, members, n);
    for (int32_t i = 0, at = 0; i < s->n; i++)
        for (int32_t left = s->of[i]; left > 0; left--)
            out_of[at++] = i;
    return EK_OK;
}

/* What a solve could only do by half is refused, since it was asked for by name. */
static ek_status check_spread(const ek_cli_place_job *j, ek_err *err)
{
    bool racks = j->spread_over == EK_PLACE_RACK;
    int64_t n_spare = j->n_slots - j->topology.n_experts;
    if (j->spread == 0) return EK_OK;
    if ((racks ? j->racks.n : j->nodes.n) < 2)
        return ek_err_set(err, EK_EINVAL, "--spread needs two %s; say how many by --%s",
                          racks ? "racks" : "nodes", racks ? "racks" : "nodes");
    if (j->n_groups > 1)
        return ek_err_set(err, EK_EINVAL,
                          "--groups keeps experts on one node, --spread asks for "
                          "two; leave one of them out");
    if (j->spread > n_spare)
        return ek_err_set(err, EK_EINVAL,
                          "--spread %" PRId64 " needs as many slots beyond one per expert, but "
                          "there are %" PRId64,
                          j->spread, n_spare);
    return EK_OK;
}

static ek_status make_topology(ek_cli_place_job *j, ek_err *err)
{
    j->topology = (ek_place_topology){
        .n_experts = j->loads.n_columns,
        .n_slots = (int32_t)j->n_slots,
        .n_devices = (int32_t)j->n_devices,
        .n_nodes = (int32_t)j->nodes.n,
        .n_groups = (int32_t)j->n_groups,
        .n_racks = (int32_t)j->racks.n,
        .device_node = j->nodes.listed ? j->device_node : NULL,
        .node_rack = j->racks.listed ? j->node_rack : NULL,
    };
    ek_status status = EK_OK;
    if (j->nodes.listed)
        status = list_members(&j->nodes, j->n_devices, "nodes", "devices", j->device_node, err);
    if (status == EK_OK && j->racks.listed)
        status = list_members(&j->racks, j->nodes.n, "racks", "nodes", j->node_rack, err);
    ek_place_params params;
    ek_place_params_default(&params);
    if (status == EK_OK) status = ek_place_check(&j->topology, &params, err);
    return status == EK_OK ? check_spread(j, err) : status;
}

static ek_status read_inputs(ek_cli_place_job *j, ek_err *err)
{
    ek_status status = ek_cli_table_read(j->loads_path, 0.0, false, &j->arena, &j->loads, err);
    if (status == EK_OK) status = make_topology(j, err);
    if (status != EK_OK) return status;
    if (j->from_path) status = read_from(j, err);
    if (status != EK_OK) return status;
    j->slot_expert = ek_try_new(&j->arena, int32_t, (int64_t)j->loads.n_rows * j->n_slots);
    return j->slot_expert ? EK_OK : ek_err_set(err, EK_ENOMEM, "no memory for the placement");
}

static ek_status solve_layer(ek_cli_place_job *j, int32_t layer, ek_place_hint *hint,
                             ek_place_balance *out, int32_t *out_n_moves, int64_t *n_from)
{
    const double *loads = j->loads.value + (int64_t)layer * j->loads.n_columns;
    int32_t *slot_expert = j->slot_expert + (int64_t)layer * j->n_slots;
    *out_n_moves = 0;
    if (!j->from) {
        ek_place_params params;
        ek_place_params_default(&params);
        params.mode = j->quick ? EK_PLACE_QUICK : EK_PLACE_BEST;
        params.spread_hottest = (int32_t)j->spread;
        params.spread_over = j->spread_over;
        if (j->target > 0.0) params.target = j->target;
        return ek_place_layer(&j->topology, &params, loads, hint, j->arena, slot_expert, out);
    }
    ek_arena scratch = j->arena;
    int32_t max_moves = (int32_t)((double)j->n_slots * j->max_moves_percent / 100.0);
    const ek_place_move_params params = {.target = j->target > 0.0 ? j->target : 1.01,
                                         .max_moves = max_moves,
                                         .spread_hottest = (int32_t)j->spread,
                                         .spread_over = j->spread_over};
    ek_place_move *moves = ek_try_new(&scratch, ek_place_move, max_moves + 1);
    int32_t n_steps;
    if (!moves) return EK_ENOMEM;
    const int32_t *old = j->from + (int64_t)layer * j->n_slots;
    memcpy(slot_expert, old, (size_t)j->n_slots * sizeof *slot_expert);
    ek_status status = ek_place_rebalance(&j->topology, &params, loads, scratch, slot_expert, moves,
                                          &n_steps, out_n_moves, out);
    if (status != EK_OK || !n_from) return status;
    int32_t *at = ek_try_new(&scratch, int32_t, j->n_slots);
    if (!at) return EK_ENOMEM;
    memcpy(at, old, (size_t)j->n_slots * sizeof *at);
    ek_place_moves_apply(&j->topology, moves, n_steps, at, n_from);
    return EK_OK;
}

/* distances: whether the answer says how far replicas move, which takes longer than the solve. */
static ek_status solve_all(ek_cli_place_job *j, bool distances, ek_cli_place_result *out,
                           ek_err *err)
{
    ek_place_hint hint = {0};
    *out = (ek_cli_place_result){0};
    for (int32_t l = 0; l < j->loads.n_rows; l++) {
        ek_place_balance balance;
        int32_t n_moves;
        ek_status status =
            solve_layer(j, l, &hint, &balance, &n_moves, distances ? out->n_from : NULL);
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
        out->n_together += balance.n_together;
    }
    return EK_OK;
}

static int compare_ns(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* What the tighter bound says of each layer; it takes longer than all solves. */
static ek_status add_tight_bounds(ek_cli_place_job *j, ek_cli_place_result *out)
{
    for (int32_t l = 0; l < j->loads.n_rows; l++) {
        const double *loads = j->loads.value + (int64_t)l * j->loads.n_columns;
        ek_place_balance balance;
        ek_status status = ek_place_measure(
            &j->topology, loads, j->slot_expert + (int64_t)l * j->n_slots, j->arena, &balance);
        if (status != EK_OK) return status;
        double bound = ek_place_tight_bound(&j->topology, loads, balance.max_over_mean);
        if (bound > out->tight_bound) out->tight_bound = bound;
        out->above_tight += (balance.max_over_mean / bound - 1.0) / j->loads.n_rows;
    }
    return EK_OK;
}

static ek_status solve_timed(ek_cli_place_job *j, ek_cli_place_result *out, ek_err *err)
{
    int64_t ns[EK_CLI_PLACE_SOLVES];
    for (int32_t i = 0; i < EK_CLI_PLACE_SOLVES; i++) {
        int64_t beg_ns = ek_sys_thread_cpu_ns();
        ek_status status = solve_all(j, false, out, err);
        if (status != EK_OK) return status;
        ns[i] = ek_sys_thread_cpu_ns() - beg_ns;
    }
    qsort(ns, EK_CLI_PLACE_SOLVES, sizeof ns[0], compare_ns);
    if (j->from) {
        ek_status status = solve_all(j, true, out, err);
        if (status != EK_OK) return status;
    }
    out->solve_ms = (double)ns[EK_CLI_PLACE_SOLVES / 2] / 1e6;
    return add_tight_bounds(j, out);
}

static ek_status write_out(ek_cli_place_job *j, ek_err *err)
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

static int place(ek_cli_place_job *j)
{
    ek_err err = {0};
    ek_sys_region region;
    ek_cli_place_result r;
    ek_status status = ek_sys_region_open((size_t)8 << 30, 0, &region);
    if (status != EK_OK) return ek_cli_fail(EK_EXIT_FAILURE, "place: no memory");
    j->arena = ek_sys_region_arena(&region);
    status = read_inputs(j, &err);
    if (status == EK_OK) status = solve_timed(j, &r, &err);
    if (status == EK_OK && j->out_path) status = write_out(j, &err);
    int code = EK_EXIT_OK;
    if (status == EK_OK)
        ek_cli_place_report(j, &r);
    else if (status == EK_EINVAL)
        code = ek_cli_fail(EK_EXIT_DATA, "place: %s", err.text);
    else
        code = ek_cli_fail_err(&err);
    ek_sys_region_close(&region);
    return code;
}

static bool take_mode(ek_cli_place_job *j, const char *value)
{
    j->quick = strcmp(value, "quick") == 0;
    if (j->quick || strcmp(value, "best") == 0) return true;
    (void)ek_cli_fail(EK_EXIT_USAGE, "place: --mode is quick or best, not '%s'", value);
    return false;
}

static bool take_domain(ek_cli_place_job *j, const char *value)
{
    bool racks = strcmp(value, "rack") == 0;
    j->spread_over = racks ? EK_PLACE_RACK : EK_PLACE_NODE;
    if (racks || strcmp(value, "node") == 0) return true;
    (void)ek_cli_fail(EK_EXIT_USAGE, "place: --spread-over is node or rack, not '%s'", value);
    return false;
}

/* A number of equal parts, or a list of sizes. */
static bool take_sizes(const ek_cli_args *args, ek_cli_place_sizes *out)
{
    if (!strchr(args->value, ',')) return ek_cli_args_int(args, 1, EK_CLI_PLACE_SIZES_MAX, &out->n);
    out->n = 0;
    out->listed = true;
    for (const char *at = args->value; out->n < EK_CLI_PLACE_SIZES_MAX;) {
        char *end;
        long size = *at >= '0' && *at <= '9' ? strtol(at, &end, 10) : 0;
        if (size < 1 || size > EK_CLI_PLACE_SIZES_MAX || (*end != ',' && *end != '\0')) break;
        out->of[out->n++] = (int32_t)size;
        if (*end == '\0') return true;
        at = end + 1;
    }
    (void)ek_cli_fail(EK_EXIT_USAGE,
                      "place: --%s is '%s'; it must be a number, or sizes from 1 to %d with commas "
                      "between them, at most %d",
                      args->option->name, args->value, EK_CLI_PLACE_SIZES_MAX,
                      EK_CLI_PLACE_SIZES_MAX);
    return false;
}

static int run(int argc, char **argv)
{
    static const ek_cli_place_job start = {
        .nodes.n = 1, .racks.n = 1, .n_groups = 1, .max_moves_percent = 25.0};
    ek_cli_place_job j = start;
    ek_cli_args args = ek_cli_args_start(&ek_cli_place, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        bool good = true;
        switch (id) {
        case OPTION_LOADS: j.loads_path = args.value; break;
        case OPTION_SLOTS: good = ek_cli_args_int(&args, 1, EK_PLACE_SLOTS_MAX, &j.n_slots); break;
        case OPTION_DEVICES:
            good = ek_cli_args_int(&args, 1, EK_PLACE_DEVICES_MAX, &j.n_devices);
            break;
        case OPTION_NODES: good = take_sizes(&args, &j.nodes); break;
        case OPTION_RACKS: good = take_sizes(&args, &j.racks); break;
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
        case OPTION_SPREAD_OVER: good = take_domain(&j, args.value); break;
        case OPTION_EXPERT_BYTES:
            good = ek_cli_args_int(&args, 1, INT64_C(1) << 33, &j.expert_bytes);
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
