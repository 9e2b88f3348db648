/*
 * The target of a request, taken apart: percent-decoding, query parameters. Pure, and fuzzed.
 */
#ifndef EK_HTTP_URI_H
#define EK_HTTP_URI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/span.h"
#include "base/status.h"

/**
 * Decode %XX. A decoded NUL is refused, since names with one in them are never ours.
 * @param out_text receives at most `bytes` bytes, no terminator
 * @return EK_OK; EK_EFORMAT bad escape or NUL; EK_ERANGE does not fit
 */
EK_MUST ek_status ek_http_uri_decode(ek_str text, char *out_text, size_t bytes, size_t *out_len);

/**
 * Raw (still encoded) value of a query parameter. @return false when the query has none of that
 * name
 */
bool ek_http_uri_query(ek_str query, const char *name, ek_str *out_value);

/**
 * A duration of a query parameter: "500ms", "10s", "1m", or a plain number of seconds.
 * @return EK_OK; EK_EFORMAT; EK_ERANGE over 24 hours
 */
EK_MUST ek_status ek_http_uri_duration_us(ek_str text, int64_t *out_us);

#endif
