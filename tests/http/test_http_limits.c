/*
 * What a server allows one client: length of head and body, number of connections, time; and that
 * clients that vanish at any moment leave nothing behind. Case V3.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client.h"
#include "site.h"

#define ECHO    "/echo"
#define WAIT_MS 20000

static void limits_the_head(void **state)
{
    (void)state;
    site *s = site_make_open();
    size_t max = s->service.limits.header_bytes_max;
    char *text = malloc(max + 100);
    const char *begin = "GET /livez HTTP/1.1\r\nHost: a\r\nX: ";
    for (int over = 0; over < 2; over++) {
        size_t n = max - 4 + (size_t)over;
        memset(text, 'x', n);
        memcpy(text, begin, strlen(begin));
        memcpy(text + n, "\r\n\r\n", 5);
        reply r = request_raw(s->address, text);
        if (over) {
            assert_error(&r, 431, "headers_too_large", NULL);
        } else {
            assert_int_equal(r.status, 200);
        }
        reply_free(&r);
    }
    char *many = calloc(1, 8192);
    int at = snprintf(many, 8192, "GET /livez HTTP/1.1\r\nHost: a\r\n");
    for (int i = 0; i < 120; i++)
        at += snprintf(many + at, 8192 - (size_t)at, "a%d: b\r\n", i);
    snprintf(many + at, 8192 - (size_t)at, "\r\n");
    reply r = request_raw(s->address, many);
    assert_error(&r, 431, "headers_too_large", NULL);
    reply_free(&r);
    free(many);
    free(text);
    site_end(s);
}

/* V3: a length over the cap is refused before a byte of the body is read. */
static void v3_refuses_a_long_body_by_its_length(void **state)
{
    (void)state;
    site *s = site_make_open();
    char text[256];
    snprintf(text, sizeof text, "POST " ECHO " HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n",
             s->service.limits.body_bytes_max + 1);
    reply r = request_raw(s->address, text);
    assert_error(&r, 413, "request_too_large", NULL);
    assert_true(reply_header_is(&r, "Connection", "close"));
    reply_free(&r);
    /* A client that asks first is spared the sending. */
    snprintf(text, sizeof text,
             "POST " ECHO
             " HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n");
    r = request_raw(s->address, text);
    assert_error(&r, 413, "request_too_large", NULL);
    reply_free(&r);
    snprintf(
        text, sizeof text,
        "POST /nope HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n");
    r = request_raw(s->address, text);
    assert_error(&r, 404, "not_found", NULL);
    reply_free(&r);
    /* The cap itself is fine. */
    size_t max = s->service.limits.body_bytes_max;
    char *body = malloc(max + 1);
    memset(body, ' ', max);
    body[max] = '\0';
    r = request_post(s->address, ECHO, body);
    assert_int_equal(r.status, 200);
    assert_int_equal(r.n_body, max);
    reply_free(&r);
    free(body);
    site_end(s);
}

static bool send_chunks(client *c, size_t n_bytes)
{
    char chunk[4096 + 16];
    int n_head = snprintf(chunk, sizeof chunk, "1000\r\n");
    memset(chunk + n_head, ' ', 4096);
    memcpy(chunk + n_head + 4096, "\r\n", 2);
    for (size_t sent = 0; sent < n_bytes; sent += 4096)
        if (!client_send(c, chunk, (size_t)n_head + 4098)) return false;
    return true;
}

/* V3: without a length the cap is noticed while reading, and memory stays flat whatever comes. */
static void v3_refuses_a_long_chunked_body(void **state)
{
    (void)state;
    site *s = site_make_open();
    client c = client_open(s->address);
    client_sendz(&c, "POST " ECHO " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    send_chunks(&c, s->service.limits.body_bytes_max + 65536);
    reply r = client_reply(&c, WAIT_MS);
    assert_error(&r, 413, "request_too_large", NULL);
    assert_true(reply_header_is(&r, "Connection", "close"));
    reply_free(&r);
    uint64_t before = ek_sys_mem_resident();
    send_chunks(&c, 64 << 20); /* until the server has had enough */
    assert_true(client_sees_end(&c, WAIT_MS));
    uint64_t after = ek_sys_mem_resident();
    assert_true(after < before + (8 << 20));
    client_close(&c);
    /*
     * A chunked body within the cap is read; its connection ends, since its length on the wire is
     * unknown.
     */
    c = client_open(s->address);
    client_sendz(&c, "POST " ECHO " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    client_sendz(&c, "1\r\n{\r\n1\r\n}\r\n0\r\n\r\n");
    r = client_reply(&c, WAIT_MS);
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, "{}");
    assert_true(reply_header_is(&r, "Connection", "close"));
    reply_free(&r);
    client_close(&c);
    site_end(s);
}

/*
 * Bodies are bounded together too: what does not fit any more is refused, what is there is not
 * disturbed.
 */
static void limits_all_bodies_together(void **state)
{
    (void)state;
    enum { N = 40, BYTES = 60000 };
    site *s = site_make();
    s->service.limits.body_bytes_max = 65536;
    s->service.limits.bodies_bytes_max = 16 * 65536;
    site_open(s);
    client c[N];
    char *body = malloc(BYTES);
    memset(body, ' ', BYTES);
    for (int i = 0; i < N; i++) { /* all but the last byte, so that all are held */
        c[i] = client_open(s->address);
        char head[128];
        snprintf(head, sizeof head,
                 "POST " ECHO " HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n", BYTES);
        client_sendz(&c[i], head);
        client_send(&c[i], body, BYTES - 1);
    }
    int64_t end = now_ms() + WAIT_MS;
    while (site_metric(s, "evenkeel_http_body_bytes") < 14 * 65536 && now_ms() < end)
        sleep_ms(2);
    assert_true(site_metric(s, "evenkeel_http_body_bytes") <= 18 * 65536);
    int n_refused = 0;
    for (int i = 0; i < N; i++) {
        client_sendz(&c[i], " ");
        reply r = client_reply(&c[i], WAIT_MS);
        assert_true(r.status == 200 || r.status == 503);
        if (r.status == 503) assert_error(&r, 503, "server_overloaded", NULL);
        n_refused += r.status == 503;
        reply_free(&r);
        client_close(&c[i]);
    }
    assert_true(n_refused >= N - 20);
    free(body);
    site_end(s);
}

static void limits_connections(void **state)
{
    (void)state;
    site *s = site_make();
    s->service.limits.connections_max = 4;
    site_open(s);
    client c[4];
    for (int i = 0; i < 4; i++) {
        c[i] = client_open(s->address);
        client_get(&c[i], "/livez");
        reply r = client_reply(&c[i], WAIT_MS);
        assert_int_equal(r.status, 200);
        reply_free(&r);
    }
    client extra = client_open(s->address);
    reply r = client_reply(&extra, WAIT_MS);
    assert_error(&r, 503, "server_overloaded", NULL);
    reply_free(&r);
    client_close(&extra);
    client_close(&c[0]);
    assert_true(site_awaits(s, "evenkeel_http_connections", 3, WAIT_MS));
    r = request_get(s->address, "/livez"); /* there is room again */
    assert_int_equal(r.status, 200);
    reply_free(&r);
    for (int i = 1; i < 4; i++)
        client_close(&c[i]);
    site_end(s);

    s = site_make();
    s->service.limits.connections_per_ip_max = 2;
    site_open(s);
    c[0] = client_open(s->address);
    c[1] = client_open(s->address);
    extra = client_open(s->address);
    r = client_reply(&extra, WAIT_MS);
    assert_error(&r, 429, "concurrency_limit", NULL);
    reply_free(&r);
    client_close(&extra);
    client_close(&c[0]);
    client_close(&c[1]);
    site_end(s);
}

/* ---- time ---- */

/* A byte now and then keeps no connection open: the head has to be whole in time. */
static void ends_a_dripping_head(void **state)
{
    (void)state;
    site *s = site_make();
    s->service.limits.header_timeout_us = 300000;
    site_open(s);
    for (int later = 0; later < 2; later++) {
        client c = client_open(s->address);
        if (later) {
            client_get(&c, "/livez");
            reply r = client_reply(&c, WAIT_MS);
            assert_int_equal(r.status, 200);
            reply_free(&r);
        }
        int64_t start = now_ms();
        const char *drip =
            "GET /livez HTTP/1.1\r\nX: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
        for (const char *at = drip; *at && !client_sees(&c, "\r\n\r\n", 20); at++)
            if (!client_send(&c, at, 1)) break;
        reply r = client_reply(&c, WAIT_MS);
        assert_error(&r, 408, "client_timeout", NULL);
        reply_free(&r);
        assert_true(client_sees_end(&c, WAIT_MS));
        assert_in_range(now_ms() - start, 250, 5000);
        client_close(&c);
    }
    client silent = client_open(s->address); /* says nothing, is told nothing */
    assert_true(client_sees_end(&silent, WAIT_MS));
    assert_int_equal(silent.len, 0);
    client_close(&silent);
    site_end(s);
}

static void ends_a_dripping_body(void **state)
{
    (void)state;
    site *s = site_make();
    s->service.limits.body_timeout_us = 300000;
    site_open(s);
    client c = client_open(s->address);
    client_sendz(&c, "POST " ECHO " HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    int64_t start = now_ms();
    while (now_ms() - start < 5000 && !client_sees(&c, "\r\n\r\n", 20))
        if (!client_sendz(&c, " ")) break;
    reply r = client_reply(&c, WAIT_MS);
    assert_error(&r, 408, "client_timeout", NULL);
    reply_free(&r);
    assert_true(client_sees_end(&c, WAIT_MS));
    client_close(&c);
    site_end(s);
}

static void ends_idle_connections(void **state)
{
    (void)state;
    site *s = site_make();
    s->service.limits.idle_timeout_us = 300000;
    site_open(s);
    client c = client_open(s->address);
    client_get(&c, "/livez");
    reply r = client_reply(&c, WAIT_MS);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    int64_t start = now_ms();
    assert_true(client_sees_end(&c, WAIT_MS));
    assert_in_range(now_ms() - start, 200, 5000);
    client_close(&c);
    site_end(s);
}

/* Clients that vanish at any moment, politely or not, leave nothing behind. */
static void forgets_clients_that_vanish(void **state)
{
    (void)state;
    site *s = site_make_open();
    const char *text = "POST " ECHO " HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789";
    for (size_t n = 0; n <= strlen(text); n++) {
        client c = client_open(s->address);
        client_send(&c, text, n);
        if (n % 2) {
            client_reset(&c);
        } else {
            client_close(&c);
        }
    }
    site_end(s);
}

static void closes_with_connections_in_every_state(void **state)
{
    (void)state;
    site *s = site_make_open();
    client c[6];
    for (int i = 0; i < 6; i++)
        c[i] = client_open(s->address);
    client_sendz(&c[1], "GET /livez HT");
    client_sendz(&c[2], "POST " ECHO " HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n012");
    client_get(&c[3], "/livez");
    reply r = client_reply(&c[3], WAIT_MS);
    reply_free(&r);
    client_sendz(&c[4], "bad\n");
    client_sendz(&c[5],
                 "POST " ECHO " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{");
    sleep_ms(50);
    site_close(s);
    for (int i = 0; i < 6; i++) {
        assert_true(client_sees_end(&c[i], WAIT_MS));
        client_close(&c[i]);
    }
}

/* ---- start ---- */

static void says_why_it_cannot_listen(void **state)
{
    (void)state;
    site *s = site_make_open();
    static const struct {
        const char *listen;
        ek_status status;
    } cases[] = {
        {"example.org:80", EK_EINVAL},
        {"127.0.0.1", EK_EINVAL},
        {"127.0.0.1:x", EK_EINVAL},
        {"127.0.0.1:65536", EK_EINVAL},
        {"[::1:80", EK_EINVAL},
        {"192.0.2.1:0", EK_EINVAL},
        {"", EK_EINVAL},
        {NULL, EK_EINUSE},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const ek_http_server_params params = {
            .listen = cases[i].listen ? cases[i].listen : s->address,
            .service = &s->service,
            .ctx = s,
            .name = "ek-door",
        };
        ek_http_server *second = NULL;
        ek_err err = {0};
        assert_int_equal(ek_http_server_create(&params, &second, &err), cases[i].status);
        assert_null(second);
        assert_non_null(strstr(err.text, params.listen));
    }
    const ek_http_server_params params = {
        .listen = "[::1]:0", .service = &s->service, .ctx = s, .name = "ek-door"};
    ek_http_server *second = NULL;
    if (ek_http_server_create(&params, &second, NULL) == EK_OK) {
        assert_int_equal(strncmp(ek_http_server_address(second), "[::1]:", 6), 0);
        ek_http_server_destroy(second);
    } else {
        print_message("no IPv6 loopback here\n");
    }
    site_end(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(limits_the_head),
        cmocka_unit_test(v3_refuses_a_long_body_by_its_length),
        cmocka_unit_test(v3_refuses_a_long_chunked_body),
        cmocka_unit_test(limits_all_bodies_together),
        cmocka_unit_test(limits_connections),
        cmocka_unit_test(ends_a_dripping_head),
        cmocka_unit_test(ends_a_dripping_body),
        cmocka_unit_test(ends_idle_connections),
        cmocka_unit_test(forgets_clients_that_vanish),
        cmocka_unit_test(closes_with_connections_in_every_state),
        cmocka_unit_test(says_why_it_cannot_listen),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
