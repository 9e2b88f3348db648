#include "cli/cluster_call.h"

#include <stdlib.h>
#include <string.h>

#include "cli/exit.h"
#include "gateway/admin.h"
#include "sys/file.h"
#include "sys/mem.h"

#define CALL_TIMEOUT_US 10000000

/* The first key of the file, else the environment's; "": none is named. */
static int read_admin_key(const char *path, char out_key[EK_ADMIN_KEY_BYTES_MAX + 1])
{
    const char *set = getenv("EVENKEEL_ADMIN_KEY");
    ek_str text = ek_str_from(set ? set : ""), key = {0};
    char *owned = NULL;
    int32_t line = 0;
    ek_err err = {0};
    if (path) {
        if (ek_sys_file_read(path, EK_ADMIN_FILE_BYTES_MAX, &text, &err) < 0)
            return ek_cli_fail_err(&err);
        owned = (char *)(uintptr_t)text.data;
    }
    bool found = ek_gateway_admin_next(&text, &line, &key) && key.len <= EK_ADMIN_KEY_BYTES_MAX;
    if (found) memcpy(out_key, key.data, key.len);
    out_key[found ? key.len : 0] = '\0';
    ek_sys_free(owned);
    if (found || !path) return EK_EXIT_OK;
    return ek_cli_fail(EK_EXIT_DATA, "%s: there is no admin key in it", path);
}

static int run(const ek_cli_cluster_call *call, const char *path, const char *body,
               const char *bearer, ek_cli_http_reply *out_reply)
{
    char url[1024];
    ek_err err = {0};
    ek_cli_http *http;
    if (ek_cli_http_url(call->url, path, url, sizeof url, &err) < 0 ||
        ek_cli_http_open(&http, &err) < 0)
        return ek_cli_fail_err(&err);
    const ek_cli_http_call one = {
        .url = url, .body = body, .bearer = bearer, .timeout_us = CALL_TIMEOUT_US};
    ek_status status = ek_cli_http_run(http, &one, out_reply, &err);
    ek_cli_http_close(http);
    if (status < 0) return ek_cli_fail(EK_EXIT_UNAVAILABLE, "%s", err.text);
    if (out_reply->code == 200) return EK_EXIT_OK;
    ek_str text = ek_cli_text_str(&out_reply->body);
    json_t *root = json_loadb(text.data, text.len, 0, NULL);
    const char *message =
        json_string_value(json_object_get(json_object_get(root, "error"), "message"));
    ek_cli_fail(EK_EXIT_FAILURE, "%s: HTTP %ld: %s", url, out_reply->code,
                message ? message : "no error message");
    json_decref(root);
    ek_cli_text_free(&out_reply->body);
    return EK_EXIT_FAILURE;
}

int ek_cli_cluster_get(const ek_cli_cluster_call *call, ek_cli_http_reply *out_reply)
{
    return run(call, "/v1/cluster", NULL, NULL, out_reply);
}

int ek_cli_cluster_post(const ek_cli_cluster_call *call, const char *path, const char *body,
                        ek_cli_http_reply *out_reply)
{
    char key[EK_ADMIN_KEY_BYTES_MAX + 1];
    int code = read_admin_key(call->admin_key_file, key);
    return code == EK_EXIT_OK ? run(call, path, body, key[0] ? key : NULL, out_reply) : code;
}

const char *ek_cli_cluster_text(const json_t *object, const char *key)
{
    const char *text = json_string_value(json_object_get(object, key));
    return text ? text : "";
}

double ek_cli_cluster_number(const json_t *object, const char *key)
{
    return json_number_value(json_object_get(object, key));
}
