/*
 * The parts of the x86 tables: one function per operation and instruction set, each in a .c file of
 * its own that is compiled for that set. Private to this room.
 */
#ifndef EK_KERNELS_X86_X86_H
#define EK_KERNELS_X86_X86_H

#include "kernels/kernels.h"

void ek_kernels_avx2_vector_fill(ek_kernels *table);
void ek_kernels_avx2_attend_fill(ek_kernels *table);
void ek_kernels_avx2_matmul_f_fill(ek_kernels *table);
void ek_kernels_avx2_matmul_q_fill(ek_kernels *table);

void ek_kernels_avx512_vector_fill(ek_kernels *table);
void ek_kernels_avx512_attend_fill(ek_kernels *table);
void ek_kernels_avx512_matmul_f_fill(ek_kernels *table);

#endif
