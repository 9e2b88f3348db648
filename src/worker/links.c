/*
 * What runs on a worker's connections: a control connection's greeting and heartbeats, a data
 * connection's dispatches.
 */
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/mem.h"
#include "worker/worker_internal.h"

#define LOAD_US 100000 /* between two load reports */
#define FRONT_HUNG_US \
    3000000 /* without a word: a front on a busy machine is not dropped for less */
#define GREETING_US 5000000
#define SLICE_US    200000 /* of waiting for a dispatch, between two looks whether to end */

void ek_worker_load_report(const ek_worker *worker, ek_wire_header *header)
{
    const ek_resident *r = worker->resident;
    bool draining = atomic_load_explicit(&worker->draining, memory_order_acquire);
    header->busy_us = atomic_load_explicit(&r->busy_us, memory_order_relaxed);
    header->queue = atomic_load_explicit(&r->n_waiting, memory_order_relaxed);
    header->load_flags = draining ? EK_WIRE_LOAD_DRAINING : 0;
}

/* ---- letting a front in ---- */

/* Why a front cannot be served; EK_OK: it can. */
static ek_status examine(const ek_worker *worker, const ek_wire_header *header,
                         const ek_wire_hello *hello, ek_wire_shape *out_shape, ek_err *err)
{
    if (header->body_bytes != sizeof *hello)
        return ek_err_set(err, EK_EFORMAT, "a HELLO of %u bytes", (unsigned)header->body_bytes);
    const ek_wire_shape shape = {
        .n_layers = hello->n_layers,
        .n_experts = hello->n_experts,
        .d_model = hello->d_model,
        .top_k = hello->top_k,
        .tokens_max = hello->tokens_max,
    };
    ek_status status = ek_link_wire_shape_check(&shape, err);
    if (status != EK_OK) return status;
    if (memcmp(hello->model, worker->identity, sizeof hello->model) != 0 ||
        shape.n_layers != worker->shape.n_layers || shape.n_experts != worker->shape.n_experts ||
        shape.d_model != worker->shape.d_model || shape.top_k != worker->shape.top_k) {
        char own[EK_IDENTITY_HEX_MAX], theirs[EK_IDENTITY_HEX_MAX];
        ek_expert_identity_print(worker->identity, own);
        ek_expert_identity_print(hello->model, theirs);
        return ek_err_set(err, EK_EFORMAT,
                          "this worker has model %.16s..., the front %.16s...; give both the same "
                          "file",
                          own, theirs);
    }
    if (shape.tokens_max > worker->shape.tokens_max)
        return ek_err_set(err, EK_EFORMAT,
                          "steps of %d tokens, but this worker takes %d (worker.tokens_max)",
                          (int)shape.tokens_max, (int)worker->shape.tokens_max);
    *out_shape = shape;
    return EK_OK;
}

/* A place that nobody has, kept for whoever asks; its epoch is 0 until it is ready. */
static ek_worker_front *reserve(ek_worker *worker)
{
    ek_worker_front *front = NULL;
    ek_sys_mutex_lock(&worker->lock);
    for (int32_t i = 0; i < worker->params.fronts_max && !front; i++)
        if (!worker->fronts[i].is_used && !worker->fronts[i].is_attached)
            front = &worker->fronts[i];
    if (front) {
        front->is_used = true;
        front->epoch = 0;
        front->heeded = 0;
    }
    ek_sys_mutex_unlock(&worker->lock);
    return front;
}

static ek_status let_in(ek_worker *worker, const ek_wire_shape *shape, const char *name,
                        bool takes_moves, ek_worker_front **out_front, ek_err *err)
{
    uint8_t token[EK_WIRE_TOKEN_BYTES];
    if (RAND_bytes(token, sizeof token) != 1)
        return ek_err_set(err, EK_EINTERNAL, "OpenSSL has no random numbers");
    ek_worker_front *front = reserve(worker);
    if (!front)
        return ek_err_set(err, EK_EFULL, "this worker serves %d fronts already (worker.fronts_max)",
                          (int)worker->params.fronts_max);
    ek_worker_resident_desk_close(&front->desk);
    ek_status status = ek_worker_resident_desk_open(worker->resident, shape, &front->desk);
    /* From here on the thread of its data connection may find it, and sees the desk as it is. */
    ek_sys_mutex_lock(&worker->lock);
    if (status == EK_OK) {
        front->epoch = ++worker->next_epoch;
        front->n_dispatches = 0;
        front->takes_moves = takes_moves;
        memcpy(front->token, token, sizeof token);
        snprintf(front->name, sizeof front->name, "%s", name);
    } else {
        front->is_used = false;
    }
    ek_sys_mutex_unlock(&worker->lock);
    if (status != EK_OK)
        return ek_err_set(err, status, "this worker has no memory for another front");
    *out_front = front;
    return EK_OK;
}

/* Its data connection ends, too, and the place is free again once that has. */
static void let_out(ek_worker *worker, ek_worker_front *front)
{
    ek_sys_mutex_lock(&worker->lock);
    ek_worker_moves_left_locked(worker, front->epoch);
    front->is_used = false;
    memset(front->token, 0, sizeof front->token);
    if (front->data) front->data->ops->interrupt(front->data);
    ek_sys_cond_broadcast(&worker->left);
    ek_sys_mutex_unlock(&worker->lock);
}

static ek_status welcome(ek_worker_seat *seat, ek_worker_front *front)
{
    ek_worker *worker = seat->worker;
    ek_wire_header header = ek_link_wire_header(EK_WIRE_WELCOME, front->epoch);
    header.body_bytes = (uint32_t)worker->welcome_bytes;
    ek_worker_load_report(worker, &header);
    uint8_t *body = ek_sys_calloc(1, worker->welcome_bytes);
    if (!body) return EK_ENOMEM;
    ek_worker_moves_welcome(worker, front, body);
    ek_status status = ek_link_send(seat->link, &header, (ek_span){body, worker->welcome_bytes},
                                    ek_sys_now_us() + GREETING_US);
    ek_sys_free(body);
    return status == EK_OK ? ek_worker_moves_tell(seat, front) : status;
}

/* ---- heartbeats ---- */

/* The front's half of a data link came: answer with the other one. Its thread sees ATTACH first. */
static bool open_half(ek_worker_seat *seat, const ek_wire_header *open, const uint8_t *body)
{
    ek_worker *worker = seat->worker;
    uint8_t address[EK_WIRE_ADDRESS_MAX];
    ek_link *link = NULL;
    ek_err err = {0};
    const ek_fabric_ops *ops = worker->ucx ? worker->ucx->ops : NULL;
    ek_wire_header opened = ek_link_wire_header(EK_WIRE_OPENED, open->epoch);
    if (!ops || ops->open(worker->ucx, &link, &err) != EK_OK) return false;
    opened.body_bytes = (uint32_t)ops->address(link, address, sizeof address);
    ek_span answer = {address, opened.body_bytes};
    if (opened.body_bytes == 0 || ops->meet(link, body, open->body_bytes, &err) != EK_OK ||
        ek_link_send(seat->link, &opened, answer, ek_sys_now_us() + GREETING_US) != EK_OK) {
        ek_link_close(link);
        return false;
    }
    ek_worker_seat_take(worker, link, false);
    return true;
}

/* Reports and heartbeats until one of the two ends. @return why, for the log */
static const char *keep_in_touch(ek_worker_seat *seat, ek_worker_front *front, ek_err *err)
{
    const uint32_t epoch = front->epoch;
    ek_worker *worker = seat->worker;
    uint8_t body[EK_WIRE_ADDRESS_MAX];
    int64_t heard_us = ek_sys_now_us(), next_us = heard_us;
    uint64_t echo_us = 0;
    for (;;) {
        int64_t now_us = ek_sys_now_us();
        if (atomic_load_explicit(&worker->stopping, memory_order_acquire)) return "worker stops";
        bool leaves = atomic_load_explicit(&worker->leaving, memory_order_acquire);
        if (leaves || now_us >= next_us) {
            ek_wire_header header = ek_link_wire_header(leaves ? EK_WIRE_BYE : EK_WIRE_LOAD, epoch);
            ek_worker_load_report(worker, &header);
            header.echo_us = echo_us;
            if (ek_link_send(seat->link, &header, (ek_span){0}, now_us + GREETING_US) != EK_OK)
                return seat->link->broken.text;
            if (leaves) return "worker leaves";
            echo_us = 0;
            next_us = now_us + LOAD_US;
            if (ek_worker_moves_tell(seat, front) != EK_OK) return "it cannot be told what moves";
        }
        ek_wire_header header;
        ek_status status = ek_link_receive(seat->link, &header, body, sizeof body, next_us);
        if (status == EK_OK) {
            heard_us = ek_sys_now_us();
            if (header.kind == EK_WIRE_BEAT && header.epoch == epoch) {
                echo_us = header.echo_us;
                next_us = heard_us; /* at once: the front measures the way there and back */
            }
            if (header.kind == EK_WIRE_BYE) return "front leaves";
            bool is_of_moves = header.kind == EK_WIRE_HEED || header.kind == EK_WIRE_ORDER;
            if (is_of_moves && header.epoch == epoch &&
                ek_worker_moves_take(seat, front, &header, body, err) != EK_OK)
                return err->text;
            if (header.kind == EK_WIRE_OPEN && !open_half(seat, &header, body))
                return "no data link of that kind can be opened";
        } else if (status != EK_AGAIN) {
            return seat->link->broken.text;
        }
        if (ek_sys_now_us() - heard_us > FRONT_HUNG_US) return "the front says nothing any more";
    }
}

void ek_worker_control(ek_worker_seat *seat, const ek_wire_header *hello, const void *body)
{
    ek_worker *worker = seat->worker;
    ek_wire_shape shape;
    ek_worker_front *front = NULL;
    ek_err err = {0};
    if (atomic_load_explicit(&worker->draining, memory_order_acquire)) {
        ek_worker_refuse(seat, "this worker is about to end");
        return;
    }
    ek_status status = examine(worker, hello, body, &shape, &err);
    const ek_wire_hello *greeting = body;
    bool takes_moves = status == EK_OK && (greeting->features & EK_WIRE_HELLO_MOVES) != 0;
    if (status == EK_OK)
        status = let_in(worker, &shape, seat->link->peer, takes_moves, &front, &err);
    if (status != EK_OK) {
        ek_worker_refuse(seat, err.text);
        return;
    }
    uint32_t epoch = front->epoch;
    atomic_fetch_add_explicit(&worker->n_joined, 1, memory_order_relaxed);
    ek_log(EK_LOG_INFO, "cluster", "front_joined", "peer=\"%s\" epoch=%u tokens_max=%d",
           seat->link->peer, (unsigned)epoch, (int)shape.tokens_max);
    const char *why = "the front went while it was greeted";
    if (welcome(seat, front) == EK_OK) why = keep_in_touch(seat, front, &err);
    let_out(worker, front);
    ek_log(EK_LOG_INFO, "cluster", "front_left", "peer=\"%s\" epoch=%u why=\"%s\"",
           seat->link->peer, (unsigned)epoch, why);
}

/* ---- dispatches ---- */

/* Time does not tell how much of a secret was right. */
static ek_worker_front *find_front(ek_worker *worker, uint32_t epoch, const uint8_t *token)
{
    for (int32_t i = 0; i < worker->params.fronts_max; i++) {
        ek_worker_front *front = &worker->fronts[i];
        if (front->is_used && !front->is_attached && epoch != 0 && front->epoch == epoch &&
            CRYPTO_memcmp(front->token, token, EK_WIRE_TOKEN_BYTES) == 0)
            return front;
    }
    return NULL;
}

static ek_worker_front *attach(ek_worker_seat *seat, const ek_wire_header *header, const void *body)
{
    ek_worker *worker = seat->worker;
    ek_worker_front *front = NULL;
    ek_sys_mutex_lock(&worker->lock);
    if (header->body_bytes == EK_WIRE_TOKEN_BYTES) front = find_front(worker, header->epoch, body);
    if (front) {
        front->is_attached = true;
        front->data = seat->link;
    }
    ek_sys_mutex_unlock(&worker->lock);
    return front;
}

static void detach(ek_worker *worker, ek_worker_front *front)
{
    ek_sys_mutex_lock(&worker->lock);
    front->is_attached = false;
    front->data = NULL;
    ek_sys_cond_broadcast(&worker->left);
    ek_sys_mutex_unlock(&worker->lock);
}

static bool is_over(ek_worker *worker, const ek_worker_front *front)
{
    if (atomic_load_explicit(&worker->stopping, memory_order_acquire)) return true;
    ek_sys_mutex_lock(&worker->lock);
    bool over = !front->is_used;
    ek_sys_mutex_unlock(&worker->lock);
    return over;
}

/* A call that could not go on goes on, unless it is over. */
static ek_status patiently(ek_worker_seat *seat, const ek_worker_front *front, ek_status status)
{
    if (status != EK_AGAIN) return status;
    ek_link_wait(&seat->link, 1, SLICE_US);
    return is_over(seat->worker, front) ? EK_ECANCELED : EK_AGAIN;
}

static ek_status next_dispatch(ek_worker_seat *seat, ek_worker_front *front,
                               ek_wire_header *out_header, ek_err *err)
{
    ek_link *link = seat->link;
    ek_status status;
    while ((status = patiently(seat, front, link->ops->header(link, out_header))) == EK_AGAIN)
        continue;
    if (status == EK_OK &&
        ((out_header->kind != EK_WIRE_DISPATCH && out_header->kind != EK_WIRE_PROBE) ||
         out_header->epoch != front->epoch || out_header->body_bytes > front->desk.body_bytes))
        return ek_err_set(
            err, EK_EFORMAT,
            "a message of kind %d, epoch %u and %u bytes among dispatches of epoch %u",
            (int)out_header->kind, (unsigned)out_header->epoch, (unsigned)out_header->body_bytes,
            (unsigned)front->epoch);
    if (status != EK_OK) return status;
    while ((status = patiently(seat, front, link->ops->body(link, front->desk.body))) == EK_AGAIN)
        continue;
    return status;
}

/* The bytes of a PROBE, back to where they came from. */
static ek_status give_back(ek_worker_seat *seat, ek_worker_front *front,
                           const ek_wire_header *header)
{
    ek_link *link = seat->link;
    ek_wire_header out = ek_link_wire_header(EK_WIRE_PROBED, front->epoch);
    const ek_span body = {front->desk.body, header->body_bytes};
    out.seq = header->seq;
    out.body_bytes = header->body_bytes;
    ek_status status = patiently(seat, front, link->ops->send(link, &out, &body, 1));
    while (status == EK_AGAIN)
        status = patiently(seat, front, link->ops->flush(link));
    return status;
}

static ek_status answer(ek_worker_seat *seat, ek_worker_front *front, const ek_wire_header *header,
                        ek_err *err)
{
    ek_worker *worker = seat->worker;
    ek_link *link = seat->link;
    ek_wire_header out;
    ek_span parts[2];
    atomic_store_explicit(&worker->last_dispatch_us, ek_sys_now_us(), memory_order_relaxed);
    ek_status status =
        ek_worker_resident_compute(worker->resident, &front->desk, header, &out, parts, err);
    if (status != EK_OK) return status;
    atomic_fetch_add_explicit(&worker->n_layers, 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&worker->n_rows, (uint64_t)header->n_rows, memory_order_relaxed);
    ek_worker_load_report(worker, &out);
    out.echo_us = 0;
    status = patiently(seat, front, link->ops->send(link, &out, parts, EK_COUNT_OF(parts)));
    while (status == EK_AGAIN)
        status = patiently(seat, front, link->ops->flush(link));
    return status;
}

void ek_worker_data(ek_worker_seat *seat, const ek_wire_header *header, const void *body)
{
    ek_worker *worker = seat->worker;
    ek_worker_front *front = attach(seat, header, body);
    if (!front) {
        ek_worker_refuse(seat, "no front was given this secret");
        return;
    }
    ek_wire_header next = ek_link_wire_header(EK_WIRE_WELCOME, front->epoch);
    ek_err err = {0};
    ek_status status = ek_link_send(seat->link, &next, (ek_span){0}, ek_sys_now_us() + GREETING_US);
    while (status == EK_OK) {
        status = next_dispatch(seat, front, &next, &err);
        if (status != EK_OK) continue;
        status = next.kind == EK_WIRE_PROBE ? give_back(seat, front, &next)
                                            : answer(seat, front, &next, &err);
    }
    if (status == EK_EFORMAT || status == EK_ENOMEM)
        ek_log(EK_LOG_ERROR, "cluster", "bad_dispatch", "peer=\"%s\" why=\"%s\"", seat->link->peer,
               err.text[0] ? err.text : seat->link->broken.text);
    detach(worker, front);
}
