#include "peers.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>

const int32_t ek_bench_test_batch[EK_BENCH_TESTS] = {1, 1, 4, 16, 64};
const char *const ek_bench_test_name[EK_BENCH_TESTS] = {"prefill512", "1", "4", "16", "64"};

enum { FIELD_NAME, FIELD_BATCH, FIELD_PHASE, FIELD_RATE, FIELDS };
static const char *const field_name[FIELDS] = {"name", "batch", "phase", "tokens/s"};

typedef struct place {
    const char *path;
    int32_t line;
    const char *line_data; /* borrowed from the text */
    ek_err *err;
} place;

static ek_status mistake(const place *at, const char *where, const char *what)
{
    return ek_err_set(at->err, EK_EFORMAT, "%s:%d:%d: %s", at->path, at->line,
                      (int)(where - at->line_data) + 1, what);
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r';
}

static ek_str trimmed(ek_str s)
{
    while (s.len > 0 && is_blank(s.data[0]))
        s = (ek_str){s.data + 1, s.len - 1};
    while (s.len > 0 && is_blank(s.data[s.len - 1]))
        s.len--;
    return s;
}

/* A line's fields, without the blanks around them. */
static ek_status split(const place *at, ek_str line, ek_str field[FIELDS])
{
    for (int i = 0; i < FIELDS; i++) {
        const char *comma = line.len > 0 ? memchr(line.data, ',', line.len) : NULL;
        const bool last = i == FIELDS - 1;
        if (last && comma) return mistake(at, comma, "more than name,batch,phase,tokens/s");
        if (!last && !comma)
            return mistake(at, line.data + line.len, "ends before name,batch,phase,tokens/s did");
        const size_t n = comma ? (size_t)(comma - line.data) : line.len;
        field[i] = trimmed((ek_str){line.data, n});
        if (!last) line = (ek_str){line.data + n + 1, line.len - n - 1};
    }
    return EK_OK;
}

static bool is_header(const ek_str field[FIELDS])
{
    for (int i = 0; i < FIELDS; i++)
        if (!ek_str_eqz(field[i], field_name[i])) return false;
    return true;
}

/* The number that is the whole field, or NaN. */
static double number(ek_str field)
{
    char text[32];
    if (field.len == 0 || field.len >= sizeof text) return NAN;
    memcpy(text, field.data, field.len);
    text[field.len] = '\0';
    char *end;
    const double value = strtod(text, &end);
    return *end == '\0' ? value : NAN;
}

static ek_status find_test(const place *at, const ek_str field[FIELDS], int32_t *out_test)
{
    const double batch = number(field[FIELD_BATCH]);
    if (ek_str_eqz(field[FIELD_PHASE], "prefill")) {
        if (batch != EK_BENCH_PREFILL)
            return mistake(at, field[FIELD_BATCH].data, "the prompt of prefill has 512 tokens");
        *out_test = EK_BENCH_TEST_PREFILL;
        return EK_OK;
    }
    if (!ek_str_eqz(field[FIELD_PHASE], "decode"))
        return mistake(at, field[FIELD_PHASE].data, "the phase is prefill or decode");
    for (int32_t t = EK_BENCH_TEST_DECODE; t < EK_BENCH_TESTS; t++)
        if (batch == ek_bench_test_batch[t]) {
            *out_test = t;
            return EK_OK;
        }
    return mistake(at, field[FIELD_BATCH].data, "the batch of decode is 1, 4, 16 or 64");
}

static ek_status find_peer(const place *at, ek_str name, ek_bench_peers *peers,
                           ek_bench_peer **out_peer)
{
    if (name.len == 0 || name.len >= EK_BENCH_PEER_NAME_MAX)
        return mistake(at, name.data, "a name has 1 to 47 bytes");
    for (int32_t i = 0; i < peers->n; i++)
        if (ek_str_eqz(name, peers->peer[i].name)) {
            *out_peer = &peers->peer[i];
            return EK_OK;
        }
    if (peers->n == EK_BENCH_PEERS_MAX)
        return ek_err_set(at->err, EK_ERANGE, "%s:%d:1: more than %d names", at->path, at->line,
                          EK_BENCH_PEERS_MAX);
    *out_peer = &peers->peer[peers->n++];
    memcpy((*out_peer)->name, name.data, name.len);
    return EK_OK;
}

static ek_status take_line(const place *at, ek_str line, bool first, ek_bench_peers *peers)
{
    ek_str field[FIELDS];
    ek_status status = split(at, line, field);
    if (status < 0 || (first && is_header(field))) return status;
    int32_t test = 0;
    ek_bench_peer *peer = NULL;
    status = find_test(at, field, &test);
    if (status >= 0) status = find_peer(at, field[FIELD_NAME], peers, &peer);
    if (status < 0) return status;
    const double rate = number(field[FIELD_RATE]);
    if (!isfinite(rate) || rate <= 0)
        return mistake(at, field[FIELD_RATE].data, "tokens/s is a number above 0");
    ek_bench_add(&peer->rate[test], rate);
    return EK_OK;
}

ek_status ek_bench_peers_parse(ek_str text, const char *path, ek_bench_peers *out_peers,
                               ek_err *err)
{
    bool first = true;
    place at = {.path = path, .err = err};
    while (text.len > 0) {
        const char *end = memchr(text.data, '\n', text.len);
        const size_t n = end ? (size_t)(end - text.data) : text.len;
        const ek_str line = trimmed((ek_str){text.data, n});
        at.line_data = text.data;
        if (++at.line > EK_BENCH_PEER_LINES_MAX)
            return ek_err_set(err, EK_ERANGE, "%s: more than %d lines", path,
                              EK_BENCH_PEER_LINES_MAX);
        if (line.len > 0 && line.data[0] != '#') {
            const ek_status status = take_line(&at, line, first, out_peers);
            if (status < 0) return status;
            first = false;
        }
        const size_t taken = end ? n + 1 : n;
        text = (ek_str){text.data + taken, text.len - taken};
    }
    return EK_OK;
}
