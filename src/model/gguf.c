#include "model/gguf.h"

#include <assert.h>
#include <stddef.h>
#include <string.h>

#include "base/assert.h"
#include "model/gguf_internal.h"

static_assert(offsetof(ek_gguf_pair, name) == 0 && offsetof(ek_tensor, name) == 0,
              "the index reads names at the start of a record");
static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__,
              "tensor data is used in place, in the file's byte order");

#define MAGIC         "GGUF"
#define VERSION_MIN   2
#define VERSION_MAX   3
#define ALIGN_DEFAULT 32
#define ALIGN_MIN     8
#define ALIGN_MAX     (1 << 20)

/* One shard between the two passes: metadata read, directory not yet. */
typedef struct shard {
    ek_gguf_reader reader; /* at the directory */
    int32_t n_tensors;
    size_t align;
} shard;

static ek_status version_read(ek_gguf_reader *reader)
{
    const uint8_t *magic = NULL;
    uint32_t version = 0;
    ek_status status = ek_model_gguf_take(reader, sizeof MAGIC - 1, "magic number", &magic);
    if (status != EK_OK) return status;
    if (memcmp(magic, MAGIC, sizeof MAGIC - 1) != 0)
        return ek_model_gguf_fail(reader, EK_EFORMAT,
                                  "not a GGUF file (it begins %02x %02x %02x %02x)", magic[0],
                                  magic[1], magic[2], magic[3]);
    status = ek_model_gguf_take_u32(reader, "version", &version);
    if (status != EK_OK) return status;
    if (version != 0 && (version & 0xffff) == 0)
        return ek_model_gguf_fail(reader, EK_EUNSUPPORTED,
                                  "the file is big-endian; convert it to little-endian first");
    if (version < VERSION_MIN || version > VERSION_MAX)
        return ek_model_gguf_fail(reader, EK_EUNSUPPORTED,
                                  "version %u is not supported (%d and %d are)", version,
                                  VERSION_MIN, VERSION_MAX);
    return EK_OK;
}

static ek_status align_get(const ek_gguf *meta, size_t *out_align, ek_err *err)
{
    int64_t align = ALIGN_DEFAULT;
    if (ek_model_gguf_has(meta, "general.alignment")) {
        ek_status status =
            ek_model_gguf_int(meta, "general.alignment", ALIGN_MIN, ALIGN_MAX, &align, err);
        if (status != EK_OK) return status;
        if ((align & (align - 1)) != 0)
            return ek_err_set(err, EK_EFORMAT, "general.alignment: %lld is not a power of two",
                              (long long)align);
    }
    *out_align = (size_t)align;
    return EK_OK;
}

/* A shard says which one of how many it is; a file that says nothing is a whole model. */
static ek_status split_check(const ek_gguf *meta, int32_t shard_idx, int32_t n_shards, ek_err *err)
{
    int64_t count = 1;
    int64_t number = 0;
    ek_status status = EK_OK;
    if (n_shards > 1 || ek_model_gguf_has(meta, "split.count"))
        status = ek_model_gguf_int(meta, "split.count", 0, UINT16_MAX, &count, err);
    if (status == EK_OK && (n_shards > 1 || ek_model_gguf_has(meta, "split.no")))
        status = ek_model_gguf_int(meta, "split.no", 0, UINT16_MAX, &number, err);
    if (status != EK_OK) return status;
    /* Some writers leave a count of 0 in a model that was never split. */
    if (count == 0) count = 1;
    if (count != n_shards)
        return ek_err_set(
            err, EK_EFORMAT,
            "split.count: the model has %lld shards, the file's name says %d (keep all "
            "shards together under their names x-00001-of-0000N.gguf)",
            (long long)count, n_shards);
    if (number != shard_idx)
        return ek_err_set(err, EK_EFORMAT, "split.no: is %lld, must be %d here (shards mixed up?)",
                          (long long)number, shard_idx);
    return EK_OK;
}

/* First pass over one shard: header and metadata. What it allocates lives in `arena`. */
static ek_status shard_open(ek_span file, int32_t shard_idx, int32_t n_shards, ek_arena *arena,
                            ek_gguf *out_meta, shard *out_shard, ek_err *err)
{
    ek_gguf_reader reader = {.file = file, .noun = "header", .err = err};
    uint64_t n_tensors = 0;
    uint64_t n_pairs = 0;
    ek_status status = version_read(&reader);
    if (status == EK_OK) status = ek_model_gguf_take_u64(&reader, "number of tensors", &n_tensors);
    if (status == EK_OK) status = ek_model_gguf_take_u64(&reader, "number of keys", &n_pairs);
    if (status == EK_OK) status = ek_model_gguf_pairs_read(&reader, n_pairs, arena, out_meta);
    if (status == EK_OK) status = split_check(out_meta, shard_idx, n_shards, err);
    if (status == EK_OK) status = align_get(out_meta, &out_shard->align, err);
    if (status != EK_OK) return status;

    if (n_tensors > EK_GGUF_TENSORS_MAX)
        return ek_model_gguf_fail(&reader, EK_EFORMAT, "%llu tensors are over the limit of %d",
                                  (unsigned long long)n_tensors, EK_GGUF_TENSORS_MAX);
    if (n_tensors > ek_model_gguf_left(&reader) / EK_GGUF_TENSOR_BYTES_MIN)
        return ek_model_gguf_fail(&reader, EK_ETRUNCATED,
                                  "%llu tensors do not fit into the %zu bytes left",
                                  (unsigned long long)n_tensors, ek_model_gguf_left(&reader));
    out_shard->n_tensors = (int32_t)n_tensors;
    out_shard->reader = reader;
    return EK_OK;
}

static ek_status shards_open(const ek_span *files, int32_t n_shards, ek_arena *perm, ek_gguf *gguf,
                             shard *out_shards, ek_err *err)
{
    for (int32_t i = 0; i < n_shards; i++) {
        /* Later shards repeat metadata at most: it is checked, and its memory given back. */
        ek_arena scratch = *perm;
        ek_gguf other = {0};
        ek_status status = shard_open(files[i], i, n_shards, i == 0 ? perm : &scratch,
                                      i == 0 ? gguf : &other, &out_shards[i], err);
        if (status != EK_OK) {
            if (n_shards > 1) ek_err_prefix(err, "shard %d of %d", i + 1, n_shards);
            return status;
        }
        gguf->n_tensors += out_shards[i].n_tensors;
        if (gguf->n_tensors > EK_GGUF_TENSORS_MAX)
            return ek_err_set(err, EK_EFORMAT, "header: the tensors of all shards are over %d",
                              EK_GGUF_TENSORS_MAX);
    }
    int64_t said = gguf->n_tensors;
    if (n_shards > 1 && ek_model_gguf_has(gguf, "split.tensors.count")) {
        ek_status status =
            ek_model_gguf_int(gguf, "split.tensors.count", 0, EK_GGUF_TENSORS_MAX, &said, err);
        if (status != EK_OK) return status;
    }
    if (said != gguf->n_tensors)
        return ek_err_set(err, EK_EFORMAT,
                          "split.tensors.count: is %lld, but the shards have %d tensors",
                          (long long)said, gguf->n_tensors);
    return EK_OK;
}

static ek_status directories_read(shard *shards, int32_t n_shards, ek_arena *perm, ek_gguf *gguf,
                                  ek_err *err)
{
    gguf->tensors = ek_try_new(perm, ek_tensor, gguf->n_tensors);
    if (!gguf->tensors) return ek_err_set(err, EK_ENOMEM, "no memory for the tensor directory");
    ek_tensor *next = gguf->tensors;
    for (int32_t i = 0; i < n_shards; i++) {
        ek_status status = ek_model_gguf_tensors_read(&shards[i].reader, shards[i].n_tensors,
                                                      shards[i].align, *perm, next);
        if (status != EK_OK) {
            if (n_shards > 1) ek_err_prefix(err, "shard %d of %d", i + 1, n_shards);
            return status;
        }
        next += shards[i].n_tensors;
    }
    int32_t duplicate = -1;
    ek_status status =
        ek_model_gguf_index_build(gguf->tensors, sizeof *gguf->tensors, gguf->n_tensors, perm,
                                  &gguf->tensor_index, &duplicate);
    if (status != EK_OK) return ek_err_set(err, status, "no memory for the index of tensors");
    if (duplicate >= 0)
        return ek_err_set(err, EK_EFORMAT, "tensor %.*s: is there more than once",
                          EK_STR_ARG(gguf->tensors[duplicate].name));
    return EK_OK;
}

ek_status ek_model_gguf_parse(const ek_span *shards, int32_t n_shards, ek_arena *perm,
                              ek_gguf **out_gguf, ek_err *err)
{
    ek_assert(n_shards >= 1 && n_shards <= EK_GGUF_SHARDS_MAX);
    ek_gguf *gguf = ek_try_new(perm, ek_gguf, 1);
    shard *opened = ek_try_new(perm, shard, n_shards);
    if (!gguf || !opened) return ek_err_set(err, EK_ENOMEM, "no memory for the file's header");
    ek_status status = shards_open(shards, n_shards, perm, gguf, opened, err);
    if (status == EK_OK) status = directories_read(opened, n_shards, perm, gguf, err);
    if (status == EK_OK) *out_gguf = gguf;
    return status;
}

int64_t ek_model_gguf_tensor_count(const ek_gguf *gguf)
{
    return gguf->n_tensors;
}

const ek_tensor *ek_model_gguf_tensor_at(const ek_gguf *gguf, int64_t idx)
{
    ek_assert(idx >= 0 && idx < gguf->n_tensors);
    return &gguf->tensors[idx];
}

const ek_tensor *ek_model_gguf_tensor(const ek_gguf *gguf, ek_str name)
{
    int32_t idx = ek_model_gguf_index_find(&gguf->tensor_index, name);
    return idx >= 0 ? &gguf->tensors[idx] : NULL;
}
