#include "engine/utf8.h"

#include <string.h>

#include "base/utf8.h"

static int32_t put_replacement(char *out)
{
    memcpy(out, "\xEF\xBF\xBD", 3);
    return 3;
}

static int32_t begin(ek_utf8 *utf8, uint8_t byte, char *out)
{
    if (byte < 0x80) {
        *out = (char)byte;
        return 1;
    }
    utf8->n_needed = ek_utf8_followers(byte, &utf8->low, &utf8->high);
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
