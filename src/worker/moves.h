/*
 * Experts that a worker gets and gives up while it serves: what it tells fronts of that, whose
 * orders it takes, and the thread that carries them out (docs/CLUSTER.md, "Experts that move").
 *
 * What a worker was started with it keeps. What it acquired beyond that it offers once it can be
 * computed, and gives up only when every front has heeded that it is offered no more. Orders come
 * from one front at a time: the first one that gives any, until it goes.
 */
#ifndef EK_WORKER_MOVES_H
#define EK_WORKER_MOVES_H

#include "link/expert_set.h"
#include "sys/thread.h"
#include "worker/acquire.h"
#include "worker/worker.h"

/** Under the worker's lock, but for setup, thread and progress. */
typedef struct ek_worker_moves {
    ek_acquire_setup setup;
    ek_acquire_line line;         /* the thread's */
    ek_sys_thread thread;         /* carries out orders; zeroed where there is no room for any */
    ek_acquire_progress progress; /* of the order under way */
    ek_sys_cond call;             /* an order came, a front heeded or went, or it ends */
    bool is_open;
    bool ends;
    ek_expert_set offered;  /* what fronts are told; its bits are owned */
    ek_expert_set acquired; /* beyond the start; likewise */
    uint64_t generation;    /* of the two: one higher with each change */
    int64_t used_bytes;     /* of acquired */
    uint32_t decider;       /* epoch of the front whose orders are taken; 0: nobody's yet */
    bool has_order;
    uint64_t order_id;
    ek_wire_order order;
    ek_wire_outcome outcome; /* of order_id; bytes are in progress */
    uint64_t outcome_number; /* one higher with each change */
    char why[EK_WIRE_TEXT_MAX];
} ek_worker_moves;

struct ek_worker_seat;
struct ek_worker_front;

/** @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_worker_moves_open(ek_worker *worker, ek_err *err);
/** Ends what is under way. Before the resident; accepts one that was not opened. */
void ek_worker_moves_close(ek_worker *worker);

/** The body of WELCOME for a front that has been let in: what is offered now. */
void ek_worker_moves_welcome(ek_worker *worker, struct ek_worker_front *front, uint8_t *out_body);

/** Send a front what it does not know yet. @return EK_OK; as ek_link_send; EK_ENOMEM */
EK_MUST ek_status ek_worker_moves_tell(struct ek_worker_seat *seat, struct ek_worker_front *front);

/** A HEED or ORDER came. @return EK_OK; EK_EFORMAT it is none; as ek_link_send */
EK_MUST ek_status ek_worker_moves_take(struct ek_worker_seat *seat, struct ek_worker_front *front,
                                       const ek_wire_header *header, const void *body, ek_err *err);

/** A front has gone, and with it what it had a say in. Under the worker's lock. */
void ek_worker_moves_left_locked(ek_worker *worker, uint32_t epoch);

/** Run another worker's connection that began with this READ, to its end. */
void ek_worker_moves_serve(struct ek_worker_seat *seat, const ek_wire_header *read,
                           const void *body);

#endif
