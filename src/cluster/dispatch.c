#include "cluster/dispatch.h"

#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "cluster/dispatch_internal.h"
#include "sys/clock.h"
#include "sys/log.h"

#define WAIT_US        20000 /* at most between two looks at flags and deadlines */
#define PUSH_WAIT_US   1000  /* for room in a socket, before something else is computed */
#define RETURN_LOOK_US 10000 /* whether a worker is back */

/* So many times as long as rows usually take is late. */
#define PATIENCE 4.0

/* Below this many multiply-adds one thread sums faster than others can be called. */
#define SUM_ALONE_MAX 65536

static int32_t n_rows_of(const ek_expert_work *work)
{
    return work->expert_beg[work->n_experts];
}

/* ---- who has what ---- */

/* As the keel shared rows out, as far as that can be. */
static void take_shares(ek_cluster_dispatcher *self)
{
    const ek_expert_work *work = self->work;
    for (int32_t d = 0; d < work->n_devices; d++) {
        ek_dispatch_peer *peer = &self->peers[d];
        bool is_usable = ek_cluster_peer_is_usable(peer);
        for (int32_t s = work->device_beg[d]; s < work->device_beg[d + 1]; s++) {
            int32_t expert = work->share_expert[s];
            bool has = is_usable && ek_cluster_peer_has(peer, work->layer, expert) &&
                       !ek_cluster_peer_passes(self, peer, work->layer, expert);
            int32_t beg = work->share_row[2 * s], end = work->share_row[2 * s + 1];
            for (int32_t r = beg; r < end; r++) {
                self->row_state[r] = EK_ROW_TODO;
                self->row_owner[r] = has ? d : EK_NOBODY;
            }
            if (has) peer->n_assigned += end - beg;
        }
    }
}

/*
 * Give rows without an owner to whoever has their expert.
 * @param out_wait whether some that nobody can have now may find somebody soon
 * @return how many nobody can have
 */
static int32_t assign_rest(ek_cluster_dispatcher *self, bool *out_wait)
{
    const ek_expert_work *work = self->work;
    int64_t now_us = ek_sys_now_us();
    int32_t n_lost = 0;
    *out_wait = false;
    for (int32_t e = 0; e < work->n_experts; e++) {
        int32_t owner = EK_NOBODY;
        bool is_chosen = false;
        for (int32_t r = work->expert_beg[e]; r < work->expert_beg[e + 1]; r++) {
            if (self->row_state[r] != EK_ROW_TODO || self->row_owner[r] != EK_NOBODY) continue;
            if (!is_chosen) owner = ek_cluster_peers_choose(self, work->layer, e);
            is_chosen = true;
            self->row_owner[r] = owner;
            if (owner == EK_NOBODY)
                n_lost++;
            else
                self->peers[owner].n_assigned++;
        }
        if (is_chosen && owner == EK_NOBODY)
            *out_wait |= ek_cluster_peers_may_return(self, work->layer, e, now_us);
    }
    return n_lost;
}

/* The same, but for a while: a worker that is started again is back within a second or two. */
static int32_t assign_patiently(ek_cluster_dispatcher *self)
{
    bool waits;
    int32_t n_lost;
    while ((n_lost = assign_rest(self, &waits)) > 0 && waits) {
        ek_sys_sleep_us(RETURN_LOOK_US);
        ek_cluster_peers_refresh(self);
    }
    return n_lost;
}

/* ---- what nobody has ---- */

/* The other experts of a token carry what those weighed that are left out. */
static void carry_losses(ek_cluster_dispatcher *self)
{
    const ek_expert_work *work = self->work;
    for (int32_t t = 0; t < work->n_tokens; t++) {
        float all = 0, left = 0;
        for (int32_t k = 0; k < work->top_k; k++) {
            int64_t pair = (int64_t)t * work->top_k + k;
            if (work->row_of[pair] < 0) continue;
            all += work->weight[pair];
            if (self->row_state[work->row_of[pair]] != EK_ROW_LOST) left += work->weight[pair];
        }
        self->token_factor[t] = left > 0 && left < all ? all / left : 1.0f;
    }
}

static ek_status lose_rest(ek_cluster_dispatcher *self, int32_t n_lost)
{
    const ek_expert_work *work = self->work;
    bool degrades = self->front->params.on_loss == EK_CLUSTER_LOSS_DEGRADE;
    int32_t expert = 0, layer = work->layer;
    for (int32_t e = work->n_experts - 1; e >= 0; e--)
        for (int32_t r = work->expert_beg[e]; r < work->expert_beg[e + 1]; r++)
            if (self->row_state[r] == EK_ROW_TODO && self->row_owner[r] == EK_NOBODY) {
                self->row_state[r] = EK_ROW_LOST;
                expert = e;
            }
    ek_log(degrades ? EK_LOG_WARN : EK_LOG_ERROR, "cluster", degrades ? "degraded" : "layer_failed",
           "layer=%d rows=%d expert=%d why=\"no worker has it\"", (int)layer, (int)n_lost,
           (int)expert);
    if (!degrades) {
        ek_counter_add(self->front->failed, 1);
        return EK_EPEER;
    }
    ek_counter_add(self->front->degraded, (uint64_t)n_lost);
    self->base.n_rows_lost += n_lost;
    self->has_losses = true;
    return EK_OK;
}

/* ---- waiting ---- */

/* Could somebody else do all that this peer was sent? */
static bool has_stand_ins(const ek_cluster_dispatcher *self, const ek_dispatch_peer *peer)
{
    const ek_dispatch_job *job = &peer->job[peer->n_jobs - 1];
    for (int32_t s = 0; s < job->header.n_shares; s++) {
        bool found = false;
        for (int32_t i = 0; i < self->n_peers && !found; i++) {
            const ek_dispatch_peer *other = &self->peers[i];
            found = other != peer && ek_cluster_peer_is_usable(other) && !other->pending &&
                    other->n_jobs < EK_DISPATCH_JOBS_PER_PEER &&
                    ek_cluster_peer_has(other, self->work->layer, job->share_expert[s]);
        }
        if (!found) return false;
    }
    return true;
}

/* How long an answer may take before others are asked: a large batch takes its time. */
static int64_t patience_us(const ek_cluster_dispatcher *self, const ek_dispatch_peer *peer)
{
    int64_t least_us = self->front->params.hedge_us;
    int32_t n_rows = peer->job[peer->n_jobs - 1].header.n_rows;
    int64_t usual_us = (int64_t)(PATIENCE * peer->us_per_row * n_rows);
    return usual_us > least_us ? usual_us : least_us;
}

static void give_up_late(ek_cluster_dispatcher *self, int64_t now_us)
{
    const ek_cluster_params *params = &self->front->params;
    for (int32_t i = 0; i < self->n_peers; i++) {
        ek_dispatch_peer *peer = &self->peers[i];
        if (!peer->pending) continue;
        int64_t waited_us = now_us - peer->sent_us;
        if (waited_us < patience_us(self, peer)) continue;
        if (waited_us < params->layer_timeout_us && !has_stand_ins(self, peer)) continue;
        ek_log(EK_LOG_WARN, "cluster", "late", "worker=%s layer=%d waited_ms=%lld rows=%d",
               peer->member->address, (int)self->work->layer, (long long)(waited_us / 1000),
               (int)peer->job[peer->n_jobs - 1].header.n_rows);
        ek_counter_add(self->front->late, 1);
        ek_cluster_job_abandon(self, peer);
    }
}

static bool wait_for_links(ek_cluster_dispatcher *self, bool only_senders, int64_t timeout_us)
{
    ek_link *links[EK_CLUSTER_WORKERS_MAX];
    int32_t n = 0;
    for (int32_t i = 0; i < self->n_peers; i++) {
        const ek_dispatch_peer *peer = &self->peers[i];
        if (peer->pending && (peer->sending || !only_senders))
            links[n++] = peer->member->current->data;
    }
    return n > 0 && ek_link_wait(links, n, timeout_us);
}

/* Until no answer is awaited any more. */
static void collect(ek_cluster_dispatcher *self)
{
    while (ek_cluster_jobs_progress(self) > 0) {
        wait_for_links(self, false, WAIT_US);
        give_up_late(self, ek_sys_now_us());
    }
}

static bool is_anybody_sending(const ek_cluster_dispatcher *self)
{
    for (int32_t i = 0; i < self->n_peers; i++)
        if (self->peers[i].pending && self->peers[i].sending) return true;
    return false;
}

/* ---- dispatch ---- */

static void begin_layer(ek_cluster_dispatcher *self, const ek_expert_work *work)
{
    self->work = work;
    self->n_layers_done++;
    self->dispatch_us = ek_sys_now_us();
    self->has_losses = false;
    ek_cluster_peers_refresh(self);
    for (int32_t i = 0; i < self->n_peers; i++) {
        ek_dispatch_peer *peer = &self->peers[i];
        ek_assert(!peer->pending);
        peer->n_jobs = 0;
        peer->n_rows = 0;
        peer->n_assigned = 0;
        peer->receive_used = 0;
    }
}

static ek_status cluster_dispatch(ek_dispatcher *base, const ek_expert_work *work,
                                  ek_arena *step EK_UNUSED)
{
    ek_cluster_dispatcher *self = (ek_cluster_dispatcher *)base;
    ek_assert(work->n_devices == self->n_peers && work->n_tokens <= self->shape.tokens_max);
    ek_assert(work->n_experts == self->shape.n_experts && work->top_k == self->shape.top_k);
    begin_layer(self, work);
    take_shares(self);
    int32_t n_lost = assign_patiently(self);
    ek_status status = n_lost > 0 ? lose_rest(self, n_lost) : EK_OK;
    if (status != EK_OK) {
        self->work = NULL;
        return status;
    }
    ek_cluster_jobs_send(self);
    /* What sockets had no room for goes on as they empty; a worker that reads keeps up. */
    while (is_anybody_sending(self) && wait_for_links(self, true, PUSH_WAIT_US))
        ek_cluster_jobs_progress(self);
    return EK_OK;
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

/* Rows of tokens [beg, end), in order of k: the additions that one process makes, in its order. */
static void sum_rows(const ek_cluster_dispatcher *self, int32_t beg, int32_t end,
                     int32_t thread_idx)
{
    const ek_expert_work *work = self->work;
    int32_t d = self->shape.d_model;
    for (int32_t t = beg; t < end; t++) {
        for (int32_t k = 0; k < work->top_k; k++) {
            int64_t pair = (int64_t)t * work->top_k + k;
            int32_t row = work->row_of[pair];
            if (row < 0 || self->row_state[row] != EK_ROW_DONE) continue;
            float weight = work->weight[pair];
            if (self->has_losses) weight *= self->token_factor[t];
            self->setup.kernels->axpy(weight, row_as_f32(self, self->row_y[row], thread_idx), d,
                                      self->out + (int64_t)t * d);
        }
    }
}

static void sum_rows_share(void *ctx, int32_t thread_idx)
{
    const ek_cluster_dispatcher *self = ctx;
    int64_t n = self->work->n_tokens;
    int64_t n_threads = ek_sys_pool_threads(self->setup.pool);
    sum_rows(self, (int32_t)(n * thread_idx / n_threads),
             (int32_t)(n * (thread_idx + 1) / n_threads), thread_idx);
}

/* What workers summed, worker after worker. */
static void add_sums(const ek_cluster_dispatcher *self)
{
    int32_t d = self->shape.d_model;
    size_t row_bytes =
        (size_t)d * (self->form & EK_WIRE_FORM_BF16 ? sizeof(uint16_t) : sizeof(float));
    for (int32_t i = 0; i < self->n_peers; i++) {
        const ek_dispatch_peer *peer = &self->peers[i];
        for (int32_t j = 0; j < peer->n_jobs; j++) {
            const ek_dispatch_job *job = &peer->job[j];
            /* The rows of one that was given up are in somebody else's sums. */
            if (!job->is_answered) continue;
            for (int32_t n = 0; n < job->header.n_tokens; n++) {
                float factor = self->has_losses ? self->token_factor[job->token[n]] : 1.0f;
                self->setup.kernels->axpy(factor,
                                          row_as_f32(self, job->y + (size_t)n * row_bytes, 0), d,
                                          self->out + (int64_t)job->token[n] * d);
            }
        }
    }
}

static void sum_up(ek_cluster_dispatcher *self)
{
    const ek_expert_work *work = self->work;
    if (self->has_losses) carry_losses(self);
    if (self->form & EK_WIRE_FORM_SUMMED)
        add_sums(self);
    else if ((int64_t)n_rows_of(work) * self->shape.d_model <= SUM_ALONE_MAX)
        sum_rows(self, 0, work->n_tokens, 0);
    else
        ek_sys_pool_run(self->setup.pool, sum_rows_share, self);
}

static int32_t count_undone(const ek_cluster_dispatcher *self)
{
    int32_t n = 0;
    for (int32_t r = 0; r < n_rows_of(self->work); r++)
        n += self->row_state[r] == EK_ROW_TODO;
    return n;
}

static ek_status cluster_combine(ek_dispatcher *base, const ek_expert_work *work, float *out)
{
    ek_cluster_dispatcher *self = (ek_cluster_dispatcher *)base;
    ek_assert(self->work == work);
    ek_status status = EK_OK;
    collect(self);
    /* Ends: each round uses up one of the jobs that a peer can have, or loses rows. */
    for (int32_t n; status == EK_OK && (n = count_undone(self)) > 0;) {
        ek_cluster_peers_refresh(self);
        int32_t n_lost = assign_patiently(self);
        if (n_lost > 0) status = lose_rest(self, n_lost);
        if (status != EK_OK || n == n_lost) continue;
        ek_log(EK_LOG_INFO, "cluster", "redone", "layer=%d rows=%d", (int)work->layer,
               (int)(n - n_lost));
        ek_counter_add(self->front->redone, (uint64_t)(n - n_lost));
        ek_cluster_jobs_send(self);
        collect(self);
    }
    if (status == EK_OK) {
        self->out = out;
        sum_up(self);
    }
    self->work = NULL;
    return status;
}

/* ---- life ---- */

static size_t cluster_step_bytes(const ek_dispatcher *base EK_UNUSED, int32_t n_tokens EK_UNUSED)
{
    return 0; /* its buffers are its own: they stay where links know them */
}

static void cluster_destroy(ek_dispatcher *base)
{
    /* Sessions stay with their members: their threads may still look at them. */
    ek_sys_region region = ((ek_cluster_dispatcher *)base)->region;
    ek_sys_region_close(&region);
}

static const ek_dispatcher_ops cluster_ops = {
    .dispatch = cluster_dispatch,
    .combine = cluster_combine,
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

/* Lay out everything; without memory only counts. */
static size_t lay_out(ek_cluster_dispatcher *self, ek_arena arena)
{
    const ek_wire_shape *s = &self->shape;
    uint8_t *beg = arena.beg;
    int64_t tokens = s->tokens_max, rows = tokens * s->top_k;
    int32_t n_threads = ek_sys_pool_threads(self->setup.pool);
    bool counts = arena.beg == NULL;
    size_t used = 0;
#define TAKE(field, type, n)                                 \
    do {                                                     \
        used = ek_size_align(used, EK_CACHE_LINE);           \
        if (!counts) (field) = (type *)(void *)(beg + used); \
        used += (size_t)(n) * sizeof(type);                  \
    } while (0)
    used = sizeof *self;
    TAKE(self->peers, ek_dispatch_peer, self->n_peers);
    TAKE(self->home, int32_t, (int64_t)s->n_layers * s->n_experts);
    TAKE(self->row_state, uint8_t, rows);
    TAKE(self->row_owner, int32_t, rows);
    TAKE(self->row_y, const uint8_t *, rows);
    TAKE(self->token_factor, float, tokens);
    TAKE(self->widened, float, (int64_t)n_threads * s->d_model);
    for (int32_t i = 0; i < self->n_peers; i++) {
        ek_dispatch_peer none;
        ek_dispatch_peer *peer = counts ? &none : &self->peers[i];
        TAKE(peer->send, uint8_t, ek_link_wire_dispatch_bytes_max(s));
        TAKE(peer->receive, uint8_t, self->receive_bytes);
        TAKE(peer->row, int32_t, EK_DISPATCH_JOBS_PER_PEER * rows);
        TAKE(peer->token, int32_t, EK_DISPATCH_JOBS_PER_PEER * tokens);
        TAKE(peer->local, int32_t, tokens);
    }
#undef TAKE
    return used;
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
        .base.ops = &cluster_ops,
        .front = front,
        .setup = *setup,
        .shape = front->shape,
        .form = form,
        .n_peers = front->n_members,
        .receive_bytes = receive_bytes_of(&front->shape),
    };
    size_t bytes = lay_out(&plan, (ek_arena){0});
    ek_status status = ek_sys_region_open(bytes, 0, &plan.region);
    if (status != EK_OK)
        return ek_err_set(err, status, "no memory for %zu bytes of buffers for workers", bytes);
    ek_cluster_dispatcher *self = plan.region.base;
    *self = plan;
    lay_out(self, ek_sys_region_arena(&plan.region));
    for (int32_t i = 0; i < self->n_peers; i++) {
        self->peers[i].member = &front->members[i];
        self->peers[i].told = INT32_MIN;
    }
    *out_dispatcher = &self->base;
    return EK_OK;
}
