/*
 * Scan: a model over texts, without requests, for what measures or studies it (`evenkeel
 * calibrate`).
 *
 * Each text is computed from its beginning, in steps, by the forward pass that serves requests,
 * with static routing, or with a policy and loads that somebody recorded. What comes out is its
 * loss, and on request what each layer's gate saw and did. One thread; the pool's threads compute.
 */
#ifndef EK_ENGINE_SCAN_H
#define EK_ENGINE_SCAN_H

#include <stdint.h>

#include "base/err.h"
#include "expert/model_file.h"
#include "kernels/kernels.h"
#include "route/route.h"

typedef struct ek_scan ek_scan;

typedef struct ek_scan_params {
    const ek_model_file *file; /* borrowed until close; its overlay counts, if it has one */
    ek_kernels_choice kernels;
    int32_t n_threads;              /* >= 1 */
    int32_t text_tokens;            /* longest text, 2..the model's context */
    const ek_route_params *routing; /* copied; NULL: static */
} ek_scan_params;

/** One layer of one step. Arrays are borrowed for the call. */
typedef struct ek_scan_layer {
    int32_t layer;
    int32_t first_token; /* of the step, in its text */
    int32_t n_tokens;
    const float *hidden;      /* (n_tokens, d) normalised: what the gate multiplies */
    const float *gate_logits; /* (n_tokens, n_experts) */
    const ek_route_plan *plan;
} ek_scan_layer;

typedef struct ek_scan_sink {
    void *ctx;
    void (*on_layer)(void *ctx, const ek_scan_layer *layer); /* layers in order, step by step */
} ek_scan_sink;

/** @return EK_OK; EK_ENOMEM; EK_EINVAL a parameter is out of range; EK_EUNSUPPORTED the kernels */
EK_MUST ek_status ek_engine_scan_open(const ek_scan_params *params, ek_scan **out_scan,
                                      ek_err *err);
/** Accepts NULL. */
void ek_engine_scan_close(ek_scan *scan);

/** What its kernels are. */
const ek_kernels *ek_engine_scan_kernels(const ek_scan *scan);

/**
 * Loads by which the policy bends what follows: one sample, as a front's sampler makes them.
 * @param utilisation (n_layers, n_experts) >= 0, borrowed until the next call or the end; NULL: not
 *                    known
 * @param sampled_us  when, >= that of the sample before
 */
void ek_engine_scan_set_loads(ek_scan *scan, const float *utilisation, int64_t sampled_us);

/** Mean share of gate score that was given up so far; 0 with static. */
double ek_engine_scan_score_loss(const ek_scan *scan);

/**
 * Compute one text.
 * @param tokens   (n_tokens) ids, n_tokens in 1..text_tokens
 * @param sink     NULL: nobody looks
 * @param out_loss sum over tokens 1 .. n_tokens - 1 of -ln(probability given those before), in
 *                 nats; NULL: not wanted, and no logits are computed
 * @return EK_OK; EK_EINVAL too long, or an id outside the vocabulary; EK_ENOMEM
 */
EK_MUST ek_status ek_engine_scan_run(ek_scan *scan, const int32_t *tokens, int32_t n_tokens,
                                     const ek_scan_sink *sink, double *out_loss);

#endif
