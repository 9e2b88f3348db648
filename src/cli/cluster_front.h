/*
 * serve's part of a cluster: join its workers before the engine is made, and tell of them.
 */
#ifndef EK_CLI_CLUSTER_FRONT_H
#define EK_CLI_CLUSTER_FRONT_H

#include <stdbool.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "cluster/front.h"
#include "config/config.h"
#include "expert/model_file.h"
#include "gateway/cluster.h"
#include "telemetry/metrics.h"

typedef struct ek_cli_front {
    ek_model_file *file;        /* owned; the front's own look at the model */
    ek_front *front;            /* owned; NULL: there are no workers */
    ek_gateway_cluster gateway; /* for the gateway, while there are */
} ek_cli_front;

/**
 * Join the workers that the configuration names, and set the engine's params to them: a device for
 * each, placed as they say. Without workers nothing happens.
 * @param hurry polled while it waits; true ends the wait
 * @param perm  holds the placement as long as the params are used
 * @return EK_OK; EK_ECANCELED hurry; EK_ETIMEOUT workers are missing, err says which and why; as
 *         ek_cluster_front_create
 */
EK_MUST ek_status ek_cli_front_open(const ek_config *config, ek_metrics *metrics,
                                    bool (*hurry)(void *ctx), void *ctx, ek_arena *perm,
                                    ek_cli_front *out_front, ek_engine_params *params, ek_err *err);

/** After the engine. Accepts a zeroed one. */
void ek_cli_front_close(ek_cli_front *front);

#endif
