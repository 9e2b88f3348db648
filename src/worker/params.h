/*
 * What a configuration may say about a worker. Defaults and ranges stand in config/schema.
 */
#ifndef EK_WORKER_PARAMS_H
#define EK_WORKER_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include "link/params.h"

#define EK_WORKER_FRONTS_MAX 16 /* served at once */

/** A device to stand in for (worker/pace.h); zeros: what this machine does is what it takes. */
typedef struct ek_worker_pace {
    int64_t bytes_per_s; /* at which it reads weights; 0: at once */
    double gops_per_s;   /* 1e9 operations a second; 0: at once */
    int64_t latency_us;  /* of each dispatch */
    bool contention;     /* it slows when it is busy nearly always */
} ek_worker_pace;

typedef struct ek_worker_params {
    const char *listen;
    const char *health; /* own address for health and metrics, HTTP; NULL: none */
    const char *certs;
    const char *experts;          /* link/expert_set.h; NULL: as the placement says, or all */
    const char *placement;        /* file of `evenkeel place`; NULL: none */
    const char *device;           /* "1/4": second of four devices of the placement */
    const char *manifest;         /* that the experts are checked by; NULL: unchecked */
    ek_link_fabric_choice fabric; /* auto: bare links where `listen` is of this machine only */
    int32_t fronts_max;           /* 1..EK_WORKER_FRONTS_MAX */
    int32_t tokens_max;           /* of one dispatch; a front that wants more is refused */
    int64_t drain_timeout_us;
    int64_t experts_bytes_max;   /* for experts that it acquires while it serves; 0: none */
    int64_t acquire_bytes_per_s; /* at which it reads them; 0: as fast as can be */
    const char *sources; /* "DIR,https://...": where their bytes may come from; NULL: none */
    ek_worker_pace pace;
} ek_worker_params;

#endif
