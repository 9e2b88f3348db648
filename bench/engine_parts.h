/*
 * What the parts of build/bench/engine share: engine.c measures, engine_report.c prints.
 */
#ifndef EK_BENCH_ENGINE_PARTS_H
#define EK_BENCH_ENGINE_PARTS_H

#include <stdbool.h>

#include "bench.h"
#include "energy.h"
#include "peers.h"
#include "rig.h"

enum {
    TESTS = EK_BENCH_TESTS,
    PREFILL = EK_BENCH_TEST_PREFILL,
    DECODE = EK_BENCH_TEST_DECODE,
    THREADS_MAX = 1024,
};
#define READ_BYTES ((size_t)512 << 20) /* of the bandwidth test */

typedef struct bench {
    ek_bench_rig_params params;
    const char *peer_path;
    int32_t n_windows;
    bool json;

    ek_bench_rig rig;
    ek_bench_peers peers;
    ek_bench_energy energy;
    ek_sys_region read_region;
    uint32_t cpu_flags;
    int64_t expert_bytes; /* read by the experts of the steps since it was set to 0 */
    int32_t n_steps[TESTS];

    uint64_t read_sum[EK_CACHE_LINE]; /* keeps the reads alive */
    double peak_ops[THREADS_MAX];
    ek_bench_samples rate[TESTS];   /* tokens/s */
    ek_bench_samples share[TESTS];  /* prefill: of the int8 peak; decode: of read bandwidth */
    ek_bench_samples joules[TESTS]; /* per token; empty where not readable */
    ek_bench_samples read_gbs, peak_gops;
} bench;

void ek_bench_engine_print_text(bench *b);
void ek_bench_engine_print_json(bench *b);

#endif
