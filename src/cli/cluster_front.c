#include "cli/cluster_front.h"

#include "http/json_out.h"
#include "sys/clock.h"
#include "sys/log.h"

#define LOOK_US 20000 /* whether workers are there */

/* All that are named, or, when time is up, enough of them. */
static ek_status wait_for_workers(ek_front *front, int64_t timeout_us, bool (*hurry)(void *ctx),
                                  void *ctx, ek_err *err)
{
    int64_t until_us = ek_sys_now_us() + timeout_us;
    while (ek_cluster_front_ready(front, true, err) == EK_AGAIN) {
        if (hurry(ctx)) return ek_err_set(err, EK_ECANCELED, "ended while workers were missing");
        if (ek_sys_now_us() >= until_us) {
            if (ek_cluster_front_ready(front, false, err) == EK_AGAIN)
                return err->status = EK_ETIMEOUT;
            if (ek_cluster_front_ready(front, true, err) == EK_AGAIN)
                ek_log(EK_LOG_WARN, "cli", "incomplete", "why=\"%s\"", err->text);
            return EK_OK;
        }
        ek_sys_sleep_us(LOOK_US);
    }
    return EK_OK;
}

static ek_status place(ek_front *front, int32_t n_layers, ek_arena *perm, ek_engine_params *params,
                       ek_err *err)
{
    int32_t n_slots = ek_cluster_front_n_slots(front);
    int32_t *slots = ek_try_new(perm, int32_t, (int64_t)n_layers * n_slots);
    if (!slots) return ek_err_set(err, EK_ENOMEM, "no memory for the workers' placement");
    ek_cluster_front_slots(front, n_slots, slots);
    params->keel.n_devices = ek_cluster_front_n_workers(front);
    params->keel.n_slots = n_slots;
    params->keel.rebalance = false; /* weights do not move between workers yet */
    params->placement = slots;
    params->placement_layers = n_layers;
    params->source = ek_cluster_front_source(front);
    return EK_OK;
}

/* ---- what the gateway tells ---- */

/* Of what is kept for the largest layer there can be, the part that none has needed yet. */
static double unused_share(uint64_t used, uint64_t reserved)
{
    return reserved > 0 ? 1.0 - (double)used / (double)reserved : 0.0;
}

/* How much of the way to the experts and back stood behind the front's own work. */
static void add_overlap(const ek_front_counts *counts, ek_buf *json)
{
    double exchange_s = 1e-6 * (double)counts->exchange_us;
    double hidden_s = 1e-6 * (double)counts->hidden_us;
    ek_http_buf_addf(json, "},\"overlap\":{\"layers\":%llu",
                     (unsigned long long)counts->overlapped_layers);
    ek_http_json_add_number(json, "exchange_s", exchange_s);
    ek_http_json_add_number(json, "hidden_s", hidden_s);
    ek_http_json_add_number(json, "efficiency", exchange_s > 0 ? hidden_s / exchange_s : 0.0);
}

/* "acquired": {..., "move": {...}} */
static void add_moves(const ek_member_moves_report *m, ek_buf *json)
{
    ek_http_buf_addf(json, ",\"acquired\":{\"experts\":%lld", (long long)m->n_experts);
    ek_http_json_add_int(json, "bytes", m->used_bytes);
    ek_http_json_add_int(json, "room_bytes", m->room_bytes);
    ek_http_json_add_string(json, "why", m->why);
    if (m->verb) {
        ek_http_buf_addf(json, ",\"move\":{\"layer\":%d", (int)m->layer);
        ek_http_json_add_string(json, "verb", m->verb);
        ek_http_json_add_int(json, "experts", m->n_wanted);
        ek_http_json_add_int(json, "done", m->n_done);
        ek_http_json_add_int(json, "bytes", m->bytes);
        ek_http_json_add_int(json, "bytes_all", m->bytes_all);
        ek_http_buf_addz(json, "}");
    } else {
        ek_http_buf_addz(json, ",\"move\":null");
    }
    ek_http_buf_addz(json, "}");
}

static void add_worker(ek_front *front, int32_t i, ek_buf *json)
{
    ek_member_report w;
    ek_cluster_front_report(front, i, &w);
    ek_http_buf_addf(json, "%s{\"device\":%d", i ? "," : "", (int)i);
    ek_http_json_add_string(json, "address", w.address);
    ek_http_json_add_string(json, "state", ek_cluster_member_state_name(w.state));
    ek_http_json_add_string(json, "why", w.why);
    ek_http_buf_addf(json, ",\"drained\":%s", w.drained ? "true" : "false");
    ek_http_json_add_string(json, "fabric", w.fabric);
    ek_http_json_add_int(json, "epoch", w.epoch);
    ek_http_json_add_int(json, "joined", (int64_t)w.n_joined);
    ek_http_json_add_int(json, "threads", w.n_threads);
    ek_http_json_add_int(json, "experts", w.n_experts);
    ek_http_json_add_int(json, "weight_bytes", w.weight_bytes);
    ek_http_json_add_number(json, "heard_ago_ms",
                            w.heard_ago_us < 0 ? -1 : 1e-3 * (double)w.heard_ago_us);
    ek_http_json_add_number(json, "round_trip_ms", 1e-3 * (double)w.round_trip_us);
    ek_http_json_add_number(json, "link_latency_ms",
                            w.link_latency_us < 0 ? -1 : 1e-3 * (double)w.link_latency_us);
    ek_http_json_add_int(json, "link_bytes_per_s", w.link_bytes_per_s);
    ek_http_json_add_number(json, "busy_s", 1e-6 * (double)w.busy_us);
    ek_http_json_add_int(json, "queue", w.queue);
    ek_http_json_add_int(json, "dispatches", (int64_t)w.n_dispatches);
    ek_http_json_add_int(json, "bytes_sent", (int64_t)w.bytes_sent);
    ek_http_json_add_int(json, "bytes_received", (int64_t)w.bytes_received);
    ek_http_json_add_int(json, "buffer_reserved_bytes", (int64_t)w.buffer_reserved_bytes);
    ek_http_json_add_int(json, "buffer_used_bytes", (int64_t)w.buffer_used_bytes);
    ek_http_json_add_number(json, "buffer_fragmentation",
                            unused_share(w.buffer_used_bytes, w.buffer_reserved_bytes));
    add_moves(&w.moves, json);
    ek_http_buf_addz(json, "}");
}

/* "rebalance": {...}, or null where this front does not. */
static void add_rebalance(ek_front *front, ek_buf *json)
{
    ek_rebalance_report r;
    if (!ek_cluster_front_rebalance(front, &r)) {
        ek_http_buf_addz(json, ",\"rebalance\":null");
        return;
    }
    ek_http_buf_addf(json, ",\"rebalance\":{\"layer\":%d", (int)r.layer);
    ek_http_json_add_int(json, "begun", r.n_rebalances);
    ek_http_json_add_int(json, "finished", r.n_finished);
    ek_http_json_add_int(json, "failed", r.n_failed);
    ek_http_json_add_int(json, "replicas", r.n_replicas);
    ek_http_buf_addf(json, ",\"last\":{\"layer\":%d", (int)r.verdict_layer);
    ek_http_json_add_string(json, "verdict", r.verdict);
    ek_http_json_add_number(json, "now", r.now);
    ek_http_json_add_number(json, "then", r.then);
    ek_http_buf_addz(json, "}}");
}

/* "placement": {...}, or null where none was given. */
static void add_placement(ek_front *front, ek_buf *json)
{
    ek_placement_report p;
    if (!ek_cluster_front_placement(front, &p)) {
        ek_http_buf_addz(json, ",\"placement\":null");
        return;
    }
    ek_http_buf_addf(json, ",\"placement\":{\"number\":%llu", (unsigned long long)p.number);
    ek_http_json_add_string(json, "state", p.state);
    ek_http_json_add_int(json, "layer", p.layer);
    ek_http_json_add_int(json, "layers", p.n_layers);
    ek_http_json_add_int(json, "acquire", p.n_acquire);
    ek_http_json_add_int(json, "acquired", p.n_acquired);
    ek_http_json_add_int(json, "release", p.n_release);
    ek_http_json_add_int(json, "released", p.n_released);
    ek_http_json_add_number(json, "seconds", 1e-6 * (double)p.us);
    ek_http_json_add_string(json, "why", p.why);
    ek_http_buf_addz(json, "}");
}

static void report(void *ctx, ek_buf *json)
{
    ek_front *front = ctx;
    ek_front_counts counts;
    ek_cluster_front_counts(front, &counts);
    ek_http_buf_addz(json, "{\"object\":\"cluster\",\"workers\":[");
    for (int32_t i = 0; i < ek_cluster_front_n_workers(front); i++)
        add_worker(front, i, json);
    ek_http_buf_addf(json, "],\"rows\":{\"redone\":%llu", (unsigned long long)counts.redone_rows);
    ek_http_json_add_int(json, "degraded", (int64_t)counts.degraded_rows);
    ek_http_json_add_int(json, "failed_layers", (int64_t)counts.failed_layers);
    ek_http_json_add_int(json, "late_answers", (int64_t)counts.late_answers);
    ek_http_json_add_int(json, "stale_answers", (int64_t)counts.stale_answers);
    add_overlap(&counts, json);
    ek_http_buf_addz(json, "}");
    add_rebalance(front, json);
    add_placement(front, json);
    ek_http_buf_addz(json, "}");
}

static ek_status drain(void *ctx, const char *worker, bool drains, ek_err *err)
{
    return ek_cluster_front_drain(ctx, worker, drains, err);
}

static ek_status move(void *ctx, const char *worker, const char *experts, bool release, ek_err *err)
{
    return ek_cluster_front_move(ctx, worker, experts, release, err);
}

static ek_status place_workers(void *ctx, const ek_gateway_placement *p, ek_err *err)
{
    ek_cluster_device named[EK_CLUSTER_WORKERS_MAX];
    if (p->n_named > EK_CLUSTER_WORKERS_MAX)
        return ek_err_set(err, EK_EINVAL, "devices for %d workers; there are %d at most",
                          (int)p->n_named, EK_CLUSTER_WORKERS_MAX);
    for (int32_t i = 0; i < p->n_named; i++)
        named[i] = (ek_cluster_device){.worker = p->named[i].worker, .device = p->named[i].device};
    const ek_cluster_placement placement = {
        .n_layers = p->n_layers,
        .n_slots = p->n_slots,
        .slot_expert = p->slot_expert,
        .n_named = p->n_named,
        .named = named,
    };
    return ek_cluster_front_place(ctx, &placement, err);
}

/* ---- life ---- */

ek_status ek_cli_front_open(const ek_config *config, ek_metrics *metrics, bool (*hurry)(void *ctx),
                            void *ctx, ek_arena *perm, ek_cli_front *out_front,
                            ek_engine_params *params, ek_err *err)
{
    if (!config->cluster.workers) return EK_OK;
    if (config->placement_path)
        return ek_err_set(
            err, EK_EINVAL,
            "experts.placement is set, but with cluster.workers each worker says what "
            "it has; give the placement to the workers (worker.placement)");
    int32_t tokens_max = config->engine.running_max + config->engine.prefill_chunk_tokens;
    ek_status status =
        ek_expert_model_open(config->model_path, config->chat_format, &out_front->file, err);
    if (status != EK_OK) return status;
    const ek_model *model = out_front->file->model;
    status = ek_cluster_front_create(&config->cluster, model, tokens_max, metrics,
                                     &out_front->front, err);
    out_front->gateway = (ek_gateway_cluster){.ctx = out_front->front,
                                              .report = report,
                                              .drain = drain,
                                              .move = move,
                                              .place = place_workers};
    if (status == EK_OK)
        status =
            wait_for_workers(out_front->front, config->cluster.join_timeout_us, hurry, ctx, err);
    if (status == EK_OK)
        status = place(out_front->front, model->params.n_layers, perm, params, err);
    return status;
}

void ek_cli_front_close(ek_cli_front *front)
{
    ek_cluster_front_destroy(front->front);
    ek_expert_model_close(front->file);
    *front = (ek_cli_front){0};
}
