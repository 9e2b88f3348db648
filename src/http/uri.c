#include "http/uri.h"

static int hex_value(char c)
{
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

ek_status ek_http_uri_decode(ek_str text, char *out_text, size_t bytes, size_t *out_len)
{
    size_t n = 0;
    for (size_t i = 0; i < text.len; i++) {
        char c = text.data[i];
        if (c == '%') {
            if (text.len - i < 3) return EK_EFORMAT;
            int high = hex_value(text.data[i + 1]);
            int low = hex_value(text.data[i + 2]);
            if (high < 0 || low < 0 || high + low == 0) return EK_EFORMAT;
            c = (char)(high * 16 + low);
            i += 2;
        }
        if (n == bytes) return EK_ERANGE;
        out_text[n++] = c;
    }
    *out_len = n;
    return EK_OK;
}

bool ek_http_uri_query(ek_str query, const char *name, ek_str *out_value)
{
    size_t i = 0;
    while (i < query.len) {
        size_t end = i;
        while (end < query.len && query.data[end] != '&')
            end++;
        ek_str pair = {query.data + i, end - i};
        ptrdiff_t equals = ek_str_find(pair, EK_STR("="));
        ek_str key = {pair.data, equals < 0 ? pair.len : (size_t)equals};
        if (ek_str_eqz(key, name)) {
            size_t skip = equals < 0 ? pair.len : (size_t)equals + 1;
            *out_value = (ek_str){pair.data + skip, pair.len - skip};
            return true;
        }
        i = end + 1;
    }
    return false;
}

ek_status ek_http_uri_duration_us(ek_str text, int64_t *out_us)
{
    const int64_t max_s = 24 * 3600;
    int64_t value = 0;
    size_t n = 0;
    for (; n < text.len && text.data[n] >= '0' && text.data[n] <= '9'; n++) {
        value = value * 10 + (text.data[n] - '0');
        if (value > max_s * 1000) return EK_ERANGE;
    }
    if (n == 0) return EK_EFORMAT;
    ek_str unit = {text.data + n, text.len - n};
    int64_t scale_us = 0;
    if (ek_str_eqz(unit, "ms")) scale_us = 1000;
    if (ek_str_eqz(unit, "s") || unit.len == 0) scale_us = 1000000;
    if (ek_str_eqz(unit, "m")) scale_us = 60 * 1000000LL;
    if (scale_us == 0) return EK_EFORMAT;
    int64_t us = value * scale_us; /* at most 86.4e6 * 60e6, within int64 */
    if (us > max_s * 1000000) return EK_ERANGE;
    *out_us = us;
    return EK_OK;
}
