#include "support/gguf_builder.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* Bytes that grow. */
typedef struct bytes {
    uint8_t *data;
    size_t len;
    size_t capacity;
} bytes;

/* n more bytes, zeroed. */
static uint8_t *grow(bytes *out, size_t n)
{
    if (!out->data || out->len + n > out->capacity) {
        size_t capacity = 2 * (out->len + n) + 64;
        uint8_t *grown = realloc(out->data, capacity);
        if (!grown) abort();
        out->data = grown;
        out->capacity = capacity;
    }
    uint8_t *at = memset(out->data + out->len, 0, n);
    out->len += n;
    return at;
}

static void put(bytes *out, const void *data, size_t n)
{
    uint8_t *at = grow(out, n);
    if (n) memcpy(at, data, n);
}

static void put_u32(bytes *out, uint32_t value)
{
    put(out, &value, sizeof value);
}

static void put_u64(bytes *out, uint64_t value)
{
    put(out, &value, sizeof value);
}

static void put_str(bytes *out, const char *text, size_t len)
{
    put_u64(out, len);
    put(out, text, len);
}

static void put_padding(bytes *out, uint64_t align)
{
    if (align > 1) grow(out, (size_t)((align - out->len % align) % align));
}

ek_builder *ek_builder_create(void)
{
    ek_builder *b = calloc(1, sizeof *b);
    if (!b) fail_msg("no memory for a builder");
    b->version = 3;
    b->align = 32;
    b->n_pairs_said = -1;
    b->n_tensors_said = -1;
    return b;
}

void ek_builder_destroy(ek_builder *b)
{
    for (int32_t i = 0; i < b->n_pairs; i++)
        free(b->pair[i].value);
    free(b);
}

static int32_t pair_find(const ek_builder *b, const char *key)
{
    for (int32_t i = 0; i < b->n_pairs; i++)
        if (strcmp(b->pair[i].name, key) == 0) return i;
    return -1;
}

static void pair_fill(ek_builder_pair *pair, const char *key, uint32_t kind, const void *value,
                      size_t n)
{
    bytes copy = {0};
    put(&copy, value, n);
    free(pair->value);
    pair->name_len = strlen(key);
    assert_true(pair->name_len < sizeof pair->name);
    memcpy(pair->name, key, pair->name_len + 1);
    pair->kind = kind;
    pair->value = copy.data;
    pair->bytes = n;
}

void ek_builder_add(ek_builder *b, const char *key, uint32_t kind, const void *value, size_t n)
{
    assert_true(b->n_pairs < EK_BUILDER_ENTRIES_MAX);
    pair_fill(&b->pair[b->n_pairs++], key, kind, value, n);
}

static void pair_set(ek_builder *b, const char *key, uint32_t kind, const void *value, size_t n)
{
    int32_t idx = pair_find(b, key);
    if (idx < 0)
        ek_builder_add(b, key, kind, value, n);
    else
        pair_fill(&b->pair[idx], key, kind, value, n);
}

void ek_builder_remove(ek_builder *b, const char *name)
{
    int32_t idx = pair_find(b, name);
    if (idx >= 0) {
        free(b->pair[idx].value);
        b->n_pairs--;
        memmove(&b->pair[idx], &b->pair[idx + 1],
                (size_t)(b->n_pairs - idx) * sizeof(ek_builder_pair));
        b->pair[b->n_pairs] = (ek_builder_pair){0};
        return;
    }
    const ek_builder_tensor *tensor = ek_builder_tensor_find(b, name);
    ptrdiff_t at = tensor - b->tensor;
    b->n_tensors--;
    memmove(&b->tensor[at], &b->tensor[at + 1],
            (size_t)(b->n_tensors - at) * sizeof(ek_builder_tensor));
}

void ek_builder_u32(ek_builder *b, const char *key, uint32_t value)
{
    pair_set(b, key, EK_GGUF_U32, &value, sizeof value);
}

void ek_builder_f32(ek_builder *b, const char *key, float value)
{
    pair_set(b, key, EK_GGUF_F32, &value, sizeof value);
}

void ek_builder_bool(ek_builder *b, const char *key, uint8_t value)
{
    pair_set(b, key, EK_GGUF_BOOL, &value, sizeof value);
}

void ek_builder_str(ek_builder *b, const char *key, const char *value)
{
    bytes out = {0};
    put_str(&out, value, strlen(value));
    pair_set(b, key, EK_GGUF_STRING, out.data, out.len);
    free(out.data);
}

void ek_builder_strings(ek_builder *b, const char *key, uint64_t n)
{
    bytes out = {0};
    put_u32(&out, EK_GGUF_STRING);
    put_u64(&out, n);
    for (uint64_t i = 0; i < n; i++) {
        char text[24];
        int len = snprintf(text, sizeof text, "%llu", (unsigned long long)i);
        put_str(&out, text, (size_t)len);
    }
    pair_set(b, key, EK_GGUF_ARRAY, out.data, out.len);
    free(out.data);
}

ek_builder_tensor *ek_builder_tensor_add(ek_builder *b, const char *name, ek_type type,
                                         const int64_t dim[4])
{
    assert_true(b->n_tensors < EK_BUILDER_ENTRIES_MAX);
    ek_builder_tensor *tensor = &b->tensor[b->n_tensors++];
    *tensor = (ek_builder_tensor){.type = type, .offset = UINT64_MAX};
    tensor->name_len = strlen(name);
    assert_true(tensor->name_len < sizeof tensor->name);
    memcpy(tensor->name, name, tensor->name_len + 1);
    size_t n_rows = 1;
    for (uint32_t i = 0; i < 4 && dim[i] > 0; i++) {
        tensor->dim[tensor->n_dims++] = (uint64_t)dim[i];
        if (i > 0) n_rows *= (size_t)dim[i];
    }
    tensor->bytes = n_rows * ek_quant_row_bytes(type, dim[0]);
    return tensor;
}

ek_builder_tensor *ek_builder_tensor_find(ek_builder *b, const char *name)
{
    for (int32_t i = 0; i < b->n_tensors; i++)
        if (strcmp(b->tensor[i].name, name) == 0) return &b->tensor[i];
    fail_msg("the builder has no key or tensor \"%s\"", name);
    return NULL;
}

ek_span ek_builder_finish(const ek_builder *b)
{
    bytes out = {0};
    bytes data = {0};
    put(&out, "GGUF", 4);
    put_u32(&out, b->version);
    put_u64(&out, b->n_tensors_said >= 0 ? (uint64_t)b->n_tensors_said : (uint64_t)b->n_tensors);
    put_u64(&out, b->n_pairs_said >= 0 ? (uint64_t)b->n_pairs_said : (uint64_t)b->n_pairs);
    for (int32_t i = 0; i < b->n_pairs; i++) {
        const ek_builder_pair *pair = &b->pair[i];
        put_str(&out, pair->name, pair->name_len);
        put_u32(&out, pair->kind);
        put(&out, pair->value, pair->bytes);
    }
    for (int32_t i = 0; i < b->n_tensors; i++) {
        const ek_builder_tensor *tensor = &b->tensor[i];
        put_padding(&data, b->align);
        put_str(&out, tensor->name, tensor->name_len);
        put_u32(&out, tensor->n_dims);
        put(&out, tensor->dim, tensor->n_dims * sizeof tensor->dim[0]);
        put_u32(&out, tensor->type);
        put_u64(&out, tensor->offset != UINT64_MAX ? tensor->offset : data.len);
        grow(&data, tensor->bytes);
    }
    put_padding(&out, b->align);
    put(&out, data.data, data.len);
    free(data.data);
    uint8_t *exact = realloc(out.data, out.len);
    if (!exact) abort();
    return (ek_span){exact, out.len};
}

static void arch_u32(ek_builder *b, const char *arch, const char *key, uint32_t value)
{
    char name[EK_BUILDER_NAME_MAX];
    snprintf(name, sizeof name, "%s.%s", arch, key);
    ek_builder_u32(b, name, value);
}

static void f32_add(ek_builder *b, const char *name, int64_t d0, int64_t d1, int64_t d2)
{
    ek_builder_tensor_add(b, name, EK_TYPE_F32, (const int64_t[4]){d0, d1, d2, 0});
}

ek_builder *ek_builder_model(const char *arch)
{
    ek_builder *b = ek_builder_create();
    bool is_qwen2 = strcmp(arch, "qwen2moe") == 0;
    bool is_qwen3 = strcmp(arch, "qwen3moe") == 0;
    bool is_olmoe = strcmp(arch, "olmoe") == 0;
    char eps_key[EK_BUILDER_NAME_MAX];
    snprintf(eps_key, sizeof eps_key, "%s.attention.layer_norm_rms_epsilon", arch);
    ek_builder_str(b, "general.architecture", arch);
    arch_u32(b, arch, "block_count", 1);
    arch_u32(b, arch, "context_length", 128);
    arch_u32(b, arch, "embedding_length", 32);
    arch_u32(b, arch, "attention.head_count", 2);
    arch_u32(b, arch, "attention.head_count_kv", 1);
    ek_builder_f32(b, eps_key, 1e-5f);
    arch_u32(b, arch, "expert_count", 4);
    arch_u32(b, arch, "expert_used_count", 2);
    bool has_key = is_qwen2 || is_qwen3;
    arch_u32(b, arch, has_key ? "expert_feed_forward_length" : "feed_forward_length", 64);
    if (is_qwen2) arch_u32(b, arch, "expert_shared_feed_forward_length", 96);
    ek_builder_strings(b, "tokenizer.ggml.tokens", 5);

    f32_add(b, "token_embd.weight", 32, 5, 0);
    f32_add(b, "blk.0.attn_norm.weight", 32, 0, 0);
    f32_add(b, "blk.0.attn_q.weight", 32, 32, 0);
    f32_add(b, "blk.0.attn_k.weight", 32, 16, 0);
    f32_add(b, "blk.0.attn_v.weight", 32, 16, 0);
    f32_add(b, "blk.0.attn_output.weight", 32, 32, 0);
    if (is_qwen2) {
        f32_add(b, "blk.0.attn_q.bias", 32, 0, 0);
        f32_add(b, "blk.0.attn_k.bias", 16, 0, 0);
        f32_add(b, "blk.0.attn_v.bias", 16, 0, 0);
    }
    if (is_qwen3 || is_olmoe) {
        f32_add(b, "blk.0.attn_q_norm.weight", is_olmoe ? 32 : 16, 0, 0);
        f32_add(b, "blk.0.attn_k_norm.weight", 16, 0, 0);
    }
    f32_add(b, "blk.0.ffn_norm.weight", 32, 0, 0);
    f32_add(b, "blk.0.ffn_gate_inp.weight", 32, 4, 0);
    f32_add(b, "blk.0.ffn_gate_exps.weight", 32, 64, 4);
    f32_add(b, "blk.0.ffn_up_exps.weight", 32, 64, 4);
    f32_add(b, "blk.0.ffn_down_exps.weight", 64, 32, 4);
    if (is_qwen2) {
        f32_add(b, "blk.0.ffn_gate_inp_shexp.weight", 32, 0, 0);
        f32_add(b, "blk.0.ffn_gate_shexp.weight", 32, 96, 0);
        f32_add(b, "blk.0.ffn_up_shexp.weight", 32, 96, 0);
        f32_add(b, "blk.0.ffn_down_shexp.weight", 96, 32, 0);
    }
    f32_add(b, "output_norm.weight", 32, 0, 0);
    f32_add(b, "output.weight", 32, 5, 0);
    return b;
}
