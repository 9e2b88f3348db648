#include "base/assert.h"
#include "place/controller_internal.h"

void ek_place_controller_begin(ek_place_controller *c, int64_t now_us, int32_t layer,
                               int32_t n_moves)
{
    ek_assert(c->active.state == EK_PLACE_IDLE);
    ek_assert(n_moves > 0 && n_moves <= c->moves_max);
    c->active.state = EK_PLACE_READY;
    c->active.layer = layer;
    c->active.n_moves = n_moves;
    c->active.n_done = 0;
    c->active.progress_us = now_us;
    c->stats.n_rebalances++;
}

void ek_place_controller_end(ek_place_controller *c, int64_t now_us)
{
    c->active.state = EK_PLACE_IDLE;
    c->layer[c->active.layer].paused_until_us = now_us + c->params.pause_us;
}

ek_status ek_place_controller_next(ek_place_controller *c, int64_t now_us, ek_place_step *out_step)
{
    ek_place_active *a = &c->active;
    if (a->state != EK_PLACE_READY) return EK_AGAIN;
    int32_t most = c->params.max_step_replicas, n_replicas = 0, n = 0;
    int64_t by_bytes = c->params.max_step_bytes / c->params.bytes_per_expert;
    most = by_bytes < most ? (int32_t)by_bytes : most;
    while (a->n_done + n < a->n_moves) {
        int32_t more = ek_place_controller_replicas(&a->moves[a->n_done + n]);
        if (n_replicas + more > most) break;
        n_replicas += more;
        n++;
    }
    ek_assert(n > 0); /* params_check leaves room for a swap */
    a->n_out = n;
    a->step_id++;
    a->progress_us = now_us;
    a->state = EK_PLACE_WAITING;
    *out_step = (ek_place_step){
        .id = a->step_id,
        .layer = a->layer,
        .moves = a->moves + a->n_done,
        .n_moves = n,
        .n_replicas = n_replicas,
        .bytes = n_replicas * c->params.bytes_per_expert,
    };
    return EK_OK;
}

static void commit(ek_place_controller *c, const ek_place_move *move)
{
    int32_t layer = c->active.layer;
    int32_t *slots = c->slot_expert + (int64_t)layer * c->topology.n_slots;
    if (move->other_slot < 0)
        c->stats.n_reclaimed += ek_place_controller_idle_of(c, layer, slots[move->slot]) > 0;
    ek_place_moves_apply(&c->topology, move, 1, slots, c->stats.n_from);
    c->stats.n_replicas += ek_place_controller_replicas(move);
    c->stats.bytes += ek_place_controller_replicas(move) * c->params.bytes_per_expert;
}

static bool is_out(const ek_place_controller *c, uint64_t step_id)
{
    return c->active.state == EK_PLACE_WAITING && c->active.step_id == step_id;
}

ek_status ek_place_controller_confirm(ek_place_controller *c, int64_t now_us, uint64_t step_id)
{
    ek_place_active *a = &c->active;
    if (!is_out(c, step_id)) return EK_ESTALE;
    for (int32_t i = 0; i < a->n_out; i++)
        commit(c, &a->moves[a->n_done + i]);
    ek_place_controller_changed(c, a->layer);
    a->n_done += a->n_out;
    a->progress_us = now_us;
    a->state = EK_PLACE_READY;
    c->stats.n_steps++;
    c->stats.last_commit_us = now_us;
    if (a->n_done < a->n_moves) return EK_OK;
    c->stats.n_finished++;
    ek_place_controller_end(c, now_us);
    /* What is required and not yet done does not wait. */
    if (c->layer[a->layer].is_incomplete) c->layer[a->layer].paused_until_us = INT64_MIN;
    return EK_OK;
}

ek_status ek_place_controller_fail(ek_place_controller *c, int64_t now_us, uint64_t step_id)
{
    if (!is_out(c, step_id)) return EK_ESTALE;
    c->stats.n_failed++;
    ek_place_controller_end(c, now_us);
    return EK_OK;
}

bool ek_place_controller_watch(ek_place_controller *c, int64_t now_us)
{
    bool is_late = c->active.state != EK_PLACE_IDLE &&
                   now_us - c->active.progress_us > c->params.step_timeout_us;
    if (!is_late) return false;
    c->stats.n_timeouts++;
    ek_place_controller_end(c, now_us);
    return true;
}
