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
    EK_DOT_DIRECT_TOKENS = 6,
    EK_DOT_DIRECT_PLAIN_TOKENS = 4,
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

#endif
