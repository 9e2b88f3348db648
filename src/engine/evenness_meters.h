/*
 * The series that tell how even experts are kept (docs/METRICS.md has them for people).
 */
#ifndef EK_ENGINE_EVENNESS_METERS_H
#define EK_ENGINE_EVENNESS_METERS_H

#include "engine/watch.h"
#include "keel/params.h"
#include "telemetry/metrics.h"

#define EK_EVENNESS_OUTCOMES 4 /* of a token-slot */
#define EK_EVENNESS_ENDS     3 /* of a rebalance */

typedef struct ek_evenness_meters {
    ek_counter *plans, *stale_plans, *bent, *changed, *undone, *closed, *coalesced;
    ek_counter *slots[EK_EVENNESS_OUTCOMES]; /* executed, rerouted, deferred, degraded */
    ek_gauge *loss_mean, *shadow_divergence, *version;
    ek_gauge *breakers[EK_KEEL_BREAKER_STATES];
    ek_gauge *alerts[EK_DETECT_N_KINDS];
    ek_counter *samples, *missed_samples;
    ek_gauge *device_load[EK_KEEL_DEVICES_MAX]; /* NULL beyond the devices that there are */
    ek_gauge *device_queue[EK_KEEL_DEVICES_MAX];
    ek_counter *rebalances[EK_EVENNESS_ENDS]; /* finished, failed, timed out */
    ek_counter *moved;
    ek_gauge *commit_age;
} ek_evenness_meters;

/** Register the series of so many devices; those of rebalancing stay at 0 where there is none. */
void ek_engine_evenness_meters_init(ek_evenness_meters *meters, ek_metrics *metrics,
                                    int32_t n_devices);

/** Tell what a board says, and how many alerts of each kind there are. */
void ek_engine_evenness_meters_tell(const ek_evenness_meters *meters, const ek_keel_report *board,
                                    const int32_t n_alerts[EK_DETECT_N_KINDS]);

/** Tell the load view's figures: each device's mean load over layers, and its longest queue. */
void ek_engine_evenness_meters_load(const ek_evenness_meters *meters, ek_load_view *view);

#endif
