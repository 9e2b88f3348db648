#include "gateway/call.h"

#include "gateway/routes.h"
#include "gateway/state.h"
#include "sys/log.h"
#include "sys/mem.h"

#define PATH_LOG_MAX 128

/* ---- the head ---- */

/* JSON, in any of its names; without a type at all we believe the client. */
static bool is_json(const ek_head *head)
{
    ek_str type;
    ek_str encoding;
    if (ek_http_head_field(head, "content-encoding", &encoding) &&
        !ek_http_head_same(encoding, "identity"))
        return false;
    if (!ek_http_head_field(head, "content-type", &type)) return true;
    ptrdiff_t end = ek_str_find(type, EK_STR(";"));
    if (end >= 0) type.len = (size_t)end;
    while (type.len && type.data[type.len - 1] == ' ')
        type.len--;
    return ek_http_head_same(type, "application/json");
}

static bool check_state(const ek_gateway *gateway, const ek_route *route, ek_fault *fault)
{
    if (route->is_work && ek_gateway_mode_now(gateway) == EK_GATEWAY_DRAINING)
        return ek_http_fault_set(fault, &ek_gateway_fault_draining, NULL,
                                 "the server is shutting down");
    if (route->needs_engine && !ek_gateway_engine(gateway))
        return ek_http_fault_set(fault, &ek_gateway_fault_model_loading, NULL,
                                 "the model is still being loaded");
    return true;
}

static const ek_reply_field challenge = {"WWW-Authenticate", "Bearer"};

/* Everything that the head alone decides. */
static bool check_head(ek_call *call, const ek_head *head, ek_fault *fault)
{
    const char **allow = &call->http.reply.allow;
    const ek_route *route =
        ek_gateway_route_find(call->http.path, head->method, call->health_only, &call->tail, allow);
    if (!route && *allow)
        return ek_http_fault_set(fault, &ek_gateway_fault_method_not_allowed, NULL,
                                 "this path takes %s", *allow);
    if (!route)
        return ek_http_fault_set(fault, &ek_gateway_fault_not_found, NULL,
                                 "there is no such path here");
    if (route->is_admin &&
        !ek_gateway_admin_check(&call->gateway->admin, head, call->http.client, fault)) {
        call->http.reply.field = &challenge;
        call->http.reply.n_fields = fault->kind->status == 401;
        return false;
    }
    if (route->method == EK_METHOD_POST && !is_json(head))
        return ek_http_fault_set(fault, &ek_gateway_fault_media_type, NULL,
                                 "the body has to be plain application/json");
    if (!check_state(call->gateway, route, fault)) return false;
    call->route = route;
    return true;
}

/* ---- the handler ---- */

static ek_exchange *create(void *ctx)
{
    const ek_gateway_front *front = ctx;
    ek_call *call = ek_sys_calloc(1, sizeof *call);
    if (!call) return NULL;
    call->gateway = front->gateway;
    call->health_only = front->health_only;
    return &call->http;
}

static void begin(ek_exchange *exchange, const ek_head *head)
{
    ek_call *call = ek_gateway_call_of(exchange);
    ek_fault fault;
    if (!check_head(call, head, &fault)) {
        ek_http_exchange_fault(exchange, &fault);
        return;
    }
    exchange->wants_body = call->route->method == EK_METHOD_POST;
    exchange->plan = call->route->on_worker ? EK_EXCHANGE_ON_WORKER : EK_EXCHANGE_ON_LOOP;
    if (!call->route->is_work) return;
    call->counted = true;
    atomic_fetch_add_explicit(&call->gateway->calls_open, 1, memory_order_relaxed);
}

static void run(ek_exchange *exchange)
{
    ek_call *call = ek_gateway_call_of(exchange);
    call->route->run(call);
}

static void room(ek_exchange *exchange)
{
    ek_call *call = ek_gateway_call_of(exchange);
    if (ek_gateway_generation_is_stalled_locked(call->generation))
        ek_gateway_pump_kick(call->gateway->pump, call);
}

static void abandon(ek_exchange *exchange)
{
    ek_call *call = ek_gateway_call_of(exchange);
    if (!call->generation || call->generation->over) return;
    call->generation->over = true;
    ek_counter_add(call->gateway->counters.cancelled, 1);
    ek_gateway_pump_kick(call->gateway->pump, call);
}

static ek_log_level level_of(int32_t status)
{
    if (status == 500) return EK_LOG_ERROR;
    return status == 200 || status == 404 ? EK_LOG_DEBUG : EK_LOG_INFO;
}

/* One line per request. Its path is the client's text, and so is cut. */
static void ended(const ek_exchange *exchange, int32_t status, int64_t age_us)
{
    const ek_call *call = (const ek_call *)exchange;
    ek_usage usage = {0};
    if (call->generation) ek_gateway_generation_usage(call->generation, &usage);
    ek_str path = exchange->path;
    if (path.len > PATH_LOG_MAX) path.len = PATH_LOG_MAX;
    ek_log(level_of(status), "gateway", "request",
           "id=%s trace=%s client=%s path=\"%.*s\" status=%d code=%s stream=%d ms=%.1f "
           "first_byte_ms=%.1f "
           "prompt_tokens=%d completion_tokens=%d",
           exchange->request_id, exchange->trace_id[0] ? exchange->trace_id : "-", exchange->client,
           EK_STR_ARG(path), status,
           exchange->phase == EK_EXCHANGE_SENT && exchange->reply.code ? exchange->reply.code : "-",
           exchange->phase == EK_EXCHANGE_STREAMING, (double)age_us * 1e-3,
           (double)exchange->first_byte_us * 1e-3, usage.prompt_tokens, usage.completion_tokens);
}

static void destroy(ek_exchange *exchange)
{
    ek_call *call = ek_gateway_call_of(exchange);
    ek_gateway *gateway = call->gateway;
    ek_gateway_generation_destroy(call->generation);
    /* Last: drain and destroy wait for it, and the gateway may be gone a moment later. */
    if (call->counted) atomic_fetch_sub_explicit(&gateway->calls_open, 1, memory_order_release);
    ek_sys_free(call);
}

const ek_http_handler ek_gateway_call_handler = {
    .create = create,
    .begin = begin,
    .run = run,
    .room = room,
    .abandon = abandon,
    .ended = ended,
    .destroy = destroy,
};

/* ---- any thread ---- */

ek_call *ek_gateway_call_ref(ek_call *call)
{
    ek_http_exchange_ref(&call->http);
    return call;
}

void ek_gateway_call_unref(ek_call *call)
{
    ek_http_exchange_unref(&call->http);
}

void ek_gateway_call_cut(ek_call *call, const ek_fault *fault)
{
    ek_sys_mutex_lock(&call->http.lock);
    bool generates =
        call->http.phase == EK_EXCHANGE_WAITING || call->http.phase == EK_EXCHANGE_STREAMING;
    if (generates && !call->generation->over) {
        ek_gateway_generation_fail_locked(call, fault);
        ek_gateway_pump_kick(call->gateway->pump, call);
    }
    ek_sys_mutex_unlock(&call->http.lock);
}

/* ---- replies ---- */

void ek_gateway_call_fault(ek_call *call, const ek_fault *fault)
{
    ek_http_exchange_fault(&call->http, fault);
}

void ek_gateway_call_json(ek_call *call)
{
    ek_http_exchange_json(&call->http);
}
