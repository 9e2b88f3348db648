/*
 * A growing byte buffer with a memory of failure.
 *
 * Whoever builds a JSON text or a frame appends piece by piece and looks once, at the end, whether
 * all of it fitted: after the first failure every further append does nothing. One owner at a time;
 * no thread safety.
 */
#ifndef EK_HTTP_BUF_H
#define EK_HTTP_BUF_H

#include <stdbool.h>
#include <stddef.h>

#include "base/attr.h"
#include "base/span.h"

typedef struct ek_buf {
    char *data; /* owned, ek_sys_free; NULL while empty */
    size_t len;
    size_t cap;
    bool failed; /* an append did not fit into memory */
} ek_buf;

/** Give the memory back; the buffer is empty and usable again. Accepts a zeroed one. */
void ek_http_buf_fini(ek_buf *buf);

/** Forget the content, keep the memory. */
void ek_http_buf_clear(ek_buf *buf);

/** Make room for n more bytes. @return false when there is no memory (and the buffer has failed) */
bool ek_http_buf_reserve(ek_buf *buf, size_t n);

void ek_http_buf_add(ek_buf *buf, ek_str bytes);
void ek_http_buf_addz(ek_buf *buf, const char *text);
/** printf for numbers and other short texts: what exceeds 255 bytes is a failure. */
void ek_http_buf_addf(ek_buf *buf, const char *fmt, ...) EK_PRINTF(2, 3);

/** Drop the first n bytes (n <= len). */
void ek_http_buf_consume(ek_buf *buf, size_t n);

/** Hand the memory to the caller (ek_sys_free) and leave the buffer empty. */
ek_str ek_http_buf_take(ek_buf *buf);

static inline ek_str ek_http_buf_str(const ek_buf *buf)
{
    return (ek_str){buf->data, buf->len};
}

#endif
