/*
 * build/bench/cluster [--turns N] [--tokens-max N] [--no-mpi] [--model FILE] [--json]: what a
 * front's messages cost.
 *
 * Round trip: dispatch and combine of one layer by the dispatcher of src/cluster, for 1, 32, 256
 * and 2,048 tokens of d 2048 in f32, shared among three workers that compute nothing and send each
 * row back; packing, sending, receiving and summing are all in it. Beside it MPI_Alltoallv among
 * four ranks with the same bytes, there and back, which packs and sums nothing. All ways are
 * measured in turn, once per turn, and no rank of any other way is awake meanwhile. Medians and the
 * 10 % and 90 % quantiles over the turns; processor time of the front's thread; its allocations.
 *
 * Overlap: the same layers with work between them that takes as long as their exchange, in one and
 * in two micro-batches: the part of the exchange that stood behind the work, and time per layer.
 */
#include <float.h>
#include <libgen.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "bench.h"
#include "cluster/dispatch.h"
#include "cluster/front.h"
#include "cluster_parts.h"
#include "expert/model_file.h"
#include "link/certs.h"
#include "sys/clock.h"
#include "sys/cpu.h"
#include "sys/log.h"
#include "sys/mem.h"

enum { N_WAYS = 4, N_SIZES = 4, N_MPI = 2, TURNS = 15, OVERLAP_TOKENS = 256, OVERLAP_LAYERS = 24 };

#define JOIN_US 15000000

static const ek_bench_way ways[N_WAYS] = {
    {"tcp", EK_LINK_FABRIC_TCP, NULL},
    {"tls", EK_LINK_FABRIC_TLS, NULL},
    {"ucx-tcp", EK_LINK_FABRIC_UCX, "tcp,self"},
    {"ucx-shm", EK_LINK_FABRIC_UCX, "sm,self"},
};
static const char *const mpi_name[N_MPI] = {"mpi-tcp", "mpi-shm"};
static const char *const mpi_transports[N_MPI] = {"self,tcp", "self,vader"};

static const int32_t sizes[N_SIZES] = {1, 32, 256, 2048};
static const int32_t repeats[N_SIZES] = {32, 16, 4, 1};

/** A layer for so many tokens: token t goes to one expert, neighbours to the same or the next. */
typedef struct layer {
    ek_expert_work work;
    ek_act x;
    int32_t expert_beg[EK_BENCH_EXPERTS + 1];
    int32_t token[EK_BENCH_TOKENS_MAX]; /* 0, 1, 2, ...: of rows, and rows of tokens */
    float weight[EK_BENCH_TOKENS_MAX];
    int32_t device_beg[EK_BENCH_WORKERS + 1];
    int32_t share_expert[EK_BENCH_EXPERTS];
    int32_t share_row[2 * EK_BENCH_EXPERTS];
} layer;

typedef struct way_state {
    ek_bench_echo echo[EK_BENCH_WORKERS];
    char workers[128];
    ek_front *front;
    ek_dispatcher *dispatcher;
    bool is_there;
    ek_bench_samples us[N_SIZES];
    ek_bench_samples cpu_us[N_SIZES]; /* per token */
    int64_t n_mallocs[N_SIZES];
    double hidden_share[2], layer_us[2]; /* in one and in two micro-batches */
} way_state;

typedef struct bench {
    int32_t turns;
    int32_t n_sizes; /* that are measured */
    bool no_mpi;
    bool json;
    const char *model_path;
    char dir[64]; /* of certificates */
    ek_model_file *file;
    ek_model model; /* its identity; the shape is the benchmark's */
    ek_kernels kernels;
    ek_sys_pool *pool;
    float *x, *out;
    layer whole, half[2];
    way_state way[N_WAYS];
    ek_bench_mpi mpi[N_MPI];
    bool has_mpi[N_MPI];
    ek_bench_samples mpi_us[N_MPI][N_SIZES];
} bench;

/* ---- set-up ---- */

static void make_layer(layer *l, const float *x, int32_t n_tokens, int32_t micro_batch)
{
    int32_t n_shares = 0;
    for (int32_t e = 0; e <= EK_BENCH_EXPERTS; e++)
        l->expert_beg[e] = (e * n_tokens + EK_BENCH_EXPERTS - 1) / EK_BENCH_EXPERTS;
    for (int32_t t = 0; t < n_tokens; t++) {
        l->token[t] = t;
        l->weight[t] = 1.0f;
    }
    for (int32_t d = 0; d < EK_BENCH_WORKERS; d++) {
        int32_t each = EK_BENCH_EXPERTS / EK_BENCH_WORKERS;
        l->device_beg[d] = n_shares;
        for (int32_t e = d * each; e < (d + 1) * each; e++) {
            if (l->expert_beg[e] == l->expert_beg[e + 1]) continue;
            l->share_expert[n_shares] = e;
            l->share_row[2 * n_shares] = l->expert_beg[e];
            l->share_row[2 * n_shares++ + 1] = l->expert_beg[e + 1];
        }
    }
    l->device_beg[EK_BENCH_WORKERS] = n_shares;
    l->x = (ek_act){.n_cols = EK_BENCH_D_MODEL, .f32 = (float *)(uintptr_t)x};
    l->work = (ek_expert_work){
        .micro_batch = micro_batch,
        .n_tokens = n_tokens,
        .top_k = 1,
        .n_experts = EK_BENCH_EXPERTS,
        .expert_beg = l->expert_beg,
        .row_token = l->token,
        .row_of = l->token,
        .weight = l->weight,
        .n_devices = EK_BENCH_WORKERS,
        .device_beg = l->device_beg,
        .share_expert = l->share_expert,
        .share_row = l->share_row,
        .x = &l->x,
    };
}

static ek_status make_certs(bench *b, ek_err *err)
{
    static const char *const nodes[] = {"front", "worker=127.0.0.1"};
    ek_certs_authority *authority = NULL;
    int64_t now_s = ek_sys_wall_s();
    snprintf(b->dir, sizeof b->dir, "/tmp/evenkeel-bench-XXXXXX");
    if (!mkdtemp(b->dir)) return ek_err_set(err, EK_EINTERNAL, "no folder in /tmp");
    ek_status status = ek_link_certs_open(b->dir, now_s, 2, &authority, err);
    for (int32_t i = 0; i < 2 && status == EK_OK; i++) {
        ek_certs_node node;
        status =
            ek_link_certs_node_parse(nodes[i], i ? EK_CERTS_WORKER : EK_CERTS_FRONT, &node, err);
        if (status == EK_OK)
            status = ek_link_certs_issue(authority, &node, now_s - 3600, now_s + 86400, 0, err);
    }
    ek_link_certs_close(authority);
    return status;
}

static void remove_certs(const bench *b)
{
    static const char *const files[] = {"ca.pem",
                                        "ca.key",
                                        "front/ca.pem",
                                        "front/node.pem",
                                        "front/node.key",
                                        "worker/ca.pem",
                                        "worker/node.pem",
                                        "worker/node.key",
                                        "front",
                                        "worker",
                                        "."};
    char path[128];
    for (size_t i = 0; b->dir[0] && i < EK_COUNT_OF(files); i++) {
        snprintf(path, sizeof path, "%s/%s", b->dir, files[i]);
        if (remove(path) != 0 && i + 1 == EK_COUNT_OF(files)) rmdir(b->dir);
    }
}

/* Workers first, all of them: a process that has threads had better not fork. */
static ek_status start_echoes(bench *b, int32_t w, ek_err *err)
{
    way_state *s = &b->way[w];
    char certs[96];
    size_t n = 0;
    snprintf(certs, sizeof certs, "%s/worker", b->dir);
    for (int32_t i = 0; i < EK_BENCH_WORKERS; i++) {
        ek_status status = ek_bench_echo_start(&ways[w], certs, &s->echo[i], err);
        if (status != EK_OK) return status;
        n += (size_t)snprintf(s->workers + n, sizeof s->workers - n, "%s127.0.0.1:%u", i ? "," : "",
                              (unsigned)s->echo[i].port);
    }
    s->is_there = true;
    return EK_OK;
}

static ek_status open_front(bench *b, int32_t w, ek_err *err)
{
    way_state *s = &b->way[w];
    char certs[96];
    const int64_t hour_us = INT64_C(3600000000);
    snprintf(certs, sizeof certs, "%s/front", b->dir);
    const ek_cluster_params params = {
        .workers = s->workers,
        .certs = certs,
        .fabric = ways[w].fabric,
        .microbatches = EK_CLUSTER_MICROBATCHES_TWO,
        .join_timeout_us = hour_us,
        .hung_us = hour_us,
        .hedge_us = hour_us,
        .layer_timeout_us = hour_us,
    };
    if (ways[w].ucx_transports) setenv("UCX_TLS", ways[w].ucx_transports, 1);
    ek_status status =
        ek_cluster_front_create(&params, &b->model, EK_BENCH_TOKENS_MAX, NULL, &s->front, err);
    int64_t until_us = ek_sys_now_us() + JOIN_US;
    while (status == EK_OK && (status = ek_cluster_front_ready(s->front, true, err)) == EK_AGAIN) {
        if (ek_sys_now_us() > until_us) return err->status = EK_ETIMEOUT;
        ek_sys_sleep_us(10000);
        status = EK_OK;
    }
    if (status != EK_OK) return status;
    const ek_dispatcher_setup setup = {
        .kernels = &b->kernels, .pool = b->pool, .tokens_max = EK_BENCH_TOKENS_MAX};
    return ek_cluster_dispatch_create(s->front, &setup, &s->dispatcher, err);
}

/* A way that does not lead anywhere on this machine is left out. */
static void open_front_if(bench *b, int32_t w, ek_err *err)
{
    way_state *s = &b->way[w];
    if (!s->is_there || open_front(b, w, err) == EK_OK) return;
    fprintf(stderr, "left out: %s: %s\n", ways[w].name, err->text);
    s->is_there = false;
}

static ek_status set_up(bench *b, const char *program, ek_err *err)
{
    char mpi[4096];
    snprintf(mpi, sizeof mpi, "%s/cluster_mpi", program);
    ek_status status = make_certs(b, err);
    for (int32_t w = 0; w < N_WAYS && status == EK_OK; w++)
        if (start_echoes(b, w, err) != EK_OK) fprintf(stderr, "left out: %s\n", err->text);
    if (status == EK_OK) status = ek_expert_model_open(b->model_path, NULL, &b->file, err);
    if (status == EK_OK)
        status = ek_kernels_select(EK_KERNELS_AUTO, ek_sys_cpu_flags(), &b->kernels);
    if (status == EK_OK) status = ek_sys_pool_create(1, false, &b->pool);
    if (status != EK_OK) return status;
    ek_wire_shape shape = ek_bench_cluster_shape();
    b->model = *b->file->model;
    b->model.params.n_layers = shape.n_layers;
    b->model.params.n_experts = shape.n_experts;
    b->model.params.d_model = shape.d_model;
    b->model.params.top_k = shape.top_k;
    size_t n = (size_t)EK_BENCH_TOKENS_MAX * EK_BENCH_D_MODEL;
    b->x = ek_sys_calloc(n, sizeof *b->x);
    b->out = ek_sys_calloc(n, sizeof *b->out);
    if (!b->x || !b->out) return ek_err_set(err, EK_ENOMEM, "no memory");
    for (size_t i = 0; i < n; i++)
        b->x[i] = (float)(i % 8191) - 4095.0f;
    for (int32_t w = 0; w < N_WAYS && status == EK_OK; w++)
        open_front_if(b, w, err);
    for (int32_t m = 0; m < N_MPI && status == EK_OK && !b->no_mpi; m++) {
        b->has_mpi[m] = ek_bench_mpi_start(mpi, mpi_transports[m], &b->mpi[m], err) == EK_OK;
        if (!b->has_mpi[m]) fprintf(stderr, "left out: %s\n", err->text);
    }
    return status;
}

static void tear_down(bench *b)
{
    for (int32_t w = 0; w < N_WAYS; w++) {
        ek_expert_destroy(b->way[w].dispatcher);
        ek_cluster_front_destroy(b->way[w].front);
        for (int32_t i = 0; i < EK_BENCH_WORKERS; i++)
            ek_bench_echo_stop(&b->way[w].echo[i]);
    }
    for (int32_t m = 0; m < N_MPI; m++)
        ek_bench_mpi_stop(&b->mpi[m]);
    ek_sys_pool_destroy(b->pool);
    ek_expert_model_close(b->file);
    ek_sys_free(b->x);
    ek_sys_free(b->out);
    remove_certs(b);
}

/* ---- measuring ---- */

static double thread_cpu_us(void)
{
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return 1e6 * (double)t.tv_sec + 1e-3 * (double)t.tv_nsec;
}

static ek_status round_trip(bench *b, ek_dispatcher *d, const layer *l)
{
    ek_arena none = {0};
    ek_status status = ek_expert_dispatch(d, &l->work, &none);
    return status == EK_OK ? ek_expert_combine(d, &l->work, b->out) : status;
}

/* Each row comes back as it went. */
static bool is_right(bench *b, ek_dispatcher *d, const layer *l)
{
    size_t n = (size_t)l->work.n_tokens * EK_BENCH_D_MODEL;
    memset(b->out, 0, n * sizeof *b->out);
    return round_trip(b, d, l) == EK_OK && memcmp(b->out, b->x, n * sizeof *b->out) == 0;
}

static bool measure_way(bench *b, int32_t w, int32_t size, bool counts)
{
    way_state *s = &b->way[w];
    make_layer(&b->whole, b->x, sizes[size], 0);
    if (!is_right(b, s->dispatcher, &b->whole)) return false;
    int64_t mallocs = ek_bench_mallocs();
    double cpu_us = thread_cpu_us();
    int64_t beg_us = ek_sys_now_us();
    for (int32_t i = 0; i < repeats[size]; i++)
        if (round_trip(b, s->dispatcher, &b->whole) != EK_OK) return false;
    double n = repeats[size];
    double took_us = (double)(ek_sys_now_us() - beg_us) / n;
    cpu_us = (thread_cpu_us() - cpu_us) / n;
    if (!counts) return true;
    ek_bench_add(&s->us[size], took_us);
    ek_bench_add(&s->cpu_us[size], cpu_us / sizes[size]);
    s->n_mallocs[size] += mallocs < 0 ? -1 : ek_bench_mallocs() - mallocs;
    return true;
}

/* The bytes that a front and its workers send each other for a layer. */
static ek_bench_exchange exchange_of(const bench *b, int32_t size)
{
    ek_wire_shape shape = ek_bench_cluster_shape();
    const layer *l = &b->whole;
    ek_bench_exchange e = {.n_repeats = repeats[size]};
    for (int32_t d = 0; d < EK_BENCH_WORKERS; d++) {
        ek_wire_dispatch_layout out;
        ek_wire_combine_layout back;
        ek_wire_header h = ek_link_wire_header(EK_WIRE_DISPATCH, 0);
        h.n_shares = l->device_beg[d + 1] - l->device_beg[d];
        for (int32_t s = l->device_beg[d]; s < l->device_beg[d + 1]; s++)
            h.n_rows += l->share_row[2 * s + 1] - l->share_row[2 * s];
        h.n_tokens = h.n_rows;
        if (h.n_rows == 0 || ek_link_wire_dispatch_lay(&shape, &h, &out) != EK_OK ||
            ek_link_wire_combine_lay(&shape, &h, &back) != EK_OK)
            continue;
        e.bytes_out[d] = (int32_t)(sizeof h + out.bytes);
        e.bytes_back[d] = (int32_t)(sizeof h + back.bytes);
    }
    return e;
}

static bool measure_mpi(bench *b, int32_t m, int32_t size, bool counts)
{
    make_layer(&b->whole, b->x, sizes[size], 0);
    ek_bench_exchange e = exchange_of(b, size);
    double us = ek_bench_mpi_run(&b->mpi[m], &e);
    if (us >= 0 && counts) ek_bench_add(&b->mpi_us[m][size], us);
    return us >= 0;
}

static bool measure(bench *b)
{
    /* The first turn finds cold buffers, and is thrown away. */
    for (int32_t turn = 0; turn <= b->turns; turn++) {
        for (int32_t size = 0; size < b->n_sizes; size++) {
            for (int32_t w = 0; w < N_WAYS; w++)
                if (b->way[w].is_there && !measure_way(b, w, size, turn > 0)) return false;
            for (int32_t m = 0; m < N_MPI; m++)
                if (b->has_mpi[m] && !measure_mpi(b, m, size, turn > 0)) return false;
        }
    }
    return true;
}

/* ---- overlap ---- */

/* The front's own work: a loop that lets the dispatcher move bytes as a step does. */
static void work_for(ek_dispatcher *d, double us)
{
    int64_t until_ns = ek_sys_now_ns() + (int64_t)(1e3 * us);
    while (ek_sys_now_ns() < until_ns)
        ek_expert_progress(d);
}

static bool run_layers(bench *b, way_state *s, int32_t n_micro, double work_us)
{
    ek_dispatcher *d = s->dispatcher;
    ek_arena none = {0};
    const layer *l[2] = {n_micro == 1 ? &b->whole : &b->half[0], &b->half[1]};
    float *out[2] = {b->out, b->out + (size_t)l[0]->work.n_tokens * EK_BENCH_D_MODEL};
    bool ok = true;
    for (int32_t i = 0; i < OVERLAP_LAYERS && ok; i++) {
        for (int32_t m = 0; m < n_micro && ok; m++) {
            if (i > 0) ok = ek_expert_combine(d, &l[m]->work, out[m]) == EK_OK;
            work_for(d, work_us / n_micro);
            ok = ok && ek_expert_dispatch(d, &l[m]->work, &none) == EK_OK;
        }
    }
    for (int32_t m = 0; m < n_micro && ok; m++)
        ok = ek_expert_combine(d, &l[m]->work, out[m]) == EK_OK;
    return ok;
}

static bool measure_overlap(bench *b, way_state *s)
{
    int32_t n_tokens =
        sizes[b->n_sizes - 1] < OVERLAP_TOKENS ? sizes[b->n_sizes - 1] : OVERLAP_TOKENS;
    int32_t first = n_tokens / 2;
    if (n_tokens < 2) return true; /* one token has no halves */
    double work_us = 0;            /* as long as an exchange of so many tokens took */
    for (int32_t i = 0; i < b->n_sizes; i++)
        if (sizes[i] == n_tokens) work_us = ek_bench_quantile(&s->us[i], 0.5);
    make_layer(&b->whole, b->x, n_tokens, 0);
    make_layer(&b->half[0], b->x, first, 0);
    make_layer(&b->half[1], b->x + (size_t)first * EK_BENCH_D_MODEL, first, 1);
    for (int32_t n_micro = 1; n_micro <= 2; n_micro++) {
        ek_bench_samples us = {0};
        ek_front_counts before, after;
        ek_cluster_front_counts(s->front, &before);
        for (int32_t turn = 0; turn < b->turns; turn++) {
            int64_t beg_us = ek_sys_now_us();
            if (!run_layers(b, s, n_micro, work_us)) return false;
            ek_bench_add(&us, (double)(ek_sys_now_us() - beg_us) / OVERLAP_LAYERS);
        }
        ek_cluster_front_counts(s->front, &after);
        double exchange_us = (double)(after.exchange_us - before.exchange_us);
        s->hidden_share[n_micro - 1] = (double)(after.hidden_us - before.hidden_us) / exchange_us;
        s->layer_us[n_micro - 1] = ek_bench_quantile(&us, 0.5);
    }
    return true;
}

/* ---- telling ---- */

static double ratio(bench *b, int32_t w, int32_t m, int32_t size)
{
    double mpi_us = ek_bench_quantile(&b->mpi_us[m][size], 0.5);
    return mpi_us > 0 ? ek_bench_quantile(&b->way[w].us[size], 0.5) / mpi_us : 0;
}

static void print_line(const bench *b, const char *name, int32_t size, ek_bench_samples *us)
{
    const char *form = b->json ? "%s{\"way\":\"%s\",\"tokens\":%d,\"us\":%.1f,\"us_p10\":%.1f,"
                                 "\"us_p90\":%.1f"
                               : "%s%-8s %6d %10.1f %10.1f %10.1f";
    static bool is_next; /* in one list of the output */
    printf(form, b->json && is_next ? "," : "", name, sizes[size], ek_bench_quantile(us, 0.5),
           ek_bench_quantile(us, 0.1), ek_bench_quantile(us, 0.9));
    is_next = true;
}

static void print_trips(bench *b)
{
    if (!b->json)
        printf("%-8s %6s %10s %10s %10s %12s %12s %8s %8s\n", "way", "tokens", "us", "10 %", "90 %",
               "CPU us/token", "allocations", "/mpi-tcp", "/mpi-shm");
    for (int32_t size = 0; size < b->n_sizes; size++) {
        for (int32_t m = 0; m < N_MPI; m++) {
            if (!b->has_mpi[m]) continue;
            print_line(b, mpi_name[m], size, &b->mpi_us[m][size]);
            printf(b->json ? "}" : "\n");
        }
        for (int32_t w = 0; w < N_WAYS; w++) {
            way_state *s = &b->way[w];
            if (!s->is_there) continue;
            print_line(b, ways[w].name, size, &s->us[size]);
            printf(b->json ? ",\"cpu_us_per_token\":%.3f,\"allocations\":%lld,"
                             "\"to_mpi_tcp\":%.3f,\"to_mpi_shm\":%.3f}"
                           : " %12.2f %12lld %8.2f %8.2f\n",
                   ek_bench_quantile(&s->cpu_us[size], 0.5), (long long)s->n_mallocs[size],
                   ratio(b, w, 0, size), ratio(b, w, 1, size));
        }
    }
}

static void print_overlap(const bench *b)
{
    if (!b->json)
        printf("\noverlap, with as much work as exchange\n%-8s %14s %14s %14s %14s\n", "way",
               "hidden of 1", "us/layer of 1", "hidden of 2", "us/layer of 2");
    for (int32_t w = 0, n = 0; w < N_WAYS; w++) {
        const way_state *s = &b->way[w];
        if (!s->is_there) continue;
        printf(b->json
                   ? "%s{\"way\":\"%s\",\"hidden_1\":%.3f,\"layer_us_1\":%.1f,\"hidden_2\":%.3f,"
                     "\"layer_us_2\":%.1f}"
                   : "%s%-8s %14.3f %14.1f %14.3f %14.1f\n",
               b->json && n++ ? "," : "", ways[w].name, s->hidden_share[0], s->layer_us[0],
               s->hidden_share[1], s->layer_us[1]);
    }
}

static void print_all(bench *b)
{
    if (b->json) {
        printf("{");
        ek_bench_print_machine_json();
        printf(",\"turns\":%d,\"round_trips\":[", b->turns);
        print_trips(b);
        printf("],\"overlap\":[");
        print_overlap(b);
        printf("]}\n");
        return;
    }
    ek_bench_print_machine();
    printf("%d ranks, d %d, f32, %d turns\n", EK_BENCH_RANKS, EK_BENCH_D_MODEL, b->turns);
    print_trips(b);
    print_overlap(b);
}

static bool run(bench *b)
{
    bool ok = measure(b);
    for (int32_t w = 0; w < N_WAYS && ok; w++)
        if (b->way[w].is_there) ok = measure_overlap(b, &b->way[w]);
    return ok;
}

static bool take_number(const char *text, int32_t max, int32_t *out_n)
{
    char *end;
    long n = strtol(text, &end, 10);
    if (*end != '\0' || n < 1 || n > max) return false;
    *out_n = (int32_t)n;
    return true;
}

static bool read_arguments(bench *b, int argc, char **argv)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : "";
        int32_t tokens_max;
        if (strcmp(argv[i], "--json") == 0) {
            b->json = true;
        } else if (strcmp(argv[i], "--no-mpi") == 0) {
            b->no_mpi = true;
        } else if (strcmp(argv[i], "--turns") == 0) {
            if (!take_number(value, EK_BENCH_SAMPLES_MAX, &b->turns)) return false;
            i++;
        } else if (strcmp(argv[i], "--tokens-max") == 0) {
            if (!take_number(value, INT32_MAX, &tokens_max)) return false;
            for (b->n_sizes = 1; b->n_sizes < N_SIZES && sizes[b->n_sizes] <= tokens_max;)
                b->n_sizes++;
            i++;
        } else if (strcmp(argv[i], "--model") == 0 && *value) {
            b->model_path = value;
            i++;
        } else {
            return false;
        }
    }
    return true;
}

int main(int argc, char **argv)
{
    static bench b = {
        .turns = TURNS, .n_sizes = N_SIZES, .model_path = "models/evenkeel-demo.gguf"};
    static char program[4096];
    ek_err err = {0};
    if (!read_arguments(&b, argc, argv)) {
        fprintf(stderr, "usage: cluster [--turns N] [--tokens-max N] [--no-mpi] [--model FILE] "
                        "[--json]\n");
        return 64;
    }
    signal(SIGPIPE, SIG_IGN);
    ek_sys_log_set_level(EK_LOG_ERROR);
    if (!getenv("UCX_NET_DEVICES")) setenv("UCX_NET_DEVICES", "lo", 1);
    snprintf(program, sizeof program, "%s", argv[0]);
    bool ok = set_up(&b, dirname(program), &err) == EK_OK;
    if (!ok) fprintf(stderr, "cluster: %s\n", err.text);
    if (ok && !(ok = run(&b))) fprintf(stderr, "cluster: a layer failed, or came back wrong\n");
    if (ok) print_all(&b);
    tear_down(&b);
    return ok ? 0 : 1;
}
