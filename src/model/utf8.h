/*
 * Well-formed UTF-8, one character at a time (Unicode 15.0, table 3-7): no overlong forms, no
 * surrogates, nothing above U+10FFFF. Text of users and files may hold anything; whatever is not a
 * character is bytes.
 */
#ifndef EK_MODEL_UTF8_H
#define EK_MODEL_UTF8_H

#include <stddef.h>
#include <stdint.h>

/**
 * The character that starts at s.
 * @param s       s < end
 * @param out_cp  code point; written only when the result is not 0
 * @return its length in bytes, 1 to 4; 0 where no well-formed character starts
 */
static inline size_t ek_model_utf8_decode(const char *s, const char *end, uint32_t *out_cp)
{
    const unsigned char *c = (const unsigned char *)s;
    size_t room = (size_t)(end - s);
    if (c[0] < 0x80) {
        *out_cp = c[0];
        return 1;
    }
    if (c[0] < 0xc2 || c[0] > 0xf4) return 0;
    size_t len = c[0] < 0xe0 ? 2 : c[0] < 0xf0 ? 3 : 4;
    if (room < len) return 0;
    uint32_t cp = c[0] & (0xffu >> (len + 1));
    for (size_t i = 1; i < len; i++) {
        if ((c[i] & 0xc0) != 0x80) return 0;
        cp = cp << 6 | (c[i] & 0x3f);
    }
    if (len == 3 && (cp < 0x800 || (cp >= 0xd800 && cp <= 0xdfff))) return 0;
    if (len == 4 && (cp < 0x10000 || cp > 0x10ffff)) return 0;
    *out_cp = cp;
    return len;
}

/** Write cp (a scalar value) as UTF-8 into out (room for 4); returns the length. */
static inline size_t ek_model_utf8_encode(uint32_t cp, char *out)
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

#endif
