/*
 * The engine's second header for its users: what keeps experts even, watched and changed while
 * requests run (engine/engine.h is for the requests themselves).
 */
#ifndef EK_ENGINE_WATCH_H
#define EK_ENGINE_WATCH_H

#include "base/attr.h"
#include "base/err.h"
#include "engine/engine.h"
#include "keel/report.h"
#include "telemetry/experts.h"
#include "telemetry/gate_check.h"
#include "telemetry/load_view.h"
#include "telemetry/queues.h"

/** Counters per layer and expert; borrowed until destroy. */
ek_expert_stats *ek_engine_experts(ek_engine *engine);
/** Counters per layer and device, devices in the place of experts; borrowed until destroy. */
ek_expert_stats *ek_engine_devices(ek_engine *engine);
/** What waits at each device now; borrowed until destroy. */
const ek_queues *ek_engine_queues(ek_engine *engine);
/** NUMA node of each device's threads, -1: several; NULL: threads are not pinned. Any thread. */
const int32_t *ek_engine_device_nodes(ek_engine *engine);
/** Utilisation and the longest queue per layer and device (keel/keel.h); borrowed until destroy. */
ek_load_view *ek_engine_load_view(ek_engine *engine);

/**
 * What keeps experts even, as the step thread told it last; any thread.
 * @param out_slot_expert (n_layers, n_slots) expert of each slot, or NULL
 */
void ek_engine_evenness_get(ek_engine *engine, ek_keel_report *out_report,
                            int32_t *out_slot_expert);

/**
 * Route by other params from the next step on; requests that run go on. Any thread.
 * @return EK_OK; as ek_route_switch
 */
EK_MUST ek_status ek_engine_route_switch(ek_engine *engine, const ek_route_params *params,
                                         ek_err *err);

/**
 * What the gates make of a prompt. Call before anybody else has handed a request over, and from one
 * thread; waits for the result.
 * @param n_prompt as for ek_engine_logits. What the prefix cache has of it is not counted
 * @param counts   made for this model's sizes; what it counts is anew
 * @return EK_OK; EK_ERANGE the logits of the answer are no numbers; as ek_engine_logits
 */
EK_MUST ek_status ek_engine_sample_gates(ek_engine *engine, const int32_t *prompt, int32_t n_prompt,
                                         ek_gate_counts *counts, ek_err *err);

#endif
