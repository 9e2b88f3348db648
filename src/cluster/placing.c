#include "cluster/placing.h"

#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "cluster/front_internal.h"
#include "sys/clock.h"
#include "sys/log.h"

#define TRIES    3        /* orders of a worker that may fail in a layer */
#define STALL_US 60000000 /* nothing comes, nothing goes */
#define LOOK_US  20000    /* for all members' threads together */

static size_t words_of(const ek_front *front)
{
    return ek_link_set_words(front->shape.n_experts);
}

/* Where a member's targets, or one of its sets, have a layer. */
static uint64_t *target_of(const ek_front *front, const ek_member *member, int32_t layer)
{
    size_t layers = (size_t)member->idx * (size_t)front->shape.n_layers + (size_t)layer;
    return front->placing.target + layers * words_of(front);
}

static uint64_t *bits_of(const ek_expert_set *set, int32_t layer)
{
    return set->bits + (size_t)layer * ek_link_set_words(set->n_experts);
}

static bool is_joined(const ek_member *member)
{
    return atomic_load_explicit(&member->joined, memory_order_acquire);
}

/* ---- how far it is ---- */

typedef struct left {
    int64_t n_missing; /* experts that workers have not got yet */
    int64_t n_extra;   /* that they shall not have */
} left;

static void add_left_locked(const ek_member *member, int32_t layer, left *sum)
{
    const ek_front *front = member->front;
    const uint64_t *target = target_of(front, member, layer);
    const uint64_t *offered = bits_of(&member->offered, layer);
    const uint64_t *acquired = bits_of(&member->moves.acquired, layer);
    bool is_there = is_joined(member);
    for (size_t w = 0; w < words_of(front); w++) {
        uint64_t has = is_there ? offered[w] : 0;
        sum->n_missing += __builtin_popcountll(target[w] & ~has);
        sum->n_extra += __builtin_popcountll(acquired[w] & ~target[w]);
    }
}

static left left_of_layer_locked(const ek_front *front, int32_t layer)
{
    left sum = {0};
    for (int32_t d = 0; d < front->n_members; d++)
        add_left_locked(&front->members[d], layer, &sum);
    return sum;
}

static left left_locked(const ek_front *front)
{
    left sum = {0};
    for (int32_t l = 0; l < front->shape.n_layers; l++)
        for (int32_t d = 0; d < front->n_members; d++)
            add_left_locked(&front->members[d], l, &sum);
    return sum;
}

bool ek_cluster_placing_is_moving_locked(const ek_front *front)
{
    return front->placing.state == EK_PLACING_MOVING;
}

static void report_locked(const ek_front *front, int64_t now_us, ek_placement_report *out_report)
{
    static const char *const states[] = {"", "moving", "done", "failed"};
    const ek_placing *p = &front->placing;
    bool is_moving = p->state == EK_PLACING_MOVING;
    left rest = {p->n_missing, p->n_extra};
    if (is_moving) rest = left_locked(front);
    *out_report = (ek_placement_report){
        .number = p->number,
        .state = states[p->state],
        .layer = is_moving ? p->layer : -1,
        .n_layers = front->shape.n_layers,
        .n_acquire = p->n_acquire,
        .n_release = p->n_release,
        /* More is missing than at first where a worker has been started again. */
        .n_acquired = rest.n_missing < p->n_acquire ? p->n_acquire - rest.n_missing : 0,
        .n_released = rest.n_extra < p->n_release ? p->n_release - rest.n_extra : 0,
        .us = (is_moving ? now_us : p->end_us) - p->beg_us,
    };
    memcpy(out_report->why, p->why, sizeof out_report->why);
}

bool ek_cluster_front_placement(ek_front *front, ek_placement_report *out_report)
{
    ek_sys_mutex_lock(&front->lock);
    bool there = front->placing.state != EK_PLACING_NONE;
    if (there) report_locked(front, ek_sys_now_us(), out_report);
    ek_sys_mutex_unlock(&front->lock);
    return there;
}

/* ---- what is wanted ---- */

/* What a worker has acquired, and what is on its way there, and no more. */
static void want_what_is_there_locked(ek_member *member)
{
    ek_member_moves *m = &member->moves;
    const ek_wire_order *order = &m->order.wire;
    const ek_front *front = member->front;
    memcpy(m->wanted.bits, m->acquired.bits,
           ek_link_set_bytes(front->shape.n_layers, front->shape.n_experts));
    if (m->order.id == 0 || order->verb != EK_WIRE_ACQUIRE) return;
    for (int32_t i = 0; i < order->n_experts; i++)
        ek_link_set_add(&m->wanted, order->layer, order->expert[i]);
}

/* Is there room for what a layer's targets add before anything goes? */
static bool has_room_locked(const ek_member *member, int32_t layer)
{
    const ek_front *front = member->front;
    const ek_member_moves *m = &member->moves;
    const uint64_t *target = target_of(front, member, layer);
    const uint64_t *acquired = bits_of(&m->acquired, layer);
    int64_t n = ek_link_set_count(&m->acquired);
    for (size_t w = 0; w < words_of(front); w++)
        n += __builtin_popcountll(target[w] & ~acquired[w]);
    return n * front->expert_bytes <= m->room_bytes;
}

static void want_layer_locked(ek_member *member, int32_t layer, bool releases)
{
    const ek_front *front = member->front;
    ek_member_moves *m = &member->moves;
    bool has_room = has_room_locked(member, layer);
    for (int32_t l = 0; l < front->shape.n_layers; l++) {
        const uint64_t *target = target_of(front, member, l);
        const uint64_t *acquired = bits_of(&m->acquired, l);
        uint64_t *wanted = bits_of(&m->wanted, l);
        for (size_t w = 0; w < words_of(front); w++) {
            if (l == layer)
                wanted[w] = releases || !has_room ? target[w] : target[w] | acquired[w];
            else if (!has_room)
                wanted[w] &= target[w];
        }
    }
}

/* ---- its course ---- */

static void begin_layer_locked(ek_front *front, int32_t layer)
{
    front->placing.layer = layer;
    for (int32_t d = 0; d < front->n_members; d++)
        front->placing.failed[d] = front->members[d].moves.n_failed;
}

static void end_locked(ek_front *front, int64_t now_us, ek_placing_state state)
{
    ek_placing *p = &front->placing;
    left rest = left_locked(front);
    p->state = state;
    p->end_us = now_us;
    p->n_missing = rest.n_missing;
    p->n_extra = rest.n_extra;
    if (state == EK_PLACING_FAILED)
        for (int32_t d = 0; d < front->n_members; d++)
            want_what_is_there_locked(&front->members[d]);
}

static void say(ek_placing *p, const ek_member *member, const char *why)
{
    snprintf(p->why, sizeof p->why, "%.100s: %.150s", member->address, why);
}

/* Who stands in the way of a layer, and why: one who is not there, else one with something left. */
static void say_stalled_locked(ek_front *front)
{
    ek_placing *p = &front->placing;
    const ek_member *member = NULL;
    for (int32_t d = 0; d < front->n_members; d++) {
        left rest = {0};
        add_left_locked(&front->members[d], p->layer, &rest);
        if (rest.n_missing + rest.n_extra == 0) continue;
        if (!member || !is_joined(&front->members[d])) member = &front->members[d];
        if (!is_joined(member)) break;
    }
    ek_assert(member); /* the layer has something left */
    const char *why = is_joined(member) ? member->moves.why : member->why;
    say(p, member, why[0] ? why : "nothing moves");
}

/* @return whether it has failed, and p->why says at what */
static bool has_failed_locked(ek_front *front, int64_t now_us)
{
    ek_placing *p = &front->placing;
    uint64_t progress = (uint64_t)p->layer;
    for (int32_t d = 0; d < front->n_members; d++) {
        const ek_member *member = &front->members[d];
        const ek_member_moves *m = &member->moves;
        bool is_refused = m->is_able && !m->is_ours;
        if (is_refused || m->n_failed - p->failed[d] >= TRIES) {
            say(p, member, m->why[0] ? m->why : "it goes again and again");
            return true;
        }
        progress = 31 * progress + (uint64_t)ek_link_set_count(&m->acquired);
        progress = 31 * progress + m->order.outcome.bytes;
    }
    if (progress != p->progress) {
        p->progress = progress;
        p->progress_us = now_us;
    }
    if (now_us - p->progress_us < STALL_US) return false;
    say_stalled_locked(front);
    return true;
}

/* The next layer with something to do. @return false: there is none, it is done */
static bool next_layer_locked(ek_front *front, left *out_left)
{
    int32_t n_layers = front->shape.n_layers;
    for (int32_t i = 0; i < n_layers; i++) {
        int32_t layer = front->placing.layer;
        *out_left = left_of_layer_locked(front, layer);
        if (out_left->n_missing + out_left->n_extra > 0) return true;
        for (int32_t d = 0; d < front->n_members; d++)
            want_layer_locked(&front->members[d], layer, true);
        begin_layer_locked(front, (layer + 1) % n_layers);
    }
    return false;
}

bool ek_cluster_placing_step_locked(ek_front *front, int64_t now_us,
                                    ek_placement_report *out_report)
{
    ek_placing *p = &front->placing;
    left rest;
    if (p->state != EK_PLACING_MOVING || now_us - p->looked_us < LOOK_US) return false;
    p->looked_us = now_us;
    if (!next_layer_locked(front, &rest)) {
        end_locked(front, now_us, EK_PLACING_DONE);
    } else if (has_failed_locked(front, now_us)) {
        end_locked(front, now_us, EK_PLACING_FAILED);
    } else {
        for (int32_t d = 0; d < front->n_members; d++)
            want_layer_locked(&front->members[d], p->layer, rest.n_missing == 0);
        return false;
    }
    report_locked(front, now_us, out_report);
    return true;
}

void ek_cluster_placing_log(const ek_placement_report *r)
{
    bool is_done = r->why[0] == '\0';
    ek_log(is_done ? EK_LOG_INFO : EK_LOG_WARN, "cluster", is_done ? "placed" : "placement_failed",
           "number=%llu acquired=%lld of=%lld released=%lld of=%lld ms=%lld why=\"%s\"",
           (unsigned long long)r->number, (long long)r->n_acquired, (long long)r->n_acquire,
           (long long)r->n_released, (long long)r->n_release, (long long)(r->us / 1000), r->why);
}

/* ---- a new one ---- */

/* Does it fit the model, and so many workers? */
static ek_status check(const ek_front *front, const ek_cluster_placement *p, ek_err *err)
{
    int32_t n_experts = front->shape.n_experts;
    if (p->n_layers != front->shape.n_layers)
        return ek_err_set(err, EK_EINVAL, "the placement has %d layers, but the model has %d",
                          (int)p->n_layers, (int)front->shape.n_layers);
    if (p->n_slots % front->n_members != 0)
        return ek_err_set(err, EK_EINVAL,
                          "%d slots for each layer do not divide evenly over %d workers",
                          (int)p->n_slots, (int)front->n_members);
    for (int32_t l = 0; l < p->n_layers; l++) {
        const int32_t *slot = p->slot_expert + (int64_t)l * p->n_slots;
        for (int32_t s = 0; s < p->n_slots; s++)
            if (slot[s] >= n_experts)
                return ek_err_set(err, EK_EINVAL, "layer %d has expert %d, but the model has %d",
                                  (int)l, (int)slot[s], (int)n_experts);
    }
    return EK_OK;
}

/* Named workers have the device that they are given, the others those that are left, in order. */
static ek_status number_devices(const ek_front *front, const ek_cluster_placement *p,
                                int32_t out_device[EK_CLUSTER_WORKERS_MAX], ek_err *err)
{
    bool taken[EK_CLUSTER_WORKERS_MAX] = {false};
    int32_t n = front->n_members;
    for (int32_t d = 0; d < n; d++)
        out_device[d] = -1;
    for (int32_t i = 0; i < p->n_named; i++) {
        const ek_cluster_device *named = &p->named[i];
        int32_t d = 0;
        while (d < n && strcmp(front->members[d].address, named->worker) != 0)
            d++;
        if (d == n)
            return ek_err_set(err, EK_ENOTFOUND,
                              "no worker is called %.100s; this front has %.300s", named->worker,
                              front->params.workers);
        if (named->device < 0 || named->device >= n)
            return ek_err_set(err, EK_EINVAL, "%s: %d workers have the devices 0 to %d, not %d",
                              named->worker, (int)n, (int)n - 1, (int)named->device);
        if (taken[named->device] || out_device[d] >= 0)
            return ek_err_set(err, EK_EINVAL, "%s: two workers cannot both be device %d",
                              named->worker, (int)named->device);
        taken[named->device] = true;
        out_device[d] = named->device;
    }
    for (int32_t d = 0, next = 0; d < n; d++) {
        if (out_device[d] >= 0) continue;
        while (taken[next])
            next++;
        taken[next] = true;
        out_device[d] = next;
    }
    return EK_OK;
}

/* What each member's device has. @return EK_OK; EK_EINVAL an expert is nowhere */
static ek_status fill(const ek_front *front, const ek_cluster_placement *p, const int32_t *device,
                      uint64_t *target, ek_err *err)
{
    int32_t each = p->n_slots / front->n_members;
    size_t words = words_of(front), layers = (size_t)p->n_layers;
    for (int32_t d = 0; d < front->n_members; d++)
        for (int32_t l = 0; l < p->n_layers; l++) {
            const int32_t *slot =
                p->slot_expert + (int64_t)l * p->n_slots + (int64_t)device[d] * each;
            uint64_t *bits = target + ((size_t)d * layers + (size_t)l) * words;
            for (int32_t s = 0; s < each; s++)
                if (slot[s] >= 0) bits[slot[s] / 64] |= UINT64_C(1) << (slot[s] % 64);
        }
    for (int32_t l = 0; l < p->n_layers; l++)
        for (int32_t e = 0; e < front->shape.n_experts; e++) {
            bool found = false;
            for (size_t d = 0; d < (size_t)front->n_members && !found; d++)
                found = target[(d * layers + (size_t)l) * words + (size_t)e / 64] >> (e % 64) & 1;
            if (!found)
                return ek_err_set(err, EK_EINVAL, "expert %d of layer %d is in no slot", (int)e,
                                  (int)l);
        }
    return EK_OK;
}

/*
 * Leave out of a member's targets what it was started with. @return EK_OK; EK_EFULL;
 * EK_EUNSUPPORTED
 */
static ek_status fit_locked(const ek_member *member, uint64_t *target, ek_err *err)
{
    const ek_front *front = member->front;
    const ek_member_moves *m = &member->moves;
    int64_t n = 0, room = m->is_able ? m->room_bytes : 0;
    bool drains = atomic_load_explicit(&member->draining, memory_order_acquire) ||
                  atomic_load_explicit(&member->drained, memory_order_acquire);
    if (!is_joined(member) || drains)
        return ek_err_set(err, EK_EUNSUPPORTED, "%s %s: a placement is for workers that serve",
                          member->address, is_joined(member) ? "is draining" : "is absent");
    for (size_t i = 0; i < (size_t)front->shape.n_layers * words_of(front); i++) {
        target[i] &= ~(member->offered.bits[i] & ~m->acquired.bits[i]);
        n += __builtin_popcountll(target[i]);
    }
    if (n * front->expert_bytes > room)
        return ek_err_set(err, EK_EFULL,
                          "%s has room for %lld experts beyond those that it was started with, not "
                          "for %lld (worker.experts_bytes_max)",
                          member->address, (long long)(room / front->expert_bytes), (long long)n);
    return EK_OK;
}

static void begin_locked(ek_front *front, uint64_t *target, int64_t now_us)
{
    ek_placing *p = &front->placing;
    p->state = EK_PLACING_MOVING;
    p->number++;
    p->target = target;
    p->beg_us = p->progress_us = now_us;
    p->progress = 0;
    memset(p->why, 0, sizeof p->why);
    left rest = left_locked(front);
    p->n_acquire = rest.n_missing;
    p->n_release = rest.n_extra;
    for (int32_t d = 0; d < front->n_members; d++) {
        ek_member *member = &front->members[d];
        want_what_is_there_locked(member);
        member->moves.is_ours = true;
        member->moves.retry_us = 0;
    }
    begin_layer_locked(front, 0);
}

ek_status ek_cluster_front_place(ek_front *front, const ek_cluster_placement *placement,
                                 ek_err *err)
{
    int32_t device[EK_CLUSTER_WORKERS_MAX];
    size_t each = (size_t)front->shape.n_layers * words_of(front);
    ek_status status = check(front, placement, err);
    if (status == EK_OK) status = number_devices(front, placement, device, err);
    if (status != EK_OK) return status;
    uint64_t *target = ek_sys_calloc((size_t)front->n_members * each, sizeof *target);
    if (!target) return ek_err_set(err, EK_ENOMEM, "no memory for a placement");
    status = fill(front, placement, device, target, err);
    ek_placement_report report = {0};
    ek_sys_mutex_lock(&front->lock);
    for (int32_t d = 0; d < front->n_members && status == EK_OK; d++)
        status = fit_locked(&front->members[d], target + (size_t)d * each, err);
    uint64_t *old = target;
    if (status == EK_OK) {
        old = front->placing.target;
        begin_locked(front, target, ek_sys_now_us());
        report_locked(front, front->placing.beg_us, &report);
    }
    ek_sys_mutex_unlock(&front->lock);
    ek_sys_free(old);
    if (status == EK_OK)
        ek_log(EK_LOG_INFO, "cluster", "placement", "number=%llu acquire=%lld release=%lld",
               (unsigned long long)report.number, (long long)report.n_acquire,
               (long long)report.n_release);
    return status;
}
