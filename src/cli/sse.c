#include "cli/sse.h"

#include <string.h>

/* A whole line, without its end. An empty one closes the event. */
static ek_status take_line(ek_cli_sse *sse, ek_str line, ek_cli_sse_fn on_event, void *ctx)
{
    if (line.len > 0 && line.data[line.len - 1] == '\r') line.len--;
    if (line.len == 0) {
        const bool go_on = !sse->has_data || on_event(ctx, ek_cli_text_str(&sse->event));
        ek_cli_text_clear(&sse->event);
        sse->has_data = false;
        return go_on ? EK_OK : EK_END;
    }
    if (!ek_str_starts(line, EK_STR("data:"))) return EK_OK;
    ek_str data = {line.data + 5, line.len - 5};
    if (data.len > 0 && data.data[0] == ' ') data = (ek_str){data.data + 1, data.len - 1};

    ek_status status = EK_OK;
    if (sse->has_data) status = ek_cli_text_append(&sse->event, EK_STR("\n"), EK_CLI_SSE_EVENT_MAX);
    if (status >= 0) status = ek_cli_text_append(&sse->event, data, EK_CLI_SSE_EVENT_MAX);
    sse->has_data = true;
    return status;
}

ek_status ek_cli_sse_feed(ek_cli_sse *sse, ek_str piece, ek_cli_sse_fn on_event, void *ctx)
{
    while (piece.len > 0) {
        const char *end = memchr(piece.data, '\n', piece.len);
        const size_t n = end ? (size_t)(end - piece.data) : piece.len;
        ek_status status =
            ek_cli_text_append(&sse->line, (ek_str){piece.data, n}, EK_CLI_SSE_EVENT_MAX);
        if (status < 0 || !end) return status;
        piece = (ek_str){piece.data + n + 1, piece.len - n - 1};
        status = take_line(sse, ek_cli_text_str(&sse->line), on_event, ctx);
        ek_cli_text_clear(&sse->line);
        if (status != EK_OK) return status;
    }
    return EK_OK;
}

void ek_cli_sse_free(ek_cli_sse *sse)
{
    ek_cli_text_free(&sse->line);
    ek_cli_text_free(&sse->event);
}
