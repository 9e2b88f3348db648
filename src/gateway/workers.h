/*
 * Workers: a few threads that do what would hold up an event loop: parse bodies, tokenize, render
 * big answers.
 */
#ifndef EK_GATEWAY_WORKERS_H
#define EK_GATEWAY_WORKERS_H

#include <stdint.h>

#include "base/attr.h"
#include "base/status.h"
#include "gateway/call.h"

typedef struct ek_workers ek_workers;

/** @param queue_max calls that may wait for a worker. @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_gateway_workers_create(int32_t n_threads, int32_t queue_max,
                                            ek_workers **out_workers);

/**
 * Hand over a call that has a route; takes a reference of its own. @return EK_OK; EK_EFULL;
 * EK_EDRAINING
 */
EK_MUST ek_status ek_gateway_workers_push(ek_workers *workers, ek_call *call);

/** Finish what waits, join, free. Accepts NULL. */
void ek_gateway_workers_destroy(ek_workers *workers);

#endif
