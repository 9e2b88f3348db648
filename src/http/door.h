/*
 * The door, and what it and the MHD side (server.c) of one HTTP server share.
 *
 * `lock` guards the table, every connection in it and the flags; it is held for microseconds only,
 * and never while an exchange's lock is taken. Both threads may suspend and resume MHD connections
 * under it.
 */
#ifndef EK_HTTP_DOOR_H
#define EK_HTTP_DOOR_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "http/conn.h"
#include "http/listen.h"
#include "http/server.h"
#include "http/service.h"
#include "sys/thread.h"

struct MHD_Daemon;

struct ek_http_server {
    const ek_http_service *service; /* borrowed until destroy */
    void *ctx;                      /* the service's, borrowed */
    const char *name;               /* of the door's thread; static */
    char address[EK_LISTEN_TEXT_MAX];
    struct MHD_Daemon *daemon; /* owned */
    ek_sys_thread door;
    int epoll_fd; /* the door's; other threads only change what it watches */
    _Atomic bool door_stop;

    ek_sys_mutex lock;
    ek_sys_cond empty;    /* the table has no connection left */
    ek_conn_table conns;  /* under lock */
    int listener;         /* under lock; -1: closed */
    bool listener_paused; /* under lock: no descriptors left, try again with the next sweep */
    bool refusing;        /* under lock: no new connections; each reply is a connection's last */
    bool stopping;        /* under lock: nothing may be suspended any more */
    char *peek;           /* owned, (peek_bytes): under lock */
    size_t peek_bytes;    /* longest head + 1, to see that one is longer */
};

/**
 * Start and stop the door's thread; the listener is watched from start on. @return EK_OK; EK_EIO;
 * EK_ENOMEM
 */
EK_MUST ek_status ek_http_door_start(ek_http_server *server);
void ek_http_door_stop(ek_http_server *server);

/**
 * See whether the next head of a waiting connection has come, and act: serve it, refuse it, or wait
 * on. Called by the door when bytes arrive, and by MHD's loop when a connection becomes idle.
 */
void ek_http_door_look_locked(ek_http_server *server, ek_conn *conn, int64_t now_us);

/** Close a connection, whoever owns its socket. */
void ek_http_door_drop_locked(ek_http_server *server, ek_conn *conn);

/** Free the slot; the socket is closed by the caller (or by MHD). */
void ek_http_door_release_locked(ek_http_server *server, ek_conn *conn);

/**
 * Answer a fault straight on the socket, where MHD cannot: no reply of MHD's may have begun.
 * The reply ends the connection; bytes that do not fit into the socket's buffer are lost with it.
 */
void ek_http_door_answer_locked(ek_http_server *server, ek_conn *conn, const ek_fault *fault);

/** How long a client that was refused may go on sending before its connection is closed. */
#define EK_DOOR_LINGER_US 1000000

/**
 * Whether readers took exactly n_bytes out of a socket since it was opened, at a moment when nobody
 * reads. @return false: more, or not known
 */
bool ek_http_door_read_exactly(int fd, uint64_t n_bytes);

#endif
