/*
 * What a configuration may say about keeping experts even. Defaults and ranges stand in
 * config/schema.
 */
#ifndef EK_KEEL_PARAMS_H
#define EK_KEEL_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#define EK_KEEL_DEVICES_MAX 64

typedef struct ek_keel_params {
    int32_t n_devices; /* that share each layer's experts, 1..EK_KEEL_DEVICES_MAX */
    /*
     * Of each layer, all devices together: one per expert, and more for replicas. 0: an eighth more
     * than there are experts.
     */
    int32_t n_slots;
    bool rebalance;
    int64_t window_us;  /* counts that alerts and rebalancing look at together */
    int64_t horizon_us; /* for so long traffic is believed to stay what it is */
    double min_gain;    /* fall of busiest/mean below which nothing moves */
    int64_t pause_us;   /* a layer is left alone for so long after it was rebalanced */
} ek_keel_params;

/** One device: nothing to keep even, alerts all the same. */
void ek_keel_params_default(ek_keel_params *out_params);

#endif
