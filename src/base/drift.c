#include "base/drift.h"

#include <math.h>

#define TWO_OVER_PI 0.63661977236758134308

static double sum_of(const int64_t *counts, int32_t n)
{
    int64_t sum = 0;
    for (int32_t i = 0; i < n; i++)
        sum += counts[i];
    return (double)sum;
}

double ek_drift(const int64_t *a, const int64_t *b, int32_t n)
{
    double sum_a = sum_of(a, n), sum_b = sum_of(b, n), apart = 0.0;
    if (sum_a <= 0.0 || sum_b <= 0.0) return 0.0;
    for (int32_t i = 0; i < n; i++)
        apart += fabs((double)a[i] / sum_a - (double)b[i] / sum_b);
    return 0.5 * apart;
}

double ek_drift_noise(const int64_t *a, const int64_t *b, int32_t n)
{
    double sum_a = sum_of(a, n), sum_b = sum_of(b, n), apart = 0.0;
    if (sum_a <= 0.0 || sum_b <= 0.0) return 0.0;
    double factor = TWO_OVER_PI * (1.0 / sum_a + 1.0 / sum_b);
    for (int32_t i = 0; i < n; i++) {
        double p = (double)(a[i] + b[i]) / (sum_a + sum_b);
        apart += sqrt(factor * p * (1.0 - p));
    }
    return 0.5 * apart;
}
