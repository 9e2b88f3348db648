/*
 * Who answers requests, and what all servers of one program share.
 *
 * The room knows sockets, heads and replies; what a request means is known by a service above it,
 * which hands over one constant table of functions when its servers are created. It keeps what it
 * knows about a request in a struct whose first member is the exchange.
 */
#ifndef EK_HTTP_SERVICE_H
#define EK_HTTP_SERVICE_H

#include <stddef.h>
#include <stdint.h>

#include "http/counters.h"
#include "http/exchange.h"
#include "http/head.h"
#include "http/workers.h"

typedef struct ek_http_handler {
    /**
     * Memory for a request, zeroed, that begins with its exchange; on a loop.
     * @param ctx of the server
     * @return NULL: no memory
     */
    ek_exchange *(*create)(void *ctx);
    /**
     * The head is known: set the plan and wants_body, or fill the reply with what the head alone
     * shows to be wrong. On a loop; path, query and ids are set.
     */
    void (*begin)(ek_exchange *exchange, const ek_head *head);
    /**
     * The request is complete, and its plan says who calls. Fill the reply, or move the phase on
     * from WORKING to WAITING (under the lock) and answer later.
     */
    void (*run)(ek_exchange *exchange);
    /** The stream has room again. Under the exchange's lock; on a loop. */
    void (*room)(ek_exchange *exchange);
    /** The client is gone before its answer was. Under the exchange's lock; any thread. */
    void (*abandon)(ek_exchange *exchange);
    /**
     * The exchange is over: log it. Under the exchange's lock; on a loop.
     * @param status what was answered; 499: the client left first
     */
    void (*ended)(const ek_exchange *exchange, int32_t status, int64_t age_us);
    /** The last reference is gone and the exchange's own parts are freed: free the rest. */
    void (*destroy)(ek_exchange *exchange);
} ek_http_handler;

typedef struct ek_http_limits {
    int32_t connections_max;        /* of one server */
    int32_t connections_per_ip_max; /* 0: no limit */
    size_t header_bytes_max;
    size_t body_bytes_max;
    size_t bodies_bytes_max;   /* of all bodies held at once */
    int64_t header_timeout_us; /* request line and headers complete after accept / previous reply */
    int64_t body_timeout_us;
    int64_t idle_timeout_us; /* keep-alive */
} ek_http_limits;

typedef struct ek_http_service {
    const ek_http_handler *handler; /* static */
    ek_http_limits limits;
    ek_http_counters counters;
    ek_http_workers *workers; /* borrowed until the last server is gone */
    const char *age_field;    /* static: the reply's header with its milliseconds; NULL: none */
} ek_http_service;

#endif
