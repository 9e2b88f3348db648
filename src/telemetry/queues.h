/*
 * Queue depths: how many rows each device has been handed and has not computed yet.
 *
 * Work comes to a device layer by layer and is computed in parts (a row is done when all parts of
 * it are), so what waits is counted in parts and told in rows, rounded up. The owner (who hands
 * work over) sets a device's queue; whoever computes takes parts off; anybody reads. One atomic
 * operation each, relaxed: a figure says what waited a moment ago, and orders nothing.
 *
 * Between two layers nothing waits, so a figure of this moment is mostly seen by readers on other
 * threads; what the owner itself looks at is the most that waited since it looked last.
 */
#ifndef EK_TELEMETRY_QUEUES_H
#define EK_TELEMETRY_QUEUES_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/status.h"
#include "telemetry/prometheus.h"

#define EK_QUEUES_DEVICES_MAX 1024
#define EK_QUEUES_LAYERS_MAX  1024
#define EK_QUEUES_PARTS_MAX   ((1 << 24) - 1) /* of a row; its times the rows are below 2^39 */

typedef struct ek_queues ek_queues;

/** Arena bytes that create takes; 0 for numbers that it refuses. */
size_t ek_telemetry_queues_bytes(int32_t n_layers, int32_t n_devices);

/**
 * Empty queues.
 * @param perm what is made lives there, and needs no end of its own
 * @return EK_OK; EK_ERANGE a number outside its range; EK_ENOMEM perm is full
 */
EK_MUST ek_status ek_telemetry_queues_create(int32_t n_layers, int32_t n_devices, ek_arena *perm,
                                             ek_queues **out_queues);

/**
 * The owner's, while nobody computes for this device: it has n_rows of a layer waiting, each in
 * n_parts.
 * @param n_rows  0: nothing waits any more
 * @param n_parts 1..EK_QUEUES_PARTS_MAX
 */
void ek_telemetry_queues_hand(ek_queues *queues, int32_t layer, int32_t device, int32_t n_rows,
                              int32_t n_parts);

/** Whoever computes: one part of each of n_rows is done. */
void ek_telemetry_queues_part_done(ek_queues *queues, int32_t device, int32_t n_rows);

/** Rows that wait at a device now, those that are being computed included; any thread. */
int32_t ek_telemetry_queues_rows(const ek_queues *queues, int32_t device);

/**
 * The owner's: the most rows that each device had waiting at once since the last call.
 * @param out_most (n_layers, n_devices)
 */
void ek_telemetry_queues_most(ek_queues *queues, int32_t *out_most);

int32_t ek_telemetry_queues_devices(const ek_queues *queues);

/**
 * What waits at each device now, as text for Prometheus.
 * @param out not NUL-terminated
 * @return bytes that the whole text takes; when that is > bytes nothing beyond `bytes` was written
 */
size_t ek_telemetry_queues_render(const ek_queues *queues, ek_prom_format format, char *out,
                                  size_t bytes);

#endif
