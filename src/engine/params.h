/*
 * What a configuration may say about the engine. Defaults and ranges stand in config/schema.
 */
#ifndef EK_ENGINE_PARAMS_H
#define EK_ENGINE_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "expert/dispatch.h"
#include "keel/params.h"
#include "kernels/kernels.h"
#include "route/params.h"

/** What an engine's first look at its gates decides (telemetry/gate_check.h). */
typedef enum ek_gate_checking {
    EK_GATE_CHECKING_AUTO,    /* require where experts are in other processes, else off */
    EK_GATE_CHECKING_REQUIRE, /* not ready until the gates look sane */
    EK_GATE_CHECKING_WARN,    /* ready, and a log line says what does not */
    EK_GATE_CHECKING_OFF,
} ek_gate_checking;

typedef struct ek_engine_params {
    int32_t n_threads; /* compute threads; 0: one per available CPU */
    bool pin_threads;
    ek_kernels_choice kernels;
    bool pack_weights; /* into memory of our own, in the kernels' order (expert/pack.h) */
    /* 0: what running_max sequences of context_tokens need, at most 1/4 of the free memory. */
    int64_t kv_bytes;
    int32_t context_tokens;       /* longest prompt + answer; 0: the model's */
    int32_t running_max;          /* sequences that decode together, 1..256 */
    int32_t queue_max;            /* requests that wait for a place, 0..65536 */
    int64_t queue_timeout_us;     /* a request that waited longer is refused; 0: never */
    int32_t kv_block_tokens;      /* tokens of one cache block: 16, 32 or 64 */
    int32_t prefill_chunk_tokens; /* most prompt tokens of one step */
    int64_t step_target_us; /* what a step may take while answers run (sched/pace.h); 0: any */
    bool prefix_cache;
    int64_t prefix_ttl_us;       /* unused prefix blocks are forgotten after this long */
    ek_gate_checking gate_check; /* for whoever says when the engine is ready */
    int64_t step_watchdog_us;    /* a step that takes longer makes the engine unhealthy */
    ek_route_params route;
    ek_keel_params keel;
    /*
     * (placement_layers, keel.n_slots) expert of each slot to begin with, borrowed for create;
     * NULL: as even as can be without knowing loads.
     */
    const int32_t *placement;
    int32_t placement_layers;
    const char *gate_overlay; /* file of other gates, borrowed for create; NULL: the model's own */
    /*
     * Files of recorded routing in the place of the model's gate, commas between them, borrowed for
     * create; NULL: none. A request's seed says which sequence it follows (trace/replay.h).
     */
    const char *recorded;
    /*
     * Where experts are, if not in this process: as many devices as keel has. Borrowed until
     * destroy; NULL: here.
     */
    const ek_expert_source *source;
} ek_engine_params;

#endif
