/*
 * What the gateway asks of the cluster, where experts are in other processes. Whoever wires the
 * rooms fills it in: the gateway knows nothing of workers but what it is told here.
 */
#ifndef EK_GATEWAY_CLUSTER_H
#define EK_GATEWAY_CLUSTER_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/err.h"
#include "http/buf.h"

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
} ek_gateway_cluster;

#endif
