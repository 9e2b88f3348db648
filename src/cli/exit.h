/*
 * How a command ends: exit codes (those of sysexits.h where one fits) and the one line on standard
 * error that goes with each failure.
 */
#ifndef EK_CLI_EXIT_H
#define EK_CLI_EXIT_H

#include "base/attr.h"
#include "base/err.h"
#include "base/status.h"

typedef enum ek_exit {
    EK_EXIT_OK = 0,
    EK_EXIT_FAILURE = 1,      /* it ran and failed, or the answer is no */
    EK_EXIT_USAGE = 2,        /* the command line */
    EK_EXIT_DATA = 65,        /* a file's content: not a model, truncated, unsupported */
    EK_EXIT_NO_INPUT = 66,    /* a file that is missing or cannot be read */
    EK_EXIT_UNAVAILABLE = 69, /* address in use, server out of reach */
    EK_EXIT_MEMORY = 71,      /* not enough memory on this machine */
    EK_EXIT_IO = 74,          /* writing the output failed */
    EK_EXIT_NO_PERMISSION = 77,
    EK_EXIT_CONFIG = 78,
    EK_EXIT_INTERRUPTED = 130, /* SIGINT; while serving: a second one */
    EK_EXIT_TERMINATED = 143,  /* the drain's time ran out, or a second SIGTERM */
} ek_exit;

/** Print "evenkeel: <text>" as one line on standard error and return `code`. */
int ek_cli_fail(ek_exit code, const char *fmt, ...) EK_PRINTF(2, 3);

/** Exit code for a status that opening or reading an input file gave. */
ek_exit ek_cli_exit_of(ek_status status);

/** As ek_cli_fail with err's text and the code of its status. */
int ek_cli_fail_err(const ek_err *err);

#endif
