/*
 * MPI's processes, and the count of allocations.
 */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "cluster_parts.h"
#include "sys/clock.h"

#define START_US 60000000

/* ---- MPI ---- */

static void path_of(const ek_bench_mpi *mpi, int rank, char *out_path, size_t bytes)
{
    if (rank < EK_BENCH_RANKS)
        snprintf(out_path, bytes, "%s/command-%d", mpi->dir, rank);
    else
        snprintf(out_path, bytes, "%s/result", mpi->dir);
}

static void run_mpirun(const ek_bench_mpi *mpi, const char *program, const char *transports)
{
    int null = open("/dev/null", O_RDWR);
    if (null >= 0) {
        dup2(null, STDIN_FILENO);
        dup2(null, STDOUT_FILENO);
    }
    execlp("mpirun", "mpirun", "--allow-run-as-root", "--oversubscribe", "--mca", "pml", "ob1",
           "--mca", "btl", transports, "--mca", "btl_tcp_if_include", "lo", "--mca",
           "mpi_yield_when_idle", "1", "-np", "4", program, mpi->dir, (char *)NULL);
    _exit(127);
}

/* Both ends of a pipe by name are opened without waiting, since mpirun may end before it begins. */
static bool open_pipes(ek_bench_mpi *mpi)
{
    char path[96];
    path_of(mpi, EK_BENCH_RANKS, path, sizeof path);
    mpi->result = open(path, O_RDONLY | O_NONBLOCK);
    int64_t until_us = ek_sys_now_us() + START_US;
    for (int rank = 0; rank < EK_BENCH_RANKS;) {
        path_of(mpi, rank, path, sizeof path);
        mpi->command[rank] = open(path, O_WRONLY | O_NONBLOCK);
        if (mpi->command[rank] >= 0) {
            rank++;
        } else if (errno != ENXIO || ek_sys_now_us() > until_us ||
                   waitpid(mpi->pid, NULL, WNOHANG) != 0) {
            return false;
        } else {
            ek_sys_sleep_us(10000);
        }
    }
    return mpi->result >= 0 && fcntl(mpi->result, F_SETFL, 0) == 0;
}

ek_status ek_bench_mpi_start(const char *program, const char *transports, ek_bench_mpi *out_mpi,
                             ek_err *err)
{
    ek_bench_mpi mpi = {.dir = "/tmp/evenkeel-bench-XXXXXX", .result = -1};
    char path[96];
    for (int rank = 0; rank < EK_BENCH_RANKS; rank++)
        mpi.command[rank] = -1;
    if (access(program, X_OK) != 0)
        return ek_err_set(err, EK_ENOTFOUND, "%s is not built: no MPI was found", program);
    if (!mkdtemp(mpi.dir)) return ek_err_set(err, EK_EINTERNAL, "no folder in /tmp");
    for (int rank = 0; rank <= EK_BENCH_RANKS; rank++) {
        path_of(&mpi, rank, path, sizeof path);
        if (mkfifo(path, 0600) != 0) return ek_err_set(err, EK_EINTERNAL, "no pipe %s", path);
    }
    mpi.pid = fork();
    if (mpi.pid == 0) run_mpirun(&mpi, program, transports);
    bool is_there = mpi.pid > 0 && open_pipes(&mpi);
    *out_mpi = mpi;
    if (is_there) return EK_OK;
    ek_bench_mpi_stop(out_mpi);
    return ek_err_set(err, EK_ENOTFOUND, "mpirun does not start %s over %s", program, transports);
}

double ek_bench_mpi_run(ek_bench_mpi *mpi, const ek_bench_exchange *exchange)
{
    double took_us;
    for (int rank = 0; rank < EK_BENCH_RANKS; rank++)
        if (write(mpi->command[rank], exchange, sizeof *exchange) != (ssize_t)sizeof *exchange)
            return -1;
    return read(mpi->result, &took_us, sizeof took_us) == (ssize_t)sizeof took_us ? took_us : -1;
}

void ek_bench_mpi_stop(ek_bench_mpi *mpi)
{
    char path[96];
    if (!mpi->dir[0]) return;
    for (int rank = 0; rank < EK_BENCH_RANKS; rank++)
        if (mpi->command[rank] >= 0) close(mpi->command[rank]); /* their end */
    if (mpi->result >= 0) close(mpi->result);
    if (mpi->pid > 0) {
        int64_t until_us = ek_sys_now_us() + START_US / 6;
        while (waitpid(mpi->pid, NULL, WNOHANG) == 0) {
            if (ek_sys_now_us() > until_us) kill(mpi->pid, SIGTERM);
            ek_sys_sleep_us(10000);
        }
    }
    for (int rank = 0; rank <= EK_BENCH_RANKS; rank++) {
        path_of(mpi, rank, path, sizeof path);
        unlink(path);
    }
    rmdir(mpi->dir);
    *mpi = (ek_bench_mpi){0};
}

/* ---- allocations ---- */

#ifdef EK_BENCH_COUNTS_MALLOC

/* These stand before the C library's, which keeps its own under other names. */
extern void *__libc_malloc(size_t bytes);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *mem, size_t bytes);
void *malloc(size_t bytes);
void *calloc(size_t n, size_t size);
void *realloc(void *mem, size_t bytes);

static _Thread_local int64_t n_mallocs;

void *malloc(size_t bytes)
{
    n_mallocs++;
    return __libc_malloc(bytes);
}

void *calloc(size_t n, size_t size)
{
    n_mallocs++;
    return __libc_calloc(n, size);
}

void *realloc(void *mem, size_t bytes)
{
    n_mallocs++;
    return __libc_realloc(mem, bytes);
}

int64_t ek_bench_mallocs(void)
{
    return n_mallocs;
}

#else

int64_t ek_bench_mallocs(void)
{
    return -1;
}

#endif
