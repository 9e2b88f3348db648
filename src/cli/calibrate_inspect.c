/* evenkeel calibrate inspect: are a model's gates well? Recorded choices before the detectors. */
#include <jansson.h>
#include <stdlib.h>

#include "cli/calibrate.h"
#include "cli/exit.h"
#include "route/gate.h"
#include "telemetry/detect.h"
#include "tune/figures.h"

#define N_WINDOWS  8 /* that a recording is cut into */
#define ALERTS_MAX 64

typedef struct inspection {
    ek_cli_calibration *c;
    int64_t *counts; /* (N_WINDOWS, n_layers, n_experts) token-slots */
    ek_alert alert[ALERTS_MAX];
    int32_t n_alerts;
    ek_sys_region region; /* owned */
} inspection;

/* The choices that the recorded logits lead to, window by window; chunks take turns. */
static ek_status count(inspection *in, ek_arena *arena)
{
    const ek_cli_calibration *c = in->c;
    const ek_states_shape *s = &c->states.shape;
    ek_gate_scratch scratch;
    int32_t *ids = ek_try_new(arena, int32_t, s->top_k);
    float *weight = ek_try_new(arena, float, s->top_k);
    if (!ids || !weight || !ek_tune_gate_scratch(&c->gate, arena, &scratch)) return EK_ENOMEM;
    for (int32_t l = 0; l < s->n_layers; l++) {
        const float *logits = ek_tune_states_logits(&c->states, l);
        const float *bias =
            c->gates.has_bias[l] ? c->gates.found_bias + (int64_t)l * s->n_experts : NULL;
        for (int32_t t = 0; t < s->n_tokens; t++) {
            /* Each window has some of every text: what differs between texts is no alarm. */
            const int64_t window = c->states.chunk[t] % N_WINDOWS;
            int64_t *row = in->counts + (window * s->n_layers + l) * s->n_experts;
            ek_route_gate_choose(&c->gate, logits + (int64_t)t * s->n_experts, bias, &scratch, ids,
                                 weight);
            for (int32_t k = 0; k < s->top_k; k++)
                row[ids[k]]++;
        }
    }
    return EK_OK;
}

/* The windows one after the other, as if a second each; what is raised in the end counts. */
static ek_status detect(inspection *in, ek_arena *arena)
{
    const ek_states_shape *s = &in->c->states.shape;
    ek_detect_params params;
    ek_detect *detect;
    ek_telemetry_detect_params_default(&params);
    ek_status status =
        ek_telemetry_detect_create(&params, s->n_layers, s->n_experts, s->top_k, arena, &detect);
    if (status < 0) return status;
    for (int32_t w = 0; w < N_WINDOWS; w++) {
        ek_alert changes[ALERTS_MAX];
        const ek_detect_window window = {
            .end_us = (int64_t)(w + 1) * 1000000,
            .tokens = in->counts + (int64_t)w * s->n_layers * s->n_experts,
            .view_age_us = -1,
        };
        ek_telemetry_detect_step(detect, &window, changes, ALERTS_MAX);
    }
    for (int kind = EK_DETECT_CONSTANT_GATE; kind < EK_DETECT_N_KINDS; kind++)
        for (int32_t l = 0; l < s->n_layers && in->n_alerts < ALERTS_MAX; l++)
            in->n_alerts +=
                ek_telemetry_detect_get(detect, (ek_detect_kind)kind, l, &in->alert[in->n_alerts]);
    return EK_OK;
}

typedef struct layer_look {
    ek_gate_figures figures;
    int32_t n_odd; /* rows of the gate that are far longer or shorter than the others */
    int32_t odd[EK_CALIBRATE_MENDED_MAX]; /* the first of them */
} layer_look;

/* A layer's figures with the gate as it is, on the states that are kept back. */
static ek_status look(const ek_cli_calibration *c, int32_t layer, layer_look *out, ek_err *err)
{
    ek_gate_problem p;
    const ek_cli_calibrate_gates *g = &c->gates;
    const int64_t at = (int64_t)layer * g->n_experts;
    ek_gate_problem widest = {.gate = c->gate, .d_model = g->d_model};
    ek_sys_region region;
    const size_t bytes =
        ek_tune_problem_bytes(&c->states.shape) + ek_tune_figures_bytes(&widest) + EK_CACHE_LINE;
    if (ek_sys_region_open(bytes, 0, &region) < 0)
        return ek_err_set(err, EK_ENOMEM, "no memory to look at layer %d", layer);
    ek_arena arena = ek_sys_region_arena(&region);
    const ek_gate_setup setup = ek_cli_calibrate_setup(c, layer);
    ek_status status = ek_tune_problem_make(&c->states, layer, &setup, &arena, &p);
    const ek_gate_weights gate = {g->weight + at * g->d_model,
                                  g->has_bias[layer] ? g->bias + at : NULL};
    if (status >= 0) status = ek_tune_figures(&p, &gate, true, arena, NULL, &out->figures);
    out->n_odd = status >= 0 ? p.n_mended : 0;
    for (int32_t i = 0; i < out->n_odd && i < EK_CALIBRATE_MENDED_MAX; i++)
        out->odd[i] = p.mended[i];
    ek_sys_region_close(&region);
    if (status == EK_EINVAL)
        return ek_err_set(err, EK_ERANGE,
                          "fewer than 5 chunks of text; give more, or a shorter "
                          "--chunk");
    return status < 0 ? ek_err_set(err, status, "no memory to look at layer %d", layer) : EK_OK;
}

static int32_t suspects(const inspection *in, int32_t layer, const layer_look *seen)
{
    int32_t n = seen->n_odd;
    for (int32_t i = 0; i < in->n_alerts; i++)
        n += in->alert[i].layer == layer;
    return n;
}

static json_t *alerts_json(const inspection *in)
{
    json_t *array = json_array();
    for (int32_t i = 0; i < in->n_alerts; i++) {
        const ek_alert *a = &in->alert[i];
        json_array_append_new(array,
                              json_pack("{s:s, s:i, s:i, s:f, s:f, s:s, s:s}", "kind",
                                        ek_telemetry_detect_name(a->kind), "layer", a->layer,
                                        "expert", a->expert, "value", a->value, "limit", a->limit,
                                        "evidence", a->evidence, "next_step", a->next_step));
    }
    return array;
}

static json_t *layer_json(int32_t l, const layer_look *seen)
{
    const ek_gate_figures *f = &seen->figures;
    json_t *odd = json_array();
    for (int32_t i = 0; i < seen->n_odd && i < EK_CALIBRATE_MENDED_MAX; i++)
        json_array_append_new(odd, json_integer(seen->odd[i]));
    return json_pack("{s:i, s:f, s:f, s:f, s:i, s:f, s:f, s:i, s:f, s:f, s:o}", "layer", l,
                     "max_over_mean", f->balance.max_over_mean, "cv", f->balance.cv, "effective",
                     f->balance.effective, "zero_hit", f->balance.n_zero, "mass_top1", f->mass_top1,
                     "mass_effective", f->mass_effective, "mass_hottest", f->mass_hottest,
                     "collapse", f->collapse, "constant", f->constant, "odd_rows", odd);
}

static void print_head(void)
{
    printf("%5s %8s %6s %9s %8s %10s %14s %9s\n", "layer", "max/mean", "cv", "effective",
           "zero-hit", "odd rows", "most probable", "has");
}

static void print_layer(int32_t l, const layer_look *seen)
{
    const ek_gate_figures *f = &seen->figures;
    printf("%5d %8.2f %6.2f %9.1f %8d %10d %14d %8.1f%%\n", l, f->balance.max_over_mean,
           f->balance.cv, f->balance.effective, f->balance.n_zero, seen->n_odd, f->mass_hottest,
           100 * f->mass_top1);
}

static void print_findings(const inspection *in, const layer_look *seen, int32_t n_suspects)
{
    const ek_cli_calibration *c = in->c;
    for (int32_t i = 0; i < in->n_alerts; i++)
        printf("%s: %s\n", ek_telemetry_detect_name(in->alert[i].kind), in->alert[i].evidence);
    for (int32_t l = 0; l < c->gates.n_layers; l++)
        for (int32_t i = 0; i < seen[l].n_odd && i < EK_CALIBRATE_MENDED_MAX; i++)
            printf("odd_row: layer %d: the gate's row of expert %d is more than %g times longer or "
                   "shorter than the median\n",
                   l, seen[l].odd[i], c->options->mend);
    puts(n_suspects == 0 ? "nothing is wrong with these gates"
                         : "evenkeel calibrate repairs gates");
}

static void print_json(const inspection *in, const layer_look *seen, bool well)
{
    const ek_cli_calibration *c = in->c;
    json_t *layers = json_array();
    for (int32_t l = 0; l < c->gates.n_layers; l++)
        json_array_append_new(layers, layer_json(l, &seen[l]));
    json_t *root = json_pack("{s:s, s:b, s:o, s:o}", "model", c->options->model_path, "well", well,
                             "layers", layers, "alerts", alerts_json(in));
    json_dumpf(root, stdout, JSON_COMPACT);
    putchar('\n');
    json_decref(root);
}

static int report(const inspection *in)
{
    const ek_cli_calibration *c = in->c;
    ek_err err = {0};
    ek_status status = EK_ENOMEM;
    int32_t n_suspects = 0;
    layer_look *seen = ek_sys_calloc((size_t)c->gates.n_layers, sizeof *seen);
    if (seen) status = EK_OK;
    for (int32_t l = 0; l < c->gates.n_layers && status >= 0; l++) {
        status = look(c, l, &seen[l], &err);
        n_suspects += suspects(in, l, &seen[l]);
    }
    int code = n_suspects == 0 ? EK_EXIT_OK : EK_EXIT_FAILURE;
    if (status < 0) {
        code = ek_cli_fail_err(&err);
    } else if (c->options->json) {
        print_json(in, seen, n_suspects == 0);
    } else {
        print_head();
        for (int32_t l = 0; l < c->gates.n_layers; l++)
            print_layer(l, &seen[l]);
        print_findings(in, seen, n_suspects);
    }
    ek_sys_free(seen);
    return code;
}

int ek_cli_calibrate_inspect(ek_cli_calibration *c)
{
    ek_err err = {0};
    inspection in = {.c = c};
    if (c->corpus.n_chunks > 0 && ek_cli_calibrate_record(c, c->file, NULL, &err) < 0)
        return c->signal ? ek_cli_fail(EK_EXIT_INTERRUPTED, "interrupted") : ek_cli_fail_err(&err);
    const ek_states_shape *s = &c->states.shape;
    const size_t cells = (size_t)N_WINDOWS * (size_t)s->n_layers * (size_t)s->n_experts;
    ek_detect_params params;
    ek_telemetry_detect_params_default(&params);
    const size_t bytes = cells * sizeof(int64_t) +
                         ek_telemetry_detect_bytes(&params, s->n_layers, s->n_experts) +
                         (size_t)64 * (size_t)s->n_experts + (size_t)(1 << 16);
    ek_status status = ek_sys_region_open(bytes, 0, &in.region);
    if (status >= 0) {
        ek_arena arena = ek_sys_region_arena(&in.region);
        in.counts = ek_new(&arena, int64_t, cells);
        status = count(&in, &arena);
        if (status >= 0) status = detect(&in, &arena);
    }
    const int code =
        status < 0 ? ek_cli_fail(EK_EXIT_MEMORY, "no memory to look at the gates") : report(&in);
    ek_sys_region_close(&in.region);
    return code;
}
