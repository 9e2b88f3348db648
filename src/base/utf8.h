/*
 * Well-formed UTF-8, one character at a time.
 * Source: The Unicode Standard 15.0, section 3.9, table 3-7. Pure.
 */
#ifndef EK_BASE_UTF8_H
#define EK_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>

#include "base/span.h"

/**
 * Bytes of the character at the start of text, 1..4; 0 when there is none that is whole and
 * well-formed.
 */
static inline size_t ek_utf8_char_len(ek_str text)
{
    if (text.len == 0) return 0;
    const unsigned char *s = (const unsigned char *)text.data;
    if (s[0] < 0x80) return 1;
    size_t len = s[0] >= 0xf0 ? 4 : s[0] >= 0xe0 ? 3 : 2;
    if (s[0] < 0xc2 || s[0] > 0xf4 || text.len < len) return 0;
    /* Overlong forms, surrogates and what lies beyond U+10FFFF show in the second byte. */
    unsigned char low = s[0] == 0xe0 ? 0xa0 : s[0] == 0xf0 ? 0x90 : 0x80;
    unsigned char high = s[0] == 0xed ? 0x9f : s[0] == 0xf4 ? 0x8f : 0xbf;
    if (s[1] < low || s[1] > high) return 0;
    for (size_t i = 2; i < len; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return len;
}

#endif
