/*
 * build/bench/engine --model FILE [--threads N] [--kernels K] [--windows N] [--json] [--peer-csv
 * FILE]
 *
 * How fast the forward pass is: prefill of 512 tokens in one step, decode of 1, 4, 16 and 64
 * sequences. Machines drift, so every window measures all of them in turn, and between them what
 * the memory gives when all threads just read; figures are medians over the windows with lowest and
 * highest. `share` is the part of that bandwidth which decode uses for the bytes that it has to
 * read: all weights but those of experts that no token chose, and the keys and values.
 *
 * A peer file has lines "peer,test,tokens_per_s" (test: prefill512, 1, 4, 16 or 64), measured
 * beside this run; ratios are printed then. Tokens are random: speed and the mechanics of routing
 * are real, text is not.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/rng.h"
#include "bench.h"
#include "engine/forward.h"
#include "expert/local.h"
#include "expert/model_file.h"
#include "sys/clock.h"
#include "sys/cpu.h"
#include "sys/file.h"
#include "sys/mem.h"
#include "sys/thread.h"

enum {
    PREFILL = 512,
    PROMPT = 32, /* context of the decoding sequences */
    STEPS_MAX = 32,
    BLOCK_TOKENS = 32,
    SEQS = 64,
    SEQ_BLOCKS = PREFILL / BLOCK_TOKENS,
    TESTS = 5,
    WINDOW_NS = 250000000,
};
#define READ_BYTES ((size_t)512 << 20)

static const char *const test_name[TESTS] = {"prefill512", "1", "4", "16", "64"};
static const int32_t test_seqs[TESTS] = {1, 1, 4, 16, 64};

typedef struct bench {
    const char *model_path, *peer_path;
    int32_t n_threads, n_windows;
    ek_kernels_choice choice;
    bool json;

    ek_model_file *file;
    ek_kernels kernels;
    ek_sys_pool *pool;
    ek_kv *kv;
    ek_router *router;
    ek_dispatcher *dispatcher;
    ek_forward *forward;
    ek_sys_region perm_region, read_region;
    float *logits;            /* (SEQS, n_vocab) */
    ek_kv_seq seqs[SEQS + 1]; /* the last one prefills */
    int32_t blocks[SEQS + 1][SEQ_BLOCKS];
    ek_rng rng;
    int64_t expert_bytes; /* read by the experts of the steps since it was set to 0 */
    int32_t n_steps[TESTS];

    uint64_t read_sum[EK_CACHE_LINE]; /* keeps the reads alive */
    ek_bench_samples rate[TESTS];     /* tokens/s */
    ek_bench_samples share[TESTS];    /* of read bandwidth; decode only */
    ek_bench_samples read_gbs;
} bench;

/* ---- setting up ---- */

static void count_experts(void *ctx, int32_t layer, const ek_route_plan *plan)
{
    bench *b = ctx;
    const ek_model_layer *l = &b->file->model->layers[layer];
    size_t one = (l->expert_gate->bytes + l->expert_up->bytes + l->expert_down->bytes) /
                 (size_t)plan->n_experts;
    b->expert_bytes += (int64_t)one * plan->n_active;
}

static ek_status set_up_parts(bench *b, ek_arena *perm, ek_err *err)
{
    const ek_model_params *p = &b->file->model->params;
    const ek_kv_params kv = {.n_layers = p->n_layers,
                             .n_kv_heads = p->n_kv_heads,
                             .head_dim_k = p->head_dim_k,
                             .head_dim_v = p->head_dim_v,
                             .block_tokens = BLOCK_TOKENS,
                             .n_blocks = SEQS * 2 + SEQ_BLOCKS};
    const ek_route_gate gate = ek_engine_gate_of(p);
    ek_route_params route;
    ek_route_params_default(&route);
    ek_status status = ek_kernels_select(b->choice, ek_sys_cpu_flags(), &b->kernels);
    if (status != EK_OK) return ek_err_set(err, status, "this machine cannot run those kernels");
    status = ek_sys_pool_create(b->n_threads, false, &b->pool);
    if (status != EK_OK) return ek_err_set(err, status, "no %d threads", b->n_threads);
    const ek_expert_local_params local = {
        .model = b->file->model, .kernels = &b->kernels, .pool = b->pool, .n_devices = 1};
    status = ek_engine_kv_create(&kv, &b->kv, err);
    if (status == EK_OK)
        status = ek_route_create(&gate, p->n_layers, &route, perm, &b->router, err);
    if (status == EK_OK)
        status =
            ek_expert_local_create(&local, &b->dispatcher, err);
    return status;
}

static ek_status set_up(bench *b, ek_err *err)
{
    ek_status status = ek_expert_model_open(b->model_path, NULL, &b->file, err);
    if (status != EK_OK) return status;
    const ek_model_params *p = &b->file->model->params;
    if (p->context_tokens < PREFILL)
        return ek_err_set(err, EK_ECONTEXT, "%s: a context of %d tokens, %d are needed",
                          b->model_path, p->context_tokens, PREFILL);
    const ek_route_gate gate = ek_engine_gate_of(p);
    size_t perm_bytes = ((size_t)1 << 20) + ek_route_bytes(&gate, p->n_layers) +
                        (size_t)SEQS * (size_t)p->n_vocab * sizeof(float);
    if (ek_sys_region_open(perm_bytes, 0, &b->perm_region) != EK_OK ||
        ek_sys_region_open(READ_BYTES, 1, &b->read_region) != EK_OK)
        return ek_err_set(err, EK_ENOMEM, "no memory for logits and the bandwidth test");
    memset(b->read_region.base, 1, READ_BYTES);
    ek_arena perm = ek_sys_region_arena(&b->perm_region);
    b->logits = ek_new(&perm, float, (size_t)SEQS *(size_t)p->n_vocab);
    status = set_up_parts(b, &perm, err);
    if (status != EK_OK) return status;
    const ek_forward_params params = {.model = b->file->model,
                                      .kernels = &b->kernels,
                                      .pool = b->pool,
                                      .kv = b->kv,
                                      .router = b->router,
                                      .dispatcher = b->dispatcher,
                                      .batch_tokens_max = PREFILL,
                                      .context_tokens = PREFILL,
                                      .logits_rows_max = SEQS};
    status = ek_engine_forward_create(&params, &b->forward, err);
    if (status != EK_OK) return status;
    ek_engine_forward_set_probe(b->forward, &(ek_forward_probe){b, count_experts});
    for (int32_t s = 0; s <= SEQS; s++) {
        b->seqs[s] = (ek_kv_seq){.block = b->blocks[s], .n_blocks_max = SEQ_BLOCKS};
        status = ek_engine_kv_reserve(b->kv, &b->seqs[s], s < SEQS ? PROMPT + STEPS_MAX : PREFILL);
        if (status != EK_OK) return ek_err_set(err, status, "no KV blocks");
    }
    return EK_OK;
}

static void tear_down(bench *b)
{
    ek_engine_forward_destroy(b->forward);
    ek_expert_destroy(b->dispatcher);
    ek_engine_kv_destroy(b->kv);
    if (b->pool) ek_sys_pool_destroy(b->pool);
    ek_sys_region_close(&b->perm_region);
    ek_sys_region_close(&b->read_region);
    ek_expert_model_close(b->file);
}

/* ---- measuring ---- */

/**
 * One step of n_tokens random tokens for each of n_seqs sequences from `first` on; seconds that it
 * took.
 */
static double step(bench *b, int32_t first, int32_t n_seqs, int32_t n_tokens)
{
    int32_t tokens[PREFILL];
    ek_batch_seq parts[SEQS];
    for (int32_t i = 0; i < n_seqs * n_tokens; i++)
        tokens[i] = (int32_t)ek_rng_below(&b->rng, (uint64_t)b->file->model->params.n_vocab);
    for (int32_t s = 0; s < n_seqs; s++)
        parts[s] = (ek_batch_seq){.kv = &b->seqs[first + s],
                                  .tokens = tokens + (ptrdiff_t)s * n_tokens,
                                  .n_tokens = n_tokens,
                                  .wants_logits = true};
    int64_t beg_ns = ek_sys_now_ns();
    ek_status status = ek_engine_forward_run(b->forward, &(ek_batch){parts, n_seqs}, b->logits);
    int64_t end_ns = ek_sys_now_ns();
    if (status != EK_OK) {
        fprintf(stderr, "engine: %s\n", ek_status_text(status));
        exit(1);
    }
    return (double)(end_ns - beg_ns) * 1e-9;
}

/** Sum of two halves read side by side: two streams for each thread. */
static void read_share(void *ctx, int32_t thread_idx)
{
    bench *b = ctx;
    size_t n = READ_BYTES / sizeof(uint64_t) / (size_t)b->n_threads / 2;
    const uint64_t *low = (const uint64_t *)b->read_region.base + (size_t)thread_idx * 2 * n;
    const uint64_t *high = low + n;
    uint64_t sum[8] = {0};
    for (size_t i = 0; i + 4 <= n; i += 4)
        for (size_t j = 0; j < 4; j++) {
            sum[j] += low[i + j];
            sum[4 + j] += high[i + j];
        }
    for (size_t j = 0; j < 8; j++)
        b->read_sum[(size_t)thread_idx % EK_COUNT_OF(b->read_sum)] += sum[j];
}

static double read_gbs(bench *b)
{
    int64_t beg_ns = ek_sys_now_ns();
    ek_sys_pool_run(b->pool, read_share, b);
    return (double)READ_BYTES / (double)(ek_sys_now_ns() - beg_ns);
}

/** Bytes of weights that every token reads, whatever is chosen. */
static int64_t dense_bytes(const ek_model *model)
{
    int64_t bytes = model->params.weight_bytes;
    for (int32_t l = 0; l < model->params.n_layers; l++)
        bytes -= (int64_t)(model->layers[l].expert_gate->bytes + model->layers[l].expert_up->bytes +
                           model->layers[l].expert_down->bytes);
    return model->output == model->token_embd ? bytes : bytes - (int64_t)model->token_embd->bytes;
}

static void measure_prefill(bench *b, bool keep)
{
    b->seqs[SEQS].n_tokens = 0;
    double seconds = step(b, SEQS, 1, PREFILL);
    if (keep) ek_bench_add(&b->rate[0], PREFILL / seconds);
}

static void measure_decode(bench *b, int32_t test, bool keep)
{
    int32_t n_seqs = test_seqs[test];
    double seconds = 0;
    int64_t kv_tokens = 0;
    int32_t n_steps = keep ? b->n_steps[test] : 2;
    b->expert_bytes = 0;
    for (int32_t i = 0; i < n_steps; i++) {
        kv_tokens += (int64_t)n_seqs * b->seqs[0].n_tokens;
        seconds += step(b, 0, n_seqs, 1);
    }
    for (int32_t s = 0; s < n_seqs; s++)
        b->seqs[s].n_tokens = PROMPT; /* what follows is written anew by the next window */
    if (!keep) {
        double n = WINDOW_NS * 1e-9 / (seconds / n_steps);
        b->n_steps[test] = n < 2 ? 2 : n > STEPS_MAX ? STEPS_MAX : (int32_t)n;
        return;
    }
    double bytes = (double)b->expert_bytes + (double)dense_bytes(b->file->model) * n_steps +
                   (double)(kv_tokens * ek_model_kv_bytes_per_token(&b->file->model->params));
    double gbs = read_gbs(b);
    ek_bench_add(&b->read_gbs, gbs);
    ek_bench_add(&b->rate[test], n_seqs * n_steps / seconds);
    ek_bench_add(&b->share[test], bytes / seconds * 1e-9 / gbs);
}

static void measure(bench *b)
{
    ek_rng_init(&b->rng, 1);
    for (int32_t s = 0; s < SEQS; s += PREFILL / PROMPT)
        step(b, s, PREFILL / PROMPT, PROMPT);
    for (int32_t window = -1; window < b->n_windows; window++) { /* the first one warms up */
        measure_prefill(b, window >= 0);
        for (int32_t test = 1; test < TESTS; test++)
            measure_decode(b, test, window >= 0);
    }
}

/* ---- reporting ---- */

/** Peak resident memory without the buffer of the bandwidth test. */
static int64_t rss_mib(void)
{
    struct rusage usage;
    if (getrusage(RUSAGE_SELF, &usage) != 0) return 0;
    return usage.ru_maxrss / 1024 - (int64_t)(READ_BYTES >> 20);
}

static double plan_share(const bench *b)
{
    int64_t plan_ns, total_ns;
    ek_engine_forward_times(b->forward, &plan_ns, &total_ns);
    return (double)plan_ns / (double)total_ns;
}

static void print_json(bench *b)
{
    printf("{");
    ek_bench_print_machine_json();
    printf(",\"model\":\"%s\",\"threads\":%d,\"kernels\":\"%s\",\"windows\":%d,\"prefill512\":%.2f",
           b->file->model->params.arch, b->n_threads, b->kernels.name, b->n_windows,
           ek_bench_quantile(&b->rate[0], 0.5));
    printf(",\"decode\":{");
    for (int32_t t = 1; t < TESTS; t++)
        printf("%s\"%s\":%.2f", t > 1 ? "," : "", test_name[t],
               ek_bench_quantile(&b->rate[t], 0.5));
    printf("},\"bandwidth_share\":{");
    for (int32_t t = 1; t < TESTS; t++)
        printf("%s\"%s\":%.3f", t > 1 ? "," : "", test_name[t],
               ek_bench_quantile(&b->share[t], 0.5));
    printf("},\"spread\":{");
    for (int32_t t = 0; t < TESTS; t++)
        printf("%s\"%s\":[%.2f,%.2f]", t > 0 ? "," : "", test_name[t],
               ek_bench_quantile(&b->rate[t], 0), ek_bench_quantile(&b->rate[t], 1));
    printf("},\"read_gbs\":%.1f,\"plan_share\":%.4f,\"rss_mib\":%lld",
           ek_bench_quantile(&b->read_gbs, 0.5), plan_share(b), (long long)rss_mib());
}

static void print_text(bench *b)
{
    ek_bench_print_machine();
    printf("model: %s, %s; %d threads, %s kernels, %d windows\n", b->model_path,
           b->file->model->params.arch, b->n_threads, b->kernels.name, b->n_windows);
    printf("%-12s %10s %10s %10s %8s\n", "test", "tokens/s", "lowest", "highest", "share");
    for (int32_t t = 0; t < TESTS; t++) {
        printf("%-12s %10.1f %10.1f %10.1f", test_name[t], ek_bench_quantile(&b->rate[t], 0.5),
               ek_bench_quantile(&b->rate[t], 0), ek_bench_quantile(&b->rate[t], 1));
        if (t > 0) printf(" %7.0f%%", 100 * ek_bench_quantile(&b->share[t], 0.5));
        printf("\n");
    }
    printf("read bandwidth %.1f GB/s, planning %.2f %% of the time, peak resident %lld MiB\n",
           ek_bench_quantile(&b->read_gbs, 0.5), 100 * plan_share(b), (long long)rss_mib());
}

/** Ratios to each line of the peers' file. */
static bool print_peers(bench *b)
{
    ek_err err = {0};
    ek_str text;
    if (ek_sys_file_read(b->peer_path, 1 << 20, &text, &err) != EK_OK) {
        fprintf(stderr, "engine: %s\n", err.text);
        return false;
    }
    if (b->json) printf(",\"peers\":[");
    bool first = true;
    for (const char *line = text.data; line && *line; line = strchr(line, '\n')) {
        char peer[64], test[16];
        double rate;
        line += *line == '\n';
        int n = sscanf(line, "%63[^,\n],%15[^,\n],%lf", peer, test, &rate);
        if (n != 3 || rate <= 0) continue; /* a header */
        for (int32_t t = 0; t < TESTS; t++) {
            if (strcmp(test, test_name[t]) != 0) continue;
            double ratio = ek_bench_quantile(&b->rate[t], 0.5) / rate;
            printf(b->json ? "%s{\"peer\":\"%s\",\"test\":\"%s\",\"ratio\":%.3f}"
                           : "%s%-12s %-12s %.2fx\n",
                   b->json && !first ? "," : "", peer, test, ratio);
            first = false;
        }
    }
    if (b->json) printf("]");
    ek_sys_free((void *)(uintptr_t)text.data);
    return true;
}

static bool parse(int argc, char **argv, bench *b)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        if (strcmp(argv[i], "--json") == 0) {
            b->json = true;
            continue;
        }
        if (!value) return false;
        if (strcmp(argv[i], "--model") == 0)
            b->model_path = value;
        else if (strcmp(argv[i], "--peer-csv") == 0)
            b->peer_path = value;
        else if (strcmp(argv[i], "--threads") == 0)
            b->n_threads = (int32_t)strtol(value, NULL, 10);
        else if (strcmp(argv[i], "--windows") == 0)
            b->n_windows = (int32_t)strtol(value, NULL, 10);
        else if (strcmp(argv[i], "--kernels") != 0 || !ek_kernels_choice_parse(value, &b->choice))
            return false;
        i++;
    }
    return b->model_path && b->n_threads >= 1 && b->n_windows >= 1;
}

int main(int argc, char **argv)
{
    static bench b;
    ek_err err = {0};
    b.n_threads = ek_sys_cpu_count();
    b.n_windows = 7;
    if (!parse(argc, argv, &b)) {
        fprintf(stderr, "usage: engine --model FILE [--threads N] [--kernels K] [--windows N] "
                        "[--json] [--peer-csv FILE]\n");
        return 2;
    }
    bool ok = set_up(&b, &err) == EK_OK;
    if (ok) {
        measure(&b);
        if (b.json)
            print_json(&b);
        else
            print_text(&b);
        ok = !b.peer_path || print_peers(&b);
        if (b.json) printf("}\n");
    } else {
        fprintf(stderr, "engine: %s\n", err.text);
    }
    tear_down(&b);
    return ok ? 0 : 1;
}
