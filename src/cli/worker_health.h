/*
 * What a worker says of itself over HTTP, to whoever keeps it running: alive, ready, figures.
 *
 *     GET /health, /livez                    200; 503 unhealthy when a dispatch never ends
 *     GET /ready, /readyz, /health/ready     200 once fronts are served; 503 loading or draining
 *     GET /metrics                           Prometheus text
 *     GET /version
 *
 * It has a server of its own (http/server.h), which answers from atomics: it goes on while experts
 * are loaded, computed, or drained. It asks nobody who they are, and tells nothing but counts.
 */
#ifndef EK_CLI_WORKER_HEALTH_H
#define EK_CLI_WORKER_HEALTH_H

#include "base/attr.h"
#include "base/err.h"
#include "worker/resident.h"
#include "worker/worker.h"

typedef struct ek_cli_health ek_cli_health;

/**
 * Listen and answer; there is no worker yet, so it is not ready.
 * @param listen "127.0.0.1:7079"; borrowed for the call
 * @return EK_OK; EK_EINUSE; EK_EACCESS; EK_EINVAL; EK_EIO; EK_ENOMEM
 */
EK_MUST ek_status ek_cli_health_open(const char *listen, ek_cli_health **out_health, ek_err *err);

/** What there is to look at once a worker serves. */
typedef struct ek_cli_health_post {
    const ek_worker *worker;     /* borrowed until close */
    const ek_resident *resident; /* likewise */
    int64_t watchdog_us;         /* a dispatch that takes longer: the worker is stuck */
    int64_t certificate_end_s;   /* since 1970 */
} ek_cli_health_post;

/** The worker serves. `post` is copied; call once. */
void ek_cli_health_attach(ek_cli_health *health, const ek_cli_health_post *post);

/** The address in use ("127.0.0.1:43117" when port 0 was asked for). */
const char *ek_cli_health_address(const ek_cli_health *health);

/** Accepts NULL. */
void ek_cli_health_close(ek_cli_health *health);

#endif
