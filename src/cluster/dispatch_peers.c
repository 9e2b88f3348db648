/*
 * Which workers a dispatcher can use, and which of them computes what.
 */
#include <string.h>

#include "base/assert.h"
#include "cluster/dispatch_internal.h"
#include "sys/clock.h"
#include "sys/log.h"
#include "sys/mem.h"

#define NS_PER_US      1000
#define LOAD_AGE_US    500000 /* five reports that did not come: a load is not known any more */
#define SLOW_START_MIN 0.1    /* of a worker's rows, right after it came back */

/* How a peer stands, for the engine: what makes it share rows out anew when it changes. */
enum { STANDING_NONE = -1, STANDING_DRAINED = -2 }; /* else the epoch of its session */

static bool is_drained(const ek_dispatch_peer *peer)
{
    return atomic_load_explicit(&peer->member->drained, memory_order_acquire) ||
           atomic_load_explicit(&peer->member->draining, memory_order_acquire);
}

bool ek_cluster_peer_owes(const ek_dispatch_peer *peer)
{
    for (int32_t i = 0; i < peer->n_flights; i++)
        if (!peer->flight[i].is_wanted) return true;
    return false;
}

bool ek_cluster_peer_is_usable(const ek_dispatch_peer *peer)
{
    return ek_cluster_session_is_up(peer->member->current) && !ek_cluster_peer_owes(peer);
}

bool ek_cluster_peer_has(const ek_dispatch_peer *peer, int32_t layer, int32_t expert)
{
    return ek_link_set_has(&peer->member->current->set, layer, expert);
}

/* ---- sessions ---- */

static void adopt(ek_cluster_dispatcher *self, ek_dispatch_peer *peer)
{
    ek_member *member = peer->member;
    if (!atomic_load_explicit(&member->incoming, memory_order_relaxed)) return;
    ek_session *session = atomic_exchange_explicit(&member->incoming, NULL, memory_order_acq_rel);
    ek_cluster_flights_drop(self, peer); /* the session before has ended, and its link with it */
    ek_cluster_session_free(member->current);
    member->current = session;
    peer->busy_us = session->busy_us;
    peer->us_per_row = 0;
    peer->strikes = 0;
    peer->pass_us = peer->pass_until_us = 0;
    memset(peer->since_us, 0,
           (size_t)session->set.n_layers * (size_t)session->set.n_experts * sizeof *peer->since_us);
}

void ek_cluster_peers_refresh(ek_cluster_dispatcher *self)
{
    for (int32_t i = 0; i < self->n_peers; i++) {
        ek_dispatch_peer *peer = &self->peers[i];
        adopt(self, peer);
        if (peer->n_flights > 0) ek_cluster_flights_move(self, peer);
        bool is_up = ek_cluster_session_is_up(peer->member->current);
        if (is_up || !peer->member->current)
            peer->down_us = 0;
        else if (peer->down_us == 0)
            peer->down_us = ek_sys_now_us();
    }
}

/* ---- what moves ---- */

/* Has somebody else whom rows can be sent to an expert? */
static bool is_elsewhere(const ek_cluster_dispatcher *self, const ek_dispatch_peer *peer,
                         int32_t layer, int32_t expert)
{
    for (int32_t i = 0; i < self->n_peers; i++) {
        const ek_dispatch_peer *other = &self->peers[i];
        if (other != peer && ek_cluster_session_is_up(other->member->current) &&
            ek_cluster_peer_has(other, layer, expert))
            return true;
    }
    return false;
}

/* Would a change leave an expert with nobody? */
static bool is_safe(const ek_cluster_dispatcher *self, const ek_dispatch_peer *peer,
                    const ek_expert_set *then)
{
    const ek_expert_set *now = &peer->member->current->set;
    for (int32_t l = 0; l < now->n_layers; l++)
        for (int32_t e = 0; e < now->n_experts; e++)
            if (ek_link_set_has(now, l, e) && !ek_link_set_has(then, l, e) &&
                !is_elsewhere(self, peer, l, e))
                return false;
    return true;
}

static void apply(ek_dispatch_peer *peer, const ek_member_change *change, const ek_expert_set *then)
{
    ek_expert_set *now = &peer->member->current->set;
    int64_t now_us = ek_sys_now_us();
    for (int32_t l = 0; l < now->n_layers; l++)
        for (int32_t e = 0; e < now->n_experts; e++)
            if (!ek_link_set_has(now, l, e) && ek_link_set_has(then, l, e))
                peer->since_us[(int64_t)l * now->n_experts + e] = now_us;
    memcpy(now->bits, then->bits, ek_link_set_bytes(now->n_layers, now->n_experts));
    peer->has_changed = true;
    /* Pairs with the member's thread, which tells the worker that nothing else is sent now. */
    atomic_store_explicit(&peer->member->moves.heeded,
                          ek_cluster_heed_of(change->epoch, change->generation),
                          memory_order_release);
}

/* One that cannot be taken yet waits, unless a newer one has come. */
static void put_back(ek_member_moves *moves, ek_member_change *change)
{
    ek_member_change *none = NULL;
    if (!atomic_compare_exchange_strong_explicit(&moves->change, &none, change,
                                                 memory_order_acq_rel, memory_order_relaxed))
        ek_sys_free(change);
}

static void take_change(ek_cluster_dispatcher *self, ek_dispatch_peer *peer)
{
    ek_member_moves *moves = &peer->member->moves;
    if (!atomic_load_explicit(&moves->change, memory_order_relaxed)) return;
    ek_member_change *change = atomic_exchange_explicit(&moves->change, NULL, memory_order_acq_rel);
    if (!change) return;
    adopt(self, peer); /* the session that it is of was published before */
    const ek_session *session = peer->member->current;
    if (!ek_cluster_session_is_up(session) || session->epoch != change->epoch) {
        ek_sys_free(change);
        return;
    }
    ek_expert_set then = session->set;
    then.bits = change->bits;
    /* What is under way to it, of either micro-batch, it has still to be able to compute. */
    if (peer->n_flights > 0 || !is_safe(self, peer, &then)) {
        put_back(moves, change);
        return;
    }
    apply(peer, change, &then);
    ek_sys_free(change);
}

void ek_cluster_peers_take_changes(ek_cluster_dispatcher *self)
{
    for (int32_t i = 0; i < self->n_peers; i++)
        take_change(self, &self->peers[i]);
}

/* ---- load ---- */

/* What a worker did since it was last counted, whoever asked for it, spread over layers. */
static void count_reported(ek_cluster_dispatcher *self, ek_dispatch_peer *peer)
{
    uint64_t busy_us = atomic_load_explicit(&peer->member->busy_us, memory_order_relaxed);
    int32_t n_layers = self->shape.n_layers;
    if (busy_us <= peer->busy_us || !self->setup.device_stats) return;
    int64_t each_ns = (int64_t)(busy_us - peer->busy_us) * NS_PER_US / n_layers;
    peer->busy_us = busy_us;
    for (int32_t l = 0; l < n_layers; l++)
        ek_telemetry_experts_add_load(self->setup.device_stats, l, peer->member->idx, each_ns);
}

static bool are_loads_known(const ek_cluster_dispatcher *self, int64_t now_us)
{
    for (int32_t i = 0; i < self->n_peers; i++) {
        const ek_member *member = self->peers[i].member;
        if (ek_cluster_session_is_up(member->current) &&
            now_us - atomic_load_explicit(&member->heard_us, memory_order_relaxed) > LOAD_AGE_US)
            return false;
    }
    return true;
}

/* ---- who computes ---- */

/* A number in [0, 1) that is another one for each expert, layer and step. */
static double lot(uint64_t a, uint64_t b)
{
    uint64_t x = (a * UINT64_C(0x9e3779b97f4a7c15)) ^ (b * UINT64_C(0xd6e8feb86659fd93));
    x ^= x >> 32;
    x *= UINT64_C(0xd6e8feb86659fd93);
    return (double)(x >> 11) * 0x1p-53;
}

bool ek_cluster_peer_passes(const ek_cluster_dispatcher *self, const ek_dispatch_layer *layer,
                            const ek_dispatch_peer *peer, int32_t expert)
{
    const ek_session *session = peer->member->current;
    int64_t ramp_us = self->front->params.slow_start_us;
    int64_t since_us = peer->since_us[(int64_t)layer->work->layer * self->shape.n_experts + expert];
    if (layer->dispatch_us < peer->pass_until_us) return true;
    if (session->is_return && session->began_us > since_us) since_us = session->began_us;
    if (since_us == 0) return false;
    int64_t age_us = layer->dispatch_us - since_us;
    if (age_us >= ramp_us) return false;
    double share = SLOW_START_MIN + (1 - SLOW_START_MIN) * (double)age_us / (double)ramp_us;
    return lot((uint64_t)layer->work->layer << 32 | (uint32_t)expert, self->n_layers_done) >= share;
}

int32_t ek_cluster_peers_choose(const ek_cluster_dispatcher *self, const ek_dispatch_layer *layer,
                                int32_t expert)
{
    int32_t best = EK_NOBODY, best_assigned = 0;
    bool best_drained = true;
    for (int32_t i = 0; i < self->n_peers; i++) {
        const ek_dispatch_peer *peer = &self->peers[i];
        const ek_dispatch_desk *desk = &peer->desk[layer->micro_batch];
        if (!ek_cluster_peer_is_usable(peer) ||
            !ek_cluster_peer_has(peer, layer->work->layer, expert) ||
            desk->n_jobs == EK_DISPATCH_JOBS_PER_PEER)
            continue;
        bool drained = is_drained(peer) || ek_cluster_peer_passes(self, layer, peer, expert);
        bool better = best == EK_NOBODY || (best_drained && !drained) ||
                      (best_drained == drained && desk->n_assigned < best_assigned);
        if (!better) continue;
        best = i;
        best_drained = drained;
        best_assigned = desk->n_assigned;
    }
    return best;
}

bool ek_cluster_peers_may_return(const ek_cluster_dispatcher *self, int32_t layer, int32_t expert,
                                 int64_t now_us)
{
    for (int32_t i = 0; i < self->n_peers; i++) {
        const ek_dispatch_peer *peer = &self->peers[i];
        if (peer->down_us > 0 && now_us - peer->down_us < self->front->params.loss_wait_us &&
            ek_cluster_peer_has(peer, layer, expert))
            return true;
    }
    return false;
}

/* ---- for the engine ---- */

static int32_t standing(const ek_dispatch_peer *peer)
{
    if (!ek_cluster_session_is_up(peer->member->current)) return STANDING_NONE;
    if (is_drained(peer)) return STANDING_DRAINED;
    return (int32_t)(peer->member->current->epoch & INT32_MAX);
}

bool ek_cluster_peers_changed(ek_dispatcher *base, bool *out_loads_known)
{
    ek_cluster_dispatcher *self = (ek_cluster_dispatcher *)base;
    bool changed = false;
    ek_cluster_peers_refresh(self);
    ek_cluster_peers_take_changes(self);
    for (int32_t i = 0; i < self->n_peers; i++) {
        if (ek_cluster_session_is_up(self->peers[i].member->current))
            count_reported(self, &self->peers[i]);
        int32_t now = standing(&self->peers[i]);
        changed |= now != self->peers[i].told || self->peers[i].has_changed;
        self->peers[i].told = now;
        self->peers[i].has_changed = false;
    }
    *out_loads_known = are_loads_known(self, ek_sys_now_us());
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
