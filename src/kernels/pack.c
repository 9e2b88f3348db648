#include "kernels/pack.h"

#include <string.h>

/* Where a block's 2-byte scale stands if it is none of the dwords. */
static size_t scale_offset(ek_type type)
{
    return type == EK_TYPE_Q6_K ? offsetof(ek_block_q6_K, d) : 0;
}

/* Where its dwords begin. */
static size_t dwords_offset(ek_type type)
{
    return type == EK_TYPE_Q4_0 || type == EK_TYPE_Q8_0 ? sizeof(uint16_t) : 0;
}

size_t ek_kernels_pack_dwords(ek_type type)
{
    switch (type) {
    case EK_TYPE_Q4_0: return sizeof(((ek_block_q4_0 *)0)->qs) / 4;
    case EK_TYPE_Q8_0: return sizeof(((ek_block_q8_0 *)0)->qs) / 4;
    case EK_TYPE_Q4_K: return sizeof(ek_block_q4_K) / 4;
    case EK_TYPE_Q5_K: return sizeof(ek_block_q5_K) / 4;
    case EK_TYPE_Q6_K: return offsetof(ek_block_q6_K, d) / 4;
    case EK_TYPE_F32:
    case EK_TYPE_F16:
    case EK_TYPE_BF16: return 0;
    }
    return 0;
}

/* n groups of `bytes` bytes (a constant) of all rows, side by side. */
static inline void interleave(const uint8_t *rows, size_t row_stride, size_t n, size_t bytes,
                              uint8_t *out)
{
    for (size_t i = 0; i < n; i++)
        for (size_t r = 0; r < EK_PACK_ROWS; r++)
            memcpy(out + (i * EK_PACK_ROWS + r) * bytes, rows + r * row_stride + i * bytes, bytes);
}

static uint32_t load_32(const uint8_t *at)
{
    uint32_t x;
    memcpy(&x, at, sizeof x);
    return x;
}

/* The 16 codes of a packed block's half block i as 12 bytes; 4 codes at a time are one number. */
static void q6_k_regroup(const uint8_t *from, int i, uint32_t out[3])
{
    int block = ek_kernels_pack_q6_k_block(i), half = ek_kernels_pack_q6_k_half(i);
    int quarter = block % 4;
    const uint8_t *low = from + offsetof(ek_block_q6_K, ql);
    const uint8_t *high = from + offsetof(ek_block_q6_K, qh) + block / 4 * 32 + half * 16;
    low += block / 4 * 64 + quarter % 2 * 32 + half * 16;
    uint32_t code[4];
    for (int k = 0; k < 4; k++) {
        uint32_t top = load_32(high + k * 4) >> (2 * quarter) & 0x03030303u;
        code[k] = (load_32(low + k * 4) >> (quarter / 2 * 4) & 0x0f0f0f0fu) | top << 4;
    }
    out[0] = code[0] | (code[3] & 0x30303030u) << 2;
    out[1] = code[1] | (code[3] & 0x0c0c0c0cu) << 4;
    out[2] = code[2] | (code[3] & 0x03030303u) << 6;
}

/* One block of all rows, up to its last 2 bytes. */
static void q6_k_pack(const uint8_t *rows, size_t row_stride, uint8_t *out)
{
    enum { HALVES = 16, PARTS = 3 };
    for (size_t r = 0; r < EK_PACK_ROWS; r++) {
        for (size_t i = 0; i < HALVES; i++) {
            uint32_t part[PARTS];
            q6_k_regroup(rows + r * row_stride, (int)i, part);
            for (size_t p = 0; p < PARTS; p++)
                memcpy(out + ((i * PARTS + p) * EK_PACK_ROWS + r) * 4, &part[p], 4);
        }
    }
    size_t codes = offsetof(ek_block_q6_K, scales);
    interleave(rows + codes, row_stride, sizeof(((ek_block_q6_K *)0)->scales) / 4, 4,
               out + codes * EK_PACK_ROWS);
}

void ek_kernels_pack(ek_type type, int32_t n_cols, const uint8_t *rows, size_t row_stride,
                     uint8_t *out_panel)
{
    const ek_type_info *info = ek_quant_type_info((uint32_t)type);
    size_t block_bytes = (size_t)info->block_bytes;
    size_t n_blocks = (size_t)(n_cols / info->block_elems);
    size_t n_dwords = ek_kernels_pack_dwords(type);
    size_t packed_bytes = n_dwords * sizeof(uint32_t);
    uint8_t *out = out_panel;
    for (size_t b = 0; b < n_blocks; b++, out += packed_bytes * EK_PACK_ROWS) {
        const uint8_t *block = rows + b * block_bytes;
        if (type == EK_TYPE_Q6_K)
            q6_k_pack(block, row_stride, out);
        else
            interleave(block + dwords_offset(type), row_stride, n_dwords, sizeof(uint32_t), out);
    }
    if (packed_bytes == block_bytes) return;
    for (size_t b = 0; b < n_blocks; b++, out += sizeof(uint16_t) * EK_PACK_ROWS)
        interleave(rows + b * block_bytes + scale_offset(type), row_stride, 1, sizeof(uint16_t),
                   out);
}
