/*
 * A rebalance controller on a cluster small enough to compute all figures by hand, with a clock
 * that the test sets.
 */
#ifndef EK_TESTS_PLACE_CONTROLLER_RIG_H
#define EK_TESTS_PLACE_CONTROLLER_RIG_H

#include "place/controller.h"

#define EK_RIG_S INT64_C(1000000) /* in microseconds */

enum { EK_RIG_DEVICES = 2, EK_RIG_LAYERS = 2 };

typedef struct ek_place_rig {
    ek_place_controller_setup setup;
    ek_place_controller_params params;
    ek_place_controller *c;
    void *memory; /* owned; of the controller */
    size_t bytes;
    void *scratch_memory; /* owned */
    ek_arena scratch;
    int64_t now_us;
} ek_place_rig;

/**
 * Two devices, two layers; a row takes 1 ms, a replica of 29 bytes comes at 10 bytes/s, gains count
 * for 10 s. Not opened yet, so that a test may change what it wants.
 */
ek_place_rig ek_place_rig_make(int32_t n_experts, int32_t n_slots, const int32_t *slot_expert);

/** Fails the test when the controller refuses. */
void ek_place_rig_open(ek_place_rig *rig);
void ek_place_rig_close(ek_place_rig *rig);

/** So many windows of a second each. */
void ek_place_rig_feed(ek_place_rig *rig, const int64_t *tokens, int32_t n_windows);

ek_place_controller_stats ek_place_rig_stats(const ek_place_rig *rig);

#endif
