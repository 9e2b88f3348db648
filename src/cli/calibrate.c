/*
 * evenkeel calibrate: record what a model's gates see, look whether they are well, make them even.
 */
#include "cli/calibrate.h"

#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "cli/args.h"
#include "cli/exit.h"
#include "engine/forward.h"
#include "sys/cpu.h"
#include "sys/signal.h"

#define CHUNK_DEFAULT 512

typedef enum doing { DO_RUN, DO_RECORD, DO_INSPECT } doing;

enum {
    OPTION_MODEL,
    OPTION_TEXT,
    OPTION_STATES,
    OPTION_OUT,
    OPTION_GATE_OVERLAY,
    OPTION_METHOD,
    OPTION_TARGET,
    OPTION_RESET,
    OPTION_ROUNDS,
    OPTION_TOKENS,
    OPTION_CHUNK,
    OPTION_SEED,
    OPTION_STEPS,
    OPTION_BATCH,
    OPTION_RATE,
    OPTION_BALANCE_WEIGHT,
    OPTION_Z_WEIGHT,
    OPTION_NOISE,
    OPTION_CLIP,
    OPTION_DECAY,
    OPTION_NORM_MAX,
    OPTION_PATIENCE,
    OPTION_PASSES,
    OPTION_BIAS_RATE,
    OPTION_MEND,
    OPTION_CHECKPOINT,
    OPTION_LOG,
    OPTION_KERNELS,
    OPTION_THREADS,
    OPTION_JSON,
};

static const ek_cli_option options[] = {
    {OPTION_MODEL, "model", "PATH", "GGUF file whose gates it is about", NULL},
    {OPTION_TEXT, "text", "FILE", "text that the model reads; may be repeated", NULL},
    {OPTION_STATES, "states", "FILE", "a recording, in the place of texts", NULL},
    {OPTION_OUT, "out", "FILE", "write the recording, or the overlay, there", NULL},
    {OPTION_GATE_OVERLAY, "gate-overlay", "FILE", "begin with these gates, not the model's", NULL},
    {OPTION_METHOD, "method", "NAME", "bias, router or both (default both)", NULL},
    {OPTION_TARGET, "target", "R", "busiest/mean expert to get to (default 1.2)", NULL},
    {OPTION_RESET, "reset", "L[,L..]", "begin in these layers with gates that know nothing", NULL},
    {OPTION_ROUNDS, "rounds", "N", "record anew and go on, N in all (default 2; states: 1)", NULL},
    {OPTION_TOKENS, "tokens", "N", "tokens that are recorded (default 65536, memory allowing)",
     NULL},
    {OPTION_CHUNK, "chunk", "N", "tokens computed as one text (default 512, or the context)", NULL},
    {OPTION_SEED, "seed", "N", "of noise and shuffling (default 1)", NULL},
    {OPTION_STEPS, "steps", "N", "optimiser steps of a layer, at most (default 2000)", NULL},
    {OPTION_BATCH, "batch", "N", "tokens of a step (default 1024)", NULL},
    {OPTION_RATE, "rate", "X", "peak learning rate (default 0.01)", NULL},
    {OPTION_BALANCE_WEIGHT, "balance-weight", "X", "of the balance loss at first (default 0.1)",
     NULL},
    {OPTION_Z_WEIGHT, "z-weight", "X", "of the z-loss (default 0.0001)", NULL},
    {OPTION_NOISE, "noise", "X", "on logits at first, in their deviations (default 0.1)", NULL},
    {OPTION_CLIP, "clip", "X", "longest gradient of a step (default 1)", NULL},
    {OPTION_DECAY, "decay", "X", "of weights towards the original gate (default 0.01)", NULL},
    {OPTION_NORM_MAX, "norm-max", "X", "a longer gradient is an explosion (default 1000)", NULL},
    {OPTION_PATIENCE, "patience", "N", "looks without a nearer even gate (default 12)", NULL},
    {OPTION_PASSES, "passes", "N", "passes of the bias method, at most (default 400)", NULL},
    {OPTION_BIAS_RATE, "bias-rate", "X", "first step, in the scores' spread (default 0.02)", NULL},
    {OPTION_MEND, "mend", "X", "mend rows X times longer or shorter than most (default 3)", NULL},
    {OPTION_CHECKPOINT, "checkpoint", "FILE", "keep what is done there, and go on from it", NULL},
    {OPTION_LOG, "log", "FILE", "write a CSV line at every look", NULL},
    {OPTION_KERNELS, "kernels", "NAME", "auto, reference, avx2 or avx512 (default auto)", NULL},
    {OPTION_THREADS, "threads", "N", "threads that read texts (default: one per CPU)", NULL},
    {OPTION_JSON, "json", NULL, "print one JSON object", NULL},
};

/* ---- options ---- */

static ek_cli_calibrate_options defaults(void)
{
    ek_cli_calibrate_options o = {.kernels = EK_KERNELS_AUTO, .mend = 3};
    ek_tune_params_default(&o.tune);
    return o;
}

/* "0,3,5" @return EK_EXIT_OK, or the code of a mistake that has been said */
static int take_layers(const char *value, ek_cli_calibrate_options *o)
{
    const char *at = value;
    for (o->n_reset = 0; o->n_reset < EK_CALIBRATE_RESET_MAX;) {
        char *end;
        errno = 0;
        const long layer = strtol(at, &end, 10);
        if (end == at || errno || layer < 0 || layer > INT32_MAX) break;
        o->reset[o->n_reset++] = (int32_t)layer;
        if (*end == '\0') return EK_EXIT_OK;
        if (*end != ',') break;
        at = end + 1;
    }
    return ek_cli_fail(EK_EXIT_USAGE,
                       "calibrate: --reset is '%s'; write layers as 0,3,5, at most %d", value,
                       EK_CALIBRATE_RESET_MAX);
}

static bool take_i32(const ek_cli_args *args, int64_t min, int64_t max, int32_t *out)
{
    int64_t value;
    if (!ek_cli_args_int(args, min, max, &value)) return false;
    *out = (int32_t)value;
    return true;
}

/* Numbers. @return 1 taken, 0 a mistake that has been said, -1 it is none of these */
static int take_number(const ek_cli_args *args, int id, ek_cli_calibrate_options *o)
{
    ek_tune_params *t = &o->tune;
    int64_t seed = 0;
    switch (id) {
    case OPTION_TARGET: return ek_cli_args_number(args, 1.001, 1024, &t->target);
    case OPTION_ROUNDS: return ek_cli_args_int(args, 1, 100, &o->n_rounds);
    case OPTION_TOKENS: return ek_cli_args_int(args, 1, EK_STATES_TOKENS_MAX, &o->n_tokens);
    case OPTION_CHUNK: return ek_cli_args_int(args, EK_CORPUS_CHUNK_MIN, 1 << 20, &o->chunk_tokens);
    case OPTION_SEED:
        if (!ek_cli_args_int(args, 0, INT64_MAX, &seed)) return 0;
        t->seed = (uint64_t)seed;
        return 1;
    case OPTION_STEPS: return ek_cli_args_int(args, 1, 100000000, &t->n_steps);
    case OPTION_BATCH: return take_i32(args, 1, 1 << 20, &t->batch);
    case OPTION_RATE: return ek_cli_args_number(args, 1e-9, 1e9, &t->rate);
    case OPTION_BALANCE_WEIGHT: return ek_cli_args_number(args, 0, 1e6, &t->balance_weight);
    case OPTION_Z_WEIGHT: return ek_cli_args_number(args, 0, 1e6, &t->z_weight);
    case OPTION_NOISE: return ek_cli_args_number(args, 0, 100, &t->noise);
    case OPTION_CLIP: return ek_cli_args_number(args, 1e-9, 1e9, &t->clip);
    case OPTION_DECAY: return ek_cli_args_number(args, 0, 1e3, &t->decay);
    case OPTION_NORM_MAX: return ek_cli_args_number(args, 1e-9, 1e30, &t->guard.gradient_norm);
    case OPTION_PATIENCE: return take_i32(args, 1, INT32_MAX, &t->patience);
    case OPTION_PASSES: return take_i32(args, 1, 1000000000, &t->n_passes);
    case OPTION_BIAS_RATE: return ek_cli_args_number(args, 1e-9, 1e3, &t->bias_rate);
    case OPTION_MEND: return ek_cli_args_number(args, 1.0001, 1e30, &o->mend);
    case OPTION_THREADS: return ek_cli_args_int(args, 1, 1024, &o->n_threads);
    default: return -1;
    }
}

/* @return -1: taken; else the exit code that ends the command */
static int take_option(const ek_cli_args *args, int id, ek_cli_calibrate_options *o)
{
    switch (id) {
    case OPTION_MODEL: o->model_path = args->value; return -1;
    case OPTION_STATES: o->states_path = args->value; return -1;
    case OPTION_OUT: o->out_path = args->value; return -1;
    case OPTION_GATE_OVERLAY: o->overlay_path = args->value; return -1;
    case OPTION_CHECKPOINT: o->checkpoint_path = args->value; return -1;
    case OPTION_LOG: o->log_path = args->value; return -1;
    case OPTION_JSON: o->json = true; return -1;
    case OPTION_TEXT:
        if (o->n_texts == EK_CORPUS_FILES_MAX)
            return ek_cli_fail(EK_EXIT_USAGE, "calibrate: more than %d texts; join some",
                               EK_CORPUS_FILES_MAX);
        o->text_path[o->n_texts++] = args->value;
        return -1;
    case OPTION_RESET: return take_layers(args->value, o) == EK_EXIT_OK ? -1 : EK_EXIT_USAGE;
    case OPTION_METHOD:
        if (ek_tune_method_parse(args->value, &o->tune.method)) return -1;
        return ek_cli_fail(EK_EXIT_USAGE,
                           "calibrate: --method is '%s'; it must be bias, router or both",
                           args->value);
    case OPTION_KERNELS:
        if (ek_kernels_choice_parse(args->value, &o->kernels)) return -1;
        return ek_cli_fail(EK_EXIT_USAGE,
                           "calibrate: --kernels is '%s'; it must be auto, reference, avx2 or "
                           "avx512",
                           args->value);
    default: break;
    }
    const int taken = take_number(args, id, o);
    if (taken < 0) return ek_cli_args_exit(args, id);
    return taken ? -1 : EK_EXIT_USAGE;
}

/* What is written must not be what is read: a model above all. */
static int check_outputs(const ek_cli_calibrate_options *o)
{
    const char *written[] = {o->out_path, o->checkpoint_path, o->log_path};
    for (size_t w = 0; w < EK_COUNT_OF(written); w++) {
        if (!written[w]) continue;
        bool same = ek_sys_file_same(written[w], o->model_path) ||
                    (o->states_path && ek_sys_file_same(written[w], o->states_path)) ||
                    (o->overlay_path && ek_sys_file_same(written[w], o->overlay_path));
        for (int32_t i = 0; i < o->n_texts; i++)
            same |= ek_sys_file_same(written[w], o->text_path[i]);
        if (same)
            return ek_cli_fail(EK_EXIT_USAGE,
                               "calibrate: %s is read, too; write to a file of its own",
                               written[w]);
    }
    return EK_EXIT_OK;
}

/* What goes together. @return EK_EXIT_OK, or the code of a mistake that has been said */
static int check_options(const ek_cli_calibrate_options *o, doing what)
{
    if (!o->model_path) return ek_cli_fail(EK_EXIT_USAGE, "calibrate: --model PATH is needed");
    if (what == DO_RECORD && (o->n_texts == 0 || o->states_path))
        return ek_cli_fail(EK_EXIT_USAGE, "calibrate: record needs --text FILE, and no --states");
    if ((o->n_texts > 0) == (o->states_path != NULL))
        return ek_cli_fail(EK_EXIT_USAGE,
                           "calibrate: either --text FILE... or --states FILE is needed");
    if (what != DO_INSPECT && !o->out_path)
        return ek_cli_fail(EK_EXIT_USAGE, "calibrate: --out FILE is needed");
    const int same = check_outputs(o);
    if (same != EK_EXIT_OK) return same;
    if (o->n_reset > 0 && o->tune.method == EK_TUNE_BIAS)
        return ek_cli_fail(EK_EXIT_USAGE, "calibrate: --reset needs --method router or both, since "
                                          "biases cannot teach a gate");
    if (o->states_path && o->n_rounds > 1)
        return ek_cli_fail(EK_EXIT_USAGE, "calibrate: --rounds needs --text, since each round "
                                          "records anew");
    return EK_EXIT_OK;
}

/* ---- opening ---- */

static ek_status open_states(ek_cli_calibration *c, ek_err *err)
{
    const ek_cli_calibrate_options *o = c->options;
    const ek_model_params *p = &c->file->model->params;
    if (!o->states_path) {
        const int32_t context = p->context_tokens;
        const int32_t most = context < CHUNK_DEFAULT ? context : CHUNK_DEFAULT;
        if (o->chunk_tokens > context)
            return ek_err_set(err, EK_EINVAL, "--chunk is %lld; the model's context is %d",
                              (long long)o->chunk_tokens, context);
        return ek_cli_corpus_open(c->file->tokenizer, o->text_path, o->n_texts,
                                  o->chunk_tokens > 0 ? (int32_t)o->chunk_tokens : most, &c->corpus,
                                  err);
    }
    ek_status status = ek_sys_map_open(o->states_path, &c->states_map, err);
    if (status >= 0)
        status = ek_tune_states_open(c->states_map.bytes, o->states_path, &c->states, err);
    if (status < 0) return status;
    const ek_states_shape *s = &c->states.shape;
    if (strcmp(c->states.model, c->fingerprint) != 0 || s->n_layers != p->n_layers ||
        s->n_experts != p->n_experts || s->d_model != p->d_model || s->top_k != p->top_k)
        return ek_err_set(err, EK_EINVAL,
                          "%s: was recorded from another model (fingerprint %.12s, this one has "
                          "%.12s); record it from this one",
                          o->states_path, c->states.model, c->fingerprint);
    return EK_OK;
}

static ek_status open_layers(ek_cli_calibration *c, ek_err *err)
{
    const size_t n_layers = (size_t)c->gates.n_layers;
    const size_t n_rows = n_layers * (size_t)c->gates.n_experts;
    const size_t bytes =
        n_layers * sizeof *c->layers + 2 * n_rows * sizeof(double) + 4 * (size_t)EK_CACHE_LINE;
    if (ek_sys_region_open(bytes, 0, &c->layers_region) < 0)
        return ek_err_set(err, EK_ENOMEM, "no memory for the layers' results");
    ek_arena arena = ek_sys_region_arena(&c->layers_region);
    c->layers = ek_new(&arena, ek_cli_calibrate_layer, n_layers);
    c->variance_before = ek_new(&arena, double, n_rows);
    c->variance_after = ek_new(&arena, double, n_rows);
    for (int32_t i = 0; i < c->options->n_reset; i++)
        if (c->options->reset[i] >= c->gates.n_layers)
            return ek_err_set(err, EK_EINVAL, "--reset names layer %d; the model has 0..%d",
                              c->options->reset[i], c->gates.n_layers - 1);
    return EK_OK;
}

/*
 * OpenBLAS starts its threads when it is loaded, and they take signals that are meant for us. One
 * thread is none of its own, and sums have one order then: a seed repeats a run.
 */
static ek_status load_blas(ek_cli_calibration *c, ek_err *err)
{
    ek_sys_environment_default("OPENBLAS_NUM_THREADS", "1");
    if (ek_sys_library_open("libopenblas.so.0", &c->blas, NULL) >= 0)
        c->gemm = (ek_gemm_fn)ek_sys_library_function(&c->blas, "cblas_dgemm");
    if (c->gemm) return EK_OK;
    return ek_err_set(err, EK_EUNSUPPORTED,
                      "calibrate needs OpenBLAS, which is not here: install libopenblas0");
}

ek_status ek_cli_calibrate_open(const ek_cli_calibrate_options *o, ek_cli_calibration *c,
                                ek_err *err)
{
    *c = (ek_cli_calibration){.options = o, .progress = ek_cli_progress_start()};
    ek_status status = load_blas(c, err);
    if (status >= 0) status = ek_expert_model_open(o->model_path, NULL, &c->file, err);
    if (status < 0) return status;
    if (ek_expert_model_fingerprint(c->file, c->fingerprint) < 0)
        return ek_err_set(err, EK_ENOMEM, "no memory for the model's fingerprint");
    if (o->overlay_path) status = ek_expert_model_overlay(c->file, o->overlay_path, err);
    if (status >= 0) status = ek_kernels_select(o->kernels, ek_sys_cpu_flags(), &c->kernels);
    if (status == EK_EUNSUPPORTED && err->status == EK_OK)
        ek_err_set(err, status, "the kernels asked for do not run on this processor");
    c->gate = ek_engine_gate_of(&c->file->model->params);
    if (status >= 0) status = open_states(c, err);
    if (status >= 0) status = ek_cli_calibrate_gates_open(c->file->model, &c->gates, err);
    if (status >= 0) status = open_layers(c, err);
    if (status < 0 || !o->log_path) return status;
    c->log = fopen(o->log_path, "w");
    if (!c->log) return ek_err_set(err, EK_EIO, "%s: %s", o->log_path, strerror(errno));
    ek_cli_calibrate_log_head(c->log);
    return EK_OK;
}

void ek_cli_calibrate_close(ek_cli_calibration *c)
{
    if (c->log) fclose(c->log);
    ek_sys_free(c->before.counts);
    ek_sys_free(c->after.counts);
    ek_sys_region_close(&c->layers_region);
    ek_sys_region_close(&c->gates.region);
    ek_sys_region_close(&c->states_region);
    ek_sys_map_close(&c->states_map);
    ek_cli_corpus_close(&c->corpus);
    ek_expert_model_close(c->file);
    ek_sys_library_close(&c->blas);
}

bool ek_cli_calibrate_interrupted(ek_cli_calibration *c)
{
    const int number = ek_sys_signal_wait(0);
    if (number == SIGINT || number == SIGTERM || number == SIGQUIT) c->signal = number;
    return c->signal != 0;
}

/* ---- doing ---- */

static int record(ek_cli_calibration *c)
{
    ek_err err = {0};
    ek_status status = ek_cli_calibrate_record(c, c->file, NULL, &err);
    if (c->signal) return ek_cli_fail(EK_EXIT_INTERRUPTED, "interrupted; nothing was written");
    const ek_states_shape *s = &c->states.shape;
    const size_t bytes = status < 0 ? 0 : ek_tune_states_bytes(s);
    if (status >= 0)
        status =
            ek_sys_file_write(c->options->out_path, (ek_span){c->states_region.base, bytes}, &err);
    if (status < 0) return ek_cli_fail_err(&err);
    printf("%s: %d of %lld tokens, %d layers, %d chunks, %.1f MiB\n", c->options->out_path,
           s->n_tokens, (long long)s->n_seen, s->n_layers, s->n_chunks, (double)bytes / (1 << 20));
    return EK_EXIT_OK;
}

static int run(int argc, char **argv)
{
    ek_cli_calibrate_options o = defaults();
    doing what = DO_RUN;
    ek_cli_args args = ek_cli_args_start(&ek_cli_calibrate, argc, argv);
    for (int id; (id = ek_cli_args_next(&args)) != EK_CLI_ARGS_END;) {
        if (id == EK_CLI_ARGS_OPERAND && what == DO_RUN && strcmp(args.value, "record") == 0) {
            what = DO_RECORD;
            continue;
        }
        if (id == EK_CLI_ARGS_OPERAND && what == DO_RUN && strcmp(args.value, "inspect") == 0) {
            what = DO_INSPECT;
            continue;
        }
        const int code = take_option(&args, id, &o);
        if (code >= 0) return code;
    }
    const int wrong = check_options(&o, what);
    if (wrong != EK_EXIT_OK) return wrong;
    if (o.n_rounds == 0) o.n_rounds = o.states_path ? 1 : 2;
    if (ek_sys_signal_block() < 0) return ek_cli_fail(EK_EXIT_FAILURE, "cannot wait for signals");

    ek_cli_calibration c;
    ek_err err = {0};
    int code;
    if (ek_cli_calibrate_open(&o, &c, &err) < 0)
        code = ek_cli_fail_err(&err);
    else if (what == DO_RECORD)
        code = record(&c);
    else
        code = what == DO_INSPECT ? ek_cli_calibrate_inspect(&c) : ek_cli_calibrate_run(&c);
    ek_cli_calibrate_close(&c);
    return code;
}

const ek_cli_command ek_cli_calibrate = {
    .name = "calibrate",
    .operands = "[record|inspect]",
    .summary = "make a model's gates choose experts evenly",
    .about =
        "Reads texts with the model and adjusts its gates until experts are used evenly, keeping\n"
        "to the choices that the gates make now. What comes of it is an overlay for\n"
        "serve --gate-overlay; the model's file is not touched. record only writes what the gates\n"
        "see; inspect says whether they are well, and exits with 1 when they are not.",
    .options = options,
    .n_options = EK_COUNT_OF(options),
    .run = run,
};
