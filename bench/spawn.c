#include "spawn.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sys/clock.h"

#define READY " on http://"

enum { ARGS_FIXED = 10, LINE_BYTES = 1024, EXIT_NO_PROGRAM = 127 };

static void exec_child(const ek_bench_spawn_params *p, int out_fd)
{
    const char *args[ARGS_FIXED + 2 * EK_BENCH_SPAWN_SETTINGS_MAX + 1] = {
        p->program,    "serve",       "--model", p->model_path, "--listen",
        "127.0.0.1:0", "--log-level", "error",   "--set",       "gateway.drain_settle=0s"};
    int n = ARGS_FIXED;
    for (int32_t i = 0; i < p->n_settings; i++) {
        args[n++] = "--set";
        args[n++] = p->setting[i];
    }
    /* However we end, the server does not stay behind. */
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    const int null_fd = open("/dev/null", O_RDONLY);
    if (null_fd < 0 || dup2(null_fd, STDIN_FILENO) < 0 || dup2(out_fd, STDOUT_FILENO) < 0)
        _exit(EXIT_NO_PROGRAM);
    execv(p->program, (char *const *)(uintptr_t)args);
    _exit(EXIT_NO_PROGRAM);
}

/* The first line that the child prints, without its end. @return false when it ends before */
static bool read_line(int fd, char out_line[LINE_BYTES])
{
    size_t n = 0;
    while (n + 1 < LINE_BYTES) {
        const ssize_t got = read(fd, out_line + n, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        if (out_line[n] == '\n') break;
        n++;
    }
    out_line[n] = '\0';
    return true;
}

/* "evenkeel 1.2 on http://127.0.0.1:40001: ..." -> the URL */
static bool find_url(const char *line, char *out_url, size_t bytes)
{
    const char *at = strstr(line, READY);
    if (!at) return false;
    at += sizeof " on " - 1;
    const char *end = strstr(at, ": ");
    if (!end || (size_t)(end - at) >= bytes) return false;
    memcpy(out_url, at, (size_t)(end - at));
    out_url[end - at] = '\0';
    return true;
}

ek_status ek_bench_spawn_start(const ek_bench_spawn_params *params, ek_bench_child *out_child,
                               ek_err *err)
{
    int fds[2];
    if (access(params->program, X_OK) != 0)
        return ek_err_set(err, EK_ENOTFOUND, "%s: no such program", params->program);
    if (pipe(fds) != 0) return ek_err_set(err, EK_EINTERNAL, "no pipe");
    const int64_t beg_us = ek_sys_now_us();
    const pid_t pid = fork();
    if (pid == 0) {
        close(fds[0]);
        exec_child(params, fds[1]);
    }
    close(fds[1]);
    if (pid < 0) {
        close(fds[0]);
        return ek_err_set(err, EK_EINTERNAL, "no child process");
    }
    ek_bench_child child = {.pid = pid, .out_fd = fds[0]};
    char line[LINE_BYTES];
    if (!read_line(fds[0], line) || !find_url(line, child.url, sizeof child.url)) {
        if (ek_bench_spawn_stop(&child, err) < 0) return EK_EPEER;
        return ek_err_set(err, EK_EPEER, "%s: it ended before it was ready", params->program);
    }
    child.load_s = (double)(ek_sys_now_us() - beg_us) * 1e-6;
    *out_child = child;
    return EK_OK;
}

int64_t ek_bench_spawn_rss_mib(const ek_bench_child *child)
{
    char path[64], line[256];
    int64_t kib = 0;
    snprintf(path, sizeof path, "/proc/%ld/status", (long)child->pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    while (fgets(line, sizeof line, file) && sscanf(line, "VmHWM: %" SCNd64, &kib) != 1)
        continue;
    fclose(file);
    return kib / 1024;
}

ek_status ek_bench_spawn_stop(ek_bench_child *child, ek_err *err)
{
    if (child->pid == 0) return EK_OK;
    int status = 0;
    kill(child->pid, SIGTERM);
    while (waitpid(child->pid, &status, 0) < 0 && errno == EINTR)
        continue;
    close(child->out_fd);
    *child = (ek_bench_child){0};
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return EK_OK;
    if (WIFEXITED(status))
        return ek_err_set(err, EK_EPEER, "the server ended with %d", WEXITSTATUS(status));
    return ek_err_set(err, EK_EPEER, "the server was ended by signal %d", WTERMSIG(status));
}
