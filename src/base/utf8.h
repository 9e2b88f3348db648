/*
 * Well-formed UTF-8: no overlong forms, no surrogates, nothing above U+10FFFF. Text of users and
 * files may hold anything; whatever is not a character is bytes.
 * Source: The Unicode Standard 15.0, section 3.9, table 3-7. Pure.
 */
#ifndef EK_BASE_UTF8_H
#define EK_BASE_UTF8_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/span.h"

/**
 * What may follow a byte from 0x80 on that begins a character.
 * @param out_low, out_high  the range of the second byte, where overlong forms, surrogates and what
 *                           lies beyond U+10FFFF show; all further ones are 0x80..0xbf
 * @return how many bytes follow, 1..3; 0: no character begins with it
 */
static inline uint8_t ek_utf8_followers(uint8_t first, uint8_t *out_low, uint8_t *out_high)
{
    *out_low = first == 0xe0 ? 0xa0 : first == 0xf0 ? 0x90 : 0x80;
    *out_high = first == 0xed ? 0x9f : first == 0xf4 ? 0x8f : 0xbf;
    if (first < 0xc2 || first > 0xf4) return 0;
    return first >= 0xf0 ? 3 : first >= 0xe0 ? 2 : 1;
}

/**
 * Bytes of the character at the start of text, 1..4; 0 when there is none that is whole and
 * well-formed.
 */
static inline size_t ek_utf8_char_len(ek_str text)
{
    if (text.len == 0) return 0;
    const uint8_t *s = (const uint8_t *)text.data;
    if (s[0] < 0x80) return 1;
    uint8_t low, high;
    size_t n = ek_utf8_followers(s[0], &low, &high);
    if (n == 0 || text.len <= n || s[1] < low || s[1] > high) return 0;
    for (size_t i = 2; i <= n; i++)
        if ((s[i] & 0xc0) != 0x80) return 0;
    return n + 1;
}

/**
 * The character at the start of text.
 * @param out_cp code point; written only when the result is not 0
 * @return its length, as ek_utf8_char_len
 */
static inline size_t ek_utf8_decode(ek_str text, uint32_t *out_cp)
{
    size_t len = ek_utf8_char_len(text);
    if (len == 0) return 0;
    const uint8_t *s = (const uint8_t *)text.data;
    uint32_t cp = len == 1 ? s[0] : s[0] & (0xffu >> (len + 1));
    for (size_t i = 1; i < len; i++)
        cp = cp << 6 | (s[i] & 0x3f);
    *out_cp = cp;
    return len;
}

/** Write cp (a scalar value) as UTF-8 into out (room for 4); returns the length. */
static inline size_t ek_utf8_encode(uint32_t cp, char *out)
{
    if (cp < 0x80) {
        out[0] = (char)cp;
        return 1;
    }
    size_t len = cp < 0x800 ? 2 : cp < 0x10000 ? 3 : 4;
    for (size_t i = len - 1; i > 0; i--) {
        out[i] = (char)(0x80 | (cp & 0x3f));
        cp >>= 6;
    }
    out[0] = (char)((0xf00u >> len & 0xff) | cp);
    return len;
}

/** Whether text is whole characters from its beginning to its end. */
static inline bool ek_utf8_valid(ek_str text)
{
    while (text.len > 0) {
        size_t len = ek_utf8_char_len(text);
        if (len == 0) return false;
        text = (ek_str){text.data + len, text.len - len};
    }
    return true;
}

#endif
