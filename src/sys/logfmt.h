/*
 * printf for logfmt: values that come in through %s cannot break the line's grammar, whatever they
 * hold.
 *
 * Inside quotes of the format ("err=\"%s\"") a value's quotes, backslashes, control characters and
 * bytes that are no UTF-8 are escaped; outside ("addr=%s") a value that needs it gets its quotes
 * here. Used inside this room only.
 */
#ifndef EK_SYS_LOGFMT_H
#define EK_SYS_LOGFMT_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>

/** Text being built; what does not fit is left out as a whole character and `cut` is set. */
typedef struct ek_sys_line {
    char *data; /* borrowed; not NUL-terminated */
    size_t len;
    size_t room; /* capacity of data in bytes */
    bool in_quotes;
    bool cut;
} ek_sys_line;

/**
 * Knows d i u x X o c s p f e g %, with flags, width, precision and length modifiers; others stay
 * as they are.
 */
void ek_sys_logfmt_append(ek_sys_line *line, const char *fmt, va_list args);

#endif
