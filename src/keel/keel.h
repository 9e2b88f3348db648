/*
 * The keel: what keeps experts even while steps run.
 *
 * It stands between what was measured and what decides. Busy times of devices become the load view
 * that the router bends its choice by; counts of experts become alerts with evidence, and feed the
 * controller that moves replicas; the present placement becomes, for each plan, the shares that
 * devices compute.
 *
 *     counters --tick--> load view ------view-----> ek_route_plan_layer
 *         |                                              | plan
 *         +---tick--> detectors, controller              v
 *                         | placement of a layer --> shares --> ek_expert_dispatch --> counters
 *
 * Utilisation here is that of devices, layer by layer: n_layers times the busy time of a device in
 * a layer, over the time that its threads had. It says how busy the device would be if all layers
 * were like this one; devices wait for each other layer by layer, so a mean over layers would hide
 * what a step waits for. An expert's load is that of the least busy device that has a replica of
 * it. With one device all experts have the same load, and there is nothing to bend.
 *
 * Pure: time is an argument. One owner, who calls everything here between or within its steps;
 * other threads may read what ek_keel_load gives.
 */
#ifndef EK_KEEL_KEEL_H
#define EK_KEEL_KEEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/status.h"
#include "keel/params.h"
#include "keel/shares.h"
#include "place/controller.h"
#include "route/route.h"
#include "telemetry/detect.h"
#include "telemetry/experts.h"
#include "telemetry/load_view.h"
#include "telemetry/queues.h"

#define EK_KEEL_READERS_MAX 16 /* threads that read the load view at the same time */
#define EK_KEEL_NEWS_MAX    16 /* alerts that one tick tells of */

typedef struct ek_keel ek_keel;

/** What is kept even. */
typedef struct ek_keel_setup {
    int32_t n_layers;
    int32_t n_experts; /* routed experts of each layer */
    int32_t top_k;
    int32_t n_threads; /* that all devices together have */
    int32_t knee;      /* rows of one expert that take as long as reading its weights */
    int64_t bytes_per_expert;
    double seconds_per_row;  /* that a device takes for one row */
    double link_bytes_per_s; /* at which a replica's weights come to a device */
    int64_t sample_us;       /* how often loads are sampled: the router's sample_us */
    /*
     * (n_layers, n_experts) and (n_layers, n_devices) counters; borrowed as long as the keel lives.
     * Whoever executes plans counts busy time; tokens are those of plans.
     */
    const ek_expert_stats *experts;
    const ek_expert_stats *devices;
    ek_queues *queues; /* of devices, its owner's the keel's; borrowed likewise; NULL: not known */
    /* (n_layers, n_slots) first placement, copied; NULL: as even as one without loads can be. */
    const int32_t *slot_expert;
} ek_keel_setup;

/** Slots of each layer that params come to with so many experts. */
int32_t ek_keel_slots(const ek_keel_params *params, int32_t n_experts);

/**
 * Are these params usable for so many experts?
 * @return EK_OK; EK_EINVAL, the text names the key ("experts.slots is ...") and the remedy
 */
EK_MUST ek_status ek_keel_check(const ek_keel_params *params, int32_t n_experts, ek_err *err);

/** Arena bytes that create takes, for params that check accepts. */
size_t ek_keel_bytes(const ek_keel_params *params, const ek_keel_setup *setup);

/** @return EK_OK; EK_EINVAL params or a placement that cannot be; EK_ENOMEM perm is full */
EK_MUST ek_status ek_keel_create(const ek_keel_params *params, const ek_keel_setup *setup,
                                 ek_arena *perm, ek_keel **out_keel, ek_err *err);

/* ---- within a step ---- */

/**
 * What is known of loads now, for the router; NULL as long as nothing is. Borrowed until the next
 * call here. Cost: O(n_layers * n_slots) once per sample, else nothing.
 */
const ek_route_view *ek_keel_view(ek_keel *keel, int64_t now_us);

/** Shares of a plan of `layer`. @return as ek_keel_shares_split */
EK_MUST ek_status ek_keel_share(const ek_keel *keel, int32_t layer, const int32_t *expert_beg,
                                ek_arena *step, ek_keel_shares *out_shares);
/** Step bytes that it takes. */
size_t ek_keel_share_bytes(const ek_keel *keel);

/** A layer's experts took so long from dispatch to combine: what `adaptive` keeps low. */
void ek_keel_served(ek_keel *keel, int64_t service_us);

/* ---- between steps ---- */

/** What a tick has come to. Texts of alerts are in them. */
typedef struct ek_keel_news {
    int32_t n_alerts;
    ek_alert alert[EK_KEEL_NEWS_MAX]; /* that were raised or have ended */
    bool looked;                      /* a layer was looked at, and this is what came of it */
    ek_place_outlook outlook;
    bool moved; /* replicas of a layer lie elsewhere now */
    int32_t layer;
    int32_t n_replicas;
    int64_t bytes;
} ek_keel_news;

/**
 * Sample, detect, rebalance: what is due of it.
 * @param view_is_used the router looks at loads: a stale view is worth an alert
 * Cost: a sample O(n_layers * n_devices), a window
 * O(n_layers * n_experts * windows looked at), and at most one layer's rebalance.
 */
void ek_keel_tick(ek_keel *keel, int64_t now_us, bool view_is_used, ek_keel_news *out_news);

/**
 * A layer's experts lie elsewhere now, and no tick moved them: devices have come or gone.
 * Not with rebalancing, which has its own idea of where they lie.
 * @param slot_expert (n_slots) copied; every expert is in it, EK_PLACE_EMPTY where there is none
 */
void ek_keel_adopt(ek_keel *keel, int32_t layer, const int32_t *slot_expert);

/**
 * Do devices say how busy they are? While they do not, ticks take no samples: the view grows old,
 * and whoever goes by it notices. True from the start.
 */
void ek_keel_loads_known(ek_keel *keel, bool are_known);

/** When the next tick has something to do. */
int64_t ek_keel_due_us(const ek_keel *keel);

/* ---- looking at it ---- */

int32_t ek_keel_n_slots(const ek_keel *keel);
int32_t ek_keel_n_devices(const ek_keel *keel);
/** Expert of each slot of a layer: (n_slots), those of a device adjacent; owner only. */
const int32_t *ek_keel_slot_expert(const ek_keel *keel, int32_t layer);
/** First slot of each device: (n_devices + 1); any thread. */
const int32_t *ek_keel_slot_beg(const ek_keel *keel);
/** All alerts that are raised, hottest kinds first. @return how many; written are at most `max` */
int32_t ek_keel_alerts(const ek_keel *keel, ek_alert *out_alerts, int32_t max);
/** How many alerts of a kind are raised. */
int32_t ek_keel_alert_count(const ek_keel *keel, ek_detect_kind kind);
/** @return false: there is nothing to rebalance (one device, or switched off) */
bool ek_keel_rebalance_stats(const ek_keel *keel, ek_place_controller_stats *out_stats,
                             ek_place_outlook *out_last);
/** The load view, with devices in the place of experts; any thread may pin snapshots. */
ek_load_view *ek_keel_load(ek_keel *keel);

#endif
