#include "engine/utf8.h"

#include <string.h>

static int32_t put_replacement(char *out)
{
    memcpy(out, "\xEF\xBF\xBD", 3);
    return 3;
}

/*
 * Table 3-7: how many bytes follow a first byte, and which second ones are allowed. 0 for no
 * first byte.
 */
static uint8_t followers(uint8_t first, uint8_t *out_low, uint8_t *out_high)
{
    *out_low = 0x80;
    *out_high = 0xBF;
    if (first < 0xC2 || first > 0xF4) return 0;
    if (first < 0xE0) return 1;
    switch (first) {
    case 0xE0: *out_low = 0xA0; break;  /* shorter forms exist */
    case 0xED: *out_high = 0x9F; break; /* surrogates */
    case 0xF0: *out_low = 0x90; break;  /* shorter forms exist */
    case 0xF4: *out_high = 0x8F; break; /* above U+10FFFF */
    default: break;
    }
    return first < 0xF0 ? 2 : 3;
}

static int32_t begin(ek_utf8 *utf8, uint8_t byte, char *out)
{
    if (byte < 0x80) {
        *out = (char)byte;
        return 1;
    }
    utf8->n_needed = followers(byte, &utf8->low, &utf8->high);
    if (utf8->n_needed == 0) return put_replacement(out);
    utf8->start[0] = byte;
    utf8->n_start = 1;
    return 0;
}

int32_t ek_engine_utf8_feed(ek_utf8 *utf8, uint8_t byte, char *out)
{
    if (utf8->n_start == 0) return begin(utf8, byte, out);
    if (byte < utf8->low || byte > utf8->high) {
        int32_t n = ek_engine_utf8_flush(utf8, out);
        return n + begin(utf8, byte, out + n);
    }
    if (--utf8->n_needed > 0) {
        utf8->start[utf8->n_start++] = byte;
        utf8->low = 0x80;
        utf8->high = 0xBF;
        return 0;
    }
    int32_t n = utf8->n_start;
    memcpy(out, utf8->start, (size_t)n);
    out[n] = (char)byte;
    utf8->n_start = 0;
    return n + 1;
}

int32_t ek_engine_utf8_flush(ek_utf8 *utf8, char *out)
{
    if (utf8->n_start == 0) return 0;
    utf8->n_start = 0;
    return put_replacement(out);
}

bool ek_engine_utf8_valid(ek_str text)
{
    uint8_t low = 0, high = 0, n_needed = 0;
    for (size_t i = 0; i < text.len; i++) {
        uint8_t byte = (uint8_t)text.data[i];
        if (n_needed > 0) {
            if (byte < low || byte > high) return false;
            n_needed--;
            low = 0x80;
            high = 0xBF;
        } else if (byte >= 0x80) {
            n_needed = followers(byte, &low, &high);
            if (n_needed == 0) return false;
        }
    }
    return n_needed == 0;
}
