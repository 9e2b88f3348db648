/*
 * An exchange: one HTTP request from its checked head to the last byte of its answer.
 *
 *   READING    MHD's loop brings the body.
 *   WORKING    a worker has it (or it waits for one); the connection is suspended.
 *   WAITING    somebody will answer later and no byte of the answer is out; suspended.
 *   READY      the reply is complete; the loop is asked to send it.
 *   STREAMING  somebody fills the stream, the loop sends it, suspended in between.
 *   SENT       MHD has the reply and needs nothing more from here.
 *   ENDED      the connection has let go.
 *
 * Quick requests go READING -> READY -> SENT inside the loop. Whatever runs on another thread
 * leaves its result in the exchange and resumes the connection; the loop then asks advance what to
 * do. `gone` (the client left) cuts every path short: nothing more is computed or sent.
 *
 * Who answers (service.h) makes the exchange, as the first member of what it keeps about a request
 * itself. References: MHD's until the request completes, the worker's job, and those that the
 * answering side takes. `lock` guards what is marked; the rest belongs to whoever has the phase.
 * Never taken while the server's lock is held.
 */
#ifndef EK_HTTP_EXCHANGE_H
#define EK_HTTP_EXCHANGE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "http/buf.h"
#include "http/conn.h"
#include "http/fault.h"
#include "http/listen.h"
#include "http/request_id.h"
#include "http/traceparent.h"
#include "sys/thread.h"

struct ek_http_service;

typedef enum ek_exchange_phase {
    EK_EXCHANGE_READING,
    EK_EXCHANGE_WORKING,
    EK_EXCHANGE_WAITING,
    EK_EXCHANGE_READY,
    EK_EXCHANGE_STREAMING,
    EK_EXCHANGE_SENT,
    EK_EXCHANGE_ENDED,
} ek_exchange_phase;

/** What happens once the request is complete. */
typedef enum ek_exchange_plan {
    EK_EXCHANGE_REPLY,     /* the reply is filled already */
    EK_EXCHANGE_ON_LOOP,   /* the service runs it at once: only what never waits */
    EK_EXCHANGE_ON_WORKER, /* the service runs it on a worker */
} ek_exchange_plan;

/* A writer of a stream should stop above the first mark; below the second there is room again. */
#define EK_STREAM_HIGH_BYTES 65536
#define EK_STREAM_LOW_BYTES  16384

/** A header field of a reply; static texts. */
typedef struct ek_reply_field {
    const char *name;
    const char *value;
} ek_reply_field;

typedef struct ek_reply {
    int32_t status;
    const char *code;          /* static; of a fault, for the log */
    const char *content_type;  /* static */
    const char *cache_control; /* static; NULL: "no-store" */
    ek_buf body;
    ek_str fixed;                /* static data instead of body */
    const ek_reply_field *field; /* static, (n_fields): further ones */
    int32_t n_fields;
    const char *allow; /* static; for 405 */
    int32_t retry_s;   /* Retry-After; 0: none */
    bool no_retry;     /* x-should-retry: false */
} ek_reply;

typedef struct ek_exchange {
    _Atomic int32_t refs;
    const struct ek_http_service *service; /* borrowed: outlives every exchange */
    char request_id[EK_REQUEST_ID_MAX + 1];
    char trace_id[EK_TRACE_ID_DIGITS + 1]; /* of the trace that it belongs to; "": none */
    char client[EK_IP_TEXT_MAX];           /* its address */
    char *head;                            /* owned: copies of what the next three are */
    ek_str path;                           /* raw */
    ek_str query;                          /* raw */
    ek_str accept;                         /* the header; empty: none */
    ek_exchange_plan plan;
    bool wants_body; /* false: body bytes are swallowed, the reply is known */
    int64_t start_us;
    ek_buf body;

    ek_sys_mutex lock;
    ek_exchange_phase phase;    /* lock */
    struct MHD_Connection *mhd; /* lock; NULL once ended */
    bool suspended;             /* lock */
    bool gone;                  /* lock */
    ek_reply reply;             /* of whoever has the phase, until READY; then the loop's */
    ek_buf stream;              /* lock; bytes that wait for the socket */
    bool stream_done;           /* lock; nothing will be added */
    int64_t stream_us;          /* lock; when something was last added */
    int64_t first_byte_us;      /* lock; 0: none yet */
} ek_exchange;

/** What the loop does next. */
typedef enum ek_exchange_step {
    EK_EXCHANGE_STEP_WAIT,   /* suspended, or more body must come */
    EK_EXCHANGE_STEP_REPLY,  /* send the reply */
    EK_EXCHANGE_STEP_STREAM, /* send the event stream */
    EK_EXCHANGE_STEP_CLOSE,  /* nobody is there any more */
} ek_exchange_step;

/**
 * A new exchange for a checked head; the caller holds the first reference.
 * @param ctx the server's, for the service
 * @return NULL: no memory
 */
ek_exchange *ek_http_exchange_begin(const struct ek_http_service *service, void *ctx,
                                    const ek_conn *conn, struct MHD_Connection *mhd);
ek_exchange *ek_http_exchange_ref(ek_exchange *exchange);
void ek_http_exchange_unref(ek_exchange *exchange);

/* ---- on the loop ---- */

/** Body bytes. @return false: more than the limit */
bool ek_http_exchange_body(ek_exchange *exchange, ek_str bytes);
/**
 * The request is complete, or the connection was resumed. @param hung_up the client has closed its
 * side
 */
ek_exchange_step ek_http_exchange_advance(ek_exchange *exchange, bool hung_up);
/**
 * Next bytes of the stream. @return n > 0; 0 suspended; -1 the end, of the stream or of interest
 */
int64_t ek_http_exchange_stream(ek_exchange *exchange, char *out_bytes, size_t max);
/**
 * MHD lets go; drops its reference.
 * @param complete the whole answer was sent
 * @param answered the door has answered, and counted, it instead
 */
void ek_http_exchange_end(ek_exchange *exchange, bool complete, bool answered);

/* ---- any thread ---- */

/** The client is gone: nothing more is computed for it. */
void ek_http_exchange_abort(ek_exchange *exchange);

/** Microseconds from the head until now. */
int64_t ek_http_exchange_age_us(const ek_exchange *exchange);

/* ---- for whoever answers ---- */

void ek_http_exchange_fault(ek_exchange *exchange, const ek_fault *fault);
/** 200 with reply.body as JSON; a body that ran out of memory becomes a 500. */
void ek_http_exchange_json(ek_exchange *exchange);

/** The reply is there: wake the loop. */
void ek_http_exchange_ready_locked(ek_exchange *exchange);

/** From WAITING on, the answer is a stream. Any number of times. */
void ek_http_exchange_stream_locked(ek_exchange *exchange);
/** Bytes were added to the stream, or it is done: the loop sends them. */
void ek_http_exchange_flush_locked(ek_exchange *exchange, int64_t now_us);

#endif
