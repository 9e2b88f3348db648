#include "worker/pace.h"

#include <math.h>

#define US_PER_S 1e6

bool ek_worker_pace_is_on(const ek_worker_pace *params)
{
    return params->bytes_per_s > 0 || params->gops_per_s > 0 || params->latency_us > 0;
}

int64_t ek_worker_pace_end_us(ek_pace *pace, int64_t beg_us, double bytes, double operations)
{
    const ek_worker_pace *p = &pace->params;
    double read_s = p->bytes_per_s > 0 ? bytes / (double)p->bytes_per_s : 0;
    double compute_s = p->gops_per_s > 0 ? operations / (p->gops_per_s * 1e9) : 0;
    double busy_s = read_s > compute_s ? read_s : compute_s;
    if (p->contention && pace->utilisation > EK_PACE_KNEE) busy_s /= 1 - EK_PACE_LOSS;
    return beg_us + (int64_t)(busy_s * US_PER_S) + p->latency_us;
}

void ek_worker_pace_done(ek_pace *pace, int64_t beg_us, int64_t end_us)
{
    if (pace->last_us == 0) pace->last_us = beg_us;
    /* Idle from the last end to this beginning, then busy: both fade what was before. */
    double idle = exp(-(double)(beg_us - pace->last_us) / EK_PACE_MEMORY_US);
    double busy = exp(-(double)(end_us - beg_us) / EK_PACE_MEMORY_US);
    pace->utilisation = 1 - (1 - pace->utilisation * idle) * busy;
    pace->last_us = end_us;
}
