/*
 * What a gate is like on some hidden states: how evenly it chooses, how far it is from the teacher,
 * and whether it has collapsed. The same figures are shown before, while and after a gate is
 * calibrated. Pure; one thread.
 */
#ifndef EK_TUNE_FIGURES_H
#define EK_TUNE_FIGURES_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/status.h"
#include "route/gate.h"
#include "telemetry/balance.h"
#include "tune/problem.h"

typedef struct ek_gate_figures {
    ek_balance balance;    /* of token-slots */
    double kl;             /* teacher's choice distribution against this gate's, nats per token */
    double score_loss;     /* what the chosen have less of the teacher's scores than its own
                               choice, in parts of that: 0 the same, 1 nothing left */
    double z;              /* mean of logsumexp(z)^2 */
    double mass_top1;      /* share of probability of the expert that has most of it */
    double mass_effective; /* exp(entropy) of the mean choice distribution */
    double collapse;       /* reading of telemetry/readings.h; 0 where it says nothing */
    double constant;       /* likewise */
    int32_t mass_hottest;
} ek_gate_figures;

/** A gate: weights and, where it is not NULL, a selection bias. */
typedef struct ek_gate_weights {
    const double *weight; /* (n_experts, d_model) */
    const double *bias;   /* (n_experts) */
} ek_gate_weights;

/** Scratch that the functions of this header take at most. */
size_t ek_tune_figures_bytes(const ek_gate_problem *problem);

/** The scratch of route/gate.h out of an arena. @return false: the arena is too small */
EK_MUST bool ek_tune_gate_scratch(const ek_route_gate *gate, ek_arena *arena,
                                  ek_gate_scratch *out_scratch);

/**
 * out (n_rows, n_experts) = rows (n_rows, d) x weight^T.
 * @param weight (n_experts, d)
 * @param wide   (n_rows, d) scratch: the rows in double
 */
void ek_tune_logits(const ek_gate_problem *problem, const float *rows, int32_t n_rows,
                    const double *weight, double *wide, double *out);

/**
 * Look at a gate on the states that are kept back, or on those that are learned from.
 * @param out_ids (rows, top_k) what it chose, or NULL
 * @return EK_OK; EK_ENOMEM scratch is too small
 */
EK_MUST ek_status ek_tune_figures(const ek_gate_problem *problem, const ek_gate_weights *gate,
                                  bool held, ek_arena scratch, int32_t *out_ids,
                                  ek_gate_figures *out_figures);

#endif
