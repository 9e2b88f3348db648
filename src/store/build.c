#include "store/build.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "sys/mem.h"

#define PATH_BYTES         4096
#define METADATA_BYTES_MAX ((size_t)4 << 30) /* of address space */

/* ---- a model's files ---- */

static ek_status map_files(const char *path, ek_store_model *m, ek_arena *perm, ek_err *err)
{
    int32_t n_files = 1;
    ek_status status = ek_model_gguf_shard_count(path, &n_files, err);
    if (status != EK_OK) return status;
    m->maps = ek_new(perm, ek_sys_map, n_files);
    m->names = ek_arena_alloc(perm, (size_t)n_files, sizeof *m->names, 1);
    for (int32_t i = 0; i < n_files; i++) {
        char file_path[PATH_BYTES];
        status = ek_model_gguf_shard_path(path, i, file_path, sizeof file_path);
        if (status != EK_OK) return ek_err_set(err, status, "the path is too long");
        const char *slash = strrchr(file_path, '/');
        int n = snprintf(m->names[i], sizeof *m->names, "%s", slash ? slash + 1 : file_path);
        if ((size_t)n >= sizeof *m->names)
            return ek_err_set(err, EK_ERANGE, "the name is too long");
        status = ek_sys_map_open(file_path, &m->maps[i], err);
        if (status != EK_OK) return status;
        m->n_files = i + 1;
    }
    return EK_OK;
}

static ek_status read_model(const char *path, ek_store_model *m, ek_err *err)
{
    ek_arena perm = ek_sys_region_arena(&m->region);
    ek_status status = map_files(path, m, &perm, err);
    if (status != EK_OK) return status;
    ek_span *spans = ek_new(&perm, ek_span, m->n_files);
    for (int32_t i = 0; i < m->n_files; i++)
        spans[i] = m->maps[i].bytes;
    ek_gguf *gguf = NULL;
    ek_model *model = NULL;
    status = ek_model_gguf_parse(spans, m->n_files, &perm, &gguf, err);
    if (status == EK_OK) status = ek_model_load(gguf, &perm, &model, err);
    m->model = model;
    return status;
}

ek_status ek_store_model_open(const char *path, ek_store_model *out_model, ek_err *err)
{
    *out_model = (ek_store_model){0};
    ek_status status = ek_sys_region_open(METADATA_BYTES_MAX, 0, &out_model->region);
    if (status != EK_OK) return ek_err_set(err, status, "no address space for metadata");
    status = read_model(path, out_model, err);
    if (status == EK_OK) return EK_OK;
    if (err && strncmp(err->text, path, strlen(path)) != 0) ek_err_prefix(err, "%s", path);
    ek_store_model_close(out_model);
    return status;
}

void ek_store_model_close(ek_store_model *model)
{
    for (int32_t i = 0; i < model->n_files; i++)
        ek_sys_map_close(&model->maps[i]);
    ek_sys_region_close(&model->region);
    *model = (ek_store_model){0};
}

/* ---- shards ---- */

/* A tensor's place: which file, and where. */
typedef struct spot {
    const ek_tensor *tensor;
    int32_t layer; /* of a tensor of experts; else -1 */
} spot;

typedef struct layout {
    const ek_store_model *model;
    ek_store_manifest *m;
} layout;

static bool lies_in(ek_span file, const ek_tensor *t)
{
    return (const uint8_t *)t->data >= file.data && (const uint8_t *)t->data < file.data + file.len;
}

static int32_t layer_of_experts(const ek_model *model, const ek_tensor *t)
{
    for (int32_t l = 0; l < model->params.n_layers; l++) {
        const ek_model_layer *layer = &model->layers[l];
        if (t == layer->expert_gate || t == layer->expert_up || t == layer->expert_down) return l;
    }
    return -1;
}

static int by_place(const void *a, const void *b)
{
    const uint8_t *x = ((const spot *)a)->tensor->data, *y = ((const spot *)b)->tensor->data;
    return (x > y) - (x < y);
}

static bool is_zero(const uint8_t *bytes, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        if (bytes[i] != 0) return false;
    return true;
}

/* Up to 64 MiB at a time, so that hashing is shared out evenly and little is lost by a kill. */
static void add(layout *lay, ek_store_shard shard)
{
    for (int64_t left = shard.bytes; left > 0; left -= shard.bytes, shard.offset += shard.bytes) {
        shard.bytes = left < EK_STORE_SHARD_BYTES_MAX ? left : EK_STORE_SHARD_BYTES_MAX;
        lay->m->shards[lay->m->n_shards++] = shard;
    }
}

static void add_tensor(layout *lay, int32_t file, int64_t offset, const spot *at, const char *name)
{
    const ek_tensor *t = at->tensor;
    ek_store_shard shard = {.part = EK_STORE_DENSE,
                            .file = file,
                            .layer = -1,
                            .expert = -1,
                            .offset = offset,
                            .bytes = (int64_t)t->bytes,
                            .tensor = name};
    if (at->layer < 0) {
        add(lay, shard);
        return;
    }
    shard.part = EK_STORE_EXPERT;
    shard.layer = at->layer;
    for (int32_t e = 0; e < lay->m->n_experts; e++) {
        shard.expert = e;
        shard.bytes = (int64_t)t->bytes / lay->m->n_experts;
        shard.offset = offset + e * shard.bytes;
        add(lay, shard);
    }
}

static ek_status add_file(layout *lay, int32_t idx, const spot *spots, int64_t n, ek_arena *perm)
{
    ek_store_manifest *m = lay->m;
    ek_span bytes = lay->model->maps[idx].bytes;
    ek_store_file *file = &m->files[idx];
    *file = (ek_store_file){
        .name = lay->model->names[idx], .bytes = (int64_t)bytes.len, .first = m->n_shards};
    int64_t at = 0;
    for (int64_t i = 0; i <= n; i++) {
        int64_t next = i < n ? (const uint8_t *)spots[i].tensor->data - bytes.data : file->bytes;
        ek_store_shard between = {.part = at == 0 ? EK_STORE_HEAD : EK_STORE_GAP,
                                  .file = idx,
                                  .layer = -1,
                                  .expert = -1,
                                  .offset = at,
                                  .bytes = next - at,
                                  .tensor = ""};
        if (at == 0 || !is_zero(bytes.data + at, next - at)) add(lay, between);
        if (i == n) break;
        const char *name = ek_arena_try_strz(perm, spots[i].tensor->name);
        if (!name) return EK_ENOMEM;
        add_tensor(lay, idx, next, &spots[i], name);
        at = next + (int64_t)spots[i].tensor->bytes;
    }
    file->n_shards = m->n_shards - file->first;
    return EK_OK;
}

/* The most shards that there can be. */
static int64_t count_shards(const ek_store_model *model)
{
    int64_t n_tensors = ek_model_gguf_tensor_count(model->model->gguf), n_bytes = 0;
    const ek_model_params *p = &model->model->params;
    for (int32_t i = 0; i < model->n_files; i++)
        n_bytes += (int64_t)model->maps[i].bytes.len;
    return n_bytes / EK_STORE_SHARD_BYTES_MAX + 2 * (n_tensors + model->n_files) +
           (int64_t)p->n_layers * p->n_experts * 3;
}

/* Of the entries of all keys that begin with "tokenizer.", as they lie in the file. */
static ek_status hash_tokenizer(const ek_gguf *gguf, char out_hex[EK_SHA256_HEX_BYTES])
{
    ek_sys_sha256 hash;
    ek_status status = ek_sys_sha256_open(&hash);
    if (status != EK_OK) return status;
    for (int32_t i = 0; i < ek_model_gguf_key_count(gguf); i++) {
        ek_str key;
        ek_span entry = ek_model_gguf_key_entry(gguf, i, &key);
        if (ek_str_starts(key, EK_STR("tokenizer.")))
            ek_sys_sha256_add(&hash, entry.data, entry.len);
    }
    ek_sys_sha256_close(&hash, out_hex);
    return EK_OK;
}

ek_status ek_store_lay_out(const ek_store_model *model, ek_arena *perm,
                           ek_store_manifest *out_manifest, ek_err *err)
{
    const ek_model *described = model->model;
    ek_store_manifest m = {
        .arch = described->params.arch,
        .model = ek_arena_try_strz(perm, described->params.name),
        .n_layers = described->params.n_layers,
        .n_experts = described->params.n_experts,
        .n_files = model->n_files,
        .files = ek_try_new(perm, ek_store_file, model->n_files),
        .shards = ek_try_new(perm, ek_store_shard, count_shards(model)),
    };
    int64_t n_tensors = ek_model_gguf_tensor_count(described->gguf);
    spot *spots = ek_try_new(perm, spot, n_tensors + 1);
    if (!m.model || !m.files || !m.shards || !spots)
        return ek_err_set(err, EK_ENOMEM, "no memory for a manifest");
    layout lay = {.model = model, .m = &m};
    ek_status status = EK_OK;
    for (int32_t f = 0; status == EK_OK && f < model->n_files; f++) {
        int64_t n = 0;
        for (int64_t i = 0; i < n_tensors; i++) {
            const ek_tensor *t = ek_model_gguf_tensor_at(described->gguf, i);
            if (lies_in(model->maps[f].bytes, t))
                spots[n++] = (spot){t, layer_of_experts(described, t)};
        }
        qsort(spots, (size_t)n, sizeof *spots, by_place);
        status = add_file(&lay, f, spots, n, perm);
    }
    if (status == EK_OK) status = hash_tokenizer(described->gguf, m.tokenizer);
    if (status != EK_OK) return ek_err_set(err, status, "no memory for a manifest");
    *out_manifest = m;
    return EK_OK;
}
