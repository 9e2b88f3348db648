/*
 * Readings: what the detectors look at, each a figure of one layer (higher is worse), computed from
 * nothing but windows of counts or loads. Pure; the figures themselves are those of
 * telemetry/balance.h and base/drift.h.
 */
#ifndef EK_TELEMETRY_READINGS_H
#define EK_TELEMETRY_READINGS_H

#include <stdbool.h>
#include <stdint.h>

#define EK_READING_TOP_K_MAX   64
#define EK_READING_WINDOWS_MAX 64

/** One layer's figure and what goes with it in the evidence. Which of `with` is what: see each. */
typedef struct ek_reading {
    bool known; /* false: too little was counted to say anything */
    double value;
    int32_t expert; /* that it is about; -1: none in particular */
    int64_t tokens; /* token-slots that it rests on */
    double with[2];
} ek_reading;

/**
 * Overload: the highest utilisation. with[0]: mean over the layer.
 * @param utilisation (n), or NULL: not known
 */
ek_reading ek_telemetry_read_overload(const float *utilisation, int32_t n);

/** Imbalance: max/mean. with[0]: cv. Known from tokens_min token-slots on, as all below. */
ek_reading ek_telemetry_read_imbalance(const int64_t *tokens, int32_t n, int64_t tokens_min);

/**
 * Collapse: few experts get nearly all. With x effective experts (exp of the entropy) of n, and
 * top_k, which is the least there can be: 1 - (x - top_k) / (n - top_k); 0 even, 1 all tokens visit
 * the same experts. with[0]: x; with[1]: share of the top_k hottest. Never known when n = top_k.
 */
ek_reading ek_telemetry_read_collapse(const int64_t *tokens, int32_t n, int32_t top_k,
                                      int64_t tokens_min);

/**
 * Constant gate: whatever comes in, the same experts are chosen. The part of tokens that visit the
 * top_k-th hottest expert, or 1 less the drift from the window before, whichever is less: 1 is a
 * gate that does not look at its input. with[0]: that part; with[1]: the drift. Known when both
 * windows are, and n > top_k.
 */
ek_reading ek_telemetry_read_constant(const int64_t *tokens, const int64_t *before, int32_t n,
                                      int32_t top_k, int64_t tokens_min);

/**
 * Zero-hit experts: how many got nothing in all of the windows; expert: the first of them.
 * @param windows (n_windows) each (n); known when together they have tokens_min
 */
ek_reading ek_telemetry_read_zero_hit(const int64_t *const *windows, int32_t n_windows, int32_t n,
                                      int64_t tokens_min);

/**
 * Oscillation: the part of traffic that goes to and fro. The way that shares went from window to
 * window (sum of drifts), less how far they came (drift of the last from the first), per window,
 * less what chance does (base/drift.h). expert: whose share turned back most. with[0]: the way;
 * with[1]: how far.
 * @param windows (n_windows >= 3) oldest first, each (n); known when each has tokens_min
 */
ek_reading ek_telemetry_read_oscillation(const int64_t *const *windows, int32_t n_windows,
                                         int32_t n, int64_t tokens_min);

#endif
