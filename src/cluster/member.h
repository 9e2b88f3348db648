/*
 * A member: one worker as a front sees it, and the thread that keeps in touch with it.
 *
 * The thread joins the worker (control link, greeting, data link), publishes the *session* that
 * came of it, exchanges heartbeats until either side ends, and begins anew. A session goes from the
 * thread to the engine's through `incoming`: whoever exchanges it out owns it, and the engine's
 * thread, once it has one, is the only one that closes it. Until a newer one is published the
 * member's thread may still say that it is over, and interrupt its link.
 */
#ifndef EK_CLUSTER_MEMBER_H
#define EK_CLUSTER_MEMBER_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "cluster/front.h"
#include "cluster/member_moves.h"
#include "cluster/probe.h"
#include "expert/identity.h"
#include "link/expert_set.h"
#include "link/fabric.h"
#include "sys/thread.h"
#include "telemetry/metrics.h"

/** From WELCOME to the end. Fields are constant once it is published, but for set and atomics. */
typedef struct ek_session {
    ek_link *data; /* owned by whoever owns the session */
    const char *fabric;
    uint32_t epoch;
    uint64_t busy_us; /* of the worker when it began */
    int64_t began_us;
    bool is_return; /* the worker was joined before */
    /* What it offers: of the engine's thread once it has the session, and changed by it alone. */
    ek_expert_set set;
    uint64_t generation; /* of the set when the session began */
    int64_t weight_bytes;
    int32_t n_threads;
    uint16_t plain_port;
    uint16_t fabrics;        /* that meet by addresses, and what else the worker can */
    ek_link_quality quality; /* of the data link */
    _Atomic bool over;       /* the control link has ended: released by the member's thread */
    _Atomic bool broken;     /* the data link has: released by the engine's thread */
} ek_session;

typedef struct ek_member {
    struct ek_front *front; /* borrowed */
    char address[EK_CLUSTER_ADDRESS_MAX];
    int32_t idx;
    ek_sys_thread thread;

    _Atomic(ek_session *) incoming;
    ek_session *current; /* the engine thread's */

    /* Written by the member's thread, read by reports. */
    _Atomic bool joined;
    _Atomic bool draining; /* the worker says so */
    _Atomic uint32_t epoch;
    _Atomic int32_t n_threads;
    _Atomic int64_t n_experts;
    _Atomic int64_t weight_bytes;
    _Atomic int64_t heard_us;
    _Atomic int64_t round_trip_us;
    _Atomic uint64_t busy_us;
    _Atomic uint32_t queue;
    _Atomic uint64_t n_joined;
    _Atomic int64_t link_latency_us, link_bytes_per_s; /* of the last session; -1: not known */
    /* Written by the engine's thread. */
    _Atomic bool late;
    _Atomic uint64_t n_dispatches;
    _Atomic uint64_t bytes_sent, bytes_received;
    _Atomic uint64_t buffer_reserved, buffer_used; /* bytes; used: at most so far */
    /* Written by whoever administers. */
    _Atomic bool drained;

    /* Under front->lock. */
    char why[EK_CLUSTER_WHY_MAX];
    const char *fabric;
    ek_expert_set offered; /* of the last session; its bits are owned */
    ek_member_moves moves;

    ek_gauge *up;
    ek_gauge *buffer_reserved_bytes, *buffer_used_bytes;
    ek_counter *losses;
    ek_gauge *latency, *bandwidth;
} ek_member;

/** The thread's function. */
void ek_cluster_member_run(void *member);

/** Close a session's link and free it. Accepts NULL. */
void ek_cluster_session_free(ek_session *session);

static inline bool ek_cluster_session_is_up(const ek_session *session)
{
    return session && !atomic_load_explicit(&session->over, memory_order_acquire) &&
           !atomic_load_explicit(&session->broken, memory_order_relaxed);
}

#endif
