#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* Files and clients supply parts of these texts: nothing in them may start a new log line. */
static void make_printable(char *text)
{
    for (unsigned char *c = (unsigned char *)text; *c; c++)
        if (*c < 0x20 || *c == 0x7f) *c = '?';
}

ek_status ek_err_set(ek_err *err, ek_status status, const char *fmt, ...)
{
    if (!err) return status;
    va_list args;
    va_start(args, fmt);
    err->status = status;
    vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    make_printable(err->text);
    return status;
}

ek_status ek_err_prefix(ek_err *err, const char *fmt, ...)
{
    if (!err) return EK_OK;
    char old[EK_ERR_TEXT_MAX];
    memcpy(old, err->text, sizeof old);
    old[sizeof old - 1] = '\0';
    va_list args;
    va_start(args, fmt);
    int n = vsnprintf(err->text, sizeof err->text, fmt, args);
    va_end(args);
    if (n >= 0 && (size_t)n < sizeof err->text - 3) {
        size_t room = sizeof err->text - (size_t)n - 3, len = strlen(old);
        len = len < room ? len : room;
        memcpy(err->text + n, ": ", 2);
        memcpy(err->text + n + 2, old, len);
        err->text[(size_t)n + 2 + len] = '\0';
    }
    make_printable(err->text);
    return err->status;
}
