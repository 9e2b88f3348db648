/*
 * The MHD side of a server: its callbacks, and the beginning and end of everything. See
 * http_server.h.
 */
#include "gateway/http_server.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "gateway/call.h"
#include "gateway/http_internal.h"
#include "gateway/http_reply.h"
#include "gateway/state.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/mem.h"

/* MHD keeps a connection's head, the read-ahead and the reply's head in one piece of memory. */
#define MHD_POOL_EXTRA 16384
/* Slots are ours to run out of, not MHD's. */
#define MHD_CONNECTIONS_EXTRA 64
#define CLOSE_US              10000000 /* closing takes milliseconds; more is a fault of ours */

static ek_conn *conn_of(struct MHD_Connection *mhd)
{
    const union MHD_ConnectionInfo *info =
        MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
    return info ? info->socket_context : NULL;
}

/* ---- requests ---- */

/*
 * Two parsers that read one head must agree: what MHD says has to begin what the door has checked.
 * And without a freshly checked head there is no request at all, whatever bytes MHD found.
 */
static bool take_head(ek_http_server *server, ek_conn *conn, const char *url, const char *method)
{
    ek_sys_mutex_lock(&server->lock);
    bool fresh = conn->head_fresh && conn->state == EK_CONN_SERVED;
    conn->head_fresh = false;
    ek_sys_mutex_unlock(&server->lock);
    if (!fresh || !ek_str_eqz(conn->head.method, method)) return false;
    ek_str seen = ek_str_from(url);
    ek_str path = conn->head.path;
    /* A target in absolute form reaches us with its host in front. */
    return seen.len >= path.len &&
           memcmp(seen.data + seen.len - path.len, path.data, path.len) == 0;
}

static enum MHD_Result begin_request(ek_http_server *server, ek_conn *conn,
                                     struct MHD_Connection *mhd, void **request)
{
    ek_call *call = ek_gateway_call_begin(server->gateway, conn, server->health_only, mhd);
    if (!call) return MHD_NO;
    *request = call;
    ek_sys_mutex_lock(&server->lock);
    conn->call = call;
    ek_sys_mutex_unlock(&server->lock);
    /* A client that asks first is told at once and never sends its body. */
    if (call->route || !conn->head.expects_continue) return MHD_YES;
    ek_sys_mutex_lock(&server->lock);
    conn->answering = true;
    conn->closing = true;
    conn->deadline_us = 0;
    ek_sys_mutex_unlock(&server->lock);
    if (ek_gateway_call_advance(call, false) != EK_CALL_STEP_REPLY) return MHD_NO;
    return ek_gateway_http_reply(mhd, call, true);
}

/*
 * Too much body without a length: the door answers, since MHD takes no reply in the middle of an
 * upload. What still comes is swallowed for a moment, so that a reset does not overtake the answer.
 */
static void refuse_body(ek_http_server *server, ek_conn *conn)
{
    ek_fault fault;
    ek_gateway_fault_set(&fault, EK_FAULT_REQUEST_TOO_LARGE, NULL,
                         "the body exceeds the %zu bytes that are taken",
                         server->params->body_bytes_max);
    int64_t now_us = ek_sys_now_us();
    ek_sys_mutex_lock(&server->lock);
    ek_gateway_door_answer_locked(server, conn, &fault);
    shutdown(conn->fd, SHUT_WR);
    conn->closing = true;
    conn->deadline_us = now_us + EK_DOOR_LINGER_US;
    ek_sys_mutex_unlock(&server->lock);
}

static bool is_answered(ek_http_server *server, ek_conn *conn)
{
    ek_sys_mutex_lock(&server->lock);
    bool answered = conn->answered;
    ek_sys_mutex_unlock(&server->lock);
    return answered;
}

/*
 * Whether this reply is the connection's last. Bytes that MHD took beyond the request would escape
 * the door.
 */
static bool is_last_reply(ek_http_server *server, ek_conn *conn, bool streams)
{
    bool exact = conn->closing || ek_gateway_door_read_exactly(conn->fd, conn->bytes_due);
    ek_sys_mutex_lock(&server->lock);
    if (!exact || server->refusing || server->stopping) conn->closing = true;
    /* HTTP/1.0 has no chunks: the end of a stream is the end of its connection. */
    if (streams && conn->head.version_minor == 0) conn->closing = true;
    bool last = conn->closing;
    ek_sys_mutex_unlock(&server->lock);
    return last;
}

static enum MHD_Result advance_request(ek_http_server *server, ek_conn *conn,
                                       struct MHD_Connection *mhd, ek_call *call)
{
    ek_sys_mutex_lock(&server->lock);
    conn->answering = true;
    conn->deadline_us = 0;
    bool hung_up = conn->hung_up;
    bool over = server->stopping || conn->answered;
    ek_sys_mutex_unlock(&server->lock);
    if (over) return MHD_NO;
    switch (ek_gateway_call_advance(call, hung_up)) {
    case EK_CALL_STEP_WAIT: return MHD_YES;
    case EK_CALL_STEP_REPLY:
        return ek_gateway_http_reply(mhd, call, is_last_reply(server, conn, false));
    case EK_CALL_STEP_STREAM:
        return ek_gateway_http_stream(mhd, call, is_last_reply(server, conn, true));
    case EK_CALL_STEP_CLOSE: break;
    }
    return MHD_NO;
}

static enum MHD_Result on_request(void *cls, struct MHD_Connection *mhd, const char *url,
                                  const char *method, const char *version EK_UNUSED,
                                  const char *upload, size_t *n_upload, void **request)
{
    ek_http_server *server = cls;
    ek_conn *conn = conn_of(mhd);
    if (!conn) return MHD_NO;
    ek_call *call = *request;
    if (!call) {
        if (!take_head(server, conn, url, method)) return MHD_NO;
        return begin_request(server, conn, mhd, request);
    }
    if (*n_upload == 0) return advance_request(server, conn, mhd, call);
    ek_str bytes = {upload, *n_upload};
    *n_upload = 0;
    if (!ek_gateway_call_body(call, bytes) && !is_answered(server, conn)) refuse_body(server, conn);
    return MHD_YES;
}

/*
 * A reply is out, or the connection is lost. A connection that goes on is put to sleep for the door
 * to watch.
 */
static void on_completed(void *cls, struct MHD_Connection *mhd, void **request,
                         enum MHD_RequestTerminationCode code)
{
    ek_http_server *server = cls;
    ek_conn *conn = conn_of(mhd);
    ek_call *call = *request;
    if (!call || !conn) return;
    *request = NULL;
    bool complete = code == MHD_REQUEST_TERMINATED_COMPLETED_OK;
    ek_sys_mutex_lock(&server->lock);
    conn->call = NULL;
    bool answered = conn->answered;
    ek_sys_mutex_unlock(&server->lock);
    ek_gateway_call_end(call, complete, answered);
    int64_t now_us = ek_sys_now_us();
    ek_sys_mutex_lock(&server->lock);
    if (complete && !conn->closing && !server->refusing && !server->stopping) {
        conn->state = EK_CONN_IDLE;
        conn->head_known = false;
        conn->answering = false;
        conn->scanned = 0;
        conn->deadline_us = now_us + server->params->idle_timeout_us;
        MHD_suspend_connection(mhd);
        ek_gateway_door_look_locked(server, conn, now_us);
    } else {
        conn->state = EK_CONN_CLOSING;
        conn->deadline_us = 0;
    }
    ek_sys_mutex_unlock(&server->lock);
}

/* ---- connections ---- */

static void on_connection(void *cls, struct MHD_Connection *mhd, void **context,
                          enum MHD_ConnectionNotificationCode code)
{
    ek_http_server *server = cls;
    ek_sys_mutex_lock(&server->lock);
    if (code == MHD_CONNECTION_NOTIFY_STARTED) {
        const union MHD_ConnectionInfo *info =
            MHD_get_connection_info(mhd, MHD_CONNECTION_INFO_CONNECTION_FD);
        ek_conn *conn = info ? ek_gateway_conns_by_fd(&server->conns, info->connect_fd) : NULL;
        if (conn) conn->mhd = mhd;
        *context = conn;
    } else if (*context) {
        ek_gateway_door_release_locked(server, *context);
        *context = NULL;
    }
    ek_sys_mutex_unlock(&server->lock);
}

static void on_log(void *cls EK_UNUSED, const char *fmt, va_list args)
{
    char text[256];
    vsnprintf(text, sizeof text, fmt, args);
    text[strcspn(text, "\n")] = '\0';
    ek_log(EK_LOG_DEBUG, "gateway", "microhttpd", "text=\"%s\"", text);
}

/* ---- life ---- */

static struct MHD_Daemon *start_daemon(ek_http_server *server)
{
    const ek_gateway_params *params = server->params;
    unsigned idle_s = (unsigned)(params->idle_timeout_us / 1000000) + 1;
    return MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME |
            MHD_USE_ITC | MHD_USE_ERROR_LOG,
        0, NULL, NULL, on_request, server,        /* */
        MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, /* first, to see messages about the others */
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, server,              /* */
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, server,                /* */
        MHD_OPTION_UNESCAPE_CALLBACK, ek_gateway_http_keep_escaped, NULL, /* */
        MHD_OPTION_STRICT_FOR_CLIENT, 1,                                  /* */
        MHD_OPTION_CONNECTION_TIMEOUT, idle_s, /* bytes that do not move, either way */
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)(params->connections_max + MHD_CONNECTIONS_EXTRA),
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, 2 * params->header_bytes_max + MHD_POOL_EXTRA,
        MHD_OPTION_END);
}

ek_status ek_gateway_http_create(const ek_http_server_params *params, ek_http_server **out_server,
                                 ek_err *err)
{
    ek_http_server *server = ek_sys_calloc(1, sizeof *server);
    if (!server) return ek_err_set(err, EK_ENOMEM, "no memory for an HTTP server");
    server->gateway = params->gateway;
    server->params = &params->gateway->params;
    server->counters = &params->gateway->counters;
    server->health_only = params->health_only;
    server->listener = -1;
    server->epoll_fd = -1;
    server->peek_bytes = server->params->header_bytes_max + 1;
    server->peek = ek_sys_calloc(server->peek_bytes, 1);
    ek_sys_mutex_init(&server->lock);
    ek_sys_cond_init(&server->empty);
    ek_status status = server->peek ? EK_OK : EK_ENOMEM;
    if (status == EK_OK)
        status = ek_gateway_conns_init(&server->conns, server->params->connections_max);
    if (status == EK_OK)
        status = ek_gateway_listen(params->listen, &server->listener, server->address, err);
    if (status != EK_OK) goto fail;
    server->daemon = start_daemon(server);
    status = server->daemon ? ek_gateway_door_start(server) : EK_ENOMEM;
    if (status != EK_OK) {
        ek_err_set(err, status, "cannot start the HTTP server on %s", server->address);
        goto fail;
    }
    *out_server = server;
    return EK_OK;
fail:
    ek_gateway_http_destroy(server);
    return status;
}

const char *ek_gateway_http_address(const ek_http_server *server)
{
    return server->address;
}

static void close_listener_locked(ek_http_server *server)
{
    if (server->listener >= 0) close(server->listener);
    server->listener = -1;
}

void ek_gateway_http_refuse(ek_http_server *server)
{
    ek_sys_mutex_lock(&server->lock);
    server->refusing = true;
    close_listener_locked(server);
    for (int32_t i = 0; i < server->conns.n_slots; i++) {
        ek_conn *conn = &server->conns.slot[i];
        bool silent = conn->scanned == 0;
        if (silent && (conn->state == EK_CONN_IDLE || conn->state == EK_CONN_HEAD))
            ek_gateway_door_drop_locked(server, conn);
    }
    ek_sys_mutex_unlock(&server->lock);
}

void ek_gateway_http_each_call(ek_http_server *server, void (*fn)(void *ctx, ek_call *call),
                               void *ctx)
{
    for (int32_t i = 0; i < server->conns.n_slots; i++) {
        ek_sys_mutex_lock(&server->lock);
        ek_call *call = server->conns.slot[i].call;
        if (call) ek_gateway_call_ref(call);
        ek_sys_mutex_unlock(&server->lock);
        if (!call) continue;
        fn(ctx, call);
        ek_gateway_call_unref(call);
    }
}

static void abort_call(void *ctx EK_UNUSED, ek_call *call)
{
    ek_gateway_call_abort(call);
}

/* MHD must not be stopped while a connection of its own is suspended: close all of them first. */
static void close_all(ek_http_server *server)
{
    ek_sys_mutex_lock(&server->lock);
    server->stopping = true;
    server->refusing = true;
    close_listener_locked(server);
    for (int32_t i = 0; i < server->conns.n_slots; i++)
        if (server->conns.slot[i].state != EK_CONN_FREE)
            ek_gateway_door_drop_locked(server, &server->conns.slot[i]);
    ek_sys_mutex_unlock(&server->lock);
    ek_gateway_http_each_call(server, abort_call, NULL);
    ek_sys_mutex_lock(&server->lock);
    bool empty = server->conns.n_used == 0;
    while (!empty && ek_sys_cond_wait_us(&server->empty, &server->lock, CLOSE_US))
        empty = server->conns.n_used == 0;
    ek_sys_mutex_unlock(&server->lock);
    if (!empty) ek_log(EK_LOG_ERROR, "gateway", "close", "err=\"connections do not close\"");
}

void ek_gateway_http_destroy(ek_http_server *server)
{
    if (!server) return;
    if (server->daemon) {
        close_all(server);
        ek_gateway_door_stop(server);
        MHD_stop_daemon(server->daemon);
    }
    close_listener_locked(server);
    ek_gateway_conns_fini(&server->conns);
    ek_sys_cond_fini(&server->empty);
    ek_sys_mutex_fini(&server->lock);
    ek_sys_free(server->peek);
    ek_sys_free(server);
}
