/*
 * The search for steps of a rebalance: a core with a placement in it, the steps taken so far, and
 * the functions that look for the next one. rebalance.c makes one mover for each part of the
 * topology.
 */
#ifndef EK_PLACE_MOVER_H
#define EK_PLACE_MOVER_H

#include "place/core.h"
#include "place/rebalance.h"

/* What an attempt starts from and may go back to. */
typedef struct ek_place_mark {
    int32_t *slot_expert; /* (n_slots) */
    int32_t *count;       /* (n_experts) */
    int32_t n_moves;
    int32_t n_replicas;
} ek_place_mark;

typedef struct ek_place_mover {
    ek_place_core core;
    double limit;      /* stop at this load */
    int32_t max_moves; /* replicas */
    int32_t n_replicas;
    int32_t n_moves;
    /* (2 * max_moves + 2): the steps so far, then a copy of the best ones; local numbers */
    ek_place_move *moves;
    /* (n_experts) first slot of an expert's list; built whenever copies are weighed */
    int32_t *head;
    int32_t *next;    /* (n_slots) */
    double *delta;    /* (n_devices) all zero between uses */
    int32_t *touched; /* (n_slots * 2 + 1) */
    int32_t n_touched;
    ek_place_mark saved, best;
} ek_place_mover;

/** Loads from counts and slots, from scratch. */
void ek_place_mover_refresh(ek_place_core *core);

/** Put another replica of `expert` into `slot`, as a step. */
void ek_place_mover_copy(ek_place_mover *m, int32_t slot, int32_t expert);

/**
 * Step after step, the best first, until the limit is met, the moves are used up, or no step helps.
 * @return whether the limit is met
 */
bool ek_place_mover_descend(ek_place_mover *m);

/**
 * No step lowers the busiest device: try copies that make things worse for a moment and descend
 * again from there; keep the one that ends lowest. @return whether it is lower than before
 */
bool ek_place_mover_escape(ek_place_mover *m);

#endif
