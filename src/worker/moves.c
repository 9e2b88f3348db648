#include "worker/moves.h"

#include <string.h>

#include "sys/clock.h"
#include "sys/log.h"
#include "sys/mem.h"
#include "worker/worker_internal.h"

#define HEED_US   10000000 /* for fronts to stop using what is to be given up */
#define LOOK_US   50000
#define ANSWER_US 5000000
#define IDLE_US   30000000 /* another worker that asks for nothing more */

/* ---- orders ---- */

static bool ends(ek_worker *worker)
{
    ek_sys_mutex_lock(&worker->lock);
    bool is_over = worker->moves.ends;
    ek_sys_mutex_unlock(&worker->lock);
    return is_over;
}

static bool goes_on(void *ctx)
{
    return !ends(ctx);
}

/* From now on it is offered, and counted. */
static void offer(ek_worker *worker, int32_t layer, int32_t expert, int64_t bytes)
{
    ek_worker_moves *m = &worker->moves;
    ek_sys_mutex_lock(&worker->lock);
    ek_link_set_add(&m->offered, layer, expert);
    ek_link_set_add(&m->acquired, layer, expert);
    m->used_bytes += bytes;
    m->generation++;
    m->outcome.n_done++;
    m->outcome_number++;
    ek_sys_mutex_unlock(&worker->lock);
}

static ek_status acquire(ek_worker *worker, const ek_wire_order *order, ek_err *err)
{
    ek_worker_moves *m = &worker->moves;
    int64_t each = ek_worker_resident_bytes(worker->resident, order->layer);
    ek_status status = EK_OK;
    for (int32_t i = 0; i < order->n_experts && status == EK_OK; i++) {
        int32_t expert = order->expert[i];
        ek_sys_mutex_lock(&worker->lock);
        bool is_here = ek_link_set_has(&m->offered, order->layer, expert);
        bool fits = each <= worker->params.experts_bytes_max - m->used_bytes;
        m->outcome.n_done += is_here;
        ek_sys_mutex_unlock(&worker->lock);
        if (is_here) continue;
        if (!fits)
            return ek_err_set(err, EK_EFULL,
                              "layer %d, expert %d: there is no room for it "
                              "(worker.experts_bytes_max)",
                              (int)order->layer, (int)expert);
        status = ek_worker_acquire(&m->setup, order, expert, &m->progress, err);
        if (status != EK_OK) return status;
        ek_worker_resident_add(worker->resident, order->layer, expert);
        offer(worker, order->layer, expert, each);
    }
    return status;
}

/* Offer the experts of a release no more, or again. @return the change's number; 0: may not be */
static uint64_t withdraw(ek_worker *worker, const ek_wire_order *order, bool again)
{
    ek_worker_moves *m = &worker->moves;
    uint64_t generation = 0;
    ek_sys_mutex_lock(&worker->lock);
    bool may = true;
    for (int32_t i = 0; i < order->n_experts; i++)
        may &= ek_link_set_has(&m->acquired, order->layer, order->expert[i]);
    for (int32_t i = 0; i < order->n_experts && may; i++) {
        if (again)
            ek_link_set_add(&m->offered, order->layer, order->expert[i]);
        else
            ek_link_set_remove(&m->offered, order->layer, order->expert[i]);
    }
    if (may) generation = ++m->generation;
    ek_sys_mutex_unlock(&worker->lock);
    return generation;
}

/* Wait until every front has heeded a change. */
static bool are_all_told(ek_worker *worker, uint64_t generation)
{
    int64_t until_us = ek_sys_now_us() + HEED_US;
    bool all = false;
    ek_sys_mutex_lock(&worker->lock);
    while (!worker->moves.ends) {
        all = true;
        for (int32_t i = 0; i < worker->params.fronts_max; i++)
            all &= !worker->fronts[i].is_used || worker->fronts[i].heeded >= generation;
        if (all || ek_sys_now_us() >= until_us) break;
        (void)ek_sys_cond_wait_us(&worker->moves.call, &worker->lock, LOOK_US);
    }
    ek_sys_mutex_unlock(&worker->lock);
    return all;
}

static ek_status release(ek_worker *worker, const ek_wire_order *order, ek_err *err)
{
    ek_worker_moves *m = &worker->moves;
    int64_t each = ek_worker_resident_bytes(worker->resident, order->layer);
    uint64_t generation = withdraw(worker, order, false);
    if (generation == 0)
        return ek_err_set(err, EK_EINVAL,
                          "layer %d: what a worker was started with, or has not got, it does not "
                          "release",
                          (int)order->layer);
    if (!are_all_told(worker, generation)) {
        withdraw(worker, order, true);
        return ek_err_set(err, EK_ETIMEOUT,
                          "layer %d: a front goes on using what it should release",
                          (int)order->layer);
    }
    for (int32_t i = 0; i < order->n_experts; i++) {
        ek_worker_resident_drop(worker->resident, order->layer, order->expert[i]);
        ek_sys_mutex_lock(&worker->lock);
        ek_link_set_remove(&m->acquired, order->layer, order->expert[i]);
        m->used_bytes -= each;
        m->generation++;
        m->outcome.n_done++;
        ek_sys_mutex_unlock(&worker->lock);
    }
    return EK_OK;
}

static void tell_log(const ek_worker *worker, const ek_wire_order *order, ek_status status,
                     int64_t beg_us, const ek_err *err)
{
    const ek_acquire_progress *p = &worker->moves.progress;
    const char *verb = order->verb == EK_WIRE_ACQUIRE ? "acquire" : "release";
    long long ms = (ek_sys_now_us() - beg_us) / 1000;
    if (status != EK_OK)
        ek_log(EK_LOG_WARN, "cluster", "move_failed",
               "verb=%s layer=%d experts=%d first=%d ms=%lld why=\"%s\"", verb, (int)order->layer,
               (int)order->n_experts, (int)order->expert[0], ms, err->text);
    else
        ek_log(EK_LOG_INFO, "cluster", "moved",
               "verb=%s layer=%d experts=%d first=%d ms=%lld bytes=%llu store=%llu peers=%llu",
               verb, (int)order->layer, (int)order->n_experts, (int)order->expert[0], ms,
               (unsigned long long)atomic_load_explicit(&p->bytes, memory_order_relaxed),
               (unsigned long long)atomic_load_explicit(&p->store_bytes, memory_order_relaxed),
               (unsigned long long)atomic_load_explicit(&p->peer_bytes, memory_order_relaxed));
}

static void carry_out(ek_worker *worker, const ek_wire_order *order)
{
    ek_worker_moves *m = &worker->moves;
    ek_err err = {0};
    int64_t beg_us = ek_sys_now_us();
    ek_status status = order->verb == EK_WIRE_ACQUIRE ? acquire(worker, order, &err)
                                                      : release(worker, order, &err);
    ek_worker_acquire_hang_up(&m->line);
    tell_log(worker, order, status, beg_us, &err);
    ek_sys_mutex_lock(&worker->lock);
    m->outcome.state = status == EK_OK ? EK_WIRE_MOVE_DONE : EK_WIRE_MOVE_FAILED;
    memset(m->why, 0, sizeof m->why);
    if (status != EK_OK) memcpy(m->why, err.text, strnlen(err.text, sizeof m->why - 1));
    m->outcome_number++;
    m->has_order = false;
    ek_sys_mutex_unlock(&worker->lock);
}

static void moves_main(void *ctx)
{
    ek_worker *worker = ctx;
    ek_worker_moves *m = &worker->moves;
    ek_sys_mutex_lock(&worker->lock);
    while (!m->ends) {
        if (!m->has_order) {
            ek_sys_cond_wait(&m->call, &worker->lock);
            continue;
        }
        ek_wire_order order = m->order;
        ek_sys_mutex_unlock(&worker->lock);
        carry_out(worker, &order);
        ek_sys_mutex_lock(&worker->lock);
    }
    ek_sys_mutex_unlock(&worker->lock);
}

/* ---- life ---- */

static ek_status copy_set(const ek_expert_set *from, bool empty, ek_expert_set *out_set)
{
    size_t bytes = ek_link_set_bytes(from->n_layers, from->n_experts);
    *out_set = *from;
    out_set->bits = ek_sys_calloc(1, bytes);
    if (!out_set->bits) return EK_ENOMEM;
    if (!empty) memcpy(out_set->bits, from->bits, bytes);
    return EK_OK;
}

ek_status ek_worker_moves_open(ek_worker *worker, ek_err *err)
{
    ek_worker_moves *m = &worker->moves;
    const ek_resident_setup *setup = &worker->resident->setup;
    ek_sys_cond_init(&m->call);
    m->is_open = true;
    m->generation = 1;
    m->setup = (ek_acquire_setup){
        .model = setup->file->model,
        .model_path = setup->model_path,
        .manifest = setup->manifest,
        .sources = worker->params.sources,
        .access = setup->access,
        .bytes_per_s = worker->params.acquire_bytes_per_s,
        .tls = worker->tls,
        .line = &m->line,
        .identity = worker->identity,
        .goes_on = goes_on,
        .ctx = worker,
    };
    ek_status status = copy_set(&setup->set, false, &m->offered);
    if (status == EK_OK) status = copy_set(&setup->set, true, &m->acquired);
    if (status == EK_OK && worker->params.experts_bytes_max > 0)
        status = ek_sys_thread_start(&m->thread, "ek-moves", moves_main, worker);
    return status == EK_OK ? EK_OK : ek_err_set(err, EK_ENOMEM, "no memory for a worker");
}

void ek_worker_moves_close(ek_worker *worker)
{
    ek_worker_moves *m = &worker->moves;
    if (!m->is_open) return;
    ek_sys_mutex_lock(&worker->lock);
    m->ends = true;
    ek_sys_cond_broadcast(&m->call);
    ek_sys_mutex_unlock(&worker->lock);
    ek_sys_thread_join(&m->thread);
    ek_sys_cond_fini(&m->call);
    ek_sys_free(m->offered.bits);
    ek_sys_free(m->acquired.bits);
    *m = (ek_worker_moves){0};
}

/* ---- what fronts are told ---- */

static bool moves(const ek_worker *worker)
{
    return worker->params.experts_bytes_max > 0;
}

void ek_worker_moves_welcome(ek_worker *worker, ek_worker_front *front, uint8_t *out_body)
{
    ek_worker_moves *m = &worker->moves;
    ek_wire_welcome head;
    memcpy(&head, worker->welcome, sizeof head);
    memcpy(head.token, front->token, sizeof head.token);
    ek_sys_mutex_lock(&worker->lock);
    head.weight_bytes += (uint64_t)m->used_bytes;
    if (moves(worker) && front->takes_moves) head.fabrics |= EK_WIRE_WELCOME_MOVES;
    memcpy(out_body + sizeof head, m->offered.bits, worker->welcome_bytes - sizeof head);
    front->heeded = m->generation;
    front->told = 0; /* nothing: HAVE follows */
    front->outcome_told = m->outcome_number;
    ek_sys_mutex_unlock(&worker->lock);
    memcpy(out_body, &head, sizeof head);
}

/* @return bytes of HAVE; 0: the front knows */
static size_t write_have(ek_worker *worker, ek_worker_front *front, uint8_t *body,
                         uint64_t *out_generation)
{
    ek_worker_moves *m = &worker->moves;
    size_t set_bytes = ek_link_set_bytes(m->offered.n_layers, m->offered.n_experts), bytes = 0;
    ek_sys_mutex_lock(&worker->lock);
    if (front->told != m->generation) {
        const ek_wire_have head = {.room_bytes = (uint64_t)worker->params.experts_bytes_max,
                                   .used_bytes = (uint64_t)m->used_bytes};
        memcpy(body, &head, sizeof head);
        memcpy(body + sizeof head, m->offered.bits, set_bytes);
        memcpy(body + sizeof head + set_bytes, m->acquired.bits, set_bytes);
        bytes = sizeof head + 2 * set_bytes;
        *out_generation = front->told = m->generation;
    }
    ek_sys_mutex_unlock(&worker->lock);
    return bytes;
}

static ek_status tell_have(ek_worker_seat *seat, ek_worker_front *front)
{
    ek_wire_header header = ek_link_wire_header(EK_WIRE_HAVE, front->epoch);
    uint8_t *body = ek_sys_calloc(1, ek_link_wire_have_bytes(&seat->worker->shape));
    if (!body) return EK_ENOMEM;
    header.body_bytes = (uint32_t)write_have(seat->worker, front, body, &header.seq);
    ek_status status = EK_OK;
    if (header.body_bytes > 0)
        status = ek_link_send(seat->link, &header, (ek_span){body, header.body_bytes},
                              ek_sys_now_us() + ANSWER_US);
    ek_sys_free(body);
    return status;
}

static ek_status send_outcome(ek_worker_seat *seat, uint32_t epoch, uint64_t order_id,
                              const ek_wire_outcome *outcome, const char *why)
{
    uint8_t body[sizeof *outcome + EK_WIRE_TEXT_MAX];
    size_t n = strnlen(why, EK_WIRE_TEXT_MAX);
    ek_wire_header header = ek_link_wire_header(EK_WIRE_OUTCOME, epoch);
    header.seq = order_id;
    header.body_bytes = (uint32_t)(sizeof *outcome + n);
    memcpy(body, outcome, sizeof *outcome);
    memcpy(body + sizeof *outcome, why, n);
    return ek_link_send(seat->link, &header, (ek_span){body, header.body_bytes},
                        ek_sys_now_us() + ANSWER_US);
}

static ek_status tell_outcome(ek_worker_seat *seat, ek_worker_front *front)
{
    ek_worker_moves *m = &seat->worker->moves;
    char why[EK_WIRE_TEXT_MAX];
    ek_sys_mutex_lock(&seat->worker->lock);
    bool is_news = m->decider == front->epoch && m->order_id != 0 &&
                   (m->has_order || front->outcome_told != m->outcome_number);
    ek_wire_outcome outcome = m->outcome;
    uint64_t order_id = m->order_id;
    front->outcome_told = m->outcome_number;
    memcpy(why, m->why, sizeof why);
    ek_sys_mutex_unlock(&seat->worker->lock);
    if (!is_news) return EK_OK;
    /* In this order, so that parts are not more than the whole. */
    outcome.store_bytes = atomic_load_explicit(&m->progress.store_bytes, memory_order_relaxed);
    outcome.peer_bytes = atomic_load_explicit(&m->progress.peer_bytes, memory_order_relaxed);
    outcome.bytes = atomic_load_explicit(&m->progress.bytes, memory_order_relaxed);
    if (outcome.bytes < outcome.store_bytes + outcome.peer_bytes)
        outcome.bytes = outcome.store_bytes + outcome.peer_bytes;
    return send_outcome(seat, front->epoch, order_id, &outcome, why);
}

ek_status ek_worker_moves_tell(ek_worker_seat *seat, ek_worker_front *front)
{
    if (!moves(seat->worker) || !front->takes_moves) return EK_OK;
    /* What it has, before what came of the order: whoever hears that it is done finds it there. */
    ek_status status = tell_have(seat, front);
    return status == EK_OK ? tell_outcome(seat, front) : status;
}

/* ---- what fronts say ---- */

/* Why an order is not taken; NULL: it is, and the thread has it. */
static const char *accept_locked(ek_worker *worker, const ek_worker_front *front, uint64_t order_id,
                                 const ek_wire_order *order)
{
    ek_worker_moves *m = &worker->moves;
    if (!moves(worker)) return "this worker acquires nothing (worker.experts_bytes_max)";
    if (m->decider != 0 && m->decider != front->epoch)
        return "another front decides already which experts this worker has";
    if (m->has_order) return "an order is under way";
    m->decider = front->epoch;
    m->order_id = order_id;
    m->order = *order;
    m->has_order = true;
    atomic_store_explicit(&m->progress.bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&m->progress.store_bytes, 0, memory_order_relaxed);
    atomic_store_explicit(&m->progress.peer_bytes, 0, memory_order_relaxed);
    int64_t each = ek_worker_resident_bytes(worker->resident, order->layer);
    m->outcome = (ek_wire_outcome){
        .state = EK_WIRE_MOVE_WORKING,
        .bytes_all =
            order->verb == EK_WIRE_ACQUIRE ? (uint64_t)(each * order->n_experts) : UINT64_C(0),
    };
    memset(m->why, 0, sizeof m->why);
    m->outcome_number++;
    ek_sys_cond_broadcast(&m->call);
    return NULL;
}

static ek_status take_order(ek_worker_seat *seat, ek_worker_front *front,
                            const ek_wire_header *header, const void *body, ek_err *err)
{
    ek_worker *worker = seat->worker;
    ek_wire_order order;
    ek_status status = ek_link_wire_order_read(&worker->shape, header, body, &order, err);
    if (status != EK_OK) return status;
    ek_sys_mutex_lock(&worker->lock);
    const char *why = accept_locked(worker, front, header->seq, &order);
    ek_sys_mutex_unlock(&worker->lock);
    if (!why) return EK_OK;
    const ek_wire_outcome outcome = {.state = EK_WIRE_MOVE_REFUSED};
    ek_log(EK_LOG_WARN, "cluster", "order_refused", "peer=\"%s\" why=\"%s\"", seat->link->peer,
           why);
    return send_outcome(seat, front->epoch, header->seq, &outcome, why);
}

ek_status ek_worker_moves_take(ek_worker_seat *seat, ek_worker_front *front,
                               const ek_wire_header *header, const void *body, ek_err *err)
{
    ek_worker *worker = seat->worker;
    if (header->kind == EK_WIRE_ORDER) return take_order(seat, front, header, body, err);
    if (header->body_bytes != 0)
        return ek_err_set(err, EK_EFORMAT, "a HEED of %u bytes", (unsigned)header->body_bytes);
    ek_sys_mutex_lock(&worker->lock);
    bool is_known = header->seq <= worker->moves.generation;
    if (is_known && header->seq > front->heeded) front->heeded = header->seq;
    ek_sys_cond_broadcast(&worker->moves.call);
    ek_sys_mutex_unlock(&worker->lock);
    return is_known ? EK_OK : ek_err_set(err, EK_EFORMAT, "a HEED of what was never told");
}

void ek_worker_moves_left_locked(ek_worker *worker, uint32_t epoch)
{
    if (worker->moves.decider == epoch) worker->moves.decider = 0;
    ek_sys_cond_broadcast(&worker->moves.call);
}

/* ---- what other workers ask for ---- */

static ek_status send_piece(ek_worker_seat *seat, const ek_wire_read *read)
{
    ek_resident *r = seat->worker->resident;
    const ek_model_layer *layer = &r->setup.file->model->layers[read->layer];
    const ek_tensor *const mat[] = {layer->expert_gate, layer->expert_up, layer->expert_down};
    const ek_tensor *t = mat[read->mat];
    size_t all = t->bytes / (size_t)(t->dim[2] * t->dim[3]);
    ek_wire_header header = ek_link_wire_header(EK_WIRE_PIECE, 0);
    ek_sys_mutex_lock(&r->lock);
    bool is_here = ek_link_set_has(&r->held, read->layer, read->expert);
    ek_sys_mutex_unlock(&r->lock);
    ek_span piece = {0};
    if (is_here && read->offset <= all && read->bytes <= all - read->offset)
        piece = (ek_span){(const uint8_t *)t->data + (size_t)read->expert * all + read->offset,
                          read->bytes};
    header.body_bytes = (uint32_t)piece.len;
    return ek_link_send(seat->link, &header, piece, ek_sys_now_us() + ANSWER_US);
}

void ek_worker_moves_serve(ek_worker_seat *seat, const ek_wire_header *header, const void *body)
{
    ek_worker *worker = seat->worker;
    ek_wire_header next = *header;
    ek_wire_read read;
    ek_err err = {0};
    uint8_t room[sizeof read];
    ek_status status = ek_link_wire_read_read(&worker->shape, &next, body, &read, &err);
    if (status == EK_OK && memcmp(read.model, worker->identity, sizeof read.model) != 0)
        status = ek_err_set(&err, EK_EFORMAT, "this worker has another model");
    if (status != EK_OK) ek_worker_refuse(seat, err.text);
    while (status == EK_OK) {
        int64_t until_us = ek_sys_now_us() + IDLE_US;
        status = send_piece(seat, &read);
        while (status == EK_OK || status == EK_AGAIN) {
            status =
                ek_link_receive(seat->link, &next, room, sizeof room, ek_sys_now_us() + LOOK_US);
            if (status != EK_AGAIN || ek_sys_now_us() >= until_us ||
                atomic_load_explicit(&worker->stopping, memory_order_acquire))
                break;
        }
        if (status == EK_OK && next.kind != EK_WIRE_READ) status = EK_EFORMAT;
        if (status == EK_OK)
            status = ek_link_wire_read_read(&worker->shape, &next, room, &read, &err);
    }
}
