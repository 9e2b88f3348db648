/*
 * The tuner: one layer's gate, step by step, until it is even enough, or no longer gets better, or
 * something goes wrong.
 *
 * bias adds to the scores by which experts are chosen, never to the weights. After each pass over
 *         the states an expert that had more than its share loses a step, one that had less gains
 *         one. Source: arXiv:2408.15664 Alg. 1; differs: the step is in units of the scores' spread
 *         and is halved when a pass no longer helps, so that it works for softmax scores, too.
 * router  teaches the gate's weights: it keeps to the teacher's choice distribution (KL) while a
 *         balance loss spreads the tokens and a z-loss keeps logits small (tune/loss.h); noise on
 *         the logits, clipped gradients, Adam. Differs from training: the weight of the balance
 *         loss is not set but found. It rises while the states that are kept back are not even
 *         enough, and falls when they are.
 * both router until twice as far from even as asked for, then bias for the rest: biases cost less
 *         per token moved, but cannot mend what a gate has forgotten.
 *
 * What counts is judged on the states that are kept back: among gates that reach the target the
 * one nearest to the teacher is best; among others both count. A tuner that explodes or
 * collapses goes back to the last good gate and says why. The caller decides about time: each call
 * of ek_tune_tuner_run does a bounded amount of work, and between calls the state can be saved.
 * Deterministic given (problem, params). Pure; one thread; memory is the arena's.
 */
#ifndef EK_TUNE_TUNER_H
#define EK_TUNE_TUNER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "tune/guard.h"
#include "tune/loss.h"
#include "tune/problem.h"

typedef enum ek_tune_method { EK_TUNE_BIAS, EK_TUNE_ROUTER, EK_TUNE_BOTH } ek_tune_method;

typedef struct ek_tune_params {
    ek_tune_method method;
    bool reset;    /* begin with a gate that has learned nothing, in the place of the teacher */
    double target; /* max/mean of token-slots to get to, > 1 */
    uint64_t seed;
    /* router */
    int64_t n_steps;
    int32_t batch;         /* tokens of a step */
    int32_t look_steps;    /* between two looks at the states that are kept back; 0: a 40th */
    int32_t patience;      /* looks without a better gate once one is even enough, then it ends */
    double rate;           /* peak learning rate, in parts of the teacher's typical weight */
    double balance_weight; /* at start */
    double z_weight;
    double noise; /* deviation at start, in parts of the logits' own; falls to 0 half way */
    double clip;  /* longest gradient */
    double decay; /* towards the teacher, per step and learning rate */
    /* bias */
    int32_t n_passes;
    double bias_rate; /* step at start, in parts of the scores' spread */
    ek_guard_limits guard;
} ek_tune_params;

typedef enum ek_tune_end {
    EK_TUNE_GOES_ON,
    EK_TUNE_REACHED,   /* as even as asked for */
    EK_TUNE_EXHAUSTED, /* all steps taken, or nothing got better for long; the best is kept */
    EK_TUNE_EXPLODED,  /* back at the last good gate; `why` tells more */
    EK_TUNE_COLLAPSED,
} ek_tune_end;

typedef struct ek_tune_report {
    ek_tune_end end;
    bool in_bias;              /* the second method is at work */
    int64_t n_done, n_planned; /* steps or passes */
    double gradient_norm;      /* of the last step, before clipping */
    double gradient_norm_max;
    double balance_weight;
    ek_losses losses;      /* of the last step's batch */
    ek_gate_figures start; /* on the states kept back: the gate as it was found */
    ek_gate_figures now;   /* as it was at the last look */
    ek_gate_figures best;
    char why[EK_GUARD_TEXT_MAX];
} ek_tune_report;

typedef struct ek_tuner ek_tuner;

/** What is good for most. */
void ek_tune_params_default(ek_tune_params *out_params);

/** "bias", "router" or "both" -> method; false for anything else. */
bool ek_tune_method_parse(const char *name, ek_tune_method *out_method);
const char *ek_tune_method_name(ek_tune_method method);

/** Arena bytes that create takes at most. */
size_t ek_tune_tuner_bytes(const ek_gate_problem *problem, const ek_tune_params *params);

/**
 * @param problem borrowed as long as the tuner is used
 * @return EK_OK; EK_EINVAL a parameter is out of range, the text names it; EK_ENOMEM
 */
EK_MUST ek_status ek_tune_tuner_create(const ek_gate_problem *problem, const ek_tune_params *params,
                                       ek_arena *perm, ek_tuner **out_tuner, ek_err *err);

/** Go on until the next look. @return EK_AGAIN there is more to do; EK_END it has ended */
EK_MUST ek_status ek_tune_tuner_run(ek_tuner *tuner);

const ek_tune_report *ek_tune_tuner_report(const ek_tuner *tuner);
/** The best gate so far; lives as long as the tuner. `bias` is NULL where there is none. */
ek_gate_weights ek_tune_tuner_best(const ek_tuner *tuner);

/**
 * The state as bytes, for a checkpoint: the same problem and params go on from them to the same
 * result.
 */
size_t ek_tune_tuner_state_bytes(const ek_tuner *tuner);
void ek_tune_tuner_save(const ek_tuner *tuner, uint8_t *out_state);
/** @param state from save, of a tuner of the same problem and params; unaligned */
void ek_tune_tuner_load(ek_tuner *tuner, const uint8_t *state);

#endif
