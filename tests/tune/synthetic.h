/*
 * A made-up layer for tests: hidden states around a few directions, a gate that knows them, and all
 * of it as a recording. The same numbers every time. One thread.
 */
#ifndef EK_TESTS_TUNE_SYNTHETIC_H
#define EK_TESTS_TUNE_SYNTHETIC_H

#include "tune/problem.h"
#include "tune/states.h"

#define SYN_EXPERTS 8
#define SYN_WIDTH   16
#define SYN_TOP_K   2

typedef struct synthetic {
    uint8_t *mem; /* owned: the recording */
    size_t bytes;
    ek_states_shape shape;
    ek_states states;
    float weight[SYN_EXPERTS * SYN_WIDTH];
    ek_route_gate gate;
} synthetic;

/**
 * @param skew how much more common the first direction is than the last, >= 1
 */
void synthetic_open(synthetic *s, int32_t n_tokens, double skew);
void synthetic_close(synthetic *s);

/** Its one layer as a problem. @return as ek_tune_problem_make */
ek_status synthetic_problem(const synthetic *s, ek_arena *perm, ek_gate_problem *out_problem);

#endif
