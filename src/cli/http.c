#include "cli/http.h"

#include <curl/curl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sys/mem.h"

#define CONNECT_TIMEOUT_MS 5000L
#define POLL_MS            50 /* how often stop is asked */

struct ek_cli_http {
    CURL *easy;
    CURLM *multi;
    struct curl_slist *headers;
};

/* One call under way: what curl's callbacks write into. */
typedef struct transfer {
    const ek_cli_http_call *call;
    ek_cli_http *http;
    ek_cli_http_reply reply;
    ek_status refused; /* why take_bytes ended the transfer, EK_OK if it did not */
} transfer;

ek_status ek_cli_http_open(ek_cli_http **out_http, ek_err *err)
{
    ek_cli_http *http = ek_sys_calloc(1, sizeof *http);
    if (!http || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        ek_sys_free(http);
        return ek_err_set(err, EK_ENOMEM, "no memory for the HTTP client");
    }
    http->easy = curl_easy_init();
    http->multi = curl_multi_init();
    http->headers = curl_slist_append(NULL, "Content-Type: application/json");
    if (!http->easy || !http->multi || !http->headers) {
        ek_cli_http_close(http);
        return ek_err_set(err, EK_ENOMEM, "no memory for the HTTP client");
    }
    *out_http = http;
    return EK_OK;
}

void ek_cli_http_close(ek_cli_http *http)
{
    if (!http) return;
    curl_slist_free_all(http->headers);
    curl_easy_cleanup(http->easy);
    curl_multi_cleanup(http->multi);
    curl_global_cleanup();
    ek_sys_free(http);
}

static size_t take_bytes(char *data, size_t size, size_t n, void *ctx)
{
    transfer *t = ctx;
    const ek_str bytes = {data, size * n};
    long code = 0;
    curl_easy_getinfo(t->http->easy, CURLINFO_RESPONSE_CODE, &code);
    if (t->call->on_bytes && code == 200)
        t->refused = t->call->on_bytes(t->call->ctx, bytes) ? EK_OK : EK_ECANCELED;
    else
        t->refused = ek_cli_text_append(&t->reply.body, bytes, EK_CLI_HTTP_BODY_MAX);
    return t->refused == EK_OK ? bytes.len : 0;
}

static void prepare(transfer *t)
{
    CURL *easy = t->http->easy;
    curl_easy_reset(easy);
    curl_easy_setopt(easy, CURLOPT_URL, t->call->url);
    curl_easy_setopt(easy, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(easy, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(easy, CURLOPT_PROXY,
                     ""); /* a proxy between a user and his own server is a mistake */
    curl_easy_setopt(easy, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(easy, CURLOPT_USERAGENT, "evenkeel/" EK_VERSION);
    curl_easy_setopt(easy, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS);
    if (t->call->timeout_us > 0)
        curl_easy_setopt(easy, CURLOPT_TIMEOUT_MS, (long)((t->call->timeout_us + 999) / 1000));
    curl_easy_setopt(easy, CURLOPT_WRITEFUNCTION, take_bytes);
    curl_easy_setopt(easy, CURLOPT_WRITEDATA, t);
    if (t->call->bearer) {
        curl_easy_setopt(easy, CURLOPT_HTTPAUTH, CURLAUTH_BEARER);
        curl_easy_setopt(easy, CURLOPT_XOAUTH2_BEARER, t->call->bearer);
    }
    if (t->call->body) {
        curl_easy_setopt(easy, CURLOPT_POST, 1L);
        curl_easy_setopt(easy, CURLOPT_POSTFIELDS, t->call->body);
        curl_easy_setopt(easy, CURLOPT_POSTFIELDSIZE_LARGE, (curl_off_t)strlen(t->call->body));
        curl_easy_setopt(easy, CURLOPT_HTTPHEADER, t->http->headers);
    }
}

static ek_status explain(const transfer *t, CURLcode result, ek_err *err)
{
    if (t->refused == EK_ECANCELED) return ek_err_set(err, EK_ECANCELED, "canceled");
    if (t->refused != EK_OK)
        return ek_err_set(err, t->refused, "%s: the answer is too long", t->call->url);
    if (result == CURLE_URL_MALFORMAT || result == CURLE_UNSUPPORTED_PROTOCOL)
        return ek_err_set(err, EK_EINVAL, "'%s' is not an http or https URL", t->call->url);
    if (result == CURLE_OUT_OF_MEMORY) return ek_err_set(err, EK_ENOMEM, "out of memory");
    if (result == CURLE_OPERATION_TIMEDOUT)
        return ek_err_set(err, EK_ETIMEOUT, "%s: no answer in time", t->call->url);
    return ek_err_set(err, EK_EPEER, "%s: %s; is evenkeel serve running there?", t->call->url,
                      curl_easy_strerror(result));
}

ek_status ek_cli_http_run(ek_cli_http *http, const ek_cli_http_call *call,
                          ek_cli_http_reply *out_reply, ek_err *err)
{
    transfer t = {.call = call, .http = http};
    prepare(&t);
    CURLMcode added = curl_multi_add_handle(http->multi, http->easy);
    if (added != CURLM_OK)
        return ek_err_set(err, EK_EINTERNAL, "%s: %s", call->url, curl_multi_strerror(added));

    bool stopped = false;
    int n_running = 1;
    while (n_running > 0 && !stopped) {
        if (curl_multi_perform(http->multi, &n_running) != CURLM_OK) break;
        if (n_running > 0) curl_multi_poll(http->multi, NULL, 0, POLL_MS, NULL);
        stopped = call->stop && call->stop(call->ctx);
    }
    CURLcode result = CURLE_RECV_ERROR;
    int n_left;
    for (CURLMsg *message; (message = curl_multi_info_read(http->multi, &n_left)) != NULL;)
        if (message->msg == CURLMSG_DONE) result = message->data.result;
    curl_easy_getinfo(http->easy, CURLINFO_RESPONSE_CODE, &t.reply.code);
    curl_multi_remove_handle(http->multi, http->easy);

    ek_status status = EK_OK;
    if (stopped)
        status = ek_err_set(err, EK_ECANCELED, "canceled");
    else if (result != CURLE_OK)
        status = explain(&t, result, err);
    if (status < 0) {
        ek_cli_text_free(&t.reply.body);
        return status;
    }
    *out_reply = t.reply;
    return EK_OK;
}

ek_status ek_cli_http_url(const char *base, const char *path, char *out_url, size_t bytes,
                          ek_err *err)
{
    ek_str root = ek_str_from(base);
    while (root.len > 0 && root.data[root.len - 1] == '/')
        root.len--;
    /* People paste the base URL that OpenAI clients want, which ends in /v1. */
    if (root.len >= 3 && memcmp(root.data + root.len - 3, "/v1", 3) == 0) root.len -= 3;
    const char *scheme = ek_str_contains(root, EK_STR("://")) ? "" : "http://";
    const int n = snprintf(out_url, bytes, "%s%.*s%s", scheme, EK_STR_ARG(root), path);
    if (root.len == 0 || n < 0 || (size_t)n >= bytes)
        return ek_err_set(err, EK_EINVAL, "'%s' is not an http or https URL", base);
    return EK_OK;
}

const char *ek_cli_http_default_url(void)
{
    const char *url = getenv("EVENKEEL_URL");
    return url && url[0] ? url : "http://127.0.0.1:8080";
}
