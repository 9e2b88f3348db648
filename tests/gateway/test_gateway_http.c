/*
 * The HTTP side with bytes that no client library would send: heads that hide requests, drips,
 * bodies over the limit, connections over the limit, ends at odd moments; while the model "is being
 * loaded", so that nothing but HTTP is at work. Cases E1, E4, E8, V1, V3, V4, V15, H2.
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

static house *with_defaults(void)
{
    house *h = calloc(1, sizeof *h);
    assert_non_null(h);
    house_init(h);
    return h;
}

static house *open_plain(void)
{
    house *h = with_defaults();
    house_open_gateway(h);
    return h;
}

static void close_house(house *h)
{
    house_assert_idle(h);
    house_close(h);
    free(h);
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
    close_house(h);
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
    close_house(h);
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
    close_house(h);
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
    close_house(h);
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
    close_house(h);
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
    close_house(h);
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
    close_house(h);
}

/* ---- E8: one request in another ---- */

static void e8_refuses_smuggling_and_closes(void **state)
{
    (void)state;
    house *h = open_plain();
    static const char *const heads[] = {
        "Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nGET /livez "
        "HTTP/1.1\r\n\r\n",
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
    close_house(h);
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
    close_house(h);
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
    close_house(h);
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
    close_house(h);
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
    close_house(h);
}

/* ---- limits ---- */

static void limits_the_head(void **state)
{
    (void)state;
    house *h = open_plain();
    size_t max = h->gateway_params.header_bytes_max;
    char *text = malloc(max + 100);
    const char *begin = "GET /livez HTTP/1.1\r\nHost: a\r\nX: ";
    for (int over = 0; over < 2; over++) {
        size_t n = max - 4 + (size_t)over;
        memset(text, 'x', n);
        memcpy(text, begin, strlen(begin));
        memcpy(text + n, "\r\n\r\n", 5);
        reply r = request_raw(h->address, text);
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
    reply r = request_raw(h->address, many);
    assert_error(&r, 431, "headers_too_large", NULL);
    reply_free(&r);
    free(many);
    free(text);
    close_house(h);
}

/* V3: a length over the cap is refused before a byte of the body is read. */
static void v3_refuses_a_long_body_by_its_length(void **state)
{
    (void)state;
    house *h = open_plain();
    char text[256];
    snprintf(text, sizeof text, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: %zu\r\n\r\n",
             h->gateway_params.body_bytes_max + 1);
    reply r = request_raw(h->address, text);
    assert_error(&r, 413, "request_too_large", NULL);
    assert_true(reply_header_is(&r, "Connection", "close"));
    reply_free(&r);
    /* A client that asks first is spared the sending. */
    snprintf(text, sizeof text,
             "POST " CHAT
             " HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n");
    r = request_raw(h->address, text);
    assert_error(&r, 413, "request_too_large", NULL);
    reply_free(&r);
    snprintf(
        text, sizeof text,
        "POST /nope HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 1000\r\n\r\n");
    r = request_raw(h->address, text);
    assert_error(&r, 404, "not_found", NULL);
    reply_free(&r);
    /* The cap itself is fine. */
    size_t max = h->gateway_params.body_bytes_max;
    char *body = malloc(max + 1);
    memset(body, ' ', max);
    body[max] = '\0';
    r = request_post(h->address, CHAT, body);
    assert_error(&r, 503, "model_loading", NULL);
    reply_free(&r);
    free(body);
    close_house(h);
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
    house *h = open_plain();
    house_attach(h); /* bodies are only kept where somebody will read them */
    client c = client_open(h->address);
    client_sendz(&c, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    send_chunks(&c, h->gateway_params.body_bytes_max + 65536);
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
    c = client_open(h->address);
    client_sendz(&c, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n");
    client_sendz(&c, "1\r\n{\r\n1\r\n}\r\n0\r\n\r\n");
    r = client_reply(&c, WAIT_MS);
    assert_error(&r, 400, "missing_required_parameter", "messages");
    assert_true(reply_header_is(&r, "Connection", "close"));
    reply_free(&r);
    client_close(&c);
    close_house(h);
}

/* V1, V4: broken JSON gets a short 400, and the connection goes on. */
static void v1_v4_broken_json_leaves_the_connection_usable(void **state)
{
    (void)state;
    house *h = with_defaults();
    h->gateway_params.body_bytes_max = 64 << 20;
    house_open(h);
    client c = client_open(h->address);
    static const char *const bodies[] = {"{\"model\":",
                                         "[]",
                                         "\"x\"",
                                         "",
                                         "\xef\xbb\xbf{}",
                                         "{\"a\":1}x",
                                         "{\"a\":NaN}",
                                         "{\"a\":\"\\ud83d\"}",
                                         "{\"model\":\"a\",\"model\":\"b\"}"};
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        client_post(&c, CHAT, bodies[i]);
        reply r = client_reply(&c, WAIT_MS);
        assert_error(&r, 400, "invalid_json", NULL);
        reply_free(&r);
    }
    size_t n = 50 << 20;
    char *huge = malloc(n + 1);
    memset(huge, 'A', n);
    huge[n] = '\0';
    client_post(&c, CHAT, huge);
    free(huge);
    reply r = client_reply(&c, WAIT_MS);
    assert_error(&r, 400, "invalid_json", NULL);
    assert_true(r.n_body < 2048);
    assert_null(strstr(r.body, "AAAA"));
    reply_free(&r);
    client_get(&c, "/livez");
    r = client_reply(&c, WAIT_MS);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    client_close(&c);
    close_house(h);
}

static void limits_connections(void **state)
{
    (void)state;
    house *h = with_defaults();
    h->gateway_params.connections_max = 4;
    house_open_gateway(h);
    client c[4];
    for (int i = 0; i < 4; i++) {
        c[i] = client_open(h->address);
        client_get(&c[i], "/livez");
        reply r = client_reply(&c[i], WAIT_MS);
        assert_int_equal(r.status, 200);
        reply_free(&r);
    }
    client extra = client_open(h->address);
    reply r = client_reply(&extra, WAIT_MS);
    assert_error(&r, 503, "server_overloaded", NULL);
    reply_free(&r);
    client_close(&extra);
    client_close(&c[0]);
    assert_true(house_awaits(h, "evenkeel_http_connections", 3, WAIT_MS));
    r = request_get(h->address, "/livez"); /* there is room again */
    assert_int_equal(r.status, 200);
    reply_free(&r);
    for (int i = 1; i < 4; i++)
        client_close(&c[i]);
    close_house(h);

    h = with_defaults();
    h->gateway_params.connections_per_ip_max = 2;
    house_open_gateway(h);
    c[0] = client_open(h->address);
    c[1] = client_open(h->address);
    extra = client_open(h->address);
    r = client_reply(&extra, WAIT_MS);
    assert_error(&r, 429, "concurrency_limit", NULL);
    reply_free(&r);
    client_close(&extra);
    client_close(&c[0]);
    client_close(&c[1]);
    close_house(h);
}

/* ---- time ---- */

/* A byte now and then keeps no connection open: the head has to be whole in time. */
static void ends_a_dripping_head(void **state)
{
    (void)state;
    house *h = with_defaults();
    h->gateway_params.header_timeout_us = 300000;
    house_open_gateway(h);
    for (int later = 0; later < 2; later++) {
        client c = client_open(h->address);
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
    client silent = client_open(h->address); /* says nothing, is told nothing */
    assert_true(client_sees_end(&silent, WAIT_MS));
    assert_int_equal(silent.len, 0);
    client_close(&silent);
    close_house(h);
}

static void ends_a_dripping_body(void **state)
{
    (void)state;
    house *h = with_defaults();
    h->gateway_params.body_timeout_us = 300000;
    house_open_gateway(h);
    client c = client_open(h->address);
    client_sendz(&c, "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: 1000\r\n\r\n");
    int64_t start = now_ms();
    while (now_ms() - start < 5000 && !client_sees(&c, "\r\n\r\n", 20))
        if (!client_sendz(&c, " ")) break;
    reply r = client_reply(&c, WAIT_MS);
    assert_error(&r, 408, "client_timeout", NULL);
    reply_free(&r);
    assert_true(client_sees_end(&c, WAIT_MS));
    client_close(&c);
    close_house(h);
}

static void ends_idle_connections(void **state)
{
    (void)state;
    house *h = with_defaults();
    h->gateway_params.idle_timeout_us = 300000;
    house_open_gateway(h);
    client c = client_open(h->address);
    client_get(&c, "/livez");
    reply r = client_reply(&c, WAIT_MS);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    int64_t start = now_ms();
    assert_true(client_sees_end(&c, WAIT_MS));
    assert_in_range(now_ms() - start, 200, 5000);
    client_close(&c);
    close_house(h);
}

/* Clients that vanish at any moment, politely or not, leave nothing behind. */
static void forgets_clients_that_vanish(void **state)
{
    (void)state;
    house *h = open_plain();
    const char *text = "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n0123456789";
    for (size_t n = 0; n <= strlen(text); n++) {
        client c = client_open(h->address);
        client_send(&c, text, n);
        if (n % 2) {
            client_reset(&c);
        } else {
            client_close(&c);
        }
    }
    close_house(h);
}

static void closes_with_connections_in_every_state(void **state)
{
    (void)state;
    house *h = open_plain();
    client c[6];
    for (int i = 0; i < 6; i++)
        c[i] = client_open(h->address);
    client_sendz(&c[1], "GET /livez HT");
    client_sendz(&c[2], "POST " CHAT " HTTP/1.1\r\nHost: a\r\nContent-Length: 10\r\n\r\n012");
    client_get(&c[3], "/livez");
    reply r = client_reply(&c[3], WAIT_MS);
    reply_free(&r);
    client_sendz(&c[4], "bad\n");
    client_sendz(&c[5],
                 "POST " CHAT " HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n{");
    sleep_ms(50);
    house_close(h);
    free(h);
    for (int i = 0; i < 6; i++) {
        assert_true(client_sees_end(&c[i], WAIT_MS));
        client_close(&c[i]);
    }
}

/* ---- start ---- */

static void says_why_it_cannot_listen(void **state)
{
    (void)state;
    house *h = open_plain();
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
        ek_gateway_params params = h->gateway_params;
        ek_gateway *second = NULL;
        ek_err err = {0};
        params.listen = cases[i].listen ? cases[i].listen : h->address;
        params.health_listen = NULL;
        assert_int_equal(ek_gateway_create(&params, h->metrics, &second, &err), cases[i].status);
        assert_null(second);
        assert_non_null(strstr(err.text, params.listen));
    }
    ek_gateway_params params = h->gateway_params;
    ek_gateway *second = NULL;
    params.listen = "[::1]:0";
    params.health_listen = "";
    if (ek_gateway_create(&params, h->metrics, &second, NULL) == EK_OK) {
        assert_int_equal(strncmp(ek_gateway_address(second), "[::1]:", 6), 0);
        assert_string_equal(ek_gateway_health_address(second), "");
        ek_gateway_destroy(second);
    } else {
        print_message("no IPv6 loopback here\n");
    }
    close_house(h);
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
        cmocka_unit_test(answers_no_pipelined_request),
        cmocka_unit_test(keeps_connections_alive),
        cmocka_unit_test(answers_a_half_closed_client),
        cmocka_unit_test(limits_the_head),
        cmocka_unit_test(v3_refuses_a_long_body_by_its_length),
        cmocka_unit_test(v3_refuses_a_long_chunked_body),
        cmocka_unit_test(v1_v4_broken_json_leaves_the_connection_usable),
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
