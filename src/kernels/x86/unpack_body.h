/*
 * From blocks as they lie in the file to a sink: one function per type. Written on v16; include
 * panel_body.h first.
 *
 * Codes are unsigned. With a and b per row and block of 32, a weight is
 *     a * code - b      Q4_0, Q8_0, Q4_K, Q5_K
 *     a * (code - 32)   Q6_K, the first 16 columns of a block
 *     b * (code - 32)   Q6_K, the other 16
 */

/*
 * Sixteen rows are read side by side, which no hardware prefetcher follows for long. So while one
 * tile of rows is unpacked the next one is fetched into the second-level cache, as many bytes with
 * each slice as the slice itself takes: an even pace keeps the memory busy and never fills its
 * queue (measured: twice the bandwidth of fetching in bursts).
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

/* 16 rows, of which n_blocks blocks of 32 columns are read, `offset` bytes behind each pointer. */
typedef struct source {
    const uint8_t *const *row;
    size_t offset;
    int n_blocks;
    prefetch *ahead;
} source;

typedef void (*unpack_fn)(int n_tokens, const source *from, sink *to);

/* Types whose weights are d * (code - zero). */
EK_V16_INLINE void centred_scales(panel *out, int block, v16f d, float zero)
{
    v16f_store(out->a[block], d);
    v16f_store(out->b[block], v16f_mul(d, v16f_set1(zero)));
}

EK_V16_INLINE void unpack_q4_0(int n_tokens, const source *from, sink *to)
{
    const v16i nibble = v16i_set1(0x0f0f0f0f);
    size_t offset = from->offset;
    for (int block = 0; block < from->n_blocks; block++, offset += sizeof(ek_block_q4_0)) {
        v16i head[4], packed[4];
        prefetch_step(from->ahead, PANEL_ROWS * sizeof(ek_block_q4_0));
        v16_load_columns(from->row, offset, head); /* the scale is the low half of head[0] */
        v16_load_columns(from->row, offset + offsetof(ek_block_q4_0, qs), packed);
        centred_scales(to->out, block, v16f_from_low_f16(head[0]), 8.0f);
        sink_begin(n_tokens, to, 0);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            v16i upper = v16i_and(v16i_shr(packed[k], 4), nibble);
            sink_take(4, n_tokens, to, 0, block, k, v16i_and(packed[k], nibble));
            sink_take(4, n_tokens, to, 0, block, k + 4, upper);
        }
        sink_finish(n_tokens, to, 0, block);
    }
}

EK_V16_INLINE void unpack_q8_0(int n_tokens, const source *from, sink *to)
{
    const v16i flip = v16i_set1((int32_t)0x80808080); /* q + 128, byte by byte */
    size_t offset = from->offset;
    for (int block = 0; block < from->n_blocks; block++, offset += sizeof(ek_block_q8_0)) {
        v16i head[4];
        v16_load_columns(from->row, offset, head);
        centred_scales(to->out, block, v16f_from_low_f16(head[0]), 128.0f);
        sink_begin(n_tokens, to, 0);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            v16i codes[4];
            prefetch_step(from->ahead, PANEL_ROWS * sizeof(ek_block_q8_0) / 2);
            size_t at = offset + offsetof(ek_block_q8_0, qs) + (size_t)half * 16;
            v16_load_columns(from->row, at, codes);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++)
                sink_take(8, n_tokens, to, 0, block, half * 4 + k, v16i_xor(codes[k], flip));
        }
        sink_finish(n_tokens, to, 0, block);
    }
}

/* Byte j of each dword, widened and multiplied. */
EK_V16_INLINE v16f scaled_byte(v16i bytes, unsigned j, v16f factor)
{
    v16i byte = v16i_and(v16i_shr(bytes, 8 * j), v16i_set1(0xff));
    return v16f_mul(v16f_from_i(byte), factor);
}

/*
 * Scales and mins of Q4_K and Q5_K. Their blocks begin with 16 bytes, d, dmin and the 12 bytes of
 * packed six-bit values, so the turned head is one vector of d and dmin and three of packed values.
 */
static void k_scales(const source *from, panel *out)
{
    static_assert(offsetof(ek_block_q4_K, qs) == 16 && offsetof(ek_block_q5_K, qh) == 16,
                  "the head is 16 bytes");
    v16i head[4];
    v16_load_columns(from->row, from->offset, head);
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

EK_V16_INLINE void unpack_q4_k(int n_tokens, const source *from, sink *to)
{
    const v16i nibble = v16i_set1(0x0f0f0f0f);
    size_t offset = from->offset + offsetof(ek_block_q4_K, qs);
    k_scales(from, to->out);
    for (int block = 0; block < PANEL_BLOCKS; block += 2) { /* two blocks share 32 bytes */
        sink_begin(n_tokens, to, 0);
        sink_begin(n_tokens, to, 1);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++, offset += 16) {
            v16i packed[4];
            prefetch_step(from->ahead, PANEL_ROWS * sizeof(ek_block_q4_K) / 8);
            v16_load_columns(from->row, offset, packed);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                int dword = half * 4 + k;
                v16i upper = v16i_and(v16i_shr(packed[k], 4), nibble);
                sink_take(4, n_tokens, to, 0, block, dword, v16i_and(packed[k], nibble));
                sink_take(4, n_tokens, to, 1, block + 1, dword, upper);
            }
        }
        sink_finish(n_tokens, to, 0, block);
        sink_finish(n_tokens, to, 1, block + 1);
    }
}

/* Bit 0 of every byte, moved to bit 4. */
EK_V16_INLINE v16i fifth_bit(v16i bits)
{
    return v16i_shl(v16i_and(bits, v16i_set1(0x01010101)), 4);
}

EK_V16_INLINE void unpack_q5_k(int n_tokens, const source *from, sink *to)
{
    const v16i nibble = v16i_set1(0x0f0f0f0f);
    size_t offset = from->offset + offsetof(ek_block_q5_K, qs);
    v16i high[2][4]; /* the next two blocks' fifth bits are the lowest two of every byte */
    k_scales(from, to->out);
    v16_load_columns(from->row, from->offset + offsetof(ek_block_q5_K, qh), high[0]);
    v16_load_columns(from->row, from->offset + offsetof(ek_block_q5_K, qh) + 16, high[1]);
    for (int block = 0; block < PANEL_BLOCKS; block += 2) {
        sink_begin(n_tokens, to, 0);
        sink_begin(n_tokens, to, 1);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++, offset += 16) {
            v16i packed[4];
            prefetch_step(from->ahead, PANEL_ROWS * sizeof(ek_block_q5_K) / 8);
            v16_load_columns(from->row, offset, packed);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                int dword = half * 4 + k;
                v16i low = v16i_and(packed[k], nibble);
                v16i upper = v16i_and(v16i_shr(packed[k], 4), nibble);
                low = v16i_or(low, fifth_bit(high[half][k]));
                upper = v16i_or(upper, fifth_bit(v16i_shr(high[half][k], 1)));
                high[half][k] = v16i_shr(high[half][k], 2);
                sink_take(5, n_tokens, to, 0, block, dword, low);
                sink_take(5, n_tokens, to, 1, block + 1, dword, upper);
            }
        }
        sink_finish(n_tokens, to, 0, block);
        sink_finish(n_tokens, to, 1, block + 1);
    }
}

/* Byte j of each dword as a signed number, times d. */
EK_V16_INLINE v16f scaled_signed_byte(v16i bytes, unsigned j, v16f d)
{
    v16i byte = v16i_sar(v16i_shl(bytes, 24 - 8 * j), 24);
    return v16f_mul(v16f_from_i(byte), d);
}

static void q6_k_scales(const source *from, panel *out)
{
    v16i scale[4], last[4];
    v16_load_columns(from->row, from->offset + offsetof(ek_block_q6_K, scales), scale);
    /* The 16 bytes that end with d, not those that start with it: the row may end here. */
    v16_load_columns(from->row, from->offset + sizeof(ek_block_q6_K) - 16, last);
    v16f d = v16f_from_low_f16(v16i_shr(last[3], 16));
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        v16f_store(out->a[2 * k], scaled_signed_byte(scale[k], 0, d));
        v16f_store(out->b[2 * k], scaled_signed_byte(scale[k], 1, d));
        v16f_store(out->a[2 * k + 1], scaled_signed_byte(scale[k], 2, d));
        v16f_store(out->b[2 * k + 1], scaled_signed_byte(scale[k], 3, d));
    }
}

/*
 * Half blocks `half` of the four blocks from `block`: their codes share three slices of 16 bytes.
 */
EK_V16_INLINE void unpack_q6_k_quarter(int n_tokens, const source *from, sink *to, int block,
                                       int half)
{
    const v16i nibble = v16i_set1(0x0f0f0f0f), pair = v16i_set1(0x30303030);
    size_t low_at = from->offset + offsetof(ek_block_q6_K, ql) + (size_t)(block * 16 + half * 16);
    size_t high_at = from->offset + offsetof(ek_block_q6_K, qh) + (size_t)(block * 8 + half * 16);
    v16i even[4], odd[4], high[4];
    prefetch_step(from->ahead, PANEL_ROWS * sizeof(ek_block_q6_K) / 12);
    v16_load_columns(from->row, low_at, even);
    prefetch_step(from->ahead, PANEL_ROWS * sizeof(ek_block_q6_K) / 12);
    v16_load_columns(from->row, low_at + 32, odd);
    prefetch_step(from->ahead, PANEL_ROWS * sizeof(ek_block_q6_K) / 12);
    v16_load_columns(from->row, high_at, high);
#pragma GCC unroll 4
    for (int slot = 0; slot < 4; slot++)
        sink_begin_half(n_tokens, to, slot, block + slot, half);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        int dword = half * 4 + k;
        v16i high0 = v16i_and(v16i_shl(high[k], 4), pair);
        v16i high1 = v16i_and(v16i_shl(high[k], 2), pair);
        v16i high2 = v16i_and(high[k], pair);
        v16i high3 = v16i_and(v16i_shr(high[k], 2), pair);
        v16i low2 = v16i_and(v16i_shr(even[k], 4), nibble);
        v16i low3 = v16i_and(v16i_shr(odd[k], 4), nibble);
        sink_take(6, n_tokens, to, 0, block, dword, v16i_or(v16i_and(even[k], nibble), high0));
        sink_take(6, n_tokens, to, 1, block + 1, dword, v16i_or(v16i_and(odd[k], nibble), high1));
        sink_take(6, n_tokens, to, 2, block + 2, dword, v16i_or(low2, high2));
        sink_take(6, n_tokens, to, 3, block + 3, dword, v16i_or(low3, high3));
    }
#pragma GCC unroll 4
    for (int slot = 0; slot < 4; slot++)
        sink_finish_half(n_tokens, to, slot, block + slot, half);
}

EK_V16_INLINE void unpack_q6_k(int n_tokens, const source *from, sink *to)
{
    q6_k_scales(from, to->out);
    for (int block = 0; block < PANEL_BLOCKS; block += 4) {
        unpack_q6_k_quarter(n_tokens, from, to, block, 0);
        unpack_q6_k_quarter(n_tokens, from, to, block, 1);
    }
}
