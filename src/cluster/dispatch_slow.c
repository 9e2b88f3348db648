/*
 * Workers that the network makes slow. An answer is on its way while nobody computes; where
 * somebody else could do a layer's rows sooner than they come back, a worker is passed by for a
 * while, and then tried again. What it computes does not count: that is the load, which routing
 * evens out.
 */
#include "cluster/dispatch_internal.h"
#include "sys/clock.h"
#include "sys/log.h"

#define WAY_US_MIN  20000 /* below this a way is never slow: threads wait so long for a core */
#define SLOW_FACTOR 2.0   /* so many times as long as somebody else would take for all rows */
#define STRIKES_MAX 8     /* slow answers more than quick ones, until it is passed by */
#define PASS_US     1000000
#define PASS_US_MAX 16000000

double ek_cluster_peers_us_per_row(const ek_cluster_dispatcher *self, const ek_dispatch_peer *but)
{
    double least = 0;
    for (int32_t i = 0; i < self->n_peers; i++) {
        const ek_dispatch_peer *peer = &self->peers[i];
        if (peer == but || peer->us_per_row <= 0 || !ek_cluster_peer_is_usable(peer)) continue;
        if (least <= 0 || peer->us_per_row < least) least = peer->us_per_row;
    }
    return least;
}

void ek_cluster_peer_pass_by(ek_cluster_dispatcher *self, const ek_dispatch_layer *layer,
                             ek_dispatch_peer *peer, int64_t waited_us)
{
    peer->pass_us = peer->pass_us > 0 ? 2 * peer->pass_us : PASS_US;
    if (peer->pass_us > PASS_US_MAX) peer->pass_us = PASS_US_MAX;
    peer->pass_until_us = ek_sys_now_us() + peer->pass_us;
    peer->strikes = STRIKES_MAX - 1; /* the next slow answer is one too many */
    ek_counter_add(self->front->passed_by, 1);
    ek_log(EK_LOG_WARN, "cluster", "passed_by", "worker=%s layer=%d waited_ms=%lld for_ms=%lld",
           peer->member->address, (int)layer->work->layer, (long long)(waited_us / 1000),
           (long long)(peer->pass_us / 1000));
}

void ek_cluster_peer_answered(ek_cluster_dispatcher *self, const ek_dispatch_layer *layer,
                              ek_dispatch_peer *peer, int64_t took_us, int64_t computed_us)
{
    double others_us = ek_cluster_peers_us_per_row(self, peer) * ek_cluster_rows_of(layer->work);
    bool is_slow = took_us - computed_us > WAY_US_MIN && peer->in.queue == 0 && others_us > 0 &&
                   (double)took_us > SLOW_FACTOR * others_us;
    if (is_slow)
        peer->strikes++;
    else if (peer->strikes > 0)
        peer->strikes--;
    else
        peer->pass_us = 0;
    if (peer->strikes >= STRIKES_MAX) ek_cluster_peer_pass_by(self, layer, peer, took_us);
}
