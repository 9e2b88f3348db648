/*
 * Incremental rebalancing: from a placement that went stale to a balanced one, moving as few
 * replicas as it takes. A fresh solve moves nearly everything after a small drift; here every step
 * is chosen for what it gains, and the list of steps is the plan that a cluster carries out while
 * traffic flows.
 *
 * Two kinds of step: a *swap* exchanges the replicas of two slots (two replicas' weights move, or
 * one, where the other slot is empty), a *copy* puts another replica of a hot expert into an empty
 * slot or that of an expert that has replicas to spare (one moves). After every step each expert
 * still has a replica, and no device holds an expert twice that did not before. Slots that hold
 * what their device holds already serve nobody: where there is something to improve they get
 * another expert first, as part of the moves, while max_moves lasts; out_balance tells how many are
 * left.
 *
 * Pure and deterministic, like place.h.
 */
#ifndef EK_PLACE_REBALANCE_H
#define EK_PLACE_REBALANCE_H

#include "place/place.h"

#define EK_PLACE_MOVES_PER_SLOT \
    2 /* more moves than this times n_slots are never made: a fresh solve is due */

typedef struct ek_place_move {
    int32_t slot; /* receives `expert` */
    int32_t expert;
    int32_t other_slot;   /* of a swap: held `expert`, receives other_expert; -1: a copy */
    int32_t other_expert; /* EK_PLACE_EMPTY: `slot` was empty, and other_slot is afterwards */
} ek_place_move;

typedef struct ek_place_move_params {
    double target; /* stop when busiest/mean is this or less; 1.01 is a good value */
    /* Replicas that may move: a swap counts 2, or 1 into an empty slot, a copy 1. */
    int32_t max_moves;
    /*
     * A copy's gain against a swap's, per replica moved; 0: 0.65, because a spare slot is used up
     * by it. More is better where a dispatcher splits batches over replicas, which evens out the
     * more the more of the load has replicas.
     */
    double copy_worth;
    /*
     * So many of the hottest experts are put on two domains before anything else, and no step lets
     * one that is there fall together; 0: none. As in ek_place_params.
     */
    int32_t spread_hottest;
    ek_place_domain spread_over;
} ek_place_move_params;

/**
 * Improve one layer's placement in place.
 * @param topology   n_groups > 1: replicas move inside their node only, and none is spread
 * @param loads      (n_experts) as in ek_place_layer
 * @param slot_expert (n_slots) in: the current placement, EK_PLACE_EMPTY allowed; what lies on dead
 *                   devices is treated as lost, and experts that lost all replicas are restored
 *                   first; out: the new one
 * @param out_moves  (max_moves) steps in order
 * @param out_n_moves number of steps
 * @param out_n_replicas replicas that they move
 * @param scratch    ek_place_rebalance_bytes
 * Cost: about 2 us a step at 288 slots on 32 devices, 4 us at 448 on 64; a multiple of that where
 * the target is hard to reach at all.
 * @return EK_OK (whether the target was reached says out_balance); EK_EINVAL (topology, ids, or
 *         max_moves too few to restore lost experts); EK_ENOMEM; slot_expert is unchanged on error
 */
EK_MUST ek_status ek_place_rebalance(const ek_place_topology *topology,
                                     const ek_place_move_params *params, const double *loads,
                                     ek_arena scratch, int32_t *slot_expert,
                                     ek_place_move *out_moves, int32_t *out_n_moves,
                                     int32_t *out_n_replicas, ek_place_balance *out_balance);

size_t ek_place_rebalance_bytes(const ek_place_topology *topology);

/**
 * Where the weights of a replica come from that `slot` is to hold: the nearest slot of a live
 * device that has the expert, the lower one of equals.
 * @param slot_expert (n_slots) before the move
 * @param out_distance from there to the device of `slot`; may be NULL
 * @return that slot; -1: none has it, and they come from storage
 * Cost O(n_slots).
 */
int32_t ek_place_source(const ek_place_topology *topology, const int32_t *slot_expert, int32_t slot,
                        int32_t expert, ek_place_distance *out_distance);

/**
 * Carry out moves on a placement and count how far weights travel for it.
 * @param slot_expert (n_slots) in: before; out: after the moves
 * @param out_n       replicas by where their weights come from; added to what is there
 * Cost O(n_slots) a replica.
 */
void ek_place_moves_apply(const ek_place_topology *topology, const ek_place_move *moves,
                          int32_t n_moves, int32_t *slot_expert,
                          int64_t out_n[EK_PLACE_N_DISTANCES]);

#endif
