/*
 * From token pieces to text that may leave the house: whole UTF-8 characters only, and nothing of
 * a stop string.
 *
 * What could still become a stop string is held back: the longest suffix of the text that is a
 * proper prefix of one, and not a byte more. The text ends before the stop string that is
 * complete first (of those complete with the same byte: the longest), however tokens cut it. Work
 * is done byte by byte with one matching automaton per stop string, so cost is O(bytes * stops)
 * and memory is fixed at the start. Pure.
 */
#ifndef EK_ENGINE_TEXT_STREAM_H
#define EK_ENGINE_TEXT_STREAM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/span.h"

#define EK_TEXT_STOPS_MAX      16
#define EK_TEXT_STOP_BYTES_MAX 256
#define EK_TEXT_PIECE_MAX      1024

/** Most bytes that one feed can let out, a flush after it included; and a flush alone. */
#define EK_TEXT_FEED_MAX  (EK_TEXT_STOP_BYTES_MAX + 3 * (EK_TEXT_PIECE_MAX + 2))
#define EK_TEXT_FLUSH_MAX (EK_TEXT_STOP_BYTES_MAX + 3)

typedef struct ek_text_stream ek_text_stream;

size_t ek_engine_text_bytes(const ek_str *stops, int32_t n_stops);

/**
 * @param stops valid UTF-8, 1..EK_TEXT_STOP_BYTES_MAX bytes each, at most EK_TEXT_STOPS_MAX;
 *          borrowed
 * @param drop_space the text's very first byte is left out if it is a space (SentencePiece)
 * @return in perm
 */
ek_text_stream *ek_engine_text_init(ek_arena *perm, const ek_str *stops, int32_t n_stops,
                                    bool drop_space);

/**
 * Add a token's bytes.
 * @param n_piece at most EK_TEXT_PIECE_MAX
 * @param out room for EK_TEXT_FEED_MAX bytes
 * @return bytes written to out; nothing is written any more after a stop string
 */
int32_t ek_engine_text_feed(ek_text_stream *stream, const char *piece, size_t n_piece, char *out);

/** The text ends here: what was held back leaves. @param out room for EK_TEXT_FLUSH_MAX bytes */
int32_t ek_engine_text_flush(ek_text_stream *stream, char *out);

/** A stop string is complete. */
bool ek_engine_text_stopped(const ek_text_stream *stream);

#endif
