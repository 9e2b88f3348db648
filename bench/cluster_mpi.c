/*
 * One of MPI's ranks beside build/bench/cluster, which starts them: mpirun -np 4 cluster_mpi DIR.
 *
 * Between measurements a rank sleeps on its own pipe, DIR/command-RANK, since one that waits inside
 * MPI would keep a core busy. An exchange is MPI_Alltoallv from rank 0 to the others, and back,
 * with the bytes of a dispatch and its answers. Rank 0 writes its microseconds to DIR/result.
 */
#include <fcntl.h>
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { RANKS = 4, WORKERS = RANKS - 1 };

/* ek_bench_exchange of cluster_parts.h. */
typedef struct exchange {
    int32_t n_repeats;
    int32_t bytes_out[WORKERS];
    int32_t bytes_back[WORKERS];
} exchange;

typedef struct plan {
    int send[RANKS], send_at[RANKS];
    int receive[RANKS], receive_at[RANKS];
} plan;

static double now_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static int open_pipe(const char *dir, const char *name, int flags)
{
    char path[256];
    snprintf(path, sizeof path, "%s/%s", dir, name);
    return open(path, flags);
}

/* Who sends how much where: front to workers, or back. */
static plan plan_of(const int32_t *bytes, int rank, int is_back)
{
    plan p = {0};
    for (int w = 0, at = 0; w < WORKERS; at += bytes[w++]) {
        if (rank == 0) {
            (is_back ? p.receive : p.send)[w + 1] = bytes[w];
            (is_back ? p.receive_at : p.send_at)[w + 1] = at;
        } else if (rank == w + 1) {
            (is_back ? p.send : p.receive)[0] = bytes[w];
        }
    }
    return p;
}

static void run(const plan *p, char *from, char *to)
{
    MPI_Alltoallv(from, p->send, p->send_at, MPI_BYTE, to, p->receive, p->receive_at, MPI_BYTE,
                  MPI_COMM_WORLD);
}

int main(int argc, char **argv)
{
    int rank, n_ranks;
    char name[32];
    exchange e;
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &n_ranks);
    if (argc != 2 || n_ranks != RANKS) MPI_Abort(MPI_COMM_WORLD, 2);
    snprintf(name, sizeof name, "command-%d", rank);
    int command = open_pipe(argv[1], name, O_RDONLY);
    int result = rank == 0 ? open_pipe(argv[1], "result", O_WRONLY) : -1;
    size_t room = (size_t)64 << 20;
    char *from = calloc(1, room), *to = calloc(1, room);
    if (command < 0 || !from || !to) MPI_Abort(MPI_COMM_WORLD, 2);
    while (read(command, &e, sizeof e) == (ssize_t)sizeof e && e.n_repeats > 0) {
        plan out = plan_of(e.bytes_out, rank, 0), back = plan_of(e.bytes_back, rank, 1);
        MPI_Barrier(MPI_COMM_WORLD); /* all are awake */
        double beg_us = now_us();
        for (int i = 0; i < e.n_repeats; i++) {
            run(&out, from, to);
            run(&back, to, from);
        }
        double took_us = (now_us() - beg_us) / e.n_repeats;
        if (rank == 0 && write(result, &took_us, sizeof took_us) != (ssize_t)sizeof took_us) break;
    }
    free(from);
    free(to);
    MPI_Finalize();
    return 0;
}
