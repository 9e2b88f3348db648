/*
 * Names of CPU features that kernels may use. sys/cpu.h finds them out, kernels/kernels.h takes
 * them.
 */
#ifndef EK_BASE_CPU_FLAGS_H
#define EK_BASE_CPU_FLAGS_H

#define EK_CPU_AVX2        (1u << 0) /* AVX2 + FMA + F16C */
#define EK_CPU_AVX512      (1u << 1) /* F + BW + DQ + VL + CD */
#define EK_CPU_AVX512_VNNI (1u << 2)
#define EK_CPU_AVX512_BF16 (1u << 3)
#define EK_CPU_AVX512_VBMI (1u << 4)
#define EK_CPU_ALL         0xffffffffu

#endif
