/*
 * Figures of balance: how evenly counts are spread over experts, replicas or workers.
 *
 * Each figure is defined here, once; the API, the metrics, the detectors and the benchmarks quote
 * these. How far two windows are apart, their drift, is base/drift.h's. Pure.
 */
#ifndef EK_TELEMETRY_BALANCE_H
#define EK_TELEMETRY_BALANCE_H

#include <stdint.h>

#define EK_BALANCE_COUNTS_MAX 1024

/** All 0 when nothing was counted, but for n_zero, which is n then. */
typedef struct ek_balance {
    double max_over_mean; /* 1 is even, n is one takes all; above 2 is called unbalanced */
    double cv;            /* standard deviation (population) over mean */
    double gini;          /* 0 even .. (n-1)/n one takes all */
    double entropy;       /* of the shares, in nats; ln(n) is even */
    double effective;     /* exp(entropy): how many do the work */
    double top1_share;    /* of everything counted */
    int32_t n_zero;       /* how many counted nothing */
    int32_t hottest;      /* index of the highest count (lowest index of equals) */
    int64_t tokens;       /* sum */
} ek_balance;

/**
 * @param counts (n) token-slots, each >= 0
 * @param n      1..EK_BALANCE_COUNTS_MAX
 * Cost O(n^(4/3)); no memory but the stack.
 */
void ek_telemetry_balance(const int64_t *counts, int32_t n, ek_balance *out_balance);

#endif
