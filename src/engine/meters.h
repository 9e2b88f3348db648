/*
 * The engine's series in the metrics registry (docs/METRICS.md has them for people). The step
 * thread counts, anybody reads.
 */
#ifndef EK_ENGINE_METERS_H
#define EK_ENGINE_METERS_H

#include <stdint.h>

#include "engine/engine.h"
#include "engine/kv.h"
#include "telemetry/metrics.h"

#define EK_METERS_FINISHES (EK_FINISH_UNAVAILABLE + 1)

typedef struct ek_meters {
    ek_gauge *running, *waiting;
    ek_gauge *kv_used, *kv_cached, *kv_free, *kv_usage;
    ek_gauge *running_alias, *waiting_alias, *kv_usage_alias;
    ek_counter *prompt_tokens, *completion_tokens;
    ek_counter *prefix_lookup_tokens, *prefix_hit_tokens;
    ek_counter *kv_evicted, *kv_expired;
    ek_counter *preemptions, *slow_steps;
    ek_counter *finished[EK_METERS_FINISHES]; /* by ek_finish; NULL for EK_FINISH_NONE */
    ek_gauge *plan_time, *forward_time;
    ek_gauge *packed_bytes;
    ek_hist *step, *step_tokens, *queue, *ttft, *inter_token, *request;
} ek_meters;

void ek_engine_meters_init(ek_meters *meters, ek_metrics *metrics);

/** Tell how many requests run and wait, and what the cache holds. */
void ek_engine_meters_state(const ek_meters *meters, int32_t n_running, int32_t n_waiting,
                            const ek_kv_stats *kv);

/** Name of a finish as the metrics' label has it: "stop", "length", ... */
const char *ek_engine_finish_name(ek_finish finish);

#endif
