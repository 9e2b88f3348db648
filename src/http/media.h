/*
 * What a client would rather have: the Accept header against the types that there are. Pure, and
 * fuzzed.
 */
#ifndef EK_HTTP_MEDIA_H
#define EK_HTTP_MEDIA_H

#include <stdint.h>

#include "base/span.h"

/**
 * How much a client wants a media type. Source: RFC 9110, 12.5.1; the most specific range counts,
 * and of equally specific ones the greatest weight.
 * @param accept  an Accept header's value
 * @param type    "text/plain"; no parameters
 * @param version a range with a version parameter has to name this one; without one it counts too
 * @return 0 (not at all) to 1000
 */
int32_t ek_http_media_weight(ek_str accept, const char *type, const char *version);

#endif
