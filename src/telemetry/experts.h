/*
 * Expert counters: what each routed expert of each layer has done.
 *
 * Per layer and expert: tokens, requests (each request counts once per expert it touched), busy time, and a service time histogram.
 * The engine's thread and its pool write with relaxed atomics, anybody reads. A sampler (any one thread,
 * each 100 ms) closes windows, so that a reader gets the matrix of the last W seconds without stopping
 * the writer. Only real tokens are counted: no padding, no warm-up.
 */
#ifndef EK_TELEMETRY_EXPERTS_H
#define EK_TELEMETRY_EXPERTS_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/hist.h"
#include "base/status.h"

#define EK_EXPERT_WINDOW_SAMPLE_US 100000 /* one sample each 100 ms */
#define EK_EXPERT_WINDOW_SAMPLES   600    /* so at most the last 60 s */

typedef struct ek_expert_stats ek_expert_stats;

/** @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_telemetry_experts_create(int32_t n_layers, int32_t n_experts,
                                              ek_expert_stats **out_stats);
void ek_telemetry_experts_destroy(ek_expert_stats *stats);

int32_t ek_telemetry_experts_layers(const ek_expert_stats *stats);
int32_t ek_telemetry_experts_count(const ek_expert_stats *stats);

/* Writers: any thread, wait-free. */
void ek_telemetry_experts_add_tokens(ek_expert_stats *stats, int32_t layer, int32_t expert,
                                     int64_t n_tokens);
void ek_telemetry_experts_add_request(ek_expert_stats *stats, int32_t layer, int32_t expert);
/** busy_ns of compute; service_us from the start of the layer's dispatch until this expert was done. */
void ek_telemetry_experts_add_busy(ek_expert_stats *stats, int32_t layer, int32_t expert,
                                   int64_t busy_ns, int64_t service_us);

/** Close the current sample if now_us says that it is due; one thread. */
void ek_telemetry_experts_sample(ek_expert_stats *stats, int64_t now_us);

/** Totals since start (window_us = 0) or of the last window_us; each output is (n_layers, n_experts) or NULL. */
void ek_telemetry_experts_read(const ek_expert_stats *stats, int64_t window_us, int64_t *out_tokens,
                               int64_t *out_requests, int64_t *out_busy_ns);

/** Service time histogram of one expert since start; borrowed from stats. */
const ek_hist *ek_telemetry_experts_service(const ek_expert_stats *stats, int32_t layer,
                                            int32_t expert);

/** Figures of one layer's token counts. Each is defined once, here. */
typedef struct ek_balance {
    double max_over_mean; /* 1 is even; 0 when there are no tokens */
    double cv;            /* standard deviation (population) over mean */
    double gini;          /* 0 even .. (n-1)/n one expert takes all */
    double entropy;       /* of the shares, in nats */
    double effective;     /* exp(entropy): how many experts do the work */
    double top1_share;    /* of all tokens */
    int32_t n_zero;       /* experts without a token */
    int32_t hottest;      /* id with the most tokens (lowest id of equals) */
    int64_t tokens;       /* token-slots counted */
} ek_balance;

void ek_telemetry_balance(const int64_t *counts, int32_t n, ek_balance *out_balance);

#endif
