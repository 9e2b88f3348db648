/*
 * The product of matrices that this room computes with: CBLAS's, handed in by whoever loaded it.
 *
 * It is not linked. OpenBLAS starts threads as soon as it is loaded, before main could block any
 * signal, and a signal that one of those threads gets ends the process; besides, a server has no
 * use for it (ADR 0010).
 */
#ifndef EK_TUNE_GEMM_H
#define EK_TUNE_GEMM_H

#include <cblas.h>

/** cblas_dgemm, or what does the same. */
typedef __typeof__(&cblas_dgemm) ek_gemm_fn;

#endif
