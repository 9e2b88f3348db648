/*
 * Bytes -> the head parser, percent-decoding, queries, durations, media types. A head that is found
 * piece by piece must be the one found at once; one that is taken has consistent framing and can be
 * looked into.
 */
#include <stdint.h>
#include <string.h>

#include "base/assert.h"
#include "http/head.h"
#include "http/json_out.h"
#include "http/media.h"
#include "http/traceparent.h"
#include "http/uri.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* The end must not depend on how the bytes were cut into packets. */
static ek_status find_in_pieces(ek_str text, size_t step, size_t *out_bytes)
{
    size_t scanned = 0;
    ek_status status = EK_AGAIN;
    for (size_t n = step; status == EK_AGAIN; n += step) {
        size_t so_far = n < text.len ? n : text.len;
        status = ek_http_head_find_end((ek_str){text.data, so_far}, &scanned, out_bytes);
        if (so_far == text.len) break;
    }
    return status;
}

static void check_head(const ek_head *head, ek_str text)
{
    ek_str value;
    ek_assert(head->bytes == text.len);
    ek_assert(head->version_minor == 0 || head->version_minor == 1);
    ek_assert(head->path.len > 0);
    ek_assert(!(head->chunked && head->content_length > 0));
    ek_assert(!head->chunked || head->version_minor == 1);
    bool has_coding = ek_http_head_field(head, "transfer-encoding", &value);
    ek_assert(has_coding == head->chunked);
    if (ek_http_head_field(head, "content-length", &value)) ek_assert(!has_coding);
    if (head->version_minor == 1) ek_assert(ek_http_head_field(head, "host", &value));
}

static void check_decoding(ek_str text)
{
    char out[256];
    size_t n = 0;
    if (ek_http_uri_decode(text, out, sizeof out, &n) == EK_OK) {
        ek_assert(n <= text.len && n <= sizeof out);
        ek_assert(n == 0 || memchr(out, '\0', n) == NULL || memchr(text.data, '\0', text.len));
    }
    int64_t us = -1;
    if (ek_http_uri_duration_us(text, &us) == EK_OK) ek_assert(us >= 0);
    ek_str value;
    if (ek_http_uri_query(text, "window", &value)) ek_assert(value.len <= text.len);
    char trace_id[EK_TRACE_ID_DIGITS + 1];
    if (ek_http_traceparent_parse(text, trace_id))
        ek_assert(strlen(trace_id) == EK_TRACE_ID_DIGITS && text.len >= 55);
    int32_t weight = ek_http_media_weight(text, "text/plain", "0.0.4");
    ek_assert(weight >= 0 && weight <= 1000);
    ek_buf json = {0};
    ek_http_json_string(&json, text);
    for (size_t i = 0; i < json.len; i++)
        ek_assert((unsigned char)json.data[i] >= 0x20 && json.data[i] != 0x7f);
    ek_http_buf_fini(&json);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ek_str text = {(const char *)data, size};
    size_t scanned = 0, n_head = 0, n_pieces = 0;
    check_decoding(text);
    ek_status status = ek_http_head_find_end(text, &scanned, &n_head);
    for (size_t step = 1; size > 0 && step <= 7; step += 3) {
        ek_assert(find_in_pieces(text, step, &n_pieces) == status);
        ek_assert(status != EK_OK || n_pieces == n_head);
    }
    /* Also what is no head at all has to be survived: the parser may be called on anything. */
    ek_head head;
    ek_fault fault = {0};
    ek_str whole = status == EK_OK ? (ek_str){text.data, n_head} : text;
    if (ek_http_head_parse(whole, &head, &fault) == EK_OK) {
        check_head(&head, whole);
    } else {
        ek_assert(fault.kind != NULL && fault.message[0] != '\0');
    }
    return 0;
}
