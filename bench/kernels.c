/*
 * build/bench/kernels [--kernels K] [--threads N] [--rows R] [--cols C] [--samples N] [--type T]
 * [--json]
 *
 * How fast each kernel is, beside what the machine gives in the same minute. For every weight type
 * (or just T), plain and packed, and 1 to 512 tokens: bytes of weights per second and their share
 * of the read bandwidth, operations per second and their share of the int8 peak, on one thread and
 * on N (2, or as many as there are). Few tokens walk through copies of the matrix that no cache
 * holds; many use one matrix. Then attention and the kernels over vectors.
 *
 * Machines drift, so every sample measures the bandwidth and the peak again and shares are taken
 * sample by sample; figures are medians, +- is half the distance between the second lowest and the
 * second highest.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/rng.h"
#include "bench.h"
#include "int8_peak.h"
#include "kernels/kernels.h"
#include "kernels/pack.h"
#include "quant/convert.h"
#include "sys/clock.h"
#include "sys/cpu.h"
#include "sys/mem.h"
#include "sys/pool.h"
#include "sys/thread.h"

enum {
    TOKENS_MAX = 512,
    COLD_TOKENS_MAX = 16, /* up to here the matrix is read from memory, not from a cache */
    THREADS_MAX = 64,
    SAMPLE_NS = 10000000,
    ROW_STEP = 32, /* threads share out rows in steps of a kernel's tile */
    HEAD_DIM = 128,
    POSITIONS = 1024,
    QUERIES = 8,
    BLOCK_TOKENS = 32,
    VECTOR = 2048,
    COLS_MAX = 8192,
};
#define WEIGHT_BYTES ((size_t)256 << 20)
#define READ_BYTES   ((size_t)256 << 20)

typedef struct bench {
    ek_kernels_choice choice;
    int32_t n_threads, n_rows, n_cols, n_samples;
    bool json;
    const char *type; /* NULL: all */
    uint32_t cpu_flags;
    ek_kernels kernels;
    ek_sys_pool *pool[2]; /* one thread, n_threads */
    ek_sys_region region;

    uint8_t *weights; /* copies of one matrix, and what the bandwidth is measured on */
    ek_act x;
    float *y;
    bool any_line;
    uint64_t sink[THREADS_MAX * 8]; /* keeps reads alive, one cache line a thread */
} bench;

/* What one measurement calls; rows are shared among threads, other kernels run on every thread. */
typedef struct job {
    bench *b;
    ek_mat w;
    int32_t n_tokens, n_copies, copy;
    int32_t n_threads;
    void (*run)(struct job *job, int32_t thread_idx);
} job;

typedef struct result {
    const char *kernel, *type;
    int32_t n_tokens, n_threads;
    double bytes, ops; /* of one call, all threads together */
    ek_bench_samples ns, read_share, peak_share;
} result;

static void job_run(void *ctx, int32_t thread_idx)
{
    job *j = ctx;
    j->run(j, thread_idx);
}

/* Nanoseconds per run, over as many runs as fill a sample. */
static double job_time(job *j, ek_sys_pool *pool)
{
    int64_t beg = ek_sys_now_ns(), ns;
    int32_t n = 0;
    do {
        ek_sys_pool_run(pool, job_run, j);
        j->copy = (j->copy + 1) % j->n_copies;
        n++;
        ns = ek_sys_now_ns() - beg;
    } while (ns < SAMPLE_NS || n < j->n_copies / 4);
    return (double)ns / n;
}

/* ---- yardsticks ---- */

static void run_read(job *j, int32_t thread_idx)
{
    size_t n = READ_BYTES / sizeof(uint64_t) / (size_t)j->n_threads / 8 * 8;
    const uint64_t *data = (const uint64_t *)(const void *)j->b->weights + n * (size_t)thread_idx;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i < n; i += 8)
        for (size_t k = 0; k < 8; k++)
            sum[k] += data[i + k];
    for (size_t k = 0; k < 8; k++)
        j->b->sink[thread_idx * 8] += sum[k];
}

static void run_peak(job *j, int32_t thread_idx)
{
    double ops = ek_bench_int8_run(j->b->cpu_flags, 100000);
    j->b->sink[thread_idx * 8] += ops > 0.0;
}

/* Bytes and operations per nanosecond of all threads together. */
static void yardsticks(bench *b, int which, double *out_read, double *out_peak)
{
    job read = {.b = b, .n_copies = 1, .n_threads = ek_sys_pool_threads(b->pool[which])};
    job peak = read;
    read.run = run_read;
    peak.run = run_peak;
    *out_read = (double)READ_BYTES / job_time(&read, b->pool[which]);
    double ops = ek_bench_int8_run(b->cpu_flags, 100000) * peak.n_threads;
    *out_peak = ops / job_time(&peak, b->pool[which]);
}

/* ---- output ---- */

static void print_head(const bench *b)
{
    if (b->json) {
        printf("{");
        ek_bench_print_machine_json();
        printf(",\"kernels\":\"%s\",\"rows\":%d,\"cols\":%d,\"samples\":%d,\"peak\":\"%s\","
               "\"results\":[",
               b->kernels.name, b->n_rows, b->n_cols, b->n_samples,
               ek_bench_int8_name(b->cpu_flags));
        return;
    }
    ek_bench_print_machine();
    printf("kernels: %s, matrices %d x %d, medians of %d samples; peak of %s\n\n", b->kernels.name,
           b->n_rows, b->n_cols, b->n_samples, ek_bench_int8_name(b->cpu_flags));
    printf("%-12s %-5s %6s %7s %10s %8s %6s %8s %6s %6s\n", "kernel", "type", "tokens", "threads",
           "us", "GB/s", "of rd", "GOP/s", "of pk", "+-");
}

static void print_result(bench *b, result *r)
{
    double ns = ek_bench_quantile(&r->ns, 0.5);
    double edge = r->ns.n > 3 ? 1.0 / (r->ns.n - 1) : 0.0;
    double spread =
        (ek_bench_quantile(&r->ns, 1 - edge) - ek_bench_quantile(&r->ns, edge)) / 2 / ns;
    double read = ek_bench_quantile(&r->read_share, 0.5);
    double peak = ek_bench_quantile(&r->peak_share, 0.5);
    if (b->json) {
        printf("%s{\"kernel\":\"%s\",\"type\":\"%s\",\"tokens\":%d,\"threads\":%d,\"us\":%.3f,"
               "\"gb_s\":%.3f,\"read_share\":%.4f,\"gop_s\":%.3f,\"peak_share\":%.4f,"
               "\"spread\":%.4f}",
               b->any_line ? "," : "", r->kernel, r->type, r->n_tokens, r->n_threads, ns / 1e3,
               r->bytes / ns, read, r->ops / ns, peak, spread);
    } else {
        printf("%-12s %-5s %6d %7d %10.2f %8.2f %5.0f%% %8.1f %5.0f%% %5.0f%%\n", r->kernel,
               r->type, r->n_tokens, r->n_threads, ns / 1e3, r->bytes / ns, read * 100, r->ops / ns,
               peak * 100, spread * 100);
    }
    b->any_line = true;
    fflush(stdout);
}

/* Take all samples of one result on pool `which`. */
static void measure(bench *b, job *j, result *r, int which)
{
    j->b = b;
    j->n_threads = r->n_threads = ek_sys_pool_threads(b->pool[which]);
    for (int32_t s = 0; s < b->n_samples; s++) {
        double read, peak;
        yardsticks(b, which, &read, &peak);
        double ns = job_time(j, b->pool[which]);
        ek_bench_add(&r->ns, ns);
        ek_bench_add(&r->read_share, r->bytes / ns / read);
        if (peak > 0.0) ek_bench_add(&r->peak_share, r->ops / ns / peak);
    }
    print_result(b, r);
}

/* ---- matrices ---- */

static void run_matmul(job *j, int32_t thread_idx)
{
    bench *b = j->b;
    ek_mat w = j->w;
    w.data = (const uint8_t *)w.data + (size_t)j->copy * (size_t)w.n_rows * w.row_bytes;
    int32_t steps = (w.n_rows + ROW_STEP - 1) / ROW_STEP;
    int32_t beg = steps * thread_idx / j->n_threads * ROW_STEP;
    int32_t end = steps * (thread_idx + 1) / j->n_threads * ROW_STEP;
    if (end > w.n_rows) end = w.n_rows;
    b->kernels.matmul[w.type](&w, beg, end, &b->x, NULL, j->n_tokens, b->y, w.n_rows);
}

/* In place, a panel at a time. */
static void pack_weights(bench *b, ek_type type, size_t row_bytes)
{
    static uint8_t panel[EK_PACK_ROWS * COLS_MAX * 2]; /* no packed type has 2 bytes an element */
    for (int32_t r = 0; r < b->n_rows; r += EK_PACK_ROWS) {
        uint8_t *rows = b->weights + (size_t)r * row_bytes;
        ek_kernels_pack(type, b->n_cols, rows, row_bytes, panel);
        memcpy(rows, panel, EK_PACK_ROWS * row_bytes);
    }
}

static bool fill_weights(bench *b, ek_type type, bool packed, ek_mat *out, int32_t *out_copies)
{
    size_t row_bytes = ek_quant_row_bytes(type, b->n_cols);
    size_t bytes = row_bytes * (size_t)b->n_rows;
    for (int32_t r = 0; r < b->n_rows; r++) { /* any numbers do; the tokens' are at hand */
        const float *row = b->x.f32 + (int64_t)(r % TOKENS_MAX) * b->n_cols;
        uint8_t *to = b->weights + (size_t)r * row_bytes;
        if (ek_quant_row_from_f32(type, row, b->n_cols, to) != EK_OK) return false;
    }
    if (packed) pack_weights(b, type, row_bytes);
    *out_copies = (int32_t)(WEIGHT_BYTES / bytes);
    for (int32_t c = 1; c < *out_copies; c++)
        memcpy(b->weights + (size_t)c * bytes, b->weights, bytes);
    *out = (ek_mat){.data = b->weights,
                    .row_bytes = row_bytes,
                    .type = type,
                    .n_rows = b->n_rows,
                    .n_cols = b->n_cols,
                    .packed = packed};
    return true;
}

static void bench_type(bench *b, ek_type type, bool packed)
{
    static const int32_t tokens[] = {1, 2, 3, 4, 6, 8, 12, 16, 32, 64, TOKENS_MAX};
    ek_mat w;
    int32_t n_copies;
    if (b->n_cols % ek_quant_type_info((uint32_t)type)->block_elems != 0) return;
    if (packed && (ek_kernels_pack_dwords(type) == 0 || b->n_rows % EK_PACK_ROWS != 0)) return;
    if (packed && !b->kernels.act_int8[type]) return;
    if (!fill_weights(b, type, packed, &w, &n_copies)) return;
    for (size_t i = 0; i < EK_COUNT_OF(tokens); i++)
        for (int which = 0; which < 2; which++) {
            if (which == 1 && b->n_threads == 1) continue;
            job j = {.w = w, .n_tokens = tokens[i], .n_copies = 1, .run = run_matmul};
            if (tokens[i] <= COLD_TOKENS_MAX) j.n_copies = n_copies;
            result r = {.kernel = packed ? "packed" : "plain", .n_tokens = tokens[i]};
            r.type = ek_quant_type_info((uint32_t)type)->name;
            r.bytes = (double)w.row_bytes * w.n_rows;
            r.ops = 2.0 * w.n_rows * w.n_cols * tokens[i];
            measure(b, &j, &r, which);
        }
}

/* ---- attention and vectors: each thread for itself, on one thread ---- */

static void run_attend(job *j, int32_t thread_idx EK_UNUSED)
{
    bench *b = j->b;
    const uint16_t *blocks[POSITIONS / BLOCK_TOKENS];
    const float *q[QUERIES];
    float *out[QUERIES], scratch[POSITIONS + 16];
    int32_t n_pos[QUERIES];
    for (int32_t i = 0; i < POSITIONS / BLOCK_TOKENS; i++)
        blocks[i] = (const uint16_t *)(const void *)b->weights +
                    ((size_t)j->copy * POSITIONS + (size_t)i * BLOCK_TOKENS) * HEAD_DIM;
    for (int32_t i = 0; i < j->n_tokens; i++) {
        q[i] = b->x.f32 + i * HEAD_DIM;
        out[i] = b->y + i * HEAD_DIM;
        n_pos[i] = POSITIONS;
    }
    ek_attend_args args = {.q = q,
                           .out = out,
                           .n_pos = n_pos,
                           .k_blocks = blocks,
                           .v_blocks = blocks,
                           .n_q = j->n_tokens,
                           .head_dim_k = HEAD_DIM,
                           .head_dim_v = HEAD_DIM,
                           .block_tokens = BLOCK_TOKENS,
                           .scale = 0.1f,
                           .scratch = scratch};
    b->kernels.attend(&args);
}

static void bench_attend(bench *b)
{
    uint16_t *cache = (uint16_t *)(void *)b->weights;
    int32_t n_copies = 8; /* all in the second-level cache, as one head's cache is */
    for (int64_t i = 0; i < (int64_t)n_copies * POSITIONS * HEAD_DIM; i++)
        cache[i] = ek_quant_f32_to_f16(b->x.f32[i % b->n_cols]);
    for (int32_t n_q = 1; n_q <= QUERIES; n_q += n_q < 4 ? 1 : 4) {
        job j = {.n_tokens = n_q, .n_copies = n_copies, .run = run_attend};
        result r = {.kernel = "attend", .type = "F16", .n_tokens = n_q};
        r.bytes = 2.0 * POSITIONS * HEAD_DIM * sizeof *cache;
        r.ops = 4.0 * POSITIONS * HEAD_DIM * n_q;
        measure(b, &j, &r, 0);
    }
}

static void run_act_quantize(job *j, int32_t thread_idx EK_UNUSED)
{
    ek_act *x = &j->b->x;
    j->b->kernels.act_quantize(x->f32, VECTOR, x->q, x->scale, x->scaled_sum, x->half_offset);
}

static void run_rms_norm(job *j, int32_t thread_idx EK_UNUSED)
{
    const float *x = j->b->x.f32;
    j->b->kernels.rms_norm(x, x + VECTOR, VECTOR, 1e-6f, j->b->y);
}

static void run_swiglu(job *j, int32_t thread_idx EK_UNUSED)
{
    const float *x = j->b->x.f32;
    j->b->kernels.swiglu(x, x + VECTOR, VECTOR, j->b->y);
}

static void run_softmax(job *j, int32_t thread_idx EK_UNUSED)
{
    memcpy(j->b->y, j->b->x.f32, VECTOR * sizeof(float));
    j->b->kernels.softmax(j->b->y, VECTOR);
}

static void run_axpy(job *j, int32_t thread_idx EK_UNUSED)
{
    j->b->kernels.axpy(1e-3f, j->b->x.f32, VECTOR, j->b->y);
}

static void bench_vectors(bench *b)
{
    static const struct {
        const char *kernel;
        void (*run)(job *j, int32_t thread_idx);
        double bytes, ops; /* per element, read and written; operations as written in kernels.h */
    } vector[] = {
        {"act_quantize", run_act_quantize, 5, 3},
        {"rms_norm", run_rms_norm, 16, 4},
        {"swiglu", run_swiglu, 12, 5},
        {"softmax", run_softmax, 24, 4},
        {"axpy", run_axpy, 12, 2},
    };
    for (size_t i = 0; i < EK_COUNT_OF(vector); i++) {
        job j = {.n_copies = 1, .run = vector[i].run};
        result r = {.kernel = vector[i].kernel, .type = "F32", .n_tokens = 1};
        r.bytes = vector[i].bytes * VECTOR;
        r.ops = vector[i].ops * VECTOR;
        measure(b, &j, &r, 0);
    }
}

/* ---- set-up ---- */

static bool options_parse(int argc, char **argv, bench *out)
{
    *out = (bench){.n_threads = 2, .n_rows = 1024, .n_cols = 2048, .n_samples = 7};
    if (ek_sys_cpu_count() < 2) out->n_threads = 1;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--json") == 0) {
            out->json = true;
            continue;
        }
        if (i + 1 == argc) return false;
        const char *name = argv[i++], *value = argv[i];
        if (strcmp(name, "--kernels") == 0) {
            if (!ek_kernels_choice_parse(value, &out->choice)) return false;
            continue;
        }
        if (strcmp(name, "--type") == 0) {
            out->type = value;
            continue;
        }
        int32_t *number = strcmp(name, "--threads") == 0   ? &out->n_threads
                          : strcmp(name, "--rows") == 0    ? &out->n_rows
                          : strcmp(name, "--cols") == 0    ? &out->n_cols
                          : strcmp(name, "--samples") == 0 ? &out->n_samples
                                                           : NULL;
        if (!number) return false;
        *number = (int32_t)strtol(value, NULL, 10);
    }
    return out->n_threads >= 1 && out->n_threads <= THREADS_MAX && out->n_rows >= 1 &&
           out->n_rows <= 8192 && out->n_cols >= VECTOR && out->n_cols <= COLS_MAX &&
           out->n_cols % EK_ACT_BLOCK == 0 && out->n_samples >= 3 &&
           out->n_samples <= EK_BENCH_SAMPLES_MAX;
}

static ek_status bench_open(bench *b)
{
    b->cpu_flags = ek_sys_cpu_flags();
    ek_status status = ek_kernels_select(b->choice, b->cpu_flags, &b->kernels);
    if (status != EK_OK) return status;
    /* The yardstick is the table's own instruction. */
    if (strcmp(b->kernels.name, "avx512") != 0) b->cpu_flags &= ~EK_CPU_AVX512_VNNI;
    status = ek_sys_region_open(WEIGHT_BYTES + ((size_t)128 << 20), true, &b->region);
    if (status != EK_OK) return status;
    ek_arena arena = ek_sys_region_arena(&b->region);
    int64_t n = (int64_t)TOKENS_MAX * b->n_cols;
    float *x = ek_new_aligned(&arena, float, n);
    b->weights = ek_new_aligned(&arena, uint8_t, WEIGHT_BYTES);
    b->y = ek_new_aligned(&arena, float, (int64_t)TOKENS_MAX * b->n_rows);
    b->x = (ek_act){.n_cols = b->n_cols, .f32 = x};
    b->x.q = ek_new_aligned(&arena, int8_t, n);
    b->x.scale = ek_new_aligned(&arena, float, n / EK_ACT_BLOCK);
    b->x.scaled_sum = ek_new_aligned(&arena, float, n / EK_ACT_BLOCK);
    b->x.half_offset = ek_new_aligned(&arena, int32_t, 2 * n / EK_ACT_BLOCK);
    ek_rng rng;
    ek_rng_init(&rng, 1);
    for (int64_t i = 0; i < n; i++)
        x[i] = (float)(ek_rng_unit(&rng) * 2.0 - 1.0);
    for (int64_t t = 0; t < TOKENS_MAX; t++)
        b->kernels.act_quantize(x + t * b->n_cols, b->n_cols, b->x.q + t * b->n_cols,
                                b->x.scale + t * (b->n_cols / EK_ACT_BLOCK),
                                b->x.scaled_sum + t * (b->n_cols / EK_ACT_BLOCK),
                                b->x.half_offset + 2 * t * (b->n_cols / EK_ACT_BLOCK));
    for (int which = 0; which < 2 && status == EK_OK; which++)
        status = ek_sys_pool_create(which ? b->n_threads : 1, true, &b->pool[which]);
    return status;
}

static void bench_close(bench *b)
{
    for (int which = 0; which < 2; which++)
        if (b->pool[which]) ek_sys_pool_destroy(b->pool[which]);
    ek_sys_region_close(&b->region);
}

int main(int argc, char **argv)
{
    static const ek_type types[] = {EK_TYPE_Q4_K, EK_TYPE_Q5_K, EK_TYPE_Q6_K, EK_TYPE_Q8_0,
                                    EK_TYPE_Q4_0, EK_TYPE_F32,  EK_TYPE_F16,  EK_TYPE_BF16};
    static bench b;
    if (!options_parse(argc, argv, &b)) {
        fprintf(stderr, "usage: kernels [--kernels auto|reference|avx2|avx512] [--threads 1..64] "
                        "[--rows 1..8192] [--cols 2048..8192] [--samples 3..] "
                        "[--type Q4_K] [--json]\n");
        return 64;
    }
    ek_status status = bench_open(&b);
    if (status == EK_OK) {
        print_head(&b);
        for (size_t i = 0; i < EK_COUNT_OF(types); i++) {
            const char *name = ek_quant_type_info((uint32_t)types[i])->name;
            if (b.type && strcmp(b.type, name) != 0) continue;
            bench_type(&b, types[i], false);
            bench_type(&b, types[i], true);
        }
        bench_attend(&b);
        bench_vectors(&b);
        if (b.json) printf("]}\n");
    } else {
        fprintf(stderr, "kernels: %s\n", ek_status_text(status));
    }
    bench_close(&b);
    return status == EK_OK ? 0 : 1;
}
