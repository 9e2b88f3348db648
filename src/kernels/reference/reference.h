/*
 * The scalar kernels: what each entry of ek_kernels means, written to be read. Sums are taken in
 * double and in the order of the indices, weights are dequantised and activations used as they are,
 * so that the only error is the rounding of each result to f32. Contracts are those of kernels.h.
 * Pure.
 */
#ifndef EK_KERNELS_REFERENCE_REFERENCE_H
#define EK_KERNELS_REFERENCE_REFERENCE_H

#include "kernels/kernels.h"

void ek_kernels_reference_act_quantize(const float *x, int32_t n_cols, int8_t *q, float *scale,
                                       float *scaled_sum, int32_t *half_offset);
void ek_kernels_reference_matmul(const ek_mat *w, int32_t row_beg, int32_t row_end, const ek_act *x,
                                 const int32_t *token_idx, int32_t n_tokens, float *y,
                                 int64_t y_stride);
void ek_kernels_reference_rms_norm(const float *x, const float *weight, int32_t n, float eps,
                                   float *y);
void ek_kernels_reference_rope(ek_rope_kind kind, float *x, int32_t n_rot, const float *cos,
                               const float *sin);
void ek_kernels_reference_swiglu(const float *gate, const float *up, int32_t n, float *y);
void ek_kernels_reference_attend(const ek_attend_args *args);
void ek_kernels_reference_axpy(float a, const float *x, int32_t n, float *y);
void ek_kernels_reference_f32_to_f16(const float *x, int32_t n, uint16_t *y);
void ek_kernels_reference_softmax(float *x, int32_t n);

#endif
