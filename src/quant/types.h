/*
 * The tensor element types of GGUF and how their blocks lie on disk.
 * Source: the GGUF specification and the block layouts of ggml (k-quants by Iwan Kawrakow); the
 * layouts are facts of the file format and asserted here.
 *
 * Every quantised type stores a row as consecutive blocks; a row's length is a multiple of the
 * block's element count. All numbers are little-endian. Pure.
 */
#ifndef EK_QUANT_TYPES_H
#define EK_QUANT_TYPES_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Values are GGUF's on-disk type numbers. */
typedef enum ek_type {
    EK_TYPE_F32 = 0,
    EK_TYPE_F16 = 1,
    EK_TYPE_Q4_0 = 2,
    EK_TYPE_Q8_0 = 8,
    EK_TYPE_Q4_K = 12,
    EK_TYPE_Q5_K = 13,
    EK_TYPE_Q6_K = 14,
    EK_TYPE_BF16 = 30,
} ek_type;

#define EK_TYPE_MAX 31 /* array size for tables indexed by ek_type */

typedef struct ek_type_info {
    const char *name;    /* "Q4_K"; NULL: a number this program does not know */
    int32_t block_elems; /* elements per block, 1 for floats */
    int32_t block_bytes; /* bytes per block */
    bool supported;      /* false: known by name only (for error texts) */
} ek_type_info;

/** Facts of a type number as it stands in a file; NULL for numbers without a name. */
const ek_type_info *ek_quant_type_info(uint32_t type);

/** Bytes of a row of n_cols elements (a multiple of block_elems). */
size_t ek_quant_row_bytes(ek_type type, int64_t n_cols);

/* w = d * (q - 8); element j in the low nibble of qs[j], j + 16 in the high one. */
typedef struct ek_block_q4_0 {
    uint16_t d; /* f16 */
    uint8_t qs[16];
} ek_block_q4_0;
static_assert(sizeof(ek_block_q4_0) == 18, "Q4_0 block");

/* w = d * q */
typedef struct ek_block_q8_0 {
    uint16_t d; /* f16 */
    int8_t qs[32];
} ek_block_q8_0;
static_assert(sizeof(ek_block_q8_0) == 34, "Q8_0 block");

/*
 * 8 sub-blocks of 32: w = d * scale_j * q - dmin * min_j; scales and mins are 6 bits each, packed.
 */
typedef struct ek_block_q4_K {
    uint16_t d;    /* f16 */
    uint16_t dmin; /* f16 */
    uint8_t scales[12];
    uint8_t qs[128]; /* sub-blocks 2i and 2i+1 in the low and high nibbles of qs[32i..32i+31] */
} ek_block_q4_K;
static_assert(sizeof(ek_block_q4_K) == 144, "Q4_K block");

/* As Q4_K with a fifth bit: bit j of qh[i] belongs to element i of sub-block j. */
typedef struct ek_block_q5_K {
    uint16_t d;
    uint16_t dmin;
    uint8_t scales[12];
    uint8_t qh[32];
    uint8_t qs[128];
} ek_block_q5_K;
static_assert(sizeof(ek_block_q5_K) == 176, "Q5_K block");

/* 16 sub-blocks of 16: w = d * scale_j * (q - 32); 4 low bits in ql, 2 high bits in qh. */
typedef struct ek_block_q6_K {
    uint8_t ql[128];
    uint8_t qh[64];
    int8_t scales[16];
    uint16_t d; /* f16 */
} ek_block_q6_K;
static_assert(sizeof(ek_block_q6_K) == 210 && offsetof(ek_block_q6_K, d) == 208, "Q6_K block");

#define EK_K_ELEMS 256 /* elements of a K block */

#endif
