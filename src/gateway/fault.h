/*
 * What went wrong with a request, as its client is told: one table of HTTP status, type and code.
 *
 * A fault is filled where the cause is known (head parser, field validation, engine) and turned
 * into a reply where the connection is. Messages never contain the request's body. Pure.
 */
#ifndef EK_GATEWAY_FAULT_H
#define EK_GATEWAY_FAULT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "gateway/buf.h"

/* Name, HTTP status, "type", "code", seconds of Retry-After (0: none). */
#define EK_FAULT_TABLE(X)                                                               \
    X(MALFORMED_REQUEST, 400, "invalid_request_error", "malformed_request", 0)          \
    X(INVALID_JSON, 400, "invalid_request_error", "invalid_json", 0)                    \
    X(MISSING_PARAMETER, 400, "invalid_request_error", "missing_required_parameter", 0) \
    X(INVALID_TYPE, 400, "invalid_request_error", "invalid_type", 0)                    \
    X(INVALID_VALUE, 400, "invalid_request_error", "invalid_value", 0)                  \
    X(UNKNOWN_PARAMETER, 400, "invalid_request_error", "unknown_parameter", 0)          \
    X(UNSUPPORTED_VALUE, 400, "invalid_request_error", "unsupported_value", 0)          \
    X(CONTEXT_LENGTH, 400, "invalid_request_error", "context_length_exceeded", 0)       \
    X(MODEL_NOT_FOUND, 404, "invalid_request_error", "model_not_found", 0)              \
    X(NOT_FOUND, 404, "invalid_request_error", "not_found", 0)                          \
    X(METHOD_NOT_ALLOWED, 405, "invalid_request_error", "method_not_allowed", 0)        \
    X(CLIENT_TIMEOUT, 408, "timeout_error", "client_timeout", 0)                        \
    X(REQUEST_TOO_LARGE, 413, "invalid_request_error", "request_too_large", 0)          \
    X(MEDIA_TYPE, 415, "invalid_request_error", "unsupported_media_type", 0)            \
    X(EXPECTATION, 417, "invalid_request_error", "expectation_failed", 0)               \
    X(QUEUE_FULL, 429, "rate_limit_error", "queue_full", 1)                             \
    X(CONCURRENCY_LIMIT, 429, "rate_limit_error", "concurrency_limit", 1)               \
    X(HEADERS_TOO_LARGE, 431, "invalid_request_error", "headers_too_large", 0)          \
    X(INTERNAL, 500, "server_error", "internal_error", 0)                               \
    X(MODEL_LOADING, 503, "server_error", "model_loading", 5)                           \
    X(DRAINING, 503, "server_error", "draining", 5)                                     \
    X(OVERLOADED, 503, "server_error", "server_overloaded", 1)                          \
    X(QUEUE_TIMEOUT, 503, "server_error", "queue_timeout", 2)                           \
    X(REQUEST_TIMEOUT, 504, "server_error", "request_timeout", 0)                       \
    X(HTTP_VERSION, 505, "invalid_request_error", "http_version_not_supported", 0)

typedef enum ek_fault_kind {
#define EK_FAULT_ENUM(name, status, type, code, retry) EK_FAULT_##name,
    EK_FAULT_TABLE(EK_FAULT_ENUM)
#undef EK_FAULT_ENUM
        EK_FAULT_COUNT
} ek_fault_kind;

#define EK_FAULT_PARAM_MAX   128
#define EK_FAULT_MESSAGE_MAX 384

typedef struct ek_fault {
    ek_fault_kind kind;
    char param[EK_FAULT_PARAM_MAX]; /* "messages[0].role"; "": null in the answer */
    char message[EK_FAULT_MESSAGE_MAX];
} ek_fault;

/**
 * Fill a fault.
 * @param param may be NULL; cut where it is too long
 * @param fmt   the sentence for the client; cut at EK_FAULT_MESSAGE_MAX - 1 bytes
 * @return false, so that a validator can write `return ek_gateway_fault_set(...)`
 */
bool ek_gateway_fault_set(ek_fault *fault, ek_fault_kind kind, const char *param, const char *fmt,
                          ...) EK_PRINTF(4, 5);

int32_t ek_gateway_fault_status(ek_fault_kind kind);
const char *ek_gateway_fault_code(ek_fault_kind kind);
int32_t ek_gateway_fault_retry_s(ek_fault_kind kind);

/** The error object with its four keys: {"error":{"message":..,"type":..,"param":..,"code":..}}. */
void ek_gateway_fault_json(const ek_fault *fault, ek_buf *out_json);

/** Reason phrase of an HTTP status ("Not Found"). */
const char *ek_gateway_http_reason(int32_t status);

#endif
