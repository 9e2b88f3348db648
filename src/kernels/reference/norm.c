#include <math.h>

#include "kernels/reference/reference.h"

void ek_kernels_reference_rms_norm(const float *x, const float *weight, int32_t n, float eps,
                                   float *y)
{
    double squares = 0.0;
    for (int32_t i = 0; i < n; i++)
        squares += (double)x[i] * (double)x[i];
    double factor = 1.0 / sqrt(squares / n + (double)eps);
    for (int32_t i = 0; i < n; i++)
        y[i] = (float)((double)x[i] * factor * (double)weight[i]);
}

void ek_kernels_reference_softmax(float *x, int32_t n)
{
    float largest = x[0];
    for (int32_t i = 1; i < n; i++)
        largest = fmaxf(largest, x[i]);
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += exp((double)x[i] - (double)largest);
    for (int32_t i = 0; i < n; i++)
        x[i] = (float)(exp((double)x[i] - (double)largest) / sum);
}
