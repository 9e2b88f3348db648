#include "http/counters.h"

#include <stdio.h>

static const int32_t codes[EK_HTTP_CODES] = {
    200, 400, 401, 403, 404, 405, 408, 413, 415, 417, 429, 431, 499, 500, 503, 504, 505, 0,
};

static int32_t n_codes(void)
{
    int32_t n = 0;
    while (codes[n] != 0)
        n++;
    return n + 1; /* "other" is the last */
}

void ek_http_counters_init(ek_metrics *metrics, ek_http_counters *out_counters)
{
    for (int32_t i = 0; i < n_codes(); i++) {
        char label[32] = "code=\"other\"";
        if (codes[i]) snprintf(label, sizeof label, "code=\"%d\"", codes[i]);
        out_counters->requests[i] = ek_telemetry_counter(
            metrics, "evenkeel_http_requests_total", label,
            "HTTP requests answered, by status; 499 is a client that left before its answer.");
    }
    out_counters->connections =
        ek_telemetry_gauge(metrics, "evenkeel_http_connections", NULL, 1, "Open connections.");
    out_counters->requests_open =
        ek_telemetry_gauge(metrics, "evenkeel_http_requests_open", NULL, 1,
                           "HTTP requests between their head and the last byte of their answer.");
    out_counters->streams_open = ek_telemetry_gauge(metrics, "evenkeel_http_streams_open", NULL, 1,
                                                    "Event streams being sent.");
    out_counters->body_bytes = ek_telemetry_gauge(metrics, "evenkeel_http_body_bytes", NULL, 1,
                                                  "Bytes of request bodies held in memory.");
    out_counters->connections_total = ek_telemetry_counter(
        metrics, "evenkeel_http_connections_accepted_total", NULL, "Connections accepted.");
    out_counters->connections_refused =
        ek_telemetry_counter(metrics, "evenkeel_http_connections_refused_total", NULL,
                             "Connections refused because of a connection limit.");
    out_counters->heads_refused =
        ek_telemetry_counter(metrics, "evenkeel_http_heads_refused_total", NULL,
                             "Requests refused for their head alone: malformed, too large, late.");
    out_counters->duration = ek_telemetry_hist(
        metrics, "evenkeel_http_request_duration_seconds", NULL, 1e-6, ek_latency_bounds,
        ek_latency_n_bounds, "From a request's head to the last byte of its answer.");
    out_counters->first_byte = ek_telemetry_hist(metrics, "evenkeel_http_first_byte_seconds", NULL,
                                                 1e-6, ek_latency_bounds, ek_latency_n_bounds,
                                                 "From a request's head until its answer begins.");
}

void ek_http_counters_answered(const ek_http_counters *counters, int32_t status)
{
    int32_t i = 0;
    while (codes[i] != 0 && codes[i] != status)
        i++;
    ek_counter_add(counters->requests[i], 1);
}
