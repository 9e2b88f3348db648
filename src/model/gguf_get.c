/* Typed look-ups of metadata. */
#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "model/gguf_internal.h"

static const ek_gguf_pair *pair_find(const ek_gguf *gguf, const char *key)
{
    int32_t idx = ek_model_gguf_index_find(&gguf->pair_index, ek_str_from(key));
    return idx >= 0 ? &gguf->pairs[idx] : NULL;
}

static ek_status fail_missing(const char *key, ek_err *err)
{
    return ek_err_set(err, EK_ENOTFOUND, "%s: missing", key);
}

static ek_status fail_kind(const ek_gguf_pair *pair, const char *wanted, ek_err *err)
{
    if (pair->kind == EK_GGUF_ARRAY)
        return ek_err_set(err, EK_EFORMAT, "%.*s: holds an array of %s, must be %s",
                          EK_STR_ARG(pair->name), ek_model_gguf_kind_name(pair->array.kind),
                          wanted);
    return ek_err_set(err, EK_EFORMAT, "%.*s: holds a %s, must be %s", EK_STR_ARG(pair->name),
                      ek_model_gguf_kind_name(pair->kind), wanted);
}

bool ek_model_gguf_has(const ek_gguf *gguf, const char *key)
{
    return pair_find(gguf, key) != NULL;
}

int32_t ek_model_gguf_key_count(const ek_gguf *gguf)
{
    return gguf->n_pairs;
}

/* Behind the last byte of a value that begins at `value`, its kind already read. */
static const uint8_t *value_end(const ek_gguf_pair *pair, const uint8_t *value)
{
    if (pair->kind == EK_GGUF_STRING) return (const uint8_t *)pair->string.data + pair->string.len;
    if (pair->kind != EK_GGUF_ARRAY) return value + ek_model_gguf_kind_bytes(pair->kind);
    const ek_gguf_array *array = &pair->array;
    value += sizeof(uint32_t) + sizeof(uint64_t); /* element kind and length */
    if (array->kind != EK_GGUF_STRING)
        return value + (size_t)array->len * ek_model_gguf_kind_bytes(array->kind);
    if (array->len == 0) return value;
    const ek_str *last = &array->strings[array->len - 1];
    return (const uint8_t *)last->data + last->len;
}

ek_span ek_model_gguf_key_entry(const ek_gguf *gguf, int32_t idx, ek_str *out_key)
{
    ek_assert(idx >= 0 && idx < gguf->n_pairs);
    const ek_gguf_pair *pair = &gguf->pairs[idx];
    const uint8_t *name = (const uint8_t *)pair->name.data;
    const uint8_t *beg = name - sizeof(uint64_t);
    const uint8_t *end = value_end(pair, name + pair->name.len + sizeof(uint32_t));
    *out_key = pair->name;
    return (ek_span){beg, (size_t)(end - beg)};
}

/* False: not an integer. A U64 over INT64_MAX becomes INT64_MAX, which no range includes. */
static bool int_decode(const ek_gguf_pair *pair, int64_t *out_value)
{
    const uint8_t *p = pair->scalar;
    switch (pair->kind) {
    case EK_GGUF_U8: *out_value = *p; return true;
    case EK_GGUF_I8: *out_value = (int8_t)*p; return true;
    case EK_GGUF_U16: *out_value = ek_model_gguf_load_u16(p); return true;
    case EK_GGUF_I16: *out_value = (int16_t)ek_model_gguf_load_u16(p); return true;
    case EK_GGUF_U32: *out_value = ek_model_gguf_load_u32(p); return true;
    case EK_GGUF_I32: *out_value = (int32_t)ek_model_gguf_load_u32(p); return true;
    case EK_GGUF_I64: *out_value = (int64_t)ek_model_gguf_load_u64(p); return true;
    case EK_GGUF_U64:
        *out_value =
            ek_model_gguf_load_u64(p) > INT64_MAX ? INT64_MAX : (int64_t)ek_model_gguf_load_u64(p);
        return true;
    case EK_GGUF_F32:
    case EK_GGUF_F64:
    case EK_GGUF_BOOL:
    case EK_GGUF_STRING:
    case EK_GGUF_ARRAY: break;
    }
    return false;
}

ek_status ek_model_gguf_int(const ek_gguf *gguf, const char *key, int64_t min, int64_t max,
                            int64_t *out_value, ek_err *err)
{
    const ek_gguf_pair *pair = pair_find(gguf, key);
    int64_t value;
    ek_assert(max < INT64_MAX);
    if (!pair) return fail_missing(key, err);
    if (!int_decode(pair, &value)) return fail_kind(pair, "an integer", err);
    if (value < min || value > max)
        return ek_err_set(err, EK_EFORMAT, "%s: is %lld, must be within %lld..%lld", key,
                          (long long)value, (long long)min, (long long)max);
    *out_value = value;
    return EK_OK;
}

static double f32_load(const uint8_t *p)
{
    uint32_t bits = ek_model_gguf_load_u32(p);
    float value;
    memcpy(&value, &bits, sizeof value);
    return (double)value;
}

static double f64_load(const uint8_t *p)
{
    uint64_t bits = ek_model_gguf_load_u64(p);
    double value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

ek_status ek_model_gguf_float(const ek_gguf *gguf, const char *key, double *out_value, ek_err *err)
{
    const ek_gguf_pair *pair = pair_find(gguf, key);
    if (!pair) return fail_missing(key, err);
    if (pair->kind != EK_GGUF_F32 && pair->kind != EK_GGUF_F64)
        return fail_kind(pair, "a floating-point number", err);
    double value = pair->kind == EK_GGUF_F32 ? f32_load(pair->scalar) : f64_load(pair->scalar);
    if (!isfinite(value)) return ek_err_set(err, EK_EFORMAT, "%s: is not a finite number", key);
    *out_value = value;
    return EK_OK;
}

ek_status ek_model_gguf_bool(const ek_gguf *gguf, const char *key, bool *out_value, ek_err *err)
{
    const ek_gguf_pair *pair = pair_find(gguf, key);
    if (!pair) return fail_missing(key, err);
    if (pair->kind != EK_GGUF_BOOL) return fail_kind(pair, "a boolean", err);
    *out_value = *pair->scalar != 0;
    return EK_OK;
}

ek_status ek_model_gguf_str(const ek_gguf *gguf, const char *key, ek_str *out_value, ek_err *err)
{
    const ek_gguf_pair *pair = pair_find(gguf, key);
    if (!pair) return fail_missing(key, err);
    if (pair->kind != EK_GGUF_STRING) return fail_kind(pair, "a string", err);
    *out_value = pair->string;
    return EK_OK;
}

ek_status ek_model_gguf_array(const ek_gguf *gguf, const char *key, ek_gguf_kind kind,
                              ek_gguf_array *out_array, ek_err *err)
{
    const ek_gguf_pair *pair = pair_find(gguf, key);
    if (!pair) return fail_missing(key, err);
    if (pair->kind != EK_GGUF_ARRAY) return fail_kind(pair, "an array", err);
    if (pair->array.kind != kind)
        return ek_err_set(err, EK_EFORMAT, "%s: holds an array of %s, must be one of %s", key,
                          ek_model_gguf_kind_name(pair->array.kind), ek_model_gguf_kind_name(kind));
    *out_array = pair->array;
    return EK_OK;
}

float ek_model_gguf_array_f32(const ek_gguf_array *array, int64_t idx)
{
    ek_assert(array->kind == EK_GGUF_F32);
    ek_assert(idx >= 0 && idx < array->len);
    return (float)f32_load(array->data + (size_t)idx * sizeof(float));
}

int32_t ek_model_gguf_array_i32(const ek_gguf_array *array, int64_t idx)
{
    ek_assert(array->kind == EK_GGUF_I32);
    ek_assert(idx >= 0 && idx < array->len);
    return (int32_t)ek_model_gguf_load_u32(array->data + (size_t)idx * sizeof(int32_t));
}
