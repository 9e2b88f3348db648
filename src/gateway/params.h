/*
 * What a configuration may say about the gateway.
 */
#ifndef EK_GATEWAY_PARAMS_H
#define EK_GATEWAY_PARAMS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef struct ek_gateway_params {
    const char *listen; /* "127.0.0.1:8080", "[::1]:8080", ":0"; borrowed for the gateway's life */
    const char *health_listen;  /* own daemon for health and metrics; NULL or "": none */
    const char *admin_key_file; /* who has one of its keys may administer; NULL: none. cli's */
    const char *model_id;       /* name in /v1/models and in answers; borrowed */
    int32_t connections_max;
    int32_t connections_per_ip_max; /* 0: no limit */
    int32_t workers;                /* threads that parse bodies and tokenize, 1..64 */
    size_t body_bytes_max;
    size_t header_bytes_max; /* per connection, 4 KiB.. */
    int32_t json_depth_max;
    int32_t messages_max;
    int32_t choices_max; /* n */
    /* When a request names none: at most this, and what the context leaves. */
    int32_t max_tokens_default;
    int64_t header_timeout_us; /* request line and headers complete after accept / previous reply */
    int64_t body_timeout_us;
    int64_t idle_timeout_us;    /* keep-alive */
    int64_t ping_us;            /* SSE comment while no token comes */
    int64_t request_timeout_us; /* whole request; 0: none */
    int64_t drain_settle_us;    /* readiness is 503, requests are still taken */
    int64_t drain_timeout_us;   /* then streams may finish for this long */
    bool strict;                /* unknown request fields are errors */
    bool web_page;              /* GET / gives the chat page */
} ek_gateway_params;

#endif
