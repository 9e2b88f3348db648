/*
 * The gateway's own state, shared by its files.
 *
 * Written by create, attach, drain and destroy (one thread, the cli's); everything that others read
 * meanwhile is atomic or constant.
 */
#ifndef EK_GATEWAY_STATE_H
#define EK_GATEWAY_STATE_H

#include <stdatomic.h>
#include <stdint.h>

#include "engine/engine.h"
#include "gateway/admin.h"
#include "gateway/call.h"
#include "gateway/cluster.h"
#include "gateway/counters.h"
#include "gateway/gateway.h"
#include "gateway/gen_request.h"
#include "gateway/params.h"
#include "gateway/pump.h"
#include "http/server.h"
#include "http/service.h"
#include "sys/thread.h"
#include "telemetry/metrics.h"

typedef enum ek_gateway_mode {
    EK_GATEWAY_SERVING,
    EK_GATEWAY_SETTLING, /* not ready any more, but takes requests */
    EK_GATEWAY_DRAINING, /* takes none */
} ek_gateway_mode;

struct ek_gateway {
    ek_gateway_params params; /* constant */
    ek_metrics *metrics;      /* borrowed until destroy */
    ek_gateway_counters counters;
    ek_admin admin;
    ek_http_service http; /* constant: what both servers share */
    ek_gateway_front api_front;
    ek_gateway_front health_front;
    int64_t started_s;
    ek_engine_info info;         /* constant once engine is set */
    _Atomic(ek_engine *) engine; /* borrowed until destroy; NULL while loading. Release: attach */
    /* Borrowed until destroy; NULL: experts are in this process. Release: attach_cluster */
    _Atomic(const ek_gateway_cluster *) cluster;
    _Atomic int32_t mode;       /* ek_gateway_mode */
    _Atomic int32_t calls_open; /* calls of model routes that have not ended */
    ek_sys_mutex hold_lock;
    char held[EK_GATEWAY_HOLD_MAX]; /* why it is not ready yet; under hold_lock. "": it loads */
    ek_http_workers *workers;
    ek_pump *pump;
    ek_http_server *api;
    ek_http_server *health; /* NULL: none configured */
};

static inline ek_engine *ek_gateway_engine(const ek_gateway *gateway)
{
    return atomic_load_explicit(&gateway->engine, memory_order_acquire); /* pairs with attach */
}

static inline ek_gateway_mode ek_gateway_mode_now(const ek_gateway *gateway)
{
    return (ek_gateway_mode)atomic_load_explicit(&gateway->mode, memory_order_acquire);
}

/** Limits of requests, as the configuration says. */
static inline ek_gen_limits ek_gateway_limits(const ek_gateway *gateway)
{
    return (ek_gen_limits){
        .strict = gateway->params.strict,
        .json_depth_max = gateway->params.json_depth_max,
        .messages_max = gateway->params.messages_max,
        .choices_max = gateway->params.choices_max,
    };
}

#endif
