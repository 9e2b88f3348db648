#include "gateway/call.h"

#include <microhttpd.h>

#include "base/assert.h"
#include "gateway/routes.h"
#include "gateway/state.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/mem.h"

#define CLIENT_GONE  499 /* for log and metrics: nobody is there to read it */
#define PATH_LOG_MAX 128
#define BODIES_MAX   16 /* bodies of the greatest size that all connections hold at once */

int64_t ek_gateway_call_age_us(const ek_call *call)
{
    return ek_sys_now_us() - call->start_us;
}

/* ---- life ---- */

static bool copy_target(ek_call *call, const ek_head *head)
{
    call->target = ek_sys_calloc(head->path.len + head->query.len + 1, 1);
    if (!call->target) return false;
    memcpy(call->target, head->path.data, head->path.len);
    if (head->query.len) memcpy(call->target + head->path.len, head->query.data, head->query.len);
    call->path = (ek_str){call->target, head->path.len};
    call->query = (ek_str){call->target + head->path.len, head->query.len};
    return true;
}

/* JSON, in any of its names; without a type at all we believe the client. */
static bool is_json(const ek_head *head)
{
    ek_str type;
    ek_str encoding;
    if (ek_gateway_head_field(head, "content-encoding", &encoding) &&
        !ek_gateway_head_same(encoding, "identity"))
        return false;
    if (!ek_gateway_head_field(head, "content-type", &type)) return true;
    ptrdiff_t end = ek_str_find(type, EK_STR(";"));
    if (end >= 0) type.len = (size_t)end;
    while (type.len && type.data[type.len - 1] == ' ')
        type.len--;
    return ek_gateway_head_same(type, "application/json");
}

static bool check_state(const ek_gateway *gateway, const ek_route *route, ek_fault *fault)
{
    if (route->is_work && ek_gateway_mode_now(gateway) == EK_GATEWAY_DRAINING)
        return ek_gateway_fault_set(fault, EK_FAULT_DRAINING, NULL, "the server is shutting down");
    if (route->needs_engine && !ek_gateway_engine(gateway))
        return ek_gateway_fault_set(fault, EK_FAULT_MODEL_LOADING, NULL,
                                    "the model is still being loaded");
    return true;
}

/* Everything that the head alone decides. */
static bool check_head(ek_call *call, const ek_head *head, bool health_only, ek_fault *fault)
{
    const ek_route *route = ek_gateway_route_find(call->path, head->method, health_only,
                                                  &call->tail, &call->reply.allow);
    if (!route && call->reply.allow)
        return ek_gateway_fault_set(fault, EK_FAULT_METHOD_NOT_ALLOWED, NULL, "this path takes %s",
                                    call->reply.allow);
    if (!route)
        return ek_gateway_fault_set(fault, EK_FAULT_NOT_FOUND, NULL, "there is no such path here");
    if (route->method == EK_METHOD_POST && !is_json(head))
        return ek_gateway_fault_set(fault, EK_FAULT_MEDIA_TYPE, NULL,
                                    "the body has to be plain application/json");
    if (!check_state(call->gateway, route, fault)) return false;
    call->route = route;
    call->wants_body = route->method == EK_METHOD_POST;
    return true;
}

ek_call *ek_gateway_call_begin(ek_gateway *gateway, const ek_conn *conn, bool health_only,
                               struct MHD_Connection *mhd)
{
    const ek_head *head = &conn->head;
    ek_call *call = ek_sys_calloc(1, sizeof *call);
    if (!call) return NULL;
    atomic_init(&call->refs, 1);
    call->gateway = gateway;
    call->mhd = mhd;
    call->start_us = ek_sys_now_us();
    ek_sys_mutex_init(&call->lock);
    ek_gateway_request_id_of(head, call->request_id);
    ek_gateway_ip_text(conn->ip, call->client);
    ek_gauge_add(gateway->counters.requests_open, 1);
    if (!copy_target(call, head)) {
        ek_gateway_call_unref(call);
        return NULL;
    }
    ek_fault fault;
    if (!check_head(call, head, health_only, &fault)) ek_gateway_call_fault(call, &fault);
    if (call->route && call->route->is_work) {
        call->counted = true;
        atomic_fetch_add_explicit(&gateway->calls_open, 1, memory_order_relaxed);
    }
    return call;
}

ek_call *ek_gateway_call_ref(ek_call *call)
{
    atomic_fetch_add_explicit(&call->refs, 1, memory_order_relaxed);
    return call;
}

static void drop_body(ek_call *call)
{
    ek_gauge_add(call->gateway->counters.body_bytes, -(int64_t)call->body.cap);
    ek_gateway_buf_fini(&call->body);
}

void ek_gateway_call_unref(ek_call *call)
{
    /* Release what this thread did, acquire what the others did, before the last one frees. */
    if (atomic_fetch_sub_explicit(&call->refs, 1, memory_order_acq_rel) > 1) return;
    ek_gateway *gateway = call->gateway;
    drop_body(call);
    ek_gateway_buf_fini(&call->reply.body);
    ek_gateway_generation_destroy(call->generation);
    ek_sys_mutex_fini(&call->lock);
    ek_sys_free(call->target);
    ek_gauge_add(gateway->counters.requests_open, -1);
    /* Last: drain and destroy wait for it, and the gateway may be gone a moment later. */
    if (call->counted) atomic_fetch_sub_explicit(&gateway->calls_open, 1, memory_order_release);
    ek_sys_free(call);
}

/* ---- replies ---- */

void ek_gateway_call_fault(ek_call *call, const ek_fault *fault)
{
    ek_reply *reply = &call->reply;
    ek_gateway_buf_clear(&reply->body);
    ek_gateway_fault_json(fault, &reply->body);
    reply->status = ek_gateway_fault_status(fault->kind);
    reply->content_type = "application/json";
    reply->retry_s = ek_gateway_fault_retry_s(fault->kind);
    reply->code = ek_gateway_fault_code(fault->kind);
    ek_log(EK_LOG_DEBUG, "gateway", "fault", "id=%s code=%s param=\"%s\" reason=\"%s\"",
           call->request_id, reply->code, fault->param, fault->message);
}

void ek_gateway_call_json(ek_call *call)
{
    if (call->reply.body.failed) {
        ek_fault fault;
        ek_gateway_fault_set(&fault, EK_FAULT_INTERNAL, NULL, "no memory for the answer");
        ek_gateway_call_fault(call, &fault);
        return;
    }
    call->reply.status = 200;
    call->reply.content_type = "application/json";
}

void ek_gateway_call_resume_locked(ek_call *call)
{
    if (!call->suspended || !call->mhd) return;
    call->suspended = false;
    MHD_resume_connection(call->mhd);
}

void ek_gateway_call_ready_locked(ek_call *call)
{
    if (call->phase == EK_CALL_WORKING || call->phase == EK_CALL_WAITING)
        call->phase = EK_CALL_READY;
    ek_gateway_call_resume_locked(call);
}

static void suspend_locked(ek_call *call)
{
    MHD_suspend_connection(call->mhd);
    call->suspended = true;
}

/* ---- on the loop ---- */

/* The body cannot be kept: what still comes is swallowed, and then the fault is the answer. */
static bool give_up_body(ek_call *call, const char *why)
{
    ek_fault fault;
    ek_gateway_fault_set(&fault, EK_FAULT_OVERLOADED, NULL, "%s", why);
    ek_gateway_call_fault(call, &fault);
    drop_body(call);
    call->route = NULL;
    call->wants_body = false;
    return true;
}

bool ek_gateway_call_body(ek_call *call, ek_str bytes)
{
    if (!call->wants_body) return true;
    size_t max = call->gateway->params.body_bytes_max;
    if (bytes.len > max - call->body.len) return false;
    ek_gauge *held = call->gateway->counters.body_bytes;
    int64_t room = (int64_t)max * BODIES_MAX - ek_gauge_get(held);
    if ((int64_t)bytes.len > room)
        return give_up_body(call, "too many large requests are being read at once");
    size_t before = call->body.cap;
    ek_gateway_buf_add(&call->body, bytes);
    ek_gauge_add(held, (int64_t)(call->body.cap - before));
    return !call->body.failed || give_up_body(call, "no memory for the request's body");
}

/* Hand the complete request to a worker. The connection sleeps before the worker can wake it. */
static ek_call_step send_to_worker_locked(ek_call *call)
{
    call->phase = EK_CALL_WORKING;
    suspend_locked(call);
    if (ek_gateway_workers_push(call->gateway->workers, call) == EK_OK) return EK_CALL_STEP_WAIT;
    ek_fault fault;
    ek_gateway_fault_set(&fault, EK_FAULT_OVERLOADED, NULL, "too many requests wait to be read");
    ek_gateway_call_fault(call, &fault);
    ek_gateway_call_ready_locked(call);
    return EK_CALL_STEP_WAIT;
}

static ek_call_step advance_locked(ek_call *call, bool hung_up)
{
    switch (call->phase) {
    case EK_CALL_READING:
        if (call->route && call->route->on_worker && hung_up) call->gone = true;
        if (call->gone) return EK_CALL_STEP_CLOSE;
        if (call->route && call->route->on_worker) return send_to_worker_locked(call);
        if (call->route) call->route->run(call);
        call->phase = EK_CALL_SENT;
        return EK_CALL_STEP_REPLY;
    case EK_CALL_READY: call->phase = EK_CALL_SENT; return EK_CALL_STEP_REPLY;
    case EK_CALL_STREAMING: return EK_CALL_STEP_STREAM;
    case EK_CALL_WORKING:
    case EK_CALL_WAITING: /* woken for nothing */
        if (!call->suspended) suspend_locked(call);
        return EK_CALL_STEP_WAIT;
    case EK_CALL_SENT:
    case EK_CALL_ENDED: break;
    }
    return EK_CALL_STEP_CLOSE;
}

ek_call_step ek_gateway_call_advance(ek_call *call, bool hung_up)
{
    ek_sys_mutex_lock(&call->lock);
    ek_call_step step = call->gone ? EK_CALL_STEP_CLOSE : advance_locked(call, hung_up);
    if ((step == EK_CALL_STEP_REPLY || step == EK_CALL_STEP_STREAM) && call->first_byte_us == 0)
        call->first_byte_us = ek_gateway_call_age_us(call);
    ek_sys_mutex_unlock(&call->lock);
    return step;
}

static bool wants_more(const ek_generation *generation)
{
    for (int32_t i = 0; i < generation->n_choices; i++)
        if (generation->choice[i].stalled) return generation->out.len <= EK_STREAM_LOW_BYTES;
    return false;
}

int64_t ek_gateway_call_stream(ek_call *call, char *out_bytes, size_t max)
{
    ek_sys_mutex_lock(&call->lock);
    ek_generation *generation = call->generation;
    size_t n = generation->out.len < max ? generation->out.len : max;
    int64_t result = (int64_t)n;
    if (call->gone) {
        result = -1;
    } else if (n > 0) {
        memcpy(out_bytes, generation->out.data, n);
        ek_gateway_buf_consume(&generation->out, n);
        if (wants_more(generation)) ek_gateway_pump_kick(call->gateway->pump, call);
    } else if (generation->out_done) {
        result = -1;
    } else {
        suspend_locked(call);
    }
    ek_sys_mutex_unlock(&call->lock);
    return result;
}

static void abandon_locked(ek_call *call)
{
    call->gone = true;
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
static void log_end(const ek_call *call, int32_t status, int64_t age_us)
{
    ek_usage usage = {0};
    if (call->generation) ek_gateway_generation_usage(call->generation, &usage);
    ek_str path = {call->path.data, call->path.len > PATH_LOG_MAX ? PATH_LOG_MAX : call->path.len};
    ek_log(level_of(status), "gateway", "request",
           "id=%s client=%s path=\"%.*s\" status=%d code=%s stream=%d ms=%.1f first_byte_ms=%.1f "
           "prompt_tokens=%d completion_tokens=%d",
           call->request_id, call->client, EK_STR_ARG(path), status,
           call->phase == EK_CALL_SENT && call->reply.code ? call->reply.code : "-",
           call->phase == EK_CALL_STREAMING, (double)age_us * 1e-3,
           (double)call->first_byte_us * 1e-3, usage.prompt_tokens, usage.completion_tokens);
}

static void note_end_locked(const ek_call *call, bool complete)
{
    const ek_counters *counters = &call->gateway->counters;
    int64_t age_us = ek_gateway_call_age_us(call);
    int32_t status = CLIENT_GONE;
    if (complete) status = call->phase == EK_CALL_STREAMING ? 200 : call->reply.status;
    ek_gateway_counters_answered(counters, status);
    ek_hist_record(counters->duration, (uint64_t)age_us);
    if (call->first_byte_us) ek_hist_record(counters->first_byte, (uint64_t)call->first_byte_us);
    log_end(call, status, age_us);
}

void ek_gateway_call_end(ek_call *call, bool complete, bool answered)
{
    ek_sys_mutex_lock(&call->lock);
    if (!complete && !call->gone) abandon_locked(call);
    complete = complete && !call->gone;
    if (call->phase == EK_CALL_STREAMING) ek_gauge_add(call->gateway->counters.streams_open, -1);
    if (!answered) note_end_locked(call, complete);
    call->phase = EK_CALL_ENDED;
    call->mhd = NULL;
    call->suspended = false;
    ek_sys_mutex_unlock(&call->lock);
    ek_gateway_call_unref(call);
}

/* ---- any thread ---- */

void ek_gateway_call_abort(ek_call *call)
{
    ek_sys_mutex_lock(&call->lock);
    /* A quick route answers even a client that has closed its side; what takes time is dropped. */
    bool waits = call->phase == EK_CALL_WORKING || call->phase == EK_CALL_WAITING ||
                 call->phase == EK_CALL_STREAMING ||
                 (call->phase == EK_CALL_READING && call->route && call->route->on_worker);
    if (waits && !call->gone) {
        abandon_locked(call);
        ek_gateway_call_resume_locked(call);
    }
    ek_sys_mutex_unlock(&call->lock);
}

void ek_gateway_call_cut(ek_call *call, const ek_fault *fault)
{
    ek_sys_mutex_lock(&call->lock);
    bool generates = call->phase == EK_CALL_WAITING || call->phase == EK_CALL_STREAMING;
    if (generates && !call->generation->over) {
        ek_gateway_generation_fail_locked(call, fault);
        ek_gateway_pump_kick(call->gateway->pump, call);
    }
    ek_sys_mutex_unlock(&call->lock);
}
