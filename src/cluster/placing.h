/*
 * A placement for workers that serve: every worker comes to have what its device of the placement
 * has (docs/CLUSTER.md, "A new placement while it serves").
 *
 * What a worker was started with it keeps; what the placement gives it beyond that is its *target*.
 * Layer by layer, workers acquire what is missing, and when all have it, release what is too much;
 * one without room for both releases first, in whichever layer. It is all done by saying what is
 * wanted of them (cluster/member_moves.h), which releases nothing that nobody else serves. The
 * members' threads take it further, whichever comes by: it has no thread of its own.
 */
#ifndef EK_CLUSTER_PLACING_H
#define EK_CLUSTER_PLACING_H

#include <stdbool.h>
#include <stdint.h>

#include "cluster/front.h"

typedef enum ek_placing_state {
    EK_PLACING_NONE, /* none was given yet */
    EK_PLACING_MOVING,
    EK_PLACING_DONE,
    EK_PLACING_FAILED, /* what was brought about by then stays */
} ek_placing_state;

/** Under front->lock. */
typedef struct ek_placing {
    ek_placing_state state;
    uint64_t number;     /* of placements that were given */
    uint64_t *target;    /* (n_members, n_layers, words) as in ek_expert_set; owned */
    int32_t layer;       /* at work on it */
    int64_t n_acquire;   /* experts to come and to go, when it was given */
    int64_t n_release;   /* likewise */
    int64_t n_missing;   /* of those, still; as of its end once that has come */
    int64_t n_extra;     /* likewise */
    int64_t beg_us;      /* given */
    int64_t end_us;      /* done or failed */
    int64_t looked_us;   /* whether it can go on */
    int64_t progress_us; /* something of the layer came or went */
    uint64_t progress;   /* what that is seen by */
    uint64_t failed[EK_CLUSTER_WORKERS_MAX]; /* orders of each worker when the layer began */
    char why[EK_CLUSTER_WHY_MAX];            /* it has failed */
} ek_placing;

/**
 * Take it further: say what is wanted now. Under front->lock.
 * @param out_report what there is to log, where it has just ended
 * @return whether it has just ended
 */
bool ek_cluster_placing_step_locked(ek_front *front, int64_t now_us,
                                    ek_placement_report *out_report);

/** Tell the log that it has ended. */
void ek_cluster_placing_log(const ek_placement_report *report);

/** Does it decide what workers have? Under front->lock. */
bool ek_cluster_placing_is_moving_locked(const ek_front *front);

#endif
