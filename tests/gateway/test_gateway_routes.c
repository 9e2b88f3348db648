/*
 * What there is and what not: paths, methods, content types and broken JSON; mostly while the model
 * "is being loaded", which is also when health and metrics have to answer. Cases E1, H2, V1, V4,
 * V15.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "house.h"
#include "http/client.h"
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
        r = request_get(addresses[i], "/load");
        assert_string_equal(r.body, "{\"server_load\":0}");
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

static void can_do_without_a_health_address(void **state)
{
    (void)state;
    house *h = house_make();
    h->gateway_params.health_listen = "";
    house_open_gateway(h);
    assert_string_equal(h->health, "");
    reply r = request_get(h->address, "/livez");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    house_end(h);
}

/* V1, V4: broken JSON gets a short 400, and the connection goes on. */
static void v1_v4_broken_json_leaves_the_connection_usable(void **state)
{
    (void)state;
    house *h = house_make();
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
    house_end(h);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(h2_says_what_it_is_while_loading),
        cmocka_unit_test(h2_gives_metrics_while_a_model_loads),
        cmocka_unit_test(v15_wrong_paths_and_methods),
        cmocka_unit_test(serves_models_from_memory),
        cmocka_unit_test(checks_the_content_type),
        cmocka_unit_test(can_do_without_a_health_address),
        cmocka_unit_test(v1_v4_broken_json_leaves_the_connection_usable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
