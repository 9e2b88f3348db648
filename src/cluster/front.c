#include "cluster/front.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "cluster/dispatch.h"
#include "cluster/front_internal.h"
#include "cluster/moves.h"
#include "cluster/rebalance.h"
#include "link/certs.h"
#include "link/fabric_tcp.h"
#include "link/fabric_ucx.h"
#include "link/net.h"
#include "sys/clock.h"
#include "telemetry/prometheus.h"

/* ---- the list of workers ---- */

/* The next address of a comma-separated list, without blanks around it; false: there is none. */
static bool next_address(const char **at, ek_str *out_address)
{
    *at += strspn(*at, ", ");
    size_t n = strcspn(*at, ", ");
    *out_address = (ek_str){*at, n};
    *at += n;
    return n > 0;
}

static ek_status read_workers(ek_front *front, ek_err *err)
{
    const char *at = front->params.workers;
    ek_str address;
    while (next_address(&at, &address))
        front->n_members++;
    if (front->n_members < 1 || front->n_members > EK_CLUSTER_WORKERS_MAX)
        return ek_err_set(err, EK_EINVAL, "cluster.workers names %d workers; it may name 1 to %d",
                          (int)front->n_members, EK_CLUSTER_WORKERS_MAX);
    front->members = ek_sys_calloc((size_t)front->n_members, sizeof *front->members);
    if (!front->members) return ek_err_set(err, EK_ENOMEM, "no memory for workers");
    at = front->params.workers;
    for (int32_t i = 0; next_address(&at, &address); i++) {
        ek_member *m = &front->members[i];
        char host[EK_NET_HOST_MAX];
        uint16_t port;
        m->front = front;
        m->idx = i;
        snprintf(m->address, sizeof m->address, "%.*s", EK_STR_ARG(address));
        ek_status status = ek_link_net_split(m->address, host, &port, err);
        if (status != EK_OK) return ek_err_prefix(err, "cluster.workers");
        for (int32_t k = 0; k < i; k++)
            if (strcmp(front->members[k].address, m->address) == 0)
                return ek_err_set(err, EK_EINVAL, "cluster.workers names %s twice", m->address);
        snprintf(m->why, sizeof m->why, "not joined yet");
        atomic_init(&m->link_latency_us, -1);
        atomic_init(&m->link_bytes_per_s, -1);
        m->offered = (ek_expert_set){
            .n_layers = front->shape.n_layers,
            .n_experts = front->shape.n_experts,
            .bits =
                ek_sys_calloc(1, ek_link_set_bytes(front->shape.n_layers, front->shape.n_experts)),
        };
        if (!m->offered.bits || ek_cluster_member_moves_open(m) != EK_OK)
            return ek_err_set(err, EK_ENOMEM, "no memory for workers");
    }
    return EK_OK;
}

/* ---- metrics ---- */

static ek_status open_metrics(ek_front *front, ek_metrics *metrics, ek_err *err)
{
    if (!metrics) {
        ek_status status = ek_sys_region_open(EK_METRICS_BYTES_MAX, 0, &front->metrics_region);
        if (status == EK_OK) {
            ek_arena perm = ek_sys_region_arena(&front->metrics_region);
            status = ek_telemetry_metrics_create(&perm, &metrics);
        }
        if (status != EK_OK) return ek_err_set(err, status, "no memory for metrics");
    }
    front->redone = ek_telemetry_counter(
        metrics, "evenkeel_cluster_redone_rows_total", NULL,
        "Rows computed by another worker, because the first one went or was late.");
    front->degraded = ek_telemetry_counter(metrics, "evenkeel_cluster_degraded_rows_total", NULL,
                                           "Rows left out, because no worker had their expert.");
    front->failed = ek_telemetry_counter(metrics, "evenkeel_cluster_failed_layers_total", NULL,
                                         "Layers that failed, because no worker had an expert.");
    front->stale = ek_telemetry_counter(
        metrics, "evenkeel_cluster_stale_answers_total", NULL,
        "Answers thrown away, because their rows had been given to somebody else.");
    front->late = ek_telemetry_counter(metrics, "evenkeel_cluster_late_answers_total", NULL,
                                       "Dispatches that were not answered in time.");
    front->answer_time = ek_telemetry_hist(
        metrics, "evenkeel_cluster_answer_seconds", NULL, 1e-6, ek_latency_bounds,
        ek_latency_n_bounds, "Time from a layer's dispatch until a worker's answer is there.");
    front->passed_by = ek_telemetry_counter(metrics, "evenkeel_cluster_passed_by_total", NULL,
                                            "Times that a worker was passed by for a while, "
                                            "because its answers were long on their way.");
    front->overlapped = ek_telemetry_counter(
        metrics, "evenkeel_cluster_overlapped_layers_total", NULL,
        "Layers of a micro-batch that were handed over while the other one was under way.");
    front->exchange_time = ek_telemetry_hist(
        metrics, "evenkeel_cluster_exchange_seconds", NULL, 1e-6, ek_latency_bounds,
        ek_latency_n_bounds, "Time from a layer's dispatch until its last answer is there.");
    front->hidden_time = ek_telemetry_hist(
        metrics, "evenkeel_cluster_hidden_seconds", NULL, 1e-6, ek_latency_bounds,
        ek_latency_n_bounds, "Part of it in which the front computed something else.");
    ek_cluster_moves_metrics(front, metrics);
    int64_t end_s = 0;
    ek_gauge *end = ek_telemetry_gauge(
        metrics, "evenkeel_cluster_certificate_not_after_timestamp_seconds", NULL, 1,
        "When the front's certificate for its workers ends, seconds since 1970.");
    if (ek_link_certs_end(front->params.certs, &end_s) == EK_OK) ek_gauge_set(end, end_s);
    for (int32_t i = 0; i < front->n_members; i++) {
        ek_member *m = &front->members[i];
        char labels[EK_METRICS_LABELS_MAX];
        snprintf(labels, sizeof labels, "worker=\"%.100s\"", m->address);
        m->up = ek_telemetry_gauge(metrics, "evenkeel_cluster_worker_up", labels, 1,
                                   "1 while a worker is joined, else 0.");
        m->buffer_reserved_bytes =
            ek_telemetry_gauge(metrics, "evenkeel_cluster_buffer_reserved_bytes", labels, 1,
                               "Address space of the buffers for a worker's messages.");
        m->buffer_used_bytes =
            ek_telemetry_gauge(metrics, "evenkeel_cluster_buffer_used_bytes", labels, 1,
                               "What a layer has needed of them at most.");
        m->latency = ek_telemetry_gauge(
            metrics, "evenkeel_cluster_link_latency_seconds", labels, 1e-6,
            "How long a small message to a worker and back took when it joined; 0: not measured.");
        m->bandwidth = ek_telemetry_gauge(
            metrics, "evenkeel_cluster_link_bytes_per_second", labels, 1,
            "What the data link to a worker carried, each way, when it joined; 0: not measured.");
        m->losses = ek_telemetry_counter(metrics, "evenkeel_cluster_worker_losses_total", labels,
                                         "Times that a worker went while it was needed.");
    }
    return EK_OK;
}

/* ---- life ---- */

static ek_status open_source(void *ctx, const ek_dispatcher_setup *setup,
                             ek_dispatcher **out_dispatcher, ek_err *err)
{
    return ek_cluster_dispatch_create(ctx, setup, out_dispatcher, err);
}

static ek_status open_all(ek_front *front, const ek_model *model, ek_metrics *metrics, ek_err *err)
{
    if (!front->params.certs)
        return ek_err_set(
            err, EK_ECONFIG,
            "workers are named, but no certificate to show them: set cluster.certs to "
            "the directory that `evenkeel cluster init` made for this front");
    ek_status status = ek_link_wire_shape_check(&front->shape, err);
    if (status != EK_OK) return status;
    if (ek_link_wire_combine_bytes_max(&front->shape) > EK_WIRE_BODY_BYTES_MAX)
        return ek_err_set(
            err, EK_EINVAL,
            "a step of %d tokens makes messages of more than %u MiB; choose a smaller "
            "engine.prefill_chunk_tokens",
            (int)front->shape.tokens_max, EK_WIRE_BODY_BYTES_MAX >> 20);
    status = read_workers(front, err);
    if (status == EK_OK) status = ek_link_fabric_tls(front->params.certs, &front->tls, err);
    if (status == EK_OK) status = ek_link_fabric_tcp(&front->tcp, err);
    if (status == EK_OK && front->params.fabric == EK_LINK_FABRIC_UCX)
        status = ek_link_fabric_ucx(&front->ucx, err);
    if (status == EK_OK && ek_expert_identity(model->gguf, front->identity) != EK_OK)
        status = ek_err_set(err, EK_ENOMEM, "no memory to hash");
    if (status == EK_OK) status = open_metrics(front, metrics, err);
    front->source =
        (ek_expert_source){.ctx = front, .n_devices = front->n_members, .open = open_source};
    for (int32_t i = 0; status == EK_OK && i < front->n_members; i++)
        if (ek_sys_thread_start(&front->members[i].thread, "ek-member", ek_cluster_member_run,
                                &front->members[i]) != EK_OK)
            status = ek_err_set(err, EK_ENOMEM, "cannot start a thread for each worker");
    return status == EK_OK ? ek_cluster_rebalance_start(front, &front->rebalance, err) : status;
}

ek_status ek_cluster_front_create(const ek_cluster_params *params, const ek_model *model,
                                  int32_t tokens_max, ek_metrics *metrics, ek_front **out_front,
                                  ek_err *err)
{
    ek_front *front = ek_sys_calloc(1, sizeof *front);
    if (!front) return ek_err_set(err, EK_ENOMEM, "no memory for a front");
    front->params = *params;
    front->shape = (ek_wire_shape){
        .n_layers = model->params.n_layers,
        .n_experts = model->params.n_experts,
        .d_model = model->params.d_model,
        .top_k = model->params.top_k,
        .tokens_max = tokens_max,
    };
    front->expert_bytes = ek_cluster_moves_expert_bytes(model);
    ek_sys_mutex_init(&front->lock);
    ek_status status = open_all(front, model, metrics, err);
    if (status != EK_OK) {
        ek_cluster_front_destroy(front);
        return status;
    }
    *out_front = front;
    return EK_OK;
}

void ek_cluster_front_destroy(ek_front *front)
{
    if (!front) return;
    atomic_store_explicit(&front->stopping, true, memory_order_release);
    ek_cluster_rebalance_stop(front->rebalance);
    for (int32_t i = 0; front->members && i < front->n_members; i++) {
        ek_member *m = &front->members[i];
        ek_sys_thread_join(&m->thread);
        ek_cluster_session_free(atomic_exchange_explicit(&m->incoming, NULL, memory_order_acq_rel));
        ek_cluster_session_free(m->current);
        ek_sys_free(m->offered.bits);
        ek_cluster_member_moves_close(m);
    }
    ek_sys_free(front->members);
    ek_sys_free(front->placing.target);
    ek_link_fabric_destroy(front->tls);
    ek_link_fabric_destroy(front->tcp);
    ek_link_fabric_destroy(front->ucx);
    ek_sys_region_close(&front->metrics_region);
    ek_sys_mutex_fini(&front->lock);
    ek_sys_free(front);
}

/* ---- who is there ---- */

static bool is_joined(const ek_member *member)
{
    return atomic_load_explicit(&member->joined, memory_order_acquire);
}

static ek_status ready_locked(const ek_front *front, bool all, ek_err *err)
{
    const ek_member *absent = NULL;
    for (int32_t i = 0; i < front->n_members && !absent; i++)
        if (!is_joined(&front->members[i])) absent = &front->members[i];
    for (int32_t l = 0; l < front->shape.n_layers; l++) {
        for (int32_t e = 0; e < front->shape.n_experts; e++) {
            bool found = false;
            for (int32_t i = 0; i < front->n_members && !found; i++)
                found = is_joined(&front->members[i]) &&
                        ek_link_set_has(&front->members[i].offered, l, e);
            if (found) continue;
            if (absent)
                return ek_err_set(err, EK_AGAIN,
                                  "no worker has expert %d of layer %d, and %s is absent: %s",
                                  (int)e, (int)l, absent->address, absent->why);
            return ek_err_set(
                err, EK_AGAIN,
                "no worker has expert %d of layer %d; give it to one (worker.experts)", (int)e,
                (int)l);
        }
    }
    if (absent && all)
        return ek_err_set(err, EK_AGAIN, "worker %s is absent: %s", absent->address, absent->why);
    return EK_OK;
}

ek_status ek_cluster_front_ready(ek_front *front, bool all, ek_err *err)
{
    ek_sys_mutex_lock(&front->lock);
    ek_status status = ready_locked(front, all, err);
    ek_sys_mutex_unlock(&front->lock);
    return status;
}

int32_t ek_cluster_front_n_workers(const ek_front *front)
{
    return front->n_members;
}

int32_t ek_cluster_front_n_slots(ek_front *front)
{
    int32_t most = 1;
    ek_sys_mutex_lock(&front->lock);
    for (int32_t i = 0; i < front->n_members; i++) {
        for (int32_t l = 0; l < front->shape.n_layers; l++) {
            int32_t n = ek_cluster_moves_slots_locked(&front->members[i], l);
            if (n > most) most = n;
        }
    }
    ek_sys_mutex_unlock(&front->lock);
    return most * front->n_members;
}

void ek_cluster_front_slots(ek_front *front, int32_t n_slots, int32_t *out_slot_expert)
{
    int32_t each = n_slots / front->n_members;
    ek_sys_mutex_lock(&front->lock);
    for (int32_t l = 0; l < front->shape.n_layers; l++) {
        for (int32_t i = 0; i < front->n_members; i++) {
            int32_t *slot = out_slot_expert + (int64_t)l * n_slots + (int64_t)i * each;
            int32_t n = 0;
            for (int32_t e = 0; e < front->shape.n_experts && n < each; e++)
                if (ek_link_set_has(&front->members[i].offered, l, e)) slot[n++] = e;
            while (n < each)
                slot[n++] = -1;
        }
    }
    ek_sys_mutex_unlock(&front->lock);
}

const ek_expert_source *ek_cluster_front_source(ek_front *front)
{
    return &front->source;
}

/* ---- reports ---- */

const char *ek_cluster_member_state_name(ek_member_state state)
{
    static const char *const names[] = {"absent", "serving", "draining", "late"};
    return names[state];
}

void ek_cluster_front_report(ek_front *front, int32_t worker, ek_member_report *out_report)
{
    ek_member *m = &front->members[worker];
    int64_t now_us = ek_sys_now_us();
    int64_t heard_us = atomic_load_explicit(&m->heard_us, memory_order_relaxed);
    bool drained = atomic_load_explicit(&m->drained, memory_order_relaxed);
    ek_member_report r = {
        .drained = drained,
        .epoch = atomic_load_explicit(&m->epoch, memory_order_relaxed),
        .n_threads = atomic_load_explicit(&m->n_threads, memory_order_relaxed),
        .n_experts = atomic_load_explicit(&m->n_experts, memory_order_relaxed),
        .weight_bytes = atomic_load_explicit(&m->weight_bytes, memory_order_relaxed),
        .heard_ago_us = heard_us ? now_us - heard_us : -1,
        .round_trip_us = atomic_load_explicit(&m->round_trip_us, memory_order_relaxed),
        .busy_us = (int64_t)atomic_load_explicit(&m->busy_us, memory_order_relaxed),
        .queue = (int32_t)atomic_load_explicit(&m->queue, memory_order_relaxed),
        .n_dispatches = atomic_load_explicit(&m->n_dispatches, memory_order_relaxed),
        .bytes_sent = atomic_load_explicit(&m->bytes_sent, memory_order_relaxed),
        .bytes_received = atomic_load_explicit(&m->bytes_received, memory_order_relaxed),
        .buffer_reserved_bytes = atomic_load_explicit(&m->buffer_reserved, memory_order_relaxed),
        .buffer_used_bytes = atomic_load_explicit(&m->buffer_used, memory_order_relaxed),
        .n_joined = atomic_load_explicit(&m->n_joined, memory_order_relaxed),
        .link_latency_us = atomic_load_explicit(&m->link_latency_us, memory_order_relaxed),
        .link_bytes_per_s = atomic_load_explicit(&m->link_bytes_per_s, memory_order_relaxed),
    };
    if (!is_joined(m))
        r.state = EK_MEMBER_ABSENT;
    else if (atomic_load_explicit(&m->late, memory_order_relaxed))
        r.state = EK_MEMBER_LATE;
    else if (drained || atomic_load_explicit(&m->draining, memory_order_relaxed))
        r.state = EK_MEMBER_DRAINING;
    else
        r.state = EK_MEMBER_SERVING;
    memcpy(r.address, m->address, sizeof r.address);
    ek_sys_mutex_lock(&front->lock);
    memcpy(r.why, m->why, sizeof r.why);
    ek_cluster_moves_report_locked(m, &r.moves);
    snprintf(r.fabric, sizeof r.fabric, "%s", m->fabric ? m->fabric : "");
    ek_sys_mutex_unlock(&front->lock);
    *out_report = r;
}

bool ek_cluster_front_rebalance(ek_front *front, ek_rebalance_report *out_report)
{
    return ek_cluster_rebalance_report(front->rebalance, out_report);
}

void ek_cluster_front_counts(ek_front *front, ek_front_counts *out_counts)
{
    *out_counts = (ek_front_counts){
        .redone_rows = ek_counter_get(front->redone),
        .degraded_rows = ek_counter_get(front->degraded),
        .failed_layers = ek_counter_get(front->failed),
        .stale_answers = ek_counter_get(front->stale),
        .late_answers = ek_counter_get(front->late),
        .overlapped_layers = ek_counter_get(front->overlapped),
        .exchange_us = atomic_load_explicit(&front->exchange_time->sum, memory_order_relaxed),
        .hidden_us = atomic_load_explicit(&front->hidden_time->sum, memory_order_relaxed),
    };
}

ek_status ek_cluster_front_drain(ek_front *front, const char *address, bool drain, ek_err *err)
{
    for (int32_t i = 0; i < front->n_members; i++) {
        if (strcmp(front->members[i].address, address) != 0) continue;
        atomic_store_explicit(&front->members[i].drained, drain, memory_order_release);
        return EK_OK;
    }
    return ek_err_set(err, EK_ENOTFOUND, "no worker is called %.100s; this front has %.300s",
                      address, front->params.workers);
}
