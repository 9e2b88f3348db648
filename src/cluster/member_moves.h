/*
 * What moves between workers, as a front sees one of them: what it has acquired, what it is wanted
 * to have, and the order that is out (docs/CLUSTER.md, "Experts that move").
 *
 * Whoever decides says what is wanted, and the member's thread brings the worker there, layer by
 * layer, one order at a time; what fails is tried again after a pause that grows. What a worker
 * offers changes while its session lasts: the engine's thread takes the change over between layers,
 * when no dispatch to the worker is under way, and that is told to the worker, which gives nothing
 * up before.
 */
#ifndef EK_CLUSTER_MEMBER_MOVES_H
#define EK_CLUSTER_MEMBER_MOVES_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "link/expert_set.h"
#include "link/fabric.h"
#include "link/wire_moves.h"

struct ek_front;
struct ek_member;
struct ek_session;

/** A change's number with that of its session: another session's is no mistake, but nothing. */
static inline uint64_t ek_cluster_heed_of(uint32_t epoch, uint64_t generation)
{
    return (uint64_t)(epoch & 0xffffff) << 40 | (generation & ((UINT64_C(1) << 40) - 1));
}

/** What a worker offers from now on, on its way to the engine's thread, which frees it. */
typedef struct ek_member_change {
    uint32_t epoch;
    uint64_t generation;
    uint64_t bits[]; /* as in ek_expert_set */
} ek_member_change;

/** The order that is out. */
typedef struct ek_member_order {
    uint64_t id; /* 0: none */
    ek_wire_order wire;
    int64_t beg_us;
    ek_wire_outcome outcome; /* as far as it was told */
} ek_member_order;

/** All under front->lock, but for the atomics. */
typedef struct ek_member_moves {
    bool is_able; /* the worker of this session acquires experts */
    bool is_ours; /* this front decides what it has; else what is wanted is what it acquired */
    ek_expert_set acquired;  /* beyond what it was started with; its bits are owned */
    ek_expert_set wanted;    /* likewise what it shall have of such; owned */
    ek_expert_set releasing; /* of acquired; what nobody may count on; owned */
    int64_t room_bytes, used_bytes;
    ek_member_order order;
    uint64_t next_id;
    int64_t retry_us;               /* no order before */
    int64_t pause_us;               /* that the next failure costs */
    uint64_t n_failed;              /* orders */
    char why[EK_WIRE_TEXT_MAX + 1]; /* the last failure; empty after a success */

    _Atomic(ek_member_change *) change; /* for the engine's thread; newer ones replace it */
    _Atomic uint64_t heeded;            /* written by it: the change that it goes by, and of */
    uint64_t heed_sent;                 /* which session (heed_of). The member's thread's */
} ek_member_moves;

/** @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_cluster_member_moves_open(struct ek_member *member);
/** Accepts a zeroed one. */
void ek_cluster_member_moves_close(struct ek_member *member);

/* ---- the member's thread ---- */

/** Room for what a worker sends on a control link. */
size_t ek_cluster_member_moves_room(const struct ek_front *front);

/**
 * While it is joined: take the HAVE that follows WELCOME, if the worker said so.
 * @param body ek_cluster_member_moves_room bytes
 * @return EK_OK; EK_EFORMAT; EK_EPEER; EK_ETIMEOUT
 */
EK_MUST ek_status ek_cluster_member_moves_greet(struct ek_member *member, ek_link *control,
                                                struct ek_session *session, uint8_t *body,
                                                ek_err *err);
/** A session begins, with what greet took, or ends. */
void ek_cluster_member_moves_begin(struct ek_member *member, const struct ek_session *session);
void ek_cluster_member_moves_end(struct ek_member *member);

/** A HAVE or OUTCOME came. @return EK_OK; EK_EFORMAT; EK_ENOMEM */
EK_MUST ek_status ek_cluster_member_moves_take(struct ek_member *member,
                                               const struct ek_session *session,
                                               const ek_wire_header *header, const uint8_t *body,
                                               ek_err *err);
/** Send what is due: what was heeded, the next order. @return EK_OK; as ek_link_send */
EK_MUST ek_status ek_cluster_member_moves_send(struct ek_member *member,
                                               const struct ek_session *session, ek_link *control);

#endif
