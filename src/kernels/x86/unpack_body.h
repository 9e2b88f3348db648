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
 * What is fetched ahead, as many bytes with each slice as the slice itself takes: an even pace
 * keeps the memory busy and never fills its queue (measured: twice the bandwidth of fetching in
 * bursts).
 *
 * Of a plain matrix it is the next tile of rows, into the second-level cache: sixteen rows are read
 * side by side, which no hardware prefetcher follows for long. A packed one is one stream, which is
 * fetched as far ahead as memory takes to answer; past its end that does nothing.
 */
typedef struct prefetch {
    uintptr_t next, end; /* addresses */
} prefetch;

/*
 * Where a panel's blocks are read from: 16 rows `stride` bytes apart, or, where the matrix is
 * packed (pack.h), the dwords of 16 rows side by side.
 */
typedef struct source {
    const uint8_t *first;  /* the first block; packed: its first dword of 16 rows */
    const uint8_t *scales; /* packed types with a 2-byte scale per block: 16 of them */
    size_t stride;         /* not packed */
    int n_blocks;          /* of 32 columns */
    prefetch ahead;
} source;

/* A type's reader; `packed` and n_tokens are constants at every call. */
typedef void (*codes_fn)(bool packed, int n_tokens, source *from, sink *to);

/* To be called with every slice. */
EK_V16_INLINE void source_fetch(bool packed, source *from, size_t slice_bytes)
{
    prefetch *ahead = &from->ahead;
    if (ahead->next >= ahead->end) return;
    for (size_t at = 0; at < slice_bytes; at += EK_CACHE_LINE) {
        const char *line = (const char *)(ahead->next + at);
        if (packed)
            _mm_prefetch(line, _MM_HINT_T0);
        else
            _mm_prefetch(line, _MM_HINT_T1);
    }
    ahead->next += slice_bytes;
}

/* The n vectors, a constant, at byte `at` of a packed block. */
EK_V16_INLINE void source_vectors(int n, const source *from, size_t at, v16i out[])
{
#pragma GCC unroll 4
    for (int i = 0; i < n; i++)
        out[i] = v16i_load(from->first + at + (size_t)i * sizeof(v16i));
}

/* The 4 dwords from `offset` on, a multiple of 4 within the part that is packed by dwords. */
EK_V16_INLINE void source_dwords(bool packed, const source *from, size_t offset, v16i out[4])
{
    if (packed)
        source_vectors(4, from, offset * PANEL_ROWS, out);
    else
        v16_load_columns(from->first + offset, from->stride, out);
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

/* A block whose weights are d * (code - zero) is complete. */
EK_V16_INLINE void centred_finish(bool packed, int n_tokens, const source *from, size_t block,
                                  size_t block_bytes, float zero, sink *to)
{
    v16f d = source_scale(packed, from, block, block_bytes);
    sink_finish(n_tokens, to, 0, (int)block, d, v16f_mul(d, v16f_set1(zero)));
}

EK_V16_INLINE void codes_q4_0(bool packed, int n_tokens, source *from, sink *to)
{
    static_assert(offsetof(ek_block_q4_0, qs) == 2, "the scale comes first");
    const v16i nibble = v16i_set1(0x0f0f0f0f);
    const size_t bytes = sizeof(ek_block_q4_0);
    for (int block = 0; block < from->n_blocks; block++) {
        v16i codes[4];
        sink_reload(to);
        source_fetch(packed, from, PANEL_ROWS * bytes);
        source_codes(packed, from, (size_t)block, bytes, 0, codes);
        sink_begin(n_tokens, to, 0);
#pragma GCC unroll 4
        for (int k = 0; k < 4; k++) {
            v16i upper = v16i_and(v16i_shr(codes[k], 4), nibble);
            sink_take(4, n_tokens, to, 0, block, k, v16i_and(codes[k], nibble));
            sink_take(4, n_tokens, to, 0, block, k + 4, upper);
        }
        centred_finish(packed, n_tokens, from, (size_t)block, bytes, 8.0f, to);
    }
}

EK_V16_INLINE void codes_q8_0(bool packed, int n_tokens, source *from, sink *to)
{
    static_assert(offsetof(ek_block_q8_0, qs) == 2, "the scale comes first");
    const v16i flip = v16i_set1((int32_t)0x80808080); /* q + 128, byte by byte */
    const size_t bytes = sizeof(ek_block_q8_0);
    for (int block = 0; block < from->n_blocks; block++) {
        sink_reload(to);
        sink_begin(n_tokens, to, 0);
#pragma GCC unroll 2
        for (int half = 0; half < 2; half++) {
            v16i codes[4];
            source_fetch(packed, from, PANEL_ROWS * bytes / 2);
            source_codes(packed, from, (size_t)block, bytes, (size_t)half * 16, codes);
#pragma GCC unroll 4
            for (int k = 0; k < 4; k++)
                sink_take(8, n_tokens, to, 0, block, half * 4 + k, v16i_xor(codes[k], flip));
        }
        centred_finish(packed, n_tokens, from, (size_t)block, bytes, 128.0f, to);
    }
}

/*
 * Six-bit scales or mins of the four blocks that come next, a byte each, and what they are to be
 * multiplied with. The second byte is not shifted down: its factor makes up for it, exactly.
 */
typedef struct six_bits {
    v16i next;
    v16f even, odd;
} six_bits;

EK_V16_INLINE six_bits six_bits_times(v16f d)
{
    return (six_bits){.even = d, .odd = v16f_mul(d, v16f_set1(1.0f / 256.0f))};
}

/* Two blocks' values, multiplied. */
EK_V16_INLINE void six_bits_take(six_bits *bits, v16f out[2])
{
    v16i even = v16i_and(bits->next, v16i_set1(0xff));
    v16i odd = v16i_and(bits->next, v16i_set1(0xff00));
    out[0] = v16f_mul(v16f_from_i(even), bits->even);
    out[1] = v16f_mul(v16f_from_i(odd), bits->odd);
    bits->next = v16i_shr(bits->next, 16);
}

/*
 * Q4_K and Q5_K begin with 16 bytes, d, dmin and the 12 bytes of packed six-bit values, so the
 * turned head is one vector of d and dmin and three of packed values.
 */
typedef struct k_head {
    v16i scale[2], min[2]; /* of blocks 0 to 3 and 4 to 7 */
    six_bits a, b;
} k_head;

EK_V16_INLINE void k_head_read(bool packed, const source *from, k_head *out)
{
    static_assert(offsetof(ek_block_q4_K, qs) == 16 && offsetof(ek_block_q5_K, qh) == 16,
                  "the head is 16 bytes");
    v16i head[4];
    source_dwords(packed, from, 0, head);
    const v16i six = v16i_set1(0x3f3f3f3f), four = v16i_set1(0x0f0f0f0f);
    const v16i top = v16i_set1(0x30303030);
    out->scale[0] = v16i_and(head[1], six);
    out->min[0] = v16i_and(head[2], six);
    out->scale[1] = v16i_or(v16i_and(head[3], four), v16i_and(v16i_shr(head[1], 2), top));
    out->min[1] =
        v16i_or(v16i_and(v16i_shr(head[3], 4), four), v16i_and(v16i_shr(head[2], 2), top));
    out->a = six_bits_times(v16f_from_low_f16(head[0]));
    out->b = six_bits_times(v16f_from_low_f16(v16i_shr(head[0], 16)));
}

/* Blocks `block` and the next are complete. */
EK_V16_INLINE void k_finish(int n_tokens, k_head *head, int block, sink *to)
{
    v16f a[2], b[2];
    six_bits_take(&head->a, a);
    six_bits_take(&head->b, b);
    sink_finish(n_tokens, to, 0, block, a[0], b[0]);
    sink_finish(n_tokens, to, 1, block + 1, a[1], b[1]);
}

EK_V16_INLINE void codes_q4_k(bool packed, int n_tokens, source *from, sink *to)
{
    const v16i nibble = v16i_set1(0x0f0f0f0f);
    size_t offset = offsetof(ek_block_q4_K, qs);
    k_head head;
    k_head_read(packed, from, &head);
#pragma GCC unroll 2
    for (int group = 0; group < 2; group++) {
        head.a.next = head.scale[group];
        head.b.next = head.min[group];
        for (int block = 4 * group; block < 4 * group + 4; block += 2) { /* two share 32 bytes */
            sink_reload(to);
            sink_begin(n_tokens, to, 0);
            sink_begin(n_tokens, to, 1);
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++, offset += 16) {
                v16i pair[4];
                source_fetch(packed, from, PANEL_ROWS * sizeof(ek_block_q4_K) / 8);
                source_dwords(packed, from, offset, pair);
#pragma GCC unroll 4
                for (int k = 0; k < 4; k++) {
                    int dword = half * 4 + k;
                    v16i upper = v16i_and(v16i_shr(pair[k], 4), nibble);
                    sink_take(4, n_tokens, to, 0, block, dword, v16i_and(pair[k], nibble));
                    sink_take(4, n_tokens, to, 1, block + 1, dword, upper);
                }
            }
            k_finish(n_tokens, &head, block, to);
        }
    }
}

/* Bit 0 of every byte, moved to bit 4. */
EK_V16_INLINE v16i fifth_bit(v16i bits)
{
    return v16i_shl(v16i_and(bits, v16i_set1(0x01010101)), 4);
}

EK_V16_INLINE void codes_q5_k(bool packed, int n_tokens, source *from, sink *to)
{
    const v16i nibble = v16i_set1(0x0f0f0f0f);
    size_t offset = offsetof(ek_block_q5_K, qs);
    k_head head;
    k_head_read(packed, from, &head);
    v16i high[2][4]; /* the next two blocks' fifth bits are the lowest two of every byte */
    source_dwords(packed, from, offsetof(ek_block_q5_K, qh), high[0]);
    source_dwords(packed, from, offsetof(ek_block_q5_K, qh) + 16, high[1]);
#pragma GCC unroll 2
    for (int group = 0; group < 2; group++) {
        head.a.next = head.scale[group];
        head.b.next = head.min[group];
        for (int block = 4 * group; block < 4 * group + 4; block += 2) {
            sink_reload(to);
            sink_begin(n_tokens, to, 0);
            sink_begin(n_tokens, to, 1);
#pragma GCC unroll 2
            for (int half = 0; half < 2; half++, offset += 16) {
                v16i pair[4];
                source_fetch(packed, from, PANEL_ROWS * sizeof(ek_block_q5_K) / 8);
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
            k_finish(n_tokens, &head, block, to);
        }
    }
}

/*
 * Q6_K's signed 8-bit scales, a dword for every two blocks and their halves, and d. A byte is moved
 * to the top of its lane; the factor makes up for it, exactly.
 */
typedef struct q6_k_scales {
    v16i pair[4];
    v16f d;
} q6_k_scales;

EK_V16_INLINE void q6_k_scales_read(bool packed, const source *from, q6_k_scales *out)
{
    v16i last[4];
    v16f d;
    source_dwords(packed, from, offsetof(ek_block_q6_K, scales), out->pair);
    if (packed) {
        d = v16f_from_f16((const uint16_t *)(const void *)from->scales);
    } else {
        /* The 16 bytes that end with d, not those that start with it: the row may end here. */
        source_dwords(false, from, sizeof(ek_block_q6_K) - 16, last);
        d = v16f_from_low_f16(v16i_shr(last[3], 16));
    }
    out->d = v16f_mul(d, v16f_set1(0x1p-24f));
}

EK_V16_INLINE v16f q6_k_scale(const q6_k_scales *scales, int block, int half)
{
    int byte = block % 2 * 2 + half;
    v16i top = v16i_and(v16i_shl(scales->pair[block / 2], (unsigned)(24 - 8 * byte)),
                        v16i_set1((int32_t)0xff000000));
    return v16f_mul(v16f_from_i(top), scales->d);
}

/*
 * Half blocks `half` of blocks `block` and `block + 2`: their codes are the nibbles of the same 16
 * bytes, and bits `shift` to `shift` + 1 and `shift` + 4 to `shift` + 5 of every byte of `high`.
 */
EK_V16_INLINE void codes_q6_k_pair(int n_tokens, const q6_k_scales *scales, sink *to, int block,
                                   int half, int shift, const v16i low[4], const v16i high[4])
{
    const v16i nibble = v16i_set1(0x0f0f0f0f), pair = v16i_set1(0x30303030);
    sink_reload(to);
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
    sink_finish_half(n_tokens, to, 0, block, half, q6_k_scale(scales, block, half));
    sink_finish_half(n_tokens, to, 1, block + 2, half, q6_k_scale(scales, block + 2, half));
}

/* Half blocks `half` of the four blocks from `block`. */
EK_V16_INLINE void codes_q6_k_quarter(bool packed, int n_tokens, const q6_k_scales *scales,
                                      source *from, sink *to, int block, int half)
{
    size_t low_at = offsetof(ek_block_q6_K, ql) + (size_t)(block * 16 + half * 16);
    size_t high_at = offsetof(ek_block_q6_K, qh) + (size_t)(block * 8 + half * 16);
    v16i low[4], high[4];
    source_fetch(packed, from, PANEL_ROWS * sizeof(ek_block_q6_K) / 12);
    source_dwords(packed, from, high_at, high);
    source_fetch(packed, from, PANEL_ROWS * sizeof(ek_block_q6_K) / 12);
    source_dwords(packed, from, low_at, low);
    codes_q6_k_pair(n_tokens, scales, to, block, half, 0, low, high);
    source_fetch(packed, from, PANEL_ROWS * sizeof(ek_block_q6_K) / 12);
    source_dwords(packed, from, low_at + 32, low);
    codes_q6_k_pair(n_tokens, scales, to, block + 1, half, 2, low, high);
}

/* Half block i of a packed block (pack.h). */
EK_V16_INLINE void codes_q6_k_packed(int n_tokens, const q6_k_scales *scales, source *from,
                                     sink *to, int i)
{
    const int block = ek_kernels_pack_q6_k_block(i), half = ek_kernels_pack_q6_k_half(i);
    const int slot = i % SINK_SLOTS;
    const v16i six = v16i_set1(0x3f3f3f3f), top = v16i_set1(0x30303030);
    const v16i upper = v16i_set1(0x3c3c3c3c);
    v16i part[3];
    source_fetch(true, from, PANEL_ROWS * sizeof(ek_block_q6_K) / 16);
    source_vectors(3, from, (size_t)i * sizeof part, part);
    sink_begin_half(n_tokens, to, slot, block, half);
#pragma GCC unroll 3
    for (int k = 0; k < 3; k++)
        sink_take(6, n_tokens, to, slot, block, half * 4 + k, v16i_and(part[k], six));
    v16i last = v16i_select(top, v16i_shr(part[0], 2), v16i_shr(part[1], 4));
    last = v16i_and(v16i_select(upper, last, v16i_shr(part[2], 6)), six);
    sink_take(6, n_tokens, to, slot, block, half * 4 + 3, last);
    sink_finish_half(n_tokens, to, slot, block, half, q6_k_scale(scales, block, half));
}

EK_V16_INLINE void codes_q6_k(bool packed, int n_tokens, source *from, sink *to)
{
    q6_k_scales scales;
    q6_k_scales_read(packed, from, &scales);
#pragma GCC unroll 16
    for (int i = 0; packed && i < 2 * PANEL_BLOCKS; i++) {
        if (i % 4 == 0) sink_reload(to);
        codes_q6_k_packed(n_tokens, &scales, from, to, i);
    }
    if (packed) return;
#pragma GCC unroll 2
    for (int block = 0; block < PANEL_BLOCKS; block += 4) {
        codes_q6_k_quarter(packed, n_tokens, &scales, from, to, block, 0);
        codes_q6_k_quarter(packed, n_tokens, &scales, from, to, block, 1);
    }
}
