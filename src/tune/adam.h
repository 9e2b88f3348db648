/*
 * The optimiser: Adam with decoupled weight decay, gradient clipping by norm, and a learning rate
 * that rises, stays, and falls.
 * Source: arXiv:1711.05101 Alg. 2; differs: weights decay towards an anchor (the gate that is being
 * calibrated), not towards zero, since what is wanted is the nearest gate and not the smallest.
 * Pure; one thread.
 */
#ifndef EK_TUNE_ADAM_H
#define EK_TUNE_ADAM_H

#include <stdint.h>

typedef struct ek_adam {
    double *m, *v; /* (n) first and second moments; zeros before the first step */
    int64_t n;
    int64_t n_steps; /* taken */
} ek_adam;

/** Learning rate of step `step` of n_steps: up over the first 5 %, then a half cosine to 5 %. */
double ek_tune_rate(double peak, int64_t step, int64_t n_steps);

/** Euclidean norm; not finite when any element is not. */
double ek_tune_norm(const double *x, int64_t n);

/** Scale x down to that norm where it is longer. @return its norm before */
double ek_tune_clip(double *x, int64_t n, double norm_max);

/**
 * One step.
 * @param weight   (n) changed
 * @param gradient (n) finite
 * @param anchor   (n) what weights decay towards
 */
void ek_tune_adam_step(ek_adam *adam, double *weight, const double *gradient, const double *anchor,
                       double rate, double decay);

#endif
