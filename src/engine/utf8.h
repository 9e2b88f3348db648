/*
 * Bytes in, valid UTF-8 out: an incremental decoder that passes whole characters on and puts
 * U+FFFD in place of what is none.
 * Source: The Unicode Standard 3.9, table 3-7 and "U+FFFD substitution of maximal subparts": one
 * U+FFFD for each longest beginning of a character that does not go on as one. Pure.
 */
#ifndef EK_ENGINE_UTF8_H
#define EK_ENGINE_UTF8_H

#include <stdbool.h>
#include <stdint.h>

#include "base/span.h"

#define EK_UTF8_FEED_MAX \
    6 /* most bytes that one byte lets out: U+FFFD for a broken start, and one more */
#define EK_UTF8_FLUSH_MAX 3

typedef struct ek_utf8 {
    uint8_t start[3]; /* bytes of the unfinished character */
    uint8_t n_start;
    uint8_t n_needed;  /* bytes that it still wants */
    uint8_t low, high; /* range of its next byte */
} ek_utf8;             /* zeroed: nothing unfinished */

/**
 * @return bytes written to out, at most EK_UTF8_FEED_MAX; over a whole text at most three per
 *         byte fed
 */
int32_t ek_engine_utf8_feed(ek_utf8 *utf8, uint8_t byte, char *out);

/** End of the text: an unfinished character becomes U+FFFD. @return bytes written */
int32_t ek_engine_utf8_flush(ek_utf8 *utf8, char *out);

#endif
