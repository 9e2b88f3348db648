/*
 * What is under way on workers' links: dispatches on their way out, answers on their way in, and
 * answers that nobody waits for any more.
 */
#include "base/assert.h"
#include "cluster/dispatch_internal.h"
#include "sys/clock.h"
#include "sys/log.h"

#define NS_PER_US 1000
#define RECENT    0.2 /* weight of the last answer in what answers usually take */

/* So many times as long as rows usually take is late. */
#define PATIENCE 4.0

static ek_link *link_of(const ek_dispatch_peer *peer)
{
    return peer->member->current->data;
}

static ek_dispatch_job *last_job(ek_dispatch_peer *peer, int32_t micro_batch)
{
    ek_dispatch_desk *desk = &peer->desk[micro_batch];
    return &desk->job[desk->n_jobs - 1];
}

static void remove_flight(ek_dispatch_peer *peer, int32_t at)
{
    for (int32_t i = at; i + 1 < peer->n_flights; i++)
        peer->flight[i] = peer->flight[i + 1];
    peer->n_flights--;
}

/* ---- giving up ---- */

void ek_cluster_flights_abandon(ek_cluster_dispatcher *self, ek_dispatch_peer *peer,
                                int32_t micro_batch)
{
    ek_dispatch_layer *layer = &self->layer[micro_batch];
    ek_dispatch_desk *desk = &peer->desk[micro_batch];
    const ek_dispatch_job *job = last_job(peer, micro_batch);
    ek_assert(desk->pending);
    for (int32_t r = 0; r < job->header.n_rows; r++) {
        layer->row_state[job->row[r]] = EK_ROW_TODO;
        layer->row_owner[job->row[r]] = EK_NOBODY;
    }
    desk->pending = false;
    desk->n_assigned -= job->header.n_rows;
    int32_t at = 0;
    while (at < peer->n_flights && peer->flight[at].header.seq != job->header.seq)
        at++;
    ek_assert(at < peer->n_flights);
    peer->flight[at].is_wanted = false;
    if (!peer->flight[at].is_begun)
        remove_flight(peer, at);
    else
        atomic_store_explicit(&peer->member->late, true, memory_order_relaxed);
}

void ek_cluster_flights_drop(ek_cluster_dispatcher *self, ek_dispatch_peer *peer)
{
    for (int32_t m = 0; m < EK_MICRO_BATCHES_MAX; m++)
        if (peer->desk[m].pending) ek_cluster_flights_abandon(self, peer, m);
    peer->n_flights = 0;
    peer->has_header = false;
    atomic_store_explicit(&peer->member->late, false, memory_order_relaxed);
}

/* The link is of no use any more: its member joins the worker anew. */
static void break_session(ek_cluster_dispatcher *self, ek_dispatch_peer *peer)
{
    /* Its thread acquires it. */
    atomic_store_explicit(&peer->member->current->broken, true, memory_order_release);
    ek_cluster_flights_drop(self, peer);
}

/* ---- answers ---- */

/* Is this the answer that comes next? */
static bool is_answer(const ek_dispatch_flight *flight, const ek_wire_header *in)
{
    const ek_wire_header *out = &flight->header;
    return in->kind == EK_WIRE_COMBINE && in->epoch == out->epoch && in->seq == out->seq &&
           in->layer == out->layer && in->form == out->form && in->n_tokens == out->n_tokens &&
           in->n_shares == out->n_shares && in->n_rows == out->n_rows &&
           in->body_bytes == flight->answer_bytes;
}

/* @return how long the worker computed since its last answer, as far as it says */
static int64_t count_busy(ek_cluster_dispatcher *self, const ek_dispatch_layer *layer,
                          ek_dispatch_peer *peer, const ek_dispatch_job *job, int64_t now_us)
{
    int32_t layer_idx = job->header.layer;
    int64_t service_us = now_us - layer->dispatch_us;
    const uint32_t *busy_us = (const uint32_t *)(const void *)(job->y + job->lay.busy_us);
    for (int32_t s = 0; self->setup.stats && s < job->header.n_shares; s++)
        ek_telemetry_experts_add_busy(self->setup.stats, layer_idx, job->share_expert[s],
                                      (int64_t)busy_us[s] * NS_PER_US, service_us);
    /* All that the worker did since its last answer, for other fronts, too: its load. */
    uint64_t busy = peer->in.busy_us > peer->busy_us ? peer->in.busy_us - peer->busy_us : 0;
    if (self->setup.device_stats) {
        ek_telemetry_experts_add_tokens(self->setup.device_stats, layer_idx, peer->member->idx,
                                        job->header.n_rows);
        ek_telemetry_experts_add_busy(self->setup.device_stats, layer_idx, peer->member->idx,
                                      (int64_t)busy * NS_PER_US, service_us);
    }
    peer->busy_us += busy;
    return (int64_t)busy;
}

/* On the watching clock. A worker computes one dispatch after the other: the second waits. */
static int64_t waited(const ek_dispatch_peer *peer, const ek_dispatch_flight *flight,
                      int64_t watch_us)
{
    bool is_second = peer->answered_watch_us > flight->sent_watch_us;
    return watch_us - (is_second ? peer->answered_watch_us : flight->sent_watch_us);
}

/* A worker computes one dispatch after the other: the second waits for the first. */
static void time_answer(ek_cluster_dispatcher *self, ek_dispatch_peer *peer,
                        const ek_dispatch_flight *flight, int64_t computed_us, int64_t now_us)
{
    int64_t from_us = flight->sent_us > peer->answered_us ? flight->sent_us : peer->answered_us;
    double us_per_row = (double)(now_us - from_us) / flight->header.n_rows;
    peer->us_per_row += RECENT * (us_per_row - peer->us_per_row);
    ek_hist_record(self->front->answer_time, (uint64_t)(now_us - flight->sent_us));
    int64_t waited_us = waited(peer, flight, ek_cluster_watch_us(self, now_us));
    ek_cluster_peer_answered(self, &self->layer[flight->micro_batch], peer, waited_us, computed_us);
}

static void take_answer(ek_cluster_dispatcher *self, ek_dispatch_peer *peer,
                        const ek_dispatch_flight *flight)
{
    ek_dispatch_layer *layer = &self->layer[flight->micro_batch];
    ek_dispatch_job *job = last_job(peer, flight->micro_batch);
    const ek_link *link = link_of(peer);
    int64_t now_us = ek_sys_now_us();
    size_t row_bytes = (size_t)self->shape.d_model *
                       (self->form & EK_WIRE_FORM_BF16 ? sizeof(uint16_t) : sizeof(float));
    bool is_summed = self->form & EK_WIRE_FORM_SUMMED;
    for (int32_t r = 0; r < job->header.n_rows; r++) {
        layer->row_state[job->row[r]] = EK_ROW_DONE;
        layer->row_y[job->row[r]] = is_summed ? NULL : job->y + (size_t)r * row_bytes;
    }
    job->is_answered = true;
    layer->answered_us = now_us;
    peer->desk[flight->micro_batch].pending = false;
    int64_t computed_us = count_busy(self, layer, peer, job, now_us);
    time_answer(self, peer, flight, computed_us, now_us);
    atomic_store_explicit(&peer->member->bytes_sent, link->bytes_sent, memory_order_relaxed);
    atomic_store_explicit(&peer->member->bytes_received, link->bytes_received,
                          memory_order_relaxed);
}

static void throw_away(ek_cluster_dispatcher *self, const ek_dispatch_peer *peer)
{
    ek_counter_add(self->front->stale, 1);
    ek_log(EK_LOG_INFO, "cluster", "caught_up", "worker=%s", peer->member->address);
}

/* ---- moving ---- */

/* Messages go out one after the other. @return EK_OK all are; EK_AGAIN; what the link broke with */
static ek_status push(ek_dispatch_peer *peer)
{
    ek_link *link = link_of(peer);
    for (int32_t i = 0; i < peer->n_flights; i++) {
        ek_dispatch_flight *flight = &peer->flight[i];
        if (flight->is_out) continue;
        const ek_span body = {peer->desk[flight->micro_batch].send, flight->header.body_bytes};
        ek_status status = flight->is_begun ? link->ops->flush(link)
                                            : link->ops->send(link, &flight->header, &body, 1);
        flight->is_begun = true;
        if (status != EK_OK) return status;
        flight->is_out = true;
    }
    return EK_OK;
}

/* The first flight's answer. @return EK_OK it is complete; EK_AGAIN; what the link broke with */
static ek_status pull(ek_dispatch_peer *peer)
{
    ek_link *link = link_of(peer);
    const ek_dispatch_flight *flight = &peer->flight[0];
    if (!flight->is_out) return EK_AGAIN;
    if (!peer->has_header) {
        ek_status status = link->ops->header(link, &peer->in);
        if (status != EK_OK) return status;
        if (!is_answer(flight, &peer->in)) {
            ek_log(EK_LOG_ERROR, "cluster", "wrong_answer",
                   "worker=%s kind=%d epoch=%u seq=%llu wanted=%llu", peer->member->address,
                   (int)peer->in.kind, (unsigned)peer->in.epoch, (unsigned long long)peer->in.seq,
                   (unsigned long long)flight->header.seq);
            return EK_EFORMAT;
        }
        peer->has_header = true;
    }
    return link->ops->body(link, flight->is_wanted ? last_job(peer, flight->micro_batch)->y : NULL);
}

static ek_status move(ek_cluster_dispatcher *self, ek_dispatch_peer *peer)
{
    while (peer->n_flights > 0) {
        if (atomic_load_explicit(&peer->member->current->over, memory_order_acquire))
            return EK_EPEER;
        ek_status pushed = push(peer);
        if (pushed != EK_OK && pushed != EK_AGAIN) return pushed;
        ek_status pulled = pull(peer);
        if (pulled != EK_OK) return pulled;
        if (peer->flight[0].is_wanted)
            take_answer(self, peer, &peer->flight[0]);
        else
            throw_away(self, peer);
        peer->answered_us = ek_sys_now_us();
        peer->answered_watch_us = ek_cluster_watch_us(self, peer->answered_us);
        peer->has_header = false;
        remove_flight(peer, 0);
        if (!ek_cluster_peer_owes(peer))
            atomic_store_explicit(&peer->member->late, false, memory_order_relaxed);
    }
    return EK_OK;
}

void ek_cluster_flights_move(ek_cluster_dispatcher *self, ek_dispatch_peer *peer)
{
    ek_status status = move(self, peer);
    if (status != EK_OK && status != EK_AGAIN) break_session(self, peer);
}

void ek_cluster_flights_add(ek_cluster_dispatcher *self, ek_dispatch_peer *peer,
                            int32_t micro_batch)
{
    const ek_dispatch_job *job = last_job(peer, micro_batch);
    int64_t now_us = ek_sys_now_us();
    ek_assert(peer->n_flights < EK_MICRO_BATCHES_MAX);
    if (peer->n_flights == 0) peer->has_header = false;
    peer->flight[peer->n_flights++] = (ek_dispatch_flight){
        .micro_batch = micro_batch,
        .is_wanted = true,
        .header = job->header,
        .answer_bytes = job->lay.bytes,
        .sent_us = now_us,
        .sent_watch_us = ek_cluster_watch_us(self, now_us),
    };
    atomic_fetch_add_explicit(&peer->member->n_dispatches, 1, memory_order_relaxed);
    ek_status status = push(peer);
    if (status != EK_OK && status != EK_AGAIN) break_session(self, peer);
}

/* ---- waiting ---- */

/* Could somebody else do all that this peer was sent? */
static bool has_stand_ins(const ek_cluster_dispatcher *self, const ek_dispatch_peer *peer,
                          int32_t micro_batch)
{
    const ek_dispatch_desk *desk = &peer->desk[micro_batch];
    const ek_dispatch_job *job = &desk->job[desk->n_jobs - 1];
    for (int32_t s = 0; s < job->header.n_shares; s++) {
        bool found = false;
        for (int32_t i = 0; i < self->n_peers && !found; i++) {
            const ek_dispatch_peer *other = &self->peers[i];
            found = other != peer && ek_cluster_peer_is_usable(other) &&
                    !other->desk[micro_batch].pending &&
                    other->desk[micro_batch].n_jobs < EK_DISPATCH_JOBS_PER_PEER &&
                    ek_cluster_peer_has(other, job->header.layer, job->share_expert[s]);
        }
        if (!found) return false;
    }
    return true;
}

/* The layer's flight at a peer where it waits for an answer. */
static int32_t find_flight(const ek_dispatch_peer *peer, const ek_dispatch_layer *layer)
{
    int32_t at = 0;
    while (at < peer->n_flights &&
           (peer->flight[at].micro_batch != layer->micro_batch || !peer->flight[at].is_wanted))
        at++;
    ek_assert(at < peer->n_flights);
    return at;
}

/*
 * How long an answer may take before others are asked: a large batch takes its time, and a slow
 * worker more, but a slow way must not make the front ever more patient.
 */
static int64_t patience_us(const ek_cluster_dispatcher *self, const ek_dispatch_peer *peer,
                           int32_t at)
{
    int64_t least_us = self->front->params.hedge_us, n_rows = 0;
    for (int32_t i = 0; i <= at; i++)
        n_rows += peer->flight[i].header.n_rows;
    double us_per_row = peer->us_per_row;
    double most_us_per_row = PATIENCE * ek_cluster_peers_us_per_row(self, NULL);
    if (us_per_row > most_us_per_row) us_per_row = most_us_per_row;
    int64_t usual_us = (int64_t)(PATIENCE * us_per_row * (double)n_rows);
    return usual_us > least_us ? usual_us : least_us;
}

void ek_cluster_flights_give_up_late(ek_cluster_dispatcher *self, ek_dispatch_layer *layer)
{
    int64_t watch_us = ek_cluster_watch_us(self, ek_sys_now_us());
    for (int32_t i = 0; i < self->n_peers; i++) {
        ek_dispatch_peer *peer = &self->peers[i];
        if (!peer->desk[layer->micro_batch].pending) continue;
        int32_t at = find_flight(peer, layer);
        const ek_dispatch_flight *flight = &peer->flight[at];
        int64_t waited_us = waited(peer, flight, watch_us);
        if (waited_us < patience_us(self, peer, at)) continue;
        if (waited_us < self->front->params.layer_timeout_us &&
            !has_stand_ins(self, peer, layer->micro_batch))
            continue;
        ek_log(EK_LOG_WARN, "cluster", "late", "worker=%s layer=%d waited_ms=%lld rows=%d",
               peer->member->address, (int)flight->header.layer, (long long)(waited_us / 1000),
               (int)flight->header.n_rows);
        ek_counter_add(self->front->late, 1);
        ek_cluster_peer_pass_by(self, layer, peer, waited_us);
        ek_cluster_flights_abandon(self, peer, layer->micro_batch);
    }
}

static bool sends(const ek_dispatch_peer *peer)
{
    return peer->n_flights > 0 && !peer->flight[peer->n_flights - 1].is_out;
}

bool ek_cluster_flights_is_sending(const ek_cluster_dispatcher *self,
                                   const ek_dispatch_layer *layer)
{
    for (int32_t i = 0; i < self->n_peers; i++)
        if (self->peers[i].desk[layer->micro_batch].pending && sends(&self->peers[i])) return true;
    return false;
}

int32_t ek_cluster_flights_pending(const ek_cluster_dispatcher *self,
                                   const ek_dispatch_layer *layer)
{
    int32_t n = 0;
    for (int32_t i = 0; i < self->n_peers; i++)
        n += self->peers[i].desk[layer->micro_batch].pending;
    return n;
}

bool ek_cluster_flights_wait(ek_cluster_dispatcher *self, const ek_dispatch_layer *layer,
                             bool only_senders, int64_t timeout_us)
{
    ek_link *links[EK_CLUSTER_WORKERS_MAX];
    int32_t n = 0;
    for (int32_t i = 0; i < self->n_peers; i++) {
        const ek_dispatch_peer *peer = &self->peers[i];
        if (peer->desk[layer->micro_batch].pending && (sends(peer) || !only_senders))
            links[n++] = link_of(peer);
    }
    return n > 0 && ek_link_wait(links, n, timeout_us);
}
