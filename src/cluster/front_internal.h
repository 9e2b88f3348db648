/*
 * A front's own state, for the files that implement front.h.
 */
#ifndef EK_CLUSTER_FRONT_INTERNAL_H
#define EK_CLUSTER_FRONT_INTERNAL_H

#include "cluster/member.h"
#include "cluster/placing.h"
#include "link/wire.h"
#include "sys/mem.h"

struct ek_front {
    ek_cluster_params params;
    uint8_t identity[EK_IDENTITY_BYTES];
    ek_wire_shape shape;
    ek_fabric *tls; /* owned, like all below */
    ek_fabric *tcp;
    ek_fabric *ucx;     /* NULL: not asked for */
    ek_member *members; /* (n_members) */
    int32_t n_members;
    ek_expert_source source;
    int64_t expert_bytes;           /* of one expert of a layer, at most */
    struct ek_rebalance *rebalance; /* NULL: off */
    _Atomic bool stopping;
    ek_sys_mutex lock;  /* texts and sets of members, and: */
    ek_placing placing; /* the placement that was given last */

    /* Counted by the engine's thread; up and losses of members by theirs. */
    ek_sys_region metrics_region; /* where nobody else has a registry */
    ek_counter *redone, *degraded, *failed, *stale, *late, *passed_by, *overlapped;
    ek_hist *answer_time, *exchange_time, *hidden_time;
    /* Counted by members' threads. */
    ek_counter *moves_started, *moves_done, *moves_failed, *moved_bytes;
    ek_hist *move_time;
};

#endif
