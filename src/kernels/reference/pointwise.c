#include <math.h>

#include "kernels/reference/reference.h"
#include "quant/convert.h"

void ek_kernels_reference_rope(ek_rope_kind kind, float *x, int32_t n_rot, const float *cos,
                               const float *sin)
{
    int32_t n_pairs = n_rot / 2;
    for (int32_t i = 0; i < n_pairs; i++) {
        float *a = kind == EK_ROPE_NORM ? &x[2 * i] : &x[i];
        float *b = kind == EK_ROPE_NORM ? &x[2 * i + 1] : &x[i + n_pairs];
        float rotated_a = *a * cos[i] - *b * sin[i];
        float rotated_b = *a * sin[i] + *b * cos[i];
        *a = rotated_a;
        *b = rotated_b;
    }
}

void ek_kernels_reference_swiglu(const float *gate, const float *up, int32_t n, float *y)
{
    for (int32_t i = 0; i < n; i++) {
        double v = gate[i];
        y[i] = (float)(v / (1.0 + exp(-v)) * (double)up[i]);
    }
}

void ek_kernels_reference_axpy(float a, const float *x, int32_t n, float *y)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = fmaf(a, x[i], y[i]);
}

void ek_kernels_reference_f32_to_f16(const float *x, int32_t n, uint16_t *y)
{
    for (int32_t i = 0; i < n; i++)
        y[i] = ek_quant_f32_to_f16(x[i]);
}
