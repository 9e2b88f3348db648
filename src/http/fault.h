/*
 * What went wrong with a request, as its client is told: HTTP status, and a JSON object with four
 * keys in OpenAI's shape.
 *
 * A fault is filled where the cause is known (head parser, field validation, engine) and turned
 * into a reply where the connection is. Its kind is a row of a table: the rows below are those that
 * HTTP itself gives rise to; who answers requests has a table of its own. Messages never contain
 * the request's body. Pure.
 */
#ifndef EK_HTTP_FAULT_H
#define EK_HTTP_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "http/buf.h"

typedef struct ek_fault_kind {
    int32_t status;
    const char *type;
    const char *code;
    int32_t retry_s; /* Retry-After; 0: none */
} ek_fault_kind;

/* Name, HTTP status, "type", "code", seconds of Retry-After (0: none). */
#define EK_HTTP_FAULT_TABLE(X)                                                 \
    X(malformed_request, 400, "invalid_request_error", "malformed_request", 0) \
    X(client_timeout, 408, "timeout_error", "client_timeout", 0)               \
    X(request_too_large, 413, "invalid_request_error", "request_too_large", 0) \
    X(expectation, 417, "invalid_request_error", "expectation_failed", 0)      \
    X(concurrency_limit, 429, "rate_limit_error", "concurrency_limit", 1)      \
    X(headers_too_large, 431, "invalid_request_error", "headers_too_large", 0) \
    X(internal, 500, "server_error", "internal_error", 0)                      \
    X(overloaded, 503, "server_error", "server_overloaded", 1)                 \
    X(version, 505, "invalid_request_error", "http_version_not_supported", 0)

#define EK_HTTP_FAULT_DECLARE(name, status, type, code, retry) \
    extern const ek_fault_kind ek_http_fault_##name;
EK_HTTP_FAULT_TABLE(EK_HTTP_FAULT_DECLARE)
#undef EK_HTTP_FAULT_DECLARE

#define EK_FAULT_PARAM_MAX   128
#define EK_FAULT_MESSAGE_MAX 384

typedef struct ek_fault {
    const ek_fault_kind *kind;      /* static */
    char param[EK_FAULT_PARAM_MAX]; /* "messages[0].role"; "": null in the answer */
    char message[EK_FAULT_MESSAGE_MAX];
} ek_fault;

/**
 * Fill a fault.
 * @param kind  a row of a table: static
 * @param param may be NULL; cut where it is too long
 * @param fmt   the sentence for the client; cut at EK_FAULT_MESSAGE_MAX - 1 bytes
 * @return false, so that a validator can write `return ek_http_fault_set(...)`
 */
bool ek_http_fault_set(ek_fault *fault, const ek_fault_kind *kind, const char *param,
                       const char *fmt, ...) EK_PRINTF(4, 5);

/** The error object with its four keys: {"error":{"message":..,"type":..,"param":..,"code":..}}. */
void ek_http_fault_json(const ek_fault *fault, ek_buf *out_json);

/** Reason phrase of an HTTP status ("Not Found"). */
const char *ek_http_reason(int32_t status);

#endif
