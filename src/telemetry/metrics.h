/*
 * Metrics: named counters, gauges and histograms, and their Prometheus text (version 0.0.4).
 *
 * A registry is filled at start (registration is not thread-safe) and then only counted in: updates are
 * relaxed atomics from any thread, rendering may run at any time from any one thread. Labels are fixed at
 * registration, so the number of series cannot grow with traffic. Names follow Prometheus: snake case, unit last,
 * `_total` on counters.
 */
#ifndef EK_TELEMETRY_METRICS_H
#define EK_TELEMETRY_METRICS_H

#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/hist.h"
#include "base/status.h"

#define EK_METRICS_MAX 512 /* series of one registry */

typedef struct ek_metrics ek_metrics;

typedef struct ek_counter {
    _Atomic uint64_t value;
} ek_counter;

typedef struct ek_gauge {
    _Atomic int64_t value;
} ek_gauge;

EK_MUST ek_status ek_telemetry_metrics_create(ek_metrics **out_metrics);
void ek_telemetry_metrics_destroy(ek_metrics *metrics);

/**
 * Register a series. The pointer stays valid until destroy; asking again for the same name and labels gives the same one.
 * @param name   "evenkeel_requests_total"; static or outliving the registry
 * @param labels "code=\"200\"" or NULL; copied, at most 120 bytes
 * @param help   one line; static
 */
ek_counter *ek_telemetry_counter(ek_metrics *metrics, const char *name, const char *labels,
                                 const char *help);
/** @param scale rendered value = value * scale (1e-6: microseconds kept, seconds shown) */
ek_gauge *ek_telemetry_gauge(ek_metrics *metrics, const char *name, const char *labels,
                             double scale, const char *help);
/**
 * @param scale   as for gauges; the buckets' bounds are in rendered units
 * @param bounds  (n_bounds) ascending upper bounds; static; +Inf is added
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
 * Write the Prometheus text.
 * @return bytes that the whole text takes; when that is > bytes nothing beyond `bytes` was written and the
 *         caller comes again with more room
 */
size_t ek_telemetry_metrics_render(const ek_metrics *metrics, char *out_text, size_t bytes);

/** The ladder for latencies in seconds: 1 ms .. 60 s. */
extern const double ek_latency_bounds[];
extern const int32_t ek_latency_n_bounds;

#endif
