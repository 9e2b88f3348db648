/*
 * Which distributed trace a request belongs to: the traceparent header of W3C's Trace Context.
 * Source: www.w3.org/TR/trace-context-1 (Recommendation of 6 February 2020), 3.2. Pure, and fuzzed.
 */
#ifndef EK_HTTP_TRACEPARENT_H
#define EK_HTTP_TRACEPARENT_H

#include <stdbool.h>

#include "base/span.h"
#include "http/head.h"

#define EK_TRACE_ID_DIGITS 32

/**
 * Read the header's value, strictly: lower-case hex, no part of zeros only, exactly one length for
 * version 00; of a later version the parts that 00 has.
 * @param out_trace_id NUL-terminated; written only when true
 * @return false: malformed
 */
bool ek_http_traceparent_parse(ek_str value, char out_trace_id[EK_TRACE_ID_DIGITS + 1]);

/**
 * The id of a request's trace: the client's; a new one where its header is malformed, or there are
 * several (the trace restarts, as the standard asks); empty when it has none.
 */
void ek_http_traceparent_of(const ek_head *head, char out_trace_id[EK_TRACE_ID_DIGITS + 1]);

#endif
