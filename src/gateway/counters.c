#include "gateway/counters.h"

void ek_gateway_counters_init(ek_metrics *metrics, ek_gateway_counters *out_counters)
{
    out_counters->generations_open =
        ek_telemetry_gauge(metrics, "evenkeel_http_generations_open", NULL, 1,
                           "Requests that hold places in the engine, waiting or running.");
    out_counters->cancelled =
        ek_telemetry_counter(metrics, "evenkeel_http_cancelled_total", NULL,
                             "Generations cancelled because their client went away.");
    out_counters->ignored_params =
        ek_telemetry_counter(metrics, "evenkeel_ignored_params_total", NULL,
                             "Request fields that this server does not know and ignored.");
    out_counters->stream_stalls = ek_telemetry_counter(
        metrics, "evenkeel_http_stream_stalls_total", NULL,
        "Times that a stream's client was so slow that reading from the engine stopped.");
}
