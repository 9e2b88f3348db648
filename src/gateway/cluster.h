/*
 * What the gateway asks of the cluster, where experts are in other processes. Whoever wires the
 * rooms fills it in: the gateway knows nothing of workers but what it is told here.
 */
#ifndef EK_GATEWAY_CLUSTER_H
#define EK_GATEWAY_CLUSTER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "http/buf.h"

/** Which device of a placement a worker is. */
typedef struct ek_gateway_device {
    const char *worker;
    int32_t device;
} ek_gateway_device;

/** A placement as /v1/cluster/place gets it; the numbers are not checked but for their range. */
typedef struct ek_gateway_placement {
    int32_t n_layers;
    int32_t n_slots;            /* 1 at least */
    const int32_t *slot_expert; /* (n_layers, n_slots) -1: empty */
    int32_t n_named;
    const ek_gateway_device *named; /* (n_named) */
} ek_gateway_placement;

typedef struct ek_gateway_cluster {
    void *ctx;
    /** Append one JSON object that tells of all workers. Any thread. */
    void (*report)(void *ctx, ek_buf *json);
    /**
     * Send a worker no more than what nobody else can do, or as much as others again. Any thread.
     * @param worker NUL-terminated address
     * @return EK_OK; EK_ENOTFOUND no such worker, err says which there are
     */
    ek_status (*drain)(void *ctx, const char *worker, bool drain, ek_err *err);
    /**
     * Have a worker acquire experts, or release what it acquired. Any thread; returns at once.
     * @param experts NUL-terminated "LAYERS:EXPERTS ..."
     * @return EK_OK; EK_ENOTFOUND; others: it cannot be, err says why
     */
    ek_status (*move)(void *ctx, const char *worker, const char *experts, bool release,
                      ek_err *err);
    /**
     * Have all workers come to have what their devices of a placement have. Any thread; returns at
     * once.
     * @param placement borrowed for the call
     * @return EK_OK; EK_ENOTFOUND no such worker; others: it cannot be, err says why
     */
    ek_status (*place)(void *ctx, const ek_gateway_placement *placement, ek_err *err);
} ek_gateway_cluster;

#endif
