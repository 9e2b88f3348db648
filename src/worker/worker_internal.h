/*
 * A worker's own state, for the files that implement worker.h.
 *
 * `seats` and `fronts` change under the lock. What a connection's thread works with, its link and
 * its front's desk, is its own; others reach a link only to interrupt it, under the lock.
 */
#ifndef EK_WORKER_WORKER_INTERNAL_H
#define EK_WORKER_WORKER_INTERNAL_H

#include <stdatomic.h>

#include "expert/identity.h"
#include "link/fabric.h"
#include "worker/moves.h"
#include "worker/worker.h"

/* Two for each front, and as many for those who are only on their way in. */
#define EK_WORKER_SEATS (4 * EK_WORKER_FRONTS_MAX)

typedef enum ek_seat_state {
    EK_SEAT_FREE,
    EK_SEAT_TAKEN,
    EK_SEAT_LEFT, /* its thread has ended or is about to: to be joined */
} ek_seat_state;

/** A connection and its thread. */
typedef struct ek_worker_seat {
    ek_worker *worker; /* borrowed */
    ek_sys_thread thread;
    ek_seat_state state; /* under the lock */
    ek_link *link;       /* owned by the thread; NULL once it is closed. Changes under the lock */
    bool is_control;     /* came through the listener for both kinds of links */
} ek_worker_seat;

/** A front that was let in. */
typedef struct ek_worker_front {
    bool is_used; /* under the lock, as all but desk */
    bool is_attached;
    uint32_t epoch;
    uint8_t token[EK_WIRE_TOKEN_BYTES];
    char name[EK_FABRIC_PEER_TEXT_MAX];
    ek_link *data;         /* of the seat that serves it; NULL: none */
    ek_resident_desk desk; /* of the data connection's thread, while one is attached */
    uint64_t n_dispatches; /* under the lock */
    /* Of what moves (worker/moves.h). */
    bool takes_moves;      /* it said that it takes HAVE */
    uint64_t told, heeded; /* changes of what is offered that it was told of, and goes by */
    uint64_t outcome_told;
} ek_worker_front;

struct ek_worker {
    ek_worker_params params;
    ek_resident *resident; /* borrowed */
    uint8_t identity[EK_IDENTITY_BYTES];
    ek_wire_shape shape; /* its tokens_max is what a front may ask for at most */
    ek_fabric *tls;      /* owned, like all below */
    ek_fabric *tcp;      /* NULL: no bare links */
    ek_fabric *ucx;      /* NULL: no links over UCX */
    ek_listener *listener;
    ek_listener *plain;
    char address[EK_FABRIC_PEER_TEXT_MAX];
    ek_sys_thread doors[2];

    ek_sys_mutex lock;
    ek_sys_cond left; /* a data connection ended, or a front */
    ek_worker_seat seats[EK_WORKER_SEATS];
    ek_worker_front fronts[EK_WORKER_FRONTS_MAX];
    uint32_t next_epoch; /* under the lock */
    uint8_t *welcome;    /* (welcome_bytes) body of WELCOME but for its token and what moves */
    size_t welcome_bytes;
    ek_worker_moves moves;
    _Atomic bool draining;
    _Atomic bool leaving;  /* say good-bye and end */
    _Atomic bool stopping; /* end at once */
    _Atomic int64_t last_dispatch_us;
    _Atomic uint64_t n_joined; /* relaxed, as those below: for whoever looks */
    _Atomic uint64_t n_layers;
    _Atomic uint64_t n_rows;
    _Atomic uint64_t n_refused[EK_WORKER_REFUSALS];
};

/** Run a control connection that began with this HELLO, to its end. */
void ek_worker_control(ek_worker_seat *seat, const ek_wire_header *hello, const void *body);
/** Run a data connection that began with this ATTACH, to its end. */
void ek_worker_data(ek_worker_seat *seat, const ek_wire_header *attach, const void *body);

/** A connection that has a link already gets a thread, which owns it. */
void ek_worker_seat_take(ek_worker *worker, ek_link *link, bool is_control);

/** Count a connection that is turned away. */
static inline void ek_worker_turned_away(ek_worker *worker, ek_worker_refusal why)
{
    atomic_fetch_add_explicit(&worker->n_refused[why], 1, memory_order_relaxed);
}

/** Send a refusal, log and count it. */
void ek_worker_refuse(ek_worker_seat *seat, const char *why);

/** The load report's fields of a header. */
void ek_worker_load_report(const ek_worker *worker, ek_wire_header *header);

#endif
