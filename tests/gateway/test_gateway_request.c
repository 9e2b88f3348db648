/*
 * Request parsing without a server: every field's type and range, in one table of bodies and the
 * answers they get; cases V1, V2, V6, V7, V14 and V17 of what clients of this ecosystem have
 * stumbled over.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gateway/faults.h"
#include "gateway/gen_request.h"
#include "gateway/request_json.h"

#define MESSAGES           "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"
#define CHAT(fields)       "{" MESSAGES "," fields "}"
#define COMPLETION(fields) "{\"prompt\":\"hi\"," fields "}"

static const ek_gen_limits lenient = {.json_depth_max = 32, .messages_max = 8, .choices_max = 4};
static const ek_gen_limits strict = {
    .strict = true, .json_depth_max = 32, .messages_max = 8, .choices_max = 4};

/* From a heap block of exactly the body's size, so that a sanitizer sees a read past it. */
static bool parse(bool chat, const char *body, size_t n, const ek_gen_limits *limits,
                  ek_gen_request *request, ek_fault *fault)
{
    char *block = malloc(n ? n : 1);
    memcpy(block, body, n);
    ek_str text = {block, n};
    bool ok = chat ? ek_gateway_chat_parse(text, limits, request, fault)
                   : ek_gateway_completion_parse(text, limits, request, fault);
    free(block);
    return ok;
}

typedef struct bad_case {
    const char *body;
    const ek_fault_kind *kind;
    const char *param; /* "": none */
} bad_case;

static void assert_bad(bool chat, const char *body, size_t n, const ek_gen_limits *limits,
                       const ek_fault_kind *kind, const char *param)
{
    ek_gen_request request;
    ek_fault fault = {0};
    bool ok = parse(chat, body, n, limits, &request, &fault);
    if (ok || fault.kind != kind || strcmp(fault.param, param) != 0)
        print_message("%.200s: %s, param \"%s\" (%s)\n", body, ok ? "taken" : fault.kind->code,
                      fault.param, fault.message);
    assert_false(ok);
    assert_ptr_equal(fault.kind, kind);
    assert_string_equal(fault.param, param);
    assert_true(strlen(fault.message) > 0);
}

static void assert_all_bad(bool chat, const bad_case *cases, size_t n_cases)
{
    for (size_t i = 0; i < n_cases; i++)
        assert_bad(chat, cases[i].body, strlen(cases[i].body), &lenient, cases[i].kind,
                   cases[i].param);
}

static ek_gen_request assert_good(bool chat, const char *body, const ek_gen_limits *limits)
{
    ek_gen_request request;
    ek_fault fault = {0};
    bool ok = parse(chat, body, strlen(body), limits, &request, &fault);
    if (!ok) print_message("%s: %s\n", body, fault.message);
    assert_true(ok);
    return request;
}

/* V1, V14 (lone surrogates, NUL), V17 (a key twice). */
static void v1_v14_v17_refuses_what_is_not_json(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        "",
        " ",
        "{\"model\":",
        "[]",
        "\"x\"",
        "1",
        "null",
        "\xef\xbb\xbf{}",
        "{\"a\":1}x",
        "{\"a\":1}{}",
        "{\"temperature\":NaN}",
        "{\"temperature\":Infinity}",
        "{\"temperature\":1e999}",
        "{\"seed\":123456789012345678901234567890}",
        "{'a':1}",
        "{\"a\":01}",
        "{\"a\":\"\x01\"}",
        "{\"a\":\"\xff\"}",
        "{\"a\":\"\xed\xa0\x80\"}",
        "{\"a\":\"\\ud83d\"}",
        "{\"a\":\"\\udc00\"}",
        "{\"a\":\"\\u0000\"}",
        "{\"a\\u0000b\":1}",
        "{\"model\":\"a\",\"model\":\"b\"}",
        "{\"messages\":[{\"role\":\"user\",\"role\":\"system\",\"content\":\"\"}]}",
        "{\"a\":1,}",
        "//x\n{}",
    };
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        assert_bad(true, bodies[i], strlen(bodies[i]), &lenient, &ek_gateway_fault_invalid_json,
                   "");
        assert_bad(false, bodies[i], strlen(bodies[i]), &strict, &ek_gateway_fault_invalid_json,
                   "");
    }
    assert_bad(true, "{\"a\":\"x\0y\"}", 11, &lenient, &ek_gateway_fault_invalid_json, "");
}

/* Depth is measured before anything recurses; brackets inside of strings do not count. */
static void limits_depth(void **state)
{
    (void)state;
    enum { DEEP = 1000000 };
    char *body = malloc(2 * DEEP);
    memset(body, '[', DEEP);
    memset(body + DEEP, ']', DEEP);
    assert_bad(true, body, 2 * DEEP, &lenient, &ek_gateway_fault_invalid_json, "");
    memset(body, '{', DEEP);
    assert_bad(true, body, DEEP, &lenient, &ek_gateway_fault_invalid_json, "");
    free(body);
    ek_gen_request request = assert_good(
        true, CHAT("\"user\":\"[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[{{{{\\\"[[[\""), &lenient);
    ek_gateway_gen_fini(&request);
}

/* V2: what is wrong in a message names its place. */
static void v2_names_the_message(void **state)
{
    (void)state;
    static const bad_case cases[] = {
        {"{}", &ek_gateway_fault_missing_parameter, "messages"},
        {"{\"messages\":null}", &ek_gateway_fault_missing_parameter, "messages"},
        {"{\"messages\":\"hi\"}", &ek_gateway_fault_invalid_type, "messages"},
        {"{\"messages\":[]}", &ek_gateway_fault_invalid_value, "messages"},
        {"{\"messages\":[1]}", &ek_gateway_fault_invalid_type, "messages[0]"},
        {"{\"messages\":[{}]}", &ek_gateway_fault_missing_parameter, "messages[0].role"},
        {"{\"messages\":[{\"role\":1}]}", &ek_gateway_fault_invalid_type, "messages[0].role"},
        {"{\"messages\":[{\"role\":\"user\"}]}", &ek_gateway_fault_missing_parameter,
         "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":null}]}",
         &ek_gateway_fault_missing_parameter, "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":1}]}", &ek_gateway_fault_invalid_type,
         "messages[0].content"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"user\",\"content\":[1]}]"
         "}",
         &ek_gateway_fault_invalid_type, "messages[1].content[0]"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\"}]}]}",
         &ek_gateway_fault_missing_parameter, "messages[0].content[0].text"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}]}",
         &ek_gateway_fault_missing_parameter, "messages[0].content[0].type"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":1}]}]}",
         &ek_gateway_fault_invalid_type, "messages[0].content[0].text"},
    };
    assert_all_bad(true, cases, sizeof cases / sizeof cases[0]);
}

/* V2 and V11: wrong types and values are the client's fault and name their field. */
static void v2_v11_names_the_field(void **state)
{
    (void)state;
    static const bad_case cases[] = {
        {CHAT("\"model\":1"), &ek_gateway_fault_invalid_type, "model"},
        {CHAT("\"temperature\":\"hot\""), &ek_gateway_fault_invalid_type, "temperature"},
        {CHAT("\"temperature\":-0.1"), &ek_gateway_fault_invalid_value, "temperature"},
        {CHAT("\"temperature\":2.1"), &ek_gateway_fault_invalid_value, "temperature"},
        {CHAT("\"top_p\":0"), &ek_gateway_fault_invalid_value, "top_p"},
        {CHAT("\"top_p\":1.1"), &ek_gateway_fault_invalid_value, "top_p"},
        {CHAT("\"min_p\":1"), &ek_gateway_fault_invalid_value, "min_p"},
        {CHAT("\"top_k\":1.5"), &ek_gateway_fault_invalid_type, "top_k"},
        {CHAT("\"top_k\":-2"), &ek_gateway_fault_invalid_value, "top_k"},
        {CHAT("\"repetition_penalty\":0"), &ek_gateway_fault_invalid_value, "repetition_penalty"},
        {CHAT("\"frequency_penalty\":3"), &ek_gateway_fault_invalid_value, "frequency_penalty"},
        {CHAT("\"presence_penalty\":[]"), &ek_gateway_fault_invalid_type, "presence_penalty"},
        {CHAT("\"max_tokens\":0"), &ek_gateway_fault_invalid_value, "max_tokens"},
        {CHAT("\"max_tokens\":-1"), &ek_gateway_fault_invalid_value, "max_tokens"},
        {CHAT("\"max_tokens\":1.0"), &ek_gateway_fault_invalid_type, "max_tokens"},
        {CHAT("\"max_tokens\":9223372036854775807"), &ek_gateway_fault_invalid_value, "max_tokens"},
        {CHAT("\"max_completion_tokens\":0"), &ek_gateway_fault_invalid_value,
         "max_completion_tokens"},
        {CHAT("\"n\":0"), &ek_gateway_fault_invalid_value, "n"},
        {CHAT("\"n\":5"), &ek_gateway_fault_unsupported_value, "n"},
        {CHAT("\"stream\":\"yes\""), &ek_gateway_fault_invalid_type, "stream"},
        {CHAT("\"stream\":1"), &ek_gateway_fault_invalid_type, "stream"},
        {CHAT("\"stream_options\":{\"include_usage\":true}"), &ek_gateway_fault_invalid_value,
         "stream_options"},
        {CHAT("\"stream\":true,\"stream_options\":[]"), &ek_gateway_fault_invalid_type,
         "stream_options"},
        {CHAT("\"stream\":true,\"stream_options\":{\"include_usage\":1}"),
         &ek_gateway_fault_invalid_type, "stream_options.include_usage"},
        {CHAT("\"seed\":\"x\""), &ek_gateway_fault_invalid_type, "seed"},
        {CHAT("\"seed\":1.5"), &ek_gateway_fault_invalid_type, "seed"},
        {CHAT("\"stop\":1"), &ek_gateway_fault_invalid_type, "stop"},
        {CHAT("\"stop\":\"\""), &ek_gateway_fault_invalid_value, "stop"},
        {CHAT("\"stop\":[\"a\",2]"), &ek_gateway_fault_invalid_type, "stop[1]"},
        {CHAT("\"stop\":[\"\"]"), &ek_gateway_fault_invalid_value, "stop[0]"},
        {CHAT("\"stop\":[1,2,3,4,5,6,7,8,9,10,11,12,13,14,15,16,17]"),
         &ek_gateway_fault_invalid_value, "stop"},
        {CHAT("\"stop_token_ids\":[-1]"), &ek_gateway_fault_invalid_value, "stop_token_ids"},
        {CHAT("\"stop_token_ids\":[4294967296]"), &ek_gateway_fault_invalid_value,
         "stop_token_ids"},
        {CHAT("\"stop_token_ids\":[\"a\"]"), &ek_gateway_fault_invalid_type, "stop_token_ids"},
        {CHAT("\"logit_bias\":[]"), &ek_gateway_fault_invalid_type, "logit_bias"},
        {CHAT("\"logit_bias\":{\"x\":1}"), &ek_gateway_fault_invalid_value, "logit_bias"},
        {CHAT("\"logit_bias\":{\"-1\":1}"), &ek_gateway_fault_invalid_value, "logit_bias"},
        {CHAT("\"logit_bias\":{\"99999999999999999999999\":1}"), &ek_gateway_fault_invalid_value,
         "logit_bias"},
        {CHAT("\"logit_bias\":{\"1\":\"a\"}"), &ek_gateway_fault_invalid_type, "logit_bias"},
        {CHAT("\"logit_bias\":{\"1\":101}"), &ek_gateway_fault_invalid_value, "logit_bias"},
        {CHAT("\"logprobs\":3"), &ek_gateway_fault_invalid_type, "logprobs"},
        {CHAT("\"top_logprobs\":3"), &ek_gateway_fault_invalid_value, "top_logprobs"},
        {CHAT("\"logprobs\":true,\"top_logprobs\":21"), &ek_gateway_fault_invalid_value,
         "top_logprobs"},
        {CHAT("\"response_format\":\"text\""), &ek_gateway_fault_invalid_type, "response_format"},
        {CHAT("\"modalities\":\"text\""), &ek_gateway_fault_invalid_type, "modalities"},
    };
    assert_all_bad(true, cases, sizeof cases / sizeof cases[0]);
}

/* V7: what we know and cannot do is said, not ignored. */
static void v7_refuses_what_it_cannot_do(void **state)
{
    (void)state;
    static const bad_case cases[] = {
        {CHAT("\"tools\":[{\"type\":\"function\"}]"), &ek_gateway_fault_unsupported_value, "tools"},
        {CHAT("\"tool_choice\":\"required\""), &ek_gateway_fault_unsupported_value, "tool_choice"},
        {CHAT("\"functions\":[{}]"), &ek_gateway_fault_unsupported_value, "functions"},
        {CHAT("\"response_format\":{\"type\":\"json_object\"}"),
         &ek_gateway_fault_unsupported_value, "response_format.type"},
        {CHAT("\"response_format\":{\"type\":\"json_schema\",\"json_schema\":{}}"),
         &ek_gateway_fault_unsupported_value, "response_format.type"},
        {CHAT("\"modalities\":[\"text\",\"audio\"]"), &ek_gateway_fault_unsupported_value,
         "modalities"},
        {CHAT("\"audio\":{\"voice\":\"a\"}"), &ek_gateway_fault_unsupported_value, "audio"},
        {CHAT("\"web_search_options\":{}"), &ek_gateway_fault_unsupported_value,
         "web_search_options"},
        {CHAT("\"reasoning_effort\":\"high\""), &ek_gateway_fault_unsupported_value,
         "reasoning_effort"},
        {CHAT("\"verbosity\":\"low\""), &ek_gateway_fault_unsupported_value, "verbosity"},
        {CHAT("\"min_tokens\":3"), &ek_gateway_fault_unsupported_value, "min_tokens"},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\",\"image_url\":{}}]"
         "}]}",
         &ek_gateway_fault_unsupported_value, "messages[0].content[0].type"},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}",
         &ek_gateway_fault_unsupported_value, "messages[0].tool_calls"},
    };
    assert_all_bad(true, cases, sizeof cases / sizeof cases[0]);
    static const bad_case completions[] = {
        {"{}", &ek_gateway_fault_missing_parameter, "prompt"},
        {"{\"prompt\":1}", &ek_gateway_fault_invalid_type, "prompt"},
        {"{\"prompt\":[]}", &ek_gateway_fault_invalid_value, "prompt"},
        {"{\"prompt\":[\"a\",1]}", &ek_gateway_fault_invalid_type, "prompt[1]"},
        {"{\"prompt\":[[]]}", &ek_gateway_fault_invalid_value, "prompt[0]"},
        {"{\"prompt\":[1,\"a\"]}", &ek_gateway_fault_invalid_type, "prompt"},
        {"{\"prompt\":[1,-2]}", &ek_gateway_fault_invalid_value, "prompt"},
        {"{\"prompt\":[[1],[1.5]]}", &ek_gateway_fault_invalid_type, "prompt[1]"},
        {"{\"prompt\":[\"1\",\"2\",\"3\",\"4\",\"5\"]}", &ek_gateway_fault_unsupported_value,
         "prompt"},
        {"{\"prompt\":[\"1\",\"2\",\"3\"],\"n\":2}", &ek_gateway_fault_unsupported_value, "n"},
        {COMPLETION("\"suffix\":\"x\""), &ek_gateway_fault_unsupported_value, "suffix"},
        {COMPLETION("\"best_of\":3"), &ek_gateway_fault_unsupported_value, "best_of"},
        {COMPLETION("\"logprobs\":true"), &ek_gateway_fault_invalid_type, "logprobs"},
        {COMPLETION("\"logprobs\":21"), &ek_gateway_fault_invalid_value, "logprobs"},
        {COMPLETION("\"echo\":true,\"logprobs\":1"), &ek_gateway_fault_unsupported_value, "echo"},
        {COMPLETION("\"echo\":1"), &ek_gateway_fault_invalid_type, "echo"},
    };
    assert_all_bad(false, completions, sizeof completions / sizeof completions[0]);
}

/* What asks for nothing, or nothing of us, is taken. */
static void takes_what_is_harmless(void **state)
{
    (void)state;
    static const char *const bodies[] = {
        CHAT("\"tools\":[],\"tool_choice\":\"none\",\"functions\":[],\"parallel_tool_calls\":true"),
        CHAT("\"tool_choice\":\"auto\",\"response_format\":{\"type\":\"text\"},\"modalities\":["
             "\"text\"]"),
        CHAT("\"user\":\"u\",\"metadata\":{\"a\":\"b\"},\"store\":false,\"service_tier\":\"auto\""),
        CHAT("\"reasoning_effort\":\"none\",\"verbosity\":\"medium\",\"audio\":null,\"n\":null"),
        CHAT("\"temperature\":null,\"stop\":null,\"tools\":null,\"seed\":null,\"max_tokens\":null"),
        CHAT("\"safety_identifier\":\"x\",\"prompt_cache_key\":\"y\",\"prediction\":{}"),
        ("{\"messages\":[{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[]},"
         "{\"role\":\"user\",\"content\":\"a\",\"name\":\"n\"}]}"),
    };
    for (size_t i = 0; i < sizeof bodies / sizeof bodies[0]; i++) {
        ek_gen_request request = assert_good(true, bodies[i], &strict);
        assert_int_equal(request.n_ignored, 0);
        assert_int_equal(request.n, 1);
        ek_gateway_gen_fini(&request);
    }
}

/* V6: unknown names are counted, or refused where the configuration says so. */
static void v6_counts_or_refuses_unknown_fields(void **state)
{
    (void)state;
    const char *body = "{\"foo\":1,\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"bar\":2}],"
                       "\"stream\":true,\"stream_options\":{\"baz\":3}}";
    ek_gen_request request = assert_good(true, body, &lenient);
    assert_int_equal(request.n_ignored, 3);
    ek_gateway_gen_fini(&request);
    assert_bad(true, body, strlen(body), &strict, &ek_gateway_fault_unknown_parameter, "foo");
    const char *inner = "{\"messages\":[{\"role\":\"user\",\"content\":\"a\",\"bar\":2}]}";
    assert_bad(true, inner, strlen(inner), &strict, &ek_gateway_fault_unknown_parameter,
               "messages[0].bar");
    const char *options = CHAT("\"stream\":true,\"stream_options\":{\"baz\":3}");
    assert_bad(true, options, strlen(options), &strict, &ek_gateway_fault_unknown_parameter,
               "stream_options.baz");
    /* A name that is itself an attack on the reply stays bounded. */
    enum { BYTES = 100000 };
    char *huge = malloc(BYTES);
    memset(huge, 'k', BYTES);
    memcpy(huge, "{\"", 2);
    memcpy(huge + BYTES - 4, "\":1}", 4);
    ek_fault fault;
    assert_false(parse(true, huge, BYTES, &strict, &request, &fault));
    assert_int_equal(fault.kind, &ek_gateway_fault_unknown_parameter);
    free(huge);
}

static void reads_every_field(void **state)
{
    (void)state;
    ek_gen_request r = assert_good(
        true,
        CHAT("\"model\":\"m\",\"n\":3,\"stream\":true,\"stream_options\":{\"include_usage\":true},"
             "\"max_tokens\":5,\"max_completion_tokens\":7,\"temperature\":0.5,\"top_k\":-1,"
             "\"top_p\":0.25,\"min_p\":0.125,\"repetition_penalty\":1.5,\"frequency_penalty\":-2,"
             "\"presence_penalty\":2,\"seed\":-1,\"logprobs\":true,\"top_logprobs\":20,"
             "\"logit_bias\":{\"7\":-100,\"8\":2.5},\"stop\":[\"a\",\"\\u4e2d\"],"
             "\"stop_token_ids\":[3,4],\"ignore_eos\":true,\"timings\":true"),
        &strict);
    assert_true(ek_str_eqz(r.model, "m"));
    assert_int_equal(r.n, 3);
    assert_true(r.stream && r.include_usage && r.logprobs && r.ignore_eos && r.timings);
    assert_int_equal(r.max_tokens, 7);
    assert_true(r.temperature == 0.5 && r.top_p == 0.25 && r.min_p == 0.125);
    assert_true(r.repetition_penalty == 1.5 && r.frequency_penalty == -2 &&
                r.presence_penalty == 2);
    assert_int_equal(r.top_k, 0);
    assert_true(r.has_seed && r.seed == UINT64_MAX);
    assert_int_equal(r.top_logprobs, 20);
    assert_int_equal(r.n_bias, 2);
    assert_int_equal(r.bias[0].id, 7);
    assert_true(r.bias[0].bias == -100.0f && r.bias[1].bias == 2.5f);
    assert_int_equal(r.n_stops, 2);
    assert_true(ek_str_eqz(r.stops[1], "\xe4\xb8\xad"));
    assert_int_equal(r.n_stop_ids, 2);
    assert_int_equal(r.stop_ids[1], 4);
    ek_gateway_gen_fini(&r);
}

static void joins_content_parts(void **state)
{
    (void)state;
    ek_gen_request r = assert_good(
        true,
        "{\"messages\":[{\"role\":\"system\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
        "{\"type\":\"text\",\"text\":\"\"},{\"type\":\"text\",\"text\":\"b\\u4e2d\"}]},"
        "{\"role\":\"user\",\"content\":[]},{\"role\":\"assistant\",\"content\":null}]}",
        &strict);
    assert_int_equal(r.n_messages, 3);
    assert_true(ek_str_eqz(r.messages[0].content, "ab\xe4\xb8\xad"));
    assert_int_equal(r.messages[1].content.len, 0);
    assert_int_equal(r.messages[2].content.len, 0);
    ek_gateway_gen_fini(&r);
    assert_bad(true,
               "{\"messages\":[{\"role\":\"user\",\"content\":\"1\"},{\"role\":\"user\","
               "\"content\":\"2\"},"
               "{\"role\":\"user\",\"content\":\"3\"},{\"role\":\"user\",\"content\":\"4\"},"
               "{\"role\":\"user\",\"content\":\"5\"},{\"role\":\"user\",\"content\":\"6\"},"
               "{\"role\":\"user\",\"content\":\"7\"},{\"role\":\"user\",\"content\":\"8\"},"
               "{\"role\":\"user\",\"content\":\"9\"}]}",
               strlen("{\"messages\":[") + 9 * strlen("{\"role\":\"user\",\"content\":\"1\"}") + 8 +
                   2,
               &lenient, &ek_gateway_fault_invalid_value, "messages");
}

static void reads_every_kind_of_prompt(void **state)
{
    (void)state;
    ek_gen_request r = assert_good(false, "{\"prompt\":\"\"}", &strict);
    assert_int_equal(r.n_prompts, 1);
    assert_null(r.prompts[0].ids);
    ek_gateway_gen_fini(&r);
    r = assert_good(false, "{\"prompt\":[5,6,7],\"echo\":true}", &strict);
    assert_int_equal(r.n_prompts, 1);
    assert_int_equal(r.prompts[0].n_ids, 3);
    assert_int_equal(r.prompts[0].ids[2], 7);
    assert_true(r.echo);
    ek_gateway_gen_fini(&r);
    r = assert_good(false, "{\"prompt\":[\"a\",[1],\"b\"],\"suffix\":\"\",\"best_of\":1}", &strict);
    assert_int_equal(r.n_prompts, 3);
    assert_true(ek_str_eqz(r.prompts[0].text, "a"));
    assert_int_equal(r.prompts[1].ids[0], 1);
    assert_true(ek_str_eqz(r.prompts[2].text, "b"));
    ek_gateway_gen_fini(&r);
    r = assert_good(false, COMPLETION("\"logprobs\":0,\"n\":2,\"best_of\":2"), &strict);
    assert_true(r.logprobs);
    assert_int_equal(r.top_logprobs, 0);
    ek_gateway_gen_fini(&r);
}

/* V4: whatever the body was, the message is short and holds nothing of it. */
static void v4_never_echoes_the_body(void **state)
{
    (void)state;
    enum { BYTES = 1 << 20 };
    char *body = malloc(BYTES);
    memset(body, 'Z', BYTES);
    body[0] = '{';
    ek_gen_request request;
    ek_fault fault;
    assert_false(parse(true, body, BYTES, &lenient, &request, &fault));
    assert_null(strstr(fault.message, "ZZ"));
    assert_true(strlen(fault.message) < 200);
    free(body);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(v1_v14_v17_refuses_what_is_not_json),
        cmocka_unit_test(limits_depth),
        cmocka_unit_test(v2_names_the_message),
        cmocka_unit_test(v2_v11_names_the_field),
        cmocka_unit_test(v7_refuses_what_it_cannot_do),
        cmocka_unit_test(takes_what_is_harmless),
        cmocka_unit_test(v6_counts_or_refuses_unknown_fields),
        cmocka_unit_test(reads_every_field),
        cmocka_unit_test(joins_content_parts),
        cmocka_unit_test(reads_every_kind_of_prompt),
        cmocka_unit_test(v4_never_echoes_the_body),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
