/*
 * What a core gives when it does nothing but multiply bytes: the yardstick of quantised kernels.
 * Pure.
 */
#ifndef EK_BENCH_INT8_PEAK_H
#define EK_BENCH_INT8_PEAK_H

#include <stdint.h>

/** The instruction that is measured under these EK_CPU_* flags; "none" without one. */
const char *ek_bench_int8_name(uint32_t cpu_flags);

/**
 * Run `rounds` rounds of independent multiply-adds.
 * @return how many operations that were, a multiplication and an addition counting two; 0 without
 *              an instruction
 */
double ek_bench_int8_run(uint32_t cpu_flags, int64_t rounds);

#endif
