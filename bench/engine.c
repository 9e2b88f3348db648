/*
 * build/bench/engine --model FILE [--threads N] [--kernels K] [--windows N] [--plain] [--json]
 * [--peer-csv FILE]
 *
 * How fast the forward pass is: prefill of 512 tokens in one step, decode of 1, 4, 16 and 64
 * sequences. Machines drift, so every window measures all of them in turn, and beside them what the
 * memory gives when all threads just read, and what the cores give when they just multiply bytes;
 * figures are medians over the windows with lowest and highest. `of read` is the part of that
 * bandwidth which decode uses for the bytes that it has to read: all weights but those of experts
 * that no token chose, and the keys and values. `of peak` is the part of the multiplications that
 * prefill uses for its matrices (attention over the context not counted). With --plain weights stay
 * as they lie in the file.
 *
 * peers.h tells what a peer file looks like; their figures are printed beside ours with our ratio
 * to them. They mean something when they were measured beside this run. Tokens are random: speed
 * and the mechanics of routing are real, text is not.
 */
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine_parts.h"
#include "int8_peak.h"
#include "sys/clock.h"
#include "sys/cpu.h"
#include "sys/file.h"
#include "sys/thread.h"

enum {
    PROMPT = 32, /* context of the decoding sequences */
    STEPS_MAX = EK_BENCH_RIG_SEQ_TOKENS - PROMPT,
    WINDOW_NS = 250000000,
    PEAK_ROUNDS = 4000000, /* some 10 to 20 ms */
    FILE_BYTES_MAX = 1 << 20,
};

static_assert(EK_BENCH_PREFILL == EK_BENCH_RIG_TOKENS, "a prompt is prefilled in one step");

/* ---- setting up ---- */

static void count_experts(void *ctx, int32_t layer, const ek_route_plan *plan)
{
    bench *b = ctx;
    const ek_model_layer *l = &b->rig.file->model->layers[layer];
    size_t one = (l->expert_gate->bytes + l->expert_up->bytes + l->expert_down->bytes) /
                 (size_t)plan->n_experts;
    b->expert_bytes += (int64_t)one * plan->n_active;
}

static ek_status read_peers(bench *b, ek_err *err)
{
    if (!b->peer_path) return EK_OK;
    ek_str text;
    ek_status status = ek_sys_file_read(b->peer_path, FILE_BYTES_MAX, &text, err);
    if (status != EK_OK) return status;
    status = ek_bench_peers_parse(text, b->peer_path, &b->peers, err);
    ek_sys_free((void *)(uintptr_t)text.data);
    return status;
}

static ek_status set_up(bench *b, ek_err *err)
{
    ek_status status = read_peers(b, err);
    if (status == EK_OK) status = ek_bench_rig_open(&b->rig, &b->params, err);
    if (status != EK_OK) return status;
    if (ek_sys_region_open(READ_BYTES, 1, &b->read_region) != EK_OK)
        return ek_err_set(err, EK_ENOMEM, "no memory for the bandwidth test");
    memset(b->read_region.base, 1, READ_BYTES);
    ek_engine_forward_set_probe(b->rig.forward, &(ek_forward_probe){b, count_experts, NULL});
    ek_bench_energy_open(&b->energy, EK_BENCH_POWERCAP);
    b->cpu_flags = ek_sys_cpu_flags();
    return EK_OK;
}

static void tear_down(bench *b)
{
    ek_bench_rig_close(&b->rig);
    ek_sys_region_close(&b->read_region);
}

/* ---- yardsticks ---- */

/** Sum of two halves read side by side: two streams for each thread. */
static void read_share(void *ctx, int32_t thread_idx)
{
    bench *b = ctx;
    size_t n = READ_BYTES / sizeof(uint64_t) / (size_t)b->params.n_threads / 2;
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
    ek_sys_pool_run(b->rig.pool, read_share, b);
    return (double)READ_BYTES / (double)(ek_sys_now_ns() - beg_ns);
}

static void peak_share(void *ctx, int32_t thread_idx)
{
    bench *b = ctx;
    b->peak_ops[thread_idx] = ek_bench_int8_run(b->cpu_flags, PEAK_ROUNDS);
}

/** 0 where the processor has no instruction that multiplies bytes. */
static double peak_gops(bench *b)
{
    double ops = 0;
    int64_t beg_ns = ek_sys_now_ns();
    ek_sys_pool_run(b->rig.pool, peak_share, b);
    int64_t end_ns = ek_sys_now_ns();
    for (int32_t i = 0; i < b->params.n_threads; i++)
        ops += b->peak_ops[i];
    return ops / (double)(end_ns - beg_ns);
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

static double n_elements(const ek_tensor *tensor)
{
    double n = tensor ? 1 : 0;
    for (int i = 0; tensor && i < EK_GGUF_DIMS_MAX; i++)
        n *= (double)tensor->dim[i];
    return n;
}

/** Operations of the matrices in a prefill; a multiplication and an addition count two. */
static double prefill_ops(const ek_model *model)
{
    const ek_model_params *p = &model->params;
    const double chosen = (double)p->top_k / p->n_experts;
    double per_token = 0;
    for (int32_t i = 0; i < p->n_layers; i++) {
        const ek_model_layer *l = &model->layers[i];
        per_token += n_elements(l->attn_q) + n_elements(l->attn_k) + n_elements(l->attn_v) +
                     n_elements(l->attn_out) + n_elements(l->gate) + n_elements(l->shared_gate) +
                     n_elements(l->shared_up) + n_elements(l->shared_down) +
                     chosen * (n_elements(l->expert_gate) + n_elements(l->expert_up) +
                               n_elements(l->expert_down));
    }
    return 2 * (per_token * EK_BENCH_PREFILL + n_elements(model->output)); /* one row of logits */
}

/* ---- measuring ---- */

static double step(bench *b, int32_t first, int32_t n_seqs, int32_t n_tokens)
{
    int64_t ns = 0;
    ek_status status = ek_bench_rig_step(&b->rig, first, n_seqs, n_tokens, &ns);
    if (status != EK_OK) {
        fprintf(stderr, "engine: %s\n", ek_status_text(status));
        exit(1);
    }
    return (double)ns * 1e-9;
}

static void add_energy(bench *b, int32_t test, double joules, int32_t n_tokens)
{
    if (joules >= 0) ek_bench_add(&b->joules[test], joules / n_tokens);
}

static void measure_prefill(bench *b, bool keep)
{
    b->rig.seqs[EK_BENCH_RIG_SEQS].n_tokens = 0;
    ek_bench_energy_lap(&b->energy);
    double seconds = step(b, EK_BENCH_RIG_SEQS, 1, EK_BENCH_PREFILL);
    double joules = ek_bench_energy_lap(&b->energy);
    if (!keep) return;
    ek_bench_add(&b->rate[PREFILL], EK_BENCH_PREFILL / seconds);
    add_energy(b, PREFILL, joules, EK_BENCH_PREFILL);
    double peak = peak_gops(b);
    if (peak <= 0) return;
    ek_bench_add(&b->peak_gops, peak);
    ek_bench_add(&b->share[PREFILL], prefill_ops(b->rig.file->model) / seconds * 1e-9 / peak);
}

static void measure_decode(bench *b, int32_t test, bool keep)
{
    int32_t n_seqs = ek_bench_test_batch[test];
    double seconds = 0;
    int64_t kv_tokens = 0;
    int32_t n_steps = keep ? b->n_steps[test] : 2;
    b->expert_bytes = 0;
    ek_bench_energy_lap(&b->energy);
    for (int32_t i = 0; i < n_steps; i++) {
        kv_tokens += (int64_t)n_seqs * b->rig.seqs[0].n_tokens;
        seconds += step(b, 0, n_seqs, 1);
    }
    double joules = ek_bench_energy_lap(&b->energy);
    for (int32_t s = 0; s < n_seqs; s++)
        b->rig.seqs[s].n_tokens = PROMPT; /* what follows is written anew by the next window */
    if (!keep) {
        double n = WINDOW_NS * 1e-9 / (seconds / n_steps);
        b->n_steps[test] = n < 2 ? 2 : n > STEPS_MAX ? STEPS_MAX : (int32_t)n;
        return;
    }
    const ek_model *model = b->rig.file->model;
    double bytes = (double)b->expert_bytes + (double)dense_bytes(model) * n_steps +
                   (double)(kv_tokens * ek_model_kv_bytes_per_token(&model->params));
    double gbs = read_gbs(b);
    ek_bench_add(&b->read_gbs, gbs);
    ek_bench_add(&b->rate[test], n_seqs * n_steps / seconds);
    ek_bench_add(&b->share[test], bytes / seconds * 1e-9 / gbs);
    add_energy(b, test, joules, n_seqs * n_steps);
}

static void measure(bench *b)
{
    const int32_t at_once = EK_BENCH_RIG_TOKENS / PROMPT;
    for (int32_t s = 0; s < EK_BENCH_RIG_SEQS; s += at_once)
        step(b, s, at_once, PROMPT);
    for (int32_t window = -1; window < b->n_windows; window++) { /* the first one warms up */
        measure_prefill(b, window >= 0);
        for (int32_t test = DECODE; test < TESTS; test++)
            measure_decode(b, test, window >= 0);
    }
}

static bool parse_number(const char *text, int32_t max, int32_t *out_value)
{
    char *end;
    long value = strtol(text, &end, 10);
    if (end == text || *end || value < 1 || value > max) return false;
    *out_value = (int32_t)value;
    return true;
}

static bool parse(int argc, char **argv, bench *b)
{
    for (int i = 1; i < argc; i++) {
        const char *value = i + 1 < argc ? argv[i + 1] : NULL;
        bool ok = value != NULL;
        if (strcmp(argv[i], "--json") == 0) {
            b->json = true;
            continue;
        }
        if (strcmp(argv[i], "--plain") == 0) {
            b->params.plain = true;
            continue;
        }
        if (ok && strcmp(argv[i], "--model") == 0)
            b->params.model_path = value;
        else if (ok && strcmp(argv[i], "--peer-csv") == 0)
            b->peer_path = value;
        else if (ok && strcmp(argv[i], "--threads") == 0)
            ok = parse_number(value, THREADS_MAX, &b->params.n_threads);
        else if (ok && strcmp(argv[i], "--windows") == 0)
            ok = parse_number(value, EK_BENCH_SAMPLES_MAX / TESTS, &b->n_windows);
        else
            ok = ok && strcmp(argv[i], "--kernels") == 0 &&
                 ek_kernels_choice_parse(value, &b->params.choice);
        if (!ok) return false;
        i++;
    }
    return b->params.model_path != NULL;
}

int main(int argc, char **argv)
{
    static bench b;
    ek_err err = {0};
    b.params.n_threads = ek_sys_cpu_count();
    b.n_windows = 7;
    if (!parse(argc, argv, &b)) {
        fprintf(stderr, "usage: engine --model FILE [--threads N] [--kernels K] [--windows N] "
                        "[--plain] [--json] [--peer-csv FILE]\n");
        return 64;
    }
    const ek_status status = set_up(&b, &err);
    if (status == EK_OK) {
        measure(&b);
        if (b.json)
            ek_bench_engine_print_json(&b);
        else
            ek_bench_engine_print_text(&b);
    } else {
        fprintf(stderr, "engine: %s\n", err.text);
    }
    tear_down(&b);
    return status == EK_OK ? 0 : 1;
}
