/*
 * A line that says how far a long command is, on standard error, where that is a terminal; nothing
 * at all where it is not. One thread.
 */
#ifndef EK_CLI_PROGRESS_H
#define EK_CLI_PROGRESS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"

typedef struct ek_cli_progress {
    bool shown; /* standard error is a terminal */
    bool open;  /* the line is there */
    int64_t due_us;
} ek_cli_progress;

ek_cli_progress ek_cli_progress_start(void);

/**
 * Say it, ten times a second at most.
 * @param part done, 0..1
 * @param fmt  what it is at: "layer 3 of 4, max/mean 1.31"
 */
void ek_cli_progress_say(ek_cli_progress *progress, double part, const char *fmt, ...)
    EK_PRINTF(3, 4);

/** Take the line away, before something else is printed. */
void ek_cli_progress_clear(ek_cli_progress *progress);

#endif
