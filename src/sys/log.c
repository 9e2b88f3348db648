#include "sys/log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#include "sys/clock.h"
#include "sys/logfmt.h"

#define LINE_BYTES_MAX   2048 /* with the newline */
#define LINE_TAIL_BYTES  64   /* kept free for what is said after a cut */
#define LINES_PER_SECOND 100  /* of one call site */
#define LOG_PATH_MAX     1024

/*
 * The only state of its kind: every thread of the process logs to one place, and handing that place
 * through every call would say nothing. The descriptor number never changes while threads run;
 * reopening puts a new file under the same number.
 */
static struct {
    _Atomic int fd;
    _Atomic int level;
    char path[LOG_PATH_MAX]; /* "" for standard error; written before threads start */
    _Atomic uint32_t n_lost; /* lines that could not be written: the disk is full */
    _Atomic bool is_torn;    /* the last one was written in part */
} log_state = {.fd = STDERR_FILENO, .level = EK_LOG_INFO};

static int open_log(const char *path)
{
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0640);
}

ek_status ek_sys_log_open(const char *path, ek_log_level level)
{
    int fd = STDERR_FILENO;
    if (path) {
        if (strlen(path) >= sizeof log_state.path) return EK_EINVAL;
        fd = open_log(path);
        if (fd < 0) return errno == EACCES || errno == EPERM ? EK_EACCESS : EK_EIO;
    }
    int old = atomic_exchange_explicit(&log_state.fd, fd, memory_order_relaxed);
    if (old != STDERR_FILENO) close(old);
    snprintf(log_state.path, sizeof log_state.path, "%s", path ? path : "");
    ek_sys_log_set_level(level);
    return EK_OK;
}

void ek_sys_log_reopen(void)
{
    if (log_state.path[0] == '\0') return;
    int fd = open_log(log_state.path);
    if (fd < 0) return; /* lines go on into the old file: better there than nowhere */
    dup3(fd, atomic_load_explicit(&log_state.fd, memory_order_relaxed), O_CLOEXEC);
    close(fd);
}

void ek_sys_log_set_level(ek_log_level level)
{
    atomic_store_explicit(&log_state.level, (int)level, memory_order_relaxed);
}

/*
 * False when this site has had its lines of this second. Threads that meet at the border of a
 * second may let a few lines more through; none is lost uncounted.
 */
static bool take_turn(ek_log_site *site)
{
    int64_t now_s = ek_sys_now_us() / 1000000;
    int64_t window_s = atomic_load_explicit(&site->window_s, memory_order_relaxed);
    if (now_s != window_s &&
        atomic_compare_exchange_strong_explicit(&site->window_s, &window_s, now_s,
                                                memory_order_relaxed, memory_order_relaxed))
        atomic_store_explicit(&site->n_in_window, 0, memory_order_relaxed);
    if (atomic_fetch_add_explicit(&site->n_in_window, 1, memory_order_relaxed) < LINES_PER_SECOND)
        return true;
    atomic_fetch_add_explicit(&site->n_dropped, 1, memory_order_relaxed);
    return false;
}

static void EK_PRINTF(2, 3) append(ek_sys_line *line, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    ek_sys_logfmt_append(line, fmt, args);
    va_end(args);
}

static void append_head(ek_sys_line *line, ek_log_level level, const char *room, const char *event)
{
    static const char *const level_name[] = {"error", "warn", "info", "debug"};
    int64_t now_ms = ek_sys_wall_us() / 1000;
    time_t now_s = (time_t)(now_ms / 1000);
    struct tm utc;
    gmtime_r(&now_s, &utc);
    append(line, "%04d-%02d-%02dT%02d:%02d:%02d.%03dZ level=%s room=%s event=%s",
           utc.tm_year + 1900, utc.tm_mon + 1, utc.tm_mday, utc.tm_hour, utc.tm_min, utc.tm_sec,
           (int)(now_ms % 1000), level_name[level], room, event);
}

/* What has to be said even on a line that is full already. */
static void append_tail(ek_sys_line *line, uint32_t n_dropped, uint32_t n_lost)
{
    bool was_cut = line->cut;
    line->room = LINE_BYTES_MAX - 1;
    line->cut = false;
    if (was_cut && line->in_quotes) append(line, "\"");
    if (was_cut) append(line, " cut=true");
    if (n_dropped) append(line, " dropped=%u", n_dropped);
    if (n_lost) append(line, " lost=%u", n_lost);
    line->data[line->len++] = '\n';
}

/*
 * One write per line: with O_APPEND the lines of several threads do not mix. What a full disk takes
 * no more is lost and counted; the rest of a line that it took in part is not sent after it, since
 * other lines may have come between.
 */
static void put(char *text, size_t len, uint32_t n_lost)
{
    int fd = atomic_load_explicit(&log_state.fd, memory_order_relaxed);
    bool was_torn = atomic_exchange_explicit(&log_state.is_torn, false, memory_order_relaxed);
    struct iovec parts[] = {{(char[]){'\n'}, was_torn ? 1 : 0}, {text, len}};
    ssize_t n;
    do
        n = writev(fd, parts, 2);
    while (n < 0 && errno == EINTR);
    if (n == (ssize_t)(parts[0].iov_len + len)) return;
    atomic_fetch_add_explicit(&log_state.n_lost, 1 + n_lost, memory_order_relaxed);
    if (n > 0 || was_torn) atomic_store_explicit(&log_state.is_torn, true, memory_order_relaxed);
}

void ek_sys_log_write(ek_log_site *site, ek_log_level level, const char *room, const char *event,
                      const char *fmt, ...)
{
    if ((int)level > atomic_load_explicit(&log_state.level, memory_order_relaxed)) return;
    if (!take_turn(site)) return;
    char text[LINE_BYTES_MAX];
    ek_sys_line line = {.data = text, .room = LINE_BYTES_MAX - LINE_TAIL_BYTES};
    append_head(&line, level, room, event);
    append(&line, " ");
    va_list args;
    va_start(args, fmt);
    ek_sys_logfmt_append(&line, fmt, args);
    va_end(args);
    uint32_t n_lost = atomic_exchange_explicit(&log_state.n_lost, 0, memory_order_relaxed);
    append_tail(&line, atomic_exchange_explicit(&site->n_dropped, 0, memory_order_relaxed), n_lost);
    put(text, line.len, n_lost);
}
