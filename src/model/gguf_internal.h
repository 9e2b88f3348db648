/*
 * What the parts of the GGUF reader share: the parsed file, the cursor, and the name index. Private
 * to gguf*.c.
 */
#ifndef EK_MODEL_GGUF_INTERNAL_H
#define EK_MODEL_GGUF_INTERNAL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/span.h"
#include "model/gguf.h"

#define EK_GGUF_KINDS 13

/* The least that one entry takes in a file: what bounds a count before memory is taken for it. */
#define EK_GGUF_PAIR_BYTES_MIN   14 /* length, 1 byte of name, kind, 1 byte of value */
#define EK_GGUF_TENSOR_BYTES_MIN 33 /* length, 1 byte of name, n_dims, 1 dim, type, offset */

/** One key and its value. `name` comes first: the index reads it there. */
typedef struct ek_gguf_pair {
    ek_str name;
    ek_gguf_kind kind;
    const uint8_t *scalar; /* little-endian, unaligned; numbers and booleans only */
    ek_str string;         /* strings only */
    ek_gguf_array array;   /* arrays only */
} ek_gguf_pair;

/** Sorted view of n records that begin with their name. */
typedef struct ek_gguf_index {
    const void *records; /* borrowed */
    size_t stride;
    int32_t n;
    int32_t *order; /* (n) record numbers, names ascending; in perm */
} ek_gguf_index;

struct ek_gguf {
    ek_gguf_pair *pairs;
    int32_t n_pairs;
    ek_gguf_index pair_index;
    ek_tensor *tensors;
    int32_t n_tensors;
    ek_gguf_index tensor_index;
};

/** A cursor over one shard that knows what it is reading, so that an error can say where it is. */
typedef struct ek_gguf_reader {
    ek_span file;
    size_t at;        /* offset of the next byte, <= file.len */
    const char *noun; /* "header", "key" or "tensor" */
    ek_str name;      /* of the entry; empty until it is known */
    int64_t idx;      /* of the entry, from 0 */
    int64_t count;    /* of entries of this noun */
    ek_err *err;
} ek_gguf_reader;

/** Record an error at the reader's place: "key 3 of 17: ...", "tensor blk.0.attn_q.weight: ...". */
ek_status ek_model_gguf_fail(const ek_gguf_reader *reader, ek_status status, const char *fmt, ...)
    EK_PRINTF(3, 4);

static inline size_t ek_model_gguf_left(const ek_gguf_reader *reader)
{
    return reader->file.len - reader->at;
}

/** Take n bytes; `part` names them in the error. @return EK_OK; EK_ETRUNCATED */
EK_MUST ek_status ek_model_gguf_take(ek_gguf_reader *reader, size_t n, const char *part,
                                     const uint8_t **out_bytes);
/** A little-endian number. @return EK_OK; EK_ETRUNCATED */
EK_MUST ek_status ek_model_gguf_take_u32(ek_gguf_reader *reader, const char *part,
                                         uint32_t *out_value);
/** A little-endian number. @return EK_OK; EK_ETRUNCATED */
EK_MUST ek_status ek_model_gguf_take_u64(ek_gguf_reader *reader, const char *part,
                                         uint64_t *out_value);
/** A counted string of any bytes. @return EK_OK; EK_ETRUNCATED */
EK_MUST ek_status ek_model_gguf_take_str(ek_gguf_reader *reader, const char *part,
                                         ek_str *out_text);
/**
 * An entry's name: printable ASCII, 1..EK_GGUF_NAME_MAX bytes. Errors from here on call the entry
 * by it.
 * @return EK_OK; EK_EFORMAT; EK_ETRUNCATED
 */
EK_MUST ek_status ek_model_gguf_take_name(ek_gguf_reader *reader);

/**
 * The n_pairs pairs at the cursor, and their index.
 * @return EK_OK; EK_EFORMAT; EK_ETRUNCATED; EK_EUNSUPPORTED; EK_ENOMEM
 */
EK_MUST ek_status ek_model_gguf_pairs_read(ek_gguf_reader *reader, uint64_t n_pairs, ek_arena *perm,
                                           ek_gguf *gguf);

/**
 * The n_tensors directory entries at the cursor, each checked against the shard's data section.
 * @param align   of the data section and of every tensor in it
 * @param scratch holds offsets until the section's place is known
 * @param out_tensors (n_tensors)
 * @return EK_OK; EK_EFORMAT; EK_ETRUNCATED; EK_EUNSUPPORTED a type; EK_ENOMEM
 */
EK_MUST ek_status ek_model_gguf_tensors_read(ek_gguf_reader *reader, int32_t n_tensors,
                                             size_t align, ek_arena scratch,
                                             ek_tensor *out_tensors);

/**
 * Sort records by name. Cost O(n log n) whatever the names are, so that no file can make it slow.
 * @param out_duplicate number of a record whose name an earlier one has; -1: all differ
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_model_gguf_index_build(const void *records, size_t stride, int32_t n,
                                            ek_arena *perm, ek_gguf_index *out_index,
                                            int32_t *out_duplicate);
/** Number of the record of that name; -1: none. */
int32_t ek_model_gguf_index_find(const ek_gguf_index *index, ek_str name);

/** "u32"; "?" outside the table. */
const char *ek_model_gguf_kind_name(ek_gguf_kind kind);
/** Bytes of one number or boolean; 0 for strings and arrays. */
size_t ek_model_gguf_kind_bytes(ek_gguf_kind kind);

static inline uint16_t ek_model_gguf_load_u16(const uint8_t *p)
{
    return (uint16_t)(p[0] | p[1] << 8);
}

static inline uint32_t ek_model_gguf_load_u32(const uint8_t *p)
{
    return (uint32_t)ek_model_gguf_load_u16(p) | (uint32_t)ek_model_gguf_load_u16(p + 2) << 16;
}

static inline uint64_t ek_model_gguf_load_u64(const uint8_t *p)
{
    return (uint64_t)ek_model_gguf_load_u32(p) | (uint64_t)ek_model_gguf_load_u32(p + 4) << 32;
}

#endif
