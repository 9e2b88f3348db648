/*
 * Goal: whatever the pieces, the text that comes out is valid UTF-8, ends before the stop string
 * that is complete first, and at every moment holds back exactly what it must and no byte more.
 * Method: a naive implementation sees the whole byte string at once (decoding by searching the
 * longest valid character, stops by comparing everywhere); every split of short texts and random
 * splits of random texts must agree with it after every single piece.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "base/rng.h"
#include "base/utf8.h"
#include "engine/text_stream.h"

#define TEXT_MAX 4096

typedef struct text {
    char data[TEXT_MAX];
    size_t len;
} text;

/* ---- the naive implementation ---- */

/*
 * Code point by code point from the definition: lengths, shortest form, no surrogates, at most
 * U+10FFFF.
 */
static bool is_character(const char *data, size_t len)
{
    const uint8_t *b = (const uint8_t *)data;
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (len == 1) return b[0] < 0x80;
    if (len < 2 || len > 4) return false;
    uint32_t lead_mask = 0xFFu >> (len + 1);
    if ((b[0] & ~lead_mask) != (0xFFu << (8 - len) & 0xFFu)) return false;
    uint32_t code = b[0] & lead_mask;
    for (size_t i = 1; i < len; i++) {
        if ((b[i] & 0xC0) != 0x80) return false;
        code = code << 6 | (b[i] & 0x3Fu);
    }
    return code >= least[len] && code <= 0x10FFFF && (code < 0xD800 || code > 0xDFFF);
}

/*
 * Could these bytes be followed by others that make a character of them? All continuations are
 * tried at their edges.
 */
static bool is_beginning(const char *data, size_t len)
{
    static const char edge[] = {(char)0x80, (char)0x8F, (char)0x90,
                                (char)0x9F, (char)0xA0, (char)0xBF};
    if (len == 0 || len > 3) return false;
    char c[4];
    memcpy(c, data, len);
    for (size_t total = len + 1; total <= 4; total++)
        for (size_t i = 0; i < sizeof edge; i++) {
            c[len] = edge[i];
            memset(c + len + 1, 0x80, 4 - len - 1);
            if (is_character(c, total)) return true;
        }
    return false;
}

static void append(text *to, const char *data, size_t len)
{
    assert_true(to->len + len <= TEXT_MAX);
    if (len) memcpy(to->data + to->len, data, len);
    to->len += len;
}

/*
 * Decode all bytes; an unfinished character at the end becomes U+FFFD only when nothing follows
 * any more.
 */
static void naive_decode(const text *bytes, bool ended, text *out)
{
    out->len = 0;
    for (size_t at = 0; at < bytes->len;) {
        size_t left = bytes->len - at, n = 0;
        for (size_t len = 1; len <= 4 && len <= left && n == 0; len++)
            if (is_character(bytes->data + at, len)) n = len;
        if (n > 0) {
            append(out, bytes->data + at, n);
            at += n;
            continue;
        }
        size_t start = left < 3 ? left : 3;
        while (start > 1 && !is_beginning(bytes->data + at, start))
            start--;
        bool unfinished = start == left && is_beginning(bytes->data + at, start);
        if (unfinished && !ended) return;
        append(out, "\xEF\xBF\xBD", 3);
        at += start;
    }
}

/* True and out cut when a stop string is inside: the first to be complete, the longest of those. */
static bool naive_stop(text *out, const ek_str *stops, int32_t n_stops)
{
    for (size_t end = 1; end <= out->len; end++) {
        size_t longest = 0;
        for (int32_t i = 0; i < n_stops; i++)
            if (stops[i].len <= end && stops[i].len > longest &&
                memcmp(out->data + end - stops[i].len, stops[i].data, stops[i].len) == 0)
                longest = stops[i].len;
        if (longest == 0) continue;
        out->len = end - longest;
        return true;
    }
    return false;
}

static void naive_hold(text *out, const ek_str *stops, int32_t n_stops)
{
    size_t longest = 0;
    for (int32_t i = 0; i < n_stops; i++)
        for (size_t len = longest + 1; len < stops[i].len && len <= out->len; len++)
            if (memcmp(out->data + out->len - len, stops[i].data, len) == 0) longest = len;
    out->len -= longest;
}

/* What must be out after these bytes. */
static bool expected(const text *bytes, bool ended, const ek_str *stops, int32_t n_stops, text *out)
{
    naive_decode(bytes, ended, out);
    if (naive_stop(out, stops, n_stops)) return true;
    if (!ended) naive_hold(out, stops, n_stops);
    return false;
}

/* ---- comparing ---- */

typedef struct feeder {
    uint8_t memory[16384];
    ek_text_stream *stream;
    const ek_str *stops;
    int32_t n_stops;
    text bytes; /* fed so far */
    text out;   /* released so far */
} feeder;

static void start(feeder *f, const ek_str *stops, int32_t n_stops)
{
    ek_arena perm = ek_arena_over(f->memory, sizeof f->memory);
    perm.end = perm.beg + ek_engine_text_bytes(stops, n_stops);
    f->stream = ek_engine_text_init(&perm, stops, n_stops, false);
    f->stops = stops;
    f->n_stops = n_stops;
    f->bytes.len = 0;
    f->out.len = 0;
}

static void check(const feeder *f, bool ended)
{
    text want;
    bool stopped = expected(&f->bytes, ended, f->stops, f->n_stops, &want);
    assert_int_equal(ek_engine_text_stopped(f->stream), stopped);
    assert_int_equal(f->out.len, want.len);
    assert_memory_equal(f->out.data, want.data, want.len);
    assert_true(ek_utf8_valid((ek_str){f->out.data, f->out.len}));
}

static void feed(feeder *f, const char *piece, size_t len)
{
    char out[EK_TEXT_FEED_MAX];
    bool was_stopped = ek_engine_text_stopped(f->stream);
    int32_t n = ek_engine_text_feed(f->stream, piece, len, out);
    assert_true(n >= 0 && n <= EK_TEXT_FEED_MAX);
    append(&f->out, out, (size_t)n);
    if (was_stopped)
        assert_int_equal(n, 0);
    else
        append(&f->bytes, piece, len);
    check(f, false);
}

static void finish(feeder *f)
{
    char out[EK_TEXT_FLUSH_MAX];
    append(&f->out, out, (size_t)ek_engine_text_flush(f->stream, out));
    check(f, true);
}

static void assert_out(const feeder *f, const char *want)
{
    assert_int_equal(f->out.len, strlen(want));
    assert_memory_equal(f->out.data, want, f->out.len);
}

/* ---- cases from reports ---- */

static void an_emoji_in_two_tokens_leaves_when_it_is_complete(void **state)
{
    (void)state;
    feeder f;
    start(&f, NULL, 0);
    feed(&f, "\xF0\x9F\x98", 3);
    assert_out(&f, "");
    feed(&f, "\x80", 1);
    assert_out(&f, "\xF0\x9F\x98\x80");
    finish(&f);
}

static void a_dangling_start_becomes_one_replacement_character(void **state)
{
    (void)state;
    feeder f;
    start(&f, NULL, 0);
    feed(&f, "a\xF0\x9F", 3);
    assert_out(&f, "a");
    finish(&f);
    assert_out(&f, "a\xEF\xBF\xBD");
}

static void broken_bytes_become_one_replacement_per_maximal_subpart(void **state)
{
    (void)state;
    /* The standard's own example: 61 F1 80 80 E1 80 C2 62 80 63 80 BF 64. */
    feeder f;
    start(&f, NULL, 0);
    feed(&f, "a\xF1\x80\x80\xE1\x80\xC2", 7);
    feed(&f, "b\x80", 2);
    feed(&f, "c\x80\xBF", 3);
    feed(&f, "d", 1);
    finish(&f);
    assert_out(&f, "a\uFFFD\uFFFD\uFFFDb\uFFFDc\uFFFD\uFFFDd");
}

static void a_stop_string_over_token_borders_ends_the_text(void **state)
{
    (void)state;
    const ek_str stops[] = {EK_STR("END")};
    feeder f;
    start(&f, stops, 1);
    feed(&f, "E", 1);
    assert_out(&f, "");
    feed(&f, "ND", 2);
    assert_out(&f, "");
    assert_true(ek_engine_text_stopped(f.stream));

    start(&f, stops, 1);
    feed(&f, "xEN", 3);
    assert_out(&f, "x");
    feed(&f, "Dy", 2);
    finish(&f);
    assert_out(&f, "x");
    feed(&f, "more", 4);
    assert_out(&f, "x");
}

static void what_turns_out_to_be_no_stop_string_leaves(void **state)
{
    (void)state;
    const ek_str stops[] = {EK_STR("END"), EK_STR("\n\n")};
    feeder f;
    start(&f, stops, 2);
    feed(&f, "EEN", 3);
    assert_out(&f, "E");
    feed(&f, "\n", 1);
    assert_out(&f, "EEN");
    feed(&f, "E", 1);
    assert_out(&f, "EEN\n");
    finish(&f);
    assert_out(&f, "EEN\nE");
}

static void the_first_to_be_complete_wins_then_the_longest(void **state)
{
    (void)state;
    const ek_str stops[] = {EK_STR("abcd"), EK_STR("bc"), EK_STR("xbc")};
    feeder f;
    start(&f, stops, 3);
    feed(&f, "abcd", 4);
    assert_out(&f, "a");
    start(&f, stops, 3);
    feed(&f, "zxbc", 4);
    assert_out(&f, "z");
}

static void a_stop_string_of_characters_is_not_split(void **state)
{
    (void)state;
    const ek_str stops[] = {EK_STR("\xE4\xB8\xAD\xE6\x96\x87")};
    feeder f;
    start(&f, stops, 1);
    feed(&f, "\xE4", 1);
    feed(&f, "\xB8\xAD\xE6", 3);
    assert_out(&f, "");
    feed(&f, "\x96\x88", 2);
    assert_out(&f, "\xE4\xB8\xAD\xE6\x96\x88");
    finish(&f);
}

static void the_first_space_is_dropped_only_where_asked(void **state)
{
    (void)state;
    for (int drops = 0; drops <= 1; drops++) {
        uint8_t memory[1024];
        char out[EK_TEXT_FEED_MAX];
        ek_arena perm = ek_arena_over(memory, sizeof memory);
        ek_text_stream *stream = ek_engine_text_init(&perm, NULL, 0, drops);
        assert_int_equal(ek_engine_text_feed(stream, "", 0, out), 0);
        assert_int_equal(ek_engine_text_feed(stream, "  a", 3, out), drops ? 2 : 3);
        assert_int_equal(ek_engine_text_feed(stream, " b", 2, out), 2);
    }
}

static void the_largest_pieces_and_stops_stay_inside_their_bounds(void **state)
{
    (void)state;
    char longest[EK_TEXT_STOP_BYTES_MAX], piece[EK_TEXT_PIECE_MAX];
    memset(longest, 'a', sizeof longest);
    longest[sizeof longest - 1] = 'b';
    ek_str stops[EK_TEXT_STOPS_MAX];
    for (int i = 0; i < EK_TEXT_STOPS_MAX; i++)
        stops[i] = (ek_str){longest, sizeof longest};
    feeder f;
    start(&f, stops, EK_TEXT_STOPS_MAX);
    memset(piece, 'a', sizeof piece);
    feed(&f, piece, EK_TEXT_STOP_BYTES_MAX - 1);
    assert_int_equal(f.out.len, 0);
    memset(piece, 0xFF, sizeof piece);
    feed(&f, piece, EK_TEXT_PIECE_MAX);
    assert_int_equal(f.out.len, EK_TEXT_STOP_BYTES_MAX - 1 + 3 * EK_TEXT_PIECE_MAX);
}

/* ---- every split ---- */

static void every_split_of_a_text_agrees_with_the_whole(void **state)
{
    (void)state;
    static const char *const texts[] = {
        "xEN\nENDy", "h\xC3\xA9llo\xF0\x9F\x98\x80!", "aab\u4E2Daaab", "\xF0\x9F\xE4\xB8\xADzz",
        "ababababc",
    };
    static const ek_str stops[][2] = {
        {{"END", 3}, {"\n\n", 2}},
        {{"\xF0\x9F\x98\x80", 4}, {"lo!", 3}},
        {{"aaab", 4}, {"\xE4\xB8\xAD\xE4", 3}},
        {{"\xEF\xBF\xBD\xE4\xB8\xAD", 6}, {"q", 1}},
        {{"ababc", 5}, {"bb", 2}},
    };
    for (size_t t = 0; t < EK_COUNT_OF(texts); t++) {
        size_t len = strlen(texts[t]);
        for (uint32_t cuts = 0; cuts < 1u << (len - 1); cuts++) {
            feeder f;
            start(&f, stops[t], 2);
            size_t beg = 0;
            for (size_t end = 1; end <= len; end++) {
                if (end < len && !(cuts >> (end - 1) & 1)) continue;
                feed(&f, texts[t] + beg, end - beg);
                beg = end;
            }
            finish(&f);
        }
    }
}

/* ---- random texts ---- */

static const char *const scraps[] = {
    "a",    "b",        "ab",           "\n",
    " ",    "\xC3\xA9", "\xE4\xB8\xAD", "\xF0\x9F\x98\x80",
    "aa",   "\xF0\x9F", "\xE4",         "\x80",
    "\xED", "\xA0",     "\xEF\xBF\xBD", "\xF4\x90",
    "\xC0", "\xFF",     "\xF0\x9F\x91", "\xE2\x80",
};

static size_t make_text(ek_rng *rng, size_t n_scraps, bool valid, char *out)
{
    size_t len = 0;
    while (n_scraps-- > 0) {
        const char *scrap = scraps[ek_rng_below(rng, EK_COUNT_OF(scraps))];
        if (valid && !ek_utf8_valid(ek_str_from(scrap))) continue;
        memcpy(out + len, scrap, strlen(scrap));
        len += strlen(scrap);
    }
    return len;
}

static void random_texts_agree_with_the_whole_after_every_piece(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 42);
    int n_stopped = 0;
    for (int round = 0; round < 5000; round++) {
        char stop_text[4][64], bytes[512];
        ek_str stops[4];
        int32_t n_stops = (int32_t)ek_rng_below(&rng, 5);
        for (int32_t i = 0; i < n_stops; i++) {
            size_t len = make_text(&rng, 1 + ek_rng_below(&rng, 7), true, stop_text[i]);
            if (len == 0) stop_text[i][len++] = 'q';
            stops[i] = (ek_str){stop_text[i], len};
        }
        size_t len = make_text(&rng, ek_rng_below(&rng, 60), false, bytes);
        feeder f;
        start(&f, stops, n_stops);
        for (size_t beg = 0; beg < len;) {
            size_t n = ek_rng_below(&rng, 6);
            if (n > len - beg) n = len - beg;
            feed(&f, bytes + beg, n);
            beg += n;
        }
        finish(&f);
        n_stopped += ek_engine_text_stopped(f.stream);
    }
    assert_in_range(n_stopped, 500, 4500);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(an_emoji_in_two_tokens_leaves_when_it_is_complete),
        cmocka_unit_test(a_dangling_start_becomes_one_replacement_character),
        cmocka_unit_test(broken_bytes_become_one_replacement_per_maximal_subpart),
        cmocka_unit_test(a_stop_string_over_token_borders_ends_the_text),
        cmocka_unit_test(what_turns_out_to_be_no_stop_string_leaves),
        cmocka_unit_test(the_first_to_be_complete_wins_then_the_longest),
        cmocka_unit_test(a_stop_string_of_characters_is_not_split),
        cmocka_unit_test(the_first_space_is_dropped_only_where_asked),
        cmocka_unit_test(the_largest_pieces_and_stops_stay_inside_their_bounds),
        cmocka_unit_test(every_split_of_a_text_agrees_with_the_whole),
        cmocka_unit_test(random_texts_agree_with_the_whole_after_every_piece),
    };
    return cmocka_run_group_tests_name("engine/text_stream", tests, NULL, NULL);
}
