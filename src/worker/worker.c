#include "worker/worker.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "link/fabric_tcp.h"
#include "link/fabric_ucx.h"
#include "link/net.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/mem.h"
#include "worker/worker_internal.h"

#define ACCEPT_US     200000  /* between two looks whether to end */
#define FULL_US       50000   /* a pause when there are no descriptors */
#define GREETING_US   5000000 /* handshake and first message are there by then */
#define SETTLE_US     500000  /* without a dispatch: fronts have heard of the drain */
#define DRAIN_LOOK_US 20000

/* ---- seats ---- */

static ek_worker_seat *take_seat(ek_worker *worker)
{
    ek_worker_seat *found = NULL;
    ek_sys_mutex_lock(&worker->lock);
    for (int i = 0; i < EK_WORKER_SEATS && !found; i++) {
        ek_worker_seat *seat = &worker->seats[i];
        if (seat->state == EK_SEAT_TAKEN) continue;
        if (seat->state == EK_SEAT_LEFT) ek_sys_thread_join(&seat->thread); /* it is at its end */
        seat->state = EK_SEAT_TAKEN;
        found = seat;
    }
    ek_sys_mutex_unlock(&worker->lock);
    return found;
}

static void leave_seat(ek_worker_seat *seat)
{
    ek_worker *worker = seat->worker;
    ek_sys_mutex_lock(&worker->lock);
    ek_link *link = seat->link;
    seat->link = NULL;
    ek_sys_mutex_unlock(&worker->lock);
    ek_link_close(link);
    ek_sys_mutex_lock(&worker->lock);
    seat->state = EK_SEAT_LEFT;
    ek_sys_cond_broadcast(&worker->left);
    ek_sys_mutex_unlock(&worker->lock);
}

/* ---- greeting ---- */

void ek_worker_refuse(ek_worker_seat *seat, const char *why)
{
    ek_wire_header header = ek_link_wire_header(EK_WIRE_REFUSE, 0);
    ek_span text = {(const uint8_t *)why, strlen(why)};
    if (text.len > EK_WIRE_TEXT_MAX) text.len = EK_WIRE_TEXT_MAX;
    header.body_bytes = (uint32_t)text.len;
    ek_log(EK_LOG_WARN, "cluster", "refused", "peer=\"%s\" why=\"%s\"", seat->link->peer, why);
    ek_worker_turned_away(seat->worker, EK_WORKER_REFUSED);
    seat->link->lingers = true;
    /* Whether it arrives is the peer's concern. */
    (void)!ek_link_send(seat->link, &header, text, ek_sys_now_us() + GREETING_US);
}

static void turn_away(ek_worker_seat *seat, const char *why)
{
    ek_log(EK_LOG_WARN, "cluster", "stranger", "peer=\"%s\" why=\"%s\"", seat->link->peer, why);
    ek_worker_turned_away(seat->worker, EK_WORKER_STRANGER);
}

/* Its first message decides what a connection is. */
static void greet(ek_worker_seat *seat)
{
    union {
        ek_wire_hello hello;
        uint8_t bytes[64];
    } body;
    ek_err err = {0};
    ek_wire_header header;
    int64_t deadline_us = ek_sys_now_us() + GREETING_US;
    ek_status status = seat->link->ops->handshake(seat->link, deadline_us, &err);
    if (status != EK_OK) {
        turn_away(seat, err.text);
        return;
    }
    status = ek_link_receive(seat->link, &header, &body, sizeof body, deadline_us);
    if (status == EK_EUNSUPPORTED) {
        ek_worker_refuse(seat, seat->link->broken.text);
    } else if (status != EK_OK) {
        turn_away(seat, status == EK_AGAIN ? "it said nothing" : seat->link->broken.text);
    } else if (header.kind == EK_WIRE_HELLO && seat->link->is_worker) {
        ek_worker_refuse(seat, "a worker's certificate is none for a front");
    } else if (header.kind == EK_WIRE_HELLO && seat->is_control) {
        ek_worker_control(seat, &header, &body);
    } else if (header.kind == EK_WIRE_READ && seat->is_control && seat->link->is_worker) {
        ek_worker_moves_serve(seat, &header, &body);
    } else if (header.kind == EK_WIRE_ATTACH) {
        ek_worker_data(seat, &header, &body);
    } else {
        ek_worker_refuse(seat, "a connection begins with HELLO or ATTACH");
    }
}

static void seat_main(void *ctx)
{
    ek_worker_seat *seat = ctx;
    greet(seat);
    leave_seat(seat);
}

/* ---- doors ---- */

void ek_worker_seat_take(ek_worker *worker, ek_link *link, bool is_control)
{
    ek_worker_seat *seat = take_seat(worker);
    if (!seat) {
        ek_log(EK_LOG_WARN, "cluster", "full", "peer=\"%s\" connections=%d", link->peer,
               EK_WORKER_SEATS);
        ek_worker_turned_away(worker, EK_WORKER_FULL);
        ek_link_close(link);
        return;
    }
    /* Under the lock, so that nobody joins a thread whose handle is not there yet. */
    ek_sys_mutex_lock(&worker->lock);
    seat->link = link;
    seat->is_control = is_control;
    ek_status status = ek_sys_thread_start(&seat->thread, "ek-front", seat_main, seat);
    if (status != EK_OK) {
        seat->link = NULL;
        seat->state = EK_SEAT_FREE;
    }
    ek_sys_mutex_unlock(&worker->lock);
    if (status != EK_OK) ek_link_close(link);
}

static void keep_door(ek_worker *worker, const ek_fabric *fabric, ek_listener *listener,
                      bool is_control)
{
    while (!atomic_load_explicit(&worker->stopping, memory_order_acquire)) {
        ek_link *link;
        ek_status status = fabric->ops->accept(listener, ACCEPT_US, &link);
        if (status == EK_OK)
            ek_worker_seat_take(worker, link, is_control);
        else if (status == EK_EFULL)
            ek_sys_sleep_us(FULL_US);
    }
}

static void control_door(void *ctx)
{
    ek_worker *worker = ctx;
    keep_door(worker, worker->tls, worker->listener, true);
}

static void plain_door(void *ctx)
{
    ek_worker *worker = ctx;
    keep_door(worker, worker->tcp, worker->plain, false);
}

/* ---- life ---- */

static ek_status make_welcome(ek_worker *worker)
{
    const ek_expert_set *set = &worker->resident->setup.set;
    size_t set_bytes = ek_link_set_bytes(set->n_layers, set->n_experts);
    worker->welcome_bytes = sizeof(ek_wire_welcome) + set_bytes;
    worker->welcome = ek_sys_calloc(1, worker->welcome_bytes);
    if (!worker->welcome) return EK_ENOMEM;
    const ek_wire_welcome welcome = {
        .weight_bytes = (uint64_t)worker->resident->expert_bytes,
        .n_threads = ek_sys_pool_threads(worker->resident->pool),
        .plain_port = ek_worker_plain_port(worker),
        .fabrics = (uint16_t)(EK_WIRE_CAN_PROBE | (worker->ucx ? EK_WIRE_FABRIC_UCX : 0)),
    };
    memcpy(worker->welcome, &welcome, sizeof welcome);
    memcpy(worker->welcome + sizeof welcome, set->bits, set_bytes);
    return EK_OK;
}

/* A bare listener where the configuration asks for one, or where nothing leaves the machine. */
static ek_status open_plain(ek_worker *worker, const char *host, ek_err *err)
{
    bool is_v6 = strchr(host, ':') != NULL;
    char address[EK_NET_HOST_MAX + 8];
    ek_link_fabric_choice choice = worker->params.fabric;
    if (choice == EK_LINK_FABRIC_UCX) return ek_link_fabric_ucx(&worker->ucx, err);
    if (choice == EK_LINK_FABRIC_TLS ||
        (choice == EK_LINK_FABRIC_AUTO && !ek_link_net_is_loopback(host)))
        return EK_OK;
    snprintf(address, sizeof address, is_v6 ? "[%s]:0" : "%s:0", host);
    ek_status status = ek_link_fabric_tcp(&worker->tcp, err);
    if (status == EK_OK)
        status = worker->tcp->ops->listen(worker->tcp, address, &worker->plain, err);
    return status;
}

static ek_status open_doors(ek_worker *worker, ek_err *err)
{
    char host[EK_NET_HOST_MAX];
    uint16_t port;
    ek_status status = ek_link_net_split(worker->params.listen, host, &port, err);
    if (status == EK_OK) status = ek_link_fabric_tls(worker->params.certs, &worker->tls, err);
    if (status == EK_OK)
        status =
            worker->tls->ops->listen(worker->tls, worker->params.listen, &worker->listener, err);
    if (status == EK_OK) status = open_plain(worker, host, err);
    if (status != EK_OK) return status;
    bool is_v6 = strchr(host, ':') != NULL;
    snprintf(worker->address, sizeof worker->address, is_v6 ? "[%.100s]:%u" : "%.100s:%u", host,
             (unsigned)worker->tls->ops->port(worker->listener));
    if (make_welcome(worker) != EK_OK) return ek_err_set(err, EK_ENOMEM, "no memory for a worker");
    status = ek_worker_moves_open(worker, err);
    if (status != EK_OK) return status;
    status = ek_sys_thread_start(&worker->doors[0], "ek-door", control_door, worker);
    if (status == EK_OK && worker->plain)
        status = ek_sys_thread_start(&worker->doors[1], "ek-door", plain_door, worker);
    return status == EK_OK ? EK_OK : ek_err_set(err, status, "cannot start the worker's threads");
}

ek_status ek_worker_create(const ek_worker_params *params, ek_resident *resident,
                           ek_worker **out_worker, ek_err *err)
{
    const ek_model *model = resident->setup.file->model;
    ek_worker *worker = ek_sys_calloc(1, sizeof *worker);
    if (!worker) return ek_err_set(err, EK_ENOMEM, "no memory for a worker");
    worker->params = *params;
    worker->resident = resident;
    worker->shape = (ek_wire_shape){
        .n_layers = model->params.n_layers,
        .n_experts = model->params.n_experts,
        .d_model = model->params.d_model,
        .top_k = model->params.top_k,
        .tokens_max = params->tokens_max,
    };
    ek_sys_mutex_init(&worker->lock);
    ek_sys_cond_init(&worker->left);
    for (int i = 0; i < EK_WORKER_SEATS; i++)
        worker->seats[i].worker = worker;
    ek_status status = EK_OK;
    if (resident->setup.identity)
        memcpy(worker->identity, resident->setup.identity, sizeof worker->identity);
    else
        status = ek_expert_identity(model->gguf, worker->identity);
    status =
        status == EK_OK ? open_doors(worker, err) : ek_err_set(err, status, "no memory to hash");
    if (status != EK_OK) {
        ek_worker_destroy(worker);
        return status;
    }
    *out_worker = worker;
    return EK_OK;
}

const char *ek_worker_address(const ek_worker *worker)
{
    return worker->address;
}

uint16_t ek_worker_plain_port(const ek_worker *worker)
{
    return worker->plain ? worker->tcp->ops->port(worker->plain) : 0;
}

int32_t ek_worker_fronts(const ek_worker *worker)
{
    ek_worker *w = (ek_worker *)(uintptr_t)worker; /* its lock is not part of what is looked at */
    int32_t n = 0;
    ek_sys_mutex_lock(&w->lock);
    for (int32_t i = 0; i < w->params.fronts_max; i++)
        n += w->fronts[i].is_used;
    ek_sys_mutex_unlock(&w->lock);
    return n;
}

bool ek_worker_healthy(const ek_worker *worker, int64_t limit_us)
{
    int64_t since_us =
        atomic_load_explicit(&worker->resident->computing_since_us, memory_order_relaxed);
    return since_us == 0 || ek_sys_now_us() - since_us <= limit_us;
}

void ek_worker_figures_read(const ek_worker *worker, ek_worker_figures *out_figures)
{
    const ek_resident *r = worker->resident;
    *out_figures = (ek_worker_figures){
        .n_fronts = ek_worker_fronts(worker),
        .n_waiting = atomic_load_explicit(&r->n_waiting, memory_order_relaxed),
        .fronts_joined = atomic_load_explicit(&worker->n_joined, memory_order_relaxed),
        .layers = atomic_load_explicit(&worker->n_layers, memory_order_relaxed),
        .rows = atomic_load_explicit(&worker->n_rows, memory_order_relaxed),
        .busy_us = atomic_load_explicit(&r->busy_us, memory_order_relaxed),
        .draining = atomic_load_explicit(&worker->draining, memory_order_acquire),
    };
    for (int i = 0; i < EK_WORKER_REFUSALS; i++)
        out_figures->refused[i] = atomic_load_explicit(&worker->n_refused[i], memory_order_relaxed);
}

ek_status ek_worker_drain(ek_worker *worker, int64_t timeout_us)
{
    int64_t beg_us = ek_sys_now_us();
    ek_status status = EK_OK;
    atomic_store_explicit(&worker->draining, true, memory_order_release);
    while (ek_worker_fronts(worker) > 0 && status == EK_OK) {
        int64_t now_us = ek_sys_now_us();
        int64_t last_us = atomic_load_explicit(&worker->last_dispatch_us, memory_order_relaxed);
        if (now_us - beg_us >= SETTLE_US && now_us - last_us >= SETTLE_US) break;
        if (now_us - beg_us >= timeout_us) status = EK_ETIMEOUT;
        ek_sys_sleep_us(DRAIN_LOOK_US);
    }
    atomic_store_explicit(&worker->leaving, true, memory_order_release);
    int64_t until_us = ek_sys_now_us() + SETTLE_US; /* for the good-byes */
    while (ek_worker_fronts(worker) > 0 && ek_sys_now_us() < until_us)
        ek_sys_sleep_us(DRAIN_LOOK_US);
    return status;
}

void ek_worker_destroy(ek_worker *worker)
{
    if (!worker) return;
    atomic_store_explicit(&worker->stopping, true, memory_order_release);
    ek_sys_thread_join(&worker->doors[0]);
    ek_sys_thread_join(&worker->doors[1]);
    ek_sys_mutex_lock(&worker->lock);
    for (int i = 0; i < EK_WORKER_SEATS; i++)
        if (worker->seats[i].link) worker->seats[i].link->ops->interrupt(worker->seats[i].link);
    ek_sys_mutex_unlock(&worker->lock);
    for (int i = 0; i < EK_WORKER_SEATS; i++)
        ek_sys_thread_join(&worker->seats[i].thread);
    ek_worker_moves_close(worker);
    if (worker->listener) worker->tls->ops->unlisten(worker->listener);
    if (worker->plain) worker->tcp->ops->unlisten(worker->plain);
    ek_link_fabric_destroy(worker->tls);
    ek_link_fabric_destroy(worker->tcp);
    ek_link_fabric_destroy(worker->ucx);
    for (int i = 0; i < EK_WORKER_FRONTS_MAX; i++)
        ek_worker_resident_desk_close(&worker->fronts[i].desk);
    ek_sys_cond_fini(&worker->left);
    ek_sys_mutex_fini(&worker->lock);
    ek_sys_free(worker->welcome);
    ek_sys_free(worker);
}
