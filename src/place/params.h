/*
 * What a configuration may say about rebalancing. Times are microseconds.
 */
#ifndef EK_PLACE_PARAMS_H
#define EK_PLACE_PARAMS_H

#include <stdint.h>

#define EK_PLACE_WINDOWS_MAX 256

typedef struct ek_place_controller_params {
    /* What moving costs. */
    int64_t bytes_per_expert; /* weights of one replica in one layer */
    double link_bytes_per_s;  /* at which they come to their device, disturbing its work */
    double rack_bytes_per_s;  /* from another node of the rack; 0: the same */
    double far_bytes_per_s;   /* from another rack, or from storage; 0: as from another node */

    /* What balance is worth. */
    double seconds_per_row; /* that a device takes for one token-slot */
    int64_t horizon_us; /* a gain is counted for so long; traffic seldom stays the same longer */
    double min_gain;    /* fall of busiest/mean below which nothing moves */
    double confidence;  /* standard errors that a gain must stand out by from chance */

    /* What is looked at. */
    int64_t half_life_us;     /* after which a count weighs half in the loads */
    int64_t stale_us;         /* loads older than this are not acted on */
    int32_t n_windows;        /* history that a gain is predicted from, 1..EK_PLACE_WINDOWS_MAX */
    int32_t n_windows_min;    /* so much of it has to be there */
    double fresh_start_drift; /* drift beyond chance at which what was before is forgotten */

    /* What may move. */
    double target;             /* busiest/mean that a new placement aims at */
    int32_t max_replicas;      /* of one rebalance */
    int32_t max_step_replicas; /* that are carried out together; a swap has two */
    int64_t max_step_bytes;
    int64_t pause_us;        /* a layer is left alone for so long after a rebalance */
    int64_t step_timeout_us; /* a step that is not confirmed by then is taken back */
} ek_place_controller_params;

void ek_place_controller_params_default(ek_place_controller_params *out_params);

#endif
