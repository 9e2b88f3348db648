/*
 * A call: one HTTP request from its checked head to the last byte of its answer.
 *
 *   READING    MHD's loop brings the body.
 *   WORKING    a worker has it (or it waits for one); the connection is suspended.
 *   WAITING    the engine has it and no byte of the answer is out; suspended.
 *   READY      the reply is complete; the loop is asked to send it.
 *   STREAMING  frames come from the pump, the loop sends them, suspended in between.
 *   SENT       MHD has the reply and needs nothing more from here.
 *   ENDED      the connection has let go.
 *
 * Quick routes go READING -> READY -> SENT inside the loop. Whatever runs on another thread leaves
 * its result in the call and resumes the connection; the loop then asks advance what to do. `gone`
 * (the client left) cuts every path short: nothing more is computed or sent.
 *
 * References: MHD's until the request completes, the worker's job, the pump's list. `lock` guards
 * what is marked; the rest belongs to whoever has the phase. Never taken while the server's lock is
 * held.
 */
#ifndef EK_GATEWAY_CALL_H
#define EK_GATEWAY_CALL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "gateway/buf.h"
#include "gateway/conn.h"
#include "gateway/fault.h"
#include "gateway/generation.h"
#include "gateway/listen.h"
#include "gateway/request_id.h"
#include "sys/thread.h"

struct ek_gateway;
struct ek_route;

typedef enum ek_call_phase {
    EK_CALL_READING,
    EK_CALL_WORKING,
    EK_CALL_WAITING,
    EK_CALL_READY,
    EK_CALL_STREAMING,
    EK_CALL_SENT,
    EK_CALL_ENDED,
} ek_call_phase;

typedef struct ek_reply {
    int32_t status;
    const char *code;         /* static; of a fault, for the log */
    const char *content_type; /* static */
    ek_buf body;
    ek_str fixed;      /* static data instead of body (the page) */
    const char *allow; /* static; for 405 */
    int32_t retry_s;   /* Retry-After; 0: none */
    bool no_retry;     /* x-should-retry: false */
} ek_reply;

typedef struct ek_call {
    _Atomic int32_t refs;
    struct ek_gateway *gateway;   /* borrowed */
    const struct ek_route *route; /* static; NULL: the reply is a fault already */
    char request_id[EK_REQUEST_ID_MAX + 1];
    char client[EK_IP_TEXT_MAX]; /* its address */
    char *target; /* owned: copies of raw path and query, which the next three are parts of */
    ek_str path;
    ek_str tail; /* of path: what follows a route's prefix ("/v1/models/") */
    ek_str query;
    bool wants_body; /* false: body bytes are swallowed, the reply is known */
    bool counted;    /* among the gateway's open model calls */
    int64_t start_us;
    ek_buf body;

    ek_sys_mutex lock;
    ek_call_phase phase;        /* lock */
    struct MHD_Connection *mhd; /* lock; NULL once ended */
    bool suspended;             /* lock */
    bool gone;                  /* lock */
    ek_reply reply;             /* of whoever has the phase, until READY; then the loop's */
    ek_generation *generation;  /* lock; owned */
    int64_t first_byte_us;      /* lock; 0: none yet */

    /* The pump's: guarded by its own lock and thread. */
    struct ek_call *kick_next;
    bool kicked;
    struct ek_call *list_next;
    bool listed;
} ek_call;

/** What the loop does next. */
typedef enum ek_call_step {
    EK_CALL_STEP_WAIT,   /* suspended, or more body must come */
    EK_CALL_STEP_REPLY,  /* send call->reply */
    EK_CALL_STEP_STREAM, /* send the event stream */
    EK_CALL_STEP_CLOSE,  /* nobody is there any more */
} ek_call_step;

/**
 * A new call for a checked head; the caller holds the first reference. Faults that the head alone
 * shows (unknown path, wrong method, not JSON, draining, loading) are in its reply already. @return
 * NULL: no memory
 */
ek_call *ek_gateway_call_begin(struct ek_gateway *gateway, const ek_conn *conn, bool health_only,
                               struct MHD_Connection *mhd);
ek_call *ek_gateway_call_ref(ek_call *call);
void ek_gateway_call_unref(ek_call *call);

/* ---- on the loop ---- */

/** Body bytes. @return false: more than the limit */
bool ek_gateway_call_body(ek_call *call, ek_str bytes);
/**
 * The request is complete, or the connection was resumed. @param hung_up the client has closed its
 * side
 */
ek_call_step ek_gateway_call_advance(ek_call *call, bool hung_up);
/**
 * Next bytes of the stream. @return n > 0; 0 suspended; -1 the end, of the stream or of interest
 */
int64_t ek_gateway_call_stream(ek_call *call, char *out_bytes, size_t max);
/**
 * MHD lets go; drops its reference.
 * @param complete the whole answer was sent
 * @param answered the door has answered, and counted, it instead
 */
void ek_gateway_call_end(ek_call *call, bool complete, bool answered);

/* ---- any thread ---- */

/** The client is gone: cancel what it asked for. */
void ek_gateway_call_abort(ek_call *call);
/** End it with a fault, if it has not ended by itself. */
void ek_gateway_call_cut(ek_call *call, const ek_fault *fault);

/* ---- for handlers: filling the reply ---- */

void ek_gateway_call_fault(ek_call *call, const ek_fault *fault);
/** 200 with call->reply.body as JSON; a body that ran out of memory becomes a 500. */
void ek_gateway_call_json(ek_call *call);

/** The reply is there: wake the loop. */
void ek_gateway_call_ready_locked(ek_call *call);
void ek_gateway_call_resume_locked(ek_call *call);

/** Microseconds from the head until now. */
int64_t ek_gateway_call_age_us(const ek_call *call);

#endif
