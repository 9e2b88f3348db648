/*
 * When to stop: a gradient or a gate that explodes, a gate that collapses. Each says what it saw,
 * of which expert, and what to change. Pure.
 */
#ifndef EK_TUNE_GUARD_H
#define EK_TUNE_GUARD_H

#include <stdbool.h>
#include <stdint.h>

#include "tune/figures.h"

#define EK_GUARD_TEXT_MAX 320

typedef struct ek_guard_limits {
    double gradient_norm; /* of a step's gradient, before clipping */
    double row_growth;    /* a gate row that is so many times longer than the longest at start */
    double collapse;      /* readings of telemetry/readings.h at or above which it has collapsed */
    double constant;
    double mass_top1; /* share of probability that one expert may have */
} ek_guard_limits;

/** 1000; 20; 0.9, 0.99 (as the detectors have them); 0.9. */
ek_guard_limits ek_tune_guard_default(void);

/**
 * Explosion: the gradient's norm, or a row of the gate.
 * @param gradient   (n_experts, d)
 * @param weight     (n_experts, d)
 * @param row_at_start length of the longest row when it began
 * @return true, with out_why, when it is time to stop
 */
bool ek_tune_guard_exploded(const ek_guard_limits *limits, const double *gradient,
                            const double *weight, int32_t n_experts, int32_t d, double row_at_start,
                            char out_why[EK_GUARD_TEXT_MAX]);

/**
 * Collapse: few experts get nearly all tokens or all probability, or the gate no longer looks at
 * its input. Not said of a gate that was found like that: it is being repaired.
 */
bool ek_tune_guard_collapsed(const ek_guard_limits *limits, const ek_gate_figures *now,
                             const ek_gate_figures *start, char out_why[EK_GUARD_TEXT_MAX]);

#endif
