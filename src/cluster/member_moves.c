#include "cluster/member_moves.h"

#include <stdio.h>
#include <string.h>

#include "cluster/front_internal.h"
#include "link/net.h"
#include "sys/clock.h"
#include "sys/log.h"

#define SEND_US      1000000
#define HAVE_US      5000000
#define PAUSE_US     1000000 /* after a failure; doubles */
#define PAUSE_MAX_US 60000000

static ek_status set_new(const ek_front *front, ek_expert_set *out_set)
{
    int32_t n_layers = front->shape.n_layers, n_experts = front->shape.n_experts;
    *out_set = (ek_expert_set){
        .n_layers = n_layers,
        .n_experts = n_experts,
        .bits = ek_sys_calloc(1, ek_link_set_bytes(n_layers, n_experts)),
    };
    return out_set->bits ? EK_OK : EK_ENOMEM;
}

static size_t set_bytes(const ek_front *front)
{
    return ek_link_set_bytes(front->shape.n_layers, front->shape.n_experts);
}

ek_status ek_cluster_member_moves_open(ek_member *member)
{
    ek_member_moves *m = &member->moves;
    ek_status status = set_new(member->front, &m->acquired);
    if (status == EK_OK) status = set_new(member->front, &m->wanted);
    if (status == EK_OK) status = set_new(member->front, &m->releasing);
    m->pause_us = PAUSE_US;
    return status;
}

void ek_cluster_member_moves_close(ek_member *member)
{
    ek_member_moves *m = &member->moves;
    ek_sys_free(atomic_exchange_explicit(&m->change, NULL, memory_order_acq_rel));
    ek_sys_free(m->acquired.bits);
    ek_sys_free(m->wanted.bits);
    ek_sys_free(m->releasing.bits);
}

size_t ek_cluster_member_moves_room(const ek_front *front)
{
    size_t have = ek_link_wire_have_bytes(&front->shape);
    size_t outcome = sizeof(ek_wire_outcome) + EK_WIRE_TEXT_MAX;
    return have > outcome ? have : outcome;
}

/* ---- what a worker has ---- */

/* The sets of a HAVE that makes sense. */
static ek_status read_have(const ek_front *front, const ek_wire_header *header, const uint8_t *body,
                           ek_wire_have *out_have, ek_expert_set *offered, ek_expert_set *acquired,
                           ek_err *err)
{
    size_t bytes = set_bytes(front);
    if (header->body_bytes != ek_link_wire_have_bytes(&front->shape) || header->seq == 0)
        return ek_err_set(err, EK_EFORMAT, "it tells in %u bytes what it has",
                          (unsigned)header->body_bytes);
    memcpy(out_have, body, sizeof *out_have);
    memcpy(offered->bits, body + sizeof *out_have, bytes);
    memcpy(acquired->bits, body + sizeof *out_have + bytes, bytes);
    if (!ek_link_set_is_valid(offered) || !ek_link_set_is_valid(acquired) ||
        out_have->room_bytes > INT64_MAX || out_have->used_bytes > INT64_MAX)
        return ek_err_set(err, EK_EFORMAT, "it says that it has experts that the model has not");
    return EK_OK;
}

static void take_have_locked(ek_member *member, const ek_wire_have *have,
                             const ek_expert_set *acquired)
{
    ek_member_moves *m = &member->moves;
    m->is_able = true;
    m->room_bytes = (int64_t)have->room_bytes;
    m->used_bytes = (int64_t)have->used_bytes;
    memcpy(m->acquired.bits, acquired->bits, set_bytes(member->front));
    if (!m->is_ours) memcpy(m->wanted.bits, acquired->bits, set_bytes(member->front));
}

ek_status ek_cluster_member_moves_greet(ek_member *member, ek_link *control, ek_session *session,
                                        uint8_t *body, ek_err *err)
{
    const ek_front *front = member->front;
    if (!(session->fabrics & EK_WIRE_WELCOME_MOVES)) return EK_OK;
    ek_wire_header header = {0};
    ek_wire_have have;
    ek_expert_set acquired;
    int64_t until_us = ek_sys_now_us() + HAVE_US;
    ek_status status = EK_OK;
    while (status == EK_OK && header.kind != EK_WIRE_HAVE)
        status =
            ek_link_receive(control, &header, body, ek_cluster_member_moves_room(front), until_us);
    if (status != EK_OK)
        return ek_err_set(err, status == EK_AGAIN ? EK_ETIMEOUT : status,
                          "it does not say what it has");
    if (set_new(front, &acquired) != EK_OK) return ek_err_set(err, EK_ENOMEM, "no memory");
    status = read_have(front, &header, body, &have, &session->set, &acquired, err);
    if (status == EK_OK) {
        session->generation = header.seq;
        ek_sys_mutex_lock(&member->front->lock);
        take_have_locked(member, &have, &acquired);
        ek_sys_mutex_unlock(&member->front->lock);
    }
    ek_sys_free(acquired.bits);
    return status;
}

void ek_cluster_member_moves_begin(ek_member *member, const ek_session *session)
{
    ek_member_moves *m = &member->moves;
    ek_sys_free(atomic_exchange_explicit(&m->change, NULL, memory_order_acq_rel));
    ek_sys_mutex_lock(&member->front->lock);
    m->is_able = (session->fabrics & EK_WIRE_WELCOME_MOVES) != 0;
    m->retry_us = 0;
    m->pause_us = PAUSE_US;
    /* What another front had it acquire, or this one before it was started again, is wanted. */
    for (size_t i = 0; m->is_able && i < set_bytes(member->front) / sizeof(uint64_t); i++)
        m->wanted.bits[i] |= m->acquired.bits[i];
    ek_sys_mutex_unlock(&member->front->lock);
}

static void end_order_locked(ek_member *member)
{
    ek_member_moves *m = &member->moves;
    m->order.id = 0;
    memset(m->releasing.bits, 0, set_bytes(member->front));
}

void ek_cluster_member_moves_end(ek_member *member)
{
    ek_member_moves *m = &member->moves;
    ek_sys_mutex_lock(&member->front->lock);
    if (m->order.id != 0) {
        ek_counter_add(member->front->moves_failed, 1);
        m->n_failed++;
    }
    end_order_locked(member);
    m->is_able = false;
    memset(m->acquired.bits, 0, set_bytes(member->front));
    m->used_bytes = 0;
    ek_sys_mutex_unlock(&member->front->lock);
}

/* What is offered now goes to the engine's thread; what it has not taken yet is out of date. */
static ek_status hand_over(ek_member *member, const ek_session *session, uint64_t generation,
                           const uint64_t *bits)
{
    size_t bytes = set_bytes(member->front);
    ek_member_change *change = ek_sys_calloc(1, sizeof *change + bytes);
    if (!change) return EK_ENOMEM;
    change->epoch = session->epoch;
    change->generation = generation;
    memcpy(change->bits, bits, bytes);
    ek_sys_free(atomic_exchange_explicit(&member->moves.change, change, memory_order_acq_rel));
    return EK_OK;
}

static ek_status take_have(ek_member *member, const ek_session *session,
                           const ek_wire_header *header, const uint8_t *body, ek_err *err)
{
    ek_wire_have have;
    ek_expert_set offered = {0}, acquired = {0};
    ek_status status = set_new(member->front, &offered);
    if (status == EK_OK) status = set_new(member->front, &acquired);
    if (status == EK_OK)
        status = read_have(member->front, header, body, &have, &offered, &acquired, err);
    if (status == EK_OK) {
        ek_sys_mutex_lock(&member->front->lock);
        take_have_locked(member, &have, &acquired);
        memcpy(member->offered.bits, offered.bits, set_bytes(member->front));
        ek_sys_mutex_unlock(&member->front->lock);
        atomic_store_explicit(&member->n_experts, ek_link_set_count(&offered),
                              memory_order_relaxed);
        status = hand_over(member, session, header->seq, offered.bits);
    }
    ek_sys_free(offered.bits);
    ek_sys_free(acquired.bits);
    return status;
}

/* ---- what came of an order ---- */

static void log_outcome(const ek_member *member, const ek_member_order *order, int64_t now_us,
                        ek_str why)
{
    const ek_wire_outcome *o = &order->outcome;
    bool is_done = o->state == EK_WIRE_MOVE_DONE;
    ek_log(is_done ? EK_LOG_INFO : EK_LOG_WARN, "cluster", is_done ? "moved" : "move_failed",
           "worker=%s verb=%s layer=%d experts=%d done=%u bytes=%llu store=%llu peers=%llu "
           "ms=%lld why=\"%.*s\"",
           member->address, order->wire.verb == EK_WIRE_ACQUIRE ? "acquire" : "release",
           (int)order->wire.layer, (int)order->wire.n_experts, (unsigned)o->n_done,
           (unsigned long long)o->bytes, (unsigned long long)o->store_bytes,
           (unsigned long long)o->peer_bytes, (long long)((now_us - order->beg_us) / 1000),
           EK_STR_ARG(why));
}

static ek_status take_outcome(ek_member *member, const ek_wire_header *header, const uint8_t *body,
                              ek_err *err)
{
    ek_member_moves *m = &member->moves;
    ek_front *front = member->front;
    ek_wire_outcome outcome;
    ek_str why;
    int64_t now_us = ek_sys_now_us();
    ek_status status = ek_link_wire_outcome_read(header, body, &outcome, &why, err);
    if (status != EK_OK) return status;
    ek_sys_mutex_lock(&front->lock);
    ek_member_order order = m->order;
    bool is_ours = order.id != 0 && order.id == header->seq;
    bool is_over = is_ours && outcome.state != EK_WIRE_MOVE_WORKING;
    order.outcome = outcome;
    if (is_ours) m->order.outcome = outcome;
    if (is_over) {
        end_order_locked(member);
        bool failed = outcome.state != EK_WIRE_MOVE_DONE;
        m->n_failed += failed;
        m->retry_us = failed ? now_us + m->pause_us : 0;
        m->pause_us = !failed                          ? PAUSE_US
                      : 2 * m->pause_us < PAUSE_MAX_US ? 2 * m->pause_us
                                                       : PAUSE_MAX_US;
        snprintf(m->why, sizeof m->why, "%.*s", EK_STR_ARG(why));
        /* Somebody else decides: what this front wanted is forgotten, not kept for later. */
        m->is_ours &= outcome.state != EK_WIRE_MOVE_REFUSED;
        if (!m->is_ours) memcpy(m->wanted.bits, m->acquired.bits, set_bytes(front));
    }
    ek_sys_mutex_unlock(&front->lock);
    if (!is_over) return EK_OK;
    ek_counter_add(outcome.state == EK_WIRE_MOVE_DONE ? front->moves_done : front->moves_failed, 1);
    ek_counter_add(front->moved_bytes, outcome.bytes);
    ek_hist_record(front->move_time, (uint64_t)(now_us - order.beg_us));
    log_outcome(member, &order, now_us, why);
    return EK_OK;
}

ek_status ek_cluster_member_moves_take(ek_member *member, const ek_session *session,
                                       const ek_wire_header *header, const uint8_t *body,
                                       ek_err *err)
{
    if (header->kind == EK_WIRE_HAVE) return take_have(member, session, header, body, err);
    return take_outcome(member, header, body, err);
}

/* ---- the next order ---- */

/* Does another worker that serves have an expert, and keep it? */
static bool is_elsewhere_locked(const ek_member *member, int32_t layer, int32_t expert)
{
    const ek_front *front = member->front;
    for (int32_t i = 0; i < front->n_members; i++) {
        const ek_member *other = &front->members[i];
        if (other == member || !atomic_load_explicit(&other->joined, memory_order_acquire) ||
            atomic_load_explicit(&other->drained, memory_order_acquire) ||
            atomic_load_explicit(&other->draining, memory_order_acquire))
            continue;
        if (ek_link_set_has(&other->offered, layer, expert) &&
            !ek_link_set_has(&other->moves.releasing, layer, expert))
            return true;
    }
    return false;
}

/* Experts of a layer that an order is for: to be acquired, or to be released. */
static int32_t list_locked(const ek_member *member, uint32_t verb, int32_t layer,
                           int32_t out_expert[EK_WIRE_ORDER_EXPERTS_MAX])
{
    const ek_member_moves *m = &member->moves;
    int32_t n = 0;
    for (int32_t e = 0; e < member->front->shape.n_experts && n < EK_WIRE_ORDER_EXPERTS_MAX; e++) {
        bool wanted = ek_link_set_has(&m->wanted, layer, e);
        bool acquired = ek_link_set_has(&m->acquired, layer, e);
        bool offered = ek_link_set_has(&member->offered, layer, e);
        bool is_for = verb == EK_WIRE_ACQUIRE
                          ? wanted && !offered
                          : acquired && !wanted && is_elsewhere_locked(member, layer, e);
        if (is_for) out_expert[n++] = e;
    }
    return n;
}

static bool is_same_host(const char *a, const char *b)
{
    char host_a[EK_NET_HOST_MAX], host_b[EK_NET_HOST_MAX];
    uint16_t port;
    ek_err err;
    return ek_link_net_split(a, host_a, &port, &err) == EK_OK &&
           ek_link_net_split(b, host_b, &port, &err) == EK_OK && strcmp(host_a, host_b) == 0;
}

/* Workers that have all of the order's experts, those of the same host first. */
static void list_peers_locked(const ek_member *member, ek_wire_order *order)
{
    const ek_front *front = member->front;
    for (int far = 0; far < 2; far++) {
        for (int32_t i = 0; i < front->n_members; i++) {
            const ek_member *other = &front->members[i];
            bool fits = other != member && order->n_peers < EK_WIRE_ORDER_PEERS_MAX &&
                        atomic_load_explicit(&other->joined, memory_order_acquire) &&
                        is_same_host(other->address, member->address) == !far;
            for (int32_t k = 0; k < order->n_experts && fits; k++)
                fits = ek_link_set_has(&other->offered, order->layer, order->expert[k]) &&
                       !ek_link_set_has(&other->moves.releasing, order->layer, order->expert[k]);
            if (!fits) continue;
            snprintf(order->peer[order->n_peers++], EK_WIRE_PEER_BYTES, "%s", other->address);
        }
    }
}

/*
 * The first layer with something to do; what shall go goes first, since its room may be what the
 * others need. @return whether there is any
 */
static bool next_order_locked(ek_member *member, int64_t now_us, ek_wire_order *out_order)
{
    ek_member_moves *m = &member->moves;
    if (!m->is_able || !m->is_ours || m->order.id != 0 || now_us < m->retry_us) return false;
    static const uint32_t verbs[] = {EK_WIRE_RELEASE, EK_WIRE_ACQUIRE};
    for (size_t v = 0; v < EK_COUNT_OF(verbs); v++) {
        for (int32_t l = 0; l < member->front->shape.n_layers; l++) {
            ek_wire_order order = {.verb = verbs[v], .layer = l};
            order.n_experts = list_locked(member, verbs[v], l, order.expert);
            if (order.n_experts == 0) continue;
            if (verbs[v] == EK_WIRE_ACQUIRE)
                list_peers_locked(member, &order);
            else
                for (int32_t i = 0; i < order.n_experts; i++)
                    ek_link_set_add(&m->releasing, l, order.expert[i]);
            m->order = (ek_member_order){.id = ++m->next_id, .wire = order, .beg_us = now_us};
            *out_order = order;
            return true;
        }
    }
    return false;
}

static ek_status send_heed(ek_member *member, const ek_session *session, ek_link *control)
{
    ek_member_moves *m = &member->moves;
    /* Pairs with the engine's thread, after which it dispatches by the change only. */
    uint64_t heeded = atomic_load_explicit(&m->heeded, memory_order_acquire);
    if (heeded == m->heed_sent || heeded >> 40 != (session->epoch & 0xffffff)) return EK_OK;
    ek_wire_header header = ek_link_wire_header(EK_WIRE_HEED, session->epoch);
    header.seq = heeded & ((UINT64_C(1) << 40) - 1);
    m->heed_sent = heeded;
    return ek_link_send(control, &header, (ek_span){0}, ek_sys_now_us() + SEND_US);
}

ek_status ek_cluster_member_moves_send(ek_member *member, const ek_session *session,
                                       ek_link *control)
{
    ek_front *front = member->front;
    ek_wire_order order;
    uint8_t body[sizeof order];
    ek_status status = send_heed(member, session, control);
    if (status != EK_OK) return status;
    int64_t now_us = ek_sys_now_us();
    ek_placement_report placed;
    ek_sys_mutex_lock(&front->lock);
    bool has_ended = ek_cluster_placing_step_locked(front, now_us, &placed);
    bool is_due = next_order_locked(member, now_us, &order);
    uint64_t id = member->moves.order.id;
    ek_sys_mutex_unlock(&front->lock);
    if (has_ended) ek_cluster_placing_log(&placed);
    if (!is_due) return EK_OK;
    ek_wire_header header = ek_link_wire_header(EK_WIRE_ORDER, session->epoch);
    header.seq = id;
    header.body_bytes = (uint32_t)ek_link_wire_order_write(&order, body);
    ek_counter_add(front->moves_started, 1);
    ek_log(EK_LOG_INFO, "cluster", "move",
           "worker=%s verb=%s layer=%d experts=%d first=%d peers=%d", member->address,
           order.verb == EK_WIRE_ACQUIRE ? "acquire" : "release", (int)order.layer,
           (int)order.n_experts, (int)order.expert[0], (int)order.n_peers);
    return ek_link_send(control, &header, (ek_span){body, header.body_bytes},
                        ek_sys_now_us() + SEND_US);
}
