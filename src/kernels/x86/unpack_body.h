/*
 * From blocks as they lie in the file to panels: 16 rows by up to 256 columns of codes, turned so that a vector
 * holds 4 neighbouring columns of 16 rows. Written on v16; include a v16 header first.
 *
 * In a panel a weight is  a * code - b  (Q4_0, Q8_0, Q4_K, Q5_K; a, b per row and block of 32) or
 * a * (code - 32) for the first 16 columns of a block and b * (code - 32) for the others (Q6_K). Codes are unsigned.
 */
#include "kernels/kernels.h"

enum {
    PANEL_ROWS = 16,
    PANEL_BLOCKS = 8, /* blocks of 32 columns */
    BLOCK_DWORDS = 8, /* a block's columns in groups of 4 */
    CODE_BYTES = 64,  /* one group of 4 columns of 16 rows */
};

typedef struct panel {
    EK_ALIGNED(64) uint8_t code[PANEL_BLOCKS][BLOCK_DWORDS][CODE_BYTES];
    EK_ALIGNED(64) float a[PANEL_BLOCKS][PANEL_ROWS];
    EK_ALIGNED(64) float b[PANEL_BLOCKS][PANEL_ROWS];
} panel;

/*
 * Sixteen rows are read side by side, which no hardware prefetcher follows for long. So while one tile of rows is unpacked the
 * next one is fetched into the second-level cache, as many bytes with each slice as the slice itself takes: an even
 * pace keeps the memory busy and never fills its queue (measured: twice the bandwidth of fetching in bursts).
 */
typedef struct prefetch {
    uintptr_t next, end; /* addresses */
} prefetch;

EK_V16_INLINE void prefetch_step(prefetch *ahead, size_t slice_bytes)
{
    if (ahead->next >= ahead->end) return;
    for (size_t at = 0; at < slice_bytes; at += EK_CACHE_LINE)
        _mm_prefetch((const char *)(ahead->next + at), _MM_HINT_T1);
    ahead->next += slice_bytes;
}

/** Unpack n_blocks blocks of 32 columns that start `offset` bytes behind each row pointer. */
typedef void (*unpack_fn)(const uint8_t *const row[PANEL_ROWS], size_t offset, int n_blocks,
                          prefetch *ahead, panel *out);

/* Types whose weights are d * (code - zero). */
EK_V16_INLINE void store_centred(panel *out, int block, v16f d, float zero)
{
    v16f_store(out->a[block], d);
    v16f_store(out->b[block], v16f_mul(d, v16f_set1(zero)));
}

static void unpack_q4_0(const uint8_t *const row[PANEL_ROWS], size_t offset, int n_blocks,
                        prefetch *ahead, panel *out)
{
    const v16i nibble = v16i_set1(0x0f0f0f0f);
    for (int block = 0; block < n_blocks; block++, offset += sizeof(ek_block_q4_0)) {
        v16i head[4], packed[4];
        prefetch_step(ahead, PANEL_ROWS * sizeof(ek_block_q4_0));
        v16_load_columns(row, offset, head); /* the scale is the low half of head[0] */
        v16_load_columns(row, offset + offsetof(ek_block_q4_0, qs), packed);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            v16i_store(out->code[block][k], v16i_and(packed[k], nibble));
            v16i_store(out->code[block][k + 4], v16i_and(v16i_shr(packed[k], 4), nibble));
        }
        store_centred(out, block, v16f_from_low_f16(head[0]), 8.0f);
    }
}

static void unpack_q8_0(const uint8_t *const row[PANEL_ROWS], size_t offset, int n_blocks,
                        prefetch *ahead, panel *out)
{
    const v16i flip = v16i_set1((int32_t)0x80808080); /* q + 128, byte by byte */
    for (int block = 0; block < n_blocks; block++, offset += sizeof(ek_block_q8_0)) {
        v16i head[4];
        v16_load_columns(row, offset, head);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            v16i codes[4];
            prefetch_step(ahead, PANEL_ROWS * sizeof(ek_block_q8_0) / 2);
            size_t at = offset + offsetof(ek_block_q8_0, qs) + (size_t)half * 16;
            v16_load_columns(row, at, codes);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++)
                v16i_store(out->code[block][half * 4 + k], v16i_xor(codes[k], flip));
        }
        store_centred(out, block, v16f_from_low_f16(head[0]), 128.0f);
    }
}

/* Byte j of each dword, widened and multiplied. */
EK_V16_INLINE v16f scaled_byte(v16i bytes, unsigned j, v16f factor)
{
    v16i byte = v16i_and(v16i_shr(bytes, 8 * j), v16i_set1(0xff));
    return v16f_mul(v16f_from_i(byte), factor);
}

/*
 * Scales and mins of Q4_K and Q5_K. Their blocks begin with 16 bytes, d, dmin and the 12 bytes of packed six-bit
 * values, so the turned head is one vector of d and dmin and three of packed values.
 */
EK_V16_INLINE void unpack_k_scales(const uint8_t *const row[PANEL_ROWS], size_t offset, panel *out)
{
    static_assert(offsetof(ek_block_q4_K, qs) == 16 && offsetof(ek_block_q5_K, qh) == 16,
                  "the head is 16 bytes");
    v16i head[4];
    v16_load_columns(row, offset, head);
    const v16i six = v16i_set1(0x3f3f3f3f), four = v16i_set1(0x0f0f0f0f);
    const v16i two = v16i_set1(0x03030303);
    v16i scale_low = v16i_and(head[1], six), min_low = v16i_and(head[2], six);
    v16i scale_top = v16i_shl(v16i_and(v16i_shr(head[1], 6), two), 4);
    v16i min_top = v16i_shl(v16i_and(v16i_shr(head[2], 6), two), 4);
    v16i scale_high = v16i_or(v16i_and(head[3], four), scale_top);
    v16i min_high = v16i_or(v16i_and(v16i_shr(head[3], 4), four), min_top);
    v16f d = v16f_from_low_f16(head[0]), dmin = v16f_from_low_f16(v16i_shr(head[0], 16));
#pragma GCC unroll 4
    for (unsigned j = 0; j < 4; j++) {
        v16f_store(out->a[j], scaled_byte(scale_low, j, d));
        v16f_store(out->b[j], scaled_byte(min_low, j, dmin));
        v16f_store(out->a[j + 4], scaled_byte(scale_high, j, d));
        v16f_store(out->b[j + 4], scaled_byte(min_high, j, dmin));
    }
}

static void unpack_q4_k(const uint8_t *const row[PANEL_ROWS], size_t offset, int n_blocks EK_UNUSED,
                        prefetch *ahead, panel *out)
{
    const v16i nibble = v16i_set1(0x0f0f0f0f);
    unpack_k_scales(row, offset, out);
    for (int slice = 0; slice < 8; slice++) { /* 16 of the 128 bytes of codes */
        v16i packed[4];
        prefetch_step(ahead, PANEL_ROWS * sizeof(ek_block_q4_K) / 8);
        v16_load_columns(row, offset + offsetof(ek_block_q4_K, qs) + (size_t)slice * 16, packed);
        int block = slice / 2 * 2, dword = slice % 2 * 4;
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            v16i_store(out->code[block][dword + k], v16i_and(packed[k], nibble));
            v16i_store(out->code[block + 1][dword + k], v16i_and(v16i_shr(packed[k], 4), nibble));
        }
    }
}

/* Bit 0 of every byte, moved to bit 4. */
EK_V16_INLINE v16i fifth_bit(v16i bits)
{
    return v16i_shl(v16i_and(bits, v16i_set1(0x01010101)), 4);
}

static void unpack_q5_k(const uint8_t *const row[PANEL_ROWS], size_t offset, int n_blocks EK_UNUSED,
                        prefetch *ahead, panel *out)
{
    const v16i nibble = v16i_set1(0x0f0f0f0f);
    unpack_k_scales(row, offset, out);
    for (int half = 0; half < 2; half++) { /* 16 of the 32 columns of every block */
        v16i high[4];
        v16_load_columns(row, offset + offsetof(ek_block_q5_K, qh) + (size_t)half * 16, high);
        for (int pair = 0; pair < 4; pair++) {
            v16i packed[4];
            prefetch_step(ahead, PANEL_ROWS * sizeof(ek_block_q5_K) / 8);
            size_t at = (size_t)(pair * 32 + half * 16);
            v16_load_columns(row, offset + offsetof(ek_block_q5_K, qs) + at, packed);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                v16i low = v16i_and(packed[k], nibble);
                v16i upper = v16i_and(v16i_shr(packed[k], 4), nibble);
                v16i_store(out->code[pair * 2][half * 4 + k], v16i_or(low, fifth_bit(high[k])));
                v16i_store(out->code[pair * 2 + 1][half * 4 + k],
                           v16i_or(upper, fifth_bit(v16i_shr(high[k], 1))));
                high[k] =
                    v16i_shr(high[k], 2); /* bits of a neighbour byte come in on top, never used */
            }
        }
    }
}

/* Byte j of each dword as a signed number, times d. */
EK_V16_INLINE v16f scaled_signed_byte(v16i bytes, unsigned j, v16f d)
{
    v16i byte = v16i_sar(v16i_shl(bytes, 24 - 8 * j), 24);
    return v16f_mul(v16f_from_i(byte), d);
}

static void unpack_q6_k(const uint8_t *const row[PANEL_ROWS], size_t offset, int n_blocks EK_UNUSED,
                        prefetch *ahead, panel *out)
{
    const v16i nibble = v16i_set1(0x0f0f0f0f), pair = v16i_set1(0x30303030);
    v16i scale[4], last[4];
    v16_load_columns(row, offset + offsetof(ek_block_q6_K, scales), scale);
    /* The 16 bytes that end with d, not those that start with it: the row may end here. */
    v16_load_columns(row, offset + sizeof(ek_block_q6_K) - 16, last);
    v16f d = v16f_from_low_f16(v16i_shr(last[3], 16));
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        v16f_store(out->a[2 * k], scaled_signed_byte(scale[k], 0, d));
        v16f_store(out->b[2 * k], scaled_signed_byte(scale[k], 1, d));
        v16f_store(out->a[2 * k + 1], scaled_signed_byte(scale[k], 2, d));
        v16f_store(out->b[2 * k + 1], scaled_signed_byte(scale[k], 3, d));
    }
    for (int part = 0; part < 4; part++) { /* columns 16 * half.. of blocks 4 * group.. */
        int group = part / 2, half = part % 2;
        size_t low_at = offset + offsetof(ek_block_q6_K, ql) + (size_t)(group * 64 + half * 16);
        size_t high_at = offset + offsetof(ek_block_q6_K, qh) + (size_t)(group * 32 + half * 16);
        v16i even[4], odd[4], high[4];
        prefetch_step(ahead, PANEL_ROWS * sizeof(ek_block_q6_K) / 12);
        v16_load_columns(row, low_at, even);
        v16_load_columns(row, low_at + 32, odd);
        prefetch_step(ahead, PANEL_ROWS * sizeof(ek_block_q6_K) / 12);
        v16_load_columns(row, high_at, high);
        prefetch_step(ahead, PANEL_ROWS * sizeof(ek_block_q6_K) / 12);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            int at = half * 4 + k;
            uint8_t(*code)[BLOCK_DWORDS][CODE_BYTES] = &out->code[group * 4];
            v16i high0 = v16i_and(v16i_shl(high[k], 4), pair);
            v16i high1 = v16i_and(v16i_shl(high[k], 2), pair);
            v16i high2 = v16i_and(high[k], pair);
            v16i high3 = v16i_and(v16i_shr(high[k], 2), pair);
            v16i_store(code[0][at], v16i_or(v16i_and(even[k], nibble), high0));
            v16i_store(code[1][at], v16i_or(v16i_and(odd[k], nibble), high1));
            v16i_store(code[2][at], v16i_or(v16i_and(v16i_shr(even[k], 4), nibble), high2));
            v16i_store(code[3][at], v16i_or(v16i_and(v16i_shr(odd[k], 4), nibble), high3));
        }
    }
}
