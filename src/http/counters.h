/*
 * The room's own metric series. Registered once, then counted from any thread; labels are fixed
 * here, so nothing that a client sends can become one. docs/METRICS.md explains each.
 */
#ifndef EK_HTTP_COUNTERS_H
#define EK_HTTP_COUNTERS_H

#include "telemetry/metrics.h"

#define EK_HTTP_CODES 20 /* HTTP statuses counted by their own label, and "other" */

typedef struct ek_http_counters {
    ek_counter *requests[EK_HTTP_CODES]; /* in the order of the statuses in counters.c */
    ek_gauge *connections;
    ek_gauge *requests_open; /* from head to last byte, or to the client's end */
    ek_gauge *streams_open;
    ek_gauge *body_bytes; /* request bodies held right now */
    ek_counter *connections_total;
    ek_counter *connections_refused;
    ek_counter *heads_refused;
    ek_hist *duration;
    ek_hist *first_byte;
} ek_http_counters;

/** Register all series; asking twice for the same registry gives the same ones. */
void ek_http_counters_init(ek_metrics *metrics, ek_http_counters *out_counters);

/** Count an answer by its HTTP status; 499 is a client that left first. */
void ek_http_counters_answered(const ek_http_counters *counters, int32_t status);

#endif
