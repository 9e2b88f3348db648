/*
 * The head of an HTTP/1.x request: request line and header fields, read strictly.
 *
 * Every head is checked here before libmicrohttpd sees a byte of it, because that library accepts
 * what lets one request hide in another: Content-Length beside Transfer-Encoding, two lengths, bare
 * line feeds, folded lines, NUL. What passes has exactly one reading. Source: RFC 9112; stricter
 * where it leaves a choice (a repeated Content-Length is refused even when both agree). Pure, and
 * fuzzed.
 */
#ifndef EK_HTTP_HEAD_H
#define EK_HTTP_HEAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/span.h"
#include "base/status.h"
#include "http/fault.h"

#define EK_HEAD_FIELDS_MAX 100

typedef struct ek_head {
    /* All of it: from the first byte (a leading empty line too) to the empty line's end. */
    size_t bytes;
    ek_str method;         /* spans borrow from the parsed text */
    ek_str path;           /* raw: still percent-encoded, without query */
    ek_str query;          /* raw, without '?' */
    ek_str fields;         /* the field lines, for ek_http_head_field */
    int32_t version_minor; /* of HTTP/1.x: 0 or 1 */
    bool keep_alive;
    bool chunked;
    bool expects_continue;
    uint64_t content_length; /* 0 when there is none */
} ek_head;

/**
 * Find the end of a head that arrives piece by piece.
 * @param text     everything received so far
 * @param scanned  in: how much of it was looked at before; out: all of it. Starts at 0
 * @return EK_OK complete: parse *out_bytes bytes; EK_AGAIN more must come;
 *         EK_EFORMAT it can never become a head (NUL, or a line feed or carriage return alone)
 */
EK_MUST ek_status ek_http_head_find_end(ek_str text, size_t *scanned, size_t *out_bytes);

/**
 * Parse a complete head.
 * @param text as found by find_end
 * @return EK_OK; EK_EFORMAT (the fault says what to answer)
 */
EK_MUST ek_status ek_http_head_parse(ek_str text, ek_head *out_head, ek_fault *fault);

/**
 * Value of the first field with that name (any case), without surrounding blanks. @return false:
 * none
 */
bool ek_http_head_field(const ek_head *head, const char *name, ek_str *out_value);

/**
 * How many fields have that name.
 * @param out_value the first one's value; written when there is one
 */
int32_t ek_http_head_count(const ek_head *head, const char *name, ek_str *out_value);

/** True when a comma-separated list holds the token (any case). */
bool ek_http_head_has_token(ek_str list, const char *token);

/** Equality of ASCII text in any case. */
bool ek_http_head_same(ek_str text, const char *word);

#endif
