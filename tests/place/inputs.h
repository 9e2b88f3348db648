/*
 * Placement inputs for tests: CSV files below ../shared and random topologies.
 */
#ifndef EK_TESTS_PLACE_INPUTS_H
#define EK_TESTS_PLACE_INPUTS_H

#include "base/rng.h"
#include "place/csv.h"
#include "place/place.h"

/** A table from ../shared/data/placement. @return false, and says so, when it is absent */
bool ek_place_input_table(const char *name, ek_arena *perm, ek_place_table *out_table);

/** A row of integers. */
void ek_place_input_row(const ek_place_table *table, int32_t row, int32_t *out);

/** Everything random about a topology, with the memory behind its arrays. */
typedef struct ek_place_random {
    ek_place_topology topology;
    int32_t device_slots[64];
    bool device_dead[64];
    int32_t device_node[64];
    int32_t node_rack[64];
    double loads[512];
} ek_place_random;

/** A valid random problem: uneven slots, dead devices, groups, skewed or flat loads. */
void ek_place_input_random(ek_rng *rng, ek_place_random *out);

/**
 * Racks for a problem, and, half of the time, nodes and racks of different sizes with their members
 * in any order.
 */
void ek_place_input_racks(ek_rng *rng, ek_place_random *problem);

/**
 * Asserts what every placement has to hold: all experts placed, dead devices empty, ids in range.
 */
void ek_place_input_check(const ek_place_topology *topology, const int32_t *slot_expert);

/** Slots that hold an expert that their device holds in an earlier slot. */
int32_t ek_place_input_duplicates(const ek_place_topology *topology, const int32_t *slot_expert);

#endif
