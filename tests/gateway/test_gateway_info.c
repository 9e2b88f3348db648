/*
 * The routes around the generating ones: token ids and texts, the experts' matrix, metrics (M2:
 * bounded), the page.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "house.h"
#include "http/client.h"
#include "telemetry/openmetrics.h"

static house shared;

static int open_shared(void **state)
{
    (void)state;
    house_init(&shared);
    house_open(&shared);
    return 0;
}

static int close_shared(void **state)
{
    (void)state;
    house_close(&shared);
    return 0;
}

static json_t *post_json(const char *path, const char *body)
{
    reply r = request_post(shared.address, path, body);
    if (r.status != 200) print_message("%s\n", r.body);
    assert_int_equal(r.status, 200);
    json_t *root = reply_json(&r);
    reply_free(&r);
    return root;
}

static void tokenizes_in_both_dialects(void **state)
{
    (void)state;
    json_t *one = post_json("/tokenize", "{\"prompt\":\"Where is it?\"}");
    json_t *two = post_json("/tokenize", "{\"content\":\"Where is it?\",\"add_special\":true}");
    const json_t *ids = json_object_get(one, "tokens");
    assert_true(json_array_size(ids) > 0);
    assert_int_equal(json_integer_value(json_object_get(one, "count")), json_array_size(ids));
    assert_int_equal(json_integer_value(json_object_get(one, "max_model_len")), 512);
    assert_true(json_equal(ids, json_object_get(two, "tokens")));
    json_decref(one);
    json_decref(two);
    static const struct {
        const char *body;
        int status;
        const char *code;
        const char *param;
    } cases[] = {
        {"{}", 400, "missing_required_parameter", "prompt"},
        {"{\"prompt\":\"a\",\"content\":\"b\"}", 400, "missing_required_parameter", "prompt"},
        {"{\"prompt\":1}", 400, "invalid_type", "prompt"},
        {"{\"prompt\":\"a\",\"model\":\"x\"}", 404, "model_not_found", "model"},
        {"{\"prompt\":\"a\",\"with_pieces\":true}", 400, "unsupported_value", "with_pieces"},
        {"[", 400, "invalid_json", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        reply r = request_post(shared.address, "/tokenize", cases[i].body);
        assert_error(&r, cases[i].status, cases[i].code, cases[i].param);
        reply_free(&r);
    }
}

/* Ids of a text give the text back, whatever its script. */
static void texts_survive_the_round_trip(void **state)
{
    (void)state;
    static const char *const texts[] = {"",
                                        "a",
                                        "Where is my parcel?",
                                        "\xe6\x88\x91\xe7\x9a\x84\xe8\xae\xa2\xe5\x8d\x95",
                                        "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7",
                                        "\\t\\n x  y"};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        char body[512];
        snprintf(body, sizeof body, "{\"content\":\"%s\"}", texts[i]);
        json_t *sent = json_loads(body, 0, NULL);
        json_t *tokens = post_json("/tokenize", body);
        char *ids = json_dumps(json_object_get(tokens, "tokens"), JSON_COMPACT);
        snprintf(body, sizeof body, "{\"tokens\":%s}", ids);
        json_t *text = post_json("/detokenize", body);
        assert_true(json_equal(json_object_get(text, "content"), json_object_get(sent, "content")));
        assert_true(json_equal(json_object_get(text, "prompt"), json_object_get(sent, "content")));
        free(ids);
        json_decref(sent);
        json_decref(tokens);
        json_decref(text);
    }
    static const struct {
        const char *body;
        const char *code;
        const char *param;
    } cases[] = {
        {"{}", "missing_required_parameter", "tokens"},
        {"{\"tokens\":\"a\"}", "invalid_type", "tokens"},
        {"{\"tokens\":[1.5]}", "invalid_type", "tokens"},
        {"{\"tokens\":[-1]}", "invalid_value", "tokens"},
        {"{\"tokens\":[99999999]}", "invalid_value", NULL},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        reply r = request_post(shared.address, "/detokenize", cases[i].body);
        assert_error(&r, 400, cases[i].code, cases[i].param);
        reply_free(&r);
    }
}

static json_int_t sum_of(const json_t *rows)
{
    json_int_t sum = 0;
    for (size_t i = 0; i < json_array_size(rows); i++)
        for (size_t k = 0; k < json_array_size(json_array_get(rows, i)); k++)
            sum += json_integer_value(json_array_get(json_array_get(rows, i), k));
    return sum;
}

static json_t *get_experts(const char *query)
{
    char path[64];
    snprintf(path, sizeof path, "/v1/experts%s", query);
    reply r = request_get(shared.address, path);
    assert_int_equal(r.status, 200);
    json_t *root = reply_json(&r);
    reply_free(&r);
    return root;
}

static json_int_t number_at(const json_t *object, const char *name)
{
    const json_t *value = json_object_get(object, name);
    assert_true(json_is_integer(value));
    return json_integer_value(value);
}

/* The parts about evenness add up: with one device everything is its own. */
static void shows_how_even_it_is(void **state)
{
    (void)state;
    json_decref(post_json("/v1/completions", "{\"prompt\":[7,8],\"max_tokens\":3,\"seed\":1}"));
    json_t *root = get_experts("?window=all");
    const json_t *devices = json_object_get(root, "devices");
    assert_int_equal(number_at(devices, "count"), 1);
    assert_int_equal(number_at(devices, "slots"), number_at(root, "experts"));
    assert_int_equal(sum_of(json_object_get(devices, "tokens")),
                     sum_of(json_object_get(root, "tokens")));
    assert_true(sum_of(json_object_get(devices, "busy_us")) > 0);
    const json_t *placement = json_object_get(devices, "placement");
    assert_int_equal(json_array_size(placement), number_at(root, "layers"));
    assert_int_equal(json_array_size(json_array_get(json_array_get(placement, 0), 0)),
                     number_at(root, "experts"));
    const json_t *routing = json_object_get(root, "routing");
    assert_string_equal(json_string_value(json_object_get(routing, "policy")), "static");
    assert_int_equal(number_at(routing, "version"), 1);
    assert_int_equal(number_at(routing, "changed"), 0);
    const json_t *breakers = json_object_get(routing, "breakers");
    assert_int_equal(number_at(breakers, "closed"),
                     number_at(root, "layers") * number_at(root, "experts"));
    assert_int_equal(number_at(breakers, "open"), 0);
    assert_true(json_is_null(json_object_get(root, "rebalance")));
    assert_true(json_is_array(json_object_get(root, "alerts")));
    json_decref(root);
}

/* Each token visits top_k experts in each layer, and all of them are in the matrix. */
static void shows_every_expert_choice(void **state)
{
    (void)state;
    json_t *before = get_experts("?window=all");
    json_int_t layers = json_integer_value(json_object_get(before, "layers"));
    json_int_t experts = json_integer_value(json_object_get(before, "experts"));
    json_int_t top_k = json_integer_value(json_object_get(before, "top_k"));
    assert_int_equal(json_array_size(json_object_get(before, "tokens")), layers);
    assert_int_equal(json_array_size(json_array_get(json_object_get(before, "tokens"), 0)),
                     experts);
    assert_int_equal(json_array_size(json_object_get(before, "balance")), layers);
    json_t *answer = post_json(
        "/v1/completions", "{\"prompt\":[7,8,9],\"max_tokens\":20,\"ignore_eos\":true,\"seed\":1}");
    json_decref(answer);
    json_t *after = get_experts("?window=all");
    json_int_t counted =
        sum_of(json_object_get(after, "tokens")) - sum_of(json_object_get(before, "tokens"));
    assert_int_equal(counted, (3 + 19) * layers * top_k); /* the last token is never computed on */
    json_int_t in_balance = 0;
    const json_t *balance = json_object_get(after, "balance");
    for (size_t i = 0; i < json_array_size(balance); i++) {
        const json_t *layer = json_array_get(balance, i);
        in_balance += json_integer_value(json_object_get(layer, "tokens"));
        assert_true(json_number_value(json_object_get(layer, "max_over_mean")) >= 1);
        assert_int_equal(json_integer_value(json_object_get(layer, "layer")), i);
    }
    assert_int_equal(in_balance, sum_of(json_object_get(after, "tokens")));
    json_decref(before);
    json_decref(after);
    json_decref(get_experts(""));
    json_decref(get_experts("?window=500ms"));
    json_decref(get_experts("?x=1&window=60s"));
    static const char *const wrong[] = {"?window=", "?window=x", "?window=61s", "?window=-1s"};
    for (int i = 0; i < 4; i++) {
        char path[64];
        snprintf(path, sizeof path, "/v1/experts%s", wrong[i]);
        reply r = request_get(shared.address, path);
        assert_error(&r, 400, "invalid_value", "window");
        reply_free(&r);
    }
}

/* M1, M2: the text is complete, bounded, and no name that a client sends becomes a label. */
static reply get_metrics(const char *accept)
{
    char text[512];
    snprintf(text, sizeof text,
             "GET /metrics HTTP/1.1\r\nHost: a\r\n%s%s%sConnection: close\r\n\r\n",
             accept ? "Accept: " : "", accept ? accept : "", accept ? "\r\n" : "");
    return request_raw(shared.address, text);
}

/* The whole text, as the server gives it, in the format that was asked for. */
static void metrics_come_in_both_formats(void **state)
{
    (void)state;
    static const struct {
        const char *accept; /* NULL: no such header */
        bool openmetrics;
    } cases[] = {
        {NULL, false},
        {"*/*", false},
        {"text/plain", false},
        {"application/json", false},
        {"application/openmetrics-text", true},
        {"application/openmetrics-text; version=1.0.0; charset=utf-8", true},
        {"application/openmetrics-text; version=0.0.1", false},
        {"application/openmetrics-text;q=0", false},
        {"text/plain;version=0.0.4;q=1, application/openmetrics-text;q=0.5", false},
        {"application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.6,"
         "application/openmetrics-text;version=0.0.1;q=0.5,text/plain;version=1.0.0;q=0.4,"
         "text/plain;version=0.0.4;q=0.3,*/*;q=0.2",
         true}, /* Prometheus 3 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        reply r = get_metrics(cases[i].accept);
        char why[256] = "";
        assert_int_equal(r.status, 200);
        assert_true(reply_header_is(
            &r, "Content-Type",
            cases[i].openmetrics ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                 : "text/plain; version=0.0.4; charset=utf-8"));
        bool ok = openmetrics_check(r.body, r.n_body, cases[i].openmetrics, why, sizeof why);
        if (!ok) print_message("%s\n", why);
        assert_true(ok);
        assert_non_null(strstr(r.body, "evenkeel_layer_expert_service_seconds_bucket"));
        reply_free(&r);
    }
}

static void metrics_are_bounded(void **state)
{
    (void)state;
    reply r = request_get(shared.address, "/metrics");
    assert_int_equal(r.status, 200);
    size_t before = r.n_body;
    static const char *const names[] = {"evenkeel_http_requests_total{code=\"200\"}",
                                        "evenkeel_http_request_duration_seconds_bucket",
                                        "evenkeel_requests_running",
                                        "vllm:num_requests_running",
                                        "evenkeel_ignored_params_total",
                                        "evenkeel_http_first_byte_seconds_count"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (!strstr(r.body, names[i])) print_message("no %s\n", names[i]);
        assert_non_null(strstr(r.body, names[i]));
    }
    assert_non_null(strstr(r.body, "layer="));
    reply_free(&r);
    for (int i = 0; i < 100; i++) {
        char body[128];
        snprintf(body, sizeof body, "{\"prompt\":\"a\",\"model\":\"name-%d\"}", i);
        r = request_post(shared.address, "/v1/completions", body);
        assert_int_equal(r.status, 404);
        reply_free(&r);
    }
    r = request_get(shared.health, "/metrics");
    assert_null(strstr(r.body, "name-"));
    assert_true(r.n_body < before + 2048); /* numbers may grow, series not */
    assert_true(r.n_body < 200000);
    reply_free(&r);
}

static void serves_a_page_that_needs_nothing_else(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        const char *type;
    } files[] = {
        {"/", "text/html; charset=utf-8"},
        {"/page/index.html", "text/html; charset=utf-8"},
        {"/page/page.css", "text/css; charset=utf-8"},
        {"/page/page.js", "text/javascript; charset=utf-8"},
        {"/page/icon.svg", "image/svg+xml"},
    };
    for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
        reply r = request_get(shared.address, files[i].path);
        assert_int_equal(r.status, 200);
        assert_true(reply_header_is(&r, "Content-Type", files[i].type));
        assert_true(reply_header_is(&r, "X-Content-Type-Options", "nosniff"));
        char *policy = reply_header(&r, "Content-Security-Policy");
        assert_non_null(policy);
        assert_non_null(strstr(policy, "default-src 'none'"));
        free(policy);
        /* Nothing is loaded from elsewhere; the one address is the namespace of SVG. */
        for (const char *at = strstr(r.body, "://"); at; at = strstr(at + 1, "://"))
            assert_int_equal(strncmp(at, "://www.w3.org/", 14), 0);
        assert_true(r.n_body > 100);
        reply_free(&r);
    }
    house *plain = calloc(1, sizeof *plain);
    house_init(plain);
    plain->gateway_params.web_page = false;
    house_open_gateway(plain);
    reply r = request_get(plain->address, "/");
    assert_error(&r, 404, "not_found", NULL);
    reply_free(&r);
    house_close(plain);
    free(plain);
}

/* Load counts what is in the engine, and is back at 0 when nothing is. */
static void tells_its_load(void **state)
{
    (void)state;
    /* More than sockets and buffers hold, and nobody reads on: it stays in the engine. */
    client c = client_open_small(shared.address);
    client_post(
        &c, "/v1/completions",
        "{\"prompt\":\"a\",\"n\":8,\"max_tokens\":400,\"stream\":true,\"ignore_eos\":true}");
    assert_true(client_sees(&c, "data: ", 20000));
    reply r = request_get(shared.health, "/load");
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, "{\"server_load\":1}");
    reply_free(&r);
    client_close(&c);
    assert_true(house_awaits(&shared, "evenkeel_http_generations_open", 0, 20000));
    r = request_get(shared.address, "/load");
    assert_string_equal(r.body, "{\"server_load\":0}");
    reply_free(&r);
}

static void tells_its_properties(void **state)
{
    (void)state;
    reply r = request_get(shared.address, "/props");
    assert_int_equal(r.status, 200);
    json_t *root = reply_json(&r);
    const json_t *settings = json_object_get(root, "default_generation_settings");
    assert_int_equal(json_integer_value(json_object_get(settings, "n_ctx")), 512);
    assert_int_equal(json_integer_value(json_object_get(root, "total_slots")),
                     shared.engine_params.running_max);
    assert_string_equal(json_string_value(json_object_get(root, "model_alias")), HOUSE_MODEL_ID);
    json_decref(root);
    reply_free(&r);
}

static void describes_the_model(void **state)
{
    (void)state;
    reply r = request_get(shared.address, "/v1/models/shop%2Ftiny:1");
    json_t *model = reply_json(&r);
    assert_int_equal(json_integer_value(json_object_get(model, "max_model_len")), 512);
    const json_t *meta = json_object_get(model, "meta");
    assert_string_equal(json_string_value(json_object_get(meta, "architecture")), "qwen2moe");
    assert_true(json_integer_value(json_object_get(meta, "experts")) > 1);
    assert_true(json_integer_value(json_object_get(meta, "n_vocab")) > 256);
    json_decref(model);
    reply_free(&r);
    r = request_get(shared.address, "/readyz");
    assert_int_equal(r.status, 200);
    assert_string_equal(r.body, "{\"status\":\"ok\"}");
    reply_free(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(tokenizes_in_both_dialects),
        cmocka_unit_test(texts_survive_the_round_trip),
        cmocka_unit_test(shows_every_expert_choice),
        cmocka_unit_test(shows_how_even_it_is),
        cmocka_unit_test(metrics_come_in_both_formats),
        cmocka_unit_test(metrics_are_bounded),
        cmocka_unit_test(serves_a_page_that_needs_nothing_else),
        cmocka_unit_test(tells_its_load),
        cmocka_unit_test(tells_its_properties),
        cmocka_unit_test(describes_the_model),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}
