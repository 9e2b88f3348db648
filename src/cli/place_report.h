/*
 * What evenkeel place has done, told: the job, what its layers came to, and both as text or JSON.
 */
#ifndef EK_CLI_PLACE_REPORT_H
#define EK_CLI_PLACE_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "place/csv.h"
#include "place/place.h"

#define EK_CLI_PLACE_SOLVES    21 /* of which the median time is shown */
#define EK_CLI_PLACE_SIZES_MAX EK_PLACE_DEVICES_MAX

/** How many nodes or racks there are, and how many members each has. */
typedef struct ek_cli_place_sizes {
    int64_t n;
    bool listed; /* else equal parts */
    int32_t of[EK_CLI_PLACE_SIZES_MAX];
} ek_cli_place_sizes;

/** What was asked for, and what is worked on. */
typedef struct ek_cli_place_job {
    const char *loads_path, *from_path, *out_path;
    int64_t n_slots, n_devices, n_groups, spread, expert_bytes;
    ek_cli_place_sizes nodes, racks;
    int32_t device_node[EK_PLACE_DEVICES_MAX], node_rack[EK_PLACE_DEVICES_MAX];
    ek_place_domain spread_over;
    double target, max_moves_percent;
    bool quick, json;

    ek_arena arena;
    ek_place_topology topology;
    ek_place_table loads;
    int32_t *from;        /* (n_layers, n_slots) or NULL */
    int32_t *slot_expert; /* (n_layers, n_slots) result */
} ek_cli_place_job;

/** What all layers came to. */
typedef struct ek_cli_place_result {
    double worst, mean, lower_bound;
    double above; /* share by which the busiest device is above its layer's bound, mean */
    double tight_bound, above_tight; /* the same of ek_place_tight_bound */
    int32_t worst_layer;
    int64_t n_moves, n_duplicates, n_together;
    int64_t n_from[EK_PLACE_N_DISTANCES]; /* n_moves by where the weights come from */
    double solve_ms;
} ek_cli_place_result;

/** Print it on standard output, as one JSON object if the job says so. */
void ek_cli_place_report(const ek_cli_place_job *job, const ek_cli_place_result *result);

#endif
