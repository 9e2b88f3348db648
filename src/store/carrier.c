#include "store/carrier.h"

#include <stdio.h>
#include <string.h>

#include "sys/file.h"
#include "sys/mem.h"

#define READ_TRIES 3

static bool starts(const char *text, const char *beginning)
{
    return strncmp(text, beginning, strlen(beginning)) == 0;
}

bool ek_store_is_url(const char *place)
{
    return starts(place, "http://") || starts(place, "https://") || starts(place, "s3://");
}

static bool is_file(const char *place)
{
    size_t len = strlen(place);
    return len > 5 && strcmp(place + len - 5, ".gguf") == 0;
}

bool ek_store_carrier_path(const ek_store_carrier *carrier, const char *name,
                           char out_path[EK_STORE_URL_MAX])
{
    bool whole = !name[0] || is_file(carrier->place);
    int n = snprintf(out_path, EK_STORE_URL_MAX, "%s%s%s", carrier->place, whole ? "" : "/",
                     whole ? "" : name);
    return n > 0 && n < EK_STORE_URL_MAX;
}

ek_status ek_store_carrier_open(const char *place, int32_t n_slots, const ek_store_access *access,
                                ek_store_carrier **out_carrier, ek_err *err)
{
    bool url = ek_store_is_url(place);
    if (!url && strstr(place, "://") && !starts(place, "file://"))
        return ek_err_set(err, EK_EINVAL,
                          "%s: is no place that weights come from: a directory, http://, https:// "
                          "or s3:// are",
                          place);
    if (starts(place, "file://")) place += strlen("file://");
    size_t len = strlen(place);
    while (len > 1 && place[len - 1] == '/')
        len--;
    if (len == 0 || len >= EK_STORE_URL_MAX)
        return ek_err_set(err, EK_EINVAL, "a source is empty, or longer than %d bytes",
                          EK_STORE_URL_MAX - 1);
    ek_store_carrier *carrier = NULL;
    ek_status status = url ? ek_store_carrier_open_curl(n_slots, access, &carrier, err)
                           : ek_store_carrier_open_disk(n_slots, &carrier, err);
    if (status != EK_OK) return status;
    memcpy(carrier->place, place, len);
    *out_carrier = carrier;
    return EK_OK;
}

void ek_store_carrier_close(ek_store_carrier *carrier)
{
    if (carrier) carrier->ops->close(carrier);
}

/* ---- one small file ---- */

typedef struct text {
    char *data; /* owned */
    size_t len, room, max;
    bool too_long;
} text;

static bool take_text(void *ctx, int64_t at, ek_span bytes)
{
    text *t = ctx;
    (void)at;
    if (bytes.len > t->max - t->len) {
        t->too_long = true;
        return false;
    }
    if (t->len + bytes.len + 1 > t->room) {
        size_t room = 2 * (t->len + bytes.len + 1);
        char *data = ek_sys_realloc(t->data, room);
        if (!data) return false;
        t->data = data;
        t->room = room;
    }
    memcpy(t->data + t->len, bytes.data, bytes.len);
    t->len += bytes.len;
    t->data[t->len] = '\0';
    return true;
}

static ek_status read_once(ek_store_carrier *carrier, const char *place, text *t,
                           ek_store_verdict *out_verdict, ek_err *err)
{
    const ek_store_request request = {.name = "", .take = take_text, .ctx = t};
    ek_store_outcome outcome = {.verdict = EK_STORE_ABSENT};
    t->len = 0;
    ek_status status = ek_store_carrier_start(carrier, 0, &request, err);
    *out_verdict = EK_STORE_ABSENT;
    if (status != EK_OK) return status;
    while (!ek_store_carrier_step(carrier, 100, &outcome)) {}
    *out_verdict = outcome.verdict;
    if (outcome.verdict == EK_STORE_CAME) return EK_OK;
    if (t->too_long)
        return ek_err_set(err, EK_ERANGE, "%s: longer than the %zu bytes allowed", place, t->max);
    if (outcome.verdict == EK_STORE_REFUSED)
        return ek_err_set(err, EK_ENOMEM, "%s: out of memory", place);
    if (err) *err = outcome.err;
    return outcome.err.status;
}

ek_status ek_store_read_text(const char *place, size_t max_bytes, const ek_store_access *access,
                             ek_str *out_text, ek_err *err)
{
    if (!ek_store_is_url(place)) return ek_sys_file_read(place, max_bytes, out_text, err);
    ek_store_carrier *carrier;
    ek_store_verdict verdict = EK_STORE_TRANSIENT;
    text t = {.max = max_bytes};
    ek_status status = ek_store_carrier_open(place, 1, access, &carrier, err);
    if (status != EK_OK) return status;
    for (int i = 0; i < READ_TRIES && verdict == EK_STORE_TRANSIENT; i++)
        status = read_once(carrier, place, &t, &verdict, err);
    ek_store_carrier_close(carrier);
    if (status == EK_OK && t.len == 0) status = ek_err_set(err, EK_EFORMAT, "%s: is empty", place);
    if (status == EK_OK)
        *out_text = (ek_str){t.data, t.len};
    else
        ek_sys_free(t.data);
    return status;
}
