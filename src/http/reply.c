#include "http/reply.h"

#include <inttypes.h>
#include <stdio.h>

#include "http/service.h"
#include "sys/mem.h"

/* How many bytes of a stream MHD asks for at once, at most; its own buffer is smaller. */
#define STREAM_BLOCK 32768

static void add_header(struct MHD_Response *response, const char *name, const char *value)
{
    /* Fails only without memory; the answer is still right without one of these. */
    (void)MHD_add_response_header(response, name, value);
}

static void add_number(struct MHD_Response *response, const char *name, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    add_header(response, name, text);
}

static void add_common(struct MHD_Response *response, const ek_exchange *exchange, bool last)
{
    add_header(response, "x-request-id", exchange->request_id);
    const char *age_field = exchange->service->age_field;
    if (age_field) add_number(response, age_field, exchange->first_byte_us / 1000);
    add_header(response, "X-Content-Type-Options", "nosniff");
    if (last) add_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
}

static struct MHD_Response *make_response(ek_exchange *exchange)
{
    ek_reply *reply = &exchange->reply;
    if (reply->fixed.data)
        return MHD_create_response_from_buffer(reply->fixed.len, (void *)reply->fixed.data,
                                               MHD_RESPMEM_PERSISTENT);
    ek_str body = ek_http_buf_take(&reply->body);
    struct MHD_Response *response = MHD_create_response_from_buffer_with_free_callback(
        body.len, (void *)body.data, ek_sys_free);
    if (!response) ek_sys_free((void *)body.data);
    return response;
}

enum MHD_Result ek_http_reply_send(struct MHD_Connection *mhd, ek_exchange *exchange, bool last)
{
    const ek_reply *reply = &exchange->reply;
    struct MHD_Response *response = make_response(exchange);
    if (!response) return MHD_NO;
    add_common(response, exchange, last);
    add_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, reply->content_type);
    add_header(response, MHD_HTTP_HEADER_CACHE_CONTROL,
               reply->cache_control ? reply->cache_control : "no-store");
    for (int32_t i = 0; i < reply->n_fields; i++)
        add_header(response, reply->field[i].name, reply->field[i].value);
    if (reply->status == 405 && reply->allow)
        add_header(response, MHD_HTTP_HEADER_ALLOW, reply->allow);
    if (reply->retry_s > 0) {
        add_number(response, MHD_HTTP_HEADER_RETRY_AFTER, reply->retry_s);
        add_number(response, "retry-after-ms", (int64_t)reply->retry_s * 1000);
    }
    if (reply->no_retry) add_header(response, "x-should-retry", "false");
    enum MHD_Result result = MHD_queue_response(mhd, (unsigned)reply->status, response);
    MHD_destroy_response(response); /* our reference */
    return result;
}

/*
 * A stream whose client is gone ends like any other. To tell MHD of an error would leave the closed
 * connection where nothing cleans it up before its idle time is over.
 */
static ssize_t read_stream(void *cls, uint64_t pos EK_UNUSED, char *out_bytes, size_t max)
{
    int64_t n = ek_http_exchange_stream(cls, out_bytes, max);
    return n >= 0 ? (ssize_t)n : MHD_CONTENT_READER_END_OF_STREAM;
}

static void release_exchange(void *cls)
{
    ek_http_exchange_unref(cls);
}

enum MHD_Result ek_http_reply_stream(struct MHD_Connection *mhd, ek_exchange *exchange, bool last)
{
    struct MHD_Response *response =
        MHD_create_response_from_callback(MHD_SIZE_UNKNOWN, STREAM_BLOCK, read_stream,
                                          ek_http_exchange_ref(exchange), release_exchange);
    if (!response) {
        ek_http_exchange_unref(exchange);
        return MHD_NO;
    }
    add_common(response, exchange, last);
    add_header(response, MHD_HTTP_HEADER_CONTENT_TYPE, "text/event-stream; charset=utf-8");
    add_header(response, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache, no-transform");
    add_header(response, "X-Accel-Buffering", "no");
    enum MHD_Result result = MHD_queue_response(mhd, MHD_HTTP_OK, response);
    MHD_destroy_response(response);
    return result;
}

size_t ek_http_reply_keep_escaped(void *cls EK_UNUSED, struct MHD_Connection *mhd EK_UNUSED,
                                  char *text)
{
    return strlen(text);
}
