#include "expert/model_file.h"

#include <string.h>

#include "base/assert.h"
#include "sys/file.h"
#include "sys/mem.h"

#define PATH_BYTES 4096

/* Address space for the parsed metadata, however large the weights behind it are. */
#define METADATA_BYTES_MAX ((size_t)4 << 30)

/* `file` comes first: it is what callers hold. */
typedef struct opened {
    ek_model_file file;
    ek_sys_map map[EK_GGUF_SHARDS_MAX]; /* owned */
    int32_t n_maps;
    ek_sys_region metadata;   /* owned; the GGUF reader's arena */
    ek_sys_region described;  /* owned; the description's and the tokenizer's arena */
    ek_tokenizer *tokenizer;  /* owned */
    const ek_model *base;     /* owned; the model without its overlay */
    ek_gate_overlay *overlay; /* owned */
} opened;

static ek_status shards_map(const char *path, opened *o, ek_err *err)
{
    int32_t n_shards = 1;
    ek_status status = ek_model_gguf_shard_count(path, &n_shards, err);
    if (status != EK_OK) {
        ek_err_prefix(err, "%s", path);
        return status;
    }
    for (int32_t i = 0; i < n_shards; i++) {
        char shard_path[PATH_BYTES];
        status = ek_model_gguf_shard_path(path, i, shard_path, sizeof shard_path);
        if (status != EK_OK) return ek_err_set(err, status, "%s: the path is too long", path);
        status = ek_sys_map_open(shard_path, &o->map[i], err);
        if (status != EK_OK) {
            if (i > 0) ek_err_prefix(err, "%s: shard %d of %d", path, i + 1, n_shards);
            return status;
        }
        o->n_maps = i + 1;
        o->file.file_bytes += (int64_t)o->map[i].bytes.len;
    }
    return EK_OK;
}

/*
 * What parsing needs grows with the metadata, whose length is known only after parsing: reserve for
 * the worst.
 */
static ek_status metadata_parse(opened *o, ek_gguf **out_gguf, ek_err *err)
{
    ek_span shards[EK_GGUF_SHARDS_MAX];
    for (int32_t i = 0; i < o->n_maps; i++)
        shards[i] = o->map[i].bytes;
    size_t bytes = ek_model_gguf_perm_bytes_max((size_t)o->file.file_bytes);
    if (bytes > METADATA_BYTES_MAX) bytes = METADATA_BYTES_MAX;
    ek_status status = ek_sys_region_open(bytes, 0, &o->metadata);
    if (status != EK_OK)
        return ek_err_set(err, status, "no address space for %zu bytes of metadata", bytes);
    ek_arena perm = ek_sys_region_arena(&o->metadata);
    return ek_model_gguf_parse(shards, o->n_maps, &perm, out_gguf, err);
}

static ek_status describe(opened *o, const ek_gguf *gguf, ek_err *err)
{
    size_t bytes = ek_model_perm_bytes_max(gguf) + ek_model_tokenizer_perm_bytes_max(gguf);
    ek_status status = ek_sys_region_open(bytes, 0, &o->described);
    if (status != EK_OK)
        return ek_err_set(err, status, "no memory for a description of %zu bytes", bytes);
    ek_arena perm = ek_sys_region_arena(&o->described);
    ek_model *model = NULL;
    status = ek_model_load(gguf, &perm, &model, err);
    if (status == EK_OK) status = ek_model_tokenizer_create(gguf, &perm, &o->tokenizer, err);
    if (status != EK_OK) return status;
    o->file.model = o->base = model;
    o->file.tokenizer = o->tokenizer;
    return EK_OK;
}

/*
 * A model without a chat format that we know still completes text: the reason is kept for whoever
 * asks.
 */
static ek_status chat_choose(opened *o, const ek_gguf *gguf, const char *name, ek_err *err)
{
    ek_err problem = {0};
    if (name) {
        o->file.chat = ek_model_chat_by_name(ek_str_from(name));
        if (o->file.chat) return EK_OK;
        return ek_err_set(err, EK_EINVAL, "chat format \"%s\" is not known (known: %s)", name,
                          ek_model_chat_list());
    }
    if (ek_model_chat_detect(gguf, &o->file.chat, &problem) != EK_OK) {
        o->file.chat = NULL;
        memcpy(o->file.chat_problem, problem.text, sizeof o->file.chat_problem);
    }
    return EK_OK;
}

ek_status ek_expert_model_open(const char *path, const char *chat_format, ek_model_file **out_file,
                               ek_err *err)
{
    ek_gguf *gguf = NULL;
    opened *o = ek_sys_calloc(1, sizeof *o);
    if (!o) return ek_err_set(err, EK_ENOMEM, "%s: no memory to open it", path);
    ek_status status = shards_map(path, o, err);
    if (status != EK_OK) goto close;
    status = metadata_parse(o, &gguf, err);
    if (status == EK_OK) status = describe(o, gguf, err);
    if (status == EK_OK) status = chat_choose(o, gguf, chat_format, err);
    if (status != EK_OK) {
        ek_err_prefix(err, "%s", path);
        goto close;
    }
    *out_file = &o->file;
    return EK_OK;

close:
    ek_expert_model_close(&o->file);
    return status;
}

ek_status ek_expert_model_fingerprint(const ek_model_file *file, char out_hex[EK_SHA256_HEX_BYTES])
{
    const opened *o = (const opened *)file;
    ek_span shards[EK_GGUF_SHARDS_MAX];
    for (int32_t i = 0; i < o->n_maps; i++)
        shards[i] = o->map[i].bytes;
    return ek_expert_fingerprint(shards, o->n_maps, o->base, out_hex);
}

ek_status ek_expert_model_overlay(ek_model_file *file, const char *overlay_path, ek_err *err)
{
    opened *o = (opened *)file;
    char sha256[EK_SHA256_HEX_BYTES];
    ek_assert(o->overlay == NULL);
    ek_status status = ek_expert_model_fingerprint(file, sha256);
    if (status != EK_OK) return ek_err_set(err, status, "no memory for the model's fingerprint");
    status = ek_expert_overlay_open(overlay_path, o->base, sha256, &o->overlay, err);
    if (status != EK_OK) return status;
    o->file.model = ek_expert_overlay_model(o->overlay);
    o->file.overlay = o->overlay;
    return EK_OK;
}

void ek_expert_model_close(ek_model_file *file)
{
    if (!file) return;
    opened *o = (opened *)file;
    ek_expert_overlay_close(o->overlay);
    ek_model_tokenizer_destroy(o->tokenizer);
    ek_sys_region_close(&o->described);
    ek_sys_region_close(&o->metadata);
    for (int32_t i = 0; i < o->n_maps; i++)
        ek_sys_map_close(&o->map[i]);
    ek_sys_free(o);
}
