/*
 * What can be wrong with a request of this API, beyond HTTP itself (http/fault.h has those rows).
 * docs/API.md lists both. Constants.
 */
#ifndef EK_GATEWAY_FAULTS_H
#define EK_GATEWAY_FAULTS_H

#include "http/fault.h"

/* Name, HTTP status, "type", "code", seconds of Retry-After (0: none). */
#define EK_GATEWAY_FAULT_TABLE(X)                                                       \
    X(invalid_json, 400, "invalid_request_error", "invalid_json", 0)                    \
    X(missing_parameter, 400, "invalid_request_error", "missing_required_parameter", 0) \
    X(invalid_type, 400, "invalid_request_error", "invalid_type", 0)                    \
    X(invalid_value, 400, "invalid_request_error", "invalid_value", 0)                  \
    X(unknown_parameter, 400, "invalid_request_error", "unknown_parameter", 0)          \
    X(unsupported_value, 400, "invalid_request_error", "unsupported_value", 0)          \
    X(context_length, 400, "invalid_request_error", "context_length_exceeded", 0)       \
    X(missing_api_key, 401, "authentication_error", "missing_api_key", 0)               \
    X(invalid_api_key, 401, "authentication_error", "invalid_api_key", 0)               \
    X(ip_not_allowed, 403, "permission_error", "ip_not_allowed", 0)                     \
    X(model_not_found, 404, "invalid_request_error", "model_not_found", 0)              \
    X(not_found, 404, "invalid_request_error", "not_found", 0)                          \
    X(method_not_allowed, 405, "invalid_request_error", "method_not_allowed", 0)        \
    X(media_type, 415, "invalid_request_error", "unsupported_media_type", 0)            \
    X(queue_full, 429, "rate_limit_error", "queue_full", 1)                             \
    X(model_loading, 503, "server_error", "model_loading", 5)                           \
    X(draining, 503, "server_error", "draining", 5)                                     \
    X(no_backend, 503, "server_error", "no_available_backend", 2)                       \
    X(queue_timeout, 503, "server_error", "queue_timeout", 2)                           \
    X(request_timeout, 504, "server_error", "request_timeout", 0)

#define EK_GATEWAY_FAULT_DECLARE(name, status, type, code, retry) \
    extern const ek_fault_kind ek_gateway_fault_##name;
EK_GATEWAY_FAULT_TABLE(EK_GATEWAY_FAULT_DECLARE)
#undef EK_GATEWAY_FAULT_DECLARE

#endif
