/*
 * Expert counters: what each routed expert of each layer has done.
 *
 * Per layer and expert: tokens, requests (each request counts once per expert it touched), busy
 * time, and a service time histogram. The engine's thread and its pool write with relaxed atomics,
 * anybody reads. A sampler (any one thread, each 100 ms) keeps snapshots, so that a reader gets the
 * matrix of the last W seconds without stopping a writer: windows up to 10 s are kept to 100 ms,
 * longer ones, up to 60 s, to 1 s. Only real tokens are counted: no padding, no warm-up.
 */
#ifndef EK_TELEMETRY_EXPERTS_H
#define EK_TELEMETRY_EXPERTS_H

#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/status.h"
#include "telemetry/balance.h"
#include "telemetry/service.h"

#define EK_EXPERTS_LAYERS_MAX    1024
#define EK_EXPERTS_PER_LAYER_MAX EK_BALANCE_COUNTS_MAX

#define EK_EXPERT_WINDOW_SAMPLE_US 100000   /* how often the sampler has to come */
#define EK_EXPERT_WINDOW_US_MAX    60000000 /* longest window */

typedef struct ek_expert_stats ek_expert_stats;

/** Arena bytes that create takes: 17 MB for 48 layers of 128 experts. */
size_t ek_telemetry_experts_bytes(int32_t n_layers, int32_t n_experts);

/**
 * @param n_layers  1..EK_EXPERTS_LAYERS_MAX
 * @param n_experts 1..EK_EXPERTS_PER_LAYER_MAX, routed experts of each layer
 * @param perm      what is made lives there, and needs no end of its own
 * @return EK_OK; EK_ERANGE a number outside its range; EK_ENOMEM perm is full
 */
EK_MUST ek_status ek_telemetry_experts_create(int32_t n_layers, int32_t n_experts, ek_arena *perm,
                                              ek_expert_stats **out_stats);

int32_t ek_telemetry_experts_layers(const ek_expert_stats *stats);
int32_t ek_telemetry_experts_count(const ek_expert_stats *stats);

/* Writers: any thread, wait-free. */
void ek_telemetry_experts_add_tokens(ek_expert_stats *stats, int32_t layer, int32_t expert,
                                     int64_t n_tokens);
void ek_telemetry_experts_add_request(ek_expert_stats *stats, int32_t layer, int32_t expert);
/**
 * busy_ns of compute; service_us from the start of the layer's dispatch until this expert was done.
 */
void ek_telemetry_experts_add_busy(ek_expert_stats *stats, int32_t layer, int32_t expert,
                                   int64_t busy_ns, int64_t service_us);
/** busy_ns of compute that is known as a sum only: no service time goes with it. */
void ek_telemetry_experts_add_load(ek_expert_stats *stats, int32_t layer, int32_t expert,
                                   int64_t busy_ns);

/**
 * Take the snapshots that are due at now_us; one thread, at least every EK_EXPERT_WINDOW_SAMPLE_US.
 */
void ek_telemetry_experts_sample(ek_expert_stats *stats, int64_t now_us);

/**
 * Totals since start (window_us = 0), or from window_us before the last sample until now; a window
 * longer than what there is gives what there is. Any thread, lock-free. Each output is (n_layers,
 * n_experts) or NULL.
 */
void ek_telemetry_experts_read(const ek_expert_stats *stats, int64_t window_us, int64_t *out_tokens,
                               int64_t *out_requests, int64_t *out_busy_ns);
/** The same for one layer: each output is (n_experts) or NULL. */
void ek_telemetry_experts_read_layer(const ek_expert_stats *stats, int32_t layer, int64_t window_us,
                                     int64_t *out_tokens, int64_t *out_requests,
                                     int64_t *out_busy_ns);

/** Service time histogram of one expert since start; borrowed from stats. */
const ek_service_hist *ek_telemetry_experts_service(const ek_expert_stats *stats, int32_t layer,
                                                    int32_t expert);

#endif
