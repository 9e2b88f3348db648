/*
 * A worker: a process that has experts and computes for fronts.
 *
 * Threads: one for each listener, which only accepts; one for each connection, which owns it from
 * the handshake to its end. A control connection's thread greets a front, reports load each 100 ms
 * and watches that the front is alive; a data connection's thread receives a dispatch, waits for
 * its turn at the compute pool, and sends the answer. Connections have a bound, and strangers lose
 * theirs after five seconds.
 */
#ifndef EK_CLUSTER_WORKER_H
#define EK_CLUSTER_WORKER_H

#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "cluster/params.h"
#include "cluster/resident.h"
#include "telemetry/metrics.h"

typedef struct ek_worker ek_worker;

/**
 * Open the listeners and serve.
 * @param params   copied; its strings are borrowed until destroy
 * @param resident loaded; borrowed until destroy
 * @return EK_OK; EK_EINVAL, EK_EINUSE, EK_EACCESS, EK_EIO listening; EK_ECONFIG certificates;
 *         EK_ENOMEM; EK_EINTERNAL
 */
EK_MUST ek_status ek_cluster_worker_create(const ek_worker_params *params, ek_resident *resident,
                                           ek_worker **out_worker, ek_err *err);

/** "127.0.0.1:7070": the host as configured, the port as it is. */
const char *ek_cluster_worker_address(const ek_worker *worker);

/** Where bare data links are taken; 0: nowhere. */
uint16_t ek_cluster_worker_plain_port(const ek_worker *worker);

/** Fronts that are here now. */
int32_t ek_cluster_worker_fronts(const ek_worker *worker);

/**
 * Ask fronts to send no more, wait until they do not or timeout_us has passed, say good-bye.
 * @return EK_OK; EK_ETIMEOUT somebody still sent
 */
EK_MUST ek_status ek_cluster_worker_drain(ek_worker *worker, int64_t timeout_us);

/** Ends all connections. Accepts NULL. */
void ek_cluster_worker_destroy(ek_worker *worker);

#endif
