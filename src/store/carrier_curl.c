/*
 * Files behind HTTP, HTTPS and S3, by libcurl's multi interface.
 *
 * S3 is path-style GET at an endpoint, signed with AWS Signature Version 4 where there are
 * credentials. Redirects are followed for HTTP, a few of them and never from HTTPS to HTTP; for S3
 * they are not, since the signature is for one host.
 */
#include <curl/curl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "store/carrier.h"
#include "sys/mem.h"

#define CONNECT_TIMEOUT_MS 10000L
#define REDIRECTS_MAX      5L
#define SLOW_BYTES_S       1024L
#define S3                 "s3://"

/* S3 wants the hash of the body said; of a GET it is that of nothing. libcurl signs what is set. */
#define BODY_SHA256 \
    "x-amz-content-sha256: e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"

typedef struct transfer {
    bool busy;
    int32_t slot;
    CURL *easy; /* owned */
    ek_store_request request;
    int64_t at;
    bool refused, whole, longer;
    char url[EK_STORE_URL_MAX];
} transfer;

typedef struct web {
    ek_store_carrier carrier;      /* first: what callers hold */
    const ek_store_access *access; /* borrowed */
    int32_t n_slots;
    CURLM *multi;               /* owned */
    struct curl_slist *headers; /* owned; of signed requests */
    char user[1024], sign[64];  /* of AWS */
    transfer transfers[EK_STORE_SLOTS_MAX];
} web;

static web *of(ek_store_carrier *carrier)
{
    return (web *)carrier;
}

/* ---- URLs ---- */

/* Appends `text`, each byte that may not stand in a path as %XX. False: too long. */
static bool append_path(char *url, const char *text)
{
    static const char digits[] = "0123456789ABCDEF";
    static const char plain[] =
        "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-._~/";
    size_t len = strlen(url);
    for (; *text; text++) {
        bool as_is = strchr(plain, *text) != NULL;
        if (len + 4 > EK_STORE_URL_MAX) return false;
        if (as_is) {
            url[len++] = *text;
            continue;
        }
        url[len++] = '%';
        url[len++] = digits[(unsigned char)*text >> 4];
        url[len++] = digits[(unsigned char)*text & 15];
    }
    url[len] = '\0';
    return true;
}

/* An HTTP place is a URL as people paste it; names below it, and all of S3's, are encoded here. */
static bool make_url(const web *w, const char *name, char out_url[EK_STORE_URL_MAX])
{
    const ek_store_access *a = w->access;
    const char *place = w->carrier.place;
    bool s3 = strncmp(place, S3, strlen(S3)) == 0;
    char path[EK_STORE_URL_MAX];
    int n;
    if (!ek_store_carrier_path(&w->carrier, name, path)) return false;
    if (!s3) {
        n = snprintf(out_url, EK_STORE_URL_MAX, "%s", place);
        return n < EK_STORE_URL_MAX && append_path(out_url, path + strlen(place));
    }
    if (a->aws_endpoint)
        n = snprintf(out_url, EK_STORE_URL_MAX, "%s/", a->aws_endpoint);
    else
        n = snprintf(out_url, EK_STORE_URL_MAX, "https://s3.%s.amazonaws.com/", a->aws_region);
    if (n < 0 || n >= EK_STORE_URL_MAX) return false;
    return append_path(out_url, path + strlen(S3));
}

/* ---- one transfer ---- */

static long http_code(const transfer *t)
{
    long code = 0;
    curl_easy_getinfo(t->easy, CURLINFO_RESPONSE_CODE, &code);
    return code;
}

static bool asks_for_part(const ek_store_request *r)
{
    return r->bytes > 0 && !(r->offset == 0 && r->bytes == r->file_bytes);
}

static size_t on_bytes(char *data, size_t size, size_t n, void *ctx)
{
    transfer *t = ctx;
    ek_span bytes = {(const uint8_t *)data, size * n};
    long code = http_code(t);
    if (code != 200 && code != 206) return bytes.len; /* a page that says what is wrong */
    if (code == 200 && asks_for_part(&t->request)) {
        t->whole = true;
        return 0;
    }
    if (t->request.file_bytes > 0 && t->at + (int64_t)bytes.len > t->request.file_bytes) {
        t->longer = true;
        return 0;
    }
    t->refused = !t->request.take(t->request.ctx, t->at, bytes);
    t->at += (int64_t)bytes.len;
    return t->refused ? 0 : bytes.len;
}

static CURLcode prepare(web *w, transfer *t)
{
    CURL *e = t->easy;
    bool s3 = strncmp(w->carrier.place, S3, strlen(S3)) == 0;
    bool https = strncmp(t->url, "https:", 6) == 0;
    char range[64];
    curl_easy_reset(e);
    curl_easy_setopt(e, CURLOPT_PRIVATE, t);
    curl_easy_setopt(e, CURLOPT_PROTOCOLS_STR, "http,https");
    curl_easy_setopt(e, CURLOPT_REDIR_PROTOCOLS_STR, https ? "https" : "http,https");
    curl_easy_setopt(e, CURLOPT_HTTP_VERSION, (long)CURL_HTTP_VERSION_1_1);
    curl_easy_setopt(e, CURLOPT_FOLLOWLOCATION, s3 ? 0L : 1L);
    curl_easy_setopt(e, CURLOPT_MAXREDIRS, REDIRECTS_MAX);
    curl_easy_setopt(e, CURLOPT_NOSIGNAL, 1L);
    curl_easy_setopt(e, CURLOPT_CONNECTTIMEOUT_MS, CONNECT_TIMEOUT_MS);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_LIMIT, SLOW_BYTES_S);
    curl_easy_setopt(e, CURLOPT_LOW_SPEED_TIME, (long)w->access->stall_s);
    curl_easy_setopt(e, CURLOPT_BUFFERSIZE, 262144L);
    curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_bytes);
    curl_easy_setopt(e, CURLOPT_WRITEDATA, t);
    CURLcode code = curl_easy_setopt(e, CURLOPT_USERAGENT, "evenkeel/" EK_VERSION);
    if (code == CURLE_OK) code = curl_easy_setopt(e, CURLOPT_URL, t->url);
    if (code == CURLE_OK && w->access->ca_file)
        code = curl_easy_setopt(e, CURLOPT_CAINFO, w->access->ca_file);
    if (code == CURLE_OK && asks_for_part(&t->request)) {
        snprintf(range, sizeof range, "%" PRId64 "-%" PRId64, t->request.offset,
                 t->request.offset + t->request.bytes - 1);
        code = curl_easy_setopt(e, CURLOPT_RANGE, range);
    }
    if (code == CURLE_OK && s3 && w->access->aws_key_id) {
        code = curl_easy_setopt(e, CURLOPT_AWS_SIGV4, w->sign);
        if (code == CURLE_OK) code = curl_easy_setopt(e, CURLOPT_USERPWD, w->user);
        if (code == CURLE_OK) code = curl_easy_setopt(e, CURLOPT_HTTPHEADER, w->headers);
    }
    return code;
}

static ek_status start(ek_store_carrier *carrier, int32_t slot, const ek_store_request *request,
                       ek_err *err)
{
    web *w = of(carrier);
    transfer *t = &w->transfers[slot];
    CURL *easy = t->easy ? t->easy : curl_easy_init();
    *t = (transfer){.slot = slot, .easy = easy, .request = *request, .at = request->offset};
    if (!easy) return ek_err_set(err, EK_ENOMEM, "no memory for the HTTP client");
    if (!make_url(w, request->name, t->url))
        return ek_err_set(err, EK_EINVAL, "%s: the URL is too long", carrier->place);
    CURLcode code = prepare(w, t);
    if (code != CURLE_OK)
        return ek_err_set(err, EK_EINVAL, "%s: %s", t->url, curl_easy_strerror(code));
    if (curl_multi_add_handle(w->multi, easy) != CURLM_OK)
        return ek_err_set(err, EK_ENOMEM, "no memory for the HTTP client");
    t->busy = true;
    return EK_OK;
}

/* What a server's answer means for whoever asks again. */
static ek_store_verdict judge_answer(const transfer *t, long code, ek_err *err)
{
    switch (code) {
    case 200:
    case 206: return EK_STORE_CAME;
    case 401:
    case 403:
        ek_err_set(err, EK_EACCESS, "%s: HTTP %ld: the server gives no access", t->url, code);
        return EK_STORE_ABSENT;
    case 404:
    case 410:
        ek_err_set(err, EK_ENOTFOUND, "%s: HTTP %ld: no such file there", t->url, code);
        return EK_STORE_ABSENT;
    case 416:
        ek_err_set(err, EK_EFORMAT, "%s: HTTP 416: the file there is shorter", t->url);
        return EK_STORE_ABSENT;
    case 408:
    case 425:
    case 429: ek_err_set(err, EK_EPEER, "%s: HTTP %ld", t->url, code); return EK_STORE_TRANSIENT;
    default:
        ek_err_set(err, EK_EPEER, "%s: HTTP %ld", t->url, code);
        return code >= 500 ? EK_STORE_TRANSIENT : EK_STORE_ABSENT;
    }
}

static ek_store_verdict judge(const web *w, const transfer *t, CURLcode code, ek_err *err)
{
    if (t->whole) return EK_STORE_WHOLE;
    if (t->refused) return EK_STORE_REFUSED;
    if (t->longer) {
        ek_err_set(err, EK_EFORMAT, "%s: the file there is longer", t->url);
        return EK_STORE_ABSENT;
    }
    if (code == CURLE_OK) return judge_answer(t, http_code(t), err);
    ek_err_set(err, EK_EPEER, "%s: %s", t->url, curl_easy_strerror(code));
    if (code == CURLE_OPERATION_TIMEDOUT) {
        ek_err_set(err, EK_ETIMEOUT, "%s: no answer, or less than 1 KiB/s, for %" PRId32 " s",
                   t->url, w->access->stall_s);
        return EK_STORE_TRANSIENT;
    }
    if (code == CURLE_TOO_MANY_REDIRECTS)
        ek_err_set(err, EK_EPEER, "%s: redirects more than %ld times", t->url, REDIRECTS_MAX);
    if (code == CURLE_UNSUPPORTED_PROTOCOL)
        ek_err_set(err, EK_EPEER, "%s: redirects to what is neither HTTPS nor, from HTTP, HTTP",
                   t->url);
    if (code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE)
        ek_err_set(err, EK_EACCESS,
                   "%s: its certificate is not accepted; SSL_CERT_FILE names the authority of a "
                   "server of your own",
                   t->url);
    bool for_good = code == CURLE_TOO_MANY_REDIRECTS || code == CURLE_URL_MALFORMAT ||
                    code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_PEER_FAILED_VERIFICATION ||
                    code == CURLE_SSL_CACERT_BADFILE;
    return for_good ? EK_STORE_ABSENT : EK_STORE_TRANSIENT;
}

static bool step(ek_store_carrier *carrier, int32_t wait_ms, ek_store_outcome *out_outcome)
{
    web *w = of(carrier);
    int n_running, n_left;
    for (int round = 0; round < 2; round++) {
        if (curl_multi_perform(w->multi, &n_running) != CURLM_OK) return false;
        CURLMsg *message = curl_multi_info_read(w->multi, &n_left);
        if (message && message->msg == CURLMSG_DONE) {
            transfer *t;
            CURLcode code = message->data.result;
            curl_easy_getinfo(message->easy_handle, CURLINFO_PRIVATE, &t);
            *out_outcome = (ek_store_outcome){.slot = t->slot};
            out_outcome->verdict = judge(w, t, code, &out_outcome->err);
            curl_multi_remove_handle(w->multi, t->easy);
            t->busy = false;
            return true;
        }
        if (round == 0) curl_multi_poll(w->multi, NULL, 0, wait_ms, NULL);
    }
    return false;
}

static void close_web(ek_store_carrier *carrier)
{
    web *w = of(carrier);
    for (int32_t i = 0; i < w->n_slots; i++) {
        transfer *t = &w->transfers[i];
        if (t->busy) curl_multi_remove_handle(w->multi, t->easy);
        if (t->easy) curl_easy_cleanup(t->easy);
    }
    curl_slist_free_all(w->headers);
    curl_multi_cleanup(w->multi);
    curl_global_cleanup();
    ek_sys_free(w);
}

ek_status ek_store_carrier_open_curl(int32_t n_slots, const ek_store_access *access,
                                     ek_store_carrier **out_carrier, ek_err *err)
{
    static const ek_store_carrier_ops ops = {start, step, close_web};
    web *w = ek_sys_calloc(1, sizeof *w);
    if (!w || curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK) {
        ek_sys_free(w);
        return ek_err_set(err, EK_ENOMEM, "no memory for the HTTP client");
    }
    w->carrier.ops = &ops;
    w->access = access;
    w->n_slots = n_slots;
    w->multi = curl_multi_init();
    int n = snprintf(w->sign, sizeof w->sign, "aws:amz:%s:s3", access->aws_region);
    bool fits = n < (int)sizeof w->sign;
    if (access->aws_key_id) {
        n = snprintf(w->user, sizeof w->user, "%s:%s", access->aws_key_id,
                     access->aws_secret ? access->aws_secret : "");
        fits = fits && n < (int)sizeof w->user;
    }
    w->headers = curl_slist_append(NULL, BODY_SHA256);
    struct curl_slist *longer = w->headers;
    if (access->aws_token) {
        char header[EK_STORE_URL_MAX];
        n = snprintf(header, sizeof header, "x-amz-security-token: %s", access->aws_token);
        fits = fits && n < (int)sizeof header;
        longer = curl_slist_append(w->headers, header);
    }
    if (w->multi && w->headers && longer && fits) {
        *out_carrier = &w->carrier;
        return EK_OK;
    }
    close_web(&w->carrier);
    return fits ? ek_err_set(err, EK_ENOMEM, "no memory for the HTTP client")
                : ek_err_set(err, EK_EINVAL, "AWS credentials or region are too long");
}
