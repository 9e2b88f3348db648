/*
 * The door: one thread that owns all waiting. See server.h and conn.h.
 *
 * Heads are peeked at (MSG_PEEK), never taken: MHD reads the same bytes later. The door's epoll set
 * is edge-triggered, because a half-arrived head stays readable and would wake a level-triggered
 * one for ever.
 */
#include <errno.h>
#include <linux/tcp.h>
#include <microhttpd.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "http/door.h"
#include "http/request_id.h"
#include "sys/clock.h"
#include "sys/log.h"

#define SWEEP_US       50000  /* how often time limits are looked at */
#define HANGUP_US      100000 /* MHD's time to take in what a client left behind when it hung up */
#define EVENTS_MAX     128
#define ACCEPTS_MAX    64 /* in a row, before events of others are looked at */
#define DRAIN_READS    16 /* of a refused client, before others are looked at */
#define LISTENER_EVENT UINT64_MAX

static void watch(ek_http_server *server, int op, int fd, uint32_t events, uint64_t key)
{
    struct epoll_event event = {.events = events, .data.u64 = key};
    if (epoll_ctl(server->epoll_fd, op, fd, &event) != 0 && op != EPOLL_CTL_DEL)
        ek_log(EK_LOG_ERROR, "http", "epoll", "op=%d errno=%d", op, errno);
}

static uint32_t conn_events(void)
{
    return (uint32_t)EPOLLIN | (uint32_t)EPOLLRDHUP | (uint32_t)EPOLLET;
}

static uint64_t conn_key(const ek_conn *conn)
{
    return (uint64_t)conn->slot << 32 | conn->generation;
}

/* ---- ending a connection ---- */

void ek_http_door_release_locked(ek_http_server *server, ek_conn *conn)
{
    watch(server, EPOLL_CTL_DEL, conn->fd, 0, 0);
    ek_http_conns_release(&server->conns, conn);
    ek_gauge_add(server->service->counters.connections, -1);
    if (server->conns.n_used == 0) ek_sys_cond_broadcast(&server->empty);
}

void ek_http_door_drop_locked(ek_http_server *server, ek_conn *conn)
{
    if (!conn->mhd_owns) {
        int fd = conn->fd;
        ek_http_door_release_locked(server, conn);
        close(fd);
        return;
    }
    bool suspended = conn->state == EK_CONN_IDLE || conn->state == EK_CONN_LINGER;
    conn->state = EK_CONN_CLOSING;
    conn->deadline_us = 0;
    conn->head_fresh = false;
    shutdown(conn->fd, SHUT_RDWR);
    if (suspended) MHD_resume_connection(conn->mhd);
}

void ek_http_door_answer_locked(ek_http_server *server, ek_conn *conn, const ek_fault *fault)
{
    ek_buf json = {0};
    ek_buf reply = {0};
    char id[EK_REQUEST_ID_MAX + 1];
    char client[EK_IP_TEXT_MAX];
    int32_t status = fault->kind->status;
    int32_t retry_s = fault->kind->retry_s;
    ek_http_request_id_of(conn->head_known ? &conn->head : NULL, id);
    ek_http_ip_text(conn->ip, client);
    ek_http_fault_json(fault, &json);
    ek_http_buf_addf(&reply, "HTTP/1.1 %d %s\r\n", status, ek_http_reason(status));
    ek_http_buf_addf(&reply, "Content-Type: application/json\r\nContent-Length: %zu\r\n", json.len);
    ek_http_buf_addf(&reply, "x-request-id: %s\r\n", id);
    if (retry_s)
        ek_http_buf_addf(&reply, "Retry-After: %d\r\nretry-after-ms: %d000\r\n", retry_s, retry_s);
    ek_http_buf_addz(&reply, "Connection: close\r\n\r\n");
    ek_http_buf_add(&reply, ek_http_buf_str(&json));
    if (!json.failed && !reply.failed)
        (void)!send(conn->fd, reply.data, reply.len, MSG_NOSIGNAL | MSG_DONTWAIT);
    conn->answered = true;
    ek_http_counters_answered(&server->service->counters, status);
    ek_log(EK_LOG_INFO, "http", "refused", "id=%s client=%s status=%d code=%s reason=\"%s\"", id,
           client, status, fault->kind->code, fault->message);
    ek_http_buf_fini(&json);
    ek_http_buf_fini(&reply);
}

/*
 * Closing at once would reset the connection while the client still sends, and the reset can
 * overtake the reply.
 */
static void refuse_locked(ek_http_server *server, ek_conn *conn, const ek_fault *fault,
                          int64_t now_us)
{
    ek_counter_add(server->service->counters.heads_refused, 1);
    ek_http_door_answer_locked(server, conn, fault);
    shutdown(conn->fd, SHUT_WR);
    conn->state = EK_CONN_LINGER;
    conn->deadline_us = now_us + EK_DOOR_LINGER_US;
    watch(server, EPOLL_CTL_MOD, conn->fd, conn_events(), conn_key(conn)); /* look again at once */
}

static void drain_locked(ek_http_server *server, ek_conn *conn)
{
    for (int i = 0; i < DRAIN_READS; i++) {
        ssize_t n = recv(conn->fd, server->peek, server->peek_bytes, MSG_DONTWAIT);
        if (n > 0 || (n < 0 && errno == EINTR)) continue;
        if (n == 0 || errno != EAGAIN) ek_http_door_drop_locked(server, conn);
        return;
    }
    watch(server, EPOLL_CTL_MOD, conn->fd, conn_events(), conn_key(conn)); /* there is more */
}

/* ---- heads ---- */

bool ek_http_door_read_exactly(int fd, uint64_t n_bytes)
{
    /*
     * What arrives between the two figures is counted as read: so agreement is certain, and a
     * difference is believed when it is found twice.
     */
    uint64_t before = UINT64_MAX;
    for (int i = 0; i < 8; i++) {
        struct tcp_info info = {0};
        socklen_t n_info = sizeof info;
        int n_queued = 0;
        if (ioctl(fd, FIONREAD, &n_queued) != 0 ||
            getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &n_info) != 0)
            return false;
        if (n_info < offsetof(struct tcp_info, tcpi_bytes_received) + sizeof(uint64_t))
            return false; /* kernel older than 4.1 */
        uint64_t n_read = (uint64_t)info.tcpi_bytes_received - (uint64_t)n_queued;
        if (n_read == n_bytes) return true;
        if (n_read == before) return false;
        before = n_read;
    }
    return false;
}

static bool hand_over_locked(ek_http_server *server, ek_conn *conn)
{
    if (conn->mhd_owns) {
        MHD_resume_connection(conn->mhd);
        return true;
    }
    /* MHD keeps the address for itself and we keep our own, so any will do. */
    struct sockaddr_in peer = {.sin_family = AF_INET};
    conn->mhd_owns = true;
    if (MHD_add_connection(server->daemon, conn->fd, (struct sockaddr *)&peer, sizeof peer) ==
        MHD_YES)
        return true;
    ek_log(EK_LOG_ERROR, "http", "handover_failed", "errno=%d", errno);
    ek_http_door_release_locked(server, conn); /* MHD has closed the socket */
    return false;
}

static void serve_locked(ek_http_server *server, ek_conn *conn, ek_str text, int64_t now_us)
{
    ek_fault fault;
    if (ek_http_conn_keep_head(conn, text) != EK_OK) {
        ek_http_door_drop_locked(server, conn);
        return;
    }
    ek_status status = ek_http_head_parse((ek_str){conn->head_text, text.len}, &conn->head, &fault);
    conn->head_known = status == EK_OK;
    if (status == EK_OK && conn->head.content_length > server->service->limits.body_bytes_max) {
        ek_http_fault_set(&fault, &ek_http_fault_request_too_large, NULL,
                          "the body has %llu bytes, at most %zu are taken",
                          (unsigned long long)conn->head.content_length,
                          server->service->limits.body_bytes_max);
        status = EK_ERANGE;
    }
    if (status != EK_OK) {
        refuse_locked(server, conn, &fault, now_us);
        return;
    }
    conn->state = EK_CONN_SERVED;
    conn->scanned = 0;
    conn->head_fresh = true;
    conn->answering = false;
    conn->deadline_us =
        now_us + (conn->hung_up ? HANGUP_US : server->service->limits.body_timeout_us);
    conn->bytes_due += conn->head.bytes + conn->head.content_length;
    /*
     * How many bytes a chunked body took on the wire is only known to MHD, so nothing may follow
     * it.
     */
    conn->closing = conn->head.chunked || !conn->head.keep_alive;
    (void)hand_over_locked(server, conn);
}

static void wait_on_locked(ek_http_server *server, ek_conn *conn, size_t n_seen, size_t scanned,
                           int64_t now_us)
{
    ek_fault fault;
    if (n_seen == server->peek_bytes) {
        ek_http_fault_set(&fault, &ek_http_fault_headers_too_large, NULL,
                          "request line and headers exceed %zu bytes", server->peek_bytes - 1);
        refuse_locked(server, conn, &fault, now_us);
        return;
    }
    if (conn->hung_up) { /* half a head, and no more will come */
        ek_http_door_drop_locked(server, conn);
        return;
    }
    bool first_bytes = conn->scanned == 0;
    if (first_bytes && conn->state == EK_CONN_IDLE)
        conn->deadline_us = now_us + server->service->limits.header_timeout_us;
    conn->scanned = scanned;
}

void ek_http_door_look_locked(ek_http_server *server, ek_conn *conn, int64_t now_us)
{
    ssize_t n;
    do {
        n = recv(conn->fd, server->peek, server->peek_bytes, MSG_PEEK | MSG_DONTWAIT);
    } while (n < 0 && errno == EINTR);
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
        ek_http_door_drop_locked(server, conn);
        return;
    }
    ek_str text = {server->peek, (size_t)n};
    size_t scanned = conn->scanned;
    size_t n_head = 0;
    ek_status status = ek_http_head_find_end(text, &scanned, &n_head);
    if (status == EK_EFORMAT) {
        ek_fault fault;
        ek_http_fault_set(&fault, &ek_http_fault_malformed_request, NULL,
                          "malformed HTTP request: lines end with CR LF, and hold no NUL");
        refuse_locked(server, conn, &fault, now_us);
    } else if (status == EK_OK && n_head < server->peek_bytes) {
        serve_locked(server, conn, (ek_str){text.data, n_head}, now_us);
    } else {
        wait_on_locked(server, conn, text.len, scanned, now_us);
    }
}

/* ---- accepting ---- */

static void refuse_connection(ek_http_server *server, int fd, const uint8_t ip[16],
                              const ek_fault_kind *kind, const char *why)
{
    ek_fault fault;
    ek_conn conn = {.fd = fd};
    memcpy(conn.ip, ip, sizeof conn.ip);
    ek_http_fault_set(&fault, kind, NULL, "%s", why);
    ek_counter_add(server->service->counters.connections_refused, 1);
    ek_http_door_answer_locked(server, &conn, &fault);
    shutdown(fd, SHUT_WR);
    close(fd);
}

static void admit_locked(ek_http_server *server, int fd, const uint8_t ip[16], int64_t now_us)
{
    int32_t per_ip = server->service->limits.connections_per_ip_max;
    if (per_ip > 0 && ek_http_conns_of_ip(&server->conns, ip, per_ip) >= per_ip) {
        refuse_connection(server, fd, ip, &ek_http_fault_concurrency_limit,
                          "this address has too many open connections");
        return;
    }
    ek_conn *conn = ek_http_conns_take(&server->conns, fd, ip);
    if (!conn) {
        refuse_connection(server, fd, ip, &ek_http_fault_overloaded,
                          "the server has no connection left");
        return;
    }
    conn->deadline_us = now_us + server->service->limits.header_timeout_us;
    ek_counter_add(server->service->counters.connections_total, 1);
    ek_gauge_add(server->service->counters.connections, 1);
    watch(server, EPOLL_CTL_ADD, fd, conn_events(), conn_key(conn));
    /* Usually the request came with the handshake's last packet: do not wait for the event. */
    ek_http_door_look_locked(server, conn, now_us);
}

static void accept_some(ek_http_server *server, int64_t now_us)
{
    ek_sys_mutex_lock(&server->lock);
    for (int i = 0; i < ACCEPTS_MAX && server->listener >= 0; i++) {
        int fd;
        uint8_t ip[16];
        ek_status status = ek_http_accept(server->listener, &fd, ip);
        if (status == EK_AGAIN) break;
        if (status == EK_OK) {
            admit_locked(server, fd, ip, now_us);
        } else if (status == EK_EFULL) {
            ek_log(EK_LOG_WARN, "http", "no_descriptors",
                   "connections=%d remedy=\"raise the limit of open files (ulimit -Hn)\"",
                   server->conns.n_used);
            watch(server, EPOLL_CTL_MOD, server->listener, 0, LISTENER_EVENT);
            server->listener_paused = true;
            break;
        }
    }
    ek_sys_mutex_unlock(&server->lock);
}

/* ---- events and time ---- */

static void handle_event(ek_http_server *server, uint64_t key, uint32_t events, int64_t now_us)
{
    const uint32_t ends = (uint32_t)EPOLLRDHUP | (uint32_t)EPOLLHUP | (uint32_t)EPOLLERR;
    ek_exchange *gone = NULL;
    ek_sys_mutex_lock(&server->lock);
    ek_conn *conn = ek_http_conns_find(&server->conns, (int32_t)(key >> 32), (uint32_t)key);
    if (conn && (events & ends)) conn->hung_up = true;
    if (conn && (conn->state == EK_CONN_HEAD || conn->state == EK_CONN_IDLE)) {
        ek_http_door_look_locked(server, conn, now_us);
    } else if (conn && conn->state == EK_CONN_LINGER) {
        drain_locked(server, conn);
    } else if (conn && conn->state == EK_CONN_SERVED && conn->hung_up) {
        if (conn->answering && conn->exchange) gone = ek_http_exchange_ref(conn->exchange);
        /*
         * MHD reads on only at the next event, and after the last bytes and the end in one there is
         * none.
         */
        if (!conn->answering) conn->deadline_us = now_us + HANGUP_US;
    }
    ek_sys_mutex_unlock(&server->lock);
    if (!gone) return;
    ek_http_exchange_abort(gone);
    ek_http_exchange_unref(gone);
}

static void expire_locked(ek_http_server *server, ek_conn *conn, int64_t now_us)
{
    ek_fault fault;
    switch (conn->state) {
    case EK_CONN_HEAD:
    case EK_CONN_IDLE:
        if (conn->scanned == 0) { /* said nothing, wants nothing */
            ek_http_door_drop_locked(server, conn);
            return;
        }
        ek_http_fault_set(&fault, &ek_http_fault_client_timeout, NULL,
                          "the request's headers did not arrive in time");
        refuse_locked(server, conn, &fault, now_us);
        return;
    case EK_CONN_SERVED:
        if (!conn->mhd) { /* MHD had no memory for it and closed the socket without a word */
            ek_http_door_release_locked(server, conn);
            return;
        }
        ek_http_fault_set(&fault, &ek_http_fault_client_timeout, NULL,
                          "the request's body did not arrive in time");
        if (!conn->answered && !conn->hung_up) ek_http_door_answer_locked(server, conn, &fault);
        ek_http_door_drop_locked(server, conn);
        return;
    case EK_CONN_LINGER: ek_http_door_drop_locked(server, conn); return;
    case EK_CONN_FREE:
    case EK_CONN_CLOSING: return;
    }
}

static void sweep(ek_http_server *server, int64_t now_us)
{
    ek_sys_mutex_lock(&server->lock);
    if (server->listener_paused && server->listener >= 0)
        watch(server, EPOLL_CTL_MOD, server->listener, EPOLLIN, LISTENER_EVENT);
    server->listener_paused = false;
    for (int32_t i = 0; i < server->conns.n_slots; i++) {
        ek_conn *conn = &server->conns.slot[i];
        if (conn->state != EK_CONN_FREE && conn->deadline_us && conn->deadline_us <= now_us)
            expire_locked(server, conn, now_us);
    }
    ek_sys_mutex_unlock(&server->lock);
}

static void door_main(void *ctx)
{
    ek_http_server *server = ctx;
    struct epoll_event events[EVENTS_MAX];
    int64_t next_sweep_us = 0;
    while (!atomic_load_explicit(&server->door_stop, memory_order_acquire)) {
        int n = epoll_wait(server->epoll_fd, events, EVENTS_MAX, (int)(SWEEP_US / 1000));
        int64_t now_us = ek_sys_now_us();
        for (int i = 0; i < n; i++) {
            if (events[i].data.u64 == LISTENER_EVENT) {
                accept_some(server, now_us);
            } else {
                handle_event(server, events[i].data.u64, events[i].events, now_us);
            }
        }
        if (now_us < next_sweep_us) continue;
        sweep(server, now_us);
        next_sweep_us = now_us + SWEEP_US;
    }
}

ek_status ek_http_door_start(ek_http_server *server)
{
    server->epoll_fd = epoll_create1(EPOLL_CLOEXEC);
    if (server->epoll_fd < 0) return EK_EIO;
    watch(server, EPOLL_CTL_ADD, server->listener, EPOLLIN, LISTENER_EVENT);
    return ek_sys_thread_start(&server->door, server->name, door_main, server);
}

void ek_http_door_stop(ek_http_server *server)
{
    atomic_store_explicit(&server->door_stop, true,
                          memory_order_release); /* acquired by door_main */
    ek_sys_thread_join(&server->door);
    if (server->epoll_fd >= 0) close(server->epoll_fd);
    server->epoll_fd = -1;
}
