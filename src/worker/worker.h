/*
 * A worker: a process that has experts and computes for fronts.
 *
 * Threads: one for each listener, which only accepts; one for each connection, which owns it from
 * the handshake to its end. A control connection's thread greets a front, reports load each 100 ms
 * and watches that the front is alive; a data connection's thread receives a dispatch, waits for
 * its turn at the compute pool, and sends the answer. Connections have a bound, and strangers lose
 * theirs after five seconds.
 */
#ifndef EK_WORKER_WORKER_H
#define EK_WORKER_WORKER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "telemetry/metrics.h"
#include "worker/params.h"
#include "worker/resident.h"

typedef struct ek_worker ek_worker;

/** Why a connection was turned away. */
typedef enum ek_worker_refusal {
    EK_WORKER_STRANGER, /* no certificate of the authority, nothing said, or no message of ours */
    EK_WORKER_REFUSED,  /* it was understood and told why: another model, no place, draining ... */
    EK_WORKER_FULL,     /* no room for one more connection */
    EK_WORKER_REFUSALS,
} ek_worker_refusal;

/** What a worker has done since it was created, and what it is at. */
typedef struct ek_worker_figures {
    int32_t n_fronts;       /* here now */
    uint32_t n_waiting;     /* dispatches that wait for their turn */
    uint64_t fronts_joined; /* each joining counts */
    uint64_t layers;        /* dispatches computed: a layer of one step, or of half a step */
    uint64_t rows;          /* of those: tokens times their experts that are here */
    uint64_t busy_us;       /* computing them */
    uint64_t refused[EK_WORKER_REFUSALS]; /* connections */
    bool draining;
} ek_worker_figures;

/**
 * Open the listeners and serve.
 * @param params   copied; its strings are borrowed until destroy
 * @param resident loaded; borrowed until destroy
 * @return EK_OK; EK_EINVAL, EK_EINUSE, EK_EACCESS, EK_EIO listening; EK_ECONFIG certificates;
 *         EK_ENOMEM; EK_EINTERNAL
 */
EK_MUST ek_status ek_worker_create(const ek_worker_params *params, ek_resident *resident,
                                   ek_worker **out_worker, ek_err *err);

/** "127.0.0.1:7070": the host as configured, the port as it is. */
const char *ek_worker_address(const ek_worker *worker);

/** Where bare data links are taken; 0: nowhere. */
uint16_t ek_worker_plain_port(const ek_worker *worker);

/** Fronts that are here now. */
int32_t ek_worker_fronts(const ek_worker *worker);

/** Has no dispatch been computed for longer than limit_us? Any thread. */
bool ek_worker_healthy(const ek_worker *worker, int64_t limit_us);

/** Any thread. Counts are each of their moment, not all of one. */
void ek_worker_figures_read(const ek_worker *worker, ek_worker_figures *out_figures);

/**
 * Ask fronts to send no more, wait until they do not or timeout_us has passed, say good-bye.
 * @return EK_OK; EK_ETIMEOUT somebody still sent
 */
EK_MUST ek_status ek_worker_drain(ek_worker *worker, int64_t timeout_us);

/** Ends all connections. Accepts NULL. */
void ek_worker_destroy(ek_worker *worker);

#endif
