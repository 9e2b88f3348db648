/*
 * The log: logfmt, one line per event, on standard error, or the file named at start (reopened on
 * demand).
 *
 *   2026-11-30T18:40:02.117Z level=info room=gateway event=listening addr=127.0.0.1:8080
 *
 * Only engine, cluster, http, gateway and cli log; lower rooms return statuses. Each call site is
 * rate-limited (100 lines per second); what was dropped is counted and said with the next line, as
 * are lines that a full disk did not take. Lines are cut at 2,048 bytes.
 */
#ifndef EK_SYS_LOG_H
#define EK_SYS_LOG_H

#include <stdatomic.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/span.h"
#include "base/status.h"

typedef enum ek_log_level { EK_LOG_ERROR, EK_LOG_WARN, EK_LOG_INFO, EK_LOG_DEBUG } ek_log_level;

typedef struct ek_log_site {
    _Atomic int64_t window_s;
    _Atomic uint32_t n_in_window;
    _Atomic uint32_t n_dropped;
} ek_log_site;

/**
 * Where lines go; NULL is standard error. Call before threads start.
 * @return EK_OK; EK_EINVAL the path is too long; EK_EACCESS; EK_EIO it cannot be opened
 */
EK_MUST ek_status ek_sys_log_open(const char *path, ek_log_level level);
/** Close and open the same path again (after rotation). */
void ek_sys_log_reopen(void);
void ek_sys_log_set_level(ek_log_level level);

/**
 * fmt gives the fields after `event=`, at least one: "addr=%s port=%d". What comes in through %s
 * cannot break the line: inside the format's quotes ("err=\"%s\"") quotes, backslashes, control
 * characters and bytes that are no UTF-8 are escaped; outside of quotes a value that needs them
 * gets them here.
 */
void ek_sys_log_write(ek_log_site *site, ek_log_level level, const char *room, const char *event,
                      const char *fmt, ...) EK_PRINTF(5, 6);

#define ek_log(level, room, event, ...)                                     \
    do {                                                                    \
        static ek_log_site ek_site_;                                        \
        ek_sys_log_write(&ek_site_, (level), (room), (event), __VA_ARGS__); \
    } while (0)

#endif
