/*
 * A part of a topology that is solved by itself: all live devices for a global solve, one node's
 * for a hierarchical one. Translates between the caller's numbering and a core's local one.
 */
#ifndef EK_PLACE_PART_H
#define EK_PLACE_PART_H

#include "base/arena.h"
#include "place/place.h"

typedef struct ek_place_part {
    int32_t n_experts, n_devices;
    int32_t *expert;   /* (n_experts) global ids */
    int32_t *device;   /* (n_devices) global ids, live ones only, ascending */
    double *load;      /* (n_experts) */
    int32_t *slot_beg; /* (n_devices + 1) local */
    int32_t *slot;     /* (n_devices) global number of each device's first slot */
    int32_t *domain;   /* (n_devices) to spread over */
} ek_place_part;

/** Arena bytes of one part of a topology. */
size_t ek_place_part_bytes(const ek_place_topology *topology);

/**
 * An empty part with the live devices of `node` (-1: all nodes). Asserts that the arena has room.
 */
void ek_place_part_init(ek_place_part *part, const ek_place_topology *topology, int32_t node,
                        ek_place_domain spread_over, ek_arena *perm);
/** All experts of the topology, under their own numbers. */
void ek_place_part_add_all(ek_place_part *part, int32_t n_experts, const double *loads);
void ek_place_part_add_expert(ek_place_part *part, int32_t expert, double load);

/** Local slots to the caller's: slot_expert of the part's devices is overwritten. */
void ek_place_part_write(const ek_place_part *part, const int32_t *local, int32_t *slot_expert);

/** What a row of loads comes to. */
typedef struct ek_place_sum {
    double total;
    double most;
    double least;
} ek_place_sum;

/** n >= 1. A load that is not finite makes the total so. */
ek_place_sum ek_place_sum_of(const double *loads, int32_t n);

/** ek_place_lower_bound of loads whose sum is known. */
double ek_place_bound_of(const ek_place_topology *topology, const double *loads,
                         const ek_place_sum *sum);

bool ek_place_is_dead(const ek_place_topology *topology, int32_t device);
int32_t ek_place_slots_of(const ek_place_topology *topology, int32_t device);
int32_t ek_place_node_of(const ek_place_topology *topology, int32_t device);
int32_t ek_place_rack_of(const ek_place_topology *topology, int32_t node);
int32_t ek_place_domain_of(const ek_place_topology *topology, ek_place_domain domain,
                           int32_t device);

#endif
