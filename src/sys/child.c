#include "sys/child.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include "sys/clock.h"

#define POLL_US 5000 /* between two looks whether a child has ended */

enum { EXIT_NO_PROGRAM = 127 };

/* ---- starting ---- */

/* In the child, so only what may be called between fork and exec. */
static _Noreturn void become(const char *const *argv, const char *log, int out_fd, pid_t owner)
{
    sigset_t none;
    sigemptyset(&none);
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGTERM);
    if (getppid() != owner) _exit(EXIT_NO_PROGRAM); /* it has gone in between */
    const int null_fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
    const int log_fd = log ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    bool ready = null_fd >= 0 && dup2(null_fd, STDIN_FILENO) >= 0;
    ready = ready && dup2(out_fd, STDOUT_FILENO) >= 0;
    ready = ready && (!log || (log_fd >= 0 && dup2(log_fd, STDERR_FILENO) >= 0));
    signal(SIGPIPE, SIG_DFL);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (ready) execv(argv[0], (char *const *)(uintptr_t)argv);
    _exit(EXIT_NO_PROGRAM);
}

ek_status ek_sys_child_start(const char *const *argv, const char *log, ek_sys_child *out_child,
                             ek_err *err)
{
    int fds[2];
    if (access(argv[0], X_OK) != 0)
        return ek_err_set(err, EK_ENOTFOUND, "%s: no such program, or it may not be executed",
                          argv[0]);
    if (pipe2(fds, O_CLOEXEC) != 0) return ek_err_set(err, EK_EINTERNAL, "no pipe");
    const pid_t owner = getpid();
    const pid_t pid = fork();
    if (pid == 0) become(argv, log, fds[1], owner);
    close(fds[1]);
    if (pid < 0) {
        close(fds[0]);
        return ek_err_set(err, EK_EINTERNAL, "no child process");
    }
    *out_child = (ek_sys_child){.pid = pid, .out_fd = fds[0]};
    return EK_OK;
}

/* ---- while it runs ---- */

ek_status ek_sys_child_line(ek_sys_child *child, int64_t patience_us, char *out_line, size_t bytes)
{
    const int64_t until_us = ek_sys_now_us() + patience_us;
    for (;;) {
        int wait_ms = -1;
        if (patience_us >= 0) {
            const int64_t left_us = until_us - ek_sys_now_us();
            if (left_us <= 0) return EK_ETIMEOUT;
            wait_ms = (int)(left_us / 1000) + 1;
        }
        struct pollfd ready = {.fd = child->out_fd, .events = POLLIN};
        if (poll(&ready, 1, wait_ms) <= 0) continue;
        char c;
        const ssize_t got = read(child->out_fd, &c, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return EK_END;
        if (c == '\n') break;
        if (child->n_part + 1 < sizeof child->part) child->part[child->n_part++] = c;
    }
    const size_t n = child->n_part < bytes - 1 ? child->n_part : bytes - 1;
    memcpy(out_line, child->part, n);
    out_line[n] = '\0';
    child->n_part = 0;
    return EK_OK;
}

int64_t ek_sys_child_rss_mib(const ek_sys_child *child)
{
    static const char key[] = "VmHWM:";
    char path[64], line[256];
    int64_t kib = 0;
    snprintf(path, sizeof path, "/proc/%" PRId64 "/status", child->pid);
    FILE *file = fopen(path, "r");
    if (!file) return 0;
    while (kib == 0 && fgets(line, sizeof line, file))
        if (strncmp(line, key, sizeof key - 1) == 0) kib = strtoll(line + sizeof key - 1, NULL, 10);
    fclose(file);
    return kib / 1024;
}

ek_status ek_sys_program_path(char *out_path, size_t bytes)
{
    const ssize_t n = readlink("/proc/self/exe", out_path, bytes);
    if (n < 0) return EK_ENOTFOUND;
    if ((size_t)n >= bytes) return EK_ERANGE;
    out_path[n] = '\0';
    return EK_OK;
}

/* ---- ending ---- */

void ek_sys_child_ask_to_end(const ek_sys_child *child)
{
    if (child->pid > 0) kill((pid_t)child->pid, SIGTERM);
}

ek_status ek_sys_child_stop(ek_sys_child *child, int64_t patience_us, ek_err *err)
{
    if (child->pid <= 0) return EK_OK;
    const pid_t pid = (pid_t)child->pid;
    const int64_t until_us = ek_sys_now_us() + patience_us;
    int status = 0;
    bool killed = false;
    kill(pid, SIGTERM);
    for (;;) {
        const pid_t got = waitpid(pid, &status, killed ? 0 : WNOHANG);
        if (got == pid || (got < 0 && errno != EINTR)) break;
        if (!killed && ek_sys_now_us() >= until_us) {
            kill(pid, SIGKILL);
            killed = true;
        }
        if (!killed) ek_sys_sleep_us(POLL_US);
    }
    close(child->out_fd);
    *child = (ek_sys_child){0};
    if (WIFEXITED(status) && WEXITSTATUS(status) == 0) return EK_OK;
    if (WIFEXITED(status))
        return ek_err_set(err, EK_EPEER, "process %d ended with %d", (int)pid, WEXITSTATUS(status));
    return ek_err_set(err, EK_EPEER, "process %d was ended by signal %d", (int)pid,
                      WTERMSIG(status));
}
