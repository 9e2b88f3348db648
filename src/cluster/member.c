#include "cluster/member.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "cluster/front_internal.h"
#include "link/net.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/mem.h"

#define JOIN_US      5000000 /* connecting, handshake and greeting, each */
#define BEAT_US      250000
#define LOOK_US      50000  /* at flags that other threads set */
#define RETRY_US     250000 /* first pause before joining anew; doubles */
#define RETRY_MAX_US 2000000
#define SCRAP_BYTES  EK_WIRE_TEXT_MAX

static bool stops(const ek_member *member)
{
    return atomic_load_explicit(&member->front->stopping, memory_order_acquire);
}

/* ---- sessions ---- */

void ek_cluster_session_free(ek_session *session)
{
    if (!session) return;
    ek_link_close(session->data);
    ek_sys_free(session->set.bits);
    ek_sys_free(session);
}

static ek_session *session_new(const ek_front *front)
{
    size_t set_bytes = ek_link_set_bytes(front->shape.n_layers, front->shape.n_experts);
    ek_session *session = ek_sys_calloc(1, sizeof *session);
    if (!session) return NULL;
    session->set = (ek_expert_set){
        .n_layers = front->shape.n_layers,
        .n_experts = front->shape.n_experts,
        .bits = ek_sys_calloc(1, set_bytes),
    };
    if (session->set.bits) return session;
    ek_sys_free(session);
    return NULL;
}

/* ---- joining ---- */

static ek_status link_failed(const ek_link *link, ek_status status, ek_err *err)
{
    if (status == EK_AGAIN || status == EK_ETIMEOUT)
        return ek_err_set(err, EK_ETIMEOUT, "no answer in time");
    return ek_err_set(err, status, "%s", link->broken.text);
}

static ek_status say_hello(const ek_front *front, ek_link *control, ek_err *err)
{
    ek_wire_hello hello = {
        .n_layers = front->shape.n_layers,
        .n_experts = front->shape.n_experts,
        .d_model = front->shape.d_model,
        .top_k = front->shape.top_k,
        .tokens_max = front->shape.tokens_max,
        .features = EK_WIRE_HELLO_MOVES,
    };
    memcpy(hello.model, front->identity, sizeof hello.model);
    ek_wire_header header = ek_link_wire_header(EK_WIRE_HELLO, 0);
    header.body_bytes = sizeof hello;
    ek_span body = {(const uint8_t *)&hello, sizeof hello};
    ek_status status = ek_link_send(control, &header, body, ek_sys_now_us() + JOIN_US);
    return status == EK_OK ? EK_OK : link_failed(control, status, err);
}

/* The answer to HELLO or ATTACH, if it is a welcome. */
static ek_status take_welcome(ek_link *link, ek_wire_header *out_header, uint8_t *body, size_t room,
                              ek_err *err)
{
    ek_status status = ek_link_receive(link, out_header, body, room, ek_sys_now_us() + JOIN_US);
    if (status != EK_OK) return link_failed(link, status, err);
    if (out_header->kind == EK_WIRE_REFUSE)
        return ek_err_set(err, EK_EPEER, "refused: %.*s", (int)out_header->body_bytes,
                          (const char *)body);
    if (out_header->kind != EK_WIRE_WELCOME)
        return ek_err_set(err, EK_EFORMAT, "it answers with a message of kind %d",
                          (int)out_header->kind);
    return EK_OK;
}

static ek_status read_welcome(const ek_wire_header *header, const uint8_t *body,
                              ek_session *session, uint8_t out_token[EK_WIRE_TOKEN_BYTES],
                              ek_err *err)
{
    ek_wire_welcome welcome;
    const ek_expert_set *set = &session->set;
    size_t set_bytes = ek_link_set_bytes(set->n_layers, set->n_experts);
    if (header->body_bytes != sizeof welcome + set_bytes)
        return ek_err_set(err, EK_EFORMAT, "its welcome has %u bytes instead of %zu",
                          (unsigned)header->body_bytes, sizeof welcome + set_bytes);
    memcpy(&welcome, body, sizeof welcome);
    memcpy(set->bits, body + sizeof welcome, set_bytes);
    if (!ek_link_set_is_valid(set) || welcome.n_threads < 1 || welcome.weight_bytes > INT64_MAX)
        return ek_err_set(err, EK_EFORMAT, "its welcome names experts that the model has not");
    memcpy(out_token, welcome.token, EK_WIRE_TOKEN_BYTES);
    session->epoch = header->epoch;
    session->busy_us = header->busy_us;
    session->n_threads = welcome.n_threads;
    session->weight_bytes = (int64_t)welcome.weight_bytes;
    session->plain_port = welcome.plain_port;
    session->fabrics = welcome.fabrics;
    return EK_OK;
}

/* Which fabric data take to this worker. */
static ek_status choose_fabric(const ek_member *member, const ek_session *session, const char *host,
                               ek_fabric **out_fabric, ek_err *err)
{
    const ek_front *front = member->front;
    ek_link_fabric_choice choice = front->params.fabric;
    if (choice == EK_LINK_FABRIC_AUTO)
        choice = session->plain_port && ek_link_net_is_loopback(host) ? EK_LINK_FABRIC_TCP
                                                                      : EK_LINK_FABRIC_TLS;
    if (choice == EK_LINK_FABRIC_TCP && session->plain_port == 0)
        return ek_err_set(err, EK_EUNSUPPORTED,
                          "it takes no bare data links; set worker.fabric to tcp there, or "
                          "cluster.fabric to tls here");
    if (choice == EK_LINK_FABRIC_UCX && !(session->fabrics & EK_WIRE_FABRIC_UCX))
        return ek_err_set(err, EK_EUNSUPPORTED,
                          "it takes no data links over UCX; set worker.fabric to ucx there, or "
                          "cluster.fabric to tls here");
    *out_fabric = choice == EK_LINK_FABRIC_UCX   ? front->ucx
                  : choice == EK_LINK_FABRIC_TCP ? front->tcp
                                                 : front->tls;
    return EK_OK;
}

static ek_status connect_data(const ek_member *member, ek_session *session, ek_fabric *fabric,
                              const char *host, uint16_t port, ek_err *err)
{
    char address[EK_NET_HOST_MAX + 8];
    if (fabric == member->front->tcp) port = session->plain_port;
    snprintf(address, sizeof address, strchr(host, ':') ? "[%s]:%u" : "%s:%u", host,
             (unsigned)port);
    return fabric->ops->connect(fabric, address, ek_sys_now_us() + JOIN_US, &session->data, err);
}

/* Tell each other over the control link where the halves of the data link are. */
static ek_status meet_data(ek_link *control, ek_session *session, ek_fabric *fabric, ek_err *err)
{
    uint8_t address[EK_WIRE_ADDRESS_MAX];
    int64_t until_us = ek_sys_now_us() + JOIN_US;
    ek_status status = fabric->ops->open(fabric, &session->data, err);
    if (status != EK_OK) return status;
    ek_wire_header header = ek_link_wire_header(EK_WIRE_OPEN, session->epoch);
    header.body_bytes = (uint32_t)fabric->ops->address(session->data, address, sizeof address);
    status = ek_link_send(control, &header, (ek_span){address, header.body_bytes}, until_us);
    /* Load reports may come before the answer. */
    while (status == EK_OK && header.kind != EK_WIRE_OPENED)
        status = ek_link_receive(control, &header, address, sizeof address, until_us);
    if (status != EK_OK) return link_failed(control, status, err);
    return fabric->ops->meet(session->data, address, header.body_bytes, err);
}

static ek_status open_data(const ek_member *member, ek_link *control, ek_session *session,
                           const uint8_t token[EK_WIRE_TOKEN_BYTES], ek_err *err)
{
    ek_fabric *fabric = NULL;
    char host[EK_NET_HOST_MAX];
    uint16_t port = 0;
    uint8_t body[SCRAP_BYTES];
    ek_status status = ek_link_net_split(member->address, host, &port, err);
    if (status == EK_OK) status = choose_fabric(member, session, host, &fabric, err);
    if (status == EK_OK)
        status = fabric->ops->open ? meet_data(control, session, fabric, err)
                                   : connect_data(member, session, fabric, host, port, err);
    if (status != EK_OK) return status;
    session->fabric = fabric->ops->name;
    ek_wire_header header = ek_link_wire_header(EK_WIRE_ATTACH, session->epoch);
    header.body_bytes = EK_WIRE_TOKEN_BYTES;
    status = ek_link_send(session->data, &header, (ek_span){token, EK_WIRE_TOKEN_BYTES},
                          ek_sys_now_us() + JOIN_US);
    if (status != EK_OK) return link_failed(session->data, status, err);
    status = take_welcome(session->data, &header, body, sizeof body, err);
    if (status == EK_OK && header.epoch != session->epoch)
        status = ek_err_set(err, EK_ESTALE, "its data link belongs to another session");
    return status;
}

/* Is the data link good enough? A worker of an older version cannot be asked. */
static ek_status test_link(const ek_member *member, ek_link *control, ek_session *session,
                           ek_err *err)
{
    const ek_front *front = member->front;
    session->quality = (ek_link_quality){.latency_us = -1, .bytes_per_s = -1};
    if (!(session->fabrics & EK_WIRE_CAN_PROBE)) return EK_OK;
    /* The next one comes after the test, and the worker waits no longer than three seconds. */
    ek_wire_header beat = ek_link_wire_header(EK_WIRE_BEAT, session->epoch);
    ek_status status = ek_link_send(control, &beat, (ek_span){0}, ek_sys_now_us() + JOIN_US);
    if (status != EK_OK) return link_failed(control, status, err);
    status =
        ek_cluster_probe(session->data, session->epoch,
                         ek_link_wire_dispatch_bytes_max(&front->shape), &session->quality, err);
    if (status != EK_OK) return status;
    ek_err bad = {0};
    status = ek_cluster_probe_judge(&session->quality, &front->params, &bad);
    if (status == EK_OK) return EK_OK;
    if (front->params.link_check == EK_CLUSTER_LINK_REFUSE)
        return ek_err_set(err, status, "%s", bad.text);
    ek_log(EK_LOG_WARN, "cluster", "link_bad", "worker=%s why=\"%s\"", member->address, bad.text);
    return EK_OK;
}

static ek_status join_over(ek_member *member, ek_link *control, uint8_t *body, size_t room,
                           ek_session *session, ek_err *err)
{
    uint8_t token[EK_WIRE_TOKEN_BYTES];
    ek_wire_header header;
    ek_status status = say_hello(member->front, control, err);
    if (status == EK_OK) status = take_welcome(control, &header, body, room, err);
    if (status == EK_OK) status = read_welcome(&header, body, session, token, err);
    if (status == EK_OK)
        status = ek_cluster_member_moves_greet(member, control, session, body, err);
    if (status == EK_OK) status = open_data(member, control, session, token, err);
    return status == EK_OK ? test_link(member, control, session, err) : status;
}

static ek_status join(ek_member *member, ek_link **out_control, ek_session **out_session,
                      ek_err *err)
{
    ek_front *front = member->front;
    size_t room =
        sizeof(ek_wire_welcome) + ek_link_set_bytes(front->shape.n_layers, front->shape.n_experts);
    size_t moves_room = ek_cluster_member_moves_room(front);
    if (room < moves_room) room = moves_room;
    ek_link *control = NULL;
    ek_session *session = session_new(front);
    uint8_t *body = ek_sys_calloc(1, room);
    ek_status status = session && body ? EK_OK : ek_err_set(err, EK_ENOMEM, "no memory to join it");
    if (status == EK_OK)
        status = front->tls->ops->connect(front->tls, member->address, ek_sys_now_us() + JOIN_US,
                                          &control, err);
    if (status == EK_OK) status = join_over(member, control, body, room, session, err);
    ek_sys_free(body);
    if (status != EK_OK) {
        ek_link_close(control);
        ek_cluster_session_free(session);
        return status;
    }
    *out_control = control;
    *out_session = session;
    return EK_OK;
}

/* ---- in touch ---- */

static void take_report(ek_member *member, const ek_wire_header *header)
{
    int64_t now_us = ek_sys_now_us();
    if (header->echo_us > 0 && header->echo_us <= (uint64_t)now_us)
        atomic_store_explicit(&member->round_trip_us, now_us - (int64_t)header->echo_us,
                              memory_order_relaxed);
    atomic_store_explicit(&member->busy_us, header->busy_us, memory_order_relaxed);
    atomic_store_explicit(&member->queue, header->queue, memory_order_relaxed);
    atomic_store_explicit(&member->draining, (header->load_flags & EK_WIRE_LOAD_DRAINING) != 0,
                          memory_order_release);
}

/* Heartbeats until something ends them. @return why */
static const char *keep_in_touch(ek_member *member, ek_link *control, const ek_session *session,
                                 uint8_t *scrap, ek_err *err)
{
    const size_t room = ek_cluster_member_moves_room(member->front);
    const int64_t hung_us = member->front->params.hung_us;
    int64_t next_us = 0;
    for (;;) {
        int64_t now_us = ek_sys_now_us();
        if (stops(member)) return "the front ends";
        if (atomic_load_explicit(&session->broken, memory_order_acquire))
            return "its data link broke";
        if (now_us >= next_us) {
            ek_wire_header beat = ek_link_wire_header(EK_WIRE_BEAT, session->epoch);
            beat.echo_us = (uint64_t)now_us;
            if (ek_link_send(control, &beat, (ek_span){0}, now_us + hung_us) != EK_OK)
                return control->broken.text[0] ? control->broken.text : "it takes no heartbeats";
            next_us = now_us + BEAT_US;
        }
        if (ek_cluster_member_moves_send(member, session, control) != EK_OK)
            return control->broken.text[0] ? control->broken.text : "it takes no orders";
        ek_wire_header header;
        ek_status status = ek_link_receive(control, &header, scrap, room, now_us + LOOK_US);
        if (status == EK_OK && header.epoch == session->epoch) {
            atomic_store_explicit(&member->heard_us, ek_sys_now_us(), memory_order_relaxed);
            if (header.kind == EK_WIRE_LOAD) take_report(member, &header);
            if (header.kind == EK_WIRE_BYE) return "it said good-bye";
            if ((header.kind == EK_WIRE_HAVE || header.kind == EK_WIRE_OUTCOME) &&
                ek_cluster_member_moves_take(member, session, &header, scrap, err) != EK_OK)
                return err->text;
        } else if (status != EK_OK && status != EK_AGAIN) {
            return control->broken.text[0] ? control->broken.text : "it stopped in mid-message";
        }
        if (ek_sys_now_us() - atomic_load_explicit(&member->heard_us, memory_order_relaxed) >
            hung_us)
            return "no heartbeat for longer than cluster.hung_after";
    }
}

/* ---- what is told of it ---- */

static void tell_why(ek_member *member, const char *why)
{
    ek_sys_mutex_lock(&member->front->lock);
    snprintf(member->why, sizeof member->why, "%.*s", EK_CLUSTER_WHY_MAX - 1, why);
    ek_sys_mutex_unlock(&member->front->lock);
}

/* A worker that stays away is told of when the reason changes, not with every attempt. */
static void tell_absence(ek_member *member, const char *why)
{
    if (strcmp(member->why, why) != 0) /* nobody else writes it */
        ek_log(EK_LOG_WARN, "cluster", "not_joined", "worker=%s why=\"%s\"", member->address, why);
    tell_why(member, why);
}

static void tell_link(ek_member *member, const ek_session *session)
{
    const ek_link_quality *q = &session->quality;
    atomic_store_explicit(&member->link_latency_us, q->latency_us, memory_order_relaxed);
    atomic_store_explicit(&member->link_bytes_per_s, q->bytes_per_s, memory_order_relaxed);
    ek_gauge_set(member->latency, q->latency_us > 0 ? q->latency_us : 0);
    ek_gauge_set(member->bandwidth, q->bytes_per_s > 0 ? q->bytes_per_s : 0);
    ek_log(EK_LOG_INFO, "cluster", "joined",
           "worker=%s epoch=%u fabric=%s experts=%lld weight_mib=%lld threads=%d latency_us=%lld "
           "bandwidth_mb_s=%.1f",
           member->address, (unsigned)session->epoch, session->fabric,
           (long long)ek_link_set_count(&session->set), (long long)(session->weight_bytes >> 20),
           (int)session->n_threads, (long long)q->latency_us,
           q->bytes_per_s < 0 ? -1 : 1e-6 * (double)q->bytes_per_s);
}

static void publish(ek_member *member, ek_session *session)
{
    const ek_expert_set *set = &session->set;
    ek_sys_mutex_lock(&member->front->lock);
    member->why[0] = '\0';
    member->fabric = session->fabric;
    memcpy(member->offered.bits, set->bits, ek_link_set_bytes(set->n_layers, set->n_experts));
    ek_sys_mutex_unlock(&member->front->lock);
    atomic_store_explicit(&member->epoch, session->epoch, memory_order_relaxed);
    atomic_store_explicit(&member->n_threads, session->n_threads, memory_order_relaxed);
    atomic_store_explicit(&member->n_experts, ek_link_set_count(set), memory_order_relaxed);
    atomic_store_explicit(&member->weight_bytes, session->weight_bytes, memory_order_relaxed);
    ek_cluster_member_moves_begin(member, session);
    session->began_us = ek_sys_now_us();
    session->is_return = atomic_load_explicit(&member->n_joined, memory_order_relaxed) > 0;
    atomic_store_explicit(&member->busy_us, session->busy_us, memory_order_relaxed);
    atomic_store_explicit(&member->heard_us, session->began_us, memory_order_relaxed);
    atomic_store_explicit(&member->draining, false, memory_order_relaxed);
    atomic_fetch_add_explicit(&member->n_joined, 1, memory_order_relaxed);
    tell_link(member, session);
    /* One that the engine's thread never came to take is nobody's any more. */
    ek_cluster_session_free(
        atomic_exchange_explicit(&member->incoming, session, memory_order_acq_rel));
    ek_gauge_set(member->up, 1);
    atomic_store_explicit(&member->joined, true, memory_order_release);
}

static void conclude(ek_member *member, ek_session *session, const char *why)
{
    atomic_store_explicit(&session->over, true, memory_order_release);
    session->data->ops->interrupt(session->data);
    atomic_store_explicit(&member->joined, false, memory_order_release);
    ek_gauge_set(member->up, 0);
    ek_cluster_member_moves_end(member);
    if (stops(member)) return;
    ek_counter_add(member->losses, 1);
    ek_log(EK_LOG_WARN, "cluster", "lost", "worker=%s epoch=%u why=\"%s\"", member->address,
           (unsigned)session->epoch, why);
    tell_why(member, why);
}

static void pause_for(const ek_member *member, int64_t us)
{
    for (int64_t until_us = ek_sys_now_us() + us; !stops(member) && ek_sys_now_us() < until_us;)
        ek_sys_sleep_us(LOOK_US);
}

void ek_cluster_member_run(void *ctx)
{
    ek_member *member = ctx;
    int64_t retry_us = RETRY_US;
    uint8_t *inbox = ek_sys_calloc(1, ek_cluster_member_moves_room(member->front));
    while (inbox && !stops(member)) {
        ek_err err = {0};
        ek_link *control;
        ek_session *session;
        if (join(member, &control, &session, &err) != EK_OK) {
            tell_absence(member, err.text);
            pause_for(member, retry_us);
            retry_us = retry_us * 2 < RETRY_MAX_US ? retry_us * 2 : RETRY_MAX_US;
            continue;
        }
        retry_us = RETRY_US;
        publish(member, session);
        const char *why = keep_in_touch(member, control, session, inbox, &err);
        if (stops(member)) {
            const ek_wire_header bye = ek_link_wire_header(EK_WIRE_BYE, session->epoch);
            (void)!ek_link_send(control, &bye, (ek_span){0}, ek_sys_now_us() + LOOK_US);
        }
        conclude(member, session, why);
        ek_link_close(control);
    }
    ek_sys_free(inbox);
}
