/*
 * The head parser: what is accepted is read in exactly one way, and every trick by which a request
 * hides in another is refused. Heads are also fed byte by byte, since that is how a slow client's
 * arrive.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "http/head.h"

#define LINE "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\n"

/*
 * Parse a complete head from a heap block of exactly its size, so that a sanitizer sees a read past
 * it.
 */
static ek_status parse(const char *text, ek_head *head, ek_fault *fault)
{
    static char *block; /* kept for the spans of `head` until the next call */
    size_t n = strlen(text);
    free(block);
    block = malloc(n ? n : 1);
    memcpy(block, text, n);
    ek_str bytes = {block, n};
    size_t scanned = 0, n_head = 0;
    ek_status status = ek_http_head_find_end(bytes, &scanned, &n_head);
    if (status != EK_OK) return status;
    return ek_http_head_parse((ek_str){block, n_head}, head, fault);
}

static void assert_refused(const char *text, const ek_fault_kind *kind)
{
    ek_head head;
    ek_fault fault = {0};
    ek_status status = parse(text, &head, &fault);
    if (status != EK_EFORMAT) print_message("taken: %s\n", text);
    assert_int_equal(status, EK_EFORMAT);
    if (fault.kind) assert_ptr_equal(fault.kind, kind);
}

static void reads_a_plain_request(void **state)
{
    (void)state;
    ek_head head;
    ek_fault fault;
    ek_str value;
    const char *text = "POST /v1/models/a%2Fb?x=1&y=2 HTTP/1.1\r\nHost: h\r\nContent-Length: 12\r\n"
                       "Content-Type:application/json\r\nX-Empty:\r\nX-Blank: \t v w \t\r\n\r\n";
    assert_int_equal(parse(text, &head, &fault), EK_OK);
    assert_true(ek_str_eqz(head.method, "POST"));
    assert_true(ek_str_eqz(head.path, "/v1/models/a%2Fb"));
    assert_true(ek_str_eqz(head.query, "x=1&y=2"));
    assert_int_equal(head.version_minor, 1);
    assert_int_equal(head.content_length, 12);
    assert_int_equal(head.bytes, strlen(text));
    assert_true(head.keep_alive);
    assert_false(head.chunked);
    assert_true(ek_http_head_field(&head, "content-type", &value));
    assert_true(ek_str_eqz(value, "application/json"));
    assert_true(ek_http_head_field(&head, "x-blank", &value));
    assert_true(ek_str_eqz(value, "v w"));
    assert_true(ek_http_head_field(&head, "X-EMPTY", &value));
    assert_int_equal(value.len, 0);
    assert_false(ek_http_head_field(&head, "x-other", &value));
}

static void reads_what_clients_vary(void **state)
{
    (void)state;
    ek_head head;
    ek_fault fault;
    assert_int_equal(parse("GET / HTTP/1.0\r\n\r\n", &head, &fault), EK_OK);
    assert_false(head.keep_alive);
    assert_int_equal(parse("GET / HTTP/1.0\r\nConnection: Keep-Alive\r\n\r\n", &head, &fault),
                     EK_OK);
    assert_true(head.keep_alive);
    assert_int_equal(
        parse("GET / HTTP/1.1\r\nHost: a\r\nConnection: x, Close\r\n\r\n", &head, &fault), EK_OK);
    assert_false(head.keep_alive);
    assert_int_equal(parse(LINE "Transfer-Encoding: Chunked\r\n\r\n", &head, &fault), EK_OK);
    assert_true(head.chunked);
    assert_int_equal(parse(LINE "Expect: 100-Continue\r\n\r\n", &head, &fault), EK_OK);
    assert_true(head.expects_continue);
    /* One empty line left over from the request before is forgiven. */
    assert_int_equal(parse("\r\nGET /livez HTTP/1.1\r\nHost: a\r\n\r\n", &head, &fault), EK_OK);
    assert_true(ek_str_eqz(head.path, "/livez"));
    assert_int_equal(parse("GET http://a:80/p?q HTTP/1.1\r\nHost: a\r\n\r\n", &head, &fault),
                     EK_OK);
    assert_true(ek_str_eqz(head.path, "/p"));
    assert_true(ek_str_eqz(head.query, "q"));
    assert_int_equal(parse("OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n", &head, &fault), EK_OK);
    assert_int_equal(parse(LINE "X: \xc3\xa9\r\n\r\n", &head, &fault), EK_OK);
}

/* E8: everything that two parsers could read in two ways. */
static void refuses_smuggling(void **state)
{
    (void)state;
    static const char *const heads[] = {
        LINE "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n\r\n",
        LINE "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n",
        LINE "Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        LINE "Content-Length: 5\r\ncontent-length: 5\r\n\r\n",
        LINE "Content-Length: 5, 5\r\n\r\n",
        LINE "Content-Length: +5\r\n\r\n",
        LINE "Content-Length: -5\r\n\r\n",
        LINE "Content-Length: 0x5\r\n\r\n",
        LINE "Content-Length: 5 5\r\n\r\n",
        LINE "Content-Length: \r\n\r\n",
        LINE "Content-Length: 99999999999999999999\r\n\r\n",
        LINE "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n",
        LINE "Transfer-Encoding: gzip, chunked\r\n\r\n",
        LINE "Transfer-Encoding: identity\r\n\r\n",
        LINE "Transfer-Encoding: xchunked\r\n\r\n",
        LINE "Transfer-Encoding : chunked\r\n\r\n",
        LINE "Content-Length : 5\r\n\r\n",
        LINE "Content-Length: 5\r\n Transfer-Encoding: chunked\r\n\r\n", /* folded */
        LINE "X: a\r\n\tfolded\r\n\r\n",
        LINE " X: a\r\n\r\n",
        LINE "X\r\n\r\n",
        LINE ": x\r\n\r\n",
        LINE "X y: z\r\n\r\n",
        LINE "X: a\x01z\r\n\r\n",
        LINE "X: a\x7fz\r\n\r\n",
        LINE "Host: b\r\n\r\n",
        LINE "Content-Type: a/b\r\nContent-Type: c/d\r\n\r\n",
        "GET / HTTP/1.1\r\n\r\n", /* no host */
        "POST / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n",
        "GET  / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET / a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /\x01 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /\xc3\xa9 HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /#f HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET http://a HTTP/1.1\r\nHost: a\r\n\r\n",
        "G(T / HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /\r\n\r\n",
        "GET\r\n\r\n",
        "GET / HTTX/1.1\r\nHost: a\r\n\r\n",
        "GET / HTTP/1.1 \r\nHost: a\r\n\r\n",
        "\r\n\r\nGET / HTTP/1.1\r\nHost: a\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++)
        assert_refused(heads[i], &ek_http_fault_malformed_request);
    assert_refused("GET / HTTP/2.0\r\nHost: a\r\n\r\n", &ek_http_fault_version);
    assert_refused("PRI * HTTP/2.0\r\n\r\n", &ek_http_fault_version);
    assert_refused(LINE "Expect: tea\r\n\r\n", &ek_http_fault_expectation);
}

static void refuses_bad_line_ends_at_once(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t n;
    } cases[] = {
        {"GET / HTTP/1.1\nHost: a\n\n", 15},          /* line feed alone */
        {"GET / HTTP/1.1\r\nHost: a\n", 24},          /* in a header */
        {"GET / HTTP/1.1\rHost: a\r\n", 16},          /* carriage return alone */
        {"GET / HTTP/1.1\r\nHost: a\0b\r\n\r\n", 24}, /* NUL */
        {"\x16\x03\x01\x00", 4},                      /* TLS knocks */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        size_t scanned = 0, n_head = 0;
        ek_str text = {cases[i].text, cases[i].n};
        assert_int_equal(ek_http_head_find_end(text, &scanned, &n_head), EK_EFORMAT);
    }
}

static void finds_the_end_byte_by_byte(void **state)
{
    (void)state;
    const char *text = "\r\nGET /a HTTP/1.1\r\nHost: a\r\nX: y\r\n\r\nGET /b";
    size_t n_whole = strlen(text) - strlen("GET /b");
    size_t scanned = 0, n_head = 0;
    for (size_t n = 1; n < n_whole; n++) {
        assert_int_equal(ek_http_head_find_end((ek_str){text, n}, &scanned, &n_head), EK_AGAIN);
        assert_int_equal(scanned, n);
    }
    assert_int_equal(ek_http_head_find_end((ek_str){text, n_whole}, &scanned, &n_head), EK_OK);
    assert_int_equal(n_head, n_whole);
    scanned = 0;
    assert_int_equal(ek_http_head_find_end((ek_str){text, strlen(text)}, &scanned, &n_head), EK_OK);
    assert_int_equal(n_head, n_whole);
}

static void limits_the_number_of_fields(void **state)
{
    (void)state;
    ek_head head;
    ek_fault fault;
    for (int over = 0; over < 2; over++) {
        char text[4096];
        int n = snprintf(text, sizeof text, "%s", LINE); /* holds the first field */
        for (int i = 1; i < EK_HEAD_FIELDS_MAX + over; i++)
            n += snprintf(text + n, sizeof text - (size_t)n, "x: y\r\n");
        snprintf(text + n, sizeof text - (size_t)n, "\r\n");
        if (over) {
            assert_refused(text, &ek_http_fault_headers_too_large);
        } else {
            assert_int_equal(parse(text, &head, &fault), EK_OK);
        }
    }
}

static void finds_tokens_in_lists(void **state)
{
    (void)state;
    assert_true(ek_http_head_has_token(EK_STR("a, Close ,b"), "close"));
    assert_true(ek_http_head_has_token(EK_STR("close"), "close"));
    assert_false(ek_http_head_has_token(EK_STR("closed, xclose"), "close"));
    assert_false(ek_http_head_has_token(EK_STR(""), "close"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_plain_request),
        cmocka_unit_test(reads_what_clients_vary),
        cmocka_unit_test(refuses_smuggling),
        cmocka_unit_test(refuses_bad_line_ends_at_once),
        cmocka_unit_test(finds_the_end_byte_by_byte),
        cmocka_unit_test(limits_the_number_of_fields),
        cmocka_unit_test(finds_tokens_in_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
