#include "cluster/moves.h"

#include <stdio.h>
#include <string.h>

#include "telemetry/prometheus.h"

int64_t ek_cluster_moves_expert_bytes(const ek_model *model)
{
    int64_t most = 0;
    for (int32_t l = 0; l < model->params.n_layers; l++) {
        const ek_model_layer *layer = &model->layers[l];
        const ek_tensor *const mat[] = {layer->expert_gate, layer->expert_up, layer->expert_down};
        int64_t bytes = 0;
        for (size_t i = 0; i < EK_COUNT_OF(mat); i++)
            bytes += (int64_t)mat[i]->bytes / (mat[i]->dim[2] * mat[i]->dim[3]);
        if (bytes > most) most = bytes;
    }
    return most;
}

void ek_cluster_moves_metrics(ek_front *front, ek_metrics *metrics)
{
    front->moves_started =
        ek_telemetry_counter(metrics, "evenkeel_cluster_moves_started_total", NULL,
                             "Orders to workers to acquire or release experts of a layer.");
    front->moves_done = ek_telemetry_counter(metrics, "evenkeel_cluster_moves_done_total", NULL,
                                             "Of those, carried out.");
    front->moves_failed = ek_telemetry_counter(metrics, "evenkeel_cluster_moves_failed_total", NULL,
                                               "Of those, failed or cut off.");
    front->moved_bytes =
        ek_telemetry_counter(metrics, "evenkeel_cluster_moved_bytes_total", NULL,
                             "Bytes of weights that workers read to acquire experts.");
    front->move_time = ek_telemetry_hist(
        metrics, "evenkeel_cluster_move_seconds", NULL, 1e-6, ek_latency_bounds,
        ek_latency_n_bounds, "Time from an order to a worker until it is done or has failed.");
}

/* Of what it was started with. */
static int32_t n_own_locked(const ek_member *member, int32_t layer)
{
    return ek_link_set_count_layer(&member->offered, layer) -
           ek_link_set_count_layer(&member->moves.acquired, layer);
}

int32_t ek_cluster_moves_slots_locked(const ek_member *member, int32_t layer)
{
    const ek_front *front = member->front;
    int32_t own = n_own_locked(member, layer), rest = front->shape.n_experts - own;
    if (!member->moves.is_able || front->expert_bytes <= 0) return own;
    int64_t room = member->moves.room_bytes / front->expert_bytes;
    return own + (room < rest ? (int32_t)room : rest);
}

void ek_cluster_moves_report_locked(const ek_member *member, ek_member_moves_report *out_report)
{
    const ek_member_moves *m = &member->moves;
    const ek_member_order *order = &m->order;
    *out_report = (ek_member_moves_report){
        .is_able = m->is_able,
        .n_experts = ek_link_set_count(&m->acquired),
        .room_bytes = m->is_able ? m->room_bytes : 0,
        .used_bytes = m->used_bytes,
    };
    snprintf(out_report->why, sizeof out_report->why, "%.*s", EK_CLUSTER_WHY_MAX - 1, m->why);
    if (order->id == 0) return;
    out_report->verb = order->wire.verb == EK_WIRE_ACQUIRE ? "acquire" : "release";
    out_report->layer = order->wire.layer;
    out_report->n_wanted = order->wire.n_experts;
    out_report->n_done = (int32_t)order->outcome.n_done;
    out_report->bytes = (int64_t)order->outcome.bytes;
    out_report->bytes_all = (int64_t)order->outcome.bytes_all;
}

/* ---- by command ---- */

/* What is wanted of a worker, changed by a set. @return EK_OK; EK_EINVAL; EK_EFULL */
static ek_status want_locked(ek_member *member, const ek_expert_set *set, bool release, ek_err *err)
{
    ek_member_moves *m = &member->moves;
    const ek_front *front = member->front;
    int64_t n = ek_link_set_count(&m->wanted);
    for (int32_t l = 0; l < set->n_layers; l++) {
        for (int32_t e = 0; e < set->n_experts; e++) {
            if (!ek_link_set_has(set, l, e)) continue;
            bool acquired = ek_link_set_has(&m->acquired, l, e);
            if (release && !acquired && ek_link_set_has(&member->offered, l, e))
                return ek_err_set(err, EK_EINVAL,
                                  "%s was started with expert %d of layer %d, and keeps it",
                                  member->address, (int)e, (int)l);
            n += !release && !ek_link_set_has(&member->offered, l, e) &&
                 !ek_link_set_has(&m->wanted, l, e);
        }
    }
    if (!release && n * front->expert_bytes > m->room_bytes)
        return ek_err_set(
            err, EK_EFULL, "%s has room for %lld experts, not for %lld (worker.experts_bytes_max)",
            member->address, (long long)(m->room_bytes / front->expert_bytes), (long long)n);
    for (int32_t l = 0; l < set->n_layers; l++)
        for (int32_t e = 0; e < set->n_experts; e++) {
            if (!ek_link_set_has(set, l, e)) continue;
            if (release)
                ek_link_set_remove(&m->wanted, l, e);
            else if (!ek_link_set_has(&member->offered, l, e))
                ek_link_set_add(&m->wanted, l, e);
        }
    m->is_ours = true;
    m->retry_us = 0;
    return EK_OK;
}

static ek_status move(ek_front *front, ek_member *member, const char *experts, bool release,
                      ek_err *err)
{
    ek_expert_set set = {
        .n_layers = front->shape.n_layers,
        .n_experts = front->shape.n_experts,
        .bits = ek_sys_calloc(1, ek_link_set_bytes(front->shape.n_layers, front->shape.n_experts)),
    };
    if (!set.bits) return ek_err_set(err, EK_ENOMEM, "no memory for a set of experts");
    ek_status status = ek_link_set_parse(experts, &set, err);
    if (status == EK_OK) {
        ek_sys_mutex_lock(&front->lock);
        if (ek_cluster_placing_is_moving_locked(front))
            status = ek_err_set(err, EK_EUNSUPPORTED,
                                "a placement is being brought about; until it has ended it says "
                                "what workers have");
        else if (member->moves.is_able)
            status = want_locked(member, &set, release, err);
        else
            status = ek_err_set(err, EK_EUNSUPPORTED,
                                "%s acquires no experts, or is not there; give it room with "
                                "worker.experts_bytes_max",
                                member->address);
        ek_sys_mutex_unlock(&front->lock);
    }
    ek_sys_free(set.bits);
    return status;
}

ek_status ek_cluster_front_move(ek_front *front, const char *address, const char *experts,
                                bool release, ek_err *err)
{
    for (int32_t i = 0; i < front->n_members; i++)
        if (strcmp(front->members[i].address, address) == 0)
            return move(front, &front->members[i], experts, release, err);
    return ek_err_set(err, EK_ENOTFOUND, "no worker is called %.100s; this front has %.300s",
                      address, front->params.workers);
}
