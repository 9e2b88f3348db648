/*
 * The keel's own state; for the files of this room that implement keel.h. All of it belongs to the
 * owner, but for the load view's snapshots and what create sets.
 */
#ifndef EK_KEEL_KEEL_INTERNAL_H
#define EK_KEEL_KEEL_INTERNAL_H

#include "keel/keel.h"
#include "place/place.h"
#include "telemetry/service.h"

/** One layer's placement, and the lists that shares are cut by; rebuilt in the same memory. */
typedef struct ek_keel_layer {
    int32_t *slot_expert; /* (n_slots) */
    ek_route_replicas replicas;
    void *memory; /* of replicas */
} ek_keel_layer;

struct ek_keel {
    ek_keel_params params; /* resolved: slots are a number */
    ek_keel_setup setup;   /* slot_expert is not kept */
    int32_t *device_slots; /* (n_devices) */
    int32_t *slot_beg;     /* (n_devices + 1) */
    ek_keel_layer *layers; /* (n_layers) */
    size_t replicas_bytes; /* of one layer's memory */

    /* Loads: the view of devices, and what the router sees of it. */
    ek_load_view *load;
    int64_t *busy_ns; /* (n_layers, n_devices) */
    int32_t *queue;   /* (n_layers, n_devices) most rows that waited; NULL: not known */
    int64_t next_sample_us;
    bool is_blind; /* devices do not say how busy they are */
    ek_route_view view;
    bool has_view;
    float *utilisation;                  /* (n_layers, n_experts) */
    int32_t *n_replicas;                 /* (n_layers, n_experts) */
    uint32_t served[EK_SERVICE_BUCKETS]; /* since the last sample */
    int64_t tail_us;                     /* of the one before */

    /* Windows of counts. */
    int64_t next_window_us;
    int64_t window_us; /* when the last one ended */
    int64_t *total;    /* (n_layers, n_experts) tokens up to then */
    int64_t *window;   /* (n_layers, n_experts) tokens in it */
    ek_detect *detect;

    /* Rebalancing; NULL where there is nothing to rebalance. */
    ek_place_controller *controller;
    void *scratch; /* (scratch_bytes) of decide */
    size_t scratch_bytes;
    ek_place_outlook outlook; /* the last one */
};

/** A layer's placement is another one: take it over for shares and views. Every expert is in it. */
void ek_keel_layer_set(ek_keel *keel, int32_t layer, const int32_t *slot_expert);

#endif
