/*
 * HTTP client of the commands that talk to a running server: one call at a time over a kept
 * connection.
 */
#ifndef EK_CLI_HTTP_H
#define EK_CLI_HTTP_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"
#include "cli/text.h"

#define EK_CLI_HTTP_BODY_MAX ((size_t)64 << 20) /* bytes of a collected answer */

typedef struct ek_cli_http ek_cli_http;

typedef struct ek_cli_http_call {
    const char *url;
    const char *body;   /* NULL: GET; else POST of this JSON */
    const char *bearer; /* key to show; NULL: none */
    int64_t timeout_us; /* of the whole call; 0: none */
    /**
     * Each piece of a 200 answer as it comes; false ends the call. NULL: the answer is collected.
     */
    bool (*on_bytes)(void *ctx, ek_str bytes);
    /** Asked several times a second; true ends the call. NULL: nothing can. */
    bool (*stop)(void *ctx);
    void *ctx;
} ek_cli_http_call;

typedef struct ek_cli_http_reply {
    long code;        /* HTTP status */
    ek_cli_text body; /* owned; what on_bytes did not take */
} ek_cli_http_reply;

/** @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_cli_http_open(ek_cli_http **out_http, ek_err *err);
/** Accepts NULL. */
void ek_cli_http_close(ek_cli_http *http);

/**
 * Make a call.
 * @param out_reply the caller frees its body; written only on EK_OK
 * @return EK_OK an answer came, whatever its code; EK_ECANCELED on_bytes or stop ended it; EK_EPEER
 *         no (whole) answer, the text says why; EK_ETIMEOUT; EK_EINVAL the URL is none; EK_ENOMEM;
 *         EK_ERANGE
 */
EK_MUST ek_status ek_cli_http_run(ek_cli_http *http, const ek_cli_http_call *call,
                                  ek_cli_http_reply *out_reply, ek_err *err);

/**
 * "http://host:8080/", "host:8080/v1" and the like + "/v1/models" -> one URL. @return EK_OK;
 * EK_EINVAL
 */
EK_MUST ek_status ek_cli_http_url(const char *base, const char *path, char *out_url, size_t bytes,
                                  ek_err *err);

/** $EVENKEEL_URL, or the address that serve listens on by default. */
const char *ek_cli_http_default_url(void);

#endif
