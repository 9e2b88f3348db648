/*
 * evenkeel experts top: how evenly a running server's experts are used.
 */
#include <inttypes.h>
#include <jansson.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "cli/args.h"
#include "cli/exit.h"
#include "cli/http.h"
#include "sys/mem.h"
#include "sys/signal.h"
#include "telemetry/experts.h"

#define CALL_TIMEOUT_US 10000000
#define WATCH_US        1000000
#define BUSIEST_SHOWN   5

enum { OPTION_URL, OPTION_WINDOW, OPTION_WATCH, OPTION_JSON };

static const ek_cli_option options[] = {
    {OPTION_URL, "url", "URL", "server (default $EVENKEEL_URL, else http://127.0.0.1:8080)", NULL},
    {OPTION_WINDOW, "window", "SECONDS", "look back this long; 0 is since the start (default)",
     NULL},
    {OPTION_WATCH, "watch", NULL, "show it again every second", NULL},
    {OPTION_JSON, "json", NULL, "print the server's own JSON", NULL},
};

/* One layer's counts, busiest first for printing. */
typedef struct layer {
    int64_t *tokens; /* (n) owned */
    int32_t n;
} layer;

static ek_status read_layer(const json_t *tokens, layer *out_layer)
{
    const size_t n = json_array_size(tokens);
    if (n == 0 || n > INT32_MAX) return EK_EFORMAT;
    int64_t *counts = ek_sys_calloc(n, sizeof *counts);
    if (!counts) return EK_ENOMEM;
    for (size_t i = 0; i < n; i++)
        counts[i] = json_integer_value(json_array_get(tokens, i));
    *out_layer = (layer){counts, (int32_t)n};
    return EK_OK;
}

static void print_busiest(const layer *l, int64_t total)
{
    /* Each place goes to the best behind the one before it: lower ids first among equals. */
    int64_t above = INT64_MAX;
    int32_t above_id = -1;
    for (int place = 0; place < BUSIEST_SHOWN; place++) {
        int32_t best = -1;
        for (int32_t e = 0; e < l->n; e++) {
            const int64_t count = l->tokens[e];
            const bool behind = count < above || (count == above && e > above_id);
            if (behind && count > 0 && (best < 0 || count > l->tokens[best])) best = e;
        }
        if (best < 0) break;
        above = l->tokens[best];
        above_id = best;
        printf("  %" PRId32 " %.1f%%", best, 100.0 * (double)above / (double)total);
    }
    putchar('\n');
}

static ek_status print_table(const json_t *root)
{
    const json_t *layers = json_object_get(root, "tokens"); /* (n_layers, n_experts) */
    if (json_array_size(layers) == 0) return EK_EFORMAT;
    printf("%5s %10s %8s %6s %6s %9s %5s  %s\n", "layer", "tokens", "max/mean", "cv", "gini",
           "effective", "zero", "busiest experts and their shares");
    for (size_t i = 0; i < json_array_size(layers); i++) {
        layer l;
        const ek_status status = read_layer(json_array_get(layers, i), &l);
        if (status < 0) return status;
        ek_balance balance;
        ek_telemetry_balance(l.tokens, l.n, &balance);
        printf("%5zu %10" PRId64 " %8.2f %6.2f %6.2f %9.1f %5" PRId32, i, balance.tokens,
               balance.max_over_mean, balance.cv, balance.gini, balance.effective, balance.n_zero);
        print_busiest(&l, balance.tokens);
        ek_sys_free(l.tokens);
    }
    return EK_OK;
}

static int show(ek_cli_http *http, const char *url, bool json)
{
    ek_err err = {0};
    const ek_cli_http_call call = {.url = url, .timeout_us = CALL_TIMEOUT_US};
    ek_cli_http_reply reply;
    if (ek_cli_http_run(http, &call, &reply, &err) < 0) return ek_cli_fail_err(&err);
    const ek_str body = ek_cli_text_str(&reply.body);
    json_t *root = json_loadb(body.data, body.len, 0, NULL);
    int code = EK_EXIT_OK;
    if (reply.code != 200)
        code = ek_cli_fail(EK_EXIT_FAILURE, "%s: the server answered %ld", url, reply.code);
    else if (json)
        printf("%.*s\n", EK_STR_ARG(body));
    else if (print_table(root) < 0)
        code = ek_cli_fail(EK_EXIT_FAILURE, "%s: the answer has no counts", url);
    json_decref(root);
    ek_cli_text_free(&reply.body);
    return code;
}

static int watch(ek_cli_http *http, const char *url, bool json)
{
    if (ek_sys_signal_block() < 0) return EK_EXIT_FAILURE;
    for (;;) {
        if (isatty(STDOUT_FILENO)) fputs("\033[H\033[J", stdout);
        const int code = show(http, url, json);
        if (code != EK_EXIT_OK) return code;
        if (fflush(stdout) != 0) return EK_EXIT_IO;
        if (ek_sys_signal_wait(WATCH_US) != 0) return EK_EXIT_OK;
    }
}

static int run(int argc, char **argv)
{
    const char *base = ek_cli_http_default_url(), *view = NULL;
    int64_t window_s = 0;
    bool again = false, json = false;
    ek_cli_args args = ek_cli_args_start(&ek_cli_experts, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        switch (id) {
        case OPTION_URL: base = args.value; break;
        case OPTION_WATCH: again = true; break;
        case OPTION_JSON: json = true; break;
        case OPTION_WINDOW:
            if (!ek_cli_args_int(&args, 0, 60, &window_s)) return EK_EXIT_USAGE;
            break;
        case EK_CLI_ARGS_OPERAND:
            if (view) return ek_cli_args_exit(&args, id);
            view = args.value;
            break;
        default: return ek_cli_args_exit(&args, id);
        }
    }
    if (!view || strcmp(view, "top") != 0)
        return ek_cli_fail(EK_EXIT_USAGE, "experts: '%s' is no view; use evenkeel experts top",
                           view ? view : "");
    char path[64] = "/v1/experts?window=all", url[1024];
    if (window_s > 0) snprintf(path, sizeof path, "/v1/experts?window=%" PRId64 "s", window_s);
    ek_err err = {0};
    ek_cli_http *http;
    if (ek_cli_http_url(base, path, url, sizeof url, &err) < 0 || ek_cli_http_open(&http, &err) < 0)
        return ek_cli_fail_err(&err);
    const int code = again ? watch(http, url, json) : show(http, url, json);
    ek_cli_http_close(http);
    return code;
}

const ek_cli_command ek_cli_experts = {
    .name = "experts",
    .operands = "top",
    .summary = "show how evenly a running server's experts are used",
    .about = "Shows per layer how many tokens its experts took, how even that was (max/mean 1 is\n"
             "even, above 2 is unbalanced) and which experts were the busiest.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
