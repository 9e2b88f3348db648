/*
 * Writing small GGUF files: a few texts and numbers, and F32 tensors. Little-endian, version 3,
 * alignment 32; what is written reads back with gguf.h. Pure.
 */
#ifndef EK_MODEL_GGUF_WRITE_H
#define EK_MODEL_GGUF_WRITE_H

#include <stddef.h>
#include <stdint.h>

typedef struct ek_gguf_out_pair {
    const char *key;
    const char *text; /* a string's value; NULL: `number` is the value, a u32 */
    uint32_t number;
} ek_gguf_out_pair;

typedef struct ek_gguf_out_tensor {
    char name[64];
    int64_t dim[2];    /* fastest first; dim[1] 0: one dimension */
    const float *data; /* borrowed for the call */
} ek_gguf_out_tensor;

typedef struct ek_gguf_out {
    const ek_gguf_out_pair *pairs;
    int32_t n_pairs;
    const ek_gguf_out_tensor *tensors;
    int32_t n_tensors;
} ek_gguf_out;

/** Bytes of the file. */
size_t ek_model_gguf_write_bytes(const ek_gguf_out *out);

/** @param file (ek_model_gguf_write_bytes) */
void ek_model_gguf_write(const ek_gguf_out *out, uint8_t *file);

#endif
