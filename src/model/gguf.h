/*
 * GGUF reader: key-value metadata and the tensor directory of one model, v2 and v3, one file or
 * shards. Source: the GGUF specification (docs/formats/gguf.md has the layout and the bounds
 * enforced here).
 *
 * Works on spans that the caller mapped; all strings, arrays and tensor data stay in those spans
 * and are borrowed from them until the maps are closed. What the reader allocates comes from `perm`
 * and is bounded by the file's own size, whatever its counts claim. Every offset, size, count,
 * alignment and type is checked before use; the first violation ends the parse with one text that
 * names the key or tensor and the shard. Pure.
 */
#ifndef EK_MODEL_GGUF_H
#define EK_MODEL_GGUF_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/span.h"
#include "quant/types.h"

#define EK_GGUF_DIMS_MAX    4
#define EK_GGUF_SHARDS_MAX  512
#define EK_GGUF_KEYS_MAX    65536
#define EK_GGUF_TENSORS_MAX 262144
#define EK_GGUF_NAME_MAX    256 /* bytes of a key or tensor name */

typedef enum ek_gguf_kind {
    EK_GGUF_U8,
    EK_GGUF_I8,
    EK_GGUF_U16,
    EK_GGUF_I16,
    EK_GGUF_U32,
    EK_GGUF_I32,
    EK_GGUF_F32,
    EK_GGUF_BOOL,
    EK_GGUF_STRING,
    EK_GGUF_ARRAY,
    EK_GGUF_U64,
    EK_GGUF_I64,
    EK_GGUF_F64,
} ek_gguf_kind;

typedef struct ek_gguf ek_gguf;

typedef struct ek_tensor {
    ek_str name; /* borrowed from the map */
    ek_type type;
    int32_t n_dims;
    int64_t dim[EK_GGUF_DIMS_MAX]; /* fastest first; unused ones are 1 */
    const void *data;              /* borrowed from the map */
    size_t bytes;
    bool packed; /* never in a file: rows are interleaved (kernels/pack.h) */
} ek_tensor;

/**
 * The most that parsing takes from `perm` for files of that many bytes together: a key, a string or
 * a tensor costs memory only in proportion to the bytes that spell it.
 */
static inline size_t ek_model_gguf_perm_bytes_max(size_t file_bytes)
{
    return file_bytes < SIZE_MAX / 16 ? file_bytes * 8 + 65536 : SIZE_MAX;
}

/**
 * Parse all shards of a model (shard 0 has the metadata; split.no / split.count /
 * split.tensors.count must agree with the shards given).
 * @param shards (n_shards) whole files, n_shards in 1..EK_GGUF_SHARDS_MAX; 8-byte aligned where
 * tensor data is going to be read, as maps are
 * @return EK_OK; EK_EFORMAT; EK_ETRUNCATED; EK_EUNSUPPORTED (version, tensor type); EK_ENOMEM (perm
 * full)
 */
EK_MUST ek_status ek_model_gguf_parse(const ek_span *shards, int32_t n_shards, ek_arena *perm,
                                      ek_gguf **out_gguf, ek_err *err);

int64_t ek_model_gguf_tensor_count(const ek_gguf *gguf);
const ek_tensor *ek_model_gguf_tensor_at(const ek_gguf *gguf, int64_t idx);
/** NULL: no such tensor. */
const ek_tensor *ek_model_gguf_tensor(const ek_gguf *gguf, ek_str name);

bool ek_model_gguf_has(const ek_gguf *gguf, const char *key);

/** Keys, and the idx-th in the file's order with the bytes of its entry: name, kind and value. */
int32_t ek_model_gguf_key_count(const ek_gguf *gguf);
ek_span ek_model_gguf_key_entry(const ek_gguf *gguf, int32_t idx, ek_str *out_key);

/*
 * Typed look-ups. All return EK_OK; EK_ENOTFOUND (no such key); EK_EFORMAT (another type, or
 * outside the range given), and the error text names the key, what it holds and what was wanted.
 */
/** Any integer type whose value lies in [min, max]; max is below INT64_MAX. */
EK_MUST ek_status ek_model_gguf_int(const ek_gguf *gguf, const char *key, int64_t min, int64_t max,
                                    int64_t *out_value, ek_err *err);
/** F32 or F64, finite. */
EK_MUST ek_status ek_model_gguf_float(const ek_gguf *gguf, const char *key, double *out_value,
                                      ek_err *err);
EK_MUST ek_status ek_model_gguf_bool(const ek_gguf *gguf, const char *key, bool *out_value,
                                     ek_err *err);
EK_MUST ek_status ek_model_gguf_str(const ek_gguf *gguf, const char *key, ek_str *out_value,
                                    ek_err *err);

/** A whole array of one element kind; element i is read with ek_model_gguf_array_*. */
typedef struct ek_gguf_array {
    ek_gguf_kind kind;
    int64_t len;
    const uint8_t *data;   /* packed numbers, unaligned; borrowed from the map */
    const ek_str *strings; /* (len) when kind is EK_GGUF_STRING; in perm */
} ek_gguf_array;

EK_MUST ek_status ek_model_gguf_array(const ek_gguf *gguf, const char *key, ek_gguf_kind kind,
                                      ek_gguf_array *out_array, ek_err *err);
float ek_model_gguf_array_f32(const ek_gguf_array *array, int64_t idx);
int32_t ek_model_gguf_array_i32(const ek_gguf_array *array, int64_t idx);

/**
 * Names of a model's shards. "x-00001-of-00003.gguf" gives its three siblings in order; any other
 * name gives itself.
 * @param out_n number of shards, 1..EK_GGUF_SHARDS_MAX
 * @return EK_OK; EK_EINVAL (shard number outside its count, or not shard 1)
 */
EK_MUST ek_status ek_model_gguf_shard_count(const char *path, int32_t *out_n, ek_err *err);
/** Path of shard idx (0-based) into out (bytes including NUL). @return EK_OK; EK_ERANGE */
EK_MUST ek_status ek_model_gguf_shard_path(const char *path, int32_t idx, char *out_path,
                                           size_t bytes);

#endif
