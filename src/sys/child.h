/*
 * Child processes: a program of ours that is started, says a line when it is ready, and is told to
 * end.
 *
 * Whoever starts a child owns it, and stops it from the same thread; however the owner ends, the
 * child does not stay behind: the kernel sends it TERM when the thread that started it is gone. A
 * child is in a process group of its own, so that the terminal's Ctrl-C reaches its owner alone,
 * who then stops children in the order that suits him.
 */
#ifndef EK_SYS_CHILD_H
#define EK_SYS_CHILD_H

#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"

#define EK_SYS_CHILD_FOR_EVER   INT64_C(-1)
#define EK_SYS_CHILD_LINE_BYTES 512 /* of a line that it prints, a NUL included */

/** Zero-initialise, then ek_sys_child_start. */
typedef struct ek_sys_child {
    int64_t pid; /* 0: none */
    int out_fd;  /* what it prints */
    size_t n_part;
    char part[EK_SYS_CHILD_LINE_BYTES]; /* of the line that has not ended yet */
} ek_sys_child;

/**
 * Start a program. Its standard input is empty, its signals are unblocked.
 * @param argv    (.., NULL) argv[0] is the program's path; nothing is searched for in $PATH
 * @param log     file that its standard error is appended to; NULL: ours
 * @return EK_OK; EK_ENOTFOUND no such program, or it may not be executed; EK_EINTERNAL no pipe, no
 *         process
 */
EK_MUST ek_status ek_sys_child_start(const char *const *argv, const char *log,
                                     ek_sys_child *out_child, ek_err *err);

/**
 * The next line that it prints, without its end; a longer one is cut.
 * @param patience_us how long to wait for all of it; EK_SYS_CHILD_FOR_EVER
 * @param bytes       of out_line; EK_SYS_CHILD_LINE_BYTES is enough for what can come
 * @return EK_OK; EK_END it ended, or closed its output, before; EK_ETIMEOUT: what has come of the
 *         line is kept for the next call
 */
EK_MUST ek_status ek_sys_child_line(ek_sys_child *child, int64_t patience_us, char *out_line,
                                    size_t bytes);

/**
 * Tell it to end (TERM) and wait; after patience_us it is killed. Does nothing without a child.
 * @return EK_OK it ended with 0; EK_EPEER it ended otherwise, and the text says how
 */
EK_MUST ek_status ek_sys_child_stop(ek_sys_child *child, int64_t patience_us, ek_err *err);

/** Tell it to end, and do not wait: before ek_sys_child_stop of each, when there are many. */
void ek_sys_child_ask_to_end(const ek_sys_child *child);

/** Its peak resident memory; 0: unknown. Pages of files that it maps count. */
int64_t ek_sys_child_rss_mib(const ek_sys_child *child);

/** Path of the program that runs now. @return EK_OK; EK_ENOTFOUND unknown; EK_ERANGE too long */
EK_MUST ek_status ek_sys_program_path(char *out_path, size_t bytes);

#endif
