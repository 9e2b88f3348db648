/*
 * Integer products of codes and activations with AVX2; the functions of dot_avx512vnni.h.
 *
 * vpmaddubsw adds two u8 x s8 products into 16 bits, which hold 32767: how many such sums may be
 * added before they are widened depends on the width of the codes (activations reach 127).
 * Eight-bit codes would saturate at once and go through 16-bit products instead. Include a v16
 * header first.
 */
#ifndef EK_KERNELS_X86_DOT_AVX2_H
#define EK_KERNELS_X86_DOT_AVX2_H

#include <assert.h>

/* One panel (two registers) against two tokens: 4 sums in 16 bits, 4 in 32, 4 of floats. */
enum {
    EK_DOT_PANELS = 1,
    EK_DOT_TOKENS = 2,
    EK_DOT_DIRECT_TOKENS = 1,
    EK_DOT_DIRECT_PLAIN_TOKENS = 1,
};

EK_V16_INLINE __m256i load_4_everywhere(const int8_t *x)
{
    int32_t four;
    memcpy(&four, x, sizeof four);
    return _mm256_set1_epi32(four);
}

EK_V16_INLINE v16i widen_add(v16i sum, v16i words)
{
    const __m256i ones = _mm256_set1_epi16(1);
    return (v16i){_mm256_add_epi32(sum.low, _mm256_madd_epi16(words.low, ones)),
                  _mm256_add_epi32(sum.high, _mm256_madd_epi16(words.high, ones))};
}

/* Codes below 2^code_bits, with code_bits at most 6: `run` pair sums fit 16 bits. */
EK_V16_INLINE void dot_add_narrow(int code_bits, int n_tokens, int n_dwords, const uint8_t *code,
                                  const int8_t *const x[EK_DOT_TOKENS],
                                  v16i sum[EK_DOT_TOKENS][EK_DOT_PANELS])
{
    const int run = code_bits == 4 ? 8 : code_bits == 5 ? 4 : 2;
    static_assert(8 * 2 * 15 * 127 <= 32767 && 4 * 2 * 31 * 127 <= 32767 &&
                      2 * 2 * 63 * 127 <= 32767,
                  "no 16-bit sum overflows");
#pragma GCC unroll 4
    for (int begin = 0; begin < n_dwords; begin += run) {
        v16i words[EK_DOT_TOKENS];
#pragma GCC unroll 2
        for (int t = 0; t < n_tokens; t++)
            words[t] = v16i_zero();
#pragma GCC unroll 8
        for (int k = begin; k < begin + run; k++) {
            v16i w = v16i_load(code + k * 64);
#pragma GCC unroll 2
            for (int t = 0; t < n_tokens; t++) {
                __m256i four = load_4_everywhere(x[t] + k * 4);
                __m256i low = _mm256_maddubs_epi16(w.low, four);
                __m256i high = _mm256_maddubs_epi16(w.high, four);
                words[t].low = _mm256_add_epi16(words[t].low, low);
                words[t].high = _mm256_add_epi16(words[t].high, high);
            }
        }
#pragma GCC unroll 2
        for (int t = 0; t < n_tokens; t++)
            sum[t][0] = widen_add(sum[t][0], words[t]);
    }
}

EK_V16_INLINE __m256i multiply_wide(__m256i codes, __m256i four)
{
    __m256i even_codes = _mm256_and_si256(codes, _mm256_set1_epi16(0xff));
    __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8);
    __m256i odd_codes = _mm256_srli_epi16(codes, 8), odd = _mm256_srai_epi16(four, 8);
    return _mm256_add_epi32(_mm256_madd_epi16(even_codes, even), _mm256_madd_epi16(odd_codes, odd));
}

/* Eight-bit codes: even and odd bytes apart as 16-bit numbers, products added in 32 bits. */
EK_V16_INLINE void dot_add_wide(int n_tokens, int n_dwords, const uint8_t *code,
                                const int8_t *const x[EK_DOT_TOKENS],
                                v16i sum[EK_DOT_TOKENS][EK_DOT_PANELS])
{
    const __m256i low_byte = _mm256_set1_epi16(0xff);
#pragma GCC unroll 8
    for (int k = 0; k < n_dwords; k++) {
        v16i w = v16i_load(code + k * 64);
        __m256i even_low = _mm256_and_si256(w.low, low_byte);
        __m256i even_high = _mm256_and_si256(w.high, low_byte);
        __m256i odd_low = _mm256_srli_epi16(w.low, 8);
        __m256i odd_high = _mm256_srli_epi16(w.high, 8);
#pragma GCC unroll 2
        for (int t = 0; t < n_tokens; t++) {
            __m256i four = load_4_everywhere(x[t] + k * 4);
            __m256i even = _mm256_srai_epi16(_mm256_slli_epi16(four, 8), 8);
            __m256i odd = _mm256_srai_epi16(four, 8);
            __m256i low = _mm256_add_epi32(_mm256_madd_epi16(even_low, even),
                                           _mm256_madd_epi16(odd_low, odd));
            __m256i high = _mm256_add_epi32(_mm256_madd_epi16(even_high, even),
                                            _mm256_madd_epi16(odd_high, odd));
            sum[t][0].low = _mm256_add_epi32(sum[t][0].low, low);
            sum[t][0].high = _mm256_add_epi32(sum[t][0].high, high);
        }
    }
}

EK_V16_INLINE v16i dot_add_4(int code_bits, v16i sum, v16i codes, const int8_t *x)
{
    __m256i four = load_4_everywhere(x);
    if (code_bits <= 6)
        return widen_add(sum, (v16i){_mm256_maddubs_epi16(codes.low, four),
                                     _mm256_maddubs_epi16(codes.high, four)});
    return (v16i){_mm256_add_epi32(sum.low, multiply_wide(codes.low, four)),
                  _mm256_add_epi32(sum.high, multiply_wide(codes.high, four))};
}

EK_V16_INLINE void dot_add(int code_bits, int n_tokens, int n_dwords,
                           const uint8_t *const code[EK_DOT_PANELS],
                           const int8_t *const x[EK_DOT_TOKENS],
                           v16i sum[EK_DOT_TOKENS][EK_DOT_PANELS])
{
    if (code_bits > 6)
        dot_add_wide(n_tokens, n_dwords, code[0], x, sum);
    else
        dot_add_narrow(code_bits, n_tokens, n_dwords, code[0], x, sum);
}

#endif
