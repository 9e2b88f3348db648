/*
 * Recorded routing as logits: what parts of build/bench/route plan.
 *
 * A recording says which experts a token chose, and mostly with what weight; it does not say how
 * close the others came. Here they follow the chosen at the rate at which these fall themselves: if
 * the chosen go down by a factor q from one to the next, so do those behind them. Which expert
 * comes at which place is drawn, each with a chance in proportion to how often its domain chooses
 * it. Where weights are not recorded either, q is one that gives the mean sum of the chosen's
 * scores that the recording's makers found.
 */
#ifndef EK_BENCH_ROUTE_RECORDED_H
#define EK_BENCH_ROUTE_RECORDED_H

#include "rebalance_traffic.h"
#include "route/route.h"

/** One layer of one domain's traffic: streams that each read a sequence, then another. */
typedef struct ek_bench_stream {
    const ek_bench_set *set;
    int32_t domain;
    int32_t n_streams;
    ek_bench_sequence left[EK_BENCH_STREAMS_MAX];
} ek_bench_stream;

/** The gate that set number i was recorded from, as far as choices go. */
ek_route_gate ek_bench_set_gate(const ek_bench_set *set);

/** @param n_streams tokens of a batch, each of another sequence */
void ek_bench_stream_start(ek_bench_stream *stream, const ek_bench_set *set, int32_t domain,
                           int32_t n_streams, ek_rng *rng);

/** On to the next token of each stream: out_tokens (n_streams), numbers in the recording. */
void ek_bench_stream_next(ek_bench_stream *stream, ek_rng *rng, int32_t *out_tokens);

/** Logits of one token in one layer: out_logits (n_experts). */
void ek_bench_stream_logits(const ek_bench_stream *stream, int32_t token, int32_t layer,
                            ek_rng *rng, float *out_logits);

#endif
