/* The calibration itself: rounds over recordings, in each round layer by layer. */
#include <string.h>

#include "cli/calibrate.h"
#include "cli/exit.h"
#include "expert/variance.h"
#include "sys/clock.h"

#define SAVE_EVERY_US 20000000

/* A layer under way: what it is made of lives as long as it. */
typedef struct layer_work {
    ek_sys_region region; /* owned */
    ek_gate_problem problem;
    ek_tuner *tuner;
    int32_t layer;
} layer_work;

static bool is_reset(const ek_cli_calibration *c, int32_t layer)
{
    bool found = false;
    for (int32_t i = 0; i < c->options->n_reset && c->round == 0; i++)
        found |= c->options->reset[i] == layer;
    return found;
}

static ek_tune_params params_of(const ek_cli_calibration *c, int32_t layer)
{
    ek_tune_params params = c->options->tune;
    params.reset = is_reset(c, layer);
    params.seed = ek_mix64(params.seed ^ (uint64_t)layer << 32 ^ (uint64_t)c->round << 48);
    return params;
}

static ek_status make_problem(ek_cli_calibration *c, int32_t layer, ek_arena *arena,
                              ek_gate_problem *out, ek_err *err)
{
    const ek_cli_calibrate_gates *g = &c->gates;
    const int64_t at = (int64_t)layer * g->n_experts;
    const ek_gate_setup setup = ek_cli_calibrate_setup(c, layer);
    const ek_status status = ek_tune_problem_make(&c->states, layer, &setup, arena, out);
    if (status == EK_EINVAL)
        return ek_err_set(err, EK_ERANGE,
                          "the texts have %d chunks; at least 5 are needed, since every fifth is "
                          "kept back to judge by: give more text, or a shorter --chunk",
                          c->states.shape.n_chunks);
    if (status < 0) return ek_err_set(err, status, "no memory for the states of layer %d", layer);
    if (c->round == 0) return EK_OK;
    out->begin_weight = g->weight + at * g->d_model;
    if (g->uses_bias[layer]) out->begin_bias = g->bias + at;
    return EK_OK;
}

static ek_status begin_layer(ek_cli_calibration *c, layer_work *w,
                             const ek_cli_calibrate_saved *saved, ek_err *err)
{
    /* The tuner's need is known with the problem: reserve for both, touch what is used. */
    const ek_tune_params params = params_of(c, w->layer);
    const ek_gate_problem widest = {
        .gate = c->gate, .d_model = c->gates.d_model, .n_train = c->states.shape.n_tokens};
    const size_t ids = (size_t)c->states.shape.n_tokens * (size_t)c->gate.top_k * sizeof(int32_t);
    const size_t bytes = ek_tune_problem_bytes(&c->states.shape) +
                         ek_tune_tuner_bytes(&widest, &params) + ids +
                         ek_tune_figures_bytes(&widest) + ek_expert_variance_bytes(c->file->model) +
                         (size_t)(1 << 20);
    if (ek_sys_region_open(bytes, 0, &w->region) < 0)
        return ek_err_set(err, EK_ENOMEM, "no memory for %zu bytes to calibrate a layer", bytes);
    ek_arena arena = ek_sys_region_arena(&w->region);
    ek_status status = make_problem(c, w->layer, &arena, &w->problem, err);
    if (status >= 0) status = ek_tune_tuner_create(&w->problem, &params, &arena, &w->tuner, err);
    if (status < 0) return status;
    if (saved->tuner) {
        if (saved->tuner_bytes != ek_tune_tuner_state_bytes(w->tuner))
            return ek_err_set(err, EK_EFORMAT, "%s: is damaged; remove it to begin again",
                              c->options->checkpoint_path);
        ek_tune_tuner_load(w->tuner, saved->tuner);
    }
    return EK_OK;
}

static void show(ek_cli_calibration *c, const layer_work *w)
{
    const ek_tune_report *r = ek_tune_tuner_report(w->tuner);
    const int32_t n = c->gates.n_layers;
    const double along = r->n_planned > 0 ? (double)r->n_done / (double)r->n_planned : 1;
    const double done = (double)c->round * n + w->layer + along;
    ek_cli_progress_say(&c->progress, done / (double)(c->options->n_rounds * n),
                        "round %d, layer %d, %s %lld: max/mean %.2f, KL %.4f, gradient %.3g",
                        (int)c->round + 1, w->layer, r->in_bias ? "pass" : "step",
                        (long long)r->n_done, r->now.balance.max_over_mean, r->now.kl,
                        r->gradient_norm);
}

static ek_status tune(ek_cli_calibration *c, const layer_work *w, ek_err *err)
{
    int64_t saved_us = ek_sys_now_us();
    ek_status status = EK_AGAIN;
    while (status == EK_AGAIN) {
        status = ek_tune_tuner_run(w->tuner);
        if (c->log) ek_cli_calibrate_log_look(c, w->layer, ek_tune_tuner_report(w->tuner));
        show(c, w);
        const bool stop = ek_cli_calibrate_interrupted(c);
        if (!stop && ek_sys_now_us() - saved_us < SAVE_EVERY_US) continue;
        saved_us = ek_sys_now_us();
        const ek_status written = ek_cli_calibrate_save(c, w->layer, w->tuner, err);
        if (written < 0) return written;
        if (stop) return ek_err_set(err, EK_ECANCELED, "interrupted");
    }
    return EK_OK;
}

/* Variance of each expert's outputs under a gate's choices. */
static ek_status look_at_outputs(const ek_cli_calibration *c, const layer_work *w,
                                 const ek_gate_weights *gate, double *out)
{
    const ek_gate_problem *p = &w->problem;
    const size_t n_ids = (size_t)p->n_held * (size_t)p->gate.top_k;
    ek_sys_region region;
    ek_gate_figures figures;
    const size_t bytes = n_ids * sizeof(int32_t) + ek_tune_figures_bytes(p) +
                         ek_expert_variance_bytes(c->file->model) + 4 * (size_t)EK_CACHE_LINE;
    if (ek_sys_region_open(bytes, 0, &region) < 0) return EK_ENOMEM;
    ek_arena arena = ek_sys_region_arena(&region);
    int32_t *ids = ek_new(&arena, int32_t, n_ids);
    ek_status status = ek_tune_figures(p, gate, true, arena, ids, &figures);
    if (status >= 0)
        status = ek_expert_variance(c->file->model, &c->kernels, w->layer, p->held, p->n_held, ids,
                                    arena, out);
    ek_sys_region_close(&region);
    return status;
}

static void keep_gate(ek_cli_calibration *c, const layer_work *w, const ek_gate_weights *best)
{
    ek_cli_calibrate_gates *g = &c->gates;
    const int64_t at = (int64_t)w->layer * g->n_experts;
    bool any = false;
    memcpy(g->weight + at * g->d_model, best->weight,
           (size_t)g->n_experts * (size_t)g->d_model * sizeof(double));
    for (int32_t e = 0; e < g->n_experts; e++) {
        g->bias[at + e] = best->bias ? best->bias[e] : 0;
        any |= g->bias[at + e] != 0;
    }
    /* A bias of zeros would only make choosing slower. */
    g->uses_bias[w->layer] = any;
}

static ek_status finish_layer(ek_cli_calibration *c, const layer_work *w, ek_err *err)
{
    const ek_gate_problem *p = &w->problem;
    const ek_tune_report *r = ek_tune_tuner_report(w->tuner);
    ek_cli_calibrate_layer *layer = &c->layers[w->layer];
    const int64_t at = (int64_t)w->layer * c->gates.n_experts;
    const ek_gate_weights best = ek_tune_tuner_best(w->tuner);
    ek_status status = EK_OK;
    if (c->round == 0) {
        layer->before = r->start;
        layer->n_mended = p->n_mended;
        for (int32_t i = 0; i < p->n_mended && i < EK_CALIBRATE_MENDED_MAX; i++)
            layer->mended[i] = p->mended[i];
        /* Until here the gates are those that were found. */
        const ek_gate_weights found = {c->gates.weight + at * c->gates.d_model,
                                       c->gates.has_bias[w->layer] ? c->gates.bias + at : NULL};
        status = look_at_outputs(c, w, &found, c->variance_before + at);
    }
    layer->report = *r;
    layer->after = r->best;
    if (r->gradient_norm_max > layer->gradient_norm_max)
        layer->gradient_norm_max = r->gradient_norm_max;
    if (status >= 0) status = look_at_outputs(c, w, &best, c->variance_after + at);
    if (status < 0) return ek_err_set(err, status, "no memory to look at layer %d", w->layer);
    keep_gate(c, w, &best);
    return EK_OK;
}

static ek_status run_layer(ek_cli_calibration *c, int32_t layer,
                           const ek_cli_calibrate_saved *saved, ek_err *err)
{
    layer_work w = {.layer = layer};
    ek_status status = begin_layer(c, &w, saved, err);
    if (status >= 0) status = tune(c, &w, err);
    if (status >= 0) status = finish_layer(c, &w, err);
    ek_sys_region_close(&w.region);
    if (status >= 0) status = ek_cli_calibrate_save(c, layer + 1, NULL, err);
    return status;
}

/* The model with the gates as they are now, read back from where they were written. */
static ek_status open_result(const ek_cli_calibration *c, ek_model_file **out_file, ek_err *err)
{
    ek_model_file *file;
    ek_status status = ek_expert_model_open(c->options->model_path, NULL, &file, err);
    if (status < 0) return status;
    status = ek_expert_model_overlay(file, c->options->out_path, err);
    if (status < 0)
        ek_expert_model_close(file);
    else
        *out_file = file;
    return status;
}

static ek_status record_round(ek_cli_calibration *c, bool resumed, ek_err *err)
{
    if (c->corpus.n_chunks == 0) return EK_OK; /* the states are from a file */
    if (c->round == 0) return ek_cli_calibrate_record(c, c->file, &c->before, err);
    ek_model_file *file;
    ek_status status = resumed ? ek_cli_calibrate_measure_run(c, c->file, &c->before, err) : EK_OK;
    if (status >= 0) status = open_result(c, &file, err);
    if (status < 0) return status;
    status = ek_cli_calibrate_record(c, file, NULL, err);
    ek_expert_model_close(file);
    return status;
}

static ek_status run_rounds(ek_cli_calibration *c, const ek_cli_calibrate_saved *saved, ek_err *err)
{
    const ek_cli_calibrate_saved none = {0};
    ek_status status = EK_OK;
    int32_t layer = saved->layer;
    bool resumed = saved->bytes.data != NULL;
    const uint8_t *tuner = saved->tuner;
    for (; c->round < c->options->n_rounds && status >= 0; c->round++, layer = 0) {
        status = record_round(c, resumed, err);
        for (; layer < c->gates.n_layers && status >= 0; layer++) {
            status = run_layer(c, layer, tuner ? saved : &none, err);
            tuner = NULL;
        }
        if (status >= 0) status = ek_cli_calibrate_gates_write(c, c->options->out_path, err);
        resumed = false;
        if (status < 0) break;
    }
    return status;
}

static ek_status measure_result(ek_cli_calibration *c, ek_err *err)
{
    ek_model_file *file;
    if (c->corpus.n_chunks == 0) return EK_OK;
    ek_status status = open_result(c, &file, err);
    if (status < 0) return status;
    status = ek_cli_calibrate_measure_run(c, file, &c->after, err);
    ek_expert_model_close(file);
    c->measured = status >= 0;
    return status;
}

/* What went wrong in layers, one line each. */
static int troubles(const ek_cli_calibration *c)
{
    int code = EK_EXIT_OK;
    for (int32_t l = 0; l < c->gates.n_layers; l++) {
        const ek_tune_report *r = &c->layers[l].report;
        if (r->end == EK_TUNE_EXPLODED || r->end == EK_TUNE_COLLAPSED)
            code = ek_cli_fail(EK_EXIT_FAILURE,
                               "layer %d: %s; the overlay has its last good gate from before", l,
                               r->why);
    }
    return code;
}

int ek_cli_calibrate_run(ek_cli_calibration *c)
{
    ek_err err = {0};
    ek_cli_calibrate_saved saved;
    ek_status status = ek_cli_calibrate_restore(c, &saved, &err);
    if (status < 0) return ek_cli_fail_err(&err);
    status = run_rounds(c, &saved, &err);
    ek_sys_free((void *)saved.bytes.data);
    if (status >= 0) status = measure_result(c, &err);
    ek_cli_progress_clear(&c->progress);
    if (c->signal != 0)
        return ek_cli_fail(EK_EXIT_INTERRUPTED, "interrupted; %s",
                           c->options->checkpoint_path ? "the same command goes on from there"
                                                       : "nothing was kept (--checkpoint FILE)");
    if (status < 0) return ek_cli_fail_err(&err);
    if (c->options->json)
        ek_cli_calibrate_print_json(c);
    else
        ek_cli_calibrate_print(c);
    return troubles(c);
}
