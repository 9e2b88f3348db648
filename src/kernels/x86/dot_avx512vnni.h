/*
 * Integer products of codes and activations with AVX-512 VNNI: vpdpbusd adds four u8 x s8 products
 * per lane, exactly. dot_avx2.h has the same functions; integers leave no room for them to differ.
 * Include a v16 header first.
 */
#ifndef EK_KERNELS_X86_DOT_AVX512VNNI_H
#define EK_KERNELS_X86_DOT_AVX512VNNI_H

/* Two panels against six tokens: 12 integer and 12 float sums, the rest for codes and scales. */
enum {
    EK_DOT_PANELS = 2,
    EK_DOT_TOKENS = 6,
    EK_DOT_DIRECT_TOKENS = 4,
};

EK_V16_INLINE int32_t load_4(const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    return four;
}

/** sum + the products of 4 columns' codes with x[0..3], in each lane. */
EK_V16_INLINE v16i dot_add_4(int code_bits, v16i sum, v16i codes, const int8_t *x)
{
    (void)code_bits;
    return _mm512_dpbusd_epi32(sum, codes, _mm512_set1_epi32(load_4(x)));
}

/**
 * sum[t][v] += codes of panel v times activations of token t over 4 * n_dwords columns.
 * @param code_bits codes are below 2^code_bits; with VNNI nothing depends on it
 * @param code      of each panel, at 64 bytes per 4 columns
 */
EK_V16_INLINE void dot_add(int code_bits, int n_tokens, int n_dwords,
                           const uint8_t *const code[EK_DOT_PANELS],
                           const int8_t *const x[EK_DOT_TOKENS],
                           v16i sum[EK_DOT_TOKENS][EK_DOT_PANELS])
{
#pragma GCC unroll 8
    for (int k = 0; k < n_dwords; k++) {
        v16i w[EK_DOT_PANELS];
#pragma GCC unroll 2
        for (int v = 0; v < EK_DOT_PANELS; v++)
            w[v] = _mm512_load_si512(code[v] + k * 64);
#pragma GCC unroll 6
        for (int t = 0; t < n_tokens; t++)
#pragma GCC unroll 2
            for (int v = 0; v < EK_DOT_PANELS; v++)
                sum[t][v] = dot_add_4(code_bits, sum[t][v], w[v], x[t] + k * 4);
    }
}

/** out[h] = sum of x[16 * h .. 16 * h + 15], 16 of them. */
EK_V16_INLINE void half_sums(const int8_t *x, int32_t out[16])
{
    const __m512i ones8 = _mm512_set1_epi8(1), ones16 = _mm512_set1_epi16(1);
    __m512i four[4];
#pragma GCC unroll 4
    for (int i = 0; i < 4; i++)
        four[i] =
            _mm512_dpbusd_epi32(_mm512_setzero_si512(), ones8, _mm512_loadu_si512(x + i * 64));
    /* Sums of 4 fit 16 bits many times over: pack two vectors into one, add neighbours, twice. */
    __m512i low = _mm512_madd_epi16(_mm512_packs_epi32(four[0], four[1]), ones16);
    __m512i high = _mm512_madd_epi16(_mm512_packs_epi32(four[2], four[3]), ones16);
    __m512i all = _mm512_madd_epi16(_mm512_packs_epi32(low, high), ones16);
    /* Dword v of 128-bit part L is now half 4 * v + L. */
    const __m512i turn = _mm512_setr_epi32(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    _mm512_storeu_si512(out, _mm512_permutexvar_epi32(turn, all));
}

#endif
