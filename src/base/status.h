/*
 * Status codes: what a fallible function returns.
 *
 * 0 is success, a positive value is an answer that is not a failure (EK_AGAIN), a negative one is
 * an error. The range of an error says how much must be thrown away before work can go on:
 *
 *   -1..-99     the request  (others go on undisturbed)
 *   -100..-199  the session  (a connection, a model being opened, a command)
 *   -200..-299  the peer     (a worker or upstream is not to be used until it proves itself)
 *   -300..-399  the process  (no invariant can be trusted; report and leave)
 *
 * One table gives number, name and text, so that a log, a metric label and a test agree.
 */
#ifndef EK_BASE_STATUS_H
#define EK_BASE_STATUS_H

#define EK_STATUS_TABLE(X)                             \
    X(EK_OK, 0, "ok")                                  \
    X(EK_AGAIN, 1, "not now, try again")               \
    X(EK_END, 2, "end of the sequence")                \
    X(EK_EINVAL, -1, "invalid value")                  \
    X(EK_ENOMEM, -2, "memory budget exhausted")        \
    X(EK_ERANGE, -3, "value out of range")             \
    X(EK_EFULL, -4, "queue is full")                   \
    X(EK_ETIMEOUT, -5, "deadline passed")              \
    X(EK_ECANCELED, -6, "canceled")                    \
    X(EK_ECONTEXT, -7, "context length exceeded")      \
    X(EK_EDRAINING, -8, "draining, takes no new work") \
    X(EK_ENOTFOUND, -9, "not found")                   \
    X(EK_EUNSUPPORTED, -10, "not supported")           \
    X(EK_EEXIST, -11, "exists already")                \
    X(EK_EFORMAT, -100, "malformed data")              \
    X(EK_ETRUNCATED, -101, "data ends too early")      \
    X(EK_EIO, -102, "input/output error")              \
    X(EK_ECONFIG, -103, "invalid configuration")       \
    X(EK_EINUSE, -104, "address in use")               \
    X(EK_EACCESS, -105, "permission denied")           \
    X(EK_EPEER, -200, "peer failed")                   \
    X(EK_ESTALE, -201, "stale epoch")                  \
    X(EK_EINTERNAL, -300, "internal error")

typedef enum ek_status {
#define EK_STATUS_ENUM(name, value, text) name = (value),
    EK_STATUS_TABLE(EK_STATUS_ENUM)
#undef EK_STATUS_ENUM
} ek_status;

/** The constant's own name ("EK_EINVAL"); "EK_?" for a number outside the table. */
const char *ek_status_name(ek_status status);

/** A short English text for people; never NULL. */
const char *ek_status_text(ek_status status);

#endif
