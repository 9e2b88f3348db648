/*
 * The front: OpenAI-compatible API, health, metrics, one page for a browser.
 *
 * Threads: those of its HTTP servers (http/server.h) only move bytes and watch the clock; a few
 * workers parse bodies, render chats and tokenize; one pump thread takes news from the engine and
 * hands them to connections. No event loop waits for the engine or parses a body. Health and
 * metrics have a server of their own (and are also answered on the main port).
 *
 * docs/API.md describes every route; statuses and error objects follow the OpenAI conventions.
 */
#ifndef EK_GATEWAY_GATEWAY_H
#define EK_GATEWAY_GATEWAY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"
#include "engine/engine.h"
#include "gateway/cluster.h"
#include "gateway/params.h"
#include "telemetry/metrics.h"

#define EK_GATEWAY_HOLD_MAX 512

typedef struct ek_gateway ek_gateway;

/**
 * Bind and start to answer; without an engine yet, model routes answer 503 model_loading. Raises
 * the process's limit of open descriptors to what params->connections_max needs, and logs a warning
 * when that is not allowed.
 * @param params  copied; the strings inside are borrowed until destroy
 * @param metrics borrowed until destroy
 * @return EK_OK; EK_EINUSE; EK_EACCESS; EK_EINVAL (bad address); EK_ENOMEM; the text names the
 *          address
 */
EK_MUST ek_status ek_gateway_create(const ek_gateway_params *params, ek_metrics *metrics,
                                    ek_gateway **out_gateway, ek_err *err);

/**
 * Before attach: why the server is not ready although the model is there. Readiness says it, until
 * attach. Any thread.
 * @param why copied, cut at EK_GATEWAY_HOLD_MAX - 1 bytes
 */
void ek_gateway_hold(ek_gateway *gateway, const char *why);

/** The model is there: readiness turns 200. Borrowed until destroy; call once. */
void ek_gateway_attach(ek_gateway *gateway, ek_engine *engine);

/**
 * Experts are in other processes: /v1/cluster tells of them. Borrowed until destroy; call at most
 * once.
 */
void ek_gateway_attach_cluster(ek_gateway *gateway, const ek_gateway_cluster *cluster);

/**
 * Who may administer from now on: whoever shows one of these keys (admin.h). Until the first call:
 * clients of this machine. Any thread.
 * @param text one key in each line
 * @return EK_OK; EK_EINVAL, the text says in which line; EK_ENOMEM. The old ones stay then
 */
EK_MUST ek_status ek_gateway_admin_keys(ek_gateway *gateway, ek_str text, ek_err *err);

/** The address in use ("127.0.0.1:43117" when port 0 was asked for). */
const char *ek_gateway_address(const ek_gateway *gateway);
const char *ek_gateway_health_address(const ek_gateway *gateway); /* "" when there is none */

/**
 * Drain: readiness 503; after settle refuse new work (503 draining) and close the listener; wait
 * for what runs until the timeout; then cancel the rest with an error frame. Returns early when
 * `hurry` becomes true.
 * @param hurry polled; may be NULL
 * @return EK_OK everything finished by itself; EK_ETIMEOUT some were cut off
 */
EK_MUST ek_status ek_gateway_drain(ek_gateway *gateway, bool (*hurry)(void *ctx), void *ctx);

/** After drain (or before anything was served). Accepts NULL. */
void ek_gateway_destroy(ek_gateway *gateway);

#endif
