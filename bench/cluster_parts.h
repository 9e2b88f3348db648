/*
 * Parts of build/bench/cluster: workers that compute nothing, and MPI's processes beside them.
 */
#ifndef EK_BENCH_CLUSTER_PARTS_H
#define EK_BENCH_CLUSTER_PARTS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/attr.h"
#include "base/err.h"
#include "link/params.h"
#include "link/wire.h"

enum {
    EK_BENCH_RANKS = 4, /* a front and its workers */
    EK_BENCH_WORKERS = EK_BENCH_RANKS - 1,
    EK_BENCH_TOKENS_MAX = 2048,
    EK_BENCH_D_MODEL = 2048,
    EK_BENCH_EXPERTS = 48, /* divisible among workers */
};

/** What bytes travel over. */
typedef struct ek_bench_way {
    const char *name; /* "ucx-shm" */
    ek_link_fabric_choice fabric;
    const char *ucx_transports; /* UCX_TLS; NULL: none of UCX's */
} ek_bench_way;

/** The one shape of all dispatches here. */
ek_wire_shape ek_bench_cluster_shape(void);

/* ---- cluster_echo.c ---- */

/** A worker as a process of its own: pid 0: none. */
typedef struct ek_bench_echo {
    pid_t pid;
    uint16_t port;
} ek_bench_echo;

/**
 * A process that joins one front as a worker does, and answers each dispatch with its own rows.
 * Before this process has threads.
 * @param certs directory of its certificate, made out to 127.0.0.1
 */
EK_MUST ek_status ek_bench_echo_start(const ek_bench_way *way, const char *certs,
                                      ek_bench_echo *out_echo, ek_err *err);
/** Ends with its front's links, or at once. */
void ek_bench_echo_stop(ek_bench_echo *worker);

/* ---- cluster_peers.c ---- */

/** MPI's four ranks, which sleep between two measurements. */
typedef struct ek_bench_mpi {
    pid_t pid; /* of mpirun; 0: none */
    char dir[64];
    int command[EK_BENCH_RANKS];
    int result;
} ek_bench_mpi;

/** One exchange for MPI: bytes to each worker and back; repeated. Also what ranks read. */
typedef struct ek_bench_exchange {
    int32_t n_repeats; /* 0: end */
    int32_t bytes_out[EK_BENCH_WORKERS];
    int32_t bytes_back[EK_BENCH_WORKERS];
} ek_bench_exchange;

/**
 * @param program    cluster_mpi beside this one
 * @param transports of Open MPI: "self,tcp"
 * @return EK_OK; EK_ENOTFOUND no mpirun, or it was built without; EK_EINTERNAL
 */
EK_MUST ek_status ek_bench_mpi_start(const char *program, const char *transports,
                                     ek_bench_mpi *out_mpi, ek_err *err);
/** @return microseconds of one exchange as rank 0 sees it; below 0: MPI has ended */
double ek_bench_mpi_run(ek_bench_mpi *mpi, const ek_bench_exchange *exchange);
void ek_bench_mpi_stop(ek_bench_mpi *mpi);

/** Calls of malloc, calloc and realloc by this thread so far; -1: this build does not count. */
int64_t ek_bench_mallocs(void);

#endif
