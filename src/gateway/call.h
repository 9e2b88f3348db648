/*
 * A call: a request of this API, on top of its HTTP exchange (http/exchange.h has its phases).
 *
 * Made when the head is there; ends with the last reference to the exchange. The exchange's lock
 * guards what is marked; the rest belongs to whoever has the phase.
 */
#ifndef EK_GATEWAY_CALL_H
#define EK_GATEWAY_CALL_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "gateway/faults.h"
#include "gateway/generation.h"
#include "http/service.h"

struct ek_gateway;
struct ek_route;

typedef struct ek_call {
    ek_exchange http; /* first: the two are one object */

    struct ek_gateway *gateway;   /* borrowed */
    bool health_only;             /* it came to the address for health and metrics */
    const struct ek_route *route; /* static; NULL: the reply is a fault already */
    ek_str tail;                  /* of the path: what follows a route's prefix ("/v1/models/") */
    bool counted;                 /* among the gateway's open model calls */
    ek_generation *generation;    /* http.lock; owned */

    /* The pump's: guarded by its own lock and thread. */
    struct ek_call *kick_next;
    bool kicked;
    struct ek_call *list_next;
    bool listed;
} ek_call;

/** A listening address of the gateway: what its server hands over with each request. */
typedef struct ek_gateway_front {
    struct ek_gateway *gateway; /* borrowed */
    bool health_only;
} ek_gateway_front;

/** How calls are made, run and ended; for the HTTP servers. */
extern const ek_http_handler ek_gateway_call_handler;

static inline ek_call *ek_gateway_call_of(ek_exchange *exchange)
{
    return (ek_call *)exchange;
}

ek_call *ek_gateway_call_ref(ek_call *call);
void ek_gateway_call_unref(ek_call *call);

/** End it with a fault, if it has not ended by itself. Any thread. */
void ek_gateway_call_cut(ek_call *call, const ek_fault *fault);

/* ---- for routes: filling the reply ---- */

void ek_gateway_call_fault(ek_call *call, const ek_fault *fault);
/** 200 with the reply's body as JSON; a body that ran out of memory becomes a 500. */
void ek_gateway_call_json(ek_call *call);

#endif
