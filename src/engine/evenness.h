/*
 * Evenness, as seen from outside: what routing, replicas and detectors are doing.
 *
 * All of it belongs to the step thread, which keeps the keel (keel/keel.h) and the router; here it
 * tells others, in its metrics, in the log, and on a board that it writes between steps and anybody
 * reads under a lock.
 */
#ifndef EK_ENGINE_EVENNESS_H
#define EK_ENGINE_EVENNESS_H

#include "engine/evenness_meters.h"
#include "engine/watch.h"
#include "keel/keel.h"
#include "sys/thread.h"

/** What the step thread keeps for it. */
typedef struct ek_evenness {
    ek_router *router; /* borrowed, like the keel; NULL: not initialised */
    ek_keel *keel;
    int32_t n_layers;
    int32_t n_experts;
    ek_evenness_meters meters;
    ek_keel_news news; /* of the last tick */
    int64_t next_us;   /* when the board is written next */

    ek_sys_mutex lock; /* of what follows */
    ek_keel_report board;
    int32_t *slot_expert; /* (n_layers, n_slots) */
} ek_evenness;

/** Arena bytes that init takes. */
size_t ek_engine_evenness_bytes(int32_t n_layers, int32_t n_slots);

/** @param metrics where the series are registered */
void ek_engine_evenness_init(ek_evenness *evenness, ek_router *router, ek_keel *keel,
                             int32_t n_layers, int32_t n_experts, ek_metrics *metrics,
                             ek_arena *perm);
/** Accepts one that was never initialised. */
void ek_engine_evenness_fini(ek_evenness *evenness);

/** Between steps, by the step thread: let the keel do what is due, and tell of it. */
void ek_engine_evenness_tick(ek_evenness *evenness, int64_t now_us);

#endif
