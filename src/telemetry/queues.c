#include "telemetry/queues.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"

#define PARTS_BITS 24 /* as many as EK_QUEUES_PARTS_MAX takes */

/*
 * Parts that wait above parts of a row, in one word: a reader never takes the one of one layer for
 * the other of the next. A cache line each, because devices are different threads.
 */
typedef struct depth {
    EK_ALIGNED(EK_CACHE_LINE) _Atomic int64_t word;
} depth;

struct ek_queues {
    int32_t n_layers;
    int32_t n_devices;
    depth *depth;  /* (n_devices) */
    int32_t *most; /* (n_layers, n_devices) the owner's */
};

static bool is_in_range(int32_t n_layers, int32_t n_devices)
{
    return n_layers >= 1 && n_layers <= EK_QUEUES_LAYERS_MAX && n_devices >= 1 &&
           n_devices <= EK_QUEUES_DEVICES_MAX;
}

size_t ek_telemetry_queues_bytes(int32_t n_layers, int32_t n_devices)
{
    if (!is_in_range(n_layers, n_devices)) return 0;
    size_t devices = (size_t)n_devices;
    return sizeof(ek_queues) + devices * sizeof(depth) +
           (size_t)n_layers * devices * sizeof(int32_t) + 3 * EK_CACHE_LINE;
}

ek_status ek_telemetry_queues_create(int32_t n_layers, int32_t n_devices, ek_arena *perm,
                                     ek_queues **out_queues)
{
    if (!is_in_range(n_layers, n_devices)) return EK_ERANGE;
    if (ek_arena_free_bytes(perm) < ek_telemetry_queues_bytes(n_layers, n_devices))
        return EK_ENOMEM;
    ek_queues *queues = ek_new(perm, ek_queues, 1);
    queues->n_layers = n_layers;
    queues->n_devices = n_devices;
    queues->depth = ek_new_aligned(perm, depth, n_devices);
    queues->most = ek_new(perm, int32_t, (size_t)n_layers * (size_t)n_devices);
    *out_queues = queues;
    return EK_OK;
}

void ek_telemetry_queues_hand(ek_queues *queues, int32_t layer, int32_t device, int32_t n_rows,
                              int32_t n_parts)
{
    ek_dassert(n_parts >= 1 && n_parts <= EK_QUEUES_PARTS_MAX);
    int64_t waiting = (int64_t)n_rows * n_parts;
    atomic_store_explicit(&queues->depth[device].word, waiting << PARTS_BITS | n_parts,
                          memory_order_relaxed);
    int32_t *most = &queues->most[(int64_t)layer * queues->n_devices + device];
    if (n_rows > *most) *most = n_rows;
}

void ek_telemetry_queues_part_done(ek_queues *queues, int32_t device, int32_t n_rows)
{
    atomic_fetch_sub_explicit(&queues->depth[device].word, (int64_t)n_rows << PARTS_BITS,
                              memory_order_relaxed);
}

int32_t ek_telemetry_queues_rows(const ek_queues *queues, int32_t device)
{
    int64_t word = atomic_load_explicit(&queues->depth[device].word, memory_order_relaxed);
    int64_t waiting = word >> PARTS_BITS, n_parts = word & EK_QUEUES_PARTS_MAX;
    return n_parts > 0 ? (int32_t)((waiting + n_parts - 1) / n_parts) : 0;
}

void ek_telemetry_queues_most(ek_queues *queues, int32_t *out_most)
{
    size_t bytes = (size_t)queues->n_layers * (size_t)queues->n_devices * sizeof *out_most;
    memcpy(out_most, queues->most, bytes);
    memset(queues->most, 0, bytes);
}

int32_t ek_telemetry_queues_devices(const ek_queues *queues)
{
    return queues->n_devices;
}

size_t ek_telemetry_queues_render(const ek_queues *queues, ek_prom_format format, char *out,
                                  size_t bytes)
{
    static const char name[] = "evenkeel_device_queue_rows";
    ek_prom prom = {.format = format, .out = out, .room = bytes};
    ek_telemetry_prom_family(&prom, name, "gauge",
                             "Rows that a device has been handed and has not computed yet.");
    for (int32_t d = 0; d < queues->n_devices; d++) {
        char label[32];
        snprintf(label, sizeof label, "device=\"%d\"", (int)d);
        ek_telemetry_prom_series(&prom, name, "", label, NULL);
        ek_telemetry_prom_u64(&prom, (uint64_t)ek_telemetry_queues_rows(queues, d));
    }
    return prom.len;
}
