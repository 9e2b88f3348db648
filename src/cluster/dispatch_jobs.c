/*
 * A dispatcher's messages: who gets which rows, packed as the wire has them.
 */
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "cluster/dispatch_internal.h"

/* ---- packing ---- */

static ek_dispatch_desk *desk_of(ek_cluster_dispatcher *self, const ek_dispatch_layer *layer,
                                 int32_t peer)
{
    return &self->peers[peer].desk[layer->micro_batch];
}

/* Which tokens go to each peer, numbered in the batch's order. */
static void number_tokens(ek_cluster_dispatcher *self, const ek_dispatch_layer *layer)
{
    const ek_expert_work *work = layer->work;
    for (int32_t i = 0; i < self->n_peers; i++) {
        ek_dispatch_desk *desk = desk_of(self, layer, i);
        memset(desk->local, 0xff, (size_t)work->n_tokens * sizeof *desk->local);
        if (desk->n_jobs == EK_DISPATCH_JOBS_PER_PEER) continue;
        desk->job[desk->n_jobs] =
            (ek_dispatch_job){.header = ek_link_wire_header(EK_WIRE_DISPATCH, 0)};
    }
    for (int32_t r = 0; r < ek_cluster_rows_of(work); r++)
        if (layer->row_state[r] == EK_ROW_TODO && layer->row_owner[r] != EK_NOBODY)
            desk_of(self, layer, layer->row_owner[r])->local[work->row_token[r]] = 0;
    for (int32_t i = 0; i < self->n_peers; i++) {
        ek_dispatch_desk *desk = desk_of(self, layer, i);
        if (desk->n_jobs == EK_DISPATCH_JOBS_PER_PEER) continue;
        ek_dispatch_job *job = &desk->job[desk->n_jobs];
        int32_t *token = desk->token + (ptrdiff_t)desk->n_jobs * layer->tokens_max;
        int32_t n = 0;
        for (int32_t t = 0; t < work->n_tokens; t++) {
            if (desk->local[t] < 0) continue;
            token[n] = t;
            desk->local[t] = n++;
        }
        job->token = token;
        job->row = desk->row + desk->n_rows;
        job->header.n_tokens = n;
    }
}

/* Count rows and shares, and list the rows. */
static void list_rows(ek_cluster_dispatcher *self, const ek_dispatch_layer *layer)
{
    const ek_expert_work *work = layer->work;
    for (int32_t e = 0; e < work->n_experts; e++) {
        uint64_t seen = 0; /* peers with a share of this expert: at most 64 of them */
        for (int32_t r = work->expert_beg[e]; r < work->expert_beg[e + 1]; r++) {
            int32_t owner = layer->row_owner[r];
            if (layer->row_state[r] != EK_ROW_TODO || owner == EK_NOBODY) continue;
            ek_dispatch_desk *desk = desk_of(self, layer, owner);
            ek_dispatch_job *job = &desk->job[desk->n_jobs];
            desk->row[desk->n_rows++] = r;
            job->header.n_rows++;
            job->header.n_shares += !(seen >> owner & 1);
            seen |= (uint64_t)1 << owner;
        }
    }
}

static int32_t expert_of(const ek_expert_work *work, int32_t row, int32_t from)
{
    int32_t e = from;
    while (row >= work->expert_beg[e + 1])
        e++;
    return e;
}

static void pack_lists(const ek_expert_work *work, ek_dispatch_desk *desk, ek_dispatch_job *job,
                       const ek_wire_dispatch_layout *lay)
{
    int32_t *share_expert = (int32_t *)(void *)(desk->send + lay->share_expert);
    int32_t *share_beg = (int32_t *)(void *)(desk->send + lay->share_beg);
    int32_t *row_token = (int32_t *)(void *)(desk->send + lay->row_token);
    float *weight = (float *)(void *)(desk->send + lay->weight);
    bool is_summed = job->header.form & EK_WIRE_FORM_SUMMED;
    int32_t expert = 0, n_shares = 0;
    for (int32_t i = 0; i < job->header.n_rows; i++) {
        int32_t row = job->row[i], token = work->row_token[row];
        int32_t before = expert;
        expert = expert_of(work, row, expert);
        if (i == 0 || expert != before) {
            share_expert[n_shares] = expert;
            share_beg[n_shares++] = i;
        }
        row_token[i] = desk->local[token];
        if (!is_summed) continue;
        const int32_t *row_of = work->row_of + (int64_t)token * work->top_k;
        int32_t k = 0;
        while (row_of[k] != row)
            k++;
        weight[i] = work->weight[(int64_t)token * work->top_k + k];
    }
    share_beg[n_shares] = job->header.n_rows;
    ek_assert(n_shares == job->header.n_shares);
    job->share_expert = share_expert;
    job->share_beg = share_beg;
}

static void pack_x(const ek_act *x_rows, ek_dispatch_desk *desk, const ek_dispatch_job *job,
                   const ek_wire_dispatch_layout *lay)
{
    int64_t d = x_rows->n_cols;
    bool is_bf16 = job->header.form & EK_WIRE_FORM_BF16;
    for (int32_t i = 0; i < job->header.n_tokens; i++) {
        const float *x = x_rows->f32 + job->token[i] * d;
        if (is_bf16)
            ek_link_wire_to_bf16(x, d, (uint16_t *)(void *)(desk->send + lay->x) + i * d);
        else
            memcpy(desk->send + lay->x + (size_t)(i * d) * sizeof *x, x, (size_t)d * sizeof *x);
    }
}

/* ---- handing over ---- */

/* How much of its buffers the worker has needed at most. */
static void tell_use(const ek_cluster_dispatcher *self, const ek_dispatch_peer *peer)
{
    size_t used = 0;
    for (int32_t m = 0; m < EK_MICRO_BATCHES_MAX; m++) {
        const ek_dispatch_desk *desk = &peer->desk[m];
        const ek_expert_work *work = self->layer[m].work;
        int64_t n_tokens = work ? (1 + (int64_t)desk->n_jobs) * work->n_tokens : 0;
        used += work ? desk->send_bytes + desk->receive_used : 0;
        used += work ? (size_t)(desk->n_rows + n_tokens) * sizeof(int32_t) : 0;
    }
    /* Nobody else writes it. */
    if (used > atomic_load_explicit(&peer->member->buffer_used, memory_order_relaxed)) {
        atomic_store_explicit(&peer->member->buffer_used, used, memory_order_relaxed);
        ek_gauge_set(peer->member->buffer_used_bytes, (int64_t)used);
    }
}

static void hand_over(ek_cluster_dispatcher *self, ek_dispatch_layer *layer, ek_dispatch_peer *peer)
{
    ek_dispatch_desk *desk = &peer->desk[layer->micro_batch];
    ek_dispatch_job *job = &desk->job[desk->n_jobs];
    ek_wire_dispatch_layout lay;
    job->header.epoch = peer->member->current->epoch;
    job->header.form = self->form;
    job->header.seq = ++self->next_seq;
    job->header.layer = layer->work->layer;
    ek_status status = ek_link_wire_dispatch_lay(&self->shape, &job->header, &lay);
    ek_assert(status == EK_OK); /* a plan's rows are what the format is made for */
    status = ek_link_wire_combine_lay(&self->shape, &job->header, &job->lay);
    ek_assert(status == EK_OK);
    job->header.body_bytes = (uint32_t)lay.bytes;
    pack_x(layer->work->x, desk, job, &lay);
    pack_lists(layer->work, desk, job, &lay);
    job->y = desk->receive + desk->receive_used;
    desk->receive_used += ek_size_align(job->lay.bytes, EK_CACHE_LINE);
    ek_assert(desk->receive_used <= desk->receive_bytes);
    if (lay.bytes > desk->send_bytes) desk->send_bytes = lay.bytes;
    desk->n_jobs++;
    desk->pending = true;
    tell_use(self, peer);
    ek_cluster_flights_add(self, peer, layer->micro_batch);
}

void ek_cluster_jobs_send(ek_cluster_dispatcher *self, ek_dispatch_layer *layer)
{
    number_tokens(self, layer);
    list_rows(self, layer);
    for (int32_t i = 0; i < self->n_peers; i++) {
        ek_dispatch_desk *desk = desk_of(self, layer, i);
        if (desk->n_jobs == EK_DISPATCH_JOBS_PER_PEER) continue;
        ek_dispatch_job *job = &desk->job[desk->n_jobs];
        if (job->header.n_rows == 0) continue;
        for (int32_t r = 0; r < job->header.n_rows; r++)
            layer->row_state[job->row[r]] = EK_ROW_SENT;
        hand_over(self, layer, &self->peers[i]);
    }
}
