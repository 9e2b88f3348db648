/*
 * A small service on a real HTTP server, on a free port of 127.0.0.1, so that the room is tried
 * without an engine. It knows:
 *
 *   GET  /livez   {"status":"ok"}, on the loop
 *   POST /echo    the body as it came, on a worker
 *   GET  /flood   SITE_FLOOD_BYTES as a stream, no faster than they are read
 *   GET  /hang    nothing, until the client leaves
 */
#ifndef EK_TESTS_HTTP_SITE_H
#define EK_TESTS_HTTP_SITE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "http/server.h"
#include "http/service.h"
#include "sys/mem.h"
#include "telemetry/metrics.h"

#define SITE_FLOOD_BYTES (4 << 20)

typedef struct site {
    ek_http_service service; /* change its limits before site_open */
    ek_sys_region region;
    ek_arena arena; /* over region; the registry grows in it */
    ek_metrics *metrics;
    ek_http_server *server;
    const char *address;
    _Atomic int64_t n_written; /* bytes put into streams */
    _Atomic int32_t n_abandoned;
} site;

/** On the heap, with the limits of a usual configuration. */
site *site_make(void);
/** Start the server. */
void site_open(site *s);
/** Both. */
site *site_make_open(void);
/** End the server and the rest. */
void site_close(site *s);
/** Wait until nothing is open any more, check that every gauge says exactly 0, close. */
void site_end(site *s);

double site_metric(const site *s, const char *series);
bool site_awaits(const site *s, const char *series, double value, int64_t timeout_ms);

#endif
