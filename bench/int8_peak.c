/*
 * Intrinsics outside src/kernels/x86: this is no kernel but a measurement of the processor,
 * compiled function by function for its instruction set.
 */
#include "int8_peak.h"

#include "base/attr.h"
#include "base/cpu_flags.h"

#ifdef __x86_64__
#include <immintrin.h>

enum { CHAINS = 12 }; /* enough independent sums to hide the latency */

static volatile int sum_seen; /* keeps the loops from being dropped */

__attribute__((target("avx512f,avx512vnni"))) static double run_vnni(int64_t rounds)
{
    __m512i sum[CHAINS], a = _mm512_set1_epi8(3);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm512_set1_epi32(i);
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm512_dpbusd_epi32(sum[i], a, a);
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm512_add_epi32(sum[0], sum[i]);
    sum_seen = _mm512_cvtsi512_si32(sum[0]);
    return (double)rounds * CHAINS * 128;
}

__attribute__((target("avx2"))) static double run_avx2(int64_t rounds)
{
    __m256i sum[CHAINS], a = _mm256_set1_epi8(3);
    for (int i = 0; i < CHAINS; i++)
        sum[i] = _mm256_set1_epi32(i);
    for (int64_t r = 0; r < rounds; r++)
#pragma GCC unroll 12
        for (int i = 0; i < CHAINS; i++)
            sum[i] = _mm256_maddubs_epi16(sum[i], a);
    for (int i = 1; i < CHAINS; i++)
        sum[0] = _mm256_add_epi32(sum[0], sum[i]);
    sum_seen = _mm256_cvtsi256_si32(sum[0]);
    return (double)rounds * CHAINS * 64;
}

const char *ek_bench_int8_name(uint32_t cpu_flags)
{
    if (cpu_flags & EK_CPU_AVX512_VNNI) return "vpdpbusd zmm";
    return cpu_flags & EK_CPU_AVX2 ? "vpmaddubsw ymm" : "none";
}

double ek_bench_int8_run(uint32_t cpu_flags, int64_t rounds)
{
    if (cpu_flags & EK_CPU_AVX512_VNNI) return run_vnni(rounds);
    return cpu_flags & EK_CPU_AVX2 ? run_avx2(rounds) : 0.0;
}

#else

const char *ek_bench_int8_name(uint32_t cpu_flags EK_UNUSED)
{
    return "none";
}

double ek_bench_int8_run(uint32_t cpu_flags EK_UNUSED, int64_t rounds EK_UNUSED)
{
    return 0.0;
}

#endif
