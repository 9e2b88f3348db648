/*
 * The MHD side of a server: its callbacks, and the beginning and end of everything. See
 * server.h.
 */
#include "http/server.h"

#include <microhttpd.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/assert.h"
#include "http/door.h"
#include "http/reply.h"
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
    ek_exchange *exchange = ek_http_exchange_begin(server->service, server->ctx, conn, mhd);
    if (!exchange) return MHD_NO;
    *request = exchange;
    ek_sys_mutex_lock(&server->lock);
    conn->exchange = exchange;
    ek_sys_mutex_unlock(&server->lock);
    /* A client that asks first is told at once and never sends its body. */
    if (exchange->plan != EK_EXCHANGE_REPLY || !conn->head.expects_continue) return MHD_YES;
    ek_sys_mutex_lock(&server->lock);
    conn->answering = true;
    conn->closing = true;
    conn->deadline_us = 0;
    ek_sys_mutex_unlock(&server->lock);
    if (ek_http_exchange_advance(exchange, false) != EK_EXCHANGE_STEP_REPLY) return MHD_NO;
    return ek_http_reply_send(mhd, exchange, true);
}

/*
 * Too much body without a length: the door answers, since MHD takes no reply in the middle of an
 * upload. What still comes is swallowed for a moment, so that a reset does not overtake the answer.
 */
static void refuse_body(ek_http_server *server, ek_conn *conn)
{
    ek_fault fault;
    ek_http_fault_set(&fault, &ek_http_fault_request_too_large, NULL,
                      "the body exceeds the %zu bytes that are taken",
                      server->service->limits.body_bytes_max);
    int64_t now_us = ek_sys_now_us();
    ek_sys_mutex_lock(&server->lock);
    ek_http_door_answer_locked(server, conn, &fault);
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
    bool exact = conn->closing || ek_http_door_read_exactly(conn->fd, conn->bytes_due);
    ek_sys_mutex_lock(&server->lock);
    if (!exact || server->refusing || server->stopping) conn->closing = true;
    /* HTTP/1.0 has no chunks: the end of a stream is the end of its connection. */
    if (streams && conn->head.version_minor == 0) conn->closing = true;
    bool last = conn->closing;
    ek_sys_mutex_unlock(&server->lock);
    return last;
}

static enum MHD_Result advance_request(ek_http_server *server, ek_conn *conn,
                                       struct MHD_Connection *mhd, ek_exchange *exchange)
{
    ek_sys_mutex_lock(&server->lock);
    conn->answering = true;
    conn->deadline_us = 0;
    bool hung_up = conn->hung_up;
    bool over = server->stopping || conn->answered;
    ek_sys_mutex_unlock(&server->lock);
    if (over) return MHD_NO;
    switch (ek_http_exchange_advance(exchange, hung_up)) {
    case EK_EXCHANGE_STEP_WAIT: return MHD_YES;
    case EK_EXCHANGE_STEP_REPLY:
        return ek_http_reply_send(mhd, exchange, is_last_reply(server, conn, false));
    case EK_EXCHANGE_STEP_STREAM:
        return ek_http_reply_stream(mhd, exchange, is_last_reply(server, conn, true));
    case EK_EXCHANGE_STEP_CLOSE: break;
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
    ek_exchange *exchange = *request;
    if (!exchange) {
        if (!take_head(server, conn, url, method)) return MHD_NO;
        return begin_request(server, conn, mhd, request);
    }
    if (*n_upload == 0) return advance_request(server, conn, mhd, exchange);
    ek_str bytes = {upload, *n_upload};
    *n_upload = 0;
    if (!ek_http_exchange_body(exchange, bytes) && !is_answered(server, conn))
        refuse_body(server, conn);
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
    ek_exchange *exchange = *request;
    if (!exchange || !conn) return;
    *request = NULL;
    bool complete = code == MHD_REQUEST_TERMINATED_COMPLETED_OK;
    ek_sys_mutex_lock(&server->lock);
    conn->exchange = NULL;
    bool answered = conn->answered;
    ek_sys_mutex_unlock(&server->lock);
    ek_http_exchange_end(exchange, complete, answered);
    int64_t now_us = ek_sys_now_us();
    ek_sys_mutex_lock(&server->lock);
    if (complete && !conn->closing && !server->refusing && !server->stopping) {
        conn->state = EK_CONN_IDLE;
        conn->head_known = false;
        conn->answering = false;
        conn->scanned = 0;
        conn->deadline_us = now_us + server->service->limits.idle_timeout_us;
        MHD_suspend_connection(mhd);
        ek_http_door_look_locked(server, conn, now_us);
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
        ek_conn *conn = info ? ek_http_conns_by_fd(&server->conns, info->connect_fd) : NULL;
        if (conn) conn->mhd = mhd;
        *context = conn;
    } else if (*context) {
        ek_http_door_release_locked(server, *context);
        *context = NULL;
    }
    ek_sys_mutex_unlock(&server->lock);
}

static void on_log(void *cls EK_UNUSED, const char *fmt, va_list args)
{
    char text[256];
    vsnprintf(text, sizeof text, fmt, args);
    text[strcspn(text, "\n")] = '\0';
    ek_log(EK_LOG_DEBUG, "http", "microhttpd", "text=\"%s\"", text);
}

/* ---- life ---- */

static struct MHD_Daemon *start_daemon(ek_http_server *server)
{
    const ek_http_limits *limits = &server->service->limits;
    unsigned idle_s = (unsigned)(limits->idle_timeout_us / 1000000) + 1;
    return MHD_start_daemon(
        MHD_USE_EPOLL_INTERNAL_THREAD | MHD_USE_NO_LISTEN_SOCKET | MHD_ALLOW_SUSPEND_RESUME |
            MHD_USE_ITC | MHD_USE_ERROR_LOG,
        0, NULL, NULL, on_request, server,        /* */
        MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, /* first, to see messages about the others */
        MHD_OPTION_NOTIFY_CONNECTION, on_connection, server,            /* */
        MHD_OPTION_NOTIFY_COMPLETED, on_completed, server,              /* */
        MHD_OPTION_UNESCAPE_CALLBACK, ek_http_reply_keep_escaped, NULL, /* */
        MHD_OPTION_STRICT_FOR_CLIENT, 1,                                /* */
        MHD_OPTION_CONNECTION_TIMEOUT, idle_s, /* bytes that do not move, either way */
        MHD_OPTION_CONNECTION_LIMIT, (unsigned)(limits->connections_max + MHD_CONNECTIONS_EXTRA),
        MHD_OPTION_CONNECTION_MEMORY_LIMIT, 2 * limits->header_bytes_max + MHD_POOL_EXTRA,
        MHD_OPTION_END);
}

ek_status ek_http_server_create(const ek_http_server_params *params, ek_http_server **out_server,
                                ek_err *err)
{
    ek_http_server *server = ek_sys_calloc(1, sizeof *server);
    if (!server) return ek_err_set(err, EK_ENOMEM, "no memory for an HTTP server");
    server->service = params->service;
    server->ctx = params->ctx;
    server->name = params->name;
    server->listener = -1;
    server->epoll_fd = -1;
    server->peek_bytes = server->service->limits.header_bytes_max + 1;
    server->peek = ek_sys_calloc(server->peek_bytes, 1);
    ek_sys_mutex_init(&server->lock);
    ek_sys_cond_init(&server->empty);
    ek_status status = server->peek ? EK_OK : EK_ENOMEM;
    if (status == EK_OK)
        status = ek_http_conns_init(&server->conns, server->service->limits.connections_max);
    if (status == EK_OK)
        status = ek_http_listen(params->listen, &server->listener, server->address, err);
    if (status != EK_OK) goto fail;
    server->daemon = start_daemon(server);
    status = server->daemon ? ek_http_door_start(server) : EK_ENOMEM;
    if (status != EK_OK) {
        ek_err_set(err, status, "cannot start the HTTP server on %s", server->address);
        goto fail;
    }
    *out_server = server;
    return EK_OK;
fail:
    ek_http_server_destroy(server);
    return status;
}

const char *ek_http_server_address(const ek_http_server *server)
{
    return server->address;
}

static void close_listener_locked(ek_http_server *server)
{
    if (server->listener >= 0) close(server->listener);
    server->listener = -1;
}

void ek_http_server_refuse(ek_http_server *server)
{
    ek_sys_mutex_lock(&server->lock);
    server->refusing = true;
    close_listener_locked(server);
    for (int32_t i = 0; i < server->conns.n_slots; i++) {
        ek_conn *conn = &server->conns.slot[i];
        bool silent = conn->scanned == 0;
        if (silent && (conn->state == EK_CONN_IDLE || conn->state == EK_CONN_HEAD))
            ek_http_door_drop_locked(server, conn);
    }
    ek_sys_mutex_unlock(&server->lock);
}

void ek_http_server_each(ek_http_server *server, void (*fn)(void *ctx, ek_exchange *exchange),
                         void *ctx)
{
    for (int32_t i = 0; i < server->conns.n_slots; i++) {
        ek_sys_mutex_lock(&server->lock);
        ek_exchange *exchange = server->conns.slot[i].exchange;
        if (exchange) ek_http_exchange_ref(exchange);
        ek_sys_mutex_unlock(&server->lock);
        if (!exchange) continue;
        fn(ctx, exchange);
        ek_http_exchange_unref(exchange);
    }
}

static void abort_exchange(void *ctx EK_UNUSED, ek_exchange *exchange)
{
    ek_http_exchange_abort(exchange);
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
            ek_http_door_drop_locked(server, &server->conns.slot[i]);
    ek_sys_mutex_unlock(&server->lock);
    ek_http_server_each(server, abort_exchange, NULL);
    ek_sys_mutex_lock(&server->lock);
    bool empty = server->conns.n_used == 0;
    while (!empty && ek_sys_cond_wait_us(&server->empty, &server->lock, CLOSE_US))
        empty = server->conns.n_used == 0;
    ek_sys_mutex_unlock(&server->lock);
    if (!empty) ek_log(EK_LOG_ERROR, "http", "close", "err=\"connections do not close\"");
}

void ek_http_server_destroy(ek_http_server *server)
{
    if (!server) return;
    if (server->daemon) {
        close_all(server);
        ek_http_door_stop(server);
        MHD_stop_daemon(server->daemon);
    }
    close_listener_locked(server);
    ek_http_conns_fini(&server->conns);
    ek_sys_cond_fini(&server->empty);
    ek_sys_mutex_fini(&server->lock);
    ek_sys_free(server->peek);
    ek_sys_free(server);
}
