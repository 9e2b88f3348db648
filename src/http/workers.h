/*
 * Workers: a few threads that do what would hold up an event loop: parse bodies, tokenize, render
 * big answers.
 */
#ifndef EK_HTTP_WORKERS_H
#define EK_HTTP_WORKERS_H

#include <stdint.h>

#include "base/attr.h"
#include "base/status.h"

struct ek_exchange;
typedef struct ek_http_workers ek_http_workers;

/** @param queue_max exchanges that may wait for a worker. @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_http_workers_create(int32_t n_threads, int32_t queue_max,
                                         ek_http_workers **out_workers);

/**
 * Hand over an exchange whose request is complete; takes a reference of its own.
 * @return EK_OK; EK_EFULL; EK_EDRAINING
 */
EK_MUST ek_status ek_http_workers_push(ek_http_workers *workers, struct ek_exchange *exchange);

/** Finish what waits, join, free. Accepts NULL. */
void ek_http_workers_destroy(ek_http_workers *workers);

#endif
