/*
 * Names of requests and answers: unique for all practical purposes, not secret.
 */
#ifndef EK_HTTP_REQUEST_ID_H
#define EK_HTTP_REQUEST_ID_H

#include <stdbool.h>
#include <stdint.h>

#include "base/span.h"
#include "http/head.h"

#define EK_REQUEST_ID_MAX 128 /* bytes of an id, a client's own included */

/**
 * 64 bits that differ from call to call and from thread to thread (ids; seeds where a request names
 * none).
 */
uint64_t ek_http_fresh_bits(void);

/** A new id: "req-" and 32 hex digits. */
void ek_http_request_id(char out_id[EK_REQUEST_ID_MAX + 1]);

/**
 * The id that a request names in x-request-id, if it is fit; else a new one. @param head NULL: none
 * yet
 */
void ek_http_request_id_of(const ek_head *head, char out_id[EK_REQUEST_ID_MAX + 1]);

/** True for an id that may be echoed and logged: 1..128 of A-Z a-z 0-9 . _ : - */
bool ek_http_request_id_ok(ek_str id);

#endif
