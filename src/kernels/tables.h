/*
 * What fills a kernel table, one function per instruction set. Private to this room; select.c calls
 * them in rising order, so that each writes only the entries it improves.
 */
#ifndef EK_KERNELS_TABLES_H
#define EK_KERNELS_TABLES_H

#include "kernels/kernels.h"

/** Every entry. */
void ek_kernels_reference_fill(ek_kernels *table);

/* The x86 functions exist only in builds for x86-64 (EK_KERNELS_X86). */

/** Every entry; needs EK_CPU_AVX2. */
void ek_kernels_avx2_fill(ek_kernels *table);
/** All but the quantised matrices; needs EK_CPU_AVX512 over avx2. */
void ek_kernels_avx512_fill(ek_kernels *table);
/** The quantised matrices; needs EK_CPU_AVX512_VNNI over avx512. */
void ek_kernels_avx512_vnni_fill(ek_kernels *table);

#endif
