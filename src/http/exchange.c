#include "http/exchange.h"

#include <microhttpd.h>

#include "base/assert.h"
#include "http/service.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/mem.h"

#define CLIENT_GONE 499 /* for log and metrics: nobody is there to read it */

int64_t ek_http_exchange_age_us(const ek_exchange *exchange)
{
    return ek_sys_now_us() - exchange->start_us;
}

/* ---- life ---- */

/* A part of the head into memory that outlives it. */
static ek_str copy_part(char **at, ek_str part)
{
    ek_str copy = {*at, part.len};
    if (part.len) memcpy(*at, part.data, part.len);
    *at += part.len;
    return copy;
}

/* What is needed of a head after its connection went on to the next one. */
static bool copy_head(ek_exchange *exchange, const ek_head *head)
{
    ek_str accept = {0};
    (void)ek_http_head_field(head, "accept", &accept);
    char *at = ek_sys_calloc(head->path.len + head->query.len + accept.len + 1, 1);
    if (!at) return false;
    exchange->head = at;
    exchange->path = copy_part(&at, head->path);
    exchange->query = copy_part(&at, head->query);
    exchange->accept = copy_part(&at, accept);
    return true;
}

ek_exchange *ek_http_exchange_begin(const ek_http_service *service, void *ctx, const ek_conn *conn,
                                    struct MHD_Connection *mhd)
{
    const ek_head *head = &conn->head;
    ek_exchange *exchange = service->handler->create(ctx);
    if (!exchange) return NULL;
    atomic_init(&exchange->refs, 1);
    exchange->service = service;
    exchange->mhd = mhd;
    exchange->start_us = ek_sys_now_us();
    ek_sys_mutex_init(&exchange->lock);
    ek_http_request_id_of(head, exchange->request_id);
    ek_http_traceparent_of(head, exchange->trace_id);
    ek_http_ip_text(conn->ip, exchange->client);
    ek_gauge_add(service->counters.requests_open, 1);
    if (!copy_head(exchange, head)) {
        ek_http_exchange_unref(exchange);
        return NULL;
    }
    service->handler->begin(exchange, head);
    return exchange;
}

ek_exchange *ek_http_exchange_ref(ek_exchange *exchange)
{
    atomic_fetch_add_explicit(&exchange->refs, 1, memory_order_relaxed);
    return exchange;
}

static void drop_body(ek_exchange *exchange)
{
    ek_gauge_add(exchange->service->counters.body_bytes, -(int64_t)exchange->body.cap);
    ek_http_buf_fini(&exchange->body);
}

void ek_http_exchange_unref(ek_exchange *exchange)
{
    /* Release what this thread did, acquire what the others did, before the last one frees. */
    if (atomic_fetch_sub_explicit(&exchange->refs, 1, memory_order_acq_rel) > 1) return;
    drop_body(exchange);
    ek_http_buf_fini(&exchange->reply.body);
    ek_http_buf_fini(&exchange->stream);
    ek_sys_mutex_fini(&exchange->lock);
    ek_sys_free(exchange->head);
    ek_gauge_add(exchange->service->counters.requests_open, -1);
    /* Last: whoever waits for all exchanges to end may free the service a moment later. */
    exchange->service->handler->destroy(exchange);
}

/* ---- replies ---- */

void ek_http_exchange_fault(ek_exchange *exchange, const ek_fault *fault)
{
    ek_reply *reply = &exchange->reply;
    ek_http_buf_clear(&reply->body);
    ek_http_fault_json(fault, &reply->body);
    reply->status = fault->kind->status;
    reply->content_type = "application/json";
    reply->retry_s = fault->kind->retry_s;
    reply->code = fault->kind->code;
    ek_log(EK_LOG_DEBUG, "http", "fault", "id=%s code=%s param=\"%s\" reason=\"%s\"",
           exchange->request_id, reply->code, fault->param, fault->message);
}

void ek_http_exchange_json(ek_exchange *exchange)
{
    if (exchange->reply.body.failed) {
        ek_fault fault;
        ek_http_fault_set(&fault, &ek_http_fault_internal, NULL, "no memory for the answer");
        ek_http_exchange_fault(exchange, &fault);
        return;
    }
    exchange->reply.status = 200;
    exchange->reply.content_type = "application/json";
}

static void resume_locked(ek_exchange *exchange)
{
    if (!exchange->suspended || !exchange->mhd) return;
    exchange->suspended = false;
    MHD_resume_connection(exchange->mhd);
}

static void suspend_locked(ek_exchange *exchange)
{
    MHD_suspend_connection(exchange->mhd);
    exchange->suspended = true;
}

void ek_http_exchange_ready_locked(ek_exchange *exchange)
{
    if (exchange->phase == EK_EXCHANGE_WORKING || exchange->phase == EK_EXCHANGE_WAITING)
        exchange->phase = EK_EXCHANGE_READY;
    resume_locked(exchange);
}

/* ---- streams ---- */

void ek_http_exchange_stream_locked(ek_exchange *exchange)
{
    if (exchange->phase != EK_EXCHANGE_WAITING) return;
    exchange->phase = EK_EXCHANGE_STREAMING;
    ek_gauge_add(exchange->service->counters.streams_open, 1);
}

void ek_http_exchange_flush_locked(ek_exchange *exchange, int64_t now_us)
{
    exchange->stream_us = now_us;
    resume_locked(exchange);
}

int64_t ek_http_exchange_stream(ek_exchange *exchange, char *out_bytes, size_t max)
{
    ek_sys_mutex_lock(&exchange->lock);
    ek_buf *stream = &exchange->stream;
    size_t n = stream->len < max ? stream->len : max;
    int64_t result = (int64_t)n;
    if (exchange->gone) {
        result = -1;
    } else if (n > 0) {
        memcpy(out_bytes, stream->data, n);
        ek_http_buf_consume(stream, n);
        if (stream->len <= EK_STREAM_LOW_BYTES) exchange->service->handler->room(exchange);
    } else if (exchange->stream_done) {
        result = -1;
    } else {
        suspend_locked(exchange);
    }
    ek_sys_mutex_unlock(&exchange->lock);
    return result;
}

/* ---- on the loop ---- */

/* The body cannot be kept: what still comes is swallowed, and then the fault is the answer. */
static bool give_up_body(ek_exchange *exchange, const char *why)
{
    ek_fault fault;
    ek_http_fault_set(&fault, &ek_http_fault_overloaded, NULL, "%s", why);
    ek_http_exchange_fault(exchange, &fault);
    drop_body(exchange);
    exchange->plan = EK_EXCHANGE_REPLY;
    exchange->wants_body = false;
    return true;
}

bool ek_http_exchange_body(ek_exchange *exchange, ek_str bytes)
{
    if (!exchange->wants_body) return true;
    const ek_http_limits *limits = &exchange->service->limits;
    if (bytes.len > limits->body_bytes_max - exchange->body.len) return false;
    ek_gauge *held = exchange->service->counters.body_bytes;
    int64_t room = (int64_t)limits->bodies_bytes_max - ek_gauge_get(held);
    if ((int64_t)bytes.len > room)
        return give_up_body(exchange, "too many large requests are being read at once");
    size_t before = exchange->body.cap;
    ek_http_buf_add(&exchange->body, bytes);
    ek_gauge_add(held, (int64_t)(exchange->body.cap - before));
    return !exchange->body.failed || give_up_body(exchange, "no memory for the request's body");
}

/* Hand the complete request to a worker. The connection sleeps before the worker can wake it. */
static ek_exchange_step send_to_worker_locked(ek_exchange *exchange)
{
    exchange->phase = EK_EXCHANGE_WORKING;
    suspend_locked(exchange);
    if (ek_http_workers_push(exchange->service->workers, exchange) == EK_OK)
        return EK_EXCHANGE_STEP_WAIT;
    ek_fault fault;
    ek_http_fault_set(&fault, &ek_http_fault_overloaded, NULL, "too many requests wait to be read");
    ek_http_exchange_fault(exchange, &fault);
    ek_http_exchange_ready_locked(exchange);
    return EK_EXCHANGE_STEP_WAIT;
}

static ek_exchange_step begin_answer_locked(ek_exchange *exchange, bool hung_up)
{
    switch (exchange->plan) {
    case EK_EXCHANGE_ON_WORKER:
        if (hung_up) exchange->gone = true;
        if (exchange->gone) return EK_EXCHANGE_STEP_CLOSE;
        return send_to_worker_locked(exchange);
    case EK_EXCHANGE_ON_LOOP: exchange->service->handler->run(exchange); break;
    case EK_EXCHANGE_REPLY: break;
    }
    exchange->phase = EK_EXCHANGE_SENT;
    return EK_EXCHANGE_STEP_REPLY;
}

static ek_exchange_step advance_locked(ek_exchange *exchange, bool hung_up)
{
    switch (exchange->phase) {
    case EK_EXCHANGE_READING: return begin_answer_locked(exchange, hung_up);
    case EK_EXCHANGE_READY: exchange->phase = EK_EXCHANGE_SENT; return EK_EXCHANGE_STEP_REPLY;
    case EK_EXCHANGE_STREAMING: return EK_EXCHANGE_STEP_STREAM;
    case EK_EXCHANGE_WORKING:
    case EK_EXCHANGE_WAITING: /* woken for nothing */
        if (!exchange->suspended) suspend_locked(exchange);
        return EK_EXCHANGE_STEP_WAIT;
    case EK_EXCHANGE_SENT:
    case EK_EXCHANGE_ENDED: break;
    }
    return EK_EXCHANGE_STEP_CLOSE;
}

ek_exchange_step ek_http_exchange_advance(ek_exchange *exchange, bool hung_up)
{
    ek_sys_mutex_lock(&exchange->lock);
    ek_exchange_step step =
        exchange->gone ? EK_EXCHANGE_STEP_CLOSE : advance_locked(exchange, hung_up);
    bool begins = step == EK_EXCHANGE_STEP_REPLY || step == EK_EXCHANGE_STEP_STREAM;
    if (begins && exchange->first_byte_us == 0)
        exchange->first_byte_us = ek_http_exchange_age_us(exchange);
    ek_sys_mutex_unlock(&exchange->lock);
    return step;
}

static void abandon_locked(ek_exchange *exchange)
{
    exchange->gone = true;
    exchange->service->handler->abandon(exchange);
}

static void note_end_locked(const ek_exchange *exchange, bool complete)
{
    const ek_http_counters *counters = &exchange->service->counters;
    int64_t age_us = ek_http_exchange_age_us(exchange);
    int32_t status = CLIENT_GONE;
    if (complete) status = exchange->phase == EK_EXCHANGE_STREAMING ? 200 : exchange->reply.status;
    ek_http_counters_answered(counters, status);
    ek_hist_record(counters->duration, (uint64_t)age_us);
    if (exchange->first_byte_us)
        ek_hist_record(counters->first_byte, (uint64_t)exchange->first_byte_us);
    exchange->service->handler->ended(exchange, status, age_us);
}

void ek_http_exchange_end(ek_exchange *exchange, bool complete, bool answered)
{
    ek_sys_mutex_lock(&exchange->lock);
    if (!complete && !exchange->gone) abandon_locked(exchange);
    complete = complete && !exchange->gone;
    if (exchange->phase == EK_EXCHANGE_STREAMING)
        ek_gauge_add(exchange->service->counters.streams_open, -1);
    if (!answered) note_end_locked(exchange, complete);
    exchange->phase = EK_EXCHANGE_ENDED;
    exchange->mhd = NULL;
    exchange->suspended = false;
    ek_sys_mutex_unlock(&exchange->lock);
    ek_http_exchange_unref(exchange);
}

/* ---- any thread ---- */

void ek_http_exchange_abort(ek_exchange *exchange)
{
    ek_sys_mutex_lock(&exchange->lock);
    ek_exchange_phase phase = exchange->phase;
    /* A quick request is answered even if its client closed its side; others are dropped. */
    bool waits = phase == EK_EXCHANGE_WORKING || phase == EK_EXCHANGE_WAITING ||
                 phase == EK_EXCHANGE_STREAMING ||
                 (phase == EK_EXCHANGE_READING && exchange->plan == EK_EXCHANGE_ON_WORKER);
    if (waits && !exchange->gone) {
        abandon_locked(exchange);
        resume_locked(exchange);
    }
    ek_sys_mutex_unlock(&exchange->lock);
}
