/*
 * `evenkeel serve` as a child process on a free port of this machine, for the time of a
 * measurement. One thread; one child at a time.
 */
#ifndef EK_BENCH_SPAWN_H
#define EK_BENCH_SPAWN_H

#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "sys/child.h"

#define EK_BENCH_SPAWN_SETTINGS_MAX 32

typedef struct ek_bench_spawn_params {
    const char *program;                              /* path of evenkeel */
    const char *model_path;                           /* all borrowed */
    const char *setting[EK_BENCH_SPAWN_SETTINGS_MAX]; /* "section.key=value" */
    int32_t n_settings;
} ek_bench_spawn_params;

/** Zero-initialise, then ek_bench_spawn_start. */
typedef struct ek_bench_child {
    ek_sys_child process; /* pid 0: none */
    char url[128];        /* "http://127.0.0.1:40001" */
    double load_s;        /* from the start to the line that says it is ready */
} ek_bench_child;

/**
 * Start it and wait until it is ready.
 * @return EK_OK; EK_ENOTFOUND no such program; EK_EPEER it ended before it was ready; EK_EINTERNAL
 */
EK_MUST ek_status ek_bench_spawn_start(const ek_bench_spawn_params *params,
                                       ek_bench_child *out_child, ek_err *err);

/**
 * Tell it to end and wait. Does nothing without a child.
 * @return EK_OK; EK_EPEER it ended badly
 */
EK_MUST ek_status ek_bench_spawn_stop(ek_bench_child *child, ek_err *err);

#endif
