#include "engine/text_stream.h"

#include <assert.h>
#include <string.h>

#include "base/assert.h"
#include "engine/utf8.h"

/* A Knuth-Morris-Pratt automaton for one stop string. */
typedef struct matcher {
    ek_str stop;       /* borrowed */
    uint8_t *fallback; /* (stop.len) longest border of the first i + 1 bytes */
    uint32_t n_matched;
} matcher;

struct ek_text_stream {
    matcher *matcher; /* (n_stops) */
    int32_t n_stops;
    int32_t n_held;
    bool at_start; /* the first byte may be a space to drop */
    bool stopped;
    ek_utf8 utf8;
    char held[EK_TEXT_STOP_BYTES_MAX]; /* clean text that may become a stop string */
};

static_assert(EK_TEXT_STOP_BYTES_MAX <= UINT8_MAX + 1, "a border is shorter than its string");

/* The longest proper border of each beginning of the stop string. */
static void fill_fallback(matcher *m)
{
    uint32_t border = 0;
    m->fallback[0] = 0;
    for (size_t i = 1; i < m->stop.len; i++) {
        while (border > 0 && m->stop.data[i] != m->stop.data[border])
            border = m->fallback[border - 1];
        border += m->stop.data[i] == m->stop.data[border];
        m->fallback[i] = (uint8_t)border;
    }
}

/* True when the byte completes the stop string. */
static bool match(matcher *m, char byte)
{
    while (m->n_matched > 0 && m->stop.data[m->n_matched] != byte)
        m->n_matched = m->fallback[m->n_matched - 1];
    m->n_matched += m->stop.data[m->n_matched] == byte;
    return m->n_matched == m->stop.len;
}

size_t ek_engine_text_bytes(const ek_str *stops, int32_t n_stops)
{
    size_t bytes = sizeof(ek_text_stream) + _Alignof(ek_text_stream);
    bytes += (size_t)n_stops * sizeof(matcher) + _Alignof(matcher);
    for (int32_t i = 0; i < n_stops; i++)
        bytes += stops[i].len;
    return bytes;
}

ek_text_stream *ek_engine_text_init(ek_arena *perm, const ek_str *stops, int32_t n_stops,
                                    bool drop_space)
{
    ek_assert(n_stops >= 0 && n_stops <= EK_TEXT_STOPS_MAX);
    ek_text_stream *stream = ek_new(perm, ek_text_stream, 1);
    stream->matcher = ek_new(perm, matcher, n_stops);
    stream->n_stops = n_stops;
    stream->at_start = drop_space;
    for (int32_t i = 0; i < n_stops; i++) {
        ek_assert(stops[i].len >= 1 && stops[i].len <= EK_TEXT_STOP_BYTES_MAX);
        matcher *m = &stream->matcher[i];
        m->stop = stops[i];
        m->fallback = ek_new(perm, uint8_t, stops[i].len);
        fill_fallback(m);
    }
    return stream;
}

/*
 * Run clean bytes out[n_seen..n_text) through the automata. Returns the length of the text that
 * stays: all of it, or what comes before the stop string that is complete first.
 */
static int32_t find_stop(ek_text_stream *stream, const char *out, int32_t n_seen, int32_t n_text)
{
    for (int32_t at = n_seen; at < n_text; at++) {
        size_t longest = 0;
        for (int32_t i = 0; i < stream->n_stops; i++) {
            matcher *m = &stream->matcher[i];
            if (match(m, out[at]) && m->stop.len > longest) longest = m->stop.len;
        }
        if (longest == 0) continue;
        stream->stopped = true;
        return at + 1 - (int32_t)longest;
    }
    return n_text;
}

/*
 * Keep back the longest suffix that an automaton is inside of. It lies within out: it began after
 * the last release.
 */
static int32_t hold_back(ek_text_stream *stream, const char *out, int32_t n_text)
{
    uint32_t longest = 0;
    for (int32_t i = 0; i < stream->n_stops; i++)
        if (stream->matcher[i].n_matched > longest) longest = stream->matcher[i].n_matched;
    stream->n_held = (int32_t)longest;
    memcpy(stream->held, out + n_text - stream->n_held, longest);
    return n_text - stream->n_held;
}

int32_t ek_engine_text_feed(ek_text_stream *stream, const char *piece, size_t n_piece, char *out)
{
    ek_assert(n_piece <= EK_TEXT_PIECE_MAX);
    if (stream->stopped) return 0;
    int32_t n = stream->n_held;
    memcpy(out, stream->held, (size_t)n);
    for (size_t i = 0; i < n_piece; i++) {
        bool drops = stream->at_start && piece[i] == ' ';
        stream->at_start = false;
        if (!drops) n += ek_engine_utf8_feed(&stream->utf8, (uint8_t)piece[i], out + n);
    }
    n = find_stop(stream, out, stream->n_held, n);
    return stream->stopped ? n : hold_back(stream, out, n);
}

int32_t ek_engine_text_flush(ek_text_stream *stream, char *out)
{
    if (stream->stopped) return 0;
    int32_t n = stream->n_held;
    memcpy(out, stream->held, (size_t)n);
    n += ek_engine_utf8_flush(&stream->utf8, out + n);
    n = find_stop(stream, out, stream->n_held, n);
    stream->n_held = 0;
    return n;
}

bool ek_engine_text_stopped(const ek_text_stream *stream)
{
    return stream->stopped;
}
