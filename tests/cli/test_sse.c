/*
 * Goal: however the network cuts a stream into pieces, the same events come out. Method: one stream
 * with all line ends, comments, several data lines and multi-byte characters, fed whole, byte by
 * byte, and cut at each place.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "cli/sse.h"

static const char stream[] =
    ": a comment\n\ndata: {\"a\":1}\n\ndata:no space\r\n\r\nevent: x\nid: 7\n"
    "data: two\ndata: lines\n\ndata: h\xc3\xa9llo \xf0\x9f\x98\x80\n\ndata:\n\n"
    "data: [DONE]\n\ndata: never ended";
static const char *const wanted[] = {
    "{\"a\":1}", "no space", "two\nlines", "h\xc3\xa9llo \xf0\x9f\x98\x80", "", "[DONE]",
};

typedef struct seen {
    size_t n;
    size_t stop_after;
} seen;

static bool see(void *ctx, ek_str data)
{
    seen *s = ctx;
    assert_true(s->n < sizeof wanted / sizeof wanted[0]);
    assert_true(ek_str_eqz(data, wanted[s->n]));
    s->n++;
    return s->n != s->stop_after;
}

static void feed(ek_cli_sse *sse, seen *s, const char *data, size_t n)
{
    assert_int_equal(ek_cli_sse_feed(sse, (ek_str){data, n}, see, s), EK_OK);
}

static void test_any_cut_gives_the_same_events(void **state)
{
    (void)state;
    const size_t len = sizeof stream - 1;
    for (size_t cut = 0; cut <= len; cut++) {
        ek_cli_sse sse = {0};
        seen s = {0};
        feed(&sse, &s, stream, cut);
        feed(&sse, &s, stream + cut, len - cut);
        assert_int_equal(s.n, 6);
        ek_cli_sse_free(&sse);
    }
    ek_cli_sse sse = {0};
    seen s = {0};
    for (size_t i = 0; i < len; i++)
        feed(&sse, &s, stream + i, 1);
    assert_int_equal(s.n, 6);
    ek_cli_sse_free(&sse);
}

static void test_reader_may_stop(void **state)
{
    (void)state;
    ek_cli_sse sse = {0};
    seen s = {.stop_after = 2};
    assert_int_equal(ek_cli_sse_feed(&sse, (ek_str){stream, sizeof stream - 1}, see, &s), EK_END);
    assert_int_equal(s.n, 2);
    ek_cli_sse_free(&sse);
}

static void test_endless_event_is_refused(void **state)
{
    (void)state;
    static const char filler[1 << 16] = {'x'};
    ek_cli_sse sse = {0};
    seen s = {0};
    ek_status status = ek_cli_sse_feed(&sse, EK_STR("data: "), see, &s);
    size_t n = 0;
    while (status == EK_OK && n < 2 * EK_CLI_SSE_EVENT_MAX) {
        status = ek_cli_sse_feed(&sse, (ek_str){filler, sizeof filler}, see, &s);
        n += sizeof filler;
    }
    assert_int_equal(status, EK_ERANGE);
    assert_true(n <= EK_CLI_SSE_EVENT_MAX + sizeof filler);
    ek_cli_sse_free(&sse);

    /* Many short data lines of one event count together. */
    status = EK_OK;
    n = 0;
    while (status == EK_OK && n < EK_CLI_SSE_EVENT_MAX) {
        status = ek_cli_sse_feed(&sse, EK_STR("data: 0123456789abcdef0123456789abcdef\n"), see, &s);
        n += 32;
    }
    assert_int_equal(status, EK_ERANGE);
    ek_cli_sse_free(&sse);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_cut_gives_the_same_events),
        cmocka_unit_test(test_reader_may_stop),
        cmocka_unit_test(test_endless_event_is_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
