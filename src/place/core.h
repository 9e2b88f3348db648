/*
 * The working state of one packing problem: some experts onto some devices. place.c makes one of it
 * for a global solve and one per node for a hierarchical solve; counts.c, pack.c and refine.c work
 * on it in turn.
 *
 * Local numbering throughout: experts 0..n_experts-1 and devices 0..n_devices-1 of this problem
 * only. All arrays live in the solve's scratch arena.
 */
#ifndef EK_PLACE_CORE_H
#define EK_PLACE_CORE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"

typedef struct ek_place_core {
    int32_t n_experts;
    int32_t n_devices;
    int32_t n_slots;          /* = slot_beg[n_devices] */
    const double *load;       /* (n_experts) > 0 for at least one */
    const int32_t *slot_beg;  /* (n_devices + 1) */
    const int32_t *domain_of; /* (n_devices) for spreading; NULL: nobody asked */
    const bool *fixed;        /* (n_slots) not to be changed by a rebalance; NULL: none */
    int32_t n_spread;         /* the first n_spread of `order` go to two domains at least */
    double mean;              /* load of a device if all were equal */

    int32_t *order;       /* (n_experts) by load, heaviest first, then lower id */
    int32_t *rank;        /* (n_experts) inverse of order */
    int32_t *count;       /* (n_experts) replicas */
    double *replica_load; /* (n_experts) load / count */
    int32_t *slot_expert; /* (n_slots) or -1 */
    int32_t *slot_device; /* (n_slots) */
    float *slot_load;     /* (n_slots) load of the slot's replica */
    /* (n_slots) device load without this slot; infinity: not to be swapped with */
    float *slot_rest;
    float *slot_promise; /* (n_slots) working space of the swap search */
    double *device_load; /* (n_devices) */
} ek_place_core;

/** Arena bytes that a problem of this size takes, working space of every step included. */
size_t ek_place_core_bytes(int32_t n_experts, int32_t n_slots, int32_t n_devices);

/** Scratch bytes of ek_place_pack; part of the above. */
size_t ek_place_pack_bytes(int32_t n_experts, int32_t n_devices);

/**
 * Allocate the arrays; inputs are set by the caller, `order` is filled here. Asserts that the arena
 * has ek_place_core_bytes.
 */
void ek_place_core_init(ek_place_core *core, ek_arena *perm);

/**
 * Give every expert a replica and the spare slots to whoever has the highest load / (count + shift)
 * in turn.
 * Source: divisor methods of apportionment; shift 0 (Adams) is EPLB's rule, a larger shift favours
 * hot experts.
 * @param shift > -1
 */
void ek_place_counts(ek_place_core *core, float shift, ek_arena scratch);

/**
 * Just enough replicas that none carries more than `cap`, and the spare slots to experts below half
 * of it: what packs well where a few hot experts have to fit beside each other on few devices.
 * @return false when the slots do not suffice; counts are then not to be used
 */
bool ek_place_counts_capped(ek_place_core *core, double cap, ek_arena scratch);

#define EK_PLACE_TUNED_MAX 8 /* experts whose counts are varied one by one */

/** A way to hand out the spare slots of a small problem: more replicas for the heaviest experts. */
typedef struct ek_place_handout {
    int32_t n;
    int32_t extra[EK_PLACE_TUNED_MAX]; /* (n) replicas beyond the first, in the order of load */
    double estimate;                   /* load of the busiest device, less what light experts add */
} ek_place_handout;

/**
 * The most promising ways to hand out spare slots where there are few of them, so that nearly all
 * ways can be looked at: on a node of a hierarchical placement, where a divisor method's rounding
 * may cost several per cent. Best estimate first.
 * @param busiest of the best packing known: ways that cannot be better are left out
 * @return number, at most max; 0 also where there are too many devices
 */
int32_t ek_place_counts_enumerate(const ek_place_core *core, double busiest, int32_t max,
                                  ek_place_handout *out);

/**
 * Longest replica first onto the least loaded device with room; replicas of an expert on distinct
 * devices.
 * @return false when room ran out in a way that put two replicas of one expert on a device (see
 *         ek_place_repair)
 */
bool ek_place_pack(ek_place_core *core, ek_arena scratch);

/**
 * Swap replicas between the busiest device and another one while that lowers the higher of the two,
 * until the busiest has at most `limit` load. @return number of swaps made
 */
int32_t ek_place_refine(ek_place_core *core, double limit, int32_t max_swaps);

/**
 * Move duplicates apart and spread the hottest experts over domains, at the least cost in balance.
 */
void ek_place_repair(ek_place_core *core);

/* ---- spreading; where nobody asked for it, everything may be done ---- */

/** A second replica for each expert that is to be spread, as far as slots go. */
void ek_place_spread_counts(ek_place_core *core);

/**
 * What ek_place_repair could not spread by swaps: another replica into a slot of another domain
 * whose expert has one to spare. Counts and loads follow.
 */
void ek_place_spread_by_copies(ek_place_core *core);

/** Experts that are to be spread and lie on one domain. */
int32_t ek_place_core_together(const ek_place_core *core);

/**
 * On how many domains the expert's replicas lie, not counting one slot (-1: counting all): 0, 1 or
 * 2 (= more).
 * @param out_domain written where it is 1
 */
int32_t ek_place_domains(const ek_place_core *core, int32_t expert, int32_t except_slot,
                         int32_t *out_domain);

/** Whether the slot's replica may go to `device` (-1: away) and its expert stays spread. */
bool ek_place_keeps_spread(const ek_place_core *core, int32_t slot, int32_t device);

/** Load of the busiest device. */
double ek_place_busiest(const ek_place_core *core, int32_t *out_device);

/** Whether device holds expert in a slot other than except_slot (-1: any). */
bool ek_place_holds(const ek_place_core *core, int32_t device, int32_t expert, int32_t except_slot);

/** Exchange two slots of different devices and update loads. */
void ek_place_swap(ek_place_core *core, int32_t slot_a, int32_t slot_b);

#endif
