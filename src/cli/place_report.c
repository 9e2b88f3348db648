#include "cli/place_report.h"

#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>

#include "base/attr.h"

static const char *const distance_names[EK_PLACE_N_DISTANCES] = {
    "same_device", "same_node", "same_rack", "across_racks", "storage",
};

static void add_distances(const ek_cli_place_job *j, const ek_cli_place_result *r, json_t *root)
{
    json_t *moved = json_object(), *bytes = json_object();
    for (int d = 0; d < EK_PLACE_N_DISTANCES; d++) {
        json_object_set_new(moved, distance_names[d], json_integer((json_int_t)r->n_from[d]));
        json_object_set_new(bytes, distance_names[d],
                            json_integer((json_int_t)(r->n_from[d] * j->expert_bytes)));
    }
    json_object_set_new(root, "moved", moved);
    if (j->expert_bytes > 0)
        json_object_set_new(root, "moved_bytes", bytes);
    else
        json_decref(bytes);
}

static void print_distances(const ek_cli_place_job *j, const ek_cli_place_result *r)
{
    const struct {
        const char *text;
        int64_t n;
    } rows[] = {
        {"inside their node", r->n_from[EK_PLACE_SAME_DEVICE] + r->n_from[EK_PLACE_SAME_NODE]},
        {"inside their rack", r->n_from[EK_PLACE_SAME_RACK]},
        {"across racks", r->n_from[EK_PLACE_ACROSS_RACKS]},
        {"from storage", r->n_from[EK_PLACE_FROM_STORAGE]},
    };
    printf("moved      ");
    for (size_t i = 0; i < EK_COUNT_OF(rows); i++) {
        printf("%s%" PRId64 " %s", i ? ", " : " ", rows[i].n, rows[i].text);
        if (j->expert_bytes > 0)
            printf(" (%.1f MB)", (double)rows[i].n * (double)j->expert_bytes / 1e6);
    }
    putchar('\n');
}

void ek_cli_place_report(const ek_cli_place_job *j, const ek_cli_place_result *r)
{
    if (j->json) {
        json_t *root =
            json_pack("{s:f, s:f, s:f, s:I, s:I, s:f}", "worst", r->worst, "mean", r->mean,
                      "lower_bound", r->lower_bound, "moves", (json_int_t)r->n_moves, "duplicates",
                      (json_int_t)r->n_duplicates, "solve_ms", r->solve_ms);
        json_object_set_new(root, "tight_bound", json_real(r->tight_bound));
        json_object_set_new(root, "together", json_integer((json_int_t)r->n_together));
        if (j->from) add_distances(j, r, root);
        json_dumpf(root, stdout, JSON_COMPACT | JSON_REAL_PRECISION(8));
        putchar('\n');
        json_decref(root);
        return;
    }
    printf("layers      %d of %d experts in %" PRId64 " slots on %" PRId64 " devices, %" PRId64
           " nodes, %" PRId64 " racks\n",
           j->loads.n_rows, j->loads.n_columns, j->n_slots, j->n_devices, j->nodes.n, j->racks.n);
    printf("balance     worst layer %.6f (layer %d), mean %.6f (busiest device / mean device)\n",
           r->worst, r->worst_layer, r->mean);
    printf("lower bound %.6f for the worst layer; a layer is %.3f %% above its own on average\n",
           r->lower_bound, 100.0 * r->above);
    if (j->n_groups > 1)
        printf("tight bound %.6f with the heaviest experts placed exactly; %.3f %% above it on "
               "average\n",
               r->tight_bound, 100.0 * r->above_tight);
    if (j->from)
        printf("moves       %" PRId64 " replicas, %.1f %% of the slots\n", r->n_moves,
               100.0 * (double)r->n_moves / ((double)j->n_slots * j->loads.n_rows));
    if (j->from) print_distances(j, r);
    printf("duplicates  %" PRId64 "\n", r->n_duplicates);
    if (j->spread > 0)
        printf("together    %" PRId64 " of %" PRId64 " hot experts, in all layers, lie on one %s\n",
               r->n_together, j->spread * j->loads.n_rows,
               j->spread_over == EK_PLACE_RACK ? "rack" : "node");
    printf("solve time  %.3f ms of one core for all layers, median of %d\n", r->solve_ms,
           EK_CLI_PLACE_SOLVES);
}
