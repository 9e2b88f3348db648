#include "cli/answer.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/sse.h"
#include "sys/clock.h"

#define ANSWER_MAX   ((size_t)16 << 20)
#define QUESTION_MAX ((size_t)64 << 20)

/* An answer that is coming in. */
typedef struct stream {
    ek_cli_sse sse;
    ek_cli_answer answer;
    int64_t start_us;
    bool to_terminal; /* control characters are left out */
    bool over;        /* [DONE] was seen */
    ek_status status; /* of what the events said */
    ek_err *err;
    bool (*stop)(void *ctx);
    void *stop_ctx;
} stream;

/* A model may write anything; a terminal must not obey it. */
static void print_text(const stream *s, ek_str text)
{
    for (size_t i = 0; i < text.len; i++) {
        const unsigned char c = (unsigned char)text.data[i];
        const bool control = (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f;
        if (!s->to_terminal || !control) putchar((int)c);
    }
    fflush(stdout);
}

static int64_t int_at(const json_t *object, const char *key)
{
    return json_integer_value(json_object_get(object, key));
}

static void take_usage(ek_cli_answer *answer, const json_t *usage)
{
    if (!json_is_object(usage)) return;
    answer->prompt_tokens = int_at(usage, "prompt_tokens");
    answer->completion_tokens = int_at(usage, "completion_tokens");
    answer->cached_tokens =
        int_at(json_object_get(usage, "prompt_tokens_details"), "cached_tokens");
}

static bool take_choice(stream *s, const json_t *choice)
{
    const json_t *delta = json_object_get(choice, "delta");
    const json_t *content = json_object_get(delta, "content");
    const ek_str text = {json_string_value(content), json_string_length(content)};
    if (text.data && text.len > 0) {
        if (s->answer.first_us == 0) s->answer.first_us = ek_sys_now_us() - s->start_us;
        print_text(s, text);
        s->status = ek_cli_text_append(&s->answer.text, text, ANSWER_MAX);
    }
    const char *finish = json_string_value(json_object_get(choice, "finish_reason"));
    if (finish) snprintf(s->answer.finish, sizeof s->answer.finish, "%s", finish);
    return s->status >= 0;
}

/*
 * The server's own words for what went wrong, from its error object. A refusal of what was asked is
 * the asker's to mend; everything else is the server's.
 */
static ek_status server_error(const json_t *root, ek_str raw, long code, ek_err *err)
{
    const bool refused = code >= 400 && code < 500 && code != 429;
    const json_t *error = json_object_get(root, "error");
    const char *message = json_string_value(json_object_get(error, "message"));
    if (raw.len > 200) raw.len = 200;
    const ek_str words = message ? ek_str_from(message) : raw;
    return ek_err_set(err, refused ? EK_EINVAL : EK_EPEER, "the server answered %ld: %.*s", code,
                      EK_STR_ARG(words));
}

static bool take_event(void *ctx, ek_str data)
{
    stream *s = ctx;
    if (ek_str_eq(data, EK_STR("[DONE]"))) {
        s->over = true;
        return true;
    }
    json_t *root = json_loadb(data.data, data.len, 0, NULL);
    bool go_on = true;
    if (!root) {
        s->status = ek_err_set(s->err, EK_EPEER, "the server sent an event that is not JSON");
        go_on = false;
    } else if (json_is_object(json_object_get(root, "error"))) {
        s->status = server_error(root, data, 200, s->err);
        go_on = false;
    } else {
        take_usage(&s->answer, json_object_get(root, "usage"));
        const json_t *choices = json_object_get(root, "choices");
        if (json_array_size(choices) > 0) go_on = take_choice(s, json_array_get(choices, 0));
    }
    json_decref(root);
    return go_on;
}

static bool take_bytes(void *ctx, ek_str bytes)
{
    stream *s = ctx;
    const ek_status status = ek_cli_sse_feed(&s->sse, bytes, take_event, s);
    if (status < 0) s->status = ek_err_set(s->err, status, "an event of the server is too long");
    /* Nobody reads any more: the rest would be computed for nothing. */
    return status == EK_OK && !ferror(stdout);
}

static bool wants_stop(void *ctx)
{
    stream *s = ctx;
    if (!s->stop || !s->stop(s->stop_ctx)) return false;
    s->answer.canceled = true;
    return true;
}

static int append_json(const char *bytes, size_t n, void *ctx)
{
    return ek_cli_text_append(ctx, (ek_str){bytes, n}, QUESTION_MAX) == EK_OK ? 0 : -1;
}

static ek_status write_question(const ek_cli_question *question, ek_cli_text *out_body)
{
    json_t *body = json_pack("{s:O, s:b, s:{s:b}}", "messages", question->messages, "stream", 1,
                             "stream_options", "include_usage", 1);
    if (!body) return EK_ENOMEM;
    int failed = 0;
    if (question->model) failed |= json_object_set_new(body, "model", json_string(question->model));
    if (question->max_tokens > 0)
        failed |= json_object_set_new(body, "max_tokens", json_integer(question->max_tokens));
    if (question->temperature >= 0)
        failed |= json_object_set_new(body, "temperature", json_real(question->temperature));
    if (question->seed >= 0)
        failed |= json_object_set_new(body, "seed", json_integer(question->seed));
    failed |= json_dump_callback(body, append_json, out_body, JSON_COMPACT);
    json_decref(body);
    return failed ? EK_ENOMEM : EK_OK;
}

/* What the whole call came to; sent is how its transport ended. */
static ek_status finish_stream(stream *s, const ek_cli_http_reply *reply, const ek_err *sent,
                               ek_err *err)
{
    if (s->status < 0) return s->status;
    if (s->answer.canceled || ferror(stdout)) return EK_OK;
    if (sent->status < 0) return ek_err_set(err, sent->status, "%s", sent->text);
    ek_status status;
    if (reply->code != 200) {
        const ek_str raw = ek_cli_text_str(&reply->body);
        json_t *root = json_loadb(raw.data, raw.len, 0, NULL);
        status = server_error(root, raw, reply->code, err);
        json_decref(root);
        return status;
    }
    if (!s->over)
        return ek_err_set(err, EK_EPEER, "the server broke off in the middle of its answer");
    return EK_OK;
}

ek_status ek_cli_answer_stream(ek_cli_http *http, const ek_cli_question *question,
                               bool (*stop)(void *ctx), void *ctx, ek_cli_answer *out_answer,
                               ek_err *err)
{
    char url[1024];
    ek_status status = ek_cli_http_url(question->url, "/v1/chat/completions", url, sizeof url, err);
    if (status < 0) return status;
    ek_cli_text body = {0};
    if (write_question(question, &body) < 0) {
        ek_cli_text_free(&body);
        return ek_err_set(err, EK_ENOMEM, "no memory for the question");
    }

    stream s = {.to_terminal = isatty(STDOUT_FILENO) != 0,
                .start_us = ek_sys_now_us(),
                .err = err,
                .stop = stop,
                .stop_ctx = ctx};
    const ek_cli_http_call call = {
        .url = url, .body = body.data, .on_bytes = take_bytes, .stop = wants_stop, .ctx = &s};
    ek_cli_http_reply reply = {0};
    ek_err sent = {0}; /* not err: what an event said counts for more than that it ended the call */
    sent.status = ek_cli_http_run(http, &call, &reply, &sent);
    status = finish_stream(&s, &reply, &sent, err);
    s.answer.total_us = ek_sys_now_us() - s.start_us;
    ek_cli_text_free(&reply.body);
    ek_cli_sse_free(&s.sse);
    ek_cli_text_free(&body);
    if (status < 0) {
        ek_cli_text_free(&s.answer.text);
        return status;
    }
    *out_answer = s.answer;
    return EK_OK;
}

double ek_cli_answer_rate(const ek_cli_answer *answer)
{
    const int64_t us = answer->total_us - answer->first_us;
    if (answer->completion_tokens < 2 || answer->first_us == 0 || us <= 0) return 0;
    return (double)(answer->completion_tokens - 1) * 1e6 / (double)us;
}
