#include "cli/exit.h"

#include <stdarg.h>
#include <stdio.h>

int ek_cli_fail(ek_exit code, const char *fmt, ...)
{
    va_list args;
    va_start(args, fmt);
    fflush(stdout);
    fputs("evenkeel: ", stderr);
    vfprintf(stderr, fmt, args);
    fputc('\n', stderr);
    va_end(args);
    return (int)code;
}

ek_exit ek_cli_exit_of(ek_status status)
{
    switch (status) {
    case EK_OK:
    case EK_AGAIN:
    case EK_END: return EK_EXIT_OK;
    case EK_EFORMAT:
    case EK_ETRUNCATED:
    case EK_EUNSUPPORTED:
    case EK_ECONTEXT:
    case EK_ERANGE: return EK_EXIT_DATA;
    case EK_ENOTFOUND:
    case EK_EACCESS:
    case EK_EIO: return EK_EXIT_NO_INPUT;
    case EK_ENOMEM: return EK_EXIT_MEMORY;
    case EK_EINUSE:
    case EK_ETIMEOUT:
    case EK_EPEER: return EK_EXIT_UNAVAILABLE;
    case EK_ECONFIG: return EK_EXIT_CONFIG;
    case EK_EINVAL: return EK_EXIT_USAGE;
    case EK_EFULL:
    case EK_ECANCELED:
    case EK_EDRAINING:
    case EK_EEXIST:
    case EK_ESTALE:
    case EK_EINTERNAL: break;
    }
    return EK_EXIT_FAILURE;
}

int ek_cli_fail_err(const ek_err *err)
{
    return ek_cli_fail(ek_cli_exit_of(err->status), "%s",
                       err->text[0] ? err->text : ek_status_text(err->status));
}
