#include "model/gguf_write.h"

#include <assert.h>
#include <string.h>

#include "base/size.h"
#include "model/gguf.h"
#include "quant/types.h"

#define GGUF_VERSION 3
#define ALIGNMENT    32 /* what a file without general.alignment has */

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "tensors are written as they lie");

/* Where the next byte goes; without memory it only counts, so that size and file cannot differ. */
typedef struct sink {
    uint8_t *base; /* NULL: count */
    size_t used;
} sink;

static void put(sink *s, const void *bytes, size_t n)
{
    if (s->base && n > 0) memcpy(s->base + s->used, bytes, n);
    s->used += n;
}

static void put_u32(sink *s, uint32_t value)
{
    put(s, &value, sizeof value);
}

static void put_u64(sink *s, uint64_t value)
{
    put(s, &value, sizeof value);
}

static void put_text(sink *s, const char *text)
{
    put_u64(s, strlen(text));
    put(s, text, strlen(text));
}

static void pad(sink *s)
{
    static const uint8_t zeros[ALIGNMENT];
    put(s, zeros, ek_size_align(s->used, ALIGNMENT) - s->used);
}

static size_t tensor_bytes(const ek_gguf_out_tensor *t)
{
    return (size_t)t->dim[0] * (size_t)(t->dim[1] > 0 ? t->dim[1] : 1) * sizeof(float);
}

static void put_pair(sink *s, const ek_gguf_out_pair *pair)
{
    put_text(s, pair->key);
    put_u32(s, pair->text ? EK_GGUF_STRING : EK_GGUF_U32);
    if (pair->text)
        put_text(s, pair->text);
    else
        put_u32(s, pair->number);
}

static void put_file(sink *s, const ek_gguf_out *out)
{
    put(s, "GGUF", 4);
    put_u32(s, GGUF_VERSION);
    put_u64(s, (uint64_t)out->n_tensors);
    put_u64(s, (uint64_t)out->n_pairs);
    for (int32_t i = 0; i < out->n_pairs; i++)
        put_pair(s, &out->pairs[i]);
    size_t offset = 0;
    for (int32_t i = 0; i < out->n_tensors; i++) {
        const ek_gguf_out_tensor *t = &out->tensors[i];
        uint32_t n_dims = t->dim[1] > 0 ? 2 : 1;
        put_text(s, t->name);
        put_u32(s, n_dims);
        for (uint32_t d = 0; d < n_dims; d++)
            put_u64(s, (uint64_t)t->dim[d]);
        put_u32(s, EK_TYPE_F32);
        put_u64(s, offset);
        offset += ek_size_align(tensor_bytes(t), ALIGNMENT);
    }
    pad(s);
    for (int32_t i = 0; i < out->n_tensors; i++) {
        put(s, out->tensors[i].data, tensor_bytes(&out->tensors[i]));
        pad(s);
    }
}

size_t ek_model_gguf_write_bytes(const ek_gguf_out *out)
{
    sink s = {0};
    put_file(&s, out);
    return s.used;
}

void ek_model_gguf_write(const ek_gguf_out *out, uint8_t *file)
{
    sink s = {.base = file};
    put_file(&s, out);
}
