/*
 * From a call's reply to what MHD sends: headers that every answer has, JSON bodies, event streams.
 * Runs on MHD's loop only.
 */
#ifndef EK_GATEWAY_HTTP_REPLY_H
#define EK_GATEWAY_HTTP_REPLY_H

#include <microhttpd.h>

#include "gateway/call.h"

/** Queue call->reply, whose body it takes. @param last the connection ends with it */
enum MHD_Result ek_gateway_http_reply(struct MHD_Connection *mhd, ek_call *call, bool last);

/** Queue the event stream that ek_gateway_call_stream feeds. */
enum MHD_Result ek_gateway_http_stream(struct MHD_Connection *mhd, ek_call *call, bool last);

/**
 * MHD's hook for percent-decoding, which we do ourselves after routing: leaves the text as it is.
 */
size_t ek_gateway_http_keep_escaped(void *cls, struct MHD_Connection *mhd, char *text);

#endif
