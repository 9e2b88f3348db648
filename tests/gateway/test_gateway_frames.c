/*
 * The shapes of answers, written from hand-made state: every frame is one line of JSON with the
 * keys that clients look for, whatever the text is (cases S5, S6, S7, S8, S9, S10, S12), and tokens
 * that a stop string swallowed never reach the log-probabilities.
 */
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "gateway/faults.h"
#include "gateway/frames.h"
#include "sys/mem.h"

typedef struct fixture {
    ek_generation *generation;
    ek_frame_context context;
    ek_buf out;
} fixture;

static fixture make(bool chat, int32_t n_choices)
{
    ek_generation *generation =
        ek_sys_calloc(1, sizeof *generation + (size_t)n_choices * sizeof generation->choice[0]);
    snprintf(generation->id, sizeof generation->id, "chatcmpl-1");
    generation->created_s = 1700000000;
    generation->chat = chat;
    generation->stream = true;
    generation->n_choices = n_choices;
    generation->n_prompts = 1;
    for (int32_t i = 0; i < n_choices; i++)
        generation->choice[i].index = i;
    return (fixture){
        .generation = generation,
        .context = {.generation = generation, .model_id = "m\"1"},
    };
}

static void drop(fixture *f)
{
    ek_http_buf_fini(&f->out);
    ek_gateway_generation_destroy(f->generation);
}

/* Take the next frame off: checks that it is exactly one line and "data: " before JSON. */
static json_t *next_frame(fixture *f)
{
    ek_str text = ek_http_buf_str(&f->out);
    ptrdiff_t end = ek_str_find(text, EK_STR("\n\n"));
    assert_true(end > 6);
    assert_memory_equal(text.data, "data: ", 6);
    assert_null(memchr(text.data, '\n', (size_t)end));
    assert_null(memchr(text.data, '\r', (size_t)end));
    json_t *frame =
        json_loadb(text.data + 6, (size_t)end - 6, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    assert_non_null(frame);
    ek_http_buf_consume(&f->out, (size_t)end + 2);
    return frame;
}

static const char *text_of(const json_t *object, const char *key)
{
    const json_t *value = json_object_get(object, key);
    assert_true(json_is_string(value));
    return json_string_value(value);
}

static void assert_chunk(const json_t *frame, const char *object)
{
    assert_string_equal(text_of(frame, "id"), "chatcmpl-1");
    assert_string_equal(text_of(frame, "object"), object);
    assert_string_equal(text_of(frame, "model"), "m\"1");
    assert_int_equal(json_integer_value(json_object_get(frame, "created")), 1700000000);
}

static json_t *only_choice(const json_t *frame)
{
    json_t *choices = json_object_get(frame, "choices");
    assert_int_equal(json_array_size(choices), 1);
    return json_array_get(choices, 0);
}

static void chat_chunks_have_their_shape(void **state)
{
    (void)state;
    fixture f = make(true, 1);
    ek_choice *choice = &f.generation->choice[0];
    ek_gateway_frame_begin(&f.context, choice, &f.out);
    ek_gateway_frame_text(&f.context, choice, EK_STR("hi"), &f.out);
    choice->finish = EK_FINISH_LENGTH;
    ek_gateway_frame_finish(&f.context, choice, true, &f.out);

    json_t *frame = next_frame(&f);
    assert_chunk(frame, "chat.completion.chunk");
    json_t *delta = json_object_get(only_choice(frame), "delta");
    assert_string_equal(text_of(delta, "role"), "assistant");
    assert_string_equal(text_of(delta, "content"), "");
    assert_true(json_is_null(json_object_get(only_choice(frame), "finish_reason")));
    assert_null(json_object_get(frame, "usage"));
    json_decref(frame);

    frame = next_frame(&f);
    assert_chunk(frame, "chat.completion.chunk");
    delta = json_object_get(only_choice(frame), "delta");
    assert_string_equal(text_of(delta, "content"), "hi");
    assert_null(json_object_get(delta, "role"));
    assert_true(json_is_null(json_object_get(only_choice(frame), "logprobs")));
    json_decref(frame);

    frame = next_frame(&f);
    assert_int_equal(json_object_size(json_object_get(only_choice(frame), "delta")), 0);
    assert_string_equal(text_of(only_choice(frame), "finish_reason"), "length");
    json_decref(frame);
    assert_int_equal(f.out.len, 0);
    drop(&f);
}

static void completion_chunks_have_their_shape(void **state)
{
    (void)state;
    fixture f = make(false, 1);
    ek_choice *choice = &f.generation->choice[0];
    ek_gateway_frame_begin(&f.context, choice, &f.out);
    assert_int_equal(f.out.len, 0); /* without an echo there is nothing to say yet */
    ek_gateway_frame_text(&f.context, choice, EK_STR("hi"), &f.out);
    choice->finish = EK_FINISH_STOP;
    ek_gateway_frame_finish(&f.context, choice, true, &f.out);
    json_t *frame = next_frame(&f);
    assert_chunk(frame, "text_completion");
    assert_string_equal(text_of(only_choice(frame), "text"), "hi");
    json_decref(frame);
    frame = next_frame(&f);
    assert_string_equal(text_of(only_choice(frame), "text"), "");
    assert_string_equal(text_of(only_choice(frame), "finish_reason"), "stop");
    json_decref(frame);
    drop(&f);
}

/* S6, S8, S9, S10: the text comes out of its frame as it went in, whatever it holds. */
static void text_survives_its_frame(void **state)
{
    (void)state;
    static const ek_str texts[] = {
        {"data: [DONE]", 12},
        {"data: [DONE]\n\ndata: {\"error\":1}\n\n", 34},
        {"a\0b", 3},
        {"x\xc2\x85y\xe2\x80\xa8z\xe2\x80\xa9", 11},
        {"h\xc3\xa9llo \xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa9\xe2\x80\x8d\xf0\x9f\x91\xa7 "
         "\xe4\xb8\xad",
         29},
        {"quote \" back \\ tab \t", 20},
    };
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        fixture f = make(true, 1);
        ek_gateway_frame_text(&f.context, &f.generation->choice[0], texts[i], &f.out);
        assert_false(ek_str_contains(ek_http_buf_str(&f.out), EK_STR("\xc2\x85")));
        json_t *frame = next_frame(&f);
        const json_t *content =
            json_object_get(json_object_get(only_choice(frame), "delta"), "content");
        assert_int_equal(json_string_length(content), texts[i].len);
        assert_memory_equal(json_string_value(content), texts[i].data, texts[i].len);
        json_decref(frame);
        drop(&f);
    }
}

/* S9: bytes that are no character (which the engine never lets out) still make a valid frame. */
static void broken_text_becomes_a_valid_frame(void **state)
{
    (void)state;
    fixture f = make(true, 1);
    ek_gateway_frame_text(&f.context, &f.generation->choice[0], EK_STR("a\xf0\x9f"), &f.out);
    json_t *frame = next_frame(&f);
    const json_t *delta = json_object_get(only_choice(frame), "delta");
    assert_string_equal(text_of(delta, "content"), "a\xef\xbf\xbd\xef\xbf\xbd");
    json_decref(frame);
    drop(&f);
}

/* S5, S12: usage in one chunk of its own, prompt counted once, and null in every other chunk. */
static void usage_has_its_own_chunk(void **state)
{
    (void)state;
    fixture f = make(true, 3);
    f.generation->include_usage = true;
    f.generation->timings = true;
    for (int32_t i = 0; i < 3; i++)
        f.generation->choice[i].usage = (ek_usage){.prompt_tokens = 10,
                                                   .cached_tokens = 4,
                                                   .completion_tokens = 3 + i,
                                                   .queue_us = 1000,
                                                   .ttft_us = 2000,
                                                   .total_us = 1002000};
    ek_gateway_frame_begin(&f.context, &f.generation->choice[1], &f.out);
    f.generation->choice[1].finish = EK_FINISH_STOP;
    ek_gateway_frame_finish(&f.context, &f.generation->choice[1], true, &f.out);
    ek_gateway_frame_usage(&f.context, &f.out);
    ek_gateway_frame_done(&f.out);

    json_t *frame = next_frame(&f);
    assert_true(json_is_null(json_object_get(frame, "usage")));
    assert_int_equal(json_integer_value(json_object_get(only_choice(frame), "index")), 1);
    json_decref(frame);
    frame = next_frame(&f);
    assert_true(json_is_null(json_object_get(frame, "usage")));
    assert_true(json_is_object(json_object_get(frame, "timings")));
    json_decref(frame);
    frame = next_frame(&f);
    assert_int_equal(json_array_size(json_object_get(frame, "choices")), 0);
    const json_t *usage = json_object_get(frame, "usage");
    assert_int_equal(json_integer_value(json_object_get(usage, "prompt_tokens")), 10);
    assert_int_equal(json_integer_value(json_object_get(usage, "completion_tokens")), 12);
    assert_int_equal(json_integer_value(json_object_get(usage, "total_tokens")), 22);
    const json_t *details = json_object_get(usage, "prompt_tokens_details");
    assert_int_equal(json_integer_value(json_object_get(details, "cached_tokens")), 4);
    json_decref(frame);
    assert_int_equal(f.out.len, 14);
    assert_memory_equal(f.out.data, "data: [DONE]\n\n", 14);
    drop(&f);
}

/* S7: an error in a stream is a valid frame, even with quotes and line breaks in its message. */
static void a_fault_is_a_valid_frame(void **state)
{
    (void)state;
    fixture f = make(true, 1);
    ek_fault fault;
    ek_http_fault_set(&fault, &ek_http_fault_internal, NULL, "it said \"no\"\nand left\x85");
    ek_gateway_frame_fault(&fault, &f.out);
    json_t *frame = next_frame(&f);
    const json_t *error = json_object_get(frame, "error");
    assert_int_equal(json_object_size(error), 4);
    assert_string_equal(text_of(error, "message"), "it said \"no\"\nand left\xef\xbf\xbd");
    assert_string_equal(text_of(error, "code"), "internal_error");
    assert_true(json_is_null(json_object_get(error, "param")));
    json_decref(frame);
    drop(&f);
}

/*
 * E1, E4: each fault there is has four keys, an HTTP status of its own, and a time to wait where
 * one is due.
 */
static void every_fault_has_its_shape(void **state)
{
    (void)state;
    static const ek_fault_kind *const kinds[] = {
#define KIND_OF_HTTP(name, status, type, code, retry)    &ek_http_fault_##name,
#define KIND_OF_GATEWAY(name, status, type, code, retry) &ek_gateway_fault_##name,
        EK_HTTP_FAULT_TABLE(KIND_OF_HTTP) EK_GATEWAY_FAULT_TABLE(KIND_OF_GATEWAY)
#undef KIND_OF_HTTP
#undef KIND_OF_GATEWAY
    };
    for (size_t i = 0; i < EK_COUNT_OF(kinds); i++) {
        ek_fault fault;
        ek_buf json = {0};
        ek_http_fault_set(&fault, kinds[i], i % 2 ? "a[0].b" : NULL, "why");
        ek_http_fault_json(&fault, &json);
        json_t *root = json_loadb(json.data, json.len, JSON_REJECT_DUPLICATES, NULL);
        const json_t *error = json_object_get(root, "error");
        assert_int_equal(json_object_size(error), 4);
        assert_string_equal(text_of(error, "message"), "why");
        assert_true(strlen(text_of(error, "type")) > 0);
        assert_string_equal(text_of(error, "code"), kinds[i]->code);
        assert_true(i % 2 ? json_is_string(json_object_get(error, "param"))
                          : json_is_null(json_object_get(error, "param")));
        int32_t status = kinds[i]->status;
        int32_t retry_s = kinds[i]->retry_s;
        assert_in_range(status, 400, 505);
        assert_string_not_equal(ek_http_reason(status), "Error");
        if (status == 429 || status == 503) {
            assert_in_range(retry_s, 1, 120);
        } else {
            assert_int_equal(retry_s, 0);
        }
        json_decref(root);
        ek_http_buf_fini(&json);
    }
}

static void a_plain_answer_has_its_shape(void **state)
{
    (void)state;
    fixture f = make(true, 2);
    f.generation->stream = false;
    ek_http_buf_addz(&f.generation->choice[0].text, "one");
    f.generation->choice[0].finish = EK_FINISH_STOP;
    f.generation->choice[1].finish = EK_FINISH_LENGTH;
    ek_gateway_answer_json(&f.context, f.generation, &f.out);
    json_t *answer = json_loadb(f.out.data, f.out.len, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(answer);
    assert_chunk(answer, "chat.completion");
    const json_t *choices = json_object_get(answer, "choices");
    assert_int_equal(json_array_size(choices), 2);
    const json_t *message = json_object_get(json_array_get(choices, 0), "message");
    assert_string_equal(text_of(message, "content"), "one");
    assert_string_equal(text_of(message, "role"), "assistant");
    assert_string_equal(text_of(json_array_get(choices, 1), "finish_reason"), "length");
    assert_true(json_is_object(json_object_get(answer, "usage")));
    json_decref(answer);
    drop(&f);
}

/* ---- which tokens are shown ---- */

static ek_output read_of(const int32_t *text_ends, int32_t n_tokens, int32_t n_text)
{
    ek_output output = {.n_tokens = n_tokens, .n_text = n_text};
    for (int32_t i = 0; i < n_tokens; i++)
        output.token[i] = (ek_output_token){.id = i, .text_end = text_ends[i]};
    return output;
}

static void tokens_are_shown_with_their_text(void **state)
{
    (void)state;
    ek_logprobs logprobs = {0};
    const int32_t held[] = {2, 2, 2};
    ek_output output = read_of(held, 3, 2);
    assert_int_equal(ek_gateway_logprobs_take(&logprobs, &output), EK_OK);
    assert_int_equal(logprobs.n, 3);
    assert_int_equal(logprobs.n_shown, 1); /* two may still become a stop string */
    const int32_t out[] = {3};
    output = read_of(out, 1, 3);
    assert_int_equal(ek_gateway_logprobs_take(&logprobs, &output), EK_OK);
    assert_int_equal(logprobs.n_shown, 4); /* they did not */
    ek_gateway_logprobs_fini(&logprobs);
}

static void swallowed_tokens_are_forgotten(void **state)
{
    (void)state;
    ek_logprobs logprobs = {0};
    const int32_t ends[] = {1, 1, 1};
    ek_output output = read_of(ends, 3, 1);
    assert_int_equal(ek_gateway_logprobs_take(&logprobs, &output), EK_OK);
    ek_gateway_logprobs_end(&logprobs, true);
    assert_int_equal(logprobs.n, 1);
    ek_gateway_logprobs_fini(&logprobs);
    /* Text that was held comes out behind the last token when no stop string came of it. */
    output = read_of(ends, 3, 4);
    assert_int_equal(ek_gateway_logprobs_take(&logprobs, &output), EK_OK);
    ek_gateway_logprobs_end(&logprobs, true);
    assert_int_equal(logprobs.n, 3);
    ek_gateway_logprobs_fini(&logprobs);
    /* At the length limit nothing was swallowed. */
    output = read_of(ends, 3, 1);
    assert_int_equal(ek_gateway_logprobs_take(&logprobs, &output), EK_OK);
    ek_gateway_logprobs_end(&logprobs, false);
    assert_int_equal(logprobs.n_shown, 3);
    ek_gateway_logprobs_fini(&logprobs);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(chat_chunks_have_their_shape),
        cmocka_unit_test(completion_chunks_have_their_shape),
        cmocka_unit_test(text_survives_its_frame),
        cmocka_unit_test(broken_text_becomes_a_valid_frame),
        cmocka_unit_test(usage_has_its_own_chunk),
        cmocka_unit_test(a_fault_is_a_valid_frame),
        cmocka_unit_test(every_fault_has_its_shape),
        cmocka_unit_test(a_plain_answer_has_its_shape),
        cmocka_unit_test(tokens_are_shown_with_their_text),
        cmocka_unit_test(swallowed_tokens_are_forgotten),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
