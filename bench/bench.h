/*
 * What all benchmarks share: samples with median and spread, and the line that names the machine.
 */
#ifndef EK_BENCH_BENCH_H
#define EK_BENCH_BENCH_H

#include <stdint.h>

#define EK_BENCH_SAMPLES_MAX 1024

/** Measurements of one quantity. Zero-initialise. */
typedef struct ek_bench_samples {
    double value[EK_BENCH_SAMPLES_MAX];
    int32_t n;
} ek_bench_samples;

/** Samples beyond EK_BENCH_SAMPLES_MAX are left out. */
void ek_bench_add(ek_bench_samples *samples, double value);

/** q = 0 lowest, 0.5 median, 1 highest; 0 when there are none. Sorts the samples. */
double ek_bench_quantile(ek_bench_samples *samples, double q);

/**
 * "machine: AMD EPYC ..., 2 CPUs, build gcc 12.2.0" on standard output, or as JSON members without
 * braces.
 */
void ek_bench_print_machine(void);
void ek_bench_print_machine_json(void);

/** A string as JSON has it, with its quotes. */
void ek_bench_print_json_string(const char *text);

#endif
