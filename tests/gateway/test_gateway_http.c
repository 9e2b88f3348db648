/*
 * The HTTP side with bytes that no client library would send: wrong paths and methods, heads that
 * hide requests, requests in pieces, behind each other, and half closed; while the model "is being
 * loaded", so that nothing but HTTP is at work. Cases E1, E8, V15, H2.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "client.h"
#include "house.h"
#include "sys/thread.h"

#define CHAT    "/v1/chat/completions"
#define WAIT_MS 20000

static house *open_plain(void)
{
    house *h = house_make();
    house_open_gateway(h);
    return h;
}

/* ---- routes ---- */

/* H2: while loading we are alive and not ready, and the model's routes say to come again. */
static void h2_says_what_it_is_while_loading(void **state)
{
    (void)state;
    house *h = open_plain();
    const char *const addresses[] = {h->address, h->health};
    for (int i = 0; i < 2; i++) {
        static const struct {
            const char *path;
            int status;
            const char *text;
        } cases[] = {
            {"/livez", 200, "{\"status\":\"ok\"}"},
            {"/liveness", 200, "{\"status\":\"ok\"}"},
            {"/health/live", 200, "{\"status\":\"ok\"}"},
            {"/readyz", 503, "{\"status\":\"loading\"}"},
            {"/readiness", 503, "{\"status\":\"loading\"}"},
            {"/health", 503, "{\"status\":\"loading\"}"},
            {"/health/ready", 503, "{\"status\":\"loading\"}"},
        };
        for (size_t k = 0; k < sizeof cases / sizeof cases[0]; k++) {
            reply r = request_get(addresses[i], cases[k].path);
            assert_int_equal(r.status, cases[k].status);
            assert_string_equal(r.body, cases[k].text);
            if (r.status == 503) assert_true(reply_header_is(&r, "Retry-After", "5"));
            reply_free(&r);
        }
        reply r = request_get(addresses[i], "/metrics");
        assert_int_equal(r.status, 200);
        assert_true(
            reply_header_is(&r, "Content-Type", "text/plain; version=0.0.4; charset=utf-8"));
        assert_non_null(strstr(r.body, "# TYPE evenkeel_http_connections gauge"));
        reply_free(&r);
        r = request_get(addresses[i], "/version");
        assert_int_equal(r.status, 200);
        reply_free(&r);
    }
    static const char *const model_routes[] = {CHAT, "/v1/completions", "/tokenize", "/detokenize"};
    for (int i = 0; i < 4; i++) {
        reply r = request_post(h->address, model_routes[i], "{\"prompt\":\"x\"}");
        assert_error(&r, 503, "model_loading", NULL);
        reply_free(&r);
    }
    house_end(h);
}

typedef struct scraper {
    const house *h;
    _Atomic bool stop;
    int n_scrapes;
} scraper;

static void scrape(void *ctx)
{
    scraper *s = ctx;
    while (!s->stop || s->n_scrapes == 0) {
        reply r = request_get(s->h->health, "/metrics");
        assert_int_equal(r.status, 200);
        reply_free(&r);
        s->n_scrapes++;
    }
}

/* H2: metrics are given while the engine is being made and registers its own. */
static void h2_gives_metrics_while_a_model_loads(void **state)
{
    (void)state;
    house *h = open_plain();
    scraper s = {.h = h};
    ek_sys_thread thread = {0};
    assert_int_equal(ek_sys_thread_start(&thread, "scraper", scrape, &s), EK_OK);
    house_attach(h);
    s.stop = true;
    ek_sys_thread_join(&thread);
    reply r = request_get(h->health, "/metrics");
    assert_non_null(strstr(r.body, "evenkeel_requests_running"));
    reply_free(&r);
    r = request_get(h->address, "/readyz");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    house_end(h);
}

/* E1, V15: unknown paths and wrong methods are told as JSON, with the methods that would do. */
static void v15_wrong_paths_and_methods(void **state)
{
    (void)state;
    house *h = open_plain();
    static const char *const unknown[] = {
        "/v1/chat/completion", "/v1", "/v1/models/", "/livez/", "/x?livez", "//livez", "/page/",
        "/page/../etc/passwd"};
    reply r = request_post(h->address, "/v1/chat/completion", "{}");
    assert_error(&r, 404, "not_found", NULL);
    reply_free(&r);
    for (size_t i = 0; i < sizeof unknown / sizeof unknown[0]; i++) {
        r = request_get(h->address, unknown[i]);
        assert_error(&r, 404, "not_found", NULL);
        reply_free(&r);
    }
    r = request_get(h->address, CHAT);
    assert_error(&r, 405, "method_not_allowed", NULL);
    assert_true(reply_header_is(&r, "Allow", "POST"));
    reply_free(&r);
    r = request_post(h->address, "/livez", "{}");
    assert_error(&r, 405, "method_not_allowed", NULL);
    assert_true(reply_header_is(&r, "Allow", "GET, HEAD"));
    reply_free(&r);
    r = request_raw(h->address, "OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n");
    assert_error(&r, 404, "not_found", NULL);
    reply_free(&r);
    /* The health daemon knows its own routes only. */
    r = request_get(h->health, "/v1/models");
    assert_error(&r, 404, "not_found", NULL);
    reply_free(&r);
    house_end(h);
}

static void serves_models_from_memory(void **state)
{
    (void)state;
    house *h = open_plain();
    reply r = request_get(h->address, "/v1/models");
    assert_int_equal(r.status, 200);
    json_t *root = reply_json(&r);
    assert_string_equal(json_string_value(json_object_get(root, "object")), "list");
    const json_t *model = json_array_get(json_object_get(root, "data"), 0);
    assert_string_equal(json_string_value(json_object_get(model, "id")), HOUSE_MODEL_ID);
    assert_string_equal(json_string_value(json_object_get(model, "object")), "model");
    assert_true(json_is_integer(json_object_get(model, "created")));
    assert_true(json_is_string(json_object_get(model, "owned_by")));
    json_decref(root);
    reply_free(&r);
    static const char *const spellings[] = {"shop/tiny:1", "shop%2Ftiny%3A1", "shop%2ftiny:1"};
    for (int i = 0; i < 3; i++) {
        char path[64];
        snprintf(path, sizeof path, "/v1/models/%s", spellings[i]);
        r = request_get(h->address, path);
        assert_int_equal(r.status, 200);
        reply_free(&r);
    }
    static const char *const others[] = {"shop", "shop/tiny:1x", "%", "a%00", "shop%252Ftiny:1"};
    for (int i = 0; i < 5; i++) {
        char path[64];
        snprintf(path, sizeof path, "/v1/models/%s", others[i]);
        r = request_get(h->address, path);
        assert_error(&r, 404, "model_not_found", "model");
        reply_free(&r);
    }
    house_end(h);
}

static void answers_head_requests_without_a_body(void **state)
{
    (void)state;
    house *h = open_plain();
    client c = client_open(h->address);
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
    house_end(h);
}

static void checks_the_content_type(void **state)
{
    (void)state;
    house *h = open_plain();
    static const struct {
        const char *headers;
        int status;
    } cases[] = {
        {"Content-Type: application/json\r\n", 503},
        {"Content-Type: Application/JSON; charset=utf-8\r\n", 503},
        {"", 503},
        {"Content-Type: application/json\r\nContent-Encoding: identity\r\n", 503},
        {"Content-Type: text/plain\r\n", 415},
        {"Content-Type: application/x-www-form-urlencoded\r\n", 415},
        {"Content-Type: application/jsonx\r\n", 415},
        {"Content-Type: application/json\r\nContent-Encoding: gzip\r\n", 415},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        char text[512];
        snprintf(text, sizeof text, "POST %s HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n%s\r\n{}",
                 CHAT, cases[i].headers);
        reply r = request_raw(h->address, text);
        assert_error(&r, cases[i].status,
                     cases[i].status == 415 ? "unsupported_media_type" : "model_loading", NULL);
        reply_free(&r);
    }
    house_end(h);
}

static void echoes_good_request_ids_only(void **state)
{
    (void)state;
    house *h = open_plain();
    reply r =
        request_raw(h->address, "GET /livez HTTP/1.1\r\nHost: a\r\nX-Request-Id: a.B_9:-\r\n\r\n");
    assert_true(reply_header_is(&r, "x-request-id", "a.B_9:-"));
    reply_free(&r);
    r = request_raw(h->address, "GET /nope HTTP/1.1\r\nHost: a\r\nX-Request-Id: a.b\r\n\r\n");
    assert_int_equal(r.status, 404);
    assert_true(reply_header_is(&r, "x-request-id", "a.b"));
    reply_free(&r);
    r = request_raw(h->address, "GET /livez HTTP/1.1\r\nHost: a\r\nX-Request-Id: a b\r\n\r\n");
    char *id = reply_header(&r, "x-request-id");
    assert_int_equal(strncmp(id, "req-", 4), 0);
    free(id);
    reply_free(&r);
    /*
     * Also where the door answers: with the id of this request if it has one, never of the one
     * before.
     */
    client c = client_open(h->address);
    client_sendz(&c, "GET /livez HTTP/1.1\r\nHost: a\r\nX-Request-Id: first\r\n\r\n");
    r = client_reply(&c, WAIT_MS);
    assert_true(reply_header_is(&r, "x-request-id", "first"));
    reply_free(&r);
    client_sendz(&c, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nX-Request-Id: second\r\n"
                     "Content-Length: 99999999\r\n\r\n");
    r = client_reply(&c, WAIT_MS);
    assert_int_equal(r.status, 413);
    assert_true(reply_header_is(&r, "x-request-id", "second"));
    reply_free(&r);
    client_close(&c);
    c = client_open(h->address);
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
    house_end(h);
}

/* ---- E8: one request in another ---- */

static void e8_refuses_smuggling_and_closes(void **state)
{
    (void)state;
    house *h = open_plain();
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
            client c = client_open(h->address);
            reply r;
            if (later) {
                client_get(&c, "/livez");
                r = client_reply(&c, WAIT_MS);
                assert_int_equal(r.status, 200);
                reply_free(&r);
            }
            client_sendz(&c, "POST " CHAT " HTTP/1.1\r\nHost: a\r\n");
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
    client c = client_open(h->address);
    client_send(&c, "GET /livez HTTP/1.1\r\nHost: a\r\nX: a\0b\r\n\r\n", 40);
    reply r = client_reply(&c, WAIT_MS);
    assert_error(&r, 400, "malformed_request", NULL);
    reply_free(&r);
    client_close(&c);
    r = request_raw(h->address, "GET /livez HTTP/3.0\r\nHost: a\r\n\r\n");
    assert_error(&r, 505, "http_version_not_supported", NULL);
    reply_free(&r);
    r = request_raw(h->address, "GET /livez HTTP/1.1\r\nHost: a\r\nExpect: tea\r\n\r\n");
    assert_error(&r, 417, "expectation_failed", NULL);
    reply_free(&r);
    house_end(h);
}

/*
 * Framing inside of a chunked body is MHD's to read: what is wrong there ends the connection, and
 * no request runs.
 */
static void refuses_bad_chunks(void **state)
{
    (void)state;
    house *h = open_plain();
    house_attach(h);
    static const char *const bodies[] = {"x\r\n{}\r\n0\r\n\r\n", "-2\r\n{}\r\n0\r\n\r\n",
                                         "fffffffffffffffff\r\n{}\r\n0\r\n\r\n"};
    for (int i = 0; i < 3; i++) {
        client c = client_open(h->address);
        client_sendz(&c, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
        client_sendz(&c, bodies[i]);
        reply r = client_reply(&c, WAIT_MS);
        assert_true(r.status == 400 || r.status == 413);
        reply_free(&r);
        assert_true(client_sees_end(&c, WAIT_MS));
        client_close(&c);
    }
    assert_true(house_metric(h, "evenkeel_http_requests_total{code=\"200\"}") == 0);
    house_end(h);
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
    house *h = open_plain();
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        for (int c = 1; c < 256; c++) {
            char text[256];
            snprintf(text, sizeof text, shapes[i], c);
            reply r = request_raw(h->address, text);
            if (r.status < 400) print_message("status %d for %s\n", r.status, text);
            assert_true(r.status == 400 || r.status == 404 || r.status == 405);
            assert_true(strlen(reply_error_code(&r)) > 0); /* and it is ours, as JSON */
            reply_free(&r);
        }
    }
    house_end(h);
}

/*
 * A request behind another in the same packet would be read without having been checked: the first
 * one is answered as the connection's last, the second never.
 */
static void answers_no_pipelined_request(void **state)
{
    (void)state;
    house *h = open_plain();
    static const char *const pairs[] = {
        "GET /livez HTTP/1.1\r\nHost: a\r\n\r\nGET /version HTTP/1.1\r\nHost: a\r\n\r\n",
        "POST " CHAT
        " HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}GET /version HTTP/1.1\r\nHost: "
        "a\r\n\r\n",
        "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}x",
        "GET /livez HTTP/1.1\r\nHost: a\r\n\r\nx",
    };
    for (int i = 0; i < 4; i++) {
        client c = client_open(h->address);
        client_sendz(&c, pairs[i]);
        reply r = client_reply(&c, WAIT_MS);
        assert_true(r.status == 200 || r.status == 503);
        assert_true(reply_header_is(&r, "Connection", "close"));
        reply_free(&r);
        assert_true(client_sees_end(&c, WAIT_MS));
        assert_int_equal(c.len, 0);
        client_close(&c);
    }
    house_end(h);
}

static void keeps_connections_alive(void **state)
{
    (void)state;
    house *h = open_plain();
    client c = client_open(h->address);
    for (int i = 0; i < 200; i++) {
        if (i % 2) {
            client_get(&c, "/livez");
        } else {
            client_post(&c, CHAT, "{}");
        }
        reply r = client_reply(&c, WAIT_MS);
        assert_int_equal(r.status, i % 2 ? 200 : 503);
        char *connection = reply_header(&r, "Connection");
        assert_null(connection);
        reply_free(&r);
    }
    assert_true(house_metric(h, "evenkeel_http_connections_total") == 1);
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
    c = client_open(h->address);
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
    house_end(h);
}

/* A client that closes its side after a quick request still gets the answer. */
static void answers_a_half_closed_client(void **state)
{
    (void)state;
    house *h = open_plain();
    for (int i = 0; i < 50; i++) {
        client c = client_open(h->address);
        client_get(&c, "/livez");
        shutdown(c.fd, SHUT_WR);
        reply r = client_reply(&c, WAIT_MS);
        assert_int_equal(r.status, 200);
        reply_free(&r);
        assert_true(client_sees_end(&c, WAIT_MS));
        client_close(&c);
    }
    house_end(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(h2_says_what_it_is_while_loading),
        cmocka_unit_test(h2_gives_metrics_while_a_model_loads),
        cmocka_unit_test(v15_wrong_paths_and_methods),
        cmocka_unit_test(serves_models_from_memory),
        cmocka_unit_test(answers_head_requests_without_a_body),
        cmocka_unit_test(checks_the_content_type),
        cmocka_unit_test(echoes_good_request_ids_only),
        cmocka_unit_test(e8_refuses_smuggling_and_closes),
        cmocka_unit_test(refuses_bad_chunks),
        cmocka_unit_test(agrees_with_the_library_on_every_character),
        cmocka_unit_test(answers_no_pipelined_request),
        cmocka_unit_test(keeps_connections_alive),
        cmocka_unit_test(answers_a_half_closed_client),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
