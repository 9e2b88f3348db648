/* Tensors of a description: those that the rules name are found, checked and bound; no other is. */
#include <stdio.h>

#include "model/desc_internal.h"

typedef struct binder {
    const ek_model_loader *loader;
    int64_t dim[EK_DIM_COUNT];
    ek_model_layer *layers; /* (n_layers) */
    uint8_t *bound;         /* (tensors of the file) 1: some rule has it */
} binder;

static void dims_fill(binder *b)
{
    const ek_model_params *p = &b->loader->model->params;
    b->dim[EK_DIM_ONE] = 1;
    b->dim[EK_DIM_D] = p->d_model;
    b->dim[EK_DIM_VOCAB] = p->n_vocab;
    b->dim[EK_DIM_Q] = (int64_t)p->n_heads * p->head_dim_k;
    b->dim[EK_DIM_K] = (int64_t)p->n_kv_heads * p->head_dim_k;
    b->dim[EK_DIM_V] = (int64_t)p->n_kv_heads * p->head_dim_v;
    b->dim[EK_DIM_ATTN] = (int64_t)p->n_heads * p->head_dim_v;
    b->dim[EK_DIM_HEAD_K] = p->head_dim_k;
    b->dim[EK_DIM_E] = p->n_experts;
    b->dim[EK_DIM_FF] = p->expert_ff;
    b->dim[EK_DIM_SHARED] = p->shared_ff;
}

/* As many tokens as the vocabulary has, or, in a file without one, as the embedding has rows. */
static ek_status vocab_load(const ek_model_loader *loader)
{
    const ek_tensor *embd = ek_model_gguf_tensor(loader->gguf, EK_STR("token_embd.weight"));
    int64_t n_vocab = embd ? embd->dim[1] : 1;
    if (ek_model_gguf_has(loader->gguf, "tokenizer.ggml.tokens")) {
        ek_gguf_array tokens;
        ek_status status = ek_model_gguf_array(loader->gguf, "tokenizer.ggml.tokens",
                                               EK_GGUF_STRING, &tokens, loader->err);
        if (status != EK_OK) return status;
        n_vocab = tokens.len;
    }
    if (n_vocab < 1 || n_vocab > EK_MODEL_VOCAB_MAX)
        return ek_err_set(loader->err, EK_EFORMAT,
                          "tokenizer.ggml.tokens: %lld tokens, must be within 1..%d",
                          (long long)n_vocab, EK_MODEL_VOCAB_MAX);
    loader->model->params.n_vocab = (int32_t)n_vocab;
    return EK_OK;
}

/* "256 x 8 x 4" */
static void dims_format(const int64_t *dim, int32_t n, char *out_text, size_t bytes)
{
    size_t at = 0;
    for (int32_t i = 0; i < n && at < bytes; i++) {
        int added =
            snprintf(out_text + at, bytes - at, "%s%lld", i ? " x " : "", (long long)dim[i]);
        if (added > 0) at += (size_t)added;
    }
}

static ek_status tensor_check(const binder *b, const ek_tensor_rule *rule, const ek_tensor *tensor)
{
    int64_t wanted[EK_GGUF_DIMS_MAX] = {1, 1, 1, 1};
    int32_t n_wanted = 1;
    bool same = true;
    for (int32_t i = 0; i < 3; i++) {
        wanted[i] = b->dim[rule->dim[i]];
        if (rule->dim[i] != EK_DIM_ONE) n_wanted = i + 1;
    }
    for (int32_t i = 0; i < EK_GGUF_DIMS_MAX; i++)
        same = same && tensor->dim[i] == wanted[i];
    if (!same) {
        char has[96];
        char must[96];
        dims_format(tensor->dim, tensor->n_dims, has, sizeof has);
        dims_format(wanted, n_wanted, must, sizeof must);
        return ek_err_set(b->loader->err, EK_EFORMAT,
                          "tensor %.*s: shape is %s, must be %s as the file's keys say",
                          EK_STR_ARG(tensor->name), has, must);
    }
    if (rule->f32 && tensor->type != EK_TYPE_F32)
        return ek_err_set(b->loader->err, EK_EUNSUPPORTED,
                          "tensor %.*s: type is %s, must be F32 (norms and biases)",
                          EK_STR_ARG(tensor->name),
                          ek_quant_type_info((uint32_t)tensor->type)->name);
    return EK_OK;
}

static ek_status fail_missing(const binder *b, const char *name)
{
    /* Mixtral files of 2023 store each expert as a tensor of its own. */
    if (ek_model_gguf_tensor(b->loader->gguf, EK_STR("blk.0.ffn_gate.0.weight")))
        return ek_err_set(b->loader->err, EK_EUNSUPPORTED,
                          "tensor %s: missing; the file stores experts one by one, an old layout: "
                          "convert the model again",
                          name);
    return ek_err_set(b->loader->err, EK_EFORMAT, "tensor %s: missing, architecture %s has it",
                      name, b->loader->arch->name);
}

static ek_status tensor_bind(binder *b, const ek_tensor_rule *rule, const char *name, void *object)
{
    const ek_gguf *gguf = b->loader->gguf;
    const ek_tensor *tensor = ek_model_gguf_tensor(gguf, ek_str_from(name));
    if (!tensor) return fail_missing(b, name);
    ek_status status = tensor_check(b, rule, tensor);
    if (status != EK_OK) return status;
    b->bound[tensor - ek_model_gguf_tensor_at(gguf, 0)] = 1;
    *(const ek_tensor **)(void *)((char *)object + rule->field) = tensor;
    return EK_OK;
}

static ek_status model_bind(binder *b)
{
    ek_model *model = b->loader->model;
    bool tied = b->loader->arch->output_may_be_tied &&
                !ek_model_gguf_tensor(b->loader->gguf, EK_STR("output.weight"));
    for (int32_t i = 0; i < ek_model_n_tensors; i++) {
        const ek_tensor_rule *rule = &ek_model_tensors[i];
        if (tied && rule->field == offsetof(ek_model, output)) continue;
        ek_status status = tensor_bind(b, rule, rule->name, model);
        if (status != EK_OK) return status;
    }
    if (tied) model->output = model->token_embd;
    return EK_OK;
}

static void layer_name(int32_t layer, const char *name, char out_name[EK_GGUF_NAME_MAX])
{
    snprintf(out_name, EK_GGUF_NAME_MAX, "blk.%d.%s", layer, name);
}

/* Layer 0 shows which of the optional sets the file has; then every layer must have all of it. */
static uint32_t sets_find(const binder *b)
{
    uint32_t sets = b->loader->arch->required;
    char name[EK_GGUF_NAME_MAX];
    for (int32_t i = 0; i < ek_model_n_layer_tensors; i++) {
        const ek_tensor_rule *rule = &ek_model_layer_tensors[i];
        if (!(rule->set & b->loader->arch->optional)) continue;
        layer_name(0, rule->name, name);
        if (ek_model_gguf_tensor(b->loader->gguf, ek_str_from(name))) sets |= rule->set;
    }
    return sets;
}

static ek_status layers_bind(binder *b)
{
    ek_model *model = b->loader->model;
    uint32_t sets = sets_find(b);
    char name[EK_GGUF_NAME_MAX];
    for (int32_t layer = 0; layer < model->params.n_layers; layer++)
        for (int32_t i = 0; i < ek_model_n_layer_tensors; i++) {
            const ek_tensor_rule *rule = &ek_model_layer_tensors[i];
            if (!(rule->set & sets)) continue;
            layer_name(layer, rule->name, name);
            ek_status status = tensor_bind(b, rule, name, &b->layers[layer]);
            if (status != EK_OK) return status;
        }
    model->layers = b->layers;
    return EK_OK;
}

/* A tensor that nothing reads would change the model's answers for whoever does read it. */
static ek_status unbound_check(const binder *b)
{
    int64_t n = ek_model_gguf_tensor_count(b->loader->gguf);
    for (int64_t i = 0; i < n; i++)
        if (!b->bound[i])
            return ek_err_set(
                b->loader->err, EK_EUNSUPPORTED,
                "tensor %.*s: is not part of architecture %s as this program knows it",
                EK_STR_ARG(ek_model_gguf_tensor_at(b->loader->gguf, i)->name),
                b->loader->arch->name);
    return EK_OK;
}

static int64_t elems(const ek_tensor *tensor)
{
    return tensor->dim[0] * tensor->dim[1] * tensor->dim[2] * tensor->dim[3];
}

static void sums_fill(ek_model *model)
{
    ek_model_params *p = &model->params;
    int64_t n = ek_model_gguf_tensor_count(model->gguf);
    int64_t resting = 0; /* elements that a token does not read: other experts' and other tokens' */
    if (model->output != model->token_embd)
        resting += elems(model->token_embd) - p->d_model; /* of an embedding it reads one row */
    for (int64_t i = 0; i < n; i++) {
        const ek_tensor *tensor = ek_model_gguf_tensor_at(model->gguf, i);
        p->n_params_total += elems(tensor);
        p->weight_bytes += (int64_t)tensor->bytes;
    }
    for (int32_t i = 0; i < p->n_layers; i++) {
        const ek_model_layer *layer = &model->layers[i];
        int64_t routed =
            elems(layer->expert_gate) + elems(layer->expert_up) + elems(layer->expert_down);
        resting += routed / p->n_experts * (p->n_experts - p->top_k);
    }
    p->n_params_active = p->n_params_total - resting;
}

ek_status ek_model_tensors_bind(ek_model_loader *loader)
{
    binder b = {.loader = loader};
    ek_status status = vocab_load(loader);
    if (status != EK_OK) return status;
    dims_fill(&b);
    b.layers = ek_try_new(loader->perm, ek_model_layer, loader->model->params.n_layers);
    ek_arena scratch = *loader->perm; /* given back on return: nothing else is allocated below */
    b.bound = ek_try_new(&scratch, uint8_t, ek_model_gguf_tensor_count(loader->gguf));
    if (!b.layers || !b.bound)
        return ek_err_set(loader->err, EK_ENOMEM, "no memory for the model's layers");
    status = model_bind(&b);
    if (status == EK_OK) status = layers_bind(&b);
    if (status == EK_OK) status = unbound_check(&b);
    if (status == EK_OK) sums_fill(loader->model);
    return status;
}
