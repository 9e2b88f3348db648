/*
 * The tuner's own state; for tuner.c (life, looks, checkpoints), tuner_router.c and tuner_bias.c.
 */
#ifndef EK_TUNE_TUNER_INTERNAL_H
#define EK_TUNE_TUNER_INTERNAL_H

#include "tune/adam.h"
#include "tune/tuner.h"

/** What changes and is no array: saved as it lies. */
typedef struct ek_tuner_state {
    ek_tune_report report;
    ek_rng rng;
    int64_t n_steps;   /* router steps taken */
    int64_t n_passes;  /* bias passes made */
    int64_t epoch_pos; /* next place in `order` */
    int32_t n_idle;    /* looks or passes since the last better gate */
    bool has_best;
    double bias_step;
    double bias_best; /* lowest max/mean of a pass over what is learned from */
    int64_t adam_steps;
} ek_tuner_state;

struct ek_tuner {
    const ek_gate_problem *problem;
    ek_tune_params params;
    ek_tuner_state state;
    int64_t n_weights; /* n_experts * d */
    bool has_bias;     /* the gate has, or is to have, a selection bias */
    double row_start;  /* length of the longest row of teacher and start */
    double rate_unit;  /* typical weight: what `rate` is in parts of */
    double noise_unit; /* deviation of the teacher's logits */
    /* (n_weights) */
    double *weight, *best_weight, *good_weight, *gradient;
    ek_adam adam;
    /* (n_experts) */
    double *bias, *best_bias, *good_bias, *share, *mean_choice;
    int32_t *order; /* (n_train) of this epoch */
    /* (batch, ..) */
    double *wide;                                 /* (.., d) */
    double *logits, *teacher, *choice, *d_logits; /* (.., n_experts) */
    float *scores;                                /* (n_train, n_experts) logits, bias only */
    float *narrow, *narrow_bias;                  /* (n_experts) */
    int64_t *counts;                              /* (n_experts) */
    int32_t *ids;                                 /* (top_k) */
    float *chosen;                                /* (top_k) */
    ek_gate_scratch gate_scratch;
    ek_arena look_scratch;
};

/** Experts that a token is given. @param bias true: with the tuner's own; ids in t->ids */
const float *ek_tune_choose(ek_tuner *t, const double *logits);

/** One optimiser step. @return false: it exploded, and is told in the report */
bool ek_tune_router_step(ek_tuner *t);

/** Before the first pass: logits of all that is learned from, and how large a step is. */
void ek_tune_bias_begin(ek_tuner *t);
/** One pass and one step of the biases. @return false: steps have become too small to help */
bool ek_tune_bias_pass(ek_tuner *t);

#endif
