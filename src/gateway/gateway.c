#include "gateway/gateway.h"

#include <jansson.h>
#include <stdio.h>

#include "base/assert.h"
#include "gateway/state.h"
#include "sys/clock.h"
#include "sys/limit.h"
#include "sys/log.h"
#include "sys/mem.h"

#define POLL_US 20000   /* how often drain looks whether it may end */
#define CUT_US  2000000 /* for error frames to reach their clients after the drain's time is up */

#define DESCRIPTORS_EXTRA 128 /* of the process, besides connections: files, event queues */

#define BODIES_MAX 16 /* bodies of the greatest size that all connections hold at once */

static void init_service(ek_gateway *gateway)
{
    const ek_gateway_params *params = &gateway->params;
    ek_http_counters_init(gateway->metrics, &gateway->http.counters);
    ek_gateway_counters_init(gateway->metrics, &gateway->counters);
    gateway->http.handler = &ek_gateway_call_handler;
    gateway->http.age_field = "openai-processing-ms";
    gateway->http.limits = (ek_http_limits){
        .connections_max = params->connections_max,
        .connections_per_ip_max = params->connections_per_ip_max,
        .header_bytes_max = params->header_bytes_max,
        .body_bytes_max = params->body_bytes_max,
        .bodies_bytes_max = params->body_bytes_max * BODIES_MAX,
        .header_timeout_us = params->header_timeout_us,
        .body_timeout_us = params->body_timeout_us,
        .idle_timeout_us = params->idle_timeout_us,
    };
}

/* As many descriptors as all connections take; with fewer the server works, until they run out. */
static void allow_descriptors(const ek_gateway_params *params)
{
    bool has_health = params->health_listen && params->health_listen[0];
    uint64_t n_servers = has_health ? 2 : 1;
    uint64_t wanted = n_servers * (uint64_t)params->connections_max + DESCRIPTORS_EXTRA;
    uint64_t allowed = ek_sys_descriptors_allow(wanted);
    if (allowed >= wanted) return;
    ek_log(
        EK_LOG_WARN, "gateway", "few_descriptors",
        "allowed=%llu wanted=%llu connections_max=%d remedy=\"raise the hard limit of open files "
        "(ulimit -Hn, or LimitNOFILE= of the service), or lower gateway.connections_max\"",
        (unsigned long long)allowed, (unsigned long long)wanted, params->connections_max);
}

static ek_status start_servers(ek_gateway *gateway, ek_err *err)
{
    gateway->api_front = (ek_gateway_front){.gateway = gateway};
    gateway->health_front = (ek_gateway_front){.gateway = gateway, .health_only = true};
    ek_http_server_params api = {
        .listen = gateway->params.listen,
        .service = &gateway->http,
        .ctx = &gateway->api_front,
        .name = "ek-door",
    };
    ek_status status = ek_http_server_create(&api, &gateway->api, err);
    const char *health_listen = gateway->params.health_listen;
    if (status != EK_OK || !health_listen || !health_listen[0]) return status;
    ek_http_server_params health = {
        .listen = health_listen,
        .service = &gateway->http,
        .ctx = &gateway->health_front,
        .name = "ek-door-health",
    };
    return ek_http_server_create(&health, &gateway->health, err);
}

ek_status ek_gateway_create(const ek_gateway_params *params, ek_metrics *metrics,
                            ek_gateway **out_gateway, ek_err *err)
{
    ek_gateway *gateway = ek_sys_calloc(1, sizeof *gateway);
    if (!gateway) return ek_err_set(err, EK_ENOMEM, "no memory for the gateway");
    ek_sys_mutex_init(&gateway->hold_lock);
    gateway->params = *params;
    gateway->metrics = metrics;
    ek_gateway_admin_init(&gateway->admin);
    gateway->started_s = ek_sys_wall_s();
    init_service(gateway);
    allow_descriptors(params);
    json_object_seed(0); /* from the system's entropy; before threads race to do it */
    ek_status status = ek_gateway_pump_create(&gateway->pump);
    /* A connection has one request at a time, so the workers' queue cannot overflow. */
    if (status == EK_OK)
        status =
            ek_http_workers_create(params->workers, 2 * params->connections_max, &gateway->workers);
    gateway->http.workers = gateway->workers;
    if (status != EK_OK) {
        ek_err_set(err, status, "cannot start the gateway's threads");
    } else {
        status = start_servers(gateway, err);
    }
    if (status != EK_OK) {
        ek_gateway_destroy(gateway);
        return status;
    }
    ek_log(EK_LOG_INFO, "gateway", "listening", "addr=%s health=%s", ek_gateway_address(gateway),
           ek_gateway_health_address(gateway));
    *out_gateway = gateway;
    return EK_OK;
}

void ek_gateway_hold(ek_gateway *gateway, const char *why)
{
    ek_sys_mutex_lock(&gateway->hold_lock);
    snprintf(gateway->held, sizeof gateway->held, "%s", why);
    ek_sys_mutex_unlock(&gateway->hold_lock);
}

void ek_gateway_attach(ek_gateway *gateway, ek_engine *engine)
{
    ek_assert(!ek_gateway_engine(gateway));
    ek_engine_info_get(engine, &gateway->info);
    ek_gateway_pump_attach(gateway->pump, engine);
    /* Acquired by whoever asks for the engine: the info and the pump are there then. */
    atomic_store_explicit(&gateway->engine, engine, memory_order_release);
}

void ek_gateway_attach_cluster(ek_gateway *gateway, const ek_gateway_cluster *cluster)
{
    /* Acquired by the routes that ask it. */
    atomic_store_explicit(&gateway->cluster, cluster, memory_order_release);
}

ek_status ek_gateway_admin_keys(ek_gateway *gateway, ek_str text, ek_err *err)
{
    ek_admin_keys keys;
    ek_status status = ek_gateway_admin_parse(text, &keys, err);
    if (status == EK_OK) ek_gateway_admin_set(&gateway->admin, &keys);
    return status;
}

const char *ek_gateway_address(const ek_gateway *gateway)
{
    return ek_http_server_address(gateway->api);
}

const char *ek_gateway_health_address(const ek_gateway *gateway)
{
    return gateway->health ? ek_http_server_address(gateway->health) : "";
}

/* ---- drain ---- */

typedef struct drain_wait {
    bool (*hurry)(void *ctx);
    void *ctx;
} drain_wait;

static bool must_hurry(const drain_wait *wait)
{
    return wait->hurry && wait->hurry(wait->ctx);
}

static bool is_idle(const ek_gateway *gateway)
{
    return atomic_load_explicit(&gateway->calls_open, memory_order_acquire) == 0;
}

/* Wait for at most `us`, until idle (if that matters). @return false: told to hurry */
static bool wait_for(const ek_gateway *gateway, const drain_wait *wait, int64_t us, bool until_idle)
{
    int64_t end_us = ek_sys_now_us() + us;
    while (ek_sys_now_us() < end_us) {
        if (until_idle && is_idle(gateway)) return true;
        if (must_hurry(wait)) return false;
        ek_sys_sleep_us(POLL_US);
    }
    return true;
}

static void cut_call(void *ctx, ek_exchange *exchange)
{
    ek_gateway_call_cut(ek_gateway_call_of(exchange), ctx);
}

ek_status ek_gateway_drain(ek_gateway *gateway, bool (*hurry)(void *ctx), void *ctx)
{
    const drain_wait wait = {hurry, ctx};
    const drain_wait patient = {NULL, NULL};
    ek_engine *engine = ek_gateway_engine(gateway);
    atomic_store_explicit(&gateway->mode, EK_GATEWAY_SETTLING, memory_order_release);
    ek_log(EK_LOG_INFO, "gateway", "draining", "open=%d",
           atomic_load_explicit(&gateway->calls_open, memory_order_relaxed));
    bool in_time = wait_for(gateway, &wait, gateway->params.drain_settle_us, false);
    atomic_store_explicit(&gateway->mode, EK_GATEWAY_DRAINING, memory_order_release);
    if (engine) ek_engine_drain(engine);
    ek_http_server_refuse(gateway->api);
    if (in_time) wait_for(gateway, &wait, gateway->params.drain_timeout_us, true);
    int32_t n_left = atomic_load_explicit(&gateway->calls_open, memory_order_acquire);
    if (n_left == 0) return EK_OK;
    ek_fault fault;
    ek_http_fault_set(&fault, &ek_gateway_fault_draining, NULL, "the server is shutting down");
    ek_http_server_each(gateway->api, cut_call, &fault);
    wait_for(gateway, &patient, CUT_US, true);
    ek_log(EK_LOG_WARN, "gateway", "drain_cut", "requests=%d", n_left);
    return EK_ETIMEOUT;
}

void ek_gateway_destroy(ek_gateway *gateway)
{
    if (!gateway) return;
    /*
     * From the outside in: no new calls, then no one who works on them, then what they held in the
     * engine.
     */
    ek_http_server_destroy(gateway->api);
    ek_http_workers_destroy(gateway->workers);
    ek_gateway_pump_destroy(gateway->pump);
    ek_http_server_destroy(gateway->health);
    ek_sys_mutex_fini(&gateway->hold_lock);
    ek_gateway_admin_fini(&gateway->admin);
    ek_sys_free(gateway);
}
