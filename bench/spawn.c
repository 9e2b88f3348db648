#include "spawn.h"

#include <string.h>

#include "sys/clock.h"

#define READY       " on http://"
#define PATIENCE_US INT64_C(60000000) /* for what is under way when it is told to end */

enum { ARGS_FIXED = 10 };

/* "evenkeel 1.2 on http://127.0.0.1:40001: ..." -> the URL */
static ek_status find_url(const char *line, char *out_url, size_t bytes)
{
    const char *at = strstr(line, READY);
    if (!at) return EK_EFORMAT;
    at += sizeof " on " - 1;
    const char *end = strstr(at, ": ");
    if (!end || (size_t)(end - at) >= bytes) return EK_EFORMAT;
    memcpy(out_url, at, (size_t)(end - at));
    out_url[end - at] = '\0';
    return EK_OK;
}

ek_status ek_bench_spawn_start(const ek_bench_spawn_params *params, ek_bench_child *out_child,
                               ek_err *err)
{
    const char *args[ARGS_FIXED + 2 * EK_BENCH_SPAWN_SETTINGS_MAX + 1] = {
        params->program, "serve", "--model", params->model_path,       "--listen", "127.0.0.1:0",
        "--log-level",   "error", "--set",   "gateway.drain_settle=0s"};
    int n = ARGS_FIXED;
    for (int32_t i = 0; i < params->n_settings; i++) {
        args[n++] = "--set";
        args[n++] = params->setting[i];
    }
    ek_bench_child child = {0};
    char line[EK_SYS_CHILD_LINE_BYTES];
    const int64_t beg_us = ek_sys_now_us();
    ek_status status = ek_sys_child_start(args, NULL, &child.process, err);
    if (status < 0) return status;
    status = ek_sys_child_line(&child.process, EK_SYS_CHILD_FOR_EVER, line, sizeof line);
    if (status == EK_OK) status = find_url(line, child.url, sizeof child.url);
    if (status != EK_OK) {
        if (ek_bench_spawn_stop(&child, err) < 0) return EK_EPEER;
        return ek_err_set(err, EK_EPEER, "%s: it ended before it was ready", params->program);
    }
    child.load_s = (double)(ek_sys_now_us() - beg_us) * 1e-6;
    *out_child = child;
    return EK_OK;
}

ek_status ek_bench_spawn_stop(ek_bench_child *child, ek_err *err)
{
    return ek_sys_child_stop(&child->process, PATIENCE_US, err);
}
