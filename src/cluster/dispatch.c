#include "cluster/dispatch.h"

#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "cluster/dispatch_internal.h"
#include "cluster/rebalance.h"
#include "sys/clock.h"
#include "sys/log.h"

#define WAIT_US        20000 /* at most between two looks at flags and deadlines */
#define PUSH_WAIT_US   1000  /* for room in a socket, before something else is computed */
#define RETURN_LOOK_US 10000 /* whether a worker is back */
#define LOOK_US        100   /* between two looks at links while something else is computed */

/* Below this many multiply-adds one thread sums faster than others can be called. */
#define SUM_ALONE_MAX 65536

/* ---- who has what ---- */

/* As the keel shared rows out, as far as that can be. */
static void take_shares(ek_cluster_dispatcher *self, ek_dispatch_layer *layer)
{
    const ek_expert_work *work = layer->work;
    for (int32_t d = 0; d < work->n_devices; d++) {
        ek_dispatch_peer *peer = &self->peers[d];
        bool is_usable = ek_cluster_peer_is_usable(peer);
        for (int32_t s = work->device_beg[d]; s < work->device_beg[d + 1]; s++) {
            int32_t expert = work->share_expert[s];
            bool has = is_usable && ek_cluster_peer_has(peer, work->layer, expert) &&
                       !ek_cluster_peer_passes(self, layer, peer, expert);
            int32_t beg = work->share_row[2 * s], end = work->share_row[2 * s + 1];
            for (int32_t r = beg; r < end; r++) {
                layer->row_state[r] = EK_ROW_TODO;
                layer->row_owner[r] = has ? d : EK_NOBODY;
            }
            if (has) peer->desk[layer->micro_batch].n_assigned += end - beg;
        }
    }
}

/*
 * Give rows without an owner to whoever has their expert.
 * @param out_wait whether some that nobody can have now may find somebody soon
 * @return how many nobody can have
 */
static int32_t assign_rest(ek_cluster_dispatcher *self, ek_dispatch_layer *layer, bool *out_wait)
{
    const ek_expert_work *work = layer->work;
    int64_t now_us = ek_sys_now_us();
    int32_t n_lost = 0;
    *out_wait = false;
    for (int32_t e = 0; e < work->n_experts; e++) {
        int32_t owner = EK_NOBODY;
        bool is_chosen = false;
        for (int32_t r = work->expert_beg[e]; r < work->expert_beg[e + 1]; r++) {
            if (layer->row_state[r] != EK_ROW_TODO || layer->row_owner[r] != EK_NOBODY) continue;
            if (!is_chosen) owner = ek_cluster_peers_choose(self, layer, e);
            is_chosen = true;
            layer->row_owner[r] = owner;
            if (owner == EK_NOBODY)
                n_lost++;
            else
                self->peers[owner].desk[layer->micro_batch].n_assigned++;
        }
        if (is_chosen && owner == EK_NOBODY)
            *out_wait |= ek_cluster_peers_may_return(self, work->layer, e, now_us);
    }
    return n_lost;
}

/* The same, but for a while: a worker that is started again is back within a second or two. */
static int32_t assign_patiently(ek_cluster_dispatcher *self, ek_dispatch_layer *layer)
{
    bool waits;
    int32_t n_lost;
    while ((n_lost = assign_rest(self, layer, &waits)) > 0 && waits) {
        ek_sys_sleep_us(RETURN_LOOK_US);
        ek_cluster_peers_refresh(self);
    }
    return n_lost;
}

/* ---- what nobody has ---- */

/* The other experts of a token carry what those weighed that are left out. */
static void carry_losses(ek_dispatch_layer *layer)
{
    const ek_expert_work *work = layer->work;
    for (int32_t t = 0; t < work->n_tokens; t++) {
        float all = 0, left = 0;
        for (int32_t k = 0; k < work->top_k; k++) {
            int64_t pair = (int64_t)t * work->top_k + k;
            if (work->row_of[pair] < 0) continue;
            all += work->weight[pair];
            if (layer->row_state[work->row_of[pair]] != EK_ROW_LOST) left += work->weight[pair];
        }
        layer->token_factor[t] = left > 0 && left < all ? all / left : 1.0f;
    }
}

static ek_status lose_rest(ek_cluster_dispatcher *self, ek_dispatch_layer *layer, int32_t n_lost)
{
    const ek_expert_work *work = layer->work;
    bool degrades = self->front->params.on_loss == EK_CLUSTER_LOSS_DEGRADE;
    int32_t expert = 0;
    for (int32_t e = work->n_experts - 1; e >= 0; e--)
        for (int32_t r = work->expert_beg[e]; r < work->expert_beg[e + 1]; r++)
            if (layer->row_state[r] == EK_ROW_TODO && layer->row_owner[r] == EK_NOBODY) {
                layer->row_state[r] = EK_ROW_LOST;
                expert = e;
            }
    ek_log(degrades ? EK_LOG_WARN : EK_LOG_ERROR, "cluster", degrades ? "degraded" : "layer_failed",
           "layer=%d rows=%d expert=%d why=\"no worker has it\"", (int)work->layer, (int)n_lost,
           (int)expert);
    if (!degrades) {
        ek_counter_add(self->front->failed, 1);
        return EK_EPEER;
    }
    ek_counter_add(self->front->degraded, (uint64_t)n_lost);
    self->base.n_rows_lost += n_lost;
    layer->has_losses = true;
    return EK_OK;
}

/* ---- waiting ---- */

static void move_all(ek_cluster_dispatcher *self)
{
    for (int32_t i = 0; i < self->n_peers; i++)
        if (self->peers[i].n_flights > 0) ek_cluster_flights_move(self, &self->peers[i]);
    self->looked_us = ek_sys_now_us();
}

/* Until no answer of the layer is awaited any more. */
static void collect(ek_cluster_dispatcher *self, ek_dispatch_layer *layer)
{
    for (;;) {
        move_all(self);
        if (ek_cluster_flights_pending(self, layer) == 0) return;
        ek_cluster_flights_give_up_late(self, layer);
        ek_cluster_flights_wait(self, layer, false, WAIT_US);
    }
}

/* The engine calls: the watching clock runs until it goes. */
static int64_t enter(ek_cluster_dispatcher *self)
{
    int64_t now_us = ek_sys_now_us();
    if (self->left_us > 0) self->away_us += now_us - self->left_us;
    self->left_us = 0;
    return now_us;
}

static int64_t leave(ek_cluster_dispatcher *self)
{
    return self->left_us = ek_sys_now_us();
}

static void cluster_progress(ek_dispatcher *base)
{
    ek_cluster_dispatcher *self = (ek_cluster_dispatcher *)base;
    if (ek_sys_now_us() - self->looked_us >= LOOK_US) move_all(self);
}

/* ---- dispatch ---- */

static bool is_other_under_way(const ek_cluster_dispatcher *self, const ek_dispatch_layer *layer)
{
    return self->layer[EK_MICRO_BATCHES_MAX - 1 - layer->micro_batch].work != NULL;
}

static void begin_layer(ek_cluster_dispatcher *self, ek_dispatch_layer *layer,
                        const ek_expert_work *work)
{
    layer->work = work;
    layer->has_losses = false;
    layer->answered_us = layer->dispatch_us;
    self->n_layers_done++;
    if (is_other_under_way(self, layer)) ek_counter_add(self->front->overlapped, 1);
    ek_cluster_peers_refresh(self);
    ek_cluster_peers_take_changes(self);
    for (int32_t i = 0; i < self->n_peers; i++) {
        ek_dispatch_desk *desk = &self->peers[i].desk[layer->micro_batch];
        ek_assert(!desk->pending);
        desk->n_jobs = 0;
        desk->n_rows = 0;
        desk->n_assigned = 0;
        desk->send_bytes = 0;
        desk->receive_used = 0;
    }
}

static ek_status cluster_dispatch(ek_dispatcher *base, const ek_expert_work *work,
                                  ek_arena *step EK_UNUSED)
{
    ek_cluster_dispatcher *self = (ek_cluster_dispatcher *)base;
    ek_dispatch_layer *layer = &self->layer[work->micro_batch];
    ek_assert(!layer->work && work->n_tokens <= layer->tokens_max);
    ek_assert(work->n_devices == self->n_peers && work->n_experts == self->shape.n_experts);
    ek_assert(work->top_k == self->shape.top_k);
    layer->dispatch_us = enter(self);
    begin_layer(self, layer, work);
    take_shares(self, layer);
    int32_t n_lost = assign_patiently(self, layer);
    ek_status status = n_lost > 0 ? lose_rest(self, layer, n_lost) : EK_OK;
    if (status == EK_OK) ek_cluster_jobs_send(self, layer);
    /*
     * What sockets had no room for goes on as they empty: a worker that reads keeps up. One that is
     * at work on the other micro-batch reads when it has done that.
     */
    while (status == EK_OK && !is_other_under_way(self, layer) &&
           ek_cluster_flights_is_sending(self, layer) &&
           ek_cluster_flights_wait(self, layer, true, PUSH_WAIT_US))
        move_all(self);
    if (status != EK_OK) layer->work = NULL;
    layer->handed_us = leave(self);
    return status;
}

/* ---- combine ---- */

static const float *row_as_f32(const ek_cluster_dispatcher *self, const uint8_t *y,
                               int32_t thread_idx)
{
    if (!(self->form & EK_WIRE_FORM_BF16)) return (const float *)(const void *)y;
    float *wide = self->widened + (ptrdiff_t)thread_idx * self->shape.d_model;
    ek_link_wire_from_bf16((const uint16_t *)(const void *)y, self->shape.d_model, wide);
    return wide;
}

/* A layer whose rows are summed by all threads. */
typedef struct sum_job {
    const ek_cluster_dispatcher *self;
    const ek_dispatch_layer *layer;
} sum_job;

/* Rows of tokens [beg, end), in order of k: the additions that one process makes, in its order. */
static void sum_rows(const sum_job *job, int32_t beg, int32_t end, int32_t thread_idx)
{
    const ek_cluster_dispatcher *self = job->self;
    const ek_dispatch_layer *layer = job->layer;
    const ek_expert_work *work = layer->work;
    int32_t d = self->shape.d_model;
    for (int32_t t = beg; t < end; t++) {
        for (int32_t k = 0; k < work->top_k; k++) {
            int64_t pair = (int64_t)t * work->top_k + k;
            int32_t row = work->row_of[pair];
            if (row < 0 || layer->row_state[row] != EK_ROW_DONE) continue;
            float weight = work->weight[pair];
            if (layer->has_losses) weight *= layer->token_factor[t];
            self->setup.kernels->axpy(weight, row_as_f32(self, layer->row_y[row], thread_idx), d,
                                      layer->out + (int64_t)t * d);
        }
    }
}

static void sum_rows_share(void *ctx, int32_t thread_idx)
{
    const sum_job *job = ctx;
    int64_t n = job->layer->work->n_tokens;
    int64_t n_threads = ek_sys_pool_threads(job->self->setup.pool);
    sum_rows(job, (int32_t)(n * thread_idx / n_threads),
             (int32_t)(n * (thread_idx + 1) / n_threads), thread_idx);
}

/* What workers summed, worker after worker. */
static void add_sums(const ek_cluster_dispatcher *self, const ek_dispatch_layer *layer)
{
    int32_t d = self->shape.d_model;
    size_t row_bytes =
        (size_t)d * (self->form & EK_WIRE_FORM_BF16 ? sizeof(uint16_t) : sizeof(float));
    for (int32_t i = 0; i < self->n_peers; i++) {
        const ek_dispatch_desk *desk = &self->peers[i].desk[layer->micro_batch];
        for (int32_t j = 0; j < desk->n_jobs; j++) {
            const ek_dispatch_job *job = &desk->job[j];
            /* The rows of one that was given up are in somebody else's sums. */
            if (!job->is_answered) continue;
            for (int32_t n = 0; n < job->header.n_tokens; n++) {
                float factor = layer->has_losses ? layer->token_factor[job->token[n]] : 1.0f;
                self->setup.kernels->axpy(factor,
                                          row_as_f32(self, job->y + (size_t)n * row_bytes, 0), d,
                                          layer->out + (int64_t)job->token[n] * d);
            }
        }
    }
}

static void sum_up(ek_cluster_dispatcher *self, ek_dispatch_layer *layer)
{
    const ek_expert_work *work = layer->work;
    sum_job job = {self, layer};
    if (layer->has_losses) carry_losses(layer);
    if (self->form & EK_WIRE_FORM_SUMMED)
        add_sums(self, layer);
    else if ((int64_t)ek_cluster_rows_of(work) * self->shape.d_model <= SUM_ALONE_MAX)
        sum_rows(&job, 0, work->n_tokens, 0);
    else
        ek_sys_pool_run(self->setup.pool, sum_rows_share, &job);
}

static int32_t count_undone(const ek_dispatch_layer *layer)
{
    int32_t n = 0;
    for (int32_t r = 0; r < ek_cluster_rows_of(layer->work); r++)
        n += layer->row_state[r] == EK_ROW_TODO;
    return n;
}

/*
 * What of the way to the experts and back the engine did not notice, because it computed something
 * else until the last answer was there.
 */
static void count_hidden(ek_cluster_dispatcher *self, const ek_dispatch_layer *layer,
                         int64_t entered_us)
{
    int64_t seen_us = layer->answered_us < entered_us ? layer->answered_us : entered_us;
    int64_t hidden_us = seen_us - layer->handed_us;
    if (ek_cluster_rows_of(layer->work) == 0) return;
    ek_hist_record(self->front->exchange_time, (uint64_t)(layer->answered_us - layer->dispatch_us));
    ek_hist_record(self->front->hidden_time, (uint64_t)(hidden_us > 0 ? hidden_us : 0));
}

/* Until all rows are there, or are lost. */
static ek_status finish_rows(ek_cluster_dispatcher *self, ek_dispatch_layer *layer)
{
    ek_status status = EK_OK;
    collect(self, layer);
    /* Ends: each round uses up one of the jobs that a peer can have, or loses rows. */
    for (int32_t n; status == EK_OK && (n = count_undone(layer)) > 0;) {
        ek_cluster_peers_refresh(self);
        int32_t n_lost = assign_patiently(self, layer);
        if (n_lost > 0) status = lose_rest(self, layer, n_lost);
        if (status != EK_OK || n == n_lost) continue;
        ek_log(EK_LOG_INFO, "cluster", "redone", "layer=%d rows=%d", (int)layer->work->layer,
               (int)(n - n_lost));
        ek_counter_add(self->front->redone, (uint64_t)(n - n_lost));
        ek_cluster_jobs_send(self, layer);
        collect(self, layer);
    }
    return status;
}

static ek_status cluster_combine(ek_dispatcher *base, const ek_expert_work *work, float *out)
{
    ek_cluster_dispatcher *self = (ek_cluster_dispatcher *)base;
    ek_dispatch_layer *layer = &self->layer[work->micro_batch];
    ek_assert(layer->work == work);
    int64_t entered_us = enter(self);
    ek_status status = finish_rows(self, layer);
    if (status == EK_OK) {
        count_hidden(self, layer, entered_us);
        layer->out = out;
        sum_up(self, layer);
    }
    layer->work = NULL;
    leave(self);
    return status;
}

/* Workers are not to blame: their answers are waited for, so that they can be asked again. */
static void cluster_cancel(ek_dispatcher *base, const ek_expert_work *work)
{
    ek_cluster_dispatcher *self = (ek_cluster_dispatcher *)base;
    ek_dispatch_layer *layer = &self->layer[work->micro_batch];
    ek_assert(layer->work == work);
    enter(self);
    collect(self, layer);
    layer->work = NULL;
    leave(self);
}

/* ---- life ---- */

static size_t cluster_step_bytes(const ek_dispatcher *base EK_UNUSED, int32_t n_tokens EK_UNUSED)
{
    return 0; /* its buffers are its own: they stay where links know them */
}

static void cluster_destroy(ek_dispatcher *base)
{
    /* Sessions stay with their members: their threads may still look at them. */
    ek_cluster_rebalance_watch(((ek_cluster_dispatcher *)base)->front->rebalance, NULL);
    ek_sys_region region = ((ek_cluster_dispatcher *)base)->region;
    ek_sys_region_close(&region);
}

static const ek_dispatcher_ops cluster_ops = {
    .dispatch = cluster_dispatch,
    .combine = cluster_combine,
    .cancel = cluster_cancel,
    .progress = cluster_progress,
    .step_bytes = cluster_step_bytes,
    .destroy = cluster_destroy,
    .devices_changed = ek_cluster_peers_changed,
    .device_slots = ek_cluster_peers_slots,
};

static size_t receive_bytes_of(const ek_wire_shape *shape)
{
    /* Rows are at most those of the batch, in however many jobs; lists and ends are per job. */
    size_t lists = (size_t)shape->n_experts * sizeof(uint32_t) + EK_CACHE_LINE;
    size_t sums = (size_t)shape->tokens_max * (size_t)shape->d_model * sizeof(float);
    return ek_link_wire_combine_bytes_max(shape) + EK_DISPATCH_JOBS_PER_PEER * (lists + sums) +
           EK_CACHE_LINE;
}

/* Lays buffers out one after the other; without memory it only counts. */
typedef struct carve {
    uint8_t *base;
    size_t used;
} carve;

static void *take(carve *c, int64_t n, size_t size)
{
    c->used = ek_size_align(c->used, EK_CACHE_LINE);
    void *mem = c->base ? c->base + c->used : NULL;
    c->used += (size_t)n * size;
    return mem;
}

#define TAKE(c, type, n) ((type *)take((c), (n), sizeof(type)))

static ek_dispatch_layer take_layer(carve *c, const ek_cluster_dispatcher *self, int32_t m)
{
    int64_t tokens = self->layer[m].tokens_max, rows = tokens * self->shape.top_k;
    return (ek_dispatch_layer){
        .micro_batch = m,
        .tokens_max = self->layer[m].tokens_max,
        .row_state = TAKE(c, uint8_t, rows),
        .row_owner = TAKE(c, int32_t, rows),
        .row_y = TAKE(c, const uint8_t *, rows),
        .token_factor = TAKE(c, float, tokens),
    };
}

/* One worker's buffers for the largest layer of a micro-batch. */
static ek_dispatch_desk take_desk(carve *c, const ek_cluster_dispatcher *self, int32_t m)
{
    ek_wire_shape shape = self->shape;
    shape.tokens_max = self->layer[m].tokens_max;
    int64_t tokens = shape.tokens_max, rows = tokens * shape.top_k;
    if (tokens == 0) return (ek_dispatch_desk){0};
    size_t receive_bytes = receive_bytes_of(&shape);
    return (ek_dispatch_desk){
        .send = TAKE(c, uint8_t, (int64_t)ek_link_wire_dispatch_bytes_max(&shape)),
        .receive = TAKE(c, uint8_t, (int64_t)receive_bytes),
        .receive_bytes = receive_bytes,
        .row = TAKE(c, int32_t, EK_DISPATCH_JOBS_PER_PEER * rows),
        .token = TAKE(c, int32_t, EK_DISPATCH_JOBS_PER_PEER * tokens),
        .local = TAKE(c, int32_t, tokens),
    };
}

/* @return bytes */
static size_t lay_out(ek_cluster_dispatcher *self, uint8_t *base)
{
    const ek_wire_shape *s = &self->shape;
    carve c = {base, sizeof *self};
    self->peers = TAKE(&c, ek_dispatch_peer, self->n_peers);
    self->home = TAKE(&c, int32_t, (int64_t)s->n_layers * s->n_experts);
    self->widened = TAKE(&c, float, (int64_t)ek_sys_pool_threads(self->setup.pool) * s->d_model);
    for (int32_t m = 0; m < EK_MICRO_BATCHES_MAX; m++)
        self->layer[m] = take_layer(&c, self, m);
    for (int32_t i = 0; i < self->n_peers; i++) {
        size_t before = c.used;
        for (int32_t m = 0; m < EK_MICRO_BATCHES_MAX; m++) {
            ek_dispatch_desk desk = take_desk(&c, self, m);
            if (base) self->peers[i].desk[m] = desk;
        }
        int64_t *since_us = TAKE(&c, int64_t, (int64_t)s->n_layers * s->n_experts);
        if (base) self->peers[i].since_us = since_us;
        if (base) self->peers[i].reserved_bytes = c.used - before;
    }
    return c.used;
}

static ek_micro_batching micro_batching_of(const ek_cluster_params *params)
{
    static const ek_micro_batching of[] = {
        [EK_CLUSTER_MICROBATCHES_AUTO] = EK_MICRO_BATCHING_AUTO,
        [EK_CLUSTER_MICROBATCHES_ONE] = EK_MICRO_BATCHING_ONE,
        [EK_CLUSTER_MICROBATCHES_TWO] = EK_MICRO_BATCHING_TWO,
    };
    return of[params->microbatches];
}

ek_status ek_cluster_dispatch_create(ek_front *front, const ek_dispatcher_setup *setup,
                                     ek_dispatcher **out_dispatcher, ek_err *err)
{
    if (setup->tokens_max > front->shape.tokens_max)
        return ek_err_set(err, EK_EINVAL, "steps of %d tokens, but workers were told of %d",
                          (int)setup->tokens_max, (int)front->shape.tokens_max);
    uint8_t form = 0;
    if (front->params.wire == EK_CLUSTER_WIRE_BF16) form |= EK_WIRE_FORM_BF16;
    if (front->params.combine == EK_CLUSTER_COMBINE_SUMMED) form |= EK_WIRE_FORM_SUMMED;
    ek_cluster_dispatcher plan = {
        .base = {.ops = &cluster_ops, .micro_batching = micro_batching_of(&front->params)},
        .front = front,
        .setup = *setup,
        .shape = front->shape,
        .form = form,
        .n_peers = front->n_members,
    };
    plan.layer[0].tokens_max = front->shape.tokens_max;
    if (plan.base.micro_batching != EK_MICRO_BATCHING_ONE)
        plan.layer[1].tokens_max = front->shape.tokens_max / 2; /* the smaller half of a step */
    size_t bytes = lay_out(&plan, NULL);
    ek_status status = ek_sys_region_open(bytes, 0, &plan.region);
    if (status != EK_OK)
        return ek_err_set(err, status, "no memory for %zu bytes of buffers for workers", bytes);
    ek_cluster_dispatcher *self = plan.region.base;
    *self = plan;
    lay_out(self, plan.region.base);
    for (int32_t i = 0; i < self->n_peers; i++) {
        ek_dispatch_peer *peer = &self->peers[i];
        peer->member = &front->members[i];
        peer->told = INT32_MIN;
        atomic_store_explicit(&peer->member->buffer_reserved, peer->reserved_bytes,
                              memory_order_relaxed);
        ek_gauge_set(peer->member->buffer_reserved_bytes, (int64_t)peer->reserved_bytes);
    }
    ek_cluster_rebalance_watch(front->rebalance, setup->stats);
    *out_dispatcher = &self->base;
    return EK_OK;
}
