/*
 * evenkeel status: is the server there, and ready?
 */
#include <jansson.h>
#include <stdio.h>

#include "cli/args.h"
#include "cli/exit.h"
#include "cli/http.h"
#include "sys/clock.h"

#define CALL_TIMEOUT_US 5000000
#define RETRY_US        200000

enum { OPTION_URL, OPTION_WAIT, OPTION_TIMEOUT, OPTION_JSON };

static const ek_cli_option options[] = {
    {OPTION_URL, "url", "URL", "server (default $EVENKEEL_URL, else http://127.0.0.1:8080)", NULL},
    {OPTION_WAIT, "wait", NULL, "ask again until it is ready", NULL},
    {OPTION_TIMEOUT, "timeout", "SECONDS", "give up waiting after this long (default 60)", NULL},
    {OPTION_JSON, "json", NULL, "print one JSON object", NULL},
};

/* What one question found out. */
typedef struct state {
    int code;        /* what the command would end with */
    char status[64]; /* "ok", "loading", "draining", "unreachable", ... */
    char why[512];   /* it is not ready; else empty */
    ek_err err;      /* why it is out of reach */
} state;

static state ask(ek_cli_http *http, const char *url)
{
    state found = {.code = EK_EXIT_UNAVAILABLE, .status = "unreachable"};
    const ek_cli_http_call call = {.url = url, .timeout_us = CALL_TIMEOUT_US};
    ek_cli_http_reply reply;
    if (ek_cli_http_run(http, &call, &reply, &found.err) < 0) return found;

    const ek_str body = ek_cli_text_str(&reply.body);
    json_t *root = json_loadb(body.data, body.len, 0, NULL);
    const char *status = json_string_value(json_object_get(root, "status"));
    found.code = reply.code == 200 ? EK_EXIT_OK : EK_EXIT_FAILURE;
    if (status)
        snprintf(found.status, sizeof found.status, "%s", status);
    else
        snprintf(found.status, sizeof found.status, "HTTP %ld", reply.code);
    const char *why = json_string_value(json_object_get(root, "why"));
    snprintf(found.why, sizeof found.why, "%s", why ? why : "");
    json_decref(root);
    ek_cli_text_free(&reply.body);
    return found;
}

static void print(const state *found, const char *base, bool json)
{
    if (!json) {
        if (found->code == EK_EXIT_UNAVAILABLE)
            ek_cli_fail(EK_EXIT_UNAVAILABLE, "%s", found->err.text);
        else
            printf("%s: %s%s%s\n", base, found->status, found->why[0] ? ": " : "", found->why);
        return;
    }
    json_t *root = json_pack("{s:s, s:b, s:s}", "url", base, "ready", found->code == EK_EXIT_OK,
                             "status", found->status);
    if (root) json_dumpf(root, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(root);
}

static int watch(const char *base, bool wait, int64_t timeout_s, bool json)
{
    char url[1024];
    ek_err err = {0};
    ek_cli_http *http;
    if (ek_cli_http_url(base, "/readyz", url, sizeof url, &err) < 0 ||
        ek_cli_http_open(&http, &err) < 0)
        return ek_cli_fail_err(&err);
    const int64_t until_us = ek_sys_now_us() + timeout_s * 1000000;
    state found = ask(http, url);
    while (wait && found.code != EK_EXIT_OK && found.err.status != EK_EINVAL &&
           ek_sys_now_us() < until_us) {
        ek_sys_sleep_us(RETRY_US);
        found = ask(http, url);
    }
    ek_cli_http_close(http);
    if (found.err.status == EK_EINVAL) return ek_cli_fail_err(&found.err);
    print(&found, base, json);
    return found.code;
}

static int run(int argc, char **argv)
{
    const char *base = ek_cli_http_default_url();
    bool wait = false, json = false;
    int64_t timeout_s = 60;
    ek_cli_args args = ek_cli_args_start(&ek_cli_status, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        switch (id) {
        case OPTION_URL: base = args.value; break;
        case OPTION_WAIT: wait = true; break;
        case OPTION_JSON: json = true; break;
        case OPTION_TIMEOUT:
            if (!ek_cli_args_int(&args, 0, 86400, &timeout_s)) return EK_EXIT_USAGE;
            break;
        default: return ek_cli_args_exit(&args, id);
        }
    }
    return watch(base, wait, timeout_s, json);
}

const ek_cli_command ek_cli_status = {
    .name = "status",
    .operands = "",
    .summary = "say whether a server is ready",
    .about = "Asks a server whether it is ready and ends with 0 if so, with 1 if it is loading,\n"
             "draining or unhealthy, and with 69 if it cannot be reached.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
