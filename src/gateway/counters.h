/*
 * The gateway's own metric series. Registered once, then counted from any thread; labels are fixed
 * here, so nothing that a client sends can become one. docs/API.md explains each.
 */
#ifndef EK_GATEWAY_COUNTERS_H
#define EK_GATEWAY_COUNTERS_H

#include "telemetry/metrics.h"

#define EK_COUNTERS_CODES 20 /* HTTP statuses counted by their own label, and "other" */

typedef struct ek_counters {
    ek_counter *requests[EK_COUNTERS_CODES]; /* in the order of the statuses in counters.c */
    ek_gauge *connections;
    ek_gauge *requests_open; /* from head to last byte, or to the client's end */
    ek_gauge *streams_open;
    ek_gauge *generations_open; /* requests whose tokens the engine still computes or holds */
    ek_gauge *body_bytes;       /* request bodies held right now */
    ek_counter *connections_total;
    ek_counter *connections_refused;
    ek_counter *heads_refused;
    ek_counter *cancelled;
    ek_counter *ignored_params;
    ek_counter *stream_stalls;
    ek_hist *duration;
    ek_hist *first_byte;
} ek_counters;

/** Register all series; asking twice for the same registry gives the same ones. */
void ek_gateway_counters_init(ek_metrics *metrics, ek_counters *out_counters);

/** Count an answer by its HTTP status; 499 is a client that left first. */
void ek_gateway_counters_answered(const ek_counters *counters, int32_t status);

#endif
