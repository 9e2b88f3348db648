/*
 * A report: what keeps experts even, and how it fares, at one moment. Plain values, to be copied
 * from who keeps them to who shows them.
 */
#ifndef EK_KEEL_REPORT_H
#define EK_KEEL_REPORT_H

#include <stdbool.h>
#include <stdint.h>

#include "keel/params.h"
#include "place/controller.h"
#include "route/route.h"
#include "telemetry/detect.h"

#define EK_KEEL_ALERTS_MAX     32 /* alerts that are told at once */
#define EK_KEEL_BREAKER_STATES (EK_BREAKER_HALF_OPEN + 1)

typedef struct ek_keel_report {
    int64_t told_us; /* monotonic; 0: not yet */
    int32_t n_devices;
    int32_t n_slots;                           /* of each layer, for experts and their replicas */
    int32_t slot_beg[EK_KEEL_DEVICES_MAX + 1]; /* first slot of each device */
    ek_route_policy policy;
    uint32_t params_version; /* of the routing params: one higher with each switch */
    ek_route_stats route;
    double gain;                              /* of `adaptive` */
    int64_t breakers[EK_KEEL_BREAKER_STATES]; /* experts of all layers in each state */
    bool rebalances;                          /* the next two say something */
    ek_place_controller_stats rebalance;
    ek_place_outlook outlook; /* what came of looking at a layer last */
    int32_t n_alerts;         /* raised; of those, the first ones are here */
    ek_alert alert[EK_KEEL_ALERTS_MAX];
} ek_keel_report;

#endif
