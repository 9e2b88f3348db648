/*
 * The time that a dispatch would take on a bigger device: what a paced worker adds to the work that
 * it really does, so that many workers of a known speed run on a few cores, and overload behaves as
 * it does on a real cluster. Pure; time is an argument. One caller at a time.
 */
#ifndef EK_WORKER_PACE_H
#define EK_WORKER_PACE_H

#include <stdbool.h>
#include <stdint.h>

#include "worker/params.h"

#define EK_PACE_KNEE      0.85    /* utilisation from which contention slows a device */
#define EK_PACE_LOSS      0.35    /* of its rate, then */
#define EK_PACE_MEMORY_US 1000000 /* time constant of the utilisation that is looked at */

typedef struct ek_pace {
    ek_worker_pace params;
    double utilisation; /* smoothed: 0 idle, 1 always busy */
    int64_t last_us;    /* end of the last dispatch; 0: there was none */
} ek_pace;

/** Does this pace add anything? */
bool ek_worker_pace_is_on(const ek_worker_pace *params);

/**
 * When a dispatch that began at beg_us is over:
 * beg + max(bytes / bandwidth, operations / rate) + latency, slower by contention where that is on
 * and the device was busy for more than EK_PACE_KNEE of the time lately.
 * @param bytes      of weights that it reads: its distinct experts'
 * @param operations multiplications and additions
 */
int64_t ek_worker_pace_end_us(ek_pace *pace, int64_t beg_us, double bytes, double operations);

/** It ended: what the next one's contention depends on. */
void ek_worker_pace_done(ek_pace *pace, int64_t beg_us, int64_t end_us);

#endif
