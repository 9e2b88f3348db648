/*
 * The small text tools: JSON escaping (whatever goes in, valid one-line JSON comes out), growable
 * buffers, percent- decoding, queries and durations, request ids, media types, traces.
 */
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "base/rng.h"
#include "http/buf.h"
#include "http/json_out.h"
#include "http/media.h"
#include "http/request_id.h"
#include "http/traceparent.h"
#include "http/uri.h"

static void assert_string(ek_str text, const char *expected)
{
    ek_buf json = {0};
    ek_http_json_string(&json, text);
    assert_false(json.failed);
    ek_http_buf_add(&json, (ek_str){"", 1});
    assert_string_equal(json.data, expected);
    ek_http_buf_fini(&json);
}

/* S10: what splits lines or ends strings in some client is escaped. */
static void escapes_what_clients_stumble_over(void **state)
{
    (void)state;
    assert_string(EK_STR(""), "\"\"");
    assert_string(EK_STR("plain"), "\"plain\"");
    assert_string(EK_STR("a\"b\\c\n\r\t\b\f"), "\"a\\\"b\\\\c\\n\\r\\t\\b\\f\"");
    assert_string((ek_str){"a\0b", 3}, "\"a\\u0000b\"");
    assert_string(EK_STR("\x01\x1f\x7f"), "\"\\u0001\\u001f\\u007f\"");
    assert_string(EK_STR("x\xc2\x85y"), "\"x\\u0085y\"");
    assert_string(EK_STR("\xe2\x80\xa8\xe2\x80\xa9"), "\"\\u2028\\u2029\"");
    assert_string(EK_STR("h\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7"),
                  "\"h\xc3\xa9 \xe4\xb8\xad \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7\"");
}

static void replaces_what_is_not_utf8(void **state)
{
    (void)state;
    assert_string(EK_STR("a\xff"
                         "b"),
                  "\"a\\ufffdb\"");
    assert_string(EK_STR("\xf0\x9f"), "\"\\ufffd\\ufffd\"");            /* cut off */
    assert_string(EK_STR("\xc0\xaf"), "\"\\ufffd\\ufffd\"");            /* overlong */
    assert_string(EK_STR("\xe0\x80\xaf"), "\"\\ufffd\\ufffd\\ufffd\""); /* overlong */
    assert_string(EK_STR("\xed\xa0\x80"), "\"\\ufffd\\ufffd\\ufffd\""); /* surrogate */
    assert_string(EK_STR("\xf4\x90\x80\x80"), "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");
    assert_string(EK_STR("\xf0\x80\x80\x80"), "\"\\ufffd\\ufffd\\ufffd\\ufffd\"");
    assert_string(EK_STR("\xf4\x8f\xbf\xbf"), "\"\xf4\x8f\xbf\xbf\""); /* the last character */
}

/*
 * Random bytes: the result always parses, holds no raw line break, and valid text comes back
 * unchanged.
 */
static void always_writes_valid_json(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 7);
    for (int i = 0; i < 20000; i++) {
        char bytes[24];
        size_t n = ek_rng_below(&rng, sizeof bytes);
        for (size_t k = 0; k < n; k++)
            bytes[k] = (char)ek_rng_below(&rng, i % 2 ? 256 : 128);
        ek_buf json = {0};
        ek_http_json_string(&json, (ek_str){bytes, n});
        assert_null(memchr(json.data, '\n', json.len));
        json_t *parsed = json_loadb(json.data, json.len, JSON_DECODE_ANY | JSON_ALLOW_NUL, NULL);
        assert_non_null(parsed);
        if (i % 2 == 0) {
            assert_int_equal(json_string_length(parsed), n);
            if (n) assert_memory_equal(json_string_value(parsed), bytes, n);
        }
        json_decref(parsed);
        ek_http_buf_fini(&json);
    }
}

static void writes_numbers(void **state)
{
    (void)state;
    ek_buf json = {0};
    ek_http_json_int(&json, INT64_MIN);
    ek_http_buf_addz(&json, " ");
    ek_http_json_number(&json, -9999.0);
    ek_http_buf_addz(&json, " ");
    ek_http_json_number(&json, -0.25);
    ek_http_buf_addz(&json, " ");
    ek_http_json_number(&json, (double)-INFINITY);
    ek_http_buf_addz(&json, " ");
    ek_http_json_number(&json, (double)NAN);
    ek_http_buf_add(&json, (ek_str){"", 1});
    assert_string_equal(json.data, "-9223372036854775808 -9999 -0.25 0 0");
    ek_http_buf_fini(&json);
}

static void buffers_grow_and_remember_failure(void **state)
{
    (void)state;
    ek_buf buf = {0};
    for (int i = 0; i < 1000; i++)
        ek_http_buf_addf(&buf, "%d,", i);
    assert_int_equal(buf.len, 10 * 2 + 90 * 3 + 900 * 4);
    ek_http_buf_consume(&buf, 2);
    assert_memory_equal(buf.data, "1,2,", 4);
    assert_false(buf.failed);
    assert_false(ek_http_buf_reserve(&buf, SIZE_MAX - 10));
    assert_true(buf.failed);
    size_t len = buf.len;
    ek_http_buf_addz(&buf, "ignored");
    assert_int_equal(buf.len, len);
    ek_http_buf_clear(&buf);
    ek_http_buf_addz(&buf, "again");
    assert_int_equal(buf.len, 5);
    ek_http_buf_fini(&buf);
}

static void decodes_percents(void **state)
{
    (void)state;
    char text[16];
    size_t n = 0;
    assert_int_equal(ek_http_uri_decode(EK_STR("a%2Fb%3ac"), text, sizeof text, &n), EK_OK);
    assert_int_equal(n, 5);
    assert_memory_equal(text, "a/b:c", 5);
    assert_int_equal(ek_http_uri_decode(EK_STR("%"), text, sizeof text, &n), EK_EFORMAT);
    assert_int_equal(ek_http_uri_decode(EK_STR("%2"), text, sizeof text, &n), EK_EFORMAT);
    assert_int_equal(ek_http_uri_decode(EK_STR("%zz"), text, sizeof text, &n), EK_EFORMAT);
    assert_int_equal(ek_http_uri_decode(EK_STR("a%00b"), text, sizeof text, &n), EK_EFORMAT);
    assert_int_equal(ek_http_uri_decode(EK_STR("12345678901234567"), text, sizeof text, &n),
                     EK_ERANGE);
}

static void finds_query_values(void **state)
{
    (void)state;
    ek_str value;
    assert_true(ek_http_uri_query(EK_STR("a=1&window=10s&b"), "window", &value));
    assert_true(ek_str_eqz(value, "10s"));
    assert_true(ek_http_uri_query(EK_STR("a=1&b"), "b", &value));
    assert_int_equal(value.len, 0);
    assert_true(ek_http_uri_query(EK_STR("a="), "a", &value));
    assert_int_equal(value.len, 0);
    assert_false(ek_http_uri_query(EK_STR("xa=1&&"), "a", &value));
    assert_false(ek_http_uri_query((ek_str){0}, "a", &value));
}

static void reads_durations(void **state)
{
    (void)state;
    int64_t us = 0;
    assert_int_equal(ek_http_uri_duration_us(EK_STR("10s"), &us), EK_OK);
    assert_int_equal(us, 10000000);
    assert_int_equal(ek_http_uri_duration_us(EK_STR("500ms"), &us), EK_OK);
    assert_int_equal(us, 500000);
    assert_int_equal(ek_http_uri_duration_us(EK_STR("2m"), &us), EK_OK);
    assert_int_equal(us, 120000000);
    assert_int_equal(ek_http_uri_duration_us(EK_STR("3"), &us), EK_OK);
    assert_int_equal(us, 3000000);
    assert_int_equal(ek_http_uri_duration_us(EK_STR(""), &us), EK_EFORMAT);
    assert_int_equal(ek_http_uri_duration_us(EK_STR("-1s"), &us), EK_EFORMAT);
    assert_int_equal(ek_http_uri_duration_us(EK_STR("1h"), &us), EK_EFORMAT);
    assert_int_equal(ek_http_uri_duration_us(EK_STR("99999999999999999999s"), &us), EK_ERANGE);
    assert_int_equal(ek_http_uri_duration_us(EK_STR("86401s"), &us), EK_ERANGE);
}

static void checks_request_ids(void **state)
{
    (void)state;
    char long_id[EK_REQUEST_ID_MAX + 2];
    memset(long_id, 'a', sizeof long_id);
    assert_true(ek_http_request_id_ok((ek_str){long_id, EK_REQUEST_ID_MAX}));
    assert_false(ek_http_request_id_ok((ek_str){long_id, EK_REQUEST_ID_MAX + 1}));
    assert_true(ek_http_request_id_ok(EK_STR("A-z_0.9:x")));
    assert_false(ek_http_request_id_ok(EK_STR("")));
    assert_false(ek_http_request_id_ok(EK_STR("a b")));
    assert_false(ek_http_request_id_ok(EK_STR("a\xc3\xa9")));
    char one[EK_REQUEST_ID_MAX + 1], two[EK_REQUEST_ID_MAX + 1];
    ek_http_request_id(one);
    ek_http_request_id(two);
    assert_true(ek_http_request_id_ok(ek_str_from(one)));
    assert_string_not_equal(one, two);
}

/* Of the ranges that cover a type the closest counts, whatever the order. */
static void weighs_media_types(void **state)
{
    (void)state;
    static const struct {
        const char *accept;
        int32_t json, text;
    } cases[] = {
        {"", 0, 0},
        {"*/*", 1000, 1000},
        {"*/*;q=0.2", 200, 200},
        {"text/plain", 0, 1000},
        {"Text/Plain ; Q=0.125", 0, 125},
        {"text/*;q=0.5, text/plain;q=0.1, */*;q=1", 1000, 100},
        {"text/plain;q=0, */*", 1000, 0},
        {"text/plain;version=0.0.4;q=0.3, application/json;q=0.25", 250, 300},
        {"text/plain;version=\"0.0.4\";q=0.3", 0, 300},
        {"text/plain;version=1.0.0;q=0.4,text/plain;version=0.0.4;q=0.3", 0, 300},
        {"text/plain;q=0.3, text/plain;charset=utf-8;q=0.4", 0, 400},
        {"text/plain;x=\"a, application/json\"", 0, 1000},
        {"application/json;q=1.001", 0, 0},
        {"application/json;q=2", 0, 0},
        {"application/json;q=-1", 0, 0},
        {"application/json;q=", 0, 0},
        {"application/json;q=0.1234", 0, 0},
        {"application/jsonx, application/jso, application", 0, 0},
        {"*/json, text/plain/*", 0, 0},
        {",, ;; ,application/json;;q=0.5,", 500, 0},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_str accept = ek_str_from(cases[i].accept);
        int32_t json = ek_http_media_weight(accept, "application/json", "1");
        int32_t text = ek_http_media_weight(accept, "text/plain", "0.0.4");
        if (json != cases[i].json || text != cases[i].text)
            print_message("%s: %d, %d\n", cases[i].accept, json, text);
        assert_int_equal(json, cases[i].json);
        assert_int_equal(text, cases[i].text);
    }
}

#define TRACE "4bf92f3577b34da6a3ce929d0e0e4736"
#define SPAN  "00f067aa0ba902b7"

/* What W3C's Trace Context calls valid, and nothing else. */
static void reads_traceparents(void **state)
{
    (void)state;
    static const char *const good[] = {
        "00-" TRACE "-" SPAN "-01",
        "00-" TRACE "-" SPAN "-00",
        "00-" TRACE "-" SPAN "-ff",
        "01-" TRACE "-" SPAN "-01",
        "cc-" TRACE "-" SPAN "-01-what-the-future-will-be-like",
        "cc-" TRACE "-" SPAN "-01-",
    };
    static const char *const bad[] = {
        "",
        "00",
        "00-" TRACE "-" SPAN,
        "00-" TRACE "-" SPAN "-",
        "00-" TRACE "-" SPAN "-1",
        "00-" TRACE "-" SPAN "-01-",
        "00-" TRACE "-" SPAN "-01-more",
        "00-" TRACE "-" SPAN "-011",
        "cc-" TRACE "-" SPAN "-01.what",
        "ff-" TRACE "-" SPAN "-01",
        "0-" TRACE "-" SPAN "-01",
        "0G-" TRACE "-" SPAN "-01",
        "00-4BF92F3577B34DA6A3CE929D0E0E4736-" SPAN "-01",
        "00-00000000000000000000000000000000-" SPAN "-01",
        "00-" TRACE "-0000000000000000-01",
        "00-4bf92f3577b34da6a3ce929d0e0e473-" SPAN "-01",
        "00-" TRACE "0-" SPAN "-01",
        "00-" TRACE "-00f067aa0ba902b-01",
        "00-" TRACE "-" SPAN "-0g",
        "00_" TRACE "_" SPAN "_01",
        " 00-" TRACE "-" SPAN "-01",
    };
    for (size_t i = 0; i < EK_COUNT_OF(good); i++) {
        char id[EK_TRACE_ID_DIGITS + 1] = "";
        assert_true(ek_http_traceparent_parse(ek_str_from(good[i]), id));
        assert_string_equal(id, TRACE);
    }
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++) {
        char id[EK_TRACE_ID_DIGITS + 1] = "untouched";
        if (ek_http_traceparent_parse(ek_str_from(bad[i]), id))
            print_message("taken: %s\n", bad[i]);
        assert_string_equal(id, "untouched");
    }
}

static void trace_of(const char *fields, char id[EK_TRACE_ID_DIGITS + 1])
{
    char text[512];
    ek_head head;
    ek_fault fault;
    int n = snprintf(text, sizeof text, "GET / HTTP/1.1\r\nHost: a\r\n%s\r\n", fields);
    assert_int_equal(ek_http_head_parse((ek_str){text, (size_t)n}, &head, &fault), EK_OK);
    ek_http_traceparent_of(&head, id);
}

/* A trace is taken over, or begun anew where it cannot be read. */
static void restarts_broken_traces(void **state)
{
    (void)state;
    char id[EK_TRACE_ID_DIGITS + 1], other[EK_TRACE_ID_DIGITS + 1];
    trace_of("", id);
    assert_string_equal(id, "");
    trace_of("TraceParent: 00-" TRACE "-" SPAN "-01\r\ntracestate: a=b\r\n", id);
    assert_string_equal(id, TRACE);
    static const char *const broken[] = {
        "traceparent: 00-x\r\n",
        "traceparent:\r\n",
        "traceparent: 00-" TRACE "-" SPAN "-01\r\ntraceparent: 00-" TRACE "-" SPAN "-01\r\n",
    };
    for (size_t i = 0; i < EK_COUNT_OF(broken); i++) {
        trace_of(broken[i], id);
        trace_of(broken[i], other);
        assert_int_equal(strlen(id), EK_TRACE_ID_DIGITS);
        assert_int_equal(strspn(id, "0123456789abcdef"), EK_TRACE_ID_DIGITS);
        assert_string_not_equal(id, TRACE);
        assert_string_not_equal(id, other);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(escapes_what_clients_stumble_over),
        cmocka_unit_test(replaces_what_is_not_utf8),
        cmocka_unit_test(always_writes_valid_json),
        cmocka_unit_test(writes_numbers),
        cmocka_unit_test(buffers_grow_and_remember_failure),
        cmocka_unit_test(decodes_percents),
        cmocka_unit_test(finds_query_values),
        cmocka_unit_test(reads_durations),
        cmocka_unit_test(checks_request_ids),
        cmocka_unit_test(weighs_media_types),
        cmocka_unit_test(reads_traceparents),
        cmocka_unit_test(restarts_broken_traces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
