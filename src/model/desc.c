#include "model/desc.h"

#include <stddef.h>
#include <stdio.h>

#include "model/desc_internal.h"

#define KEY_BYTES 96 /* of "<architecture>.<key>", both ours */

#define ACT_BLOCK 32 /* elements of activations that share one scale */

typedef struct key_name {
    char text[KEY_BYTES];
} key_name;

static key_name key_of(const ek_model_loader *loader, const char *name)
{
    key_name key;
    snprintf(key.text, sizeof key.text, "%s.%s", loader->arch->name, name);
    return key;
}

static ek_status fail_missing(const ek_model_loader *loader, const char *name)
{
    key_name key = key_of(loader, name);
    return ek_err_set(loader->err, EK_EFORMAT, "%s: missing", key.text);
}

/* Optional keys leave *value alone when they are absent. */
static ek_status int_get(const ek_model_loader *loader, const char *name, int64_t min, int64_t max,
                         int64_t *value)
{
    key_name key = key_of(loader, name);
    if (!ek_model_gguf_has(loader->gguf, key.text)) return EK_OK;
    return ek_model_gguf_int(loader->gguf, key.text, min, max, value, loader->err);
}

static ek_status float_get(const ek_model_loader *loader, const char *name, double min, double max,
                           double *value)
{
    key_name key = key_of(loader, name);
    double read;
    if (!ek_model_gguf_has(loader->gguf, key.text)) return EK_OK;
    ek_status status = ek_model_gguf_float(loader->gguf, key.text, &read, loader->err);
    if (status != EK_OK) return status;
    if (read < min || read > max)
        return ek_err_set(loader->err, EK_EFORMAT, "%s: is %g, must be within %g..%g", key.text,
                          read, min, max);
    *value = read;
    return EK_OK;
}

/* The value of a key that the file leaves out; 0: it has to be there. */
static ek_status absent_value(const ek_model_loader *loader, ek_key_absent absent, int64_t *out)
{
    const ek_model_params *p = &loader->model->params;
    int64_t ff = 0;
    *out = 0;
    switch (absent) {
    case EK_ABSENT_ERROR: return EK_OK;
    case EK_ABSENT_HEADS: *out = p->n_heads; return EK_OK;
    case EK_ABSENT_HEAD_K: *out = p->head_dim_k; return EK_OK;
    case EK_ABSENT_D_BY_HEADS:
        if (p->d_model % p->n_heads != 0)
            return ek_err_set(loader->err, EK_EFORMAT,
                              "%s.attention.head_count: %d heads do not divide the embedding "
                              "length %d, and no attention.key_length is given",
                              loader->arch->name, p->n_heads, p->d_model);
        *out = p->d_model / p->n_heads;
        return EK_OK;
    case EK_ABSENT_FF:
    case EK_ABSENT_FF_BY_TOP_K: break;
    }
    ek_status status = int_get(loader, "feed_forward_length", 1, EK_MODEL_DIM_MAX, &ff);
    if (status != EK_OK) return status;
    *out = absent == EK_ABSENT_FF ? ff : ff / p->top_k;
    return EK_OK;
}

static ek_status key_load(ek_model_loader *loader, const ek_key_rule *rule)
{
    int64_t value = 0;
    ek_status status = int_get(loader, rule->name, rule->min, rule->max, &value);
    if (status == EK_OK && value == 0) status = absent_value(loader, rule->absent, &value);
    if (status != EK_OK) return status;
    if (value < rule->min) return fail_missing(loader, rule->name);
    if (value % rule->multiple != 0)
        return ek_err_set(loader->err, EK_EUNSUPPORTED, "%s.%s: is %lld, must be a multiple of %d",
                          loader->arch->name, rule->name, (long long)value, rule->multiple);
    *(int32_t *)(void *)((char *)&loader->model->params + rule->field) = (int32_t)value;
    return EK_OK;
}

/* A dense model is well-formed and yet not for this program: say that, not "key missing". */
static ek_status experts_check(const ek_model_loader *loader)
{
    int64_t n_experts = 0;
    ek_status status = int_get(loader, "expert_count", 0, EK_MODEL_EXPERTS_MAX, &n_experts);
    if (status == EK_OK && n_experts == 0)
        return ek_err_set(loader->err, EK_EUNSUPPORTED,
                          "%s.expert_count: missing or 0, so this is a dense model; only "
                          "mixture-of-experts models are supported",
                          loader->arch->name);
    return status;
}

/* What no single key shows: how they fit together. Widths are products of two checked factors. */
static ek_status shape_check(const ek_model_loader *loader)
{
    const ek_model_params *p = &loader->model->params;
    const char *arch = loader->arch->name;
    if (p->n_heads % p->n_kv_heads != 0)
        return ek_err_set(loader->err, EK_EFORMAT,
                          "%s.attention.head_count_kv: %d does not divide the %d heads", arch,
                          p->n_kv_heads, p->n_heads);
    if ((int64_t)p->n_heads * p->head_dim_k > EK_MODEL_DIM_MAX ||
        (int64_t)p->n_heads * p->head_dim_v > EK_MODEL_DIM_MAX)
        return ek_err_set(loader->err, EK_EFORMAT,
                          "%s.attention.key_length: %d heads of %d and %d are wider than %d", arch,
                          p->n_heads, p->head_dim_k, p->head_dim_v, EK_MODEL_DIM_MAX);
    if (p->n_rot > p->head_dim_k)
        return ek_err_set(loader->err, EK_EFORMAT,
                          "%s.rope.dimension_count: is %d, wider than a head (%d)", arch, p->n_rot,
                          p->head_dim_k);
    if (p->top_k > p->n_experts)
        return ek_err_set(loader->err, EK_EFORMAT,
                          "%s.expert_used_count: is %d, must be within 1..%d (the experts)", arch,
                          p->top_k, p->n_experts);
    if (p->n_heads * p->head_dim_v % ACT_BLOCK != 0)
        return ek_err_set(loader->err, EK_EUNSUPPORTED,
                          "%s.attention.value_length: %d heads of %d are not a multiple of %d",
                          arch, p->n_heads, p->head_dim_v, ACT_BLOCK);
    return EK_OK;
}

/* Positions are scaled where the file gives a factor; the kind, when left out, is "linear". */
static ek_status rope_load(ek_model_loader *loader)
{
    ek_model_params *p = &loader->model->params;
    key_name type_key = key_of(loader, "rope.scaling.type");
    ek_str type = EK_STR("linear");
    double base = 10000;
    double factor = 1;
    ek_status status = float_get(loader, "rope.freq_base", 1, 1e12, &base);
    if (status == EK_OK && ek_model_gguf_has(loader->gguf, type_key.text))
        status = ek_model_gguf_str(loader->gguf, type_key.text, &type, loader->err);
    if (status != EK_OK) return status;
    if (!ek_str_eqz(type, "none") && !ek_str_eqz(type, "linear"))
        return ek_err_set(loader->err, EK_EUNSUPPORTED,
                          "%s: \"%.*s\" is not supported (supported: none, linear)", type_key.text,
                          EK_STR_ARG(type));
    /* The older name first, so that the newer one prevails; a factor of 0 means no scaling. */
    status = float_get(loader, "rope.scale_linear", 0, 1e6, &factor);
    if (status == EK_OK) status = float_get(loader, "rope.scaling.factor", 0, 1e6, &factor);
    if (status != EK_OK) return status;
    if (factor > 0 && factor < 1e-3)
        return ek_err_set(loader->err, EK_EFORMAT, "%s.rope.scaling.factor: %g is too small",
                          loader->arch->name, factor);
    p->rope_neox = loader->arch->rope_neox;
    p->rope_base = (float)base;
    p->rope_scale = factor > 0 && ek_str_eqz(type, "linear") ? (float)factor : 1;
    return EK_OK;
}

/* The architecture's gate, unless the file says otherwise; 0 means "not set" in some files. */
static ek_status gate_load(ek_model_loader *loader)
{
    static const ek_gate_score scores[] = {
        [1] = EK_GATE_SOFTMAX, [2] = EK_GATE_SIGMOID, [3] = EK_GATE_SOFTMAX_CHOSEN};
    ek_model_params *p = &loader->model->params;
    ek_model_gate gate = loader->arch->gate;
    int64_t func = 0;
    int64_t n_groups = 0;
    int64_t n_groups_used = 0;
    double scale = 0;
    key_name norm_key = key_of(loader, "expert_weights_norm");
    ek_status status = int_get(loader, "expert_gating_func", 0, 3, &func);
    if (status == EK_OK) status = float_get(loader, "expert_weights_scale", 0, 1e6, &scale);
    if (status == EK_OK) status = int_get(loader, "expert_group_count", 0, p->n_experts, &n_groups);
    if (status == EK_OK)
        status = int_get(loader, "expert_group_used_count", 0, p->n_experts, &n_groups_used);
    if (status == EK_OK && ek_model_gguf_has(loader->gguf, norm_key.text))
        status = ek_model_gguf_bool(loader->gguf, norm_key.text, &gate.renormalise, loader->err);
    if (status != EK_OK) return status;
    if (func > 0) gate.score = scores[func];
    if (scale > 0) gate.scale = (float)scale;
    if (n_groups > 0) gate.n_groups = gate.n_groups_used = (int32_t)n_groups;
    if (n_groups_used > 0) gate.n_groups_used = (int32_t)n_groups_used;
    if (p->n_experts % gate.n_groups != 0 || gate.n_groups_used > gate.n_groups ||
        p->top_k > gate.n_groups_used * (p->n_experts / gate.n_groups))
        return ek_err_set(loader->err, EK_EFORMAT,
                          "%s.expert_group_count: %d groups, %d used, do not fit %d of %d experts",
                          loader->arch->name, gate.n_groups, gate.n_groups_used, p->top_k,
                          p->n_experts);
    p->gate = gate;
    return EK_OK;
}

static ek_status params_load(ek_model_loader *loader)
{
    ek_model_params *p = &loader->model->params;
    const ek_arch *arch = loader->arch;
    double rms_eps = 0;
    p->arch = arch->name;
    p->name = ek_str_from(arch->name);
    p->qk_norm = arch->qk_norm;
    p->shared_gated = arch->shared_gated;
    ek_status status = EK_OK;
    if (ek_model_gguf_has(loader->gguf, "general.name"))
        status = ek_model_gguf_str(loader->gguf, "general.name", &p->name, loader->err);
    if (status == EK_OK) status = experts_check(loader);
    for (int32_t i = 0; i < ek_model_n_keys && status == EK_OK; i++)
        status = key_load(loader, &ek_model_keys[i]);
    for (int32_t i = 0; i < EK_ARCH_KEYS_MAX && arch->key[i].name && status == EK_OK; i++)
        status = key_load(loader, &arch->key[i]);
    if (status == EK_OK) status = shape_check(loader);
    if (status == EK_OK)
        status = float_get(loader, "attention.layer_norm_rms_epsilon", 1e-12, 1, &rms_eps);
    if (status == EK_OK && rms_eps <= 0)
        status = fail_missing(loader, "attention.layer_norm_rms_epsilon");
    if (status == EK_OK) status = rope_load(loader);
    if (status == EK_OK) status = gate_load(loader);
    if (status != EK_OK) return status;
    p->rms_eps = (float)rms_eps;
    return EK_OK;
}

ek_status ek_model_load(const ek_gguf *gguf, ek_arena *perm, ek_model **out_model, ek_err *err)
{
    ek_str name;
    ek_status status = ek_model_gguf_str(gguf, "general.architecture", &name, err);
    if (status == EK_ENOTFOUND) return ek_err_set(err, EK_EFORMAT, "general.architecture: missing");
    if (status != EK_OK) return status;
    ek_model_loader loader = {.gguf = gguf, .perm = perm, .err = err};
    loader.arch = ek_model_arch_find(name);
    if (!loader.arch)
        return ek_err_set(err, EK_EUNSUPPORTED,
                          "general.architecture: \"%.*s\" is not supported (supported: %s)",
                          EK_STR_ARG(name), ek_model_arch_list());
    loader.model = ek_try_new(perm, ek_model, 1);
    if (!loader.model) return ek_err_set(err, EK_ENOMEM, "no memory for the model's description");
    loader.model->gguf = gguf;
    status = params_load(&loader);
    if (status == EK_OK) status = ek_model_tensors_bind(&loader);
    if (status == EK_OK) *out_model = loader.model;
    return status;
}

size_t ek_model_perm_bytes_max(const ek_gguf *gguf)
{
    /* Three allocations, and a byte per tensor while they are checked. */
    return sizeof(ek_model) + EK_MODEL_LAYERS_MAX * sizeof(ek_model_layer) +
           (size_t)ek_model_gguf_tensor_count(gguf) + 3 * sizeof(max_align_t);
}

int64_t ek_model_kv_bytes_per_token(const ek_model_params *params)
{
    int64_t per_layer = (int64_t)params->n_kv_heads * (params->head_dim_k + params->head_dim_v);
    return params->n_layers * per_layer * (int64_t)sizeof(uint16_t);
}
