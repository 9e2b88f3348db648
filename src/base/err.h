/*
 * The explanation that goes with a status on cold paths: opening, parsing, configuring.
 *
 * The caller owns the ek_err (usually on its stack) and passes it as last parameter; NULL means "I
 * only want the status". The first failure writes it, later ones on the way up may prefix it with
 * their own place ("models/a.gguf: blk.3.attn_q.weight: ..."). The text is one line, bounded, and
 * always NUL-terminated; control characters from files or clients are replaced on the way in.
 */
#ifndef EK_BASE_ERR_H
#define EK_BASE_ERR_H

#include "base/attr.h"
#include "base/status.h"

#define EK_ERR_TEXT_MAX 512

typedef struct ek_err {
    ek_status status;
    char text[EK_ERR_TEXT_MAX];
} ek_err;

/**
 * Record a failure and return its status, so that a caller can write `return ek_err_set(err, ...)`.
 * @param err  may be NULL; overwritten otherwise
 * @param fmt  printf format; the result is cut at EK_ERR_TEXT_MAX - 1 bytes
 */
ek_status ek_err_set(ek_err *err, ek_status status, const char *fmt, ...) EK_PRINTF(3, 4);

/**
 * Put "<prefix>: " before the text that is already there; returns err's status (EK_OK for NULL).
 */
ek_status ek_err_prefix(ek_err *err, const char *fmt, ...) EK_PRINTF(2, 3);

#endif
