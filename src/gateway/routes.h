/*
 * The routes: path, methods, what each needs and who runs it. One table; docs/API.md describes the
 * same rows.
 */
#ifndef EK_GATEWAY_ROUTES_H
#define EK_GATEWAY_ROUTES_H

#include <stdbool.h>

#include "base/span.h"
#include "gateway/call.h"

typedef enum ek_route_method { EK_METHOD_GET = 1, EK_METHOD_POST = 2 } ek_route_method;

typedef struct ek_route {
    const char *path; /* ends with '*': every path that begins so, the rest is the call's tail */
    ek_route_method method;     /* GET serves HEAD too */
    bool needs_engine;          /* 503 model_loading until it is there */
    bool is_work;               /* counts as work: refused while draining */
    bool on_worker;             /* too slow for an event loop */
    bool on_health;             /* also answered by the health daemon */
    bool is_admin;              /* only for whoever may administer (admin.h) */
    void (*run)(ek_call *call); /* fills the reply, or starts a generation */
} ek_route;

/**
 * Find a route.
 * @param out_tail what matched the '*', or empty
 * @param out_allow static list for the Allow header when only the method was wrong; else NULL
 * @return NULL: no such path, or not with this method
 */
const ek_route *ek_gateway_route_find(ek_str path, ek_str method, bool health_only,
                                      ek_str *out_tail, const char **out_allow);

#endif
