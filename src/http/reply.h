/*
 * From an exchange's reply to what MHD sends: headers that every answer has, bodies, event streams.
 * Runs on MHD's loop only.
 */
#ifndef EK_HTTP_REPLY_H
#define EK_HTTP_REPLY_H

#include <microhttpd.h>

#include "http/exchange.h"

/** Queue exchange->reply, whose body it takes. @param last the connection ends with it */
enum MHD_Result ek_http_reply_send(struct MHD_Connection *mhd, ek_exchange *exchange, bool last);

/** Queue the event stream that ek_http_exchange_stream feeds. */
enum MHD_Result ek_http_reply_stream(struct MHD_Connection *mhd, ek_exchange *exchange, bool last);

/**
 * MHD's hook for percent-decoding, which we do ourselves after routing: leaves the text as it is.
 */
size_t ek_http_reply_keep_escaped(void *cls, struct MHD_Connection *mhd, char *text);

#endif
