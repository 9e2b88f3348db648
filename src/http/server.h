/*
 * A guarded HTTP/1.1 server: the door and libmicrohttpd (MHD), for one listening address.
 *
 * Two threads. The *door* accepts, peeks at each request's head until it is whole, checks it
 * strictly, keeps all time limits, and notices clients that hang up. MHD's event loop then reads
 * the checked request and moves the bytes of the answer. Neither ever waits for anything but its
 * sockets. docs/adr/0004 says why it is built like this; conn.h has a connection's life, exchange.h
 * a request's.
 */
#ifndef EK_HTTP_SERVER_H
#define EK_HTTP_SERVER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"

struct ek_exchange;
struct ek_http_service;
typedef struct ek_http_server ek_http_server;

typedef struct ek_http_server_params {
    const char *listen;                    /* borrowed for the call */
    const struct ek_http_service *service; /* borrowed until destroy, and until exchanges end */
    void *ctx;                             /* handed to the service with each request */
    const char *name;                      /* of the door's thread; static */
} ek_http_server_params;

/** Bind and answer. @return EK_OK; EK_EINUSE; EK_EACCESS; EK_EINVAL; EK_EIO; EK_ENOMEM */
EK_MUST ek_status ek_http_server_create(const ek_http_server_params *params,
                                        ek_http_server **out_server, ek_err *err);

/** Address in use, as text. */
const char *ek_http_server_address(const ek_http_server *server);

/**
 * Stop listening, close idle connections, and every other one with its current answer. Any thread.
 */
void ek_http_server_refuse(ek_http_server *server);

/**
 * Call fn for each request that is in the server right now. Any thread; fn runs without the
 * server's lock.
 */
void ek_http_server_each(ek_http_server *server,
                         void (*fn)(void *ctx, struct ek_exchange *exchange), void *ctx);

/** Cut what is left, close all connections, join the threads, free. Accepts NULL. */
void ek_http_server_destroy(ek_http_server *server);

#endif
