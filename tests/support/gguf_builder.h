/*
 * A GGUF file built in memory, for tests of what reads one: right by default, wrong where a test
 * asks.
 *
 * Keys and tensors are kept in order; setting a key again replaces it, adding it again makes a
 * duplicate. Nothing here is checked: the reader is what is under test.
 */
#ifndef EK_TESTS_SUPPORT_GGUF_BUILDER_H
#define EK_TESTS_SUPPORT_GGUF_BUILDER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/span.h"
#include "model/gguf.h"
#include "quant/types.h"

#define EK_BUILDER_ENTRIES_MAX 256
#define EK_BUILDER_NAME_MAX    512

typedef struct ek_builder_pair {
    char name[EK_BUILDER_NAME_MAX];
    size_t name_len;
    uint32_t kind;
    uint8_t *value; /* owned */
    size_t bytes;
} ek_builder_pair;

typedef struct ek_builder_tensor {
    char name[EK_BUILDER_NAME_MAX];
    size_t name_len;
    uint32_t n_dims;
    uint64_t dim[8];
    uint32_t type;
    uint64_t offset; /* UINT64_MAX: after the tensor before it, aligned */
    size_t bytes;    /* what the data section holds for it, zeros */
} ek_builder_tensor;

/** The file as it is going to be written; tests may change fields before ek_builder_finish. */
typedef struct ek_builder {
    uint32_t version;
    uint64_t align;
    int64_t n_pairs_said; /* -1: as many as there are */
    int64_t n_tensors_said;
    ek_builder_pair pair[EK_BUILDER_ENTRIES_MAX];
    int32_t n_pairs;
    ek_builder_tensor tensor[EK_BUILDER_ENTRIES_MAX];
    int32_t n_tensors;
} ek_builder;

ek_builder *ek_builder_create(void);
void ek_builder_destroy(ek_builder *b);

/** Add a pair whose value is spelled out in bytes, even under a name that is there already. */
void ek_builder_add(ek_builder *b, const char *key, uint32_t kind, const void *value, size_t bytes);
/** Remove a key or tensor; it has to be there. */
void ek_builder_remove(ek_builder *b, const char *name);

void ek_builder_u32(ek_builder *b, const char *key, uint32_t value);
void ek_builder_f32(ek_builder *b, const char *key, float value);
void ek_builder_bool(ek_builder *b, const char *key, uint8_t value);
void ek_builder_str(ek_builder *b, const char *key, const char *value);
/** n strings "0", "1", ... */
void ek_builder_strings(ek_builder *b, const char *key, uint64_t n);

/** Append a tensor of the given shape, trailing zeros in `dim` cut; returns it for changes. */
ek_builder_tensor *ek_builder_tensor_add(ek_builder *b, const char *name, ek_type type,
                                         const int64_t dim[4]);
ek_builder_tensor *ek_builder_tensor_find(ek_builder *b, const char *name);

/** The file in a heap block of exactly its size; ek_fixture_free frees it. */
ek_span ek_builder_finish(const ek_builder *b);

/**
 * The smallest model that loads: keys and F32 tensors of one layer, d 32, two heads of 16, 4
 * experts of which 2 are used, expert width 64, and for qwen2moe a shared expert of 96; a
 * vocabulary of 5.
 */
ek_builder *ek_builder_model(const char *arch);

#endif
