/*
 * Metrics: named counters, gauges and histograms, and their text for Prometheus.
 *
 * A registry is filled at start, by one thread at a time, and then only counted in: updates are
 * relaxed atomics from any thread, rendering may run at any time from any thread, also while
 * series are still being registered. Labels are fixed at registration, so the number of series
 * cannot grow with traffic. Names follow Prometheus: snake case, unit last, `_total` on counters
 * and only there. A registration that breaks these rules is a bug and asserts.
 */
#ifndef EK_TELEMETRY_METRICS_H
#define EK_TELEMETRY_METRICS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/hist.h"
#include "base/status.h"
#include "telemetry/prometheus.h"

#define EK_METRICS_MAX         512               /* series of one registry */
#define EK_METRICS_LABELS_MAX  120               /* bytes of one series' labels */
#define EK_METRICS_HIST_BOUNDS 32                /* buckets of one histogram, without +Inf */
#define EK_METRICS_BYTES_MAX   ((size_t)6 << 20) /* of arena, if every series were a histogram */

typedef struct ek_metrics ek_metrics;

typedef struct ek_counter {
    _Atomic uint64_t value;
} ek_counter;

typedef struct ek_gauge {
    _Atomic int64_t value;
} ek_gauge;

/**
 * @param perm series live there, and need no end of their own; borrowed until the last
 *             registration, which may take up to EK_METRICS_BYTES_MAX of it in all
 * @return EK_OK; EK_ENOMEM perm has not even room for an empty registry
 */
EK_MUST ek_status ek_telemetry_metrics_create(ek_arena *perm, ek_metrics **out_metrics);

/**
 * Register a series. The pointer stays valid as long as the arena; asking again for the same name
 * and labels gives the same one. One name has one type, scale and set of bounds; its first help
 * text counts.
 * @param name   "evenkeel_requests_total"; static or outliving the registry
 * @param labels "code=\"200\"" (values with anything odd in them: ek_telemetry_prom_label), or
 *               NULL; copied, at most EK_METRICS_LABELS_MAX bytes
 * @param help   one line; static
 */
ek_counter *ek_telemetry_counter(ek_metrics *metrics, const char *name, const char *labels,
                                 const char *help);
/** @param scale rendered value = value * scale (1e-6: microseconds kept, seconds shown) */
ek_gauge *ek_telemetry_gauge(ek_metrics *metrics, const char *name, const char *labels,
                             double scale, const char *help);
/**
 * @param scale   as for gauges; the buckets' bounds are in rendered units
 * @param bounds  (n_bounds) ascending upper bounds, at most EK_METRICS_HIST_BOUNDS; static; +Inf is
 *                added
 */
ek_hist *ek_telemetry_hist(ek_metrics *metrics, const char *name, const char *labels, double scale,
                           const double *bounds, int32_t n_bounds, const char *help);

static inline void ek_counter_add(ek_counter *counter, uint64_t n)
{
    atomic_fetch_add_explicit(&counter->value, n, memory_order_relaxed);
}

static inline uint64_t ek_counter_get(const ek_counter *counter)
{
    return atomic_load_explicit(&counter->value, memory_order_relaxed);
}

/** Raise it to a total that somebody else keeps; a lower one is left alone. One thread. */
static inline void ek_counter_follow(ek_counter *counter, uint64_t total)
{
    uint64_t counted = ek_counter_get(counter);
    if (total > counted) ek_counter_add(counter, total - counted);
}

static inline void ek_gauge_add(ek_gauge *gauge, int64_t n)
{
    atomic_fetch_add_explicit(&gauge->value, n, memory_order_relaxed);
}

static inline void ek_gauge_set(ek_gauge *gauge, int64_t value)
{
    atomic_store_explicit(&gauge->value, value, memory_order_relaxed);
}

static inline int64_t ek_gauge_get(const ek_gauge *gauge)
{
    return atomic_load_explicit(&gauge->value, memory_order_relaxed);
}

/**
 * Write the text (for OpenMetrics without its last line): families in the order of their first
 * registration, series of one name together.
 * @param out_text not NUL-terminated
 * @return bytes that the whole text takes; when that is > bytes nothing beyond `bytes` was written
 *         and the caller comes again with more room
 */
size_t ek_telemetry_metrics_render(const ek_metrics *metrics, ek_prom_format format, char *out_text,
                                   size_t bytes);

/** The ladder for latencies in seconds: 1 ms .. 60 s. */
extern const double ek_latency_bounds[];
extern const int32_t ek_latency_n_bounds;

#endif
