/*
 * A dispatcher's messages: packing them, sending them, receiving their answers.
 */
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "cluster/dispatch_internal.h"
#include "sys/clock.h"
#include "sys/log.h"

#define NS_PER_US 1000
#define RECENT    0.2 /* weight of the last answer in what answers usually take */

/* ---- packing ---- */

/* Which tokens go to each peer, numbered in the batch's order. */
static void number_tokens(ek_cluster_dispatcher *self)
{
    const ek_expert_work *work = self->work;
    int32_t n_rows = work->expert_beg[work->n_experts];
    for (int32_t i = 0; i < self->n_peers; i++) {
        ek_dispatch_peer *peer = &self->peers[i];
        memset(peer->local, 0xff, (size_t)work->n_tokens * sizeof *peer->local);
        if (peer->n_jobs == EK_DISPATCH_JOBS_PER_PEER) continue;
        peer->job[peer->n_jobs] =
            (ek_dispatch_job){.header = ek_link_wire_header(EK_WIRE_DISPATCH, 0)};
    }
    for (int32_t r = 0; r < n_rows; r++)
        if (self->row_state[r] == EK_ROW_TODO && self->row_owner[r] != EK_NOBODY)
            self->peers[self->row_owner[r]].local[work->row_token[r]] = 0;
    for (int32_t i = 0; i < self->n_peers; i++) {
        ek_dispatch_peer *peer = &self->peers[i];
        if (peer->n_jobs == EK_DISPATCH_JOBS_PER_PEER) continue;
        ek_dispatch_job *job = &peer->job[peer->n_jobs];
        int32_t *token = peer->token + (ptrdiff_t)peer->n_jobs * self->shape.tokens_max;
        int32_t n = 0;
        for (int32_t t = 0; t < work->n_tokens; t++) {
            if (peer->local[t] < 0) continue;
            token[n] = t;
            peer->local[t] = n++;
        }
        job->token = token;
        job->row = peer->row + peer->n_rows;
        job->header.n_tokens = n;
    }
}

/* Count rows and shares, and list the rows. */
static void list_rows(ek_cluster_dispatcher *self)
{
    const ek_expert_work *work = self->work;
    for (int32_t e = 0; e < work->n_experts; e++) {
        uint64_t seen = 0; /* peers with a share of this expert: at most 64 of them */
        for (int32_t r = work->expert_beg[e]; r < work->expert_beg[e + 1]; r++) {
            if (self->row_state[r] != EK_ROW_TODO || self->row_owner[r] == EK_NOBODY) continue;
            ek_dispatch_peer *peer = &self->peers[self->row_owner[r]];
            ek_dispatch_job *job = &peer->job[peer->n_jobs];
            peer->row[peer->n_rows++] = r;
            job->header.n_rows++;
            job->header.n_shares += !(seen >> self->row_owner[r] & 1);
            seen |= (uint64_t)1 << self->row_owner[r];
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

static void pack_lists(const ek_cluster_dispatcher *self, ek_dispatch_peer *peer,
                       ek_dispatch_job *job, const ek_wire_dispatch_layout *lay)
{
    const ek_expert_work *work = self->work;
    int32_t *share_expert = (int32_t *)(void *)(peer->send + lay->share_expert);
    int32_t *share_beg = (int32_t *)(void *)(peer->send + lay->share_beg);
    int32_t *row_token = (int32_t *)(void *)(peer->send + lay->row_token);
    float *weight = (float *)(void *)(peer->send + lay->weight);
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
        row_token[i] = peer->local[token];
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

static void pack_x(const ek_cluster_dispatcher *self, ek_dispatch_peer *peer,
                   const ek_dispatch_job *job, const ek_wire_dispatch_layout *lay)
{
    int64_t d = self->shape.d_model;
    bool is_bf16 = job->header.form & EK_WIRE_FORM_BF16;
    for (int32_t i = 0; i < job->header.n_tokens; i++) {
        const float *x = self->work->x->f32 + job->token[i] * d;
        if (is_bf16)
            ek_link_wire_to_bf16(x, d, (uint16_t *)(void *)(peer->send + lay->x) + i * d);
        else
            memcpy(peer->send + lay->x + (size_t)(i * d) * sizeof *x, x, (size_t)d * sizeof *x);
    }
}

/* ---- sending ---- */

static void send_job(ek_cluster_dispatcher *self, ek_dispatch_peer *peer)
{
    ek_dispatch_job *job = &peer->job[peer->n_jobs];
    ek_session *session = peer->member->current;
    ek_wire_dispatch_layout lay;
    job->header.epoch = session->epoch;
    job->header.form = self->form;
    job->header.seq = ++self->next_seq;
    job->header.layer = self->work->layer;
    ek_status status = ek_link_wire_dispatch_lay(&self->shape, &job->header, &lay);
    ek_assert(status == EK_OK); /* a plan's rows are what the format is made for */
    status = ek_link_wire_combine_lay(&self->shape, &job->header, &job->lay);
    ek_assert(status == EK_OK);
    job->header.body_bytes = (uint32_t)lay.bytes;
    pack_x(self, peer, job, &lay);
    pack_lists(self, peer, job, &lay);
    job->y = peer->receive + peer->receive_used;
    peer->receive_used += ek_size_align(job->lay.bytes, EK_CACHE_LINE);
    ek_assert(peer->receive_used <= self->receive_bytes);
    peer->n_jobs++;
    peer->pending = true;
    peer->has_header = false;
    peer->sent_us = ek_sys_now_us();
    const ek_span body = {peer->send, lay.bytes};
    status = session->data->ops->send(session->data, &job->header, &body, 1);
    peer->sending = status == EK_AGAIN;
    atomic_fetch_add_explicit(&peer->member->n_dispatches, 1, memory_order_relaxed);
    if (status == EK_OK || status == EK_AGAIN) return;
    ek_cluster_peer_break(peer);
    ek_cluster_job_abandon(self, peer);
}

void ek_cluster_jobs_send(ek_cluster_dispatcher *self)
{
    number_tokens(self);
    list_rows(self);
    for (int32_t i = 0; i < self->n_peers; i++) {
        ek_dispatch_peer *peer = &self->peers[i];
        if (peer->n_jobs == EK_DISPATCH_JOBS_PER_PEER) continue;
        ek_dispatch_job *job = &peer->job[peer->n_jobs];
        if (job->header.n_rows == 0) continue;
        for (int32_t r = 0; r < job->header.n_rows; r++)
            self->row_state[job->row[r]] = EK_ROW_SENT;
        send_job(self, peer);
    }
}

/* ---- receiving ---- */

static ek_dispatch_job *current_job(ek_dispatch_peer *peer)
{
    return &peer->job[peer->n_jobs - 1];
}

/* Is this the answer that is awaited? */
static bool is_answer(const ek_dispatch_job *job, const ek_wire_header *in)
{
    const ek_wire_header *out = &job->header;
    return in->kind == EK_WIRE_COMBINE && in->epoch == out->epoch && in->seq == out->seq &&
           in->layer == out->layer && in->form == out->form && in->n_tokens == out->n_tokens &&
           in->n_shares == out->n_shares && in->n_rows == out->n_rows &&
           in->body_bytes == job->lay.bytes;
}

static void count_busy(ek_cluster_dispatcher *self, ek_dispatch_peer *peer,
                       const ek_dispatch_job *job, int64_t now_us)
{
    const ek_expert_work *work = self->work;
    int64_t service_us = now_us - self->dispatch_us;
    const uint32_t *busy_us = (const uint32_t *)(const void *)(job->y + job->lay.busy_us);
    for (int32_t s = 0; self->setup.stats && s < job->header.n_shares; s++)
        ek_telemetry_experts_add_busy(self->setup.stats, work->layer, job->share_expert[s],
                                      (int64_t)busy_us[s] * NS_PER_US, service_us);
    if (self->setup.device_stats) {
        /* All that the worker did since its last answer, for other fronts, too: its load. */
        uint64_t busy = peer->in.busy_us > peer->busy_us ? peer->in.busy_us - peer->busy_us : 0;
        ek_telemetry_experts_add_tokens(self->setup.device_stats, work->layer, peer->member->idx,
                                        job->header.n_rows);
        ek_telemetry_experts_add_busy(self->setup.device_stats, work->layer, peer->member->idx,
                                      (int64_t)busy * NS_PER_US, service_us);
    }
    if (peer->in.busy_us > peer->busy_us) peer->busy_us = peer->in.busy_us;
    double us_per_row = (double)(now_us - peer->sent_us) / job->header.n_rows;
    peer->us_per_row += RECENT * (us_per_row - peer->us_per_row);
    ek_hist_record(self->front->answer_time, (uint64_t)(now_us - peer->sent_us));
}

static void take_answer(ek_cluster_dispatcher *self, ek_dispatch_peer *peer)
{
    ek_dispatch_job *job = current_job(peer);
    const ek_link *link = peer->member->current->data;
    size_t row_bytes = (size_t)self->shape.d_model *
                       (self->form & EK_WIRE_FORM_BF16 ? sizeof(uint16_t) : sizeof(float));
    bool is_summed = self->form & EK_WIRE_FORM_SUMMED;
    for (int32_t r = 0; r < job->header.n_rows; r++) {
        self->row_state[job->row[r]] = EK_ROW_DONE;
        self->row_y[job->row[r]] = is_summed ? NULL : job->y + (size_t)r * row_bytes;
    }
    job->is_answered = true;
    peer->pending = peer->has_header = false;
    count_busy(self, peer, job, ek_sys_now_us());
    atomic_store_explicit(&peer->member->bytes_sent, link->bytes_sent, memory_order_relaxed);
    atomic_store_explicit(&peer->member->bytes_received, link->bytes_received,
                          memory_order_relaxed);
}

static ek_status progress(ek_dispatch_peer *peer)
{
    ek_link *link = peer->member->current->data;
    ek_status status = EK_OK;
    if (atomic_load_explicit(&peer->member->current->over, memory_order_acquire)) return EK_EPEER;
    if (peer->sending) {
        status = link->ops->flush(link);
        if (status != EK_OK) return status;
        peer->sending = false;
    }
    if (!peer->has_header) {
        status = link->ops->header(link, &peer->in);
        if (status != EK_OK) return status;
        if (!is_answer(current_job(peer), &peer->in)) {
            ek_log(EK_LOG_ERROR, "cluster", "wrong_answer",
                   "worker=%s kind=%d epoch=%u seq=%llu wanted=%llu", peer->member->address,
                   (int)peer->in.kind, (unsigned)peer->in.epoch, (unsigned long long)peer->in.seq,
                   (unsigned long long)current_job(peer)->header.seq);
            return EK_EFORMAT;
        }
        peer->has_header = true;
    }
    return link->ops->body(link, current_job(peer)->y);
}

void ek_cluster_job_abandon(ek_cluster_dispatcher *self, ek_dispatch_peer *peer)
{
    const ek_dispatch_job *job = current_job(peer);
    for (int32_t r = 0; r < job->header.n_rows; r++) {
        self->row_state[job->row[r]] = EK_ROW_TODO;
        self->row_owner[job->row[r]] = EK_NOBODY;
    }
    peer->pending = false;
    peer->n_assigned -= job->header.n_rows;
    if (!ek_cluster_session_is_up(peer->member->current)) return;
    peer->owes = true;
    atomic_store_explicit(&peer->member->late, true, memory_order_relaxed);
}

int32_t ek_cluster_jobs_progress(ek_cluster_dispatcher *self)
{
    int32_t n_pending = 0;
    for (int32_t i = 0; i < self->n_peers; i++) {
        ek_dispatch_peer *peer = &self->peers[i];
        if (!peer->pending) continue;
        ek_status status = progress(peer);
        if (status == EK_OK) {
            take_answer(self, peer);
        } else if (status == EK_AGAIN) {
            n_pending++;
        } else {
            ek_cluster_peer_break(peer);
            ek_cluster_job_abandon(self, peer);
        }
    }
    return n_pending;
}
