#include "cli/load.h"

#include <curl/curl.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "cli/http.h"
#include "cli/sse.h"
#include "sys/clock.h"
#include "sys/mem.h"

#define REQUEST_TIMEOUT_S  900L
#define CONNECT_TIMEOUT_MS 10000L
#define POLL_MS_MAX        200
#define ID_CHARS           9 /* of a token id in a body: at most 8 digits and a comma */
#define BODY_EXTRA         1024
#define URL_BYTES          1024

typedef struct load load;

/* One request under way, or a place for one. Its connection is kept for the next. */
typedef struct stream {
    load *l;
    CURL *easy; /* owned */
    char *body; /* (body_bytes) owned */
    ek_cli_sse sse;
    int32_t request;
    bool busy, done; /* done: the answer came to its end */
    int64_t due_us, first_us, last_us;
    int64_t n_pieces, n_output, n_prompt; /* -1: the server did not say */
    char problem[256];
} stream;

struct load {
    const ek_cli_load_params *p;
    ek_cli_load_result *result;
    char url[URL_BYTES];
    CURLM *multi;
    struct curl_slist *headers;
    stream *streams; /* (n_streams) owned */
    size_t body_bytes;
    int32_t n_begun, n_ended;
    const int64_t *due_us; /* (n_requests) open loop: since the start; NULL: closed loop */
    int64_t *drawn_us;     /* owned: of a schedule of our own */
    int64_t start_us;
};

/* ---- times ---- */

static void add_time(ek_cli_times *times, int64_t us)
{
    if (times->n < times->room) times->ms[times->n++] = (double)us * 1e-3;
}

static ek_status make_times(ek_cli_times *times, int64_t room)
{
    times->ms = ek_sys_calloc((size_t)room, sizeof *times->ms);
    times->room = times->ms ? room : 0;
    return times->ms ? EK_OK : EK_ENOMEM;
}

static int compare(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double ek_cli_times_quantile(ek_cli_times *times, double q)
{
    if (times->n == 0) return 0;
    qsort(times->ms, (size_t)times->n, sizeof *times->ms, compare);
    return times->ms[(int64_t)(q * (double)(times->n - 1) + 0.5)];
}

void ek_cli_load_free(ek_cli_load_result *result)
{
    ek_sys_free(result->ttft.ms);
    ek_sys_free(result->gap.ms);
    ek_sys_free(result->e2e.ms);
    *result = (ek_cli_load_result){0};
}

/* ---- an answer as it arrives ---- */

EK_PRINTF(2, 3) static void blame(stream *s, const char *fmt, ...)
{
    if (s->problem[0]) return; /* the first reason is the telling one */
    va_list args;
    va_start(args, fmt);
    vsnprintf(s->problem, sizeof s->problem, fmt, args);
    va_end(args);
}

static void take_piece(stream *s)
{
    const int64_t now_us = ek_sys_now_us();
    if (s->n_pieces++ == 0)
        s->first_us = now_us;
    else
        add_time(&s->l->result->gap, now_us - s->last_us);
    s->last_us = now_us;
}

static void take_json(stream *s, json_t *event)
{
    const json_t *error = json_object_get(event, "error");
    if (error) {
        const char *message = json_string_value(json_object_get(error, "message"));
        blame(s, "%s", message ? message : "an error without a message");
    }
    const json_t *choice = json_array_get(json_object_get(event, "choices"), 0);
    if (json_string_length(json_object_get(choice, "text")) > 0) take_piece(s);
    const json_t *usage = json_object_get(event, "usage");
    const json_t *output = json_object_get(usage, "completion_tokens");
    const json_t *prompt = json_object_get(usage, "prompt_tokens");
    if (json_is_integer(output)) s->n_output = json_integer_value(output);
    if (json_is_integer(prompt)) s->n_prompt = json_integer_value(prompt);
}

static bool take_event(void *ctx, ek_str data)
{
    stream *s = ctx;
    if (ek_str_eqz(data, "[DONE]")) {
        s->done = true;
        return true;
    }
    json_t *event = json_loadb(data.data, data.len, 0, NULL);
    if (event)
        take_json(s, event);
    else
        blame(s, "an event that is no JSON: %.*s", EK_STR_ARG(data));
    json_decref(event);
    return true;
}

static size_t take_bytes(char *data, size_t size, size_t n, void *ctx)
{
    stream *s = ctx;
    const ek_str bytes = {data, size * n};
    long code = 0;
    curl_easy_getinfo(s->easy, CURLINFO_RESPONSE_CODE, &code);
    if (code != 200) {
        blame(s, "status %ld: %.*s", code, EK_STR_ARG(bytes));
        return bytes.len;
    }
    const ek_status status = ek_cli_sse_feed(&s->sse, bytes, take_event, s);
    if (status < 0) blame(s, "%s", ek_status_text(status));
    return status < 0 ? 0 : bytes.len;
}

static void tell(const stream *s, int64_t now_us)
{
    const ek_cli_load_params *p = s->l->p;
    if (!p->on_answer) return;
    const ek_cli_load_answer answer = {
        .request = s->request,
        .due_us = s->due_us,
        .first_us = s->first_us,
        .end_us = now_us,
        .n_output = s->n_output >= 0 ? s->n_output : s->n_pieces,
        .problem = s->problem[0] ? s->problem : NULL,
    };
    p->on_answer(p->ctx, &answer);
}

static void end_answer(stream *s, CURLcode code)
{
    ek_cli_load_result *r = s->l->result;
    const int64_t now_us = ek_sys_now_us();
    if (code != CURLE_OK) blame(s, "%s", curl_easy_strerror(code));
    if (!s->done) blame(s, "the stream ended without [DONE]");
    if (s->n_pieces == 0) blame(s, "an answer without text");
    s->busy = false;
    s->l->n_ended++;
    tell(s, now_us);
    if (s->problem[0]) {
        if (r->n_failed++ == 0) memcpy(r->problem, s->problem, sizeof r->problem);
        return;
    }
    const int64_t n_output = s->n_output >= 0 ? s->n_output : s->n_pieces;
    r->n_ok++;
    r->n_short += n_output < s->l->p->n_new;
    r->n_pieces += s->n_pieces;
    r->n_output_tokens += n_output;
    r->n_prompt_tokens += s->n_prompt >= 0 ? s->n_prompt : s->l->p->n_prompt;
    add_time(&r->ttft, s->first_us - s->due_us);
    add_time(&r->e2e, now_us - s->due_us);
}

/* ---- requests ---- */

static void write_body(const load *l, int32_t request, char *out)
{
    const ek_cli_load_params *p = l->p;
    const int32_t *ids = p->prompt ? p->prompt(p->ctx, request) : NULL;
    ek_rng rng;
    ek_rng_init(&rng, ek_mix64(p->seed) + (uint64_t)request);
    size_t n = (size_t)snprintf(out, l->body_bytes,
                                "{\"model\":\"%s\",\"stream\":true,"
                                "\"stream_options\":{\"include_usage\":true},\"max_tokens\":%d,"
                                "\"temperature\":0,\"ignore_eos\":true,",
                                p->model_id, p->n_new);
    if (p->request_seed)
        n += (size_t)snprintf(out + n, l->body_bytes - n, "\"seed\":%llu,",
                              (unsigned long long)p->request_seed(p->ctx, request));
    n += (size_t)snprintf(out + n, l->body_bytes - n, "\"prompt\":[");
    for (int32_t i = 0; i < p->n_prompt; i++)
        n += (size_t)snprintf(out + n, l->body_bytes - n, "%s%u", i > 0 ? "," : "",
                              ids ? (unsigned)ids[i]
                                  : (unsigned)ek_rng_below(&rng, (uint64_t)p->n_vocab));
    snprintf(out + n, l->body_bytes - n, "]}");
}

static ek_status begin(stream *s, int64_t due_us)
{
    load *l = s->l;
    ek_cli_sse_free(&s->sse); /* what a broken answer may have left */
    *s = (stream){.l = l,
                  .easy = s->easy,
                  .body = s->body,
                  .request = l->n_begun,
                  .busy = true,
                  .due_us = due_us,
                  .n_output = -1,
                  .n_prompt = -1};
    write_body(l, l->n_begun++, s->body);
    curl_easy_setopt(s->easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(s->body));
    curl_easy_setopt(s->easy, CURLOPT_POSTFIELDS, s->body);
    return curl_multi_add_handle(l->multi, s->easy) == CURLM_OK ? EK_OK : EK_EINTERNAL;
}

/* Begin what is due. @param out_wait_ms until the next one is */
static ek_status begin_due(load *l, int *out_wait_ms)
{
    *out_wait_ms = POLL_MS_MAX;
    for (int32_t i = 0; i < l->p->n_streams && l->n_begun < l->p->n_requests; i++) {
        stream *s = &l->streams[i];
        if (s->busy) continue;
        const int64_t now_us = ek_sys_now_us();
        const int64_t due_us = l->due_us ? l->start_us + l->due_us[l->n_begun] : now_us;
        if (due_us > now_us) {
            const int64_t wait_ms = (due_us - now_us + 999) / 1000;
            if (wait_ms < POLL_MS_MAX) *out_wait_ms = (int)wait_ms;
            return EK_OK;
        }
        const ek_status status = begin(s, due_us);
        if (status < 0) return status;
    }
    return EK_OK;
}

static void end_answers(load *l)
{
    int n_left;
    for (CURLMsg *message; (message = curl_multi_info_read(l->multi, &n_left)) != NULL;) {
        if (message->msg != CURLMSG_DONE) continue;
        const CURLcode code = message->data.result; /* the message goes with the handle */
        CURL *easy = message->easy_handle;
        stream *s = NULL;
        curl_easy_getinfo(easy, CURLINFO_PRIVATE, (char **)&s);
        curl_multi_remove_handle(l->multi, easy);
        end_answer(s, code);
    }
}

static ek_status play(load *l, ek_err *err)
{
    ek_status status = EK_OK;
    l->start_us = ek_sys_now_us();
    while (l->n_ended < l->p->n_requests && status == EK_OK) {
        int wait_ms, n_running;
        if (l->p->stop && l->p->stop(l->p->ctx)) status = EK_ECANCELED;
        if (status == EK_OK) status = begin_due(l, &wait_ms);
        if (status < 0) break;
        CURLMcode code = curl_multi_perform(l->multi, &n_running);
        const int32_t n_ended = l->n_ended;
        end_answers(l);
        if (l->n_ended > n_ended) continue; /* their places may be taken at once */
        if (code == CURLM_OK) code = curl_multi_poll(l->multi, NULL, 0, wait_ms, NULL);
        if (code != CURLM_OK) status = EK_EINTERNAL;
    }
    l->result->seconds = (double)(ek_sys_now_us() - l->start_us) * 1e-6;
    if (status == EK_ECANCELED) return ek_err_set(err, status, "told to stop");
    if (status < 0) return ek_err_set(err, status, "libcurl gave up");
    return EK_OK;
}

/* ---- setting up ---- */

static ek_status open_stream(load *l, stream *s)
{
    s->l = l;
    s->easy = curl_easy_init();
    s->body = ek_sys_calloc(1, l->body_bytes);
    if (!s->easy || !s->body) return EK_ENOMEM;
    curl_easy_setopt(s->easy, CURLOPT_URL, l->url);
    curl_easy_setopt(s->easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(s->easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(s->easy, CURLOPT_PROXY, ""); /* would be measured along */
    curl_easy_setopt(s->easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(s->easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS);
    curl_easy_setopt(s->easy, CURLOPT_TIMEOUT, REQUEST_TIMEOUT_S);
    curl_easy_setopt(s->easy, CURLOPT_HTTPHEADER, l->headers);
    curl_easy_setopt(s->easy, CURLOPT_POST, 1L);
    curl_easy_setopt(s->easy, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(s->easy, CURLOPT_WRITEDATA, s);
    curl_easy_setopt(s->easy, CURLOPT_PRIVATE, s);
    return EK_OK;
}

/* When requests are due: gaps of a Poisson process. */
static ek_status draw_schedule(load *l)
{
    l->drawn_us = ek_sys_calloc((size_t)l->p->n_requests, sizeof *l->drawn_us);
    if (!l->drawn_us) return EK_ENOMEM;
    l->due_us = l->drawn_us;
    ek_rng rng;
    ek_rng_init(&rng, l->p->seed);
    double at_us = 0;
    for (int32_t i = 0; i < l->p->n_requests; i++) {
        l->drawn_us[i] = (int64_t)at_us;
        at_us += -log(1.0 - ek_rng_unit(&rng)) / l->p->rate * 1e6;
    }
    return EK_OK;
}

static ek_status open_load(load *l)
{
    const ek_cli_load_params *p = l->p;
    const int64_t n_gaps = (int64_t)p->n_requests * p->n_new;
    if (n_gaps > EK_CLI_LOAD_SAMPLES_MAX) return EK_ENOMEM;
    l->body_bytes = (size_t)p->n_prompt * ID_CHARS + strlen(p->model_id) + BODY_EXTRA;
    l->multi = curl_multi_init();
    l->headers = curl_slist_append(NULL, "Content-Type: application/json");
    l->streams = ek_sys_calloc((size_t)p->n_streams, sizeof *l->streams);
    ek_status status = l->multi && l->headers && l->streams ? EK_OK : EK_ENOMEM;
    if (status == EK_OK) status = make_times(&l->result->ttft, p->n_requests);
    if (status == EK_OK) status = make_times(&l->result->gap, n_gaps);
    if (status == EK_OK) status = make_times(&l->result->e2e, p->n_requests);
    l->due_us = p->due_us;
    if (status == EK_OK && !p->due_us && p->rate > 0) status = draw_schedule(l);
    for (int32_t i = 0; i < p->n_streams && status == EK_OK; i++)
        status = open_stream(l, &l->streams[i]);
    return status;
}

static void close_load(load *l)
{
    for (int32_t i = 0; l->streams && i < l->p->n_streams; i++) {
        stream *s = &l->streams[i];
        if (s->busy) curl_multi_remove_handle(l->multi, s->easy);
        curl_easy_cleanup(s->easy);
        ek_cli_sse_free(&s->sse);
        ek_sys_free(s->body);
    }
    curl_multi_cleanup(l->multi);
    curl_slist_free_all(l->headers);
    ek_sys_free(l->streams);
    ek_sys_free(l->drawn_us);
}

ek_status ek_cli_load_run(const ek_cli_load_params *params, ek_cli_load_result *out_result,
                          ek_err *err)
{
    load l = {.p = params, .result = out_result};
    ek_status status = ek_cli_http_url(params->url, "/v1/completions", l.url, sizeof l.url, err);
    if (status < 0) return status;
    status = open_load(&l);
    if (status < 0)
        ek_err_set(err, status, "no memory for %d streams and %d requests", params->n_streams,
                   params->n_requests);
    else
        status = play(&l, err);
    close_load(&l);
    return status;
}

ek_status ek_cli_load_model(const char *url, char *out_id, size_t bytes, int32_t *out_vocab,
                            ek_err *err)
{
    char full[URL_BYTES];
    ek_cli_http *http = NULL;
    ek_cli_http_reply reply = {0};
    ek_status status = ek_cli_http_url(url, "/v1/models", full, sizeof full, err);
    if (status == EK_OK) status = ek_cli_http_open(&http, err);
    if (status < 0) return status;
    const ek_cli_http_call call = {.url = full, .timeout_us = 30000000};
    status = ek_cli_http_run(http, &call, &reply, err);
    ek_cli_http_close(http);
    if (status < 0) return status;
    json_t *answer = json_loadb(ek_cli_text_str(&reply.body).data, reply.body.len, 0, NULL);
    const json_t *model = json_array_get(json_object_get(answer, "data"), 0);
    const char *id = json_string_value(json_object_get(model, "id"));
    const json_t *vocab = json_object_get(json_object_get(model, "meta"), "n_vocab");
    /* The id goes into every body as it is. */
    const bool plain = id && strlen(id) < bytes && !strpbrk(id, "\"\\");
    if (plain) {
        snprintf(out_id, bytes, "%s", id);
        const json_int_t n = json_integer_value(vocab);
        *out_vocab = n > 0 && n < (1 << 24) ? (int32_t)n : 0;
    } else {
        status = ek_err_set(err, EK_EFORMAT, "%s: status %ld, no model is named", full, reply.code);
    }
    json_decref(answer);
    ek_cli_text_free(&reply.body);
    return status;
}
