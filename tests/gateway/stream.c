#include "stream.h"

#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Far enough apart for the tiny model's own logits not to matter, close enough for seven bytes. */
#define BIAS_FIRST 100
#define BIAS_STEP  13

static void append(stream_choice *choice, const char *text, size_t n)
{
    choice->text = realloc(choice->text, choice->n_text + n + 1);
    assert_non_null(choice->text);
    if (n) memcpy(choice->text + choice->n_text, text, n);
    choice->n_text += n;
    choice->text[choice->n_text] = '\0';
}

static void take_logprobs(stream_choice *choice, const json_t *logprobs)
{
    if (!json_is_object(logprobs)) return;
    const json_t *tokens = json_object_get(logprobs, "content");
    if (!tokens) tokens = json_object_get(logprobs, "tokens");
    choice->n_logprobs += (int32_t)json_array_size(tokens);
}

static void take_choice(stream *s, const json_t *item)
{
    json_int_t index = json_integer_value(json_object_get(item, "index"));
    assert_in_range(index, 0, STREAM_CHOICES_MAX - 1);
    if (index >= s->n_choices) s->n_choices = (int32_t)index + 1;
    stream_choice *choice = &s->choice[index];
    const json_t *delta = json_object_get(item, "delta");
    const json_t *text = delta ? json_object_get(delta, "content") : json_object_get(item, "text");
    const json_t *finish = json_object_get(item, "finish_reason");
    assert_string_equal(choice->finish, ""); /* nothing follows a choice's end */
    if (choice->n_chunks == 0 && delta) choice->role = json_object_get(delta, "role") != NULL;
    if (choice->n_chunks > 0 && delta) assert_null(json_object_get(delta, "role"));
    choice->n_chunks++;
    if (!choice->text) append(choice, "", 0);
    if (json_is_string(text)) append(choice, json_string_value(text), json_string_length(text));
    if (json_is_string(finish))
        snprintf(choice->finish, sizeof choice->finish, "%s", json_string_value(finish));
    take_logprobs(choice, json_object_get(item, "logprobs"));
}

static void take_frame(stream *s, const char *line, size_t n, json_t **first)
{
    json_t *frame = json_loadb(line, n, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, NULL);
    if (!frame) print_message("no JSON: %.*s\n", (int)n, line);
    assert_non_null(frame);
    json_t *error = json_object_get(frame, "error");
    if (error) {
        assert_null(s->error);
        s->error = json_incref(error);
        json_decref(frame);
        return;
    }
    static const char *const same[] = {"id", "object", "created", "model"};
    for (int i = 0; *first && i < 4; i++)
        assert_true(json_equal(json_object_get(frame, same[i]), json_object_get(*first, same[i])));
    const json_t *choices = json_object_get(frame, "choices");
    json_t *usage = json_object_get(frame, "usage");
    assert_true(json_is_array(choices));
    if (json_is_object(usage)) {
        assert_int_equal(json_array_size(choices), 0);
        assert_null(s->usage);
        s->usage = json_incref(usage);
    } else {
        assert_int_equal(json_array_size(choices), 1);
        assert_null(s->usage); /* usage is the last chunk */
        take_choice(s, json_array_get(choices, 0));
    }
    if (*first) {
        json_decref(frame);
    } else {
        *first = frame;
    }
}

stream stream_parse(const char *body, size_t n_body)
{
    stream s = {0};
    json_t *first = NULL;
    size_t at = 0;
    while (at < n_body) {
        const char *line = body + at;
        const char *end = memchr(line, '\n', n_body - at);
        assert_non_null(end);
        size_t n = (size_t)(end - line);
        assert_true(at + n + 1 < n_body && line[n + 1] == '\n');
        assert_false(s.done);
        if (n >= 6 && memcmp(line, ": ping", 6) == 0) {
            s.n_pings++;
        } else if (n == 12 && memcmp(line, "data: [DONE]", 12) == 0) {
            s.done = true;
        } else {
            assert_true(n > 6);
            assert_memory_equal(line, "data: ", 6);
            take_frame(&s, line + 6, n - 6, &first);
        }
        at += n + 2;
    }
    json_decref(first);
    return s;
}

void stream_free(stream *s)
{
    for (int32_t i = 0; i < s->n_choices; i++)
        free(s->choice[i].text);
    json_decref(s->usage);
    json_decref(s->error);
    *s = (stream){0};
}

int32_t byte_token(const ek_engine *engine, unsigned char byte)
{
    ek_engine_info info;
    ek_engine_info_get(engine, &info);
    for (int32_t id = 0; id < info.n_vocab; id++) {
        char piece[1024];
        if (ek_engine_piece(engine, id, piece) == 1 && (unsigned char)piece[0] == byte) return id;
    }
    print_message("no token for byte %02x\n", byte);
    assert_true(false);
    return -1;
}

void force_text(const ek_engine *engine, const char *text, size_t n, int32_t max_tokens,
                char *out_fields, size_t bytes)
{
    assert_true(BIAS_FIRST - (int)(n - 1) * BIAS_STEP > 10);
    int at =
        snprintf(out_fields, bytes,
                 "\"temperature\":0,\"repetition_penalty\":10,\"max_tokens\":%d,\"logit_bias\":{",
                 max_tokens);
    for (size_t i = 0; i < n; i++) {
        assert_null(i ? memchr(text, text[i], i) : NULL);
        at += snprintf(out_fields + at, bytes - (size_t)at, "%s\"%d\":%d", i ? "," : "",
                       byte_token(engine, (unsigned char)text[i]), BIAS_FIRST - (int)i * BIAS_STEP);
    }
    at += snprintf(out_fields + at, bytes - (size_t)at, "}");
    assert_true((size_t)at < bytes);
}
