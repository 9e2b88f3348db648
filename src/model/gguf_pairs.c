/* The metadata section: keys, kinds and values. */
#include "base/size.h"
#include "model/gguf_internal.h"

static const struct {
    const char *name;
    size_t bytes;
} kinds[EK_GGUF_KINDS] = {
    [EK_GGUF_U8] = {"u8", 1},       [EK_GGUF_I8] = {"i8", 1},     [EK_GGUF_U16] = {"u16", 2},
    [EK_GGUF_I16] = {"i16", 2},     [EK_GGUF_U32] = {"u32", 4},   [EK_GGUF_I32] = {"i32", 4},
    [EK_GGUF_F32] = {"f32", 4},     [EK_GGUF_BOOL] = {"bool", 1}, [EK_GGUF_STRING] = {"string", 0},
    [EK_GGUF_ARRAY] = {"array", 0}, [EK_GGUF_U64] = {"u64", 8},   [EK_GGUF_I64] = {"i64", 8},
    [EK_GGUF_F64] = {"f64", 8},
};

const char *ek_model_gguf_kind_name(ek_gguf_kind kind)
{
    return (size_t)kind < EK_GGUF_KINDS ? kinds[kind].name : "?";
}

size_t ek_model_gguf_kind_bytes(ek_gguf_kind kind)
{
    return (size_t)kind < EK_GGUF_KINDS ? kinds[kind].bytes : 0;
}

static ek_status kind_take(ek_gguf_reader *reader, const char *part, ek_gguf_kind *out_kind)
{
    uint32_t number = 0;
    ek_status status = ek_model_gguf_take_u32(reader, part, &number);
    if (status != EK_OK) return status;
    if (number >= EK_GGUF_KINDS)
        return ek_model_gguf_fail(reader, EK_EFORMAT, "its %s is %u, the last one known is %d",
                                  part, number, EK_GGUF_KINDS - 1);
    *out_kind = (ek_gguf_kind)number;
    return EK_OK;
}

static ek_status bools_check(const ek_gguf_reader *reader, const uint8_t *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bytes[i] > 1)
            return ek_model_gguf_fail(reader, EK_EFORMAT, "a boolean is %u, must be 0 or 1",
                                      bytes[i]);
    return EK_OK;
}

static ek_status array_fits(const ek_gguf_reader *reader, const ek_gguf_array *array,
                            size_t bytes_min)
{
    size_t bytes;
    if (ek_size_mul((size_t)array->len, bytes_min, &bytes) && bytes <= ek_model_gguf_left(reader))
        return EK_OK;
    return ek_model_gguf_fail(
        reader, EK_ETRUNCATED, "an array of %lld %s does not fit into the %zu bytes left",
        (long long)array->len, ek_model_gguf_kind_name(array->kind), ek_model_gguf_left(reader));
}

static ek_status strings_read(ek_gguf_reader *reader, ek_gguf_array *array, ek_arena *perm)
{
    /* An empty string still takes its length's 8 bytes: so memory is bounded by the file's size. */
    ek_status status = array_fits(reader, array, sizeof(uint64_t));
    if (status != EK_OK) return status;
    ek_str *strings = ek_try_new(perm, ek_str, array->len);
    if (!strings) return ek_model_gguf_fail(reader, EK_ENOMEM, "no memory for its strings");
    for (int64_t i = 0; i < array->len && status == EK_OK; i++)
        status = ek_model_gguf_take_str(reader, "string in its array", &strings[i]);
    array->strings = strings;
    return status;
}

static ek_status array_read(ek_gguf_reader *reader, ek_gguf_array *array, ek_arena *perm)
{
    uint64_t len = 0;
    ek_status status = kind_take(reader, "element kind", &array->kind);
    if (status == EK_OK) status = ek_model_gguf_take_u64(reader, "array length", &len);
    if (status != EK_OK) return status;
    if (array->kind == EK_GGUF_ARRAY)
        return ek_model_gguf_fail(reader, EK_EUNSUPPORTED, "arrays of arrays are not supported");
    if (len > INT64_MAX)
        return ek_model_gguf_fail(reader, EK_EFORMAT, "its array length is negative or absurd");
    array->len = (int64_t)len;
    if (array->kind == EK_GGUF_STRING) return strings_read(reader, array, perm);

    size_t element = ek_model_gguf_kind_bytes(array->kind);
    status = array_fits(reader, array, element);
    if (status != EK_OK) return status;
    status = ek_model_gguf_take(reader, (size_t)len * element, "array", &array->data);
    if (status == EK_OK && array->kind == EK_GGUF_BOOL)
        status = bools_check(reader, array->data, (size_t)len);
    return status;
}

static ek_status pair_read(ek_gguf_reader *reader, ek_gguf_pair *pair, ek_arena *perm)
{
    ek_status status = ek_model_gguf_take_name(reader);
    if (status != EK_OK) return status;
    pair->name = reader->name;
    status = kind_take(reader, "kind", &pair->kind);
    if (status != EK_OK) return status;
    if (pair->kind == EK_GGUF_STRING)
        return ek_model_gguf_take_str(reader, "string", &pair->string);
    if (pair->kind == EK_GGUF_ARRAY) return array_read(reader, &pair->array, perm);

    size_t bytes = ek_model_gguf_kind_bytes(pair->kind);
    status = ek_model_gguf_take(reader, bytes, "value", &pair->scalar);
    if (status == EK_OK && pair->kind == EK_GGUF_BOOL)
        status = bools_check(reader, pair->scalar, bytes);
    return status;
}

ek_status ek_model_gguf_pairs_read(ek_gguf_reader *reader, uint64_t n_pairs, ek_arena *perm,
                                   ek_gguf *gguf)
{
    if (n_pairs > EK_GGUF_KEYS_MAX)
        return ek_model_gguf_fail(reader, EK_EFORMAT, "%llu keys are over the limit of %d",
                                  (unsigned long long)n_pairs, EK_GGUF_KEYS_MAX);
    if (n_pairs > ek_model_gguf_left(reader) / EK_GGUF_PAIR_BYTES_MIN)
        return ek_model_gguf_fail(reader, EK_ETRUNCATED,
                                  "%llu keys do not fit into the %zu bytes left",
                                  (unsigned long long)n_pairs, ek_model_gguf_left(reader));
    gguf->n_pairs = (int32_t)n_pairs;
    gguf->pairs = ek_try_new(perm, ek_gguf_pair, n_pairs);
    if (!gguf->pairs) return ek_model_gguf_fail(reader, EK_ENOMEM, "no memory for the keys");

    ek_gguf_reader entry = *reader;
    entry.noun = "key";
    entry.count = gguf->n_pairs;
    for (entry.idx = 0; entry.idx < entry.count; entry.idx++) {
        entry.name = (ek_str){0};
        ek_status status = pair_read(&entry, &gguf->pairs[entry.idx], perm);
        if (status != EK_OK) return status;
    }
    reader->at = entry.at;

    int32_t duplicate = -1;
    ek_status status = ek_model_gguf_index_build(gguf->pairs, sizeof *gguf->pairs, gguf->n_pairs,
                                                 perm, &gguf->pair_index, &duplicate);
    if (status != EK_OK)
        return ek_model_gguf_fail(reader, status, "no memory for the index of keys");
    if (duplicate < 0) return EK_OK;
    entry.name = gguf->pairs[duplicate].name;
    return ek_model_gguf_fail(&entry, EK_EFORMAT, "is there more than once");
}
