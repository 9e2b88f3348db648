#include "tune/adam.h"

#include <math.h>

static const double beta1 = 0.9, beta2 = 0.99, epsilon = 1e-10;
static const double pi = 3.14159265358979323846;

double ek_tune_rate(double peak, int64_t step, int64_t n_steps)
{
    const double least = 0.05;
    double part = n_steps > 0 ? ((double)step + 1) / (double)n_steps : 1;
    if (part < 0.05) return peak * part / 0.05;
    double along = fmin(1, (part - 0.05) / 0.95);
    return peak * (least + (1 - least) * 0.5 * (1 + cos(pi * along)));
}

double ek_tune_norm(const double *x, int64_t n)
{
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i] * x[i];
    return sqrt(sum);
}

double ek_tune_clip(double *x, int64_t n, double norm_max)
{
    double norm = ek_tune_norm(x, n);
    if (!(norm > norm_max)) return norm;
    for (int64_t i = 0; i < n; i++)
        x[i] *= norm_max / norm;
    return norm;
}

void ek_tune_adam_step(ek_adam *adam, double *weight, const double *gradient, const double *anchor,
                       double rate, double decay)
{
    adam->n_steps++;
    double bias1 = 1 - pow(beta1, (double)adam->n_steps);
    double bias2 = 1 - pow(beta2, (double)adam->n_steps);
    for (int64_t i = 0; i < adam->n; i++) {
        adam->m[i] = beta1 * adam->m[i] + (1 - beta1) * gradient[i];
        adam->v[i] = beta2 * adam->v[i] + (1 - beta2) * gradient[i] * gradient[i];
        double step = adam->m[i] / bias1 / (sqrt(adam->v[i] / bias2) + epsilon);
        weight[i] -= rate * (step + decay * (weight[i] - anchor[i]));
    }
}
