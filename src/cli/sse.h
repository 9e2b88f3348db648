/*
 * Server-sent events: bytes as they arrive from a socket -> the data of whole events.
 *
 * Pieces may end anywhere, also inside a character or between the two line ends that close an
 * event. Comments and fields other than data are skipped. One thread.
 */
#ifndef EK_CLI_SSE_H
#define EK_CLI_SSE_H

#include <stdbool.h>

#include "base/attr.h"
#include "base/span.h"
#include "base/status.h"
#include "cli/text.h"

#define EK_CLI_SSE_EVENT_MAX \
    ((size_t)4 << 20) /* bytes of one event; a longer one ends the stream */

/** @return false: enough, the rest of the stream is not wanted */
typedef bool (*ek_cli_sse_fn)(void *ctx, ek_str data);

typedef struct ek_cli_sse {
    ek_cli_text line;  /* begun and not ended yet */
    ek_cli_text event; /* data lines of the event so far */
    bool has_data;     /* the event has a data line, be it empty */
} ek_cli_sse;

/**
 * Take the next piece in.
 * @param on_event called for each event that the piece completes; the data is valid during the call
 * @return EK_OK; EK_END on_event said enough; EK_ERANGE an event is too long; EK_ENOMEM
 */
EK_MUST ek_status ek_cli_sse_feed(ek_cli_sse *sse, ek_str piece, ek_cli_sse_fn on_event, void *ctx);
void ek_cli_sse_free(ek_cli_sse *sse);

#endif
