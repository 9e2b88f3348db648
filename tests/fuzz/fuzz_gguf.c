/*
 * Any bytes as a model file: parse, every look-up over every key, description. What must hold is
 * checked here, the rest by the sanitizers.
 *
 * Input: a file that begins with 'G' is taken whole, as one shard. Otherwise byte 0 says how many
 * shards (2 or 3), each but the last one preceded by its length (32 bits, cut to what is left).
 * Seeds are files of tools/make_tiny_model.py --micro, and small files with one thing wrong.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/assert.h"
#include "model/desc.h"
#include "model/gguf_internal.h"

#define SHARDS_MAX 3

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A heap block of exactly that size: the first byte read past it is seen. */
static ek_span copy_of(const uint8_t *data, size_t size)
{
    uint8_t *copy = malloc(size ? size : 1);
    ek_assert(copy != NULL);
    if (size) memcpy(copy, data, size);
    return (ek_span){copy, size};
}

static int32_t shards_split(const uint8_t *data, size_t size, ek_span out_shards[SHARDS_MAX])
{
    if (size == 0 || data[0] == 'G') {
        out_shards[0] = copy_of(data, size);
        return 1;
    }
    int32_t n = 2 + data[0] % 2;
    size_t at = 1;
    for (int32_t i = 0; i < n; i++) {
        size_t len = size - at;
        if (i < n - 1 && len >= 4) {
            uint32_t said = ek_model_gguf_load_u32(data + at);
            at += 4;
            len = said < size - at ? said : size - at;
        }
        out_shards[i] = copy_of(data + at, len);
        at += len;
    }
    return n;
}

static void array_check(const ek_gguf *gguf, const char *key, ek_gguf_kind kind)
{
    ek_gguf_array array;
    uint64_t sum = 0;
    if (ek_model_gguf_array(gguf, key, kind, &array, NULL) != EK_OK) return;
    for (int64_t i = 0; i < array.len; i++) {
        if (kind == EK_GGUF_STRING && array.strings[i].len)
            sum += (uint8_t)array.strings[i].data[array.strings[i].len - 1];
        if (kind == EK_GGUF_I32) sum += (uint32_t)ek_model_gguf_array_i32(&array, i);
        if (kind == EK_GGUF_F32) sum += ek_model_gguf_array_f32(&array, i) > 0;
    }
    size_t bytes = (size_t)array.len * ek_model_gguf_kind_bytes(kind);
    if (bytes) sum += array.data[bytes - 1];
    ek_assert(sum <= UINT64_MAX); /* so that the reads are not left out */
}

static void keys_check(const ek_gguf *gguf)
{
    for (int32_t i = 0; i < gguf->n_pairs; i++) {
        char key[EK_GGUF_NAME_MAX + 1] = "";
        ek_err err = {0};
        int64_t integer;
        double number;
        bool flag;
        ek_str text;
        memcpy(key, gguf->pairs[i].name.data, gguf->pairs[i].name.len);
        ek_assert(ek_model_gguf_has(gguf, key));
        int n_kinds =
            ek_model_gguf_int(gguf, key, INT64_MIN, INT64_MAX - 1, &integer, &err) == EK_OK;
        n_kinds += ek_model_gguf_float(gguf, key, &number, &err) == EK_OK;
        n_kinds += ek_model_gguf_bool(gguf, key, &flag, &err) == EK_OK;
        n_kinds += ek_model_gguf_str(gguf, key, &text, &err) == EK_OK;
        ek_assert(n_kinds <= 1);
        ek_assert(memchr(err.text, '\0', sizeof err.text) != NULL);
        for (int kind = 0; kind < EK_GGUF_KINDS; kind++)
            array_check(gguf, key, (ek_gguf_kind)kind);
    }
}

static void tensors_check(const ek_gguf *gguf, size_t file_bytes)
{
    size_t total = 0;
    uint32_t sum = 0;
    for (int64_t i = 0; i < ek_model_gguf_tensor_count(gguf); i++) {
        const ek_tensor *tensor = ek_model_gguf_tensor_at(gguf, i);
        const uint8_t *bytes = tensor->data;
        ek_assert(ek_model_gguf_tensor(gguf, tensor->name) == tensor);
        ek_assert(tensor->bytes > 0);
        sum += bytes[0] + (uint32_t)bytes[tensor->bytes - 1];
        total += tensor->bytes;
    }
    ek_assert(total <= file_bytes);
    ek_assert(sum <= UINT32_MAX);
}

/* What the engine relies on and never checks again. */
static void model_check(const ek_model *model, size_t file_bytes)
{
    const ek_model_params *p = &model->params;
    ek_assert(p->n_heads % p->n_kv_heads == 0);
    ek_assert(p->n_rot >= 2 && p->n_rot % 2 == 0 && p->n_rot <= p->head_dim_k);
    ek_assert(p->top_k >= 1 && p->top_k <= p->n_experts);
    ek_assert(p->gate.n_groups >= 1 && p->n_experts % p->gate.n_groups == 0);
    ek_assert(p->rms_eps > 0 && p->rope_base > 0 && p->rope_scale > 0);
    ek_assert(p->weight_bytes > 0 && (size_t)p->weight_bytes <= file_bytes);
    ek_assert(p->n_params_active > 0 && p->n_params_active <= p->n_params_total);
    ek_assert(ek_model_kv_bytes_per_token(p) > 0);
    ek_assert(model->token_embd->dim[1] == p->n_vocab && model->output->dim[0] == p->d_model);
    for (int32_t i = 0; i < p->n_layers; i++) {
        const ek_model_layer *l = &model->layers[i];
        ek_assert(l->attn_q && l->attn_k && l->attn_v && l->attn_out && l->attn_norm);
        ek_assert(l->gate && l->ffn_norm && l->expert_gate && l->expert_up && l->expert_down);
        ek_assert(l->expert_down->dim[2] == p->n_experts);
        ek_assert((p->shared_ff > 0) == (l->shared_up != NULL));
        ek_assert((p->qk_norm != EK_QK_NORM_NONE) == (l->attn_q_norm != NULL));
    }
}

static void load_check(const ek_gguf *gguf, size_t file_bytes)
{
    size_t bytes = ek_model_perm_bytes_max(gguf);
    void *mem = malloc(bytes);
    ek_assert(mem != NULL);
    ek_arena perm = ek_arena_over(mem, bytes);
    ek_model *model = NULL;
    ek_err err = {0};
    ek_status status = ek_model_load(gguf, &perm, &model, &err);
    ek_assert(status == err.status && status != EK_ENOMEM);
    if (status == EK_OK) model_check(model, file_bytes);
    free(mem);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    ek_span shards[SHARDS_MAX];
    int32_t n_shards = shards_split(data, size, shards);
    size_t file_bytes = 0;
    for (int32_t i = 0; i < n_shards; i++)
        file_bytes += shards[i].len;
    size_t bytes = ek_model_gguf_perm_bytes_max(file_bytes);
    void *mem = malloc(bytes);
    ek_assert(mem != NULL);
    ek_arena perm = ek_arena_over(mem, bytes);
    ek_gguf *gguf = NULL;
    ek_err err = {0};
    ek_status status = ek_model_gguf_parse(shards, n_shards, &perm, &gguf, &err);
    ek_assert(status == err.status && status != EK_ENOMEM);
    if (status == EK_OK) {
        keys_check(gguf);
        tensors_check(gguf, file_bytes);
        load_check(gguf, file_bytes);
    }
    free(mem);
    for (int32_t i = 0; i < n_shards; i++)
        free((void *)(uintptr_t)shards[i].data);
    return 0;
}
