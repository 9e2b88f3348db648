/*
 * Chat and completion answers of the real engine through HTTP, plain and streamed: shapes, usage,
 * stop strings, odd text, log-probabilities, choices, limits. Cases S5, S6, S8-S13, S15, V2, V5-V8,
 * V11, V13, V14.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "house.h"
#include "http/client.h"
#include "stream.h"

#define CHAT       "/v1/chat/completions"
#define COMPLETION "/v1/completions"
#define HI         "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static house shared; /* one server for all tests of this file; each leaves it idle */

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

static int check_idle(void **state)
{
    (void)state;
    house_assert_idle(&shared);
    return 0;
}

static reply post(const char *path, const char *fields)
{
    char body[16384];
    snprintf(body, sizeof body, "{%s}", fields);
    return request_post(shared.address, path, body);
}

/* A body of fields around forced text: "{<fields>,<force>}". */
static reply post_forced(const char *path, const char *fields, const char *text, size_t n,
                         int32_t max_tokens)
{
    char force[4096], all[8192];
    force_text(shared.engine, text, n, max_tokens, force, sizeof force);
    snprintf(all, sizeof all, "%s,%s", fields, force);
    return post(path, all);
}

static json_t *first_choice(json_t *root)
{
    json_t *choice = json_array_get(json_object_get(root, "choices"), 0);
    assert_true(json_is_object(choice));
    return choice;
}

static const json_t *content_of(json_t *root)
{
    return json_object_get(json_object_get(first_choice(root), "message"), "content");
}

static json_int_t usage_of(json_t *root, const char *key)
{
    return json_integer_value(json_object_get(json_object_get(root, "usage"), key));
}

static stream parse_stream(const reply *r)
{
    assert_int_equal(r->status, 200);
    return stream_parse(r->body, r->n_body);
}

static void answers_a_chat(void **state)
{
    (void)state;
    reply r =
        post(CHAT, HI ",\"max_tokens\":6,\"ignore_eos\":true,\"model\":\"" HOUSE_MODEL_ID "\"");
    assert_int_equal(r.status, 200);
    assert_true(reply_header_is(&r, "Content-Type", "application/json"));
    char *ms = reply_header(&r, "openai-processing-ms");
    assert_non_null(ms);
    free(ms);
    json_t *root = reply_json(&r);
    assert_string_equal(json_string_value(json_object_get(root, "object")), "chat.completion");
    assert_string_equal(json_string_value(json_object_get(root, "model")), HOUSE_MODEL_ID);
    const char *id = json_string_value(json_object_get(root, "id"));
    assert_int_equal(strncmp(id, "chatcmpl-", 9), 0);
    const json_t *message = json_object_get(first_choice(root), "message");
    assert_string_equal(json_string_value(json_object_get(message, "role")), "assistant");
    assert_string_equal(json_string_value(json_object_get(first_choice(root), "finish_reason")),
                        "length");
    assert_true(usage_of(root, "prompt_tokens") > 0);
    assert_int_equal(usage_of(root, "completion_tokens"), 6);
    assert_int_equal(usage_of(root, "total_tokens"), usage_of(root, "prompt_tokens") + 6);
    assert_null(json_object_get(root, "timings"));
    json_decref(root);
    reply_free(&r);
    r = post(CHAT, HI ",\"max_tokens\":6,\"timings\":true");
    root = reply_json(&r);
    const json_t *timings = json_object_get(root, "timings");
    assert_true(json_number_value(json_object_get(timings, "total_ms")) > 0);
    json_decref(root);
    reply_free(&r);
}

static void answers_completions(void **state)
{
    (void)state;
    reply r = post(COMPLETION, "\"prompt\":\"order\",\"max_tokens\":4,\"ignore_eos\":true");
    json_t *root = reply_json(&r);
    assert_string_equal(json_string_value(json_object_get(root, "object")), "text_completion");
    assert_true(json_is_string(json_object_get(first_choice(root), "text")));
    assert_int_equal(usage_of(root, "completion_tokens"), 4);
    json_decref(root);
    reply_free(&r);
    /* Texts and ids side by side, n of each; the same ids give the same answer as their text. */
    r = post(COMPLETION,
             "\"prompt\":[\"a\",[5,6],\"b\"],\"n\":2,\"max_tokens\":3,\"ignore_eos\":true");
    root = reply_json(&r);
    json_t *choices = json_object_get(root, "choices");
    assert_int_equal(json_array_size(choices), 6);
    for (size_t i = 0; i < 6; i++)
        assert_int_equal(json_integer_value(json_object_get(json_array_get(choices, i), "index")),
                         i);
    assert_int_equal(usage_of(root, "completion_tokens"), 18);
    json_decref(root);
    reply_free(&r);
}

/* V14: a prompt comes back as it was sent, whatever characters it has. */
static void v14_echoes_the_prompt(void **state)
{
    (void)state;
    const char *prompt = "\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 "
                         "\xd7\xa9\xd7\x9c\xd7\x95\xd7\x9d \xe4\xb8\xad\xe6\x96\x87 h\xc3\xa9llo";
    char fields[512];
    snprintf(fields, sizeof fields, "\"prompt\":\"%s\",\"echo\":true,\"max_tokens\":1", prompt);
    reply r = post(COMPLETION, fields);
    json_t *root = reply_json(&r);
    const char *text = json_string_value(json_object_get(first_choice(root), "text"));
    assert_int_equal(strncmp(text, prompt, strlen(prompt)), 0);
    json_decref(root);
    reply_free(&r);
    snprintf(fields, sizeof fields,
             "\"prompt\":[\"%s\",\"x\"],\"echo\":true,\"max_tokens\":1,\"stream\":true", prompt);
    r = post(COMPLETION, fields);
    stream s = parse_stream(&r);
    assert_int_equal(s.n_choices, 2);
    assert_int_equal(strncmp(s.choice[0].text, prompt, strlen(prompt)), 0);
    assert_int_equal(s.choice[1].text[0], 'x');
    stream_free(&s);
    reply_free(&r);
}

/* S15: proxies and browsers must not buffer, change or guess. */
static void s15_streams_with_the_right_headers(void **state)
{
    (void)state;
    reply r = post(CHAT, HI ",\"max_tokens\":4,\"stream\":true");
    assert_true(reply_header_is(&r, "Content-Type", "text/event-stream; charset=utf-8"));
    assert_true(reply_header_is(&r, "Cache-Control", "no-cache, no-transform"));
    assert_true(reply_header_is(&r, "X-Accel-Buffering", "no"));
    char *length = reply_header(&r, "Content-Length");
    char *ms = reply_header(&r, "openai-processing-ms");
    assert_null(length);
    assert_non_null(ms);
    free(ms);
    reply_free(&r);
}

/* S5: a usage chunk only when it was asked for, once, behind the end of the last choice. */
static void s5_sends_usage_when_asked(void **state)
{
    (void)state;
    reply r = post(CHAT, HI ",\"max_tokens\":4,\"ignore_eos\":true,\"stream\":true");
    assert_null(strstr(r.body, "\"choices\":[]"));
    assert_null(strstr(r.body, "\"usage\""));
    stream s = parse_stream(&r);
    assert_true(s.done);
    assert_true(s.choice[0].role);
    assert_null(s.usage);
    stream_free(&s);
    reply_free(&r);
    r = post(CHAT, HI ",\"max_tokens\":4,\"ignore_eos\":true,\"stream\":true,"
                      "\"stream_options\":{\"include_usage\":true}");
    s = parse_stream(&r);
    assert_non_null(s.usage);
    assert_int_equal(json_integer_value(json_object_get(s.usage, "completion_tokens")), 4);
    assert_non_null(strstr(r.body, "\"usage\":null"));
    assert_true(s.done);
    stream_free(&s);
    reply_free(&r);
}

/* S11: a stream and a plain answer are the same text, and both say why they ended. */
static void s11_streams_the_same_text(void **state)
{
    (void)state;
    static const char *const prompts[] = {
        "hi", "Where is my parcel?", "\xe6\x88\x91\xe7\x9a\x84\xe8\xae\xa2\xe5\x8d\x95\xef\xbc\x9f",
        "int main(void) { return 0; }", "a"};
    for (int i = 0; i < 5; i++) {
        for (int limit = 1; limit <= 41; limit += 20) {
            char fields[512];
            snprintf(fields, sizeof fields,
                     "\"messages\":[{\"role\":\"user\",\"content\":\"%s\"}],\"max_tokens\":%d,"
                     "\"temperature\":0",
                     prompts[i], limit);
            reply plain = post(CHAT, fields);
            json_t *root = reply_json(&plain);
            size_t n_fields = strlen(fields);
            snprintf(fields + n_fields, sizeof fields - n_fields, ",\"stream\":true");
            reply streamed = post(CHAT, fields);
            stream s = parse_stream(&streamed);
            assert_true(s.done);
            assert_string_equal(s.choice[0].text, json_string_value(content_of(root)));
            assert_string_equal(s.choice[0].finish, json_string_value(json_object_get(
                                                        first_choice(root), "finish_reason")));
            json_decref(root);
            stream_free(&s);
            reply_free(&streamed);
            reply_free(&plain);
        }
    }
}

/*
 * S12: several choices in one stream, each with its beginning and its end; the prompt is counted
 * once.
 */
static void s12_streams_several_choices(void **state)
{
    (void)state;
    const char *fields =
        HI ",\"n\":3,\"max_tokens\":9,\"ignore_eos\":true,\"seed\":7,\"stream\":true,"
           "\"stream_options\":{\"include_usage\":true}";
    reply r = post(CHAT, fields);
    reply again = post(CHAT, fields);
    stream s = parse_stream(&r), t = parse_stream(&again);
    assert_int_equal(s.n_choices, 3);
    for (int i = 0; i < 3; i++) {
        assert_true(s.choice[i].role);
        assert_string_equal(s.choice[i].finish, "length");
        assert_string_equal(s.choice[i].text, t.choice[i].text); /* a seed repeats its answers */
    }
    assert_string_not_equal(s.choice[0].text, s.choice[1].text);
    assert_int_equal(json_integer_value(json_object_get(s.usage, "completion_tokens")), 27);
    reply one = post(CHAT, HI ",\"max_tokens\":1");
    json_t *root = reply_json(&one);
    assert_int_equal(json_integer_value(json_object_get(s.usage, "prompt_tokens")),
                     usage_of(root, "prompt_tokens"));
    json_decref(root);
    stream_free(&s);
    stream_free(&t);
    reply_free(&one);
    reply_free(&r);
    reply_free(&again);
}

/*
 * S6, S8, S9, S10: text that looks like framing, splits lines, or comes in parts of characters. (As
 * completions, since the penalty that makes the script also counts what a chat's markers are made
 * of, line breaks.)
 */
static void s6_s8_s9_s10_carries_any_text(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t n;
        const char *text; /* NULL: the bytes */
        size_t n_text;
    } cases[] = {
        {"[DONE]", 6, NULL, 6},
        {"\"}\n:\\\r", 6, NULL, 6},
        {"a\0b", 3, NULL, 3},
        {"x\xc2\x85y", 4, NULL, 4},
        {"x\xe2\x80\xa8y", 5, NULL, 5},
        {"\xf0\x9f\x98\x80", 4, NULL, 4}, /* a character in four tokens */
        {"h\xc3\xa9\xe4\xb8\xad", 6, NULL, 6},
        {"\xf0\x9f", 2, "\xef\xbf\xbd", 3}, /* ends inside of one */
        {"a\xf0\x9f\x98", 4, "a\xef\xbf\xbd", 4},
        {"\xff\xfe", 2, "\xef\xbf\xbd\xef\xbf\xbd", 6}, /* no character ever */
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const char *text = cases[i].text ? cases[i].text : cases[i].bytes;
        int32_t n = (int32_t)cases[i].n;
        reply plain = post_forced(COMPLETION, "\"prompt\":\"q\"", cases[i].bytes, cases[i].n, n);
        assert_int_equal(plain.status, 200);
        json_t *root = json_loadb(plain.body, plain.n_body, JSON_ALLOW_NUL, NULL);
        const json_t *content = json_object_get(first_choice(root), "text");
        assert_int_equal(json_string_length(content), cases[i].n_text);
        assert_memory_equal(json_string_value(content), text, cases[i].n_text);
        json_decref(root);
        reply_free(&plain);
        reply streamed = post_forced(COMPLETION, "\"prompt\":\"q\",\"stream\":true", cases[i].bytes,
                                     cases[i].n, n);
        stream s = parse_stream(&streamed);
        assert_true(s.done);
        assert_int_equal(s.choice[0].n_text, cases[i].n_text);
        assert_memory_equal(s.choice[0].text, text, cases[i].n_text);
        stream_free(&s);
        reply_free(&streamed);
    }
}

/* V8: a stop string over token borders ends the text before it, and no part of it leaks. */
static void v8_stops_over_token_borders(void **state)
{
    (void)state;
    static const struct {
        const char *stop;
        const char *text;
        const char *finish;
    } cases[] = {
        {"\"END\"", "x", "stop"},
        {"[\"zzz\",\"ND\"]", "xE", "stop"},
        {"\"Dy\"", "xEN", "stop"},
        {"\"y\"", "xEND", "stop"},
        {"\"x\"", "", "stop"},
        {"\"ENDz\"", "xENDy", "length"}, /* what was held back comes out after all */
        {"\"Dyz\"", "xENDy", "length"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        for (int streams = 0; streams < 2; streams++) {
            char fields[256];
            snprintf(fields, sizeof fields, HI ",\"stop\":%s,\"stream\":%s,\"logprobs\":true",
                     cases[i].stop, streams ? "true" : "false");
            reply r = post_forced(CHAT, fields, "xENDy", 5, 5);
            assert_int_equal(r.status, 200);
            if (streams) {
                stream s = parse_stream(&r);
                assert_string_equal(s.choice[0].text, cases[i].text);
                assert_string_equal(s.choice[0].finish, cases[i].finish);
                assert_int_equal(s.choice[0].n_logprobs, strlen(cases[i].text));
                stream_free(&s);
            } else {
                json_t *root = reply_json(&r);
                const json_t *choice = first_choice(root);
                const json_t *tokens =
                    json_object_get(json_object_get(choice, "logprobs"), "content");
                assert_string_equal(json_string_value(content_of(root)), cases[i].text);
                assert_string_equal(json_string_value(json_object_get(choice, "finish_reason")),
                                    cases[i].finish);
                assert_int_equal(json_array_size(tokens), strlen(cases[i].text));
                json_decref(root);
            }
            reply_free(&r);
        }
    }
}

/* V13: log-probabilities are finite, as many as asked, and their bytes are the text. */
static void v13_logprobs_match_the_text(void **state)
{
    (void)state;
    reply r = post_forced(CHAT, HI ",\"logprobs\":true,\"top_logprobs\":5", "h\xc3\xa9!", 4, 4);
    json_t *root = reply_json(&r);
    const json_t *tokens =
        json_object_get(json_object_get(first_choice(root), "logprobs"), "content");
    char joined[64];
    size_t n = 0;
    assert_int_equal(json_array_size(tokens), 4);
    for (size_t i = 0; i < json_array_size(tokens); i++) {
        const json_t *token = json_array_get(tokens, i);
        double logprob = json_number_value(json_object_get(token, "logprob"));
        assert_true(logprob <= 0 && logprob >= -9999);
        const json_t *bytes = json_object_get(token, "bytes");
        for (size_t k = 0; k < json_array_size(bytes); k++)
            joined[n++] = (char)json_integer_value(json_array_get(bytes, k));
        const json_t *top = json_object_get(token, "top_logprobs");
        assert_int_equal(json_array_size(top), 5);
        double last = 0;
        for (size_t k = 0; k < 5; k++) {
            double value = json_number_value(json_object_get(json_array_get(top, k), "logprob"));
            assert_true(value <= last);
            last = value;
        }
    }
    assert_int_equal(n, json_string_length(content_of(root)));
    assert_memory_equal(joined, json_string_value(content_of(root)), n);
    json_decref(root);
    reply_free(&r);
    /* Completions have four parallel lists. */
    r = post_forced(COMPLETION, "\"prompt\":\"a\",\"logprobs\":2", "xyz", 3, 3);
    root = reply_json(&r);
    const json_t *logprobs = json_object_get(first_choice(root), "logprobs");
    static const char *const lists[] = {"tokens", "token_logprobs", "top_logprobs", "text_offset"};
    for (int i = 0; i < 4; i++)
        assert_int_equal(json_array_size(json_object_get(logprobs, lists[i])), 3);
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(
            json_integer_value(json_array_get(json_object_get(logprobs, "text_offset"), i)), i);
    json_decref(root);
    reply_free(&r);
}

/* V11, V2: limits of max_tokens, and wrong types, each with its param. */
static void v2_v11_refuses_wrong_values(void **state)
{
    (void)state;
    reply r = post(CHAT, HI ",\"max_tokens\":1,\"ignore_eos\":true");
    json_t *root = reply_json(&r);
    assert_int_equal(usage_of(root, "completion_tokens"), 1);
    assert_string_equal(json_string_value(json_object_get(first_choice(root), "finish_reason")),
                        "length");
    json_decref(root);
    reply_free(&r);
    static const struct {
        const char *fields;
        const char *code;
        const char *param;
    } cases[] = {
        {HI ",\"max_tokens\":0", "invalid_value", "max_tokens"},
        {HI ",\"max_tokens\":-1", "invalid_value", "max_tokens"},
        {"\"messages\":\"hi\"", "invalid_type", "messages"},
        {HI ",\"temperature\":\"hot\"", "invalid_type", "temperature"},
        {"\"messages\":[{\"role\":\"wizard\",\"content\":\"x\"}]", "invalid_value",
         "messages[0].role"},
        {HI ",\"n\":99", "unsupported_value", "n"},
        {HI ",\"tools\":[{}]", "unsupported_value", "tools"},
        {HI ",\"logit_bias\":{\"99999999\":1}", "invalid_value", "logit_bias"},
        {HI ",\"stop_token_ids\":[99999999]", "invalid_value", "stop_token_ids"},
        {HI ",\"stream\":true,\"stop\":\"\"", "invalid_value", "stop"},
        {"", "missing_required_parameter", "messages"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        r = post(CHAT, cases[i].fields);
        assert_error(&r, 400, cases[i].code, cases[i].param);
        reply_free(&r);
    }
    r = post(COMPLETION, "\"prompt\":[99999999]");
    assert_error(&r, 400, "invalid_value", "prompt");
    reply_free(&r);
    r = post(CHAT, HI ",\"model\":\"other\"");
    assert_error(&r, 404, "model_not_found", "model");
    reply_free(&r);
}

/* V5: too long is 400 with both numbers, whether by the prompt alone or with what it asks for. */
static void v5_says_when_the_context_is_too_short(void **state)
{
    (void)state;
    reply r = post(CHAT, HI ",\"max_tokens\":100000");
    assert_error(&r, 400, "context_length_exceeded", "messages");
    assert_non_null(strstr(r.body, "100000"));
    assert_non_null(strstr(r.body, "512"));
    reply_free(&r);
    char *fields = calloc(1, 16384);
    int at = snprintf(fields, 16384, "\"prompt\":[5");
    for (int i = 0; i < 599; i++)
        at += snprintf(fields + at, 16384 - (size_t)at, ",5");
    at += snprintf(fields + at, 16384 - (size_t)at, "]");
    for (int streams = 0; streams < 2; streams++) {
        r = post(COMPLETION, fields);
        assert_error(&r, 400, "context_length_exceeded", "prompt");
        assert_non_null(strstr(r.body, "600"));
        assert_non_null(strstr(r.body, "512"));
        reply_free(&r);
        at += snprintf(fields + at, 16384 - (size_t)at, ",\"stream\":true");
    }
    free(fields);
    /* Without a limit of its own an answer gets what is left, up to the configured default. */
    r = post(CHAT, HI ",\"ignore_eos\":true");
    json_t *root = reply_json(&r);
    assert_int_equal(usage_of(root, "completion_tokens"), shared.gateway_params.max_tokens_default);
    json_decref(root);
    reply_free(&r);
    r = post(COMPLETION, "\"prompt\":\"a\",\"ignore_eos\":true,\"max_tokens\":511");
    assert_int_equal(r.status, 200);
    reply_free(&r);
}

/* A cache that is smaller than the context is the limit; the longest answer that fits is given. */
static void v5_knows_the_cache_limit(void **state)
{
    (void)state;
    house *h = calloc(1, sizeof *h);
    assert_non_null(h);
    house_init(h);
    h->engine_params.kv_bytes = 32 << 10;
    house_open(h);
    ek_engine_info info;
    ek_engine_info_get(h->engine, &info);
    assert_true(info.kv_tokens + 1 < info.context_tokens);
    char body[256];
    snprintf(body, sizeof body, "{\"prompt\":[5,6,7],\"max_tokens\":%d,\"ignore_eos\":true}",
             (int)info.kv_tokens + 1 - 3);
    reply r = request_post(h->address, COMPLETION, body);
    assert_int_equal(r.status, 200);
    reply_free(&r);
    snprintf(body, sizeof body, "{\"prompt\":[5,6,7],\"max_tokens\":%d}",
             (int)info.kv_tokens + 2 - 3);
    r = request_post(h->address, COMPLETION, body);
    assert_error(&r, 400, "context_length_exceeded", "prompt");
    assert_non_null(strstr(r.body, "cache"));
    reply_free(&r);
    house_assert_idle(h);
    house_close(h);
    free(h);
}

/* V6: unknown fields are counted; a strict server refuses them by name. */
static void v6_counts_unknown_fields(void **state)
{
    (void)state;
    double before = house_metric(&shared, "evenkeel_ignored_params_total");
    reply r = post(CHAT, HI ",\"max_tokens\":1,\"foo\":1");
    assert_int_equal(r.status, 200);
    reply_free(&r);
    assert_true(house_metric(&shared, "evenkeel_ignored_params_total") == before + 1);
    house *strict = calloc(1, sizeof *strict);
    house_init(strict);
    strict->gateway_params.strict = true;
    house_open(strict);
    r = request_post(strict->address, CHAT, "{" HI ",\"foo\":1}");
    assert_error(&r, 400, "unknown_parameter", "foo");
    reply_free(&r);
    house_close(strict);
    free(strict);
}

/* S13: what fails before the first byte has its own status and is JSON, also for a stream. */
static void s13_fails_with_a_status(void **state)
{
    (void)state;
    static const struct {
        const char *fields;
        int status;
        const char *code;
        const char *param;
    } cases[] = {
        {HI ",\"stream\":true,\"model\":\"nope\"", 404, "model_not_found", "model"},
        {HI ",\"stream\":true,\"max_tokens\":100000", 400, "context_length_exceeded", "messages"},
        {HI ",\"stream\":true,\"temperature\":9", 400, "invalid_value", "temperature"},
    };
    for (int i = 0; i < 3; i++) {
        reply r = post(CHAT, cases[i].fields);
        assert_error(&r, cases[i].status, cases[i].code, cases[i].param);
        reply_free(&r);
    }
}

/* HTTP/1.0 knows no chunks: the stream ends with its connection, even if that was to be kept. */
static void streams_to_an_old_client(void **state)
{
    (void)state;
    const char *body = "{" HI ",\"max_tokens\":5,\"stream\":true}";
    char text[512];
    snprintf(text, sizeof text,
             "POST " CHAT " HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %zu\r\n\r\n%s",
             strlen(body), body);
    client c = client_open(shared.address);
    client_sendz(&c, text);
    reply r = client_reply(&c, 20000);
    char *coding = reply_header(&r, "Transfer-Encoding");
    assert_null(coding);
    stream s = parse_stream(&r);
    assert_true(s.done);
    assert_true(client_sees_end(&c, 1000));
    stream_free(&s);
    reply_free(&r);
    client_close(&c);
}

/* One connection for everything: streams and plain answers, errors in between. */
static void reuses_a_connection(void **state)
{
    (void)state;
    double before = house_metric(&shared, "evenkeel_http_connections_accepted_total");
    client c = client_open(shared.address);
    for (int i = 0; i < 30; i++) {
        static const char *const bodies[] = {"{" HI ",\"max_tokens\":5,\"stream\":true}",
                                             "{" HI ",\"max_tokens\":5}", "{" HI ",\"n\":true}"};
        client_post(&c, CHAT, bodies[i % 3]);
        reply r = client_reply(&c, 20000);
        assert_int_equal(r.status, i % 3 == 2 ? 400 : 200);
        reply_free(&r);
    }
    client_close(&c);
    assert_true(house_metric(&shared, "evenkeel_http_connections_accepted_total") == before + 1);
}

int main(void)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, NULL, check_idle)
    const struct CMUnitTest tests[] = {
        TEST(answers_a_chat),
        TEST(answers_completions),
        TEST(v14_echoes_the_prompt),
        TEST(s15_streams_with_the_right_headers),
        TEST(s5_sends_usage_when_asked),
        TEST(s11_streams_the_same_text),
        TEST(s12_streams_several_choices),
        TEST(s6_s8_s9_s10_carries_any_text),
        TEST(v8_stops_over_token_borders),
        TEST(v13_logprobs_match_the_text),
        TEST(v2_v11_refuses_wrong_values),
        TEST(v5_says_when_the_context_is_too_short),
        TEST(v5_knows_the_cache_limit),
        TEST(v6_counts_unknown_fields),
        TEST(s13_fails_with_a_status),
        TEST(streams_to_an_old_client),
        TEST(reuses_a_connection),
    };
    return cmocka_run_group_tests(tests, open_shared, close_shared);
}
