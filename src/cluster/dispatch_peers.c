/*
 * Which workers a dispatcher can use, and which of them computes what.
 */
#include "base/assert.h"
#include "cluster/dispatch_internal.h"
#include "sys/log.h"

/* How a peer stands, for the engine: what makes it share rows out anew when it changes. */
enum { STANDING_NONE = -1, STANDING_DRAINED = -2 }; /* else the epoch of its session */

static bool is_drained(const ek_dispatch_peer *peer)
{
    return atomic_load_explicit(&peer->member->drained, memory_order_acquire) ||
           atomic_load_explicit(&peer->member->draining, memory_order_acquire);
}

bool ek_cluster_peer_is_usable(const ek_dispatch_peer *peer)
{
    return !peer->owes && ek_cluster_session_is_up(peer->member->current);
}

bool ek_cluster_peer_has(const ek_dispatch_peer *peer, int32_t layer, int32_t expert)
{
    return ek_cluster_set_has(&peer->member->current->set, layer, expert);
}

void ek_cluster_peer_break(ek_dispatch_peer *peer)
{
    ek_session *session = peer->member->current;
    /* Its thread acquires it and joins the worker anew. */
    atomic_store_explicit(&session->broken, true, memory_order_release);
    peer->owes = peer->sending = peer->has_header = false;
}

/* ---- sessions ---- */

static void adopt(ek_dispatch_peer *peer)
{
    ek_member *member = peer->member;
    if (!atomic_load_explicit(&member->incoming, memory_order_relaxed)) return;
    ek_session *session = atomic_exchange_explicit(&member->incoming, NULL, memory_order_acq_rel);
    ek_cluster_session_free(member->current);
    member->current = session;
    peer->owes = peer->sending = peer->has_header = false;
    peer->busy_us = session->busy_us;
    atomic_store_explicit(&member->late, false, memory_order_relaxed);
}

/* Throw away what comes of an answer that nobody waits for. */
static void collect_debt(ek_cluster_dispatcher *self, ek_dispatch_peer *peer)
{
    ek_link *link = peer->member->current->data;
    ek_status status = peer->sending ? link->ops->flush(link) : EK_OK;
    if (status == EK_OK) {
        peer->sending = false;
        status = peer->has_header ? EK_OK : link->ops->header(link, &peer->in);
    }
    if (status == EK_OK) {
        peer->has_header = true;
        status = link->ops->body(link, NULL);
    }
    if (status == EK_AGAIN) return;
    if (status != EK_OK) {
        ek_cluster_peer_break(peer);
    } else {
        peer->owes = peer->has_header = false;
        ek_counter_add(self->front->stale, 1);
        ek_log(EK_LOG_INFO, "cluster", "caught_up", "worker=%s", peer->member->address);
    }
    atomic_store_explicit(&peer->member->late, false, memory_order_relaxed);
}

void ek_cluster_peers_refresh(ek_cluster_dispatcher *self)
{
    for (int32_t i = 0; i < self->n_peers; i++) {
        ek_dispatch_peer *peer = &self->peers[i];
        adopt(peer);
        if (peer->owes && ek_cluster_session_is_up(peer->member->current)) collect_debt(self, peer);
    }
}

/* ---- who computes ---- */

int32_t ek_cluster_peers_choose(const ek_cluster_dispatcher *self, int32_t layer, int32_t expert)
{
    int32_t best = EK_NOBODY;
    bool best_drained = true;
    for (int32_t i = 0; i < self->n_peers; i++) {
        const ek_dispatch_peer *peer = &self->peers[i];
        if (!ek_cluster_peer_is_usable(peer) || !ek_cluster_peer_has(peer, layer, expert) ||
            peer->n_jobs == EK_DISPATCH_JOBS_PER_PEER)
            continue;
        bool drained = is_drained(peer);
        bool better = best == EK_NOBODY || (best_drained && !drained) ||
                      (best_drained == drained && peer->n_assigned < self->peers[best].n_assigned);
        if (!better) continue;
        best = i;
        best_drained = drained;
    }
    return best;
}

/* ---- for the engine ---- */

static int32_t standing(const ek_dispatch_peer *peer)
{
    if (!ek_cluster_session_is_up(peer->member->current)) return STANDING_NONE;
    if (is_drained(peer)) return STANDING_DRAINED;
    return (int32_t)(peer->member->current->epoch & INT32_MAX);
}

bool ek_cluster_peers_changed(ek_dispatcher *base)
{
    ek_cluster_dispatcher *self = (ek_cluster_dispatcher *)base;
    bool changed = false;
    ek_cluster_peers_refresh(self);
    for (int32_t i = 0; i < self->n_peers; i++) {
        int32_t now = standing(&self->peers[i]);
        changed |= now != self->peers[i].told;
        self->peers[i].told = now;
    }
    return changed;
}

static bool is_offered(const ek_dispatch_peer *peer, int32_t layer, int32_t expert)
{
    return standing(peer) >= 0 && ek_cluster_peer_has(peer, layer, expert);
}

/* Who is said to have an expert that nobody offers: whoever has it while draining, or had it. */
static int32_t last_resort(const ek_cluster_dispatcher *self, int32_t layer, int32_t expert)
{
    for (int32_t i = 0; i < self->n_peers; i++)
        if (standing(&self->peers[i]) != STANDING_NONE &&
            ek_cluster_peer_has(&self->peers[i], layer, expert))
            return i;
    return self->home[(int64_t)layer * self->shape.n_experts + expert];
}

/* Put an expert into a free slot: of its device, or wherever there is one. */
static void put(int32_t expert, int32_t device, int32_t n_devices, const int32_t *slot_beg,
                int32_t *used, int32_t *slots)
{
    for (int32_t i = 0; i < n_devices; i++) {
        int32_t d = (device + i) % n_devices;
        if (used[d] == slot_beg[d + 1] - slot_beg[d]) continue;
        slots[slot_beg[d] + used[d]++] = expert;
        return;
    }
    ek_assert(false); /* there are at least as many slots as experts */
}

void ek_cluster_peers_slots(const ek_dispatcher *base, int32_t layer, const int32_t *slot_beg,
                            int32_t *out_slot_expert)
{
    const ek_cluster_dispatcher *self = (const ek_cluster_dispatcher *)base;
    int32_t used[EK_CLUSTER_WORKERS_MAX] = {0};
    int32_t *home = self->home + (int64_t)layer * self->shape.n_experts;
    for (int32_t s = 0; s < slot_beg[self->n_peers]; s++)
        out_slot_expert[s] = -1;
    /* Each expert once, then replicas as far as there are slots. */
    for (int32_t e = 0; e < self->shape.n_experts; e++) {
        int32_t first = EK_NOBODY;
        for (int32_t i = 0; i < self->n_peers && first == EK_NOBODY; i++)
            if (is_offered(&self->peers[i], layer, e)) first = i;
        home[e] = first != EK_NOBODY ? first : last_resort(self, layer, e);
        put(e, home[e], self->n_peers, slot_beg, used, out_slot_expert);
    }
    for (int32_t i = 0; i < self->n_peers; i++)
        for (int32_t e = 0; e < self->shape.n_experts; e++)
            if (i != home[e] && used[i] < slot_beg[i + 1] - slot_beg[i] &&
                is_offered(&self->peers[i], layer, e))
                out_slot_expert[slot_beg[i] + used[i]++] = e;
}
