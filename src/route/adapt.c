#include "route/adapt.h"

#include <math.h>

#define STRIDE_START     0.05
#define STRIDE_MIN       0.0125
#define STRIDE_MAX       0.1
#define STRIDE_GROWTH    1.5
#define STRIDE_SHRINKAGE 0.5
#define TAIL_TOLERANCE   0.02 /* relative change that is told from none */

/* What the gain moves, and how far: mild at 0, the configured value at 1/2, strong at 1. */
typedef struct bound {
    size_t offset;
    double mild, strong;
} bound;

/* They keep recover < derate < trip at every gain, because each end does and the way is linear. */
static const bound bounds[] = {
    {offsetof(ek_route_params, breaker.recover_load), 0.85, 0.45},
    {offsetof(ek_route_params, breaker.derate_load), 0.95, 0.55},
    {offsetof(ek_route_params, breaker.trip_load), 1.10, 0.70},
};
#define ALPHA_STRONG 0.3
#define BETA_STRONG  2.0

void ek_adapt_init(ek_adapt *adapt)
{
    *adapt = (ek_adapt){.gain = EK_ADAPT_GAIN_START, .stride = STRIDE_START};
}

/** Sets the next stride from how the tail answered to the last one. */
static void judge(ek_adapt *a, double tail)
{
    double change = a->tail_last > 0 ? tail / a->tail_last - 1 : 0;
    double size = fabs(a->stride);
    double sign = a->stride < 0 ? -1 : 1;
    if (change > TAIL_TOLERANCE) {
        sign = -sign;
        size *= STRIDE_SHRINKAGE;
    } else if (change < -TAIL_TOLERANCE) {
        size *= STRIDE_GROWTH;
    } else if (a->tail_last > 0) {
        sign = -1;
        size = STRIDE_MIN;
    }
    a->stride = sign * fmin(fmax(size, STRIDE_MIN), STRIDE_MAX);
}

bool ek_adapt_sample(ek_adapt *a, const ek_route_params *params, int64_t tail_us, double load_max)
{
    /* Negated, so that a NaN is not used either. */
    if (tail_us <= 0 || !(load_max >= params->breaker.recover_load)) return false;
    a->tail_sum += (double)tail_us;
    if (++a->n_samples < params->adaptive_samples) return false;
    double tail = a->tail_sum / a->n_samples;
    judge(a, tail);
    a->tail_last = tail;
    a->tail_sum = 0;
    a->n_samples = 0;
    double gain = fmin(fmax(a->gain + a->stride, 0), 1);
    bool moved = gain != a->gain;
    a->gain = gain;
    a->n_moves += moved;
    return moved;
}

void ek_adapt_tune(double gain, const ek_route_params *params, ek_route_params *out_tuned)
{
    ek_route_params tuned = *params;
    double milder = fmax(1 - 2 * gain, 0);
    double stronger = fmax(2 * gain - 1, 0);
    for (size_t i = 0; i < EK_COUNT_OF(bounds); i++) {
        double *field = (double *)(void *)((char *)&tuned + bounds[i].offset);
        double configured = *field;
        *field += milder * fmax(bounds[i].mild - configured, 0);
        *field -= stronger * fmax(configured - bounds[i].strong, 0);
    }
    tuned.discount_alpha = stronger * ALPHA_STRONG;
    tuned.discount_beta = stronger * BETA_STRONG;
    *out_tuned = tuned;
}
