/*
 * Load view: how busy each expert is, as one immutable snapshot that is replaced each 100 ms.
 *
 * A sampler (any one thread) hands over the busy time that experts have spent so far; the view
 * turns two such samples into utilisation, smooths it, and publishes a new snapshot with one atomic
 * store. Readers pin the newest snapshot, use it as long as they like (a step), and unpin it: two
 * atomic operations each, no lock, no waiting, no copy, and nothing they do can hold the sampler
 * up. What is pinned is not written to: there is one more snapshot in memory than readers and the
 * newest take.
 *
 * A sample that comes late, or not at all, is visible to readers as the age of the snapshot they
 * have; the counters of misses and blocked publications tell the operator.
 */
#ifndef EK_TELEMETRY_LOAD_VIEW_H
#define EK_TELEMETRY_LOAD_VIEW_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/status.h"

#define EK_LOAD_VIEW_READERS_MAX 64
#define EK_LOAD_SAMPLE_US        INT64_C(100000) /* the usual time between two samples */

typedef struct ek_load_view ek_load_view;

typedef struct ek_load_view_params {
    int32_t n_layers;
    int32_t n_experts; /* of each layer */
    int32_t n_readers; /* that have a snapshot pinned at once, 1..EK_LOAD_VIEW_READERS_MAX */
    double capacity;   /* how many seconds of work an expert can do in a second: threads, devices */
    int64_t half_life_us; /* of the smoothed utilisation */
    int64_t sample_us;    /* a sample that comes later than 1.5 of these counts as late */
} ek_load_view_params;

/** What a reader has pinned. Nothing of it changes before it is unpinned. */
typedef struct ek_load_snapshot {
    uint64_t version;  /* 1 is the first; each one is by 1 higher than the one before */
    int64_t taken_us;  /* when its sample was taken */
    int64_t sample_us; /* how much time the sample looks back on */
    int32_t n_layers;
    int32_t n_experts;
    const float *utilisation; /* (n_layers, n_experts) smoothed; 0 idle, 1 busy all the time */
    const float *raw;         /* (n_layers, n_experts) of this sample alone */
    const int32_t *queue;     /* (n_layers, n_experts) rows that waited; NULL: not known */
} ek_load_snapshot;

/** Counters since start; any thread. */
typedef struct ek_load_view_stats {
    uint64_t n_published;
    uint64_t n_missed;  /* samples that failed */
    uint64_t n_late;    /* that came more than half a period after they were due */
    uint64_t n_blocked; /* that found more snapshots pinned than n_readers: not published */
} ek_load_view_stats;

/** Arena bytes that create takes; 0 for params that it refuses. */
size_t ek_telemetry_load_view_bytes(const ek_load_view_params *params);

/**
 * @param perm what is made lives there, and needs no end of its own
 * @return EK_OK; EK_ERANGE a number outside its range; EK_ENOMEM perm is full
 */
EK_MUST ek_status ek_telemetry_load_view_create(const ek_load_view_params *params, ek_arena *perm,
                                                ek_load_view **out_view);

/**
 * The sampler's: busy time up to now_us. The first sample, and the first one after busy time went
 * backwards (counters began anew), only says where to count from: nothing is published.
 * @param busy_ns (n_layers, n_experts) since the counters' start
 * @param queue   (n_layers, n_experts) rows waiting now, or the most that waited at once since the
 *                last sample, whichever the sampler knows; or NULL
 * @return EK_OK published; EK_AGAIN nothing to publish yet, or no time has passed; EK_EFULL
 *         blocked: more snapshots are pinned than n_readers. The time since the last published
 *         sample is then part of the next one.
 */
EK_MUST ek_status ek_telemetry_load_view_sample(ek_load_view *view, int64_t now_us,
                                                const int64_t *busy_ns, const int32_t *queue);

/** The sampler's: this time there was no sample to be had. Readers see the old one grow older. */
void ek_telemetry_load_view_miss(ek_load_view *view);

/** A reader's: pin the newest snapshot. @return NULL as long as there is none: be load-blind */
const ek_load_snapshot *ek_telemetry_load_view_pin(ek_load_view *view);
/** Give it back; NULL is fine. Each pin is unpinned once. */
void ek_telemetry_load_view_unpin(ek_load_view *view, const ek_load_snapshot *snapshot);

/** Microseconds since the snapshot's sample; INT64_MAX for NULL. */
int64_t ek_telemetry_load_view_age_us(const ek_load_snapshot *snapshot, int64_t now_us);

void ek_telemetry_load_view_stats_get(const ek_load_view *view, ek_load_view_stats *out_stats);

#endif
