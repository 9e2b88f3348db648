/*
 * A GGUF file in memory that holds a tokenizer and nothing else, for tests, fuzz targets and
 * benchmarks. Header-only, since fuzz targets link no test library; plain heap memory, freed with
 * vocab_file_free.
 */
#ifndef EK_TESTS_SUPPORT_VOCAB_FILE_H
#define EK_TESTS_SUPPORT_VOCAB_FILE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "base/span.h"
#include "model/gguf.h"

typedef struct vocab_file {
    uint8_t *data; /* owned */
    size_t len, cap;
    uint64_t n_keys;
} vocab_file;

static inline void vocab_file_bytes(vocab_file *f, const void *bytes, size_t n)
{
    if (f->len + n > f->cap) {
        f->cap = 2 * (f->len + n) + 4096;
        f->data = realloc(f->data, f->cap);
        if (!f->data) abort();
    }
    if (n > 0) memcpy(f->data + f->len, bytes, n);
    f->len += n;
}

static inline void vocab_file_u32(vocab_file *f, uint32_t value)
{
    vocab_file_bytes(f, &value, sizeof value);
}

static inline void vocab_file_u64(vocab_file *f, uint64_t value)
{
    vocab_file_bytes(f, &value, sizeof value);
}

static inline void vocab_file_text(vocab_file *f, ek_str text)
{
    vocab_file_u64(f, text.len);
    vocab_file_bytes(f, text.data, text.len);
}

static inline void vocab_file_key(vocab_file *f, const char *key, ek_gguf_kind kind)
{
    if (f->n_keys++ == 0) {
        static const uint8_t header[24] = {'G', 'G', 'U', 'F', 3};
        vocab_file_bytes(f, header, sizeof header);
    }
    vocab_file_text(f, ek_str_from(key));
    vocab_file_u32(f, (uint32_t)kind);
}

static inline void vocab_file_str(vocab_file *f, const char *key, const char *value)
{
    vocab_file_key(f, key, EK_GGUF_STRING);
    vocab_file_text(f, ek_str_from(value));
}

static inline void vocab_file_id(vocab_file *f, const char *key, uint32_t value)
{
    vocab_file_key(f, key, EK_GGUF_U32);
    vocab_file_u32(f, value);
}

static inline void vocab_file_bool(vocab_file *f, const char *key, uint8_t value)
{
    vocab_file_key(f, key, EK_GGUF_BOOL);
    vocab_file_bytes(f, &value, 1);
}

static inline void vocab_file_array(vocab_file *f, const char *key, ek_gguf_kind kind, uint64_t n)
{
    vocab_file_key(f, key, EK_GGUF_ARRAY);
    vocab_file_u32(f, (uint32_t)kind);
    vocab_file_u64(f, n);
}

static inline void vocab_file_strings(vocab_file *f, const char *key, const ek_str *strings,
                                      uint64_t n)
{
    vocab_file_array(f, key, EK_GGUF_STRING, n);
    for (uint64_t i = 0; i < n; i++)
        vocab_file_text(f, strings[i]);
}

static inline void vocab_file_i32s(vocab_file *f, const char *key, const int32_t *values,
                                   uint64_t n)
{
    vocab_file_array(f, key, EK_GGUF_I32, n);
    vocab_file_bytes(f, values, n * sizeof *values);
}

static inline void vocab_file_f32s(vocab_file *f, const char *key, const float *values, uint64_t n)
{
    vocab_file_array(f, key, EK_GGUF_F32, n);
    vocab_file_bytes(f, values, n * sizeof *values);
}

/** The finished file: valid until the next key or vocab_file_free. */
static inline ek_span vocab_file_finish(vocab_file *f)
{
    while (f->len % 32 != 0)
        vocab_file_bytes(f, "", 1);
    memcpy(f->data + 16, &f->n_keys, sizeof f->n_keys); /* no tensors: the count at 8 stays 0 */
    return (ek_span){f->data, f->len};
}

static inline void vocab_file_free(vocab_file *f)
{
    free(f->data);
    *f = (vocab_file){0};
}

#endif
