#include "engine/meters.h"

#include <stdio.h>

/* Gauges and histograms are integers: what they count is shown in base units. */
#define SECONDS_OF_US 1e-6
#define SECONDS_OF_NS 1e-9
#define RATIO_UNIT    1e-6

static const double step_token_bounds[] = {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096};

const char *ek_engine_finish_name(ek_finish finish)
{
    switch (finish) {
    case EK_FINISH_NONE: return "none";
    case EK_FINISH_STOP: return "stop";
    case EK_FINISH_LENGTH: return "length";
    case EK_FINISH_CANCELED: return "canceled";
    case EK_FINISH_QUEUE_TIMEOUT: return "queue_timeout";
    case EK_FINISH_TIMEOUT: return "timeout";
    case EK_FINISH_ERROR: return "error";
    case EK_FINISH_UNAVAILABLE: return "unavailable";
    }
    return "none";
}

static ek_hist *latency(ek_metrics *metrics, const char *name, const char *help)
{
    return ek_telemetry_hist(metrics, name, NULL, SECONDS_OF_US, ek_latency_bounds,
                             ek_latency_n_bounds, help);
}

static void init_state(ek_meters *m, ek_metrics *metrics)
{
    static const char blocks[] = "evenkeel_kv_blocks";
    static const char blocks_help[] =
        "Blocks of the KV cache: used by a request, cached for reuse, or free.";
    static const char usage_help[] = "Share of the KV cache's blocks that requests use.";
    m->running = ek_telemetry_gauge(metrics, "evenkeel_requests_running", NULL, 1,
                                    "Requests that hold a place in the batch.");
    m->waiting = ek_telemetry_gauge(metrics, "evenkeel_requests_waiting", NULL, 1,
                                    "Requests that wait for a place in the batch.");
    m->kv_used = ek_telemetry_gauge(metrics, blocks, "state=\"used\"", 1, blocks_help);
    m->kv_cached = ek_telemetry_gauge(metrics, blocks, "state=\"cached\"", 1, blocks_help);
    m->kv_free = ek_telemetry_gauge(metrics, blocks, "state=\"free\"", 1, blocks_help);
    m->kv_usage =
        ek_telemetry_gauge(metrics, "evenkeel_kv_cache_usage_ratio", NULL, RATIO_UNIT, usage_help);
    /* The names by which routers and autoscalers of other engines look for the same figures. */
    m->running_alias = ek_telemetry_gauge(metrics, "vllm:num_requests_running", NULL, 1,
                                          "The same as evenkeel_requests_running.");
    m->waiting_alias = ek_telemetry_gauge(metrics, "vllm:num_requests_waiting", NULL, 1,
                                          "The same as evenkeel_requests_waiting.");
    m->kv_usage_alias = ek_telemetry_gauge(metrics, "vllm:kv_cache_usage_perc", NULL, RATIO_UNIT,
                                           "The same as evenkeel_kv_cache_usage_ratio.");
    m->plan_time =
        ek_telemetry_gauge(metrics, "evenkeel_route_plan_busy_seconds", NULL, SECONDS_OF_NS,
                           "Time spent in planning routes since the start.");
    m->forward_time = ek_telemetry_gauge(metrics, "evenkeel_forward_busy_seconds", NULL,
                                         SECONDS_OF_NS, "Time spent in steps since the start.");
    m->packed_bytes =
        ek_telemetry_gauge(metrics, "evenkeel_packed_weight_bytes", NULL, 1,
                           "Bytes of weights that lie in the order in which kernels read them.");
}

static void init_counters(ek_meters *m, ek_metrics *metrics)
{
    m->prompt_tokens = ek_telemetry_counter(metrics, "evenkeel_prompt_tokens_total", NULL,
                                            "Prompt tokens of admitted requests.");
    m->completion_tokens = ek_telemetry_counter(metrics, "evenkeel_completion_tokens_total", NULL,
                                                "Tokens generated for requests.");
    m->prefix_lookup_tokens =
        ek_telemetry_counter(metrics, "evenkeel_prefix_cache_lookup_tokens_total", NULL,
                             "Prompt tokens looked up in the prefix cache.");
    m->prefix_hit_tokens = ek_telemetry_counter(metrics, "evenkeel_prefix_cache_hit_tokens_total",
                                                NULL, "Prompt tokens found in the prefix cache.");
    m->kv_evicted = ek_telemetry_counter(metrics, "evenkeel_kv_blocks_evicted_total", NULL,
                                         "Cached blocks that were taken for other uses.");
    m->kv_expired = ek_telemetry_counter(metrics, "evenkeel_kv_blocks_expired_total", NULL,
                                         "Cached blocks that nobody used for too long.");
    m->preemptions =
        ek_telemetry_counter(metrics, "evenkeel_preemptions_total", NULL,
                             "Running requests that gave way and are computed again later.");
    m->slow_steps = ek_telemetry_counter(metrics, "evenkeel_slow_steps_total", NULL,
                                         "Steps that took longer than the watchdog allows.");
    for (int finish = EK_FINISH_STOP; finish < EK_METERS_FINISHES; finish++) {
        char labels[64];
        snprintf(labels, sizeof labels, "reason=\"%s\"", ek_engine_finish_name((ek_finish)finish));
        m->finished[finish] =
            ek_telemetry_counter(metrics, "evenkeel_requests_finished_total", labels,
                                 "Requests that came to an end, by reason.");
    }
}

void ek_engine_meters_init(ek_meters *meters, ek_metrics *metrics)
{
    *meters = (ek_meters){0};
    init_state(meters, metrics);
    init_counters(meters, metrics);
    meters->step = latency(metrics, "evenkeel_step_seconds", "Duration of a step.");
    meters->step_tokens = ek_telemetry_hist(
        metrics, "evenkeel_step_tokens", NULL, 1, step_token_bounds,
        (int32_t)EK_COUNT_OF(step_token_bounds), "Tokens of a step, prompts and answers.");
    meters->queue = latency(metrics, "evenkeel_queue_seconds",
                            "Time from the hand-over of a request to its first step.");
    meters->ttft = latency(metrics, "evenkeel_ttft_seconds",
                           "Time from the hand-over of a request to its first token.");
    meters->inter_token =
        latency(metrics, "evenkeel_inter_token_seconds", "Time between two tokens of a request.");
    meters->request = latency(metrics, "evenkeel_request_seconds",
                              "Time from the hand-over of a request to its end.");
}

void ek_engine_meters_state(const ek_meters *meters, int32_t n_running, int32_t n_waiting,
                            const ek_kv_stats *kv)
{
    ek_gauge_set(meters->running, n_running);
    ek_gauge_set(meters->running_alias, n_running);
    ek_gauge_set(meters->waiting, n_waiting);
    ek_gauge_set(meters->waiting_alias, n_waiting);
    ek_gauge_set(meters->kv_used, kv->n_used);
    ek_gauge_set(meters->kv_cached, kv->n_cached);
    ek_gauge_set(meters->kv_free, kv->n_blocks - kv->n_used - kv->n_cached);
    int64_t usage = (int64_t)kv->n_used * 1000000 / kv->n_blocks;
    ek_gauge_set(meters->kv_usage, usage);
    ek_gauge_set(meters->kv_usage_alias, usage);
    ek_counter_follow(meters->kv_evicted, kv->evicted_blocks);
    ek_counter_follow(meters->kv_expired, kv->expired_blocks);
}
