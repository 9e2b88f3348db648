#include "cli/progress.h"

#include <stdarg.h>
#include <stdio.h>
#include <unistd.h>

#include "sys/clock.h"

#define EVERY_US 100000
#define WIDTH    24 /* of the bar */

ek_cli_progress ek_cli_progress_start(void)
{
    return (ek_cli_progress){.shown = isatty(STDERR_FILENO) == 1};
}

void ek_cli_progress_say(ek_cli_progress *progress, double part, const char *fmt, ...)
{
    if (!progress->shown) return;
    const int64_t now_us = ek_sys_now_us();
    if (now_us < progress->due_us) return;
    progress->due_us = now_us + EVERY_US;
    progress->open = true;
    fputs("\r\033[K[", stderr);
    for (int i = 0; i < WIDTH; i++)
        fputc((double)i < part * WIDTH ? '#' : '.', stderr);
    fputs("] ", stderr);
    va_list args;
    va_start(args, fmt);
    vfprintf(stderr, fmt, args);
    va_end(args);
    fflush(stderr);
}

void ek_cli_progress_clear(ek_cli_progress *progress)
{
    if (progress->open) fputs("\r\033[K", stderr);
    progress->open = false;
    progress->due_us = 0;
}
