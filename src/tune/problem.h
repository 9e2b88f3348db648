/*
 * A layer's gate as a problem: hidden states, split into those that are learned from and those that
 * are judged by, the gate as it was found, and the teacher, whose choices are to be kept.
 *
 * The teacher is the original gate, mended where it is broken: a row whose length is far from the
 * layer's median is a blown-up or a dead expert, and its length is set to the median while its
 * direction, which is what was learned, stays. Only where the row, so mended, would still stand out
 * by its mean logit and the opposite one would not, it is turned round. Pure; the problem owns
 * nothing.
 */
#ifndef EK_TUNE_PROBLEM_H
#define EK_TUNE_PROBLEM_H

#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/rng.h"
#include "base/status.h"
#include "route/route.h"
#include "tune/gemm.h"
#include "tune/states.h"

typedef struct ek_gate_problem {
    ek_gemm_fn gemm;
    ek_route_gate gate;
    int32_t d_model;
    int32_t n_train;
    int32_t n_held;
    const float *train;    /* (n_train, d_model) */
    const float *held;     /* (n_held, d_model) */
    const float *weight;   /* (n_experts, d_model) the gate as it was found */
    const float *bias;     /* (n_experts) selection bias as it was found; NULL: none */
    const double *teacher; /* (n_experts, d_model) */
    const int32_t *mended; /* (n_mended) experts whose row was mended */
    int32_t n_mended;
    /*
     * Where to begin instead of at the teacher and `bias`; the caller sets these, or leaves NULL.
     */
    const double *begin_weight; /* (n_experts, d_model) */
    const double *begin_bias;   /* (n_experts) */
} ek_gate_problem;

/** What a problem is made from besides the states; all borrowed as long as it. */
typedef struct ek_gate_setup {
    ek_gemm_fn gemm;
    ek_route_gate gate;  /* as the model has it; n_experts and top_k are the recording's */
    const float *weight; /* (n_experts, d_model) finite */
    const float *bias;   /* (n_experts) finite, or NULL */
    double mend; /* a row that is so many times longer or shorter than the median is mended, > 1 */
} ek_gate_setup;

/** Arena bytes that ek_tune_problem_make takes at most. */
size_t ek_tune_problem_bytes(const ek_states_shape *shape);

/**
 * Gather one layer's problem from a recording.
 * @return EK_OK; EK_EINVAL no token to learn from, or none to judge by; EK_ENOMEM
 */
EK_MUST ek_status ek_tune_problem_make(const ek_states *states, int32_t layer,
                                       const ek_gate_setup *setup, ek_arena *perm,
                                       ek_gate_problem *out_problem);

/**
 * A gate that has learned nothing: normal numbers, rows as long as the teacher's median one.
 * @param out (n_experts, d_model)
 */
void ek_tune_problem_reset(const ek_gate_problem *problem, ek_rng *rng, double *out);

/** One normal number (mean 0, deviation 1). */
double ek_tune_normal(ek_rng *rng);

#endif
