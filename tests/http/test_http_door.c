/*
 * The door with bytes that no client library would send: heads that hide requests, requests in
 * pieces, behind each other, and half closed; and streams that are read slowly or not to their end.
 * Case E8.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "client.h"
#include "site.h"

#define ECHO    "/echo"
#define WAIT_MS 20000

static void answers_head_requests_without_a_body(void **state)
{
    (void)state;
    site *s = site_make_open();
    client c = client_open(s->address);
    for (int i = 0; i < 2; i++) {
        client_sendz(&c, "HEAD /livez HTTP/1.1\r\nHost: a\r\n\r\n");
        reply r = client_reply_head(&c, WAIT_MS);
        assert_int_equal(r.status, 200);
        assert_true(reply_header_is(&r, "Content-Length", "15"));
        reply_free(&r);
    }
    client_get(&c, "/livez");
    reply r = client_reply(&c, WAIT_MS);
    assert_string_equal(r.body, "{\"status\":\"ok\"}");
    reply_free(&r);
    client_close(&c);
    site_end(s);
}

static void echoes_good_request_ids_only(void **state)
{
    (void)state;
    site *s = site_make_open();
    reply r =
        request_raw(s->address, "GET /livez HTTP/1.1\r\nHost: a\r\nX-Request-Id: a.B_9:-\r\n\r\n");
    assert_true(reply_header_is(&r, "x-request-id", "a.B_9:-"));
    reply_free(&r);
    r = request_raw(s->address, "GET /nope HTTP/1.1\r\nHost: a\r\nX-Request-Id: a.b\r\n\r\n");
    assert_int_equal(r.status, 404);
    assert_true(reply_header_is(&r, "x-request-id", "a.b"));
    reply_free(&r);
    r = request_raw(s->address, "GET /livez HTTP/1.1\r\nHost: a\r\nX-Request-Id: a b\r\n\r\n");
    char *id = reply_header(&r, "x-request-id");
    assert_int_equal(strncmp(id, "req-", 4), 0);
    free(id);
    reply_free(&r);
    /*
     * Also where the door answers: with the id of this request if it has one, never of the one
     * before.
     */
    client c = client_open(s->address);
    client_sendz(&c, "GET /livez HTTP/1.1\r\nHost: a\r\nX-Request-Id: first\r\n\r\n");
    r = client_reply(&c, WAIT_MS);
    assert_true(reply_header_is(&r, "x-request-id", "first"));
    reply_free(&r);
    client_sendz(&c, "POST " ECHO " HTTP/1.1\r\nHost: a\r\nX-Request-Id: second\r\n"
                     "Content-Length: 99999999\r\n\r\n");
    r = client_reply(&c, WAIT_MS);
    assert_int_equal(r.status, 413);
    assert_true(reply_header_is(&r, "x-request-id", "second"));
    reply_free(&r);
    client_close(&c);
    c = client_open(s->address);
    client_sendz(&c, "GET /livez HTTP/1.1\r\nHost: a\r\nX-Request-Id: first\r\n\r\n");
    r = client_reply(&c, WAIT_MS);
    reply_free(&r);
    client_sendz(&c, "BAD\n");
    r = client_reply(&c, WAIT_MS);
    client_close(&c);
    assert_int_equal(r.status, 400);
    id = reply_header(&r, "x-request-id");
    assert_int_equal(strncmp(id, "req-", 4), 0);
    free(id);
    reply_free(&r);
    site_end(s);
}

/* ---- E8: one request in another ---- */

static void e8_refuses_smuggling_and_closes(void **state)
{
    (void)state;
    site *s = site_make_open();
    static const char *const heads[] = {
        ("Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /livez "
         "HTTP/1.1\r\n\r\n"),
        "Transfer-Encoding: chunked\r\nContent-Length: 4\r\n\r\n0\r\n\r\n",
        "Content-Length: 4\r\nContent-Length: 40\r\n\r\nabcd",
        "Content-Length: 4\r\nContent-Length: 4\r\n\r\nabcd",
        "Content-Length: 4\n\nabcd",
        "X: a\nContent-Length: 4\r\n\r\nabcd",
        "X: a\r\n b\r\n\r\n",
        "Content-Length : 4\r\n\r\nabcd",
        "Transfer-Encoding: gzip\r\n\r\nabcd",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n",
        "Host: second\r\n\r\n",
    };
    for (size_t i = 0; i < sizeof heads / sizeof heads[0]; i++) {
        for (int later = 0; later < 2;
             later++) { /* first on its connection, and after a good one */
            client c = client_open(s->address);
            reply r;
            if (later) {
                client_get(&c, "/livez");
                r = client_reply(&c, WAIT_MS);
                assert_int_equal(r.status, 200);
                reply_free(&r);
            }
            client_sendz(&c, "POST " ECHO " HTTP/1.1\r\nHost: a\r\n");
            client_sendz(&c, heads[i]);
            r = client_reply(&c, WAIT_MS);
            assert_error(&r, 400, "malformed_request", NULL);
            assert_true(reply_header_is(&r, "Connection", "close"));
            reply_free(&r);
            assert_true(client_sees_end(&c, WAIT_MS)); /* and nothing more is said */
            assert_int_equal(c.len, 0);
            client_close(&c);
        }
    }
    client c = client_open(s->address);
    client_send(&c, "GET /livez HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 40);
    reply r = client_reply(&c, WAIT_MS);
    assert_error(&r, 400, "malformed_request", NULL);
    reply_free(&r);
    client_close(&c);
    r = request_raw(s->address, "GET /livez HTTP/3.0\r\nHost: a\r\n\r\n");
    assert_error(&r, 505, "http_version_not_supported", NULL);
    reply_free(&r);
    r = request_raw(s->address, "GET /livez HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n");
    assert_error(&r, 417, "expectation_failed", NULL);
    reply_free(&r);
    site_end(s);
}

/*
 * Framing inside of a chunked body is MHD's to read: what is wrong there ends the connection, and
 * no request runs.
 */
static void refuses_bad_chunks(void **state)
{
    (void)state;
    site *s = site_make_open();
    static const char *const bodies[] = {"x\r\n{}\r\n0\r\n\r\n", "-2\r\n{}\r\n0\r\n\r\n",
                                         "fffffffffffffffff\r\n{}\r\n0\r\n\r\n"};
    for (int i = 0; i < 3; i++) {
        client c = client_open(s->address);
        client_sendz(&c, "POST " ECHO " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        client_sendz(&c, bodies[i]);
        reply r = client_reply(&c, WAIT_MS);
        assert_true(r.status == 400 || r.status == 413);
        reply_free(&r);
        assert_true(client_sees_end(&c, WAIT_MS));
        client_close(&c);
    }
    assert_true(site_metric(s, "evenkeel_http_requests_total{code=\"200\"}") == 0);
    site_end(s);
}

/*
 * What the door lets through MHD takes as well: every character that may be there, in every place.
 */
static void agrees_with_the_library_on_every_character(void **state)
{
    (void)state;
    static const char *const shapes[] = {
        "GET /a%cb HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a?b%cc HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a?%c=%%zz HTTP/1.1\r\nHost: a\r\n\r\n",
        "G%cT /a HTTP/1.1\r\nHost: a\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a\r\nX%cY: z\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a\r\nX: y%cz\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a%c\r\n\r\n",
        "GET /a HTTP/1.1\r\nHost: a\r\nCookie: y=%c; z\r\n\r\n",
        "GET http://h/a%c HTTP/1.1\r\nHost: a\r\n\r\n",
    };
    site *s = site_make_open();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int c = 1; c < 256; c++) {
            char text[256];
            snprintf(text, sizeof text, shapes[i], c);
            reply r = request_raw(s->address, text);
            if (r.status < 400) print_message("status %d for %s\n", r.status, text);
            assert_true(r.status == 400 || r.status == 404 || r.status == 405);
            assert_true(strlen(reply_error_code(&r)) > 0); /* and it is ours, as JSON */
            reply_free(&r);
        }
    }
    site_end(s);
}

/*
 * A request behind another in the same packet would be read without having been checked: the first
 * one is answered as the connection's last, the second never.
 */
static void answers_no_pipelined_request(void **state)
{
    (void)state;
    site *s = site_make_open();
    static const char *const pairs[] = {
        "GET /livez HTTP/1.1\r\nHost: a\r\n\r\nGET /livez HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST " ECHO
        " HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}GET /livez HTTP/1.1\r\nHost: "
        "a\r\n\r\n",
        "POST " ECHO " HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}x",
        "GET /livez HTTP/1.1\r\nHost: a\r\n\r\nx",
    };
    for (int i = 0; i < 4; i++) {
        client c = client_open(s->address);
        client_sendz(&c, pairs[i]);
        reply r = client_reply(&c, WAIT_MS);
        assert_true(r.status == 200);
        assert_true(reply_header_is(&r, "Connection", "close"));
        reply_free(&r);
        assert_true(client_sees_end(&c, WAIT_MS));
        assert_int_equal(c.len, 0);
        client_close(&c);
    }
    site_end(s);
}

static void keeps_connections_alive(void **state)
{
    (void)state;
    site *s = site_make_open();
    client c = client_open(s->address);
    for (int i = 0; i < 200; i++) {
        if (i % 2) {
            client_get(&c, "/livez");
        } else {
            client_post(&c, ECHO, "{}");
        }
        reply r = client_reply(&c, WAIT_MS);
        assert_int_equal(r.status, 200);
        char *connection = reply_header(&r, "Connection");
        assert_null(connection);
        reply_free(&r);
    }
    assert_true(site_metric(s, "evenkeel_http_connections_accepted_total") == 1);
    /* In pieces, with pauses, the next request is as good. */
    const char *pieces[] = {"GE", "T /li", "vez HTTP/1.1\r", "\nHost: a\r\n\r", "\n"};
    for (int i = 0; i < 5; i++) {
        client_sendz(&c, pieces[i]);
        sleep_ms(5);
    }
    reply r = client_reply(&c, WAIT_MS);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    client_sendz(&c, "GET /livez HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
    r = client_reply(&c, WAIT_MS);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    assert_true(client_sees_end(&c, WAIT_MS));
    client_close(&c);
    /* HTTP/1.0 ends with its answer unless it asks to go on. */
    c = client_open(s->address);
    client_sendz(&c, "GET /livez HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    r = client_reply(&c, WAIT_MS);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    client_sendz(&c, "GET /livez HTTP/1.0\r\n\r\n");
    r = client_reply(&c, WAIT_MS);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    assert_true(client_sees_end(&c, WAIT_MS));
    client_close(&c);
    site_end(s);
}

/* ---- streams ---- */

/* A stream is written no faster than it is read, and arrives whole. */
static void streams_no_faster_than_they_are_read(void **state)
{
    (void)state;
    site *s = site_make_open();
    client c = client_open_small(s->address);
    client_get(&c, "/flood");
    assert_true(client_sees(&c, "\r\n\r\n", WAIT_MS));
    sleep_ms(100); /* nobody reads: what the sockets hold is written, and no more */
    assert_true(s->n_written < SITE_FLOOD_BYTES / 2);
    reply r = client_reply(&c, WAIT_MS);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.n_body, SITE_FLOOD_BYTES);
    assert_true(reply_header_is(&r, "Content-Type", "text/event-stream; charset=utf-8"));
    assert_int_equal(s->n_abandoned, 0);
    reply_free(&r);
    client_get(&c, "/livez");
    r = client_reply(&c, WAIT_MS);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    client_close(&c);
    site_end(s);
}

/* Whoever leaves before the answer is there, or in the middle of it, is given up once. */
static void gives_up_clients_that_leave(void **state)
{
    (void)state;
    enum { N = 40 };
    site *s = site_make_open();
    for (int i = 0; i < N; i++) {
        client c = client_open_small(s->address);
        client_get(&c, i % 2 ? "/flood" : "/hang");
        if (i % 2) assert_true(client_sees(&c, "\r\n\r\n", WAIT_MS));
        if (i % 4 < 2) {
            client_reset(&c);
        } else {
            client_close(&c);
        }
    }
    assert_true(site_awaits(s, "evenkeel_http_requests_open", 0, WAIT_MS));
    /* A stream had begun, so its end is certain to be told; who hangs may leave before that. */
    assert_in_range(s->n_abandoned, N / 2, N);
    assert_in_range(site_metric(s, "evenkeel_http_requests_total{code=\"499\"}"), N / 2, N);
    site_end(s);
}

/* A client that closes its side after a quick request still gets the answer. */
static void answers_a_half_closed_client(void **state)
{
    (void)state;
    site *s = site_make_open();
    for (int i = 0; i < 50; i++) {
        client c = client_open(s->address);
        client_get(&c, "/livez");
        shutdown(c.fd, SHUT_WR);
        reply r = client_reply(&c, WAIT_MS);
        assert_int_equal(r.status, 200);
        reply_free(&r);
        assert_true(client_sees_end(&c, WAIT_MS));
        client_close(&c);
    }
    site_end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_head_requests_without_a_body),
        cmocka_unit_test(echoes_good_request_ids_only),
        cmocka_unit_test(e8_refuses_smuggling_and_closes),
        cmocka_unit_test(refuses_bad_chunks),
        cmocka_unit_test(agrees_with_the_library_on_every_character),
        cmocka_unit_test(answers_no_pipelined_request),
        cmocka_unit_test(keeps_connections_alive),
        cmocka_unit_test(streams_no_faster_than_they_are_read),
        cmocka_unit_test(gives_up_clients_that_leave),
        cmocka_unit_test(answers_a_half_closed_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
