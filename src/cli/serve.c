/*
 * evenkeel serve: model, engine and gateway in one process, until a signal says otherwise.
 *
 * The main thread wires the rooms together, then only waits for signals:
 *   TERM, INT, QUIT  drain: finish what runs, take nothing new; a second one ends at once
 *   HUP              read the configuration again; USR1 opens the log file again
 */
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

#include "cli/args.h"
#include "cli/cluster_front.h"
#include "cli/exit.h"
#include "cli/gates_ready.h"
#include "cli/placement.h"
#include "cli/reload.h"
#include "cli/settings.h"
#include "engine/engine.h"
#include "expert/model_file.h"
#include "gateway/admin.h"
#include "gateway/gateway.h"
#include "sys/clock.h"
#include "sys/file.h"
#include "sys/log.h"
#include "sys/signal.h"
#include "sys/thread.h"

#define PLACEMENT_BYTES ((size_t)1 << 30) /* of address space: the largest placement */
#define TICK_US         1000000 /* how often the main thread tells systemd that it is well */

enum { OPTION_CHECK = EK_CLI_OPTION_OWN };

static const ek_cli_option options[] = {
    EK_CLI_SETTINGS_ROWS,
    {EK_CLI_OPTION_SETTING, "model", "PATH", "GGUF file to serve, or its first shard",
     "model.path"},
    {EK_CLI_OPTION_SETTING, "gate-overlay", "FILE", "calibrated gates in place of the model's",
     "model.gate_overlay"},
    {EK_CLI_OPTION_SETTING, "alias", "NAME", "the model's id in the API", "model.alias"},
    {EK_CLI_OPTION_SETTING, "chat-format", "NAME", "chat format, if not the file's",
     "model.chat_format"},
    {EK_CLI_OPTION_SETTING, "listen", "ADDR", "address of the API, host:port", "gateway.listen"},
    {EK_CLI_OPTION_SETTING, "health-listen", "ADDR", "second address for health and metrics",
     "gateway.health_listen"},
    {EK_CLI_OPTION_SETTING, "threads", "N", "compute threads", "engine.threads"},
    {EK_CLI_OPTION_SETTING, "kernels", "NAME", "auto, reference, avx2, avx512", "engine.kernels"},
    {EK_CLI_OPTION_SETTING, "context", "N", "longest prompt + answer in tokens", "engine.context"},
    {EK_CLI_OPTION_SETTING, "kv-cache", "SIZE", "memory of the KV cache", "engine.kv_cache"},
    {EK_CLI_OPTION_SETTING, "running-max", "N", "requests that decode together",
     "engine.running_max"},
    {EK_CLI_OPTION_SETTING, "queue-max", "N", "requests that wait for a place", "engine.queue_max"},
    {EK_CLI_OPTION_SETTING, "workers", "ADDR,...", "workers that have the experts, host:port each",
     "cluster.workers"},
    {EK_CLI_OPTION_SETTING, "certs", "DIR", "this front's certificate, where there are workers",
     "cluster.certs"},
    {EK_CLI_OPTION_SETTING, "log-level", "LEVEL", "error, warn, info or debug", "log.level"},
    {OPTION_CHECK, "check", NULL, "check configuration and model, start nothing", NULL},
};

typedef struct server {
    ek_cli_settings settings;
    ek_cli_loaded loaded; /* in force */
    ek_sys_region metrics_region;
    ek_sys_region placement_region; /* zeroed: there is no placement */
    ek_metrics *metrics;
    ek_gauge *reload_success; /* of the last attempt; 1 before any */
    ek_gauge *gates_sane;     /* of the sample before it was ready; 1 before any */
    ek_gateway *gateway;
    ek_engine *engine;
    ek_cli_front front;
    char model_id[256];
    int hurry_signal; /* the second signal that ended a drain; 0: none came */
} server;

/* The id that the API shows: the alias, else the file's name without its endings. */
static void name_model(const ek_config *config, char *out_id, size_t bytes)
{
    if (config->model_alias) {
        snprintf(out_id, bytes, "%s", config->model_alias);
        return;
    }
    const char *slash = strrchr(config->model_path, '/');
    ek_str name = ek_str_from(slash ? slash + 1 : config->model_path);
    if (name.len > 5 && memcmp(name.data + name.len - 5, ".gguf", 5) == 0) name.len -= 5;
    int32_t n_shards;
    if (ek_model_gguf_shard_count(config->model_path, &n_shards, NULL) >= 0 && n_shards > 1)
        name.len -= sizeof "-00001-of-00002" - 1;
    snprintf(out_id, bytes, "%.*s", EK_STR_ARG(name));
}

/* What the configuration asks of a model and the model cannot give is a mistake of the former. */
static int no_model(const ek_err *err)
{
    if (err->status == EK_EINVAL || err->status == EK_ECONFIG)
        return ek_cli_fail(EK_EXIT_CONFIG, "%s", err->text);
    if (err->status == EK_ETIMEOUT) return ek_cli_fail(EK_EXIT_UNAVAILABLE, "%s", err->text);
    return ek_cli_fail_err(err);
}

static int check_only(const ek_config *config)
{
    ek_err err = {0};
    ek_model_file *file;
    if (ek_expert_model_open(config->model_path, config->chat_format, &file, &err) < 0)
        return no_model(&err);
    int code = EK_EXIT_OK;
    if (config->engine.gate_overlay &&
        ek_expert_model_overlay(file, config->engine.gate_overlay, &err) < 0)
        code = no_model(&err);
    else
        printf("configuration and model are fit to be served\n");
    ek_expert_model_close(file);
    return code;
}

static int no_gateway(const ek_err *err)
{
    if (err->status == EK_EINUSE)
        return ek_cli_fail(EK_EXIT_UNAVAILABLE, "%s; choose another with --listen", err->text);
    if (err->status == EK_EACCESS)
        return ek_cli_fail(EK_EXIT_NO_PERMISSION, "%s; ports below 1024 need privileges",
                           err->text);
    if (err->status == EK_EINVAL) return ek_cli_fail(EK_EXIT_CONFIG, "%s", err->text);
    return ek_cli_fail_err(err);
}

/* One line for people, and for programs that asked for port 0 and read the address from it. */
static void announce(const server *s)
{
    ek_engine_info info;
    ek_engine_info_get(s->engine, &info);
    const int32_t asked = s->loaded.config.engine.n_threads;
    const int32_t n_threads = asked > 0 ? asked : ek_sys_cpu_count();
    const double mib = 1024.0 * 1024.0;
    printf("evenkeel %s on http://%s: %s (%s, %.1f M parameters, %.1f M active, %" PRId32
           " experts top-%" PRId32 "), %s kernels, %" PRId32 " threads, %.1f MiB weights, %.1f MiB "
           "KV cache\n",
           EK_VERSION, ek_gateway_address(s->gateway), s->model_id, info.arch,
           (double)info.params_total / 1e6, (double)info.params_active / 1e6, info.n_experts,
           info.top_k, info.kernels, n_threads, (double)info.weight_bytes / mib,
           (double)info.kv_bytes / mib);
    fflush(stdout);
    ek_log(EK_LOG_INFO, "cli", "ready",
           "addr=%s health_addr=\"%s\" model=\"%s\" arch=%s kernels=%s gate_overlay=\"%.12s\"",
           ek_gateway_address(s->gateway), ek_gateway_health_address(s->gateway), s->model_id,
           info.arch, info.kernels, info.overlay_sha256 ? info.overlay_sha256 : "");
}

/* The file's keys are the gateway's from now on; its name does not change while we run. */
static ek_status read_admin_keys(server *s, ek_err *err)
{
    const char *path = s->loaded.config.gateway.admin_key_file;
    ek_str text;
    if (!path) return EK_OK;
    ek_status status = ek_sys_file_read(path, EK_ADMIN_FILE_BYTES_MAX, &text, err);
    if (status == EK_OK) {
        status = ek_gateway_admin_keys(s->gateway, text, err);
        ek_sys_free((void *)(uintptr_t)text.data);
        if (status != EK_OK) ek_err_prefix(err, "%s", path);
    }
    if (status != EK_OK) ek_err_prefix(err, "gateway.admin_key_file");
    return status;
}

static void reload(server *s)
{
    char begun[64];
    snprintf(begun, sizeof begun, "RELOADING=1\nMONOTONIC_USEC=%" PRId64, ek_sys_now_us());
    ek_sys_notify(begun);
    ek_sys_log_reopen();
    ek_err err = {0};
    char restart[512];
    ek_status status =
        ek_cli_reload(&s->settings, &s->loaded.config, s->engine, restart, sizeof restart, &err);
    if (status >= 0) status = read_admin_keys(s, &err);
    ek_gauge_set(s->reload_success, status >= 0);
    if (status < 0)
        ek_log(EK_LOG_ERROR, "cli", "reload_failed", "err=\"%s\"", err.text);
    else if (restart[0])
        ek_log(EK_LOG_WARN, "cli", "reloaded", "needs_restart=\"%s\"", restart);
    else
        ek_log(EK_LOG_INFO, "cli", "reloaded", "needs_restart=\"\"");
    ek_sys_notify("READY=1");
}

/* Until a signal asks to end; that signal. */
static int wait_for_end(server *s)
{
    for (;;) {
        const int signal_number = ek_sys_signal_wait(TICK_US);
        switch (signal_number) {
        case 0:
            if (ek_engine_healthy(s->engine)) ek_sys_notify("WATCHDOG=1");
            break;
        case SIGHUP: reload(s); break;
        case SIGUSR1: ek_sys_log_reopen(); break;
        default: return signal_number;
        }
    }
}

/* Asked by the drain, again and again: has somebody lost patience? */
static bool hurry(void *ctx)
{
    server *s = ctx;
    if (s->hurry_signal == 0) {
        const int signal_number = ek_sys_signal_wait(0);
        if (signal_number != SIGHUP && signal_number != SIGUSR1) s->hurry_signal = signal_number;
    }
    return s->hurry_signal != 0;
}

static int drain(server *s, int signal_number)
{
    ek_log(EK_LOG_INFO, "cli", "draining", "signal=%d inflight=%" PRId32, signal_number,
           ek_engine_inflight(s->engine));
    ek_sys_notify("STOPPING=1\nSTATUS=draining");
    const ek_status status = ek_gateway_drain(s->gateway, hurry, s);
    ek_log(EK_LOG_INFO, "cli", "drained", "complete=%s", status == EK_OK ? "true" : "false");
    if (s->hurry_signal == SIGINT) return EK_EXIT_INTERRUPTED;
    return s->hurry_signal != 0 || status != EK_OK ? EK_EXIT_TERMINATED : EK_EXIT_OK;
}

/* Engine params with everything that is known elsewhere: in a placement's file, or by workers. */
static ek_status read_placement(server *s, ek_engine_params *params, ek_err *err)
{
    const ek_config *config = &s->loaded.config;
    const char *path = config->placement_path;
    if (!path && !config->cluster.workers) return EK_OK;
    ek_status status = ek_sys_region_open(PLACEMENT_BYTES, 0, &s->placement_region);
    if (status != EK_OK) return ek_err_set(err, status, "no memory for a placement");
    ek_arena perm = ek_sys_region_arena(&s->placement_region);
    if (config->cluster.workers) {
        ek_sys_notify("STATUS=waiting for workers");
        return ek_cli_front_open(config, s->metrics, hurry, s, &perm, &s->front, params, err);
    }
    return ek_cli_placement_load(path, &perm, params, err);
}

/* Workers are told of from here on, even while the gates are not sane. */
static ek_status look_at_gates(server *s, ek_err *err)
{
    const ek_cli_gates gates = {
        .config = &s->loaded.config,
        .engine = s->engine,
        .front = s->front.front,
        .gateway = s->gateway,
        .sane = s->gates_sane,
        .hurry = hurry,
        .ctx = s,
    };
    if (s->front.front) ek_gateway_attach_cluster(s->gateway, &s->front.gateway);
    return ek_cli_gates_ready(&gates, err);
}

/* The gateway answers before the model is there, so that health checks see a server that loads. */
static int serve_model(server *s)
{
    const ek_config *config = &s->loaded.config;
    ek_gateway_params gateway_params = config->gateway;
    gateway_params.model_id = s->model_id;
    ek_err err = {0};
    if (ek_gateway_create(&gateway_params, s->metrics, &s->gateway, &err) < 0)
        return no_gateway(&err);
    if (read_admin_keys(s, &err) < 0) {
        ek_gateway_destroy(s->gateway);
        return ek_cli_fail(EK_EXIT_CONFIG, "%s", err.text);
    }

    int code;
    ek_sys_notify("STATUS=loading the model");
    ek_engine_params engine_params = config->engine;
    ek_status status = read_placement(s, &engine_params, &err);
    if (status >= 0)
        status = ek_engine_create(&engine_params, config->model_path, config->chat_format,
                                  s->metrics, &s->engine, &err);
    if (status >= 0) status = look_at_gates(s, &err);
    if (status == EK_ECANCELED) {
        code = s->hurry_signal == SIGINT ? EK_EXIT_INTERRUPTED : EK_EXIT_TERMINATED;
    } else if (status < 0) {
        code = no_model(&err);
    } else {
        ek_gateway_attach(s->gateway, s->engine);
        announce(s);
        ek_sys_notify("READY=1\nSTATUS=serving");
        code = drain(s, wait_for_end(s));
    }
    ek_gateway_destroy(s->gateway);
    ek_engine_destroy(s->engine);
    ek_cli_front_close(&s->front);
    return code;
}

static void register_metrics(server *s)
{
    ek_gauge_set(ek_telemetry_gauge(s->metrics, "evenkeel_build_info", "version=\"" EK_VERSION "\"",
                                    1, "Always 1; the label says which version this is."),
                 1);
    s->reload_success = ek_telemetry_gauge(
        s->metrics, "evenkeel_config_reload_success", NULL, 1,
        "1 when the configuration was last read without a mistake, 0 when it was refused.");
    ek_gauge_set(s->reload_success, 1);
    s->gates_sane = ek_telemetry_gauge(
        s->metrics, "evenkeel_gates_sane", NULL, 1,
        "0 when a sample before the server was ready found gates that are not sane, else 1.");
    ek_gauge_set(s->gates_sane, 1);
}

static int serve(server *s)
{
    const ek_config *config = &s->loaded.config;
    name_model(config, s->model_id, sizeof s->model_id);
    if (ek_sys_log_open(config->log_path, config->log_level) < 0)
        return ek_cli_fail(EK_EXIT_CONFIG, "%s: cannot write the log there (log.path)",
                           config->log_path);
    if (ek_sys_signal_block() < 0 ||
        ek_sys_region_open(EK_METRICS_BYTES_MAX, 0, &s->metrics_region) < 0)
        return ek_cli_fail(EK_EXIT_MEMORY, "no memory for the metrics");
    ek_arena perm = ek_sys_region_arena(&s->metrics_region);
    int code = EK_EXIT_MEMORY;
    if (ek_telemetry_metrics_create(&perm, &s->metrics) >= 0) {
        register_metrics(s);
        code = serve_model(s);
    }
    ek_sys_region_close(&s->metrics_region);
    ek_sys_region_close(&s->placement_region);
    return code;
}

static int run(int argc, char **argv)
{
    server s = {.settings = ek_cli_settings_start()};
    bool check = false;
    ek_cli_args args = ek_cli_args_start(&ek_cli_serve, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        if (id == OPTION_CHECK) {
            check = true;
        } else if (id >= 0) {
            const int code = ek_cli_settings_take(&s.settings, &args);
            if (code != EK_EXIT_OK) return code;
        } else {
            return ek_cli_args_exit(&args, id);
        }
    }
    ek_err err = {0};
    if (ek_cli_settings_load(&s.settings, &s.loaded, &err) < 0) return ek_cli_fail_err(&err);
    int code;
    if (!s.loaded.config.model_path)
        code = ek_cli_fail(EK_EXIT_CONFIG, "no model is named; use --model PATH, or model.path in "
                                           "the configuration file");
    else
        code = check ? check_only(&s.loaded.config) : serve(&s);
    ek_cli_loaded_close(&s.loaded);
    return code;
}

const ek_cli_command ek_cli_serve = {
    .name = "serve",
    .operands = "",
    .summary = "serve a model over HTTP",
    .about =
        "Serves a GGUF model with an OpenAI-compatible API until it is told to end. Each option\n"
        "with a [key] sets that key; the environment (EVENKEEL_GATEWAY_LISTEN for\n"
        "gateway.listen) and a configuration file may set the same keys, in this order of\n"
        "precedence. TERM and INT drain and end, a second one ends at once, HUP reads the\n"
        "configuration again, USR1 opens the log file again.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
