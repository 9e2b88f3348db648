#include "route/breaker.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"

#define LONG_AGO     (INT64_MIN / 4)
#define PRESSURE_MAX 1e6

void ek_route_breaker_init(ek_breaker *b)
{
    memset(b, 0, sizeof *b);
    b->state = EK_BREAKER_CLOSED;
    b->weight = 1.0f;
    b->n_quiet = EK_BREAKER_WINDOW_MAX;
    b->since_us = b->stepped_us = b->closed_us = LONG_AGO;
}

/** Load, failures and latency as one number on the scale of load. */
static float pressure_of(const ek_breaker_params *p, const ek_breaker_sample *sample)
{
    double worst = sample->load > 0 ? sample->load : 0; /* NaN fails the comparison */
    int64_t n = (int64_t)sample->n_ok + sample->n_failed;
    if (sample->n_failed > 0 && p->error_share > 0)
        worst = fmax(worst, p->trip_load * sample->n_failed / (double)n / p->error_share);
    if (sample->latency_us > 0 && p->latency_max_us > 0)
        worst = fmax(worst, p->trip_load * (double)sample->latency_us / (double)p->latency_max_us);
    return (float)fmin(worst, PRESSURE_MAX);
}

static void push(ek_breaker *b, const ek_breaker_params *p, float pressure)
{
    b->newest = (b->newest + 1) % EK_BREAKER_WINDOW_MAX;
    b->recent[b->newest] = pressure;
    if (pressure >= (float)p->recover_load)
        b->n_quiet = 0;
    else if (b->n_quiet < EK_BREAKER_WINDOW_MAX)
        b->n_quiet++;
}

/**
 * What the window agrees on: `need` of its samples are at or above high, and `need` of them are at
 * or below low. Pressures are floats, and so are thresholds when they are compared with them: a
 * load of 0.7 has reached a threshold of 0.7.
 */
static void agree(const ek_breaker *b, const ek_breaker_params *p, float *out_high, float *out_low)
{
    float sorted[EK_BREAKER_WINDOW_MAX]; /* descending */
    for (int32_t n = 0; n < p->window; n++) {
        float x = b->recent[(b->newest + EK_BREAKER_WINDOW_MAX - n) % EK_BREAKER_WINDOW_MAX];
        int32_t i = n;
        for (; i > 0 && sorted[i - 1] < x; i--)
            sorted[i] = sorted[i - 1];
        sorted[i] = x;
    }
    *out_high = sorted[p->window_need - 1];
    *out_low = sorted[p->window - p->window_need];
}

static ek_breaker_state next_state(const ek_breaker *b, const ek_breaker_params *p, float high,
                                   float low, int64_t now_us)
{
    int64_t held_us = now_us - b->since_us;
    if (held_us < p->dwell_us) return b->state;
    switch (b->state) {
    case EK_BREAKER_CLOSED:
        return high >= (float)p->derate_load ? EK_BREAKER_DERATED : EK_BREAKER_CLOSED;
    case EK_BREAKER_DERATED:
        if (high >= (float)p->trip_load) return EK_BREAKER_OPEN;
        return low < (float)p->recover_load ? EK_BREAKER_CLOSED : EK_BREAKER_DERATED;
    case EK_BREAKER_OPEN:
        return held_us >= b->open_us && low < (float)p->recover_load ? EK_BREAKER_HALF_OPEN
                                                                     : EK_BREAKER_OPEN;
    case EK_BREAKER_HALF_OPEN:
        if (b->probe_failed || high >= (float)p->trip_load) return EK_BREAKER_OPEN;
        return held_us >= p->recovery_us ? EK_BREAKER_CLOSED : EK_BREAKER_HALF_OPEN;
    }
    return b->state;
}

/**
 * Longer than the last time, if that is not long past: the time it then stays open has to find the
 * load gone at last.
 */
static int64_t next_open_us(const ek_breaker *b, const ek_breaker_params *p, int64_t now_us)
{
    bool again = b->state == EK_BREAKER_HALF_OPEN || now_us - b->closed_us < b->open_us;
    if (!again || b->n_opened == 0) return p->open_us;
    double grown = (double)b->open_us * p->open_growth;
    if (grown >= (double)p->open_max_us) return p->open_max_us;
    return grown > (double)p->open_us ? (int64_t)grown : p->open_us;
}

static void enter(ek_breaker *b, const ek_breaker_params *p, ek_breaker_state state, int64_t now_us)
{
    if (state == EK_BREAKER_OPEN) {
        b->open_us = next_open_us(b, p, now_us);
        if (b->n_opened < INT32_MAX) b->n_opened++;
    }
    if (state == EK_BREAKER_CLOSED && b->state == EK_BREAKER_HALF_OPEN) b->closed_us = now_us;
    b->probe_failed = false;
    b->state = state;
    b->since_us = now_us;
}

double ek_route_breaker_derated_weight(const ek_breaker_params *p, double load)
{
    double way = (load - p->derate_load) / (p->trip_load - p->derate_load);
    way = fmin(fmax(way, 0), 1);
    return p->derate_weight + way * (p->trip_weight - p->derate_weight);
}

/** The weight that the state and the window ask for, were it not for the slow way up. */
static double weight_wanted(const ek_breaker *b, const ek_breaker_params *p, float high)
{
    if (b->state == EK_BREAKER_OPEN) return 0;
    if (b->state == EK_BREAKER_DERATED) return ek_route_breaker_derated_weight(p, (double)high);
    return 1;
}

ek_breaker_state ek_route_breaker_step(ek_breaker *b, const ek_breaker_params *p,
                                       const ek_breaker_sample *sample, int64_t now_us)
{
    int64_t last_us = b->stepped_us;
    if (now_us < last_us) now_us = last_us;
    b->stepped_us = now_us;
    push(b, p, pressure_of(p, sample));
    /* The usual case by far: nothing is loaded, and nothing was. */
    if (b->state == EK_BREAKER_CLOSED && b->weight >= 1.0f && b->n_quiet >= p->window)
        return b->state;

    float high, low;
    agree(b, p, &high, &low);
    ek_breaker_state state = next_state(b, p, high, low, now_us);
    bool entered = state != b->state;
    if (entered) enter(b, p, state, now_us);

    double wanted = weight_wanted(b, p, high);
    double weight = (double)b->weight;
    if (entered && state == EK_BREAKER_HALF_OPEN) {
        weight = p->recovery_us > 0 ? p->trip_weight : 1;
    } else if (wanted > weight) {
        double rise = 1;
        if (p->recovery_us > 0)
            rise = (1 - p->trip_weight) * (double)(now_us - last_us) / (double)p->recovery_us;
        weight = fmin(wanted, weight + rise);
    } else {
        weight = wanted;
    }
    b->weight = (float)weight;
    return b->state;
}

void ek_route_breaker_trip(ek_breaker *b, const ek_breaker_params *p, int64_t now_us)
{
    if (now_us < b->stepped_us) now_us = b->stepped_us;
    if (b->state == EK_BREAKER_OPEN)
        b->since_us = now_us;
    else
        enter(b, p, EK_BREAKER_OPEN, now_us);
    b->weight = 0;
}

int32_t ek_route_breaker_admit(ek_breaker *b, const ek_breaker_params *p, int32_t n)
{
    ek_assert(n >= 0);
    if (b->state == EK_BREAKER_OPEN || b->probe_failed) return 0;
    if (b->state != EK_BREAKER_HALF_OPEN) return n;
    int32_t left = p->probes > b->n_probes ? p->probes - b->n_probes : 0;
    int32_t granted = n < left ? n : left;
    b->n_probes += granted;
    return granted;
}

void ek_route_breaker_settle(ek_breaker *b, int32_t n_ok, int32_t n_failed)
{
    ek_assert(n_ok >= 0 && n_failed >= 0);
    int64_t left = (int64_t)b->n_probes - n_ok - n_failed;
    b->n_probes = left > 0 ? (int32_t)left : 0;
    if (b->state == EK_BREAKER_HALF_OPEN && n_failed > 0) b->probe_failed = true;
}

const char *ek_route_breaker_state_name(ek_breaker_state state)
{
    static const char *const names[] = {"closed", "derated", "open", "half-open"};
    return names[state];
}
