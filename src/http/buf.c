#include "http/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "sys/mem.h"

#define FIRST_BYTES 256
#define FORMAT_MAX  256

void ek_http_buf_fini(ek_buf *buf)
{
    ek_sys_free(buf->data);
    *buf = (ek_buf){0};
}

void ek_http_buf_clear(ek_buf *buf)
{
    buf->len = 0;
    buf->failed = false;
}

bool ek_http_buf_reserve(ek_buf *buf, size_t n)
{
    if (buf->failed) return false;
    size_t need;
    if (!ek_size_add(buf->len, n, &need)) goto fail;
    if (need <= buf->cap) return true;
    size_t cap = buf->cap ? buf->cap : FIRST_BYTES;
    while (cap < need)
        if (!ek_size_mul(cap, 2, &cap)) goto fail;
    char *data = ek_sys_realloc(buf->data, cap);
    if (!data) goto fail;
    buf->data = data;
    buf->cap = cap;
    return true;
fail:
    buf->failed = true;
    return false;
}

void ek_http_buf_add(ek_buf *buf, ek_str bytes)
{
    if (bytes.len == 0 || !ek_http_buf_reserve(buf, bytes.len)) return;
    memcpy(buf->data + buf->len, bytes.data, bytes.len);
    buf->len += bytes.len;
}

void ek_http_buf_addz(ek_buf *buf, const char *text)
{
    ek_http_buf_add(buf, ek_str_from(text));
}

void ek_http_buf_addf(ek_buf *buf, const char *fmt, ...)
{
    char text[FORMAT_MAX];
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(text, sizeof text, fmt, args);
    va_end(args);
    if (n < 0 || (size_t)n >= sizeof text) {
        buf->failed = true;
        return;
    }
    ek_http_buf_add(buf, (ek_str){text, (size_t)n});
}

void ek_http_buf_consume(ek_buf *buf, size_t n)
{
    ek_assert(n <= buf->len);
    buf->len -= n;
    if (buf->len) memmove(buf->data, buf->data + n, buf->len);
}

ek_str ek_http_buf_take(ek_buf *buf)
{
    ek_str text = ek_http_buf_str(buf);
    *buf = (ek_buf){0};
    return text;
}
