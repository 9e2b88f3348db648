/*
 * The search for steps of a rebalance: a core with a placement in it, the steps taken so far, and
 * the functions that look for the next one. rebalance.c makes one mover for each part of the
 * topology; mover_swap.c and mover_copy.c weigh the two kinds of step.
 *
 * Loads are scaled so that a device's mean is 1. What a step is worth is the fall of the devices'
 * *unease* per replica moved. Unease is about how many steps a device still needs: one for being
 * away from the mean at all, and more the farther it is. So a step that brings two devices home
 * beats one that brings four half way, each of which would need another one. (With the square of
 * the distance, which values the latter, the same targets take a tenth more moves.)
 */
#ifndef EK_PLACE_MOVER_H
#define EK_PLACE_MOVER_H

#include "place/core.h"
#include "place/rebalance.h"

/* What an attempt starts from and may go back to. */
typedef struct ek_place_mark {
    int32_t *slot_expert; /* (n_slots) */
    int32_t *count;       /* (n_experts) */
    ek_place_move *moves; /* (max_moves + 1) */
    int32_t n_moves;
    int32_t n_replicas;
    double busiest;
} ek_place_mark;

/* A step that could be taken next. */
typedef struct ek_place_candidate {
    float gain; /* per replica moved; 0: no step */
    int32_t slot;
    int32_t other_slot; /* -1: a copy of `expert` into slot */
    int32_t expert;
} ek_place_candidate;

/* The slots that a swap may be made with, side by side for the vector units. */
typedef struct ek_place_partners {
    int32_t n;
    int32_t *slot;
    float *load;   /* of the slot's replica */
    float *device; /* load of its device */
    float *unease; /* of its device */
    float *share;  /* 1 / replicas that the swap moves */
    float *gain;   /* working space */
} ek_place_partners;

/* The slots that may be given to another expert: empty, or their expert has more than one. */
typedef struct ek_place_spares {
    int32_t n;
    int32_t *slot;
    float *worth;  /* of taking the replica away, to the devices that hold the expert's others */
    float *load;   /* of the slot's replica */
    float *device; /* load of its device */
    float *unease; /* of its device */
    float *gain;   /* working space */
} ek_place_spares;

typedef struct ek_place_mover {
    ek_place_core core;
    double limit;      /* stop at this load */
    float band;        /* distance from the mean that hardly matters */
    float away;        /* distance from the mean that is half a step's worth */
    float slope;       /* steps per distance besides */
    float copy_worth;  /* a copy's gain against a swap's */
    int32_t max_moves; /* replicas */
    int32_t n_replicas;
    int32_t n_empty; /* slots */
    int32_t n_moves;
    ek_place_move *moves; /* (max_moves + 1) local numbers */
    int32_t *head;        /* (n_experts) first slot of an expert's list, or -1 */
    int32_t *next;        /* (n_slots) */
    float *unease;        /* (n_devices) */
    double *delta;        /* (n_devices) all zero between uses */
    int32_t *touched;     /* (2 * n_slots + 1) */
    int32_t n_touched;
    ek_place_partners partners;
    ek_place_spares spares;
    ek_place_mark start, saved, best, kept;
} ek_place_mover;

/** Arena bytes of a mover's own arrays. */
size_t ek_place_mover_bytes(int32_t n_experts, int32_t n_slots, int32_t n_devices,
                            int32_t max_moves);

/** Allocate what ek_place_mover_bytes counts; the core is initialised before. */
void ek_place_mover_init(ek_place_mover *m, ek_arena *perm);

/** Loads, lists and unease from counts and slots, from scratch. */
void ek_place_mover_refresh(ek_place_mover *m);

static inline float ek_place_unease(const ek_place_mover *m, float load)
{
    float far = load > 1.0f ? load - 1.0f : 1.0f - load, inside = 0.1f * far;
    float outside = far - 0.9f * m->band;
    float distance = inside > outside ? inside : outside;
    return m->slope * distance + distance / (distance + m->away);
}

/** The best swap of the busiest device, if it is better than *best. */
void ek_place_mover_weigh_swaps(ek_place_mover *m, int32_t busiest, ek_place_candidate *best);

/** The best copy of one of the busiest device's experts, if it is better than *best. */
void ek_place_mover_weigh_copies(ek_place_mover *m, int32_t busiest, ek_place_candidate *best);

/** The slot that another replica of `expert` costs least in; -1: there is none. */
int32_t ek_place_mover_slot_for(ek_place_mover *m, int32_t expert);

/** The expert that gains most by a replica in `slot`; -1: none may be put there. */
int32_t ek_place_mover_expert_for(ek_place_mover *m, int32_t slot);

/**
 * Into a list of n <= max steps, the one with the highest gain first; the last one falls out of a
 * full list. @return the new number
 */
int32_t ek_place_mover_rank(ek_place_candidate *list, int32_t n, int32_t max,
                            const ek_place_candidate *step);

/**
 * Steps that relieve the busiest device but may well make another one the busiest; what they "gain"
 * is less the higher the load of the highest device that they touch. They are ranked into a list of
 * n. @return the new number
 */
int32_t ek_place_mover_copy_detours(ek_place_mover *m, int32_t n, int32_t max,
                                    ek_place_candidate *list);
int32_t ek_place_mover_swap_detours(ek_place_mover *m, int32_t n, int32_t max,
                                    ek_place_candidate *list);

/** Whether two slots of different devices may change places; `a` holds something. */
bool ek_place_mover_may_swap(const ek_place_core *core, int32_t a, int32_t b);

/** Whether `slot` may be given to another replica of `expert`. */
bool ek_place_mover_may_copy(const ek_place_core *core, int32_t slot, int32_t expert);

/**
 * Put the hottest experts that are to be spread on two domains, by a copy where there is a slot for
 * it, else by a swap, as long as moves last.
 */
void ek_place_mover_spread(ek_place_mover *m);

/** Take a step. */
void ek_place_mover_take(ek_place_mover *m, const ek_place_candidate *step);

/** Put another replica of `expert` into `slot`, as a step. */
void ek_place_mover_copy(ek_place_mover *m, int32_t slot, int32_t expert);

/**
 * From where the mover stands to the limit: steps, the best first, and where none helps a detour.
 * If that does not get there, the same again from the start with other ideas of what steps are
 * worth, and after more replicas were given to the hottest experts. The best that was reached is
 * kept.
 */
void ek_place_mover_run(ek_place_mover *m);

#endif
