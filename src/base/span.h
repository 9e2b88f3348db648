/*
 * Spans: borrowed, read-only bytes and text with a length.
 *
 * A span never owns memory; the comment beside a field of this type says who does and until when.
 * Text is counted and need not be NUL-terminated, so text from a mapped file or a request body is
 * used in place.
 */
#ifndef EK_BASE_SPAN_H
#define EK_BASE_SPAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

typedef struct ek_span {
    const uint8_t *data; /* borrowed */
    size_t len;          /* bytes */
} ek_span;

typedef struct ek_str {
    const char *data; /* borrowed */
    size_t len;       /* bytes, without any terminator */
} ek_str;

/** For printf("%.*s", EK_STR_ARG(s)); lengths over INT_MAX are cut. */
#define EK_STR_ARG(s) ((s).len > 0x7fffffff ? 0x7fffffff : (int)(s).len), ((s).len ? (s).data : "")

/** A string literal as a span. */
#ifdef __cplusplus
#define EK_STR(literal) (ek_str{(literal), sizeof(literal) - 1})
#else
#define EK_STR(literal) ((ek_str){(literal), sizeof(literal) - 1})
#endif

static inline ek_str ek_str_from(const char *z)
{
    ek_str s = {z, z ? strlen(z) : 0};
    return s;
}

static inline bool ek_str_eq(ek_str a, ek_str b)
{
    return a.len == b.len && (a.len == 0 || memcmp(a.data, b.data, a.len) == 0);
}

static inline bool ek_str_eqz(ek_str a, const char *z)
{
    return ek_str_eq(a, ek_str_from(z));
}

static inline bool ek_str_starts(ek_str s, ek_str prefix)
{
    return s.len >= prefix.len && (prefix.len == 0 || memcmp(s.data, prefix.data, prefix.len) == 0);
}

/** Offset of the first occurrence of needle (not empty) in s, or -1. */
static inline ptrdiff_t ek_str_find(ek_str s, ek_str needle)
{
    for (size_t i = 0; needle.len > 0 && i + needle.len <= s.len; i++)
        if (s.data[i] == needle.data[0] && memcmp(s.data + i, needle.data, needle.len) == 0)
            return (ptrdiff_t)i;
    return -1;
}

static inline bool ek_str_contains(ek_str s, ek_str needle)
{
    return ek_str_find(s, needle) >= 0;
}

#endif
