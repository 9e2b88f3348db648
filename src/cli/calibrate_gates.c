/* All layers' gates in memory, and out as an overlay. */
#include <string.h>

#include "cli/calibrate.h"
#include "model/gguf_write.h"
#include "quant/convert.h"

static void rows_to_f32(const ek_tensor *t, float *out)
{
    const size_t row_bytes = ek_quant_row_bytes(t->type, t->dim[0]);
    for (int64_t r = 0; r < t->dim[1]; r++)
        ek_quant_row_to_f32(t->type, (const uint8_t *)t->data + (size_t)r * row_bytes, t->dim[0],
                            out + r * t->dim[0]);
}

ek_status ek_cli_calibrate_gates_open(const ek_model *model, ek_cli_calibrate_gates *out_gates,
                                      ek_err *err)
{
    const ek_model_params *p = &model->params;
    const size_t n_layers = (size_t)p->n_layers, n_rows = n_layers * (size_t)p->n_experts;
    const size_t n = n_rows * (size_t)p->d_model;
    ek_cli_calibrate_gates g = {
        .n_layers = p->n_layers, .n_experts = p->n_experts, .d_model = p->d_model};
    const size_t bytes = (n + n_rows) * (sizeof(float) + sizeof(double)) +
                         2 * n_layers * sizeof(bool) + 8 * (size_t)EK_CACHE_LINE;
    if (ek_sys_region_open(bytes, 0, &g.region) < 0)
        return ek_err_set(err, EK_ENOMEM, "no memory for %zu bytes of gates", bytes);
    ek_arena arena = ek_sys_region_arena(&g.region);
    g.found = ek_new(&arena, float, n);
    g.found_bias = ek_new(&arena, float, n_rows);
    g.weight = ek_new(&arena, double, n);
    g.bias = ek_new(&arena, double, n_rows);
    g.has_bias = ek_new(&arena, bool, n_layers);
    g.uses_bias = ek_new(&arena, bool, n_layers);
    const size_t per_layer = (size_t)p->n_experts * (size_t)p->d_model;
    for (size_t l = 0; l < n_layers; l++) {
        rows_to_f32(model->layers[l].gate, g.found + l * per_layer);
        const ek_tensor *bias = model->layers[l].gate_bias;
        if (bias) rows_to_f32(bias, g.found_bias + l * (size_t)p->n_experts);
        g.has_bias[l] = g.uses_bias[l] = bias != NULL;
    }
    for (size_t i = 0; i < n; i++)
        g.weight[i] = (double)g.found[i];
    for (size_t i = 0; i < n_rows; i++)
        g.bias[i] = (double)g.found_bias[i];
    *out_gates = g;
    return EK_OK;
}

ek_gate_setup ek_cli_calibrate_setup(const ek_cli_calibration *c, int32_t layer)
{
    const ek_cli_calibrate_gates *g = &c->gates;
    const int64_t at = (int64_t)layer * g->n_experts;
    return (ek_gate_setup){
        .gemm = c->gemm,
        .gate = c->gate,
        .weight = g->found + at * g->d_model,
        .bias = g->has_bias[layer] ? g->found_bias + at : NULL,
        .mend = c->options->mend,
    };
}

/* The numbers as floats, and a tensor for each gate and bias. */
static int32_t describe(const ek_cli_calibration *c, float *numbers, ek_gguf_out_tensor *tensors)
{
    const ek_cli_calibrate_gates *g = &c->gates;
    const int64_t n_experts = g->n_experts, per_layer = n_experts * g->d_model;
    float *bias = numbers + g->n_layers * per_layer;
    int32_t n = 0;
    for (int64_t i = 0; i < g->n_layers * per_layer; i++)
        numbers[i] = (float)g->weight[i];
    for (int64_t i = 0; i < g->n_layers * n_experts; i++)
        bias[i] = (float)g->bias[i];
    for (int32_t l = 0; l < g->n_layers; l++) {
        ek_gguf_out_tensor *gate = &tensors[n++];
        snprintf(gate->name, sizeof gate->name, "blk.%d.ffn_gate_inp.weight", l);
        gate->dim[0] = g->d_model;
        gate->dim[1] = n_experts;
        gate->data = numbers + l * per_layer;
        if (!g->uses_bias[l]) continue;
        ek_gguf_out_tensor *b = &tensors[n++];
        snprintf(b->name, sizeof b->name, "blk.%d.exp_probs_b.bias", l);
        b->dim[0] = n_experts;
        b->data = bias + l * n_experts;
    }
    return n;
}

ek_status ek_cli_calibrate_gates_write(const ek_cli_calibration *c, const char *path, ek_err *err)
{
    const ek_cli_calibrate_gates *g = &c->gates;
    const ek_str name = c->file->model->params.name;
    char base_name[128];
    snprintf(base_name, sizeof base_name, "%.*s", EK_STR_ARG(name));
    const ek_gguf_out_pair pairs[] = {
        {.key = "general.architecture", .text = EK_OVERLAY_ARCH},
        {.key = "evenkeel.overlay.version", .number = EK_OVERLAY_VERSION},
        {.key = "evenkeel.overlay.base_sha256", .text = c->fingerprint},
        {.key = "evenkeel.overlay.base_name", .text = base_name},
        {.key = "evenkeel.overlay.method", .text = ek_tune_method_name(c->options->tune.method)},
        {.key = "evenkeel.overlay.made_by", .text = "evenkeel " EK_VERSION},
    };
    const size_t n_layers = (size_t)g->n_layers;
    const size_t n_numbers = n_layers * (size_t)g->n_experts * (size_t)(g->d_model + 1);
    float *numbers = ek_sys_calloc(n_numbers, sizeof *numbers);
    ek_gguf_out_tensor *tensors = ek_sys_calloc(2 * n_layers, sizeof *tensors);
    ek_status status = EK_ENOMEM;
    uint8_t *bytes = NULL;
    if (numbers && tensors) {
        const ek_gguf_out out = {.pairs = pairs,
                                 .n_pairs = (int32_t)EK_COUNT_OF(pairs),
                                 .tensors = tensors,
                                 .n_tensors = describe(c, numbers, tensors)};
        const size_t n = ek_model_gguf_write_bytes(&out);
        bytes = ek_sys_calloc(1, n);
        if (bytes) {
            ek_model_gguf_write(&out, bytes);
            status = ek_sys_file_write(path, (ek_span){bytes, n}, err);
        }
    }
    if (status == EK_ENOMEM) ek_err_set(err, EK_ENOMEM, "no memory for the overlay");
    ek_sys_free(bytes);
    ek_sys_free(numbers);
    ek_sys_free(tensors);
    return status;
}
