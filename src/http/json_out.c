#include "http/json_out.h"

#include <inttypes.h>
#include <math.h>

#include "base/utf8.h"

/* Short escapes of the ASCII range; NULL: as it is, or \u00XX for the other control characters. */
static const char *short_escape(unsigned char c)
{
    switch (c) {
    case '"': return "\\\"";
    case '\\': return "\\\\";
    case '\n': return "\\n";
    case '\r': return "\\r";
    case '\t': return "\\t";
    case '\b': return "\\b";
    case '\f': return "\\f";
    default: return NULL;
    }
}

static bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

/* Characters that end a line somewhere, though JSON allows them raw. */
static const char *line_break_escape(ek_str c)
{
    if (c.len == 2 && memcmp(c.data, "\xc2\x85", 2) == 0) return "\\u0085";
    if (c.len == 3 && memcmp(c.data, "\xe2\x80\xa8", 3) == 0) return "\\u2028";
    if (c.len == 3 && memcmp(c.data, "\xe2\x80\xa9", 3) == 0) return "\\u2029";
    return NULL;
}

void ek_http_json_escape(ek_buf *buf, ek_str text)
{
    size_t i = 0;
    while (i < text.len) {
        size_t run = i;
        while (run < text.len && is_plain((unsigned char)text.data[run]))
            run++;
        ek_http_buf_add(buf, (ek_str){text.data + i, run - i});
        i = run;
        if (i == text.len) break;
        unsigned char c = (unsigned char)text.data[i];
        size_t n = ek_utf8_char_len((ek_str){text.data + i, text.len - i});
        const char *escape =
            n > 1 ? line_break_escape((ek_str){text.data + i, n}) : short_escape(c);
        if (n == 0) {
            ek_http_buf_addz(buf, "\\ufffd");
        } else if (escape) {
            ek_http_buf_addz(buf, escape);
        } else if (n == 1) {
            ek_http_buf_addf(buf, "\\u%04x", c);
        } else {
            ek_http_buf_add(buf, (ek_str){text.data + i, n});
        }
        i += n ? n : 1;
    }
}

void ek_http_json_string(ek_buf *buf, ek_str text)
{
    ek_http_buf_addz(buf, "\"");
    ek_http_json_escape(buf, text);
    ek_http_buf_addz(buf, "\"");
}

void ek_http_json_int(ek_buf *buf, int64_t value)
{
    ek_http_buf_addf(buf, "%" PRId64, value);
}

void ek_http_json_number(ek_buf *buf, double value)
{
    ek_http_buf_addf(buf, "%.6g", isfinite(value) ? value : 0.0);
}

static void add_name(ek_buf *buf, const char *name)
{
    ek_http_buf_addf(buf, ",\"%s\":", name);
}

void ek_http_json_add_int(ek_buf *buf, const char *name, int64_t value)
{
    add_name(buf, name);
    ek_http_json_int(buf, value);
}

void ek_http_json_add_number(ek_buf *buf, const char *name, double value)
{
    add_name(buf, name);
    ek_http_json_number(buf, value);
}

void ek_http_json_add_string(ek_buf *buf, const char *name, const char *value)
{
    add_name(buf, name);
    ek_http_json_string(buf, ek_str_from(value));
}

void ek_http_json_add_matrix(ek_buf *buf, const char *name, const int64_t *cells, int32_t n_rows,
                             int32_t n_columns, int64_t unit)
{
    add_name(buf, name);
    ek_http_buf_addz(buf, "[");
    for (int32_t row = 0; row < n_rows; row++) {
        ek_http_buf_addz(buf, row ? ",[" : "[");
        for (int32_t column = 0; column < n_columns; column++) {
            if (column) ek_http_buf_addz(buf, ",");
            ek_http_json_int(buf, cells[(int64_t)row * n_columns + column] / unit);
        }
        ek_http_buf_addz(buf, "]");
    }
    ek_http_buf_addz(buf, "]");
}
