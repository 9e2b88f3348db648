/*
 * Batches of recorded routing, domain by domain: what build/bench/rebalance replays.
 */
#ifndef EK_BENCH_REBALANCE_TRAFFIC_H
#define EK_BENCH_REBALANCE_TRAFFIC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/rng.h"
#include "sys/file.h"
#include "trace/mrt.h"

enum {
    EK_BENCH_DOMAINS_MAX = 4,
    EK_BENCH_SEQUENCES_MAX = 128, /* of one domain */
    EK_BENCH_STREAMS_MAX = 64,
};

/** A run of tokens in a recording. */
typedef struct ek_bench_sequence {
    int32_t beg, end;
} ek_bench_sequence;

typedef struct ek_bench_domain {
    const char *name;
    const ek_mrt *mrt; /* borrowed from the set */
    ek_bench_sequence sequence[EK_BENCH_SEQUENCES_MAX];
    int32_t n_sequences;
} ek_bench_domain;

/** Recordings of one model, split into domains. */
typedef struct ek_bench_set {
    const char *name;
    int32_t n_layers, n_experts, top_k;
    int32_t batch_tokens;
    int32_t n_streams;      /* sequences that a batch has tokens of; 1: one prompt after another */
    int64_t expert_weights; /* numbers of one expert's matrices */
    int64_t expert_bytes;
    ek_sys_map map[EK_BENCH_DOMAINS_MAX];
    ek_mrt mrt[EK_BENCH_DOMAINS_MAX];
    int32_t n_files;
    ek_bench_domain domain[EK_BENCH_DOMAINS_MAX];
    int32_t n_domains;
    int64_t *totals; /* owned; (n_domains, n_layers, n_experts) of all recorded tokens */
} ek_bench_set;

extern const int32_t ek_bench_n_sets;

/** Open set number i below dir; on failure err says why and nothing is left open. */
bool ek_bench_set_open(const char *dir, int32_t i, ek_bench_set *out_set, ek_err *err);
void ek_bench_set_close(ek_bench_set *set);

/** Endless traffic of one domain: each stream reads sequences of it, drawn at random. */
typedef struct ek_bench_reader {
    const ek_bench_set *set;
    const ek_bench_domain *domain;
    ek_bench_sequence left[EK_BENCH_STREAMS_MAX]; /* of each stream's sequence */
} ek_bench_reader;

void ek_bench_reader_start(ek_bench_reader *reader, const ek_bench_set *set, int32_t domain,
                           ek_rng *rng);

/** The next batch: out_tokens (n_layers, n_experts). */
void ek_bench_reader_batch(ek_bench_reader *reader, ek_rng *rng, int64_t *out_tokens);

#endif
