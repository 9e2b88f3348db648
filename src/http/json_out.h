/*
 * Writing JSON: escaping and numbers, straight into a buffer.
 *
 * Answers and stream frames are written by hand in their fixed shapes; only strings and numbers
 * need care, and that is here. Whatever bytes come in, what goes out is valid UTF-8 on one line:
 * control characters are escaped, so are U+0085, U+2028 and U+2029 (some clients split lines at
 * them), and bytes that are not UTF-8 become U+FFFD. Pure but for the buffer's memory.
 */
#ifndef EK_HTTP_JSON_OUT_H
#define EK_HTTP_JSON_OUT_H

#include <stdint.h>

#include "base/span.h"
#include "http/buf.h"

/** A quoted JSON string. */
void ek_http_json_string(ek_buf *buf, ek_str text);

/** The same without the quotes: for a string that is put together from parts. */
void ek_http_json_escape(ek_buf *buf, ek_str text);

void ek_http_json_int(ek_buf *buf, int64_t value);

/**
 * A finite number with up to 6 significant digits; infinities and NaN, which JSON lacks, become 0.
 */
void ek_http_json_number(ek_buf *buf, double value);

/* Further members of an open object: ,"name":value. A name needs no escaping. */
void ek_http_json_add_int(ek_buf *buf, const char *name, int64_t value);
void ek_http_json_add_number(ek_buf *buf, const char *name, double value);
void ek_http_json_add_string(ek_buf *buf, const char *name, const char *value);

/**
 * The same with an array of rows.
 * @param cells (n_rows, n_columns), each divided by `unit` (nanoseconds to microseconds)
 */
void ek_http_json_add_matrix(ek_buf *buf, const char *name, const int64_t *cells, int32_t n_rows,
                             int32_t n_columns, int64_t unit);

#endif
