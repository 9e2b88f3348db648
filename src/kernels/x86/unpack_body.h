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

/*
 * Where a panel's blocks are read from: 16 rows `stride` bytes apart, or, where the matrix is
 * packed (pack.h), the dwords of 16 rows side by side.
 */
typedef struct source {
    const uint8_t *first;  /* the first block; packed: its first dword of 16 rows */
    const uint8_t *scales; /* packed types with a 2-byte scale per block: 16 of them */
    size_t stride;         /* not packed */
    bool packed;
    int n_blocks; /* of 32 columns */
    prefetch *ahead;
} source;

/* A type's two halves; `packed` and n_tokens are constants at every call. */
typedef void (*scales_fn)(bool packed, const source *from, panel *out);
typedef void (*codes_fn)(bool packed, int n_tokens, const source *from, sink *to);

/* The 4 dwords from `offset` on, a multiple of 4 within the part that is packed by dwords. */
EK_V16_INLINE void source_dwords(bool packed, const source *from, size_t offset, v16i out[4])
{
    if (!packed) {
        v16_load_columns(from->first + offset, from->stride, out);
        return;
    }
#pragma GCC unroll 4
    for (size_t i = 0; i < 4; i++)
        out[i] = v16i_load(from->first + offset * PANEL_ROWS + i * 64);
}

/*
 * As source_dwords for blocks that begin with a 2-byte scale: the codes of block `block`, which lie
 * without their scales where the matrix is packed.
 */
EK_V16_INLINE void source_codes(bool packed, const source *from, size_t block, size_t block_bytes,
                                size_t offset, v16i out[4])
{
    size_t code_bytes = block_bytes - sizeof(uint16_t);
    if (packed)
        source_dwords(true, from, block * code_bytes + offset, out);
    else
        source_dwords(false, from, block * block_bytes + sizeof(uint16_t) + offset, out);
}

/* The scales of block `block`, which begins with it. */
EK_V16_INLINE v16f source_scale(bool packed, const source *from, size_t block, size_t block_bytes)
{
    if (packed) {
        const uint8_t *at = from->scales + block * PANEL_ROWS * sizeof(uint16_t);
        return v16f_from_f16((const uint16_t *)(const void *)at);
    }
    v16i head[4];
    source_dwords(false, from, block * block_bytes, head); /* low half of head[0] */
    return v16f_from_low_f16(head[0]);
}

/* Types whose weights are d * (code - zero). */
EK_V16_INLINE void centred_scales(bool packed, const source *from, size_t block_bytes, float zero,
                                  panel *out)
{
    for (int block = 0; block < from->n_blocks; block++) {
        v16f d = source_scale(packed, from, (size_t)block, block_bytes);
        v16f_store(out->a[block], d);
        v16f_store(out->b[block], v16f_mul(d, v16f_set1(zero)));
    }
}

EK_V16_INLINE void scales_q4_0(bool packed, const source *from, panel *out)
{
    centred_scales(packed, from, sizeof(ek_block_q4_0), 8.0f, out);
}

EK_V16_INLINE void scales_q8_0(bool packed, const source *from, panel *out)
{
    centred_scales(packed, from, sizeof(ek_block_q8_0), 128.0f, out);
}

EK_V16_INLINE void codes_q4_0(bool packed, int n_tokens, const source *from, sink *to)
{
    static_assert(offsetof(ek_block_q4_0, qs) == 2, "the scale comes first");
    const v16i nibble = v16i_set1(0x0f0f0f0f);
    const size_t bytes = sizeof(ek_block_q4_0);
    for (int block = 0; block < from->n_blocks; block++) {
        v16i codes[4];
        prefetch_step(from->ahead, PANEL_ROWS * bytes);
        source_codes(packed, from, (size_t)block, bytes, 0, codes);
        sink_begin(n_tokens, to, 0);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            v16i upper = v16i_and(v16i_shr(codes[k], 4), nibble);
            sink_take(4, n_tokens, to, 0, block, k, v16i_and(codes[k], nibble));
            sink_take(4, n_tokens, to, 0, block, k + 4, upper);
        }
        sink_finish(n_tokens, to, 0, block);
    }
}

EK_V16_INLINE void codes_q8_0(bool packed, int n_tokens, const source *from, sink *to)
{
    static_assert(offsetof(ek_block_q8_0, qs) == 2, "the scale comes first");
    const v16i flip = v16i_set1((int32_t)0x80808080); /* q + 128, byte by byte */
    const size_t bytes = sizeof(ek_block_q8_0);
    for (int block = 0; block < from->n_blocks; block++) {
        sink_begin(n_tokens, to, 0);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            v16i codes[4];
            prefetch_step(from->ahead, PANEL_ROWS * bytes / 2);
            source_codes(packed, from, (size_t)block, bytes, (size_t)half * 16, codes);
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
EK_V16_INLINE void scales_k(bool packed, const source *from, panel *out)
{
    static_assert(offsetof(ek_block_q4_K, qs) == 16 && offsetof(ek_block_q5_K, qh) == 16,
                  "the head is 16 bytes");
    v16i head[4];
    source_dwords(packed, from, 0, head);
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

EK_V16_INLINE void codes_q4_k(bool packed, int n_tokens, const source *from, sink *to)
{
    const v16i nibble = v16i_set1(0x0f0f0f0f);
    size_t offset = offsetof(ek_block_q4_K, qs);
    for (int block = 0; block < PANEL_BLOCKS; block += 2) { /* two blocks share 32 bytes */
        sink_begin(n_tokens, to, 0);
        sink_begin(n_tokens, to, 1);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++, offset += 16) {
            v16i pair[4];
            prefetch_step(from->ahead, PANEL_ROWS * sizeof(ek_block_q4_K) / 8);
            source_dwords(packed, from, offset, pair);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                int dword = half * 4 + k;
                v16i upper = v16i_and(v16i_shr(pair[k], 4), nibble);
                sink_take(4, n_tokens, to, 0, block, dword, v16i_and(pair[k], nibble));
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

EK_V16_INLINE void codes_q5_k(bool packed, int n_tokens, const source *from, sink *to)
{
    const v16i nibble = v16i_set1(0x0f0f0f0f);
    size_t offset = offsetof(ek_block_q5_K, qs);
    v16i high[2][4]; /* the next two blocks' fifth bits are the lowest two of every byte */
    source_dwords(packed, from, offsetof(ek_block_q5_K, qh), high[0]);
    source_dwords(packed, from, offsetof(ek_block_q5_K, qh) + 16, high[1]);
    for (int block = 0; block < PANEL_BLOCKS; block += 2) {
        sink_begin(n_tokens, to, 0);
        sink_begin(n_tokens, to, 1);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++, offset += 16) {
            v16i pair[4];
            prefetch_step(from->ahead, PANEL_ROWS * sizeof(ek_block_q5_K) / 8);
            source_dwords(packed, from, offset, pair);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++) {
                int dword = half * 4 + k;
                v16i low = v16i_and(pair[k], nibble);
                v16i upper = v16i_and(v16i_shr(pair[k], 4), nibble);
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

EK_V16_INLINE void scales_q6_k(bool packed, const source *from, panel *out)
{
    v16i scale[4], last[4];
    v16f d;
    source_dwords(packed, from, offsetof(ek_block_q6_K, scales), scale);
    if (packed) {
        d = v16f_from_f16((const uint16_t *)(const void *)from->scales);
    } else {
        /* The 16 bytes that end with d, not those that start with it: the row may end here. */
        source_dwords(false, from, sizeof(ek_block_q6_K) - 16, last);
        d = v16f_from_low_f16(v16i_shr(last[3], 16));
    }
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        v16f_store(out->a[2 * k], scaled_signed_byte(scale[k], 0, d));
        v16f_store(out->b[2 * k], scaled_signed_byte(scale[k], 1, d));
        v16f_store(out->a[2 * k + 1], scaled_signed_byte(scale[k], 2, d));
        v16f_store(out->b[2 * k + 1], scaled_signed_byte(scale[k], 3, d));
    }
}

/*
 * Half blocks `half` of blocks `block` and `block + 2`: their codes are the nibbles of the same 16
 * bytes, and bits `shift` to `shift` + 1 and `shift` + 4 to `shift` + 5 of every byte of `high`.
 */
EK_V16_INLINE void codes_q6_k_pair(int n_tokens, sink *to, int block, int half, int shift,
                                   const v16i low[4], const v16i high[4])
{
    const v16i nibble = v16i_set1(0x0f0f0f0f), pair = v16i_set1(0x30303030);
    sink_begin_half(n_tokens, to, 0, block, half);
    sink_begin_half(n_tokens, to, 1, block + 2, half);
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        int dword = half * 4 + k;
        v16i top = v16i_and(v16i_shl(high[k], shift == 0 ? 4 : 2), pair);
        v16i code = v16i_or(v16i_and(low[k], nibble), top);
        sink_take(6, n_tokens, to, 0, block, dword, code);
        top = v16i_and(shift == 0 ? high[k] : v16i_shr(high[k], 2), pair);
        code = v16i_or(v16i_and(v16i_shr(low[k], 4), nibble), top);
        sink_take(6, n_tokens, to, 1, block + 2, dword, code);
    }
    sink_finish_half(n_tokens, to, 0, block, half);
    sink_finish_half(n_tokens, to, 1, block + 2, half);
}

/* Half blocks `half` of the four blocks from `block`. */
EK_V16_INLINE void codes_q6_k_quarter(bool packed, int n_tokens, const source *from, sink *to,
                                      int block, int half)
{
    size_t low_at = offsetof(ek_block_q6_K, ql) + (size_t)(block * 16 + half * 16);
    size_t high_at = offsetof(ek_block_q6_K, qh) + (size_t)(block * 8 + half * 16);
    v16i low[4], high[4];
    prefetch_step(from->ahead, PANEL_ROWS * sizeof(ek_block_q6_K) / 12);
    source_dwords(packed, from, high_at, high);
    prefetch_step(from->ahead, PANEL_ROWS * sizeof(ek_block_q6_K) / 12);
    source_dwords(packed, from, low_at, low);
    codes_q6_k_pair(n_tokens, to, block, half, 0, low, high);
    prefetch_step(from->ahead, PANEL_ROWS * sizeof(ek_block_q6_K) / 12);
    source_dwords(packed, from, low_at + 32, low);
    codes_q6_k_pair(n_tokens, to, block + 1, half, 2, low, high);
}

EK_V16_INLINE void codes_q6_k(bool packed, int n_tokens, const source *from, sink *to)
{
    for (int block = 0; block < PANEL_BLOCKS; block += 4) {
        codes_q6_k_quarter(packed, n_tokens, from, to, block, 0);
        codes_q6_k_quarter(packed, n_tokens, from, to, block, 1);
    }
}
