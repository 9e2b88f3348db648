/* What gates see: a model over texts, recorded and measured. */
#include <string.h>

#include "cli/calibrate.h"
#include "engine/scan.h"
#include "sys/thread.h"

#define TOKENS_DEFAULT      65536
#define RECORDING_BYTES_MAX ((uint64_t)4 << 30)

/* Where one scan puts things. */
typedef struct scanning {
    ek_cli_calibration *c;
    const ek_states_shape *shape; /* NULL: nothing is recorded */
    uint8_t *mem;
    int64_t *counts; /* NULL: this chunk is not measured */
    int32_t chunk;
} scanning;

/*
 * Of n_seen tokens exactly n are taken: they are cut into n stretches, and of each stretch one
 * token is taken, any one, lest the texts' own rhythm decides which.
 * @return the number of token i's stretch if it is the one, else -1
 */
static int64_t slot_of(const ek_states_shape *s, int64_t i)
{
    const int64_t slot = ((i + 1) * s->n_tokens - 1) / s->n_seen;
    const int64_t beg = slot * s->n_seen / s->n_tokens, end = (slot + 1) * s->n_seen / s->n_tokens;
    return i == beg + (int64_t)(ek_mix64((uint64_t)slot) % (uint64_t)(end - beg)) ? slot : -1;
}

static void record_layer(const scanning *s, const ek_scan_layer *seen)
{
    const ek_states_shape *shape = s->shape;
    const size_t d = (size_t)shape->d_model, n = (size_t)shape->n_experts;
    const int64_t first = s->c->corpus.chunks[s->chunk].first + seen->first_token;
    float *hidden = ek_tune_states_hidden_of(shape, seen->layer, s->mem);
    float *logits = ek_tune_states_logits_of(shape, seen->layer, s->mem);
    for (int32_t t = 0; t < seen->n_tokens; t++) {
        const int64_t slot = slot_of(shape, first + t);
        if (slot < 0) continue;
        memcpy(hidden + (size_t)slot * d, seen->hidden + (size_t)t * d, d * sizeof *hidden);
        memcpy(logits + (size_t)slot * n, seen->gate_logits + (size_t)t * n, n * sizeof *logits);
        ek_tune_states_chunks(shape, s->mem)[slot] = (uint32_t)s->chunk;
    }
}

static void on_layer(void *ctx, const ek_scan_layer *seen)
{
    const scanning *s = ctx;
    if (s->shape) record_layer(s, seen);
    for (int32_t e = 0; s->counts && e < seen->plan->n_experts; e++)
        s->counts[(int64_t)seen->layer * seen->plan->n_experts + e] +=
            seen->plan->expert_beg[e + 1] - seen->plan->expert_beg[e];
}

static int64_t longest_chunk(const ek_cli_corpus *corpus)
{
    int32_t most = 2;
    for (int32_t i = 0; i < corpus->n_chunks; i++)
        most = corpus->chunks[i].n_tokens > most ? corpus->chunks[i].n_tokens : most;
    return most;
}

static ek_status scan_chunks(scanning *s, ek_scan *scan, ek_cli_calibrate_measure *measure,
                             ek_err *err)
{
    ek_cli_calibration *c = s->c;
    const ek_scan_sink sink = {s, on_layer};
    for (int32_t i = 0; i < c->corpus.n_chunks; i++) {
        const ek_cli_chunk *chunk = &c->corpus.chunks[i];
        const bool measured = measure && ek_tune_held_out((uint32_t)i);
        double loss = 0;
        if (ek_cli_calibrate_interrupted(c)) return ek_err_set(err, EK_ECANCELED, "interrupted");
        if (!measured && !s->shape) continue;
        s->chunk = i;
        s->counts = measured ? measure->counts : NULL;
        const ek_status status = ek_engine_scan_run(scan, chunk->tokens, chunk->n_tokens, &sink,
                                                    measured ? &loss : NULL);
        if (status < 0)
            return ek_err_set(err, status, "cannot compute a text of %d tokens: %s",
                              chunk->n_tokens, ek_status_text(status));
        if (measured) {
            measure->loss += loss;
            measure->n_predicted += chunk->n_tokens - 1;
        }
        ek_cli_progress_say(&c->progress, (double)(i + 1) / c->corpus.n_chunks,
                            "%s: chunk %d of %d", s->shape ? "recording" : "measuring", i + 1,
                            c->corpus.n_chunks);
    }
    return EK_OK;
}

static ek_status scan(scanning *s, const ek_model_file *file, ek_cli_calibrate_measure *measure,
                      ek_err *err)
{
    ek_cli_calibration *c = s->c;
    const int64_t asked = c->options->n_threads;
    const ek_scan_params params = {
        .file = file,
        .kernels = c->options->kernels,
        .n_threads = asked > 0 ? (int32_t)asked : ek_sys_cpu_count(),
        .text_tokens = (int32_t)longest_chunk(&c->corpus),
    };
    ek_scan *engine;
    ek_status status = ek_engine_scan_open(&params, &engine, err);
    if (status < 0) return status;
    if (measure) {
        const size_t n = (size_t)c->gates.n_layers * (size_t)c->gates.n_experts;
        ek_sys_free(measure->counts);
        *measure = (ek_cli_calibrate_measure){.counts = ek_sys_calloc(n, sizeof *measure->counts)};
        if (!measure->counts) status = ek_err_set(err, EK_ENOMEM, "no memory for counts");
    }
    if (status >= 0) status = scan_chunks(s, engine, measure, err);
    c->kernels = *ek_engine_scan_kernels(engine);
    ek_engine_scan_close(engine);
    ek_cli_progress_clear(&c->progress);
    return status;
}

/* As many as make figures steady, or fit into a part of the memory that nobody will miss. */
static int64_t tokens_allowed(const ek_model_params *p)
{
    const uint64_t quarter = ek_sys_mem_available() / 4;
    const uint64_t bytes = quarter < RECORDING_BYTES_MAX ? quarter : RECORDING_BYTES_MAX;
    const uint64_t of_token = (uint64_t)p->n_layers * (uint64_t)(p->d_model + p->n_experts) * 4 + 4;
    const uint64_t n = bytes / of_token;
    return n > TOKENS_DEFAULT ? TOKENS_DEFAULT : n > 0 ? (int64_t)n : 1;
}

ek_status ek_cli_calibrate_record(ek_cli_calibration *c, const ek_model_file *file,
                                  ek_cli_calibrate_measure *measure, ek_err *err)
{
    const ek_model_params *p = &file->model->params;
    const int64_t there = c->corpus.n_tokens;
    const int64_t asked = c->options->n_tokens > 0 ? c->options->n_tokens : tokens_allowed(p);
    const ek_states_shape shape = {
        .n_tokens = (int32_t)(asked < there ? asked : there),
        .n_layers = p->n_layers,
        .n_experts = p->n_experts,
        .d_model = p->d_model,
        .top_k = p->top_k,
        .n_chunks = c->corpus.n_chunks,
        .n_seen = there,
    };
    const size_t bytes = ek_tune_states_bytes(&shape);
    if (bytes == 0 || bytes > ek_sys_mem_available() / 2)
        return ek_err_set(err, EK_ENOMEM,
                          "a recording of %d tokens takes %.1f MiB, more than half of the free "
                          "memory; ask for fewer --tokens",
                          shape.n_tokens, (double)bytes / (1 << 20));
    ek_sys_region_close(&c->states_region);
    if (ek_sys_region_open(bytes, 0, &c->states_region) < 0)
        return ek_err_set(err, EK_ENOMEM, "no memory for a recording of %zu bytes", bytes);
    ek_tune_states_begin(&shape, c->fingerprint, c->states_region.base);
    scanning s = {.c = c, .shape = &shape, .mem = c->states_region.base};
    const ek_status status = scan(&s, file, measure, err);
    if (status < 0) return status;
    return ek_tune_states_open((ek_span){c->states_region.base, bytes}, "recording", &c->states,
                               err);
}

ek_status ek_cli_calibrate_measure_run(ek_cli_calibration *c, const ek_model_file *file,
                                       ek_cli_calibrate_measure *measure, ek_err *err)
{
    scanning s = {.c = c};
    return scan(&s, file, measure, err);
}
