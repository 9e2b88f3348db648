/*
 * The gateway's own metric series, beside those of its HTTP servers (http/counters.h). Registered
 * once, then counted from any thread. docs/METRICS.md explains each.
 */
#ifndef EK_GATEWAY_COUNTERS_H
#define EK_GATEWAY_COUNTERS_H

#include "telemetry/metrics.h"

typedef struct ek_gateway_counters {
    ek_gauge *generations_open; /* requests whose tokens the engine still computes or holds */
    ek_counter *cancelled;
    ek_counter *ignored_params;
    ek_counter *stream_stalls;
} ek_gateway_counters;

/** Register all series; asking twice for the same registry gives the same ones. */
void ek_gateway_counters_init(ek_metrics *metrics, ek_gateway_counters *out_counters);

#endif
