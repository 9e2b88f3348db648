#include "route/adapt.h"

#include <math.h>

#define STRIDE_START     0.1
#define STRIDE_MIN       0.05
#define STRIDE_MAX       0.2
#define STRIDE_GROWTH    1.5
#define STRIDE_SHRINKAGE 0.5
#define BETTER           0.98 /* of the tail around it: a trial has to be below ... */
#define STANDARD_ERRORS  3    /* ... by so many more; samples that follow each other are alike */
#define FAR_WORSE        1.25 /* of the tail before it: such samples break a trial off */
#define N_FAR_WORSE      2    /* in a row, because one is nothing */
#define HOLD_MAX         16   /* phases */
#define N_IDLE_PHASES    10   /* without load, after which all is forgotten */

/*
 * The discount that the gain scales: it begins at the configured recover_load, and at the gain 1/2
 * it comes down to derate_weight where the configured breaker would derate; at 1 it begins at
 * LOAD_STRONG and falls STEEPER times as fast.
 */
#define ALPHA       0.1
#define BETA_MIN    1.0
#define BETA_MAX    50.0
#define LOAD_STRONG 0.45
#define STEEPER     2.0

/*
 * What load is left to the breaker itself: when so much work waits, or when the guarded thing
 * fails, which is put on the scale of trip_load. Thresholds that are configured higher stay.
 */
#define RECOVER_LOAD 0.85
#define DERATE_LOAD  0.95
#define TRIP_LOAD    4.0

void ek_route_adapt_init(ek_adapt *adapt)
{
    *adapt = (ek_adapt){
        .gain = EK_ADAPT_GAIN_START,
        .kept = EK_ADAPT_GAIN_START,
        .stride = STRIDE_START,
    };
}

static void enter(ek_adapt *a, ek_adapt_phase phase, double gain)
{
    a->phase = phase;
    a->gain = gain;
    a->tails[phase] = (ek_adapt_tails){0};
    a->n_bad = 0;
}

static double clamp(double x, double min, double max)
{
    return fmin(fmax(x, min), max);
}

static void begin_trial(ek_adapt *a)
{
    bool goes_home = a->n_trials % 2 == 1 && a->kept != EK_ADAPT_GAIN_START;
    a->trial = goes_home ? EK_ADAPT_GAIN_START : clamp(a->kept + a->stride, 0, 1);
    if (a->trial == a->kept) { /* at an end: the other way */
        a->stride = -a->stride;
        a->trial = clamp(a->kept + a->stride, 0, 1);
    }
    a->n_trials++;
    enter(a, EK_ADAPT_TRIAL, a->trial);
}

static double mean_of(const ek_adapt_tails *tails)
{
    return tails->n > 0 ? tails->sum / tails->n : 0;
}

/** Square of the standard error of the mean. */
static double error_of(const ek_adapt_tails *tails)
{
    if (tails->n < 2) return 0;
    double mean = mean_of(tails);
    double variance = fmax(tails->sum_squares / tails->n - mean * mean, 0);
    return variance / (tails->n - 1);
}

static bool trial_pays(const ek_adapt *a)
{
    const ek_adapt_tails *before = &a->tails[EK_ADAPT_BEFORE];
    const ek_adapt_tails *trial = &a->tails[EK_ADAPT_TRIAL];
    const ek_adapt_tails *after = &a->tails[EK_ADAPT_AFTER];
    double around = (mean_of(before) + mean_of(after)) / 2;
    if (a->trial == EK_ADAPT_GAIN_START) return mean_of(trial) <= around;
    double error = sqrt(error_of(trial) + (error_of(before) + error_of(after)) / 4);
    return mean_of(trial) < BETTER * around - STANDARD_ERRORS * error;
}

static void give_up(ek_adapt *a)
{
    enter(a, EK_ADAPT_BEFORE, a->kept);
    if (a->trial == EK_ADAPT_GAIN_START) return; /* what is kept proved itself: go on from it */
    a->stride *= -STRIDE_SHRINKAGE;
    if (fabs(a->stride) < STRIDE_MIN) a->stride = a->stride < 0 ? -STRIDE_MIN : STRIDE_MIN;
    a->hold_next = a->hold_next == 0 ? 1 : 2 * a->hold_next;
    if (a->hold_next > HOLD_MAX) a->hold_next = HOLD_MAX;
    a->hold = a->hold_next;
}

static void keep(ek_adapt *a)
{
    a->kept = a->trial;
    if (a->kept != EK_ADAPT_GAIN_START)
        a->stride = clamp(a->stride * STRIDE_GROWTH, -STRIDE_MAX, STRIDE_MAX);
    a->hold = a->hold_next = 0;
    a->n_kept++;
    enter(a, EK_ADAPT_BEFORE, a->kept);
}

static void end_phase(ek_adapt *a)
{
    switch (a->phase) {
    case EK_ADAPT_BEFORE:
        if (a->hold-- > 0)
            enter(a, EK_ADAPT_BEFORE, a->kept);
        else
            begin_trial(a);
        return;
    case EK_ADAPT_TRIAL: enter(a, EK_ADAPT_AFTER, a->kept); return;
    case EK_ADAPT_AFTER:
        if (trial_pays(a))
            keep(a);
        else
            give_up(a);
        return;
    }
}

/** Nothing is loaded: after some time of that, begin anew. */
static void rest(ek_adapt *a, const ek_route_params *params)
{
    if (a->n_idle < INT32_MAX) a->n_idle++;
    if (a->n_idle / N_IDLE_PHASES >= params->adaptive_samples) {
        int32_t n_idle = a->n_idle;
        ek_route_adapt_init(a);
        a->n_idle = n_idle;
    }
}

bool ek_route_adapt_sample(ek_adapt *a, const ek_route_params *params, int64_t tail_us,
                           double load_max)
{
    double gain = a->gain;
    /* Negated, so that a NaN counts as no load. */
    if (!(load_max >= params->breaker.recover_load)) {
        rest(a, params);
        return a->gain != gain;
    }
    a->n_idle = 0;
    if (tail_us <= 0) return false;
    double tail = (double)tail_us;
    if (a->phase == EK_ADAPT_TRIAL) {
        bool is_bad = tail > FAR_WORSE * mean_of(&a->tails[EK_ADAPT_BEFORE]);
        a->n_bad = is_bad ? a->n_bad + 1 : 0;
        if (a->n_bad >= N_FAR_WORSE) {
            give_up(a);
            return a->gain != gain;
        }
    }
    ek_adapt_tails *tails = &a->tails[a->phase];
    tails->sum += tail;
    tails->sum_squares += tail * tail;
    if (++tails->n >= params->adaptive_samples) end_phase(a);
    return a->gain != gain;
}

/** The slope at the gain 1/2. */
static double home_beta(const ek_breaker_params *b)
{
    double fall = log((1 - ALPHA) / b->derate_weight);
    return clamp(fall / (b->derate_load - b->recover_load), BETA_MIN, BETA_MAX);
}

void ek_route_adapt_tune(double gain, const ek_route_params *params, ek_route_params *out_tuned)
{
    ek_route_params tuned = *params;
    double part = fmin(2 * gain, 1);         /* of the discount at 1/2 */
    double stronger = fmax(2 * gain - 1, 0); /* 0 at 1/2, 1 at 1 */
    double load = params->breaker.recover_load;
    tuned.discount_load = load - stronger * fmax(load - LOAD_STRONG, 0);
    tuned.discount_alpha = part * ALPHA;
    tuned.discount_beta = part * home_beta(&params->breaker) * (1 + stronger * (STEEPER - 1));
    tuned.breaker.recover_load = fmax(load, RECOVER_LOAD);
    tuned.breaker.derate_load = fmax(params->breaker.derate_load, DERATE_LOAD);
    tuned.breaker.trip_load = fmax(params->breaker.trip_load, TRIP_LOAD);
    tuned.breaker.derate_weight = 1;
    *out_tuned = tuned;
}
