/*
 * Balance a table of expert loads: replicas for hot experts, and every replica on a device.
 *
 *     cc balance.c -o balance $(pkg-config --cflags --libs evenkeel)
 *     ./balance LOADS.csv SLOTS DEVICES [PLACEMENT.csv]
 *
 * LOADS.csv has a line per layer and a number per expert; PLACEMENT.csv gets a line per layer and
 * the expert of each slot, slots of a device beside each other.
 */
#include <evenkeel/place.h>
#include <evenkeel/place_csv.h>
#include <stdio.h>
#include <stdlib.h>

static unsigned char memory[64 << 20]; /* the library takes none of its own */

int main(int argc, char **argv)
{
    FILE *in = argc >= 4 ? fopen(argv[1], "rb") : NULL;
    if (!in) return fprintf(stderr, "usage: balance LOADS.csv SLOTS DEVICES [PLACEMENT.csv]\n"), 2;
    ek_arena arena = ek_arena_over(memory, sizeof memory);
    char *text = ek_new(&arena, char, sizeof memory / 4);
    size_t n_bytes = fread(text, 1, sizeof memory / 4, in);
    fclose(in);

    ek_err err = {EK_OK, ""};
    ek_place_table loads;
    if (ek_place_csv_parse((ek_str){text, n_bytes}, 0.0, false, argv[1], &arena, &loads, &err) < 0)
        return fprintf(stderr, "%s\n", err.text), 1;
    ek_place_topology topology = {.n_experts = loads.n_columns,
                                  .n_slots = (int32_t)strtol(argv[2], NULL, 10),
                                  .n_devices = (int32_t)strtol(argv[3], NULL, 10),
                                  .n_nodes = 1,
                                  .n_groups = 1};
    ek_place_params params;
    ek_place_params_default(&params);
    if (ek_place_check(&topology, &params, &err) < 0) return fprintf(stderr, "%s\n", err.text), 1;

    FILE *out = argc > 4 ? fopen(argv[4], "w") : NULL;
    int32_t *slot_expert = ek_new(&arena, int32_t, topology.n_slots);
    int32_t per_device = topology.n_slots / topology.n_devices;
    ek_place_hint hint = {0};
    for (int32_t layer = 0; layer < loads.n_rows; layer++) {
        const double *row = loads.value + (size_t)layer * (size_t)loads.n_columns;
        ek_place_balance before, after;
        /* Without a plan: experts dealt out to the devices in turn, and slots left over empty. */
        for (int32_t s = 0; s < topology.n_slots; s++) {
            int32_t dealt = s / per_device + s % per_device * topology.n_devices;
            slot_expert[s] = dealt < topology.n_experts ? dealt : EK_PLACE_EMPTY;
        }
        if (ek_place_measure(&topology, row, slot_expert, arena, &before) < 0 ||
            ek_place_layer(&topology, &params, row, &hint, arena, slot_expert, &after) < 0)
            return fprintf(stderr, "layer %d cannot be placed\n", layer), 1;
        printf("layer %d: busiest/mean device %.4f before, %.4f after (no placement below %.4f)\n",
               layer, before.max_over_mean, after.max_over_mean, after.lower_bound);
        for (int32_t s = 0; out && s < topology.n_slots; s++)
            fprintf(out, "%d%c", slot_expert[s], s + 1 < topology.n_slots ? ',' : '\n');
    }
    return (out && fclose(out) != 0) || (argc > 4 && !out);
}
