/*
 * Sixteen lanes of f32 or 32-bit integers, as two AVX2 registers: the functions of v16_avx512.h,
 * whose comments hold here too, with F16C and FMA. Private to this room. Pure.
 */
#ifndef EK_KERNELS_X86_V16_AVX2_H
#define EK_KERNELS_X86_V16_AVX2_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define EK_V16_INLINE static inline __attribute__((always_inline, unused))

/* Register tiles: what 16 registers hold without spilling. Tiles never change a result. */
enum {
    EK_V16_FLOAT_ROWS = 2,
    EK_V16_FLOAT_TOKENS = 2,
    EK_V16_ATTEND_QUERIES = 2,
};

typedef struct v16f {
    __m256 low, high;
} v16f;

typedef struct v16i {
    __m256i low, high;
} v16i;

EK_V16_INLINE v16f v16f_zero(void)
{
    return (v16f){_mm256_setzero_ps(), _mm256_setzero_ps()};
}

EK_V16_INLINE v16f v16f_set1(float x)
{
    return (v16f){_mm256_set1_ps(x), _mm256_set1_ps(x)};
}

EK_V16_INLINE v16f v16f_load(const float *x)
{
    return (v16f){_mm256_loadu_ps(x), _mm256_loadu_ps(x + 8)};
}

/* All ones in the lanes below n, of lanes base..base + 7. */
EK_V16_INLINE __m256i v16_first_of(int base, int n)
{
    __m256i lane =
        _mm256_add_epi32(_mm256_set1_epi32(base), _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7));
    return _mm256_cmpgt_epi32(_mm256_set1_epi32(n), lane);
}

/* Masked moves are slow on some processors: whole registers take the plain ones. */
EK_V16_INLINE v16f v16f_load_n(const float *x, int n)
{
    if (n == 16) return v16f_load(x);
    return (v16f){_mm256_maskload_ps(x, v16_first_of(0, n)),
                  _mm256_maskload_ps(x + 8, v16_first_of(8, n))};
}

EK_V16_INLINE void v16f_store(float *x, v16f a)
{
    _mm256_storeu_ps(x, a.low);
    _mm256_storeu_ps(x + 8, a.high);
}

EK_V16_INLINE void v16f_store_n(float *x, int n, v16f a)
{
    if (n == 16) {
        v16f_store(x, a);
        return;
    }
    _mm256_maskstore_ps(x, v16_first_of(0, n), a.low);
    _mm256_maskstore_ps(x + 8, v16_first_of(8, n), a.high);
}

EK_V16_INLINE v16f v16f_first(int n, v16f inside, v16f a)
{
    __m256 low = _mm256_castsi256_ps(v16_first_of(0, n));
    __m256 high = _mm256_castsi256_ps(v16_first_of(8, n));
    return (v16f){_mm256_blendv_ps(a.low, inside.low, low),
                  _mm256_blendv_ps(a.high, inside.high, high)};
}

EK_V16_INLINE v16f v16f_add(v16f a, v16f b)
{
    return (v16f){_mm256_add_ps(a.low, b.low), _mm256_add_ps(a.high, b.high)};
}

EK_V16_INLINE v16f v16f_sub(v16f a, v16f b)
{
    return (v16f){_mm256_sub_ps(a.low, b.low), _mm256_sub_ps(a.high, b.high)};
}

EK_V16_INLINE v16f v16f_mul(v16f a, v16f b)
{
    return (v16f){_mm256_mul_ps(a.low, b.low), _mm256_mul_ps(a.high, b.high)};
}

EK_V16_INLINE v16f v16f_div(v16f a, v16f b)
{
    return (v16f){_mm256_div_ps(a.low, b.low), _mm256_div_ps(a.high, b.high)};
}

EK_V16_INLINE v16f v16f_max(v16f a, v16f b)
{
    return (v16f){_mm256_max_ps(a.low, b.low), _mm256_max_ps(a.high, b.high)};
}

EK_V16_INLINE v16f v16f_min(v16f a, v16f b)
{
    return (v16f){_mm256_min_ps(a.low, b.low), _mm256_min_ps(a.high, b.high)};
}

EK_V16_INLINE v16f v16f_fma(v16f a, v16f b, v16f c)
{
    return (v16f){_mm256_fmadd_ps(a.low, b.low, c.low), _mm256_fmadd_ps(a.high, b.high, c.high)};
}

EK_V16_INLINE v16f v16f_fnma(v16f a, v16f b, v16f c)
{
    return (v16f){_mm256_fnmadd_ps(a.low, b.low, c.low), _mm256_fnmadd_ps(a.high, b.high, c.high)};
}

EK_V16_INLINE v16f v16f_zero_below(v16f a, v16f x, v16f limit)
{
    __m256 low = _mm256_cmp_ps(x.low, limit.low, _CMP_NLT_UQ);
    __m256 high = _mm256_cmp_ps(x.high, limit.high, _CMP_NLT_UQ);
    return (v16f){_mm256_and_ps(a.low, low), _mm256_and_ps(a.high, high)};
}

EK_V16_INLINE v16f v16f_from_f16(const uint16_t *x)
{
    return (v16f){_mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)x)),
                  _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(x + 8)))};
}

EK_V16_INLINE __m256 v16_widen_bf16(const uint16_t *x)
{
    __m128i half = _mm_loadu_si128((const __m128i *)x);
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16));
}

EK_V16_INLINE v16f v16f_from_bf16(const uint16_t *x)
{
    return (v16f){v16_widen_bf16(x), v16_widen_bf16(x + 8)};
}

EK_V16_INLINE void v16f_to_f16(uint16_t *x, v16f a)
{
    enum { MODE = _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC };
    _mm_storeu_si128((__m128i *)x, _mm256_cvtps_ph(a.low, MODE));
    _mm_storeu_si128((__m128i *)(x + 8), _mm256_cvtps_ph(a.high, MODE));
}

EK_V16_INLINE v16f v16f_evens(v16f a)
{
    return (v16f){_mm256_moveldup_ps(a.low), _mm256_moveldup_ps(a.high)};
}

EK_V16_INLINE v16f v16f_odds(v16f a)
{
    return (v16f){_mm256_movehdup_ps(a.low), _mm256_movehdup_ps(a.high)};
}

EK_V16_INLINE v16f v16f_swap_pairs(v16f a)
{
    return (v16f){_mm256_permute_ps(a.low, 0xb1), _mm256_permute_ps(a.high, 0xb1)};
}

EK_V16_INLINE v16f v16f_addsub(v16f a, v16f b)
{
    return (v16f){_mm256_addsub_ps(a.low, b.low), _mm256_addsub_ps(a.high, b.high)};
}

EK_V16_INLINE __m128 v16_fold_to_4(v16f a)
{
    __m256 eight = _mm256_add_ps(a.low, a.high);
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

EK_V16_INLINE float v16f_sum(v16f a)
{
    __m128 four = v16_fold_to_4(a);
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

typedef struct v16d {
    __m256d quarter[4];
} v16d;

EK_V16_INLINE v16d v16d_zero(void)
{
    __m256d zero = _mm256_setzero_pd();
    return (v16d){{zero, zero, zero, zero}};
}

EK_V16_INLINE __m256d v16_add_squares_4(__m256d sum, __m128 a)
{
    __m256d wide = _mm256_cvtps_pd(a);
    return _mm256_fmadd_pd(wide, wide, sum);
}

EK_V16_INLINE v16d v16d_add_squares(v16d sum, v16f a)
{
    return (v16d){{v16_add_squares_4(sum.quarter[0], _mm256_castps256_ps128(a.low)),
                   v16_add_squares_4(sum.quarter[1], _mm256_extractf128_ps(a.low, 1)),
                   v16_add_squares_4(sum.quarter[2], _mm256_castps256_ps128(a.high)),
                   v16_add_squares_4(sum.quarter[3], _mm256_extractf128_ps(a.high, 1))}};
}

EK_V16_INLINE double v16d_sum(v16d a)
{
    __m256d low = _mm256_add_pd(a.quarter[0], a.quarter[2]);
    __m256d high = _mm256_add_pd(a.quarter[1], a.quarter[3]);
    __m256d four = _mm256_add_pd(low, high);
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

EK_V16_INLINE void v16f_sum4(const v16f a[4], float out[4])
{
    __m128 f0 = v16_fold_to_4(a[0]), f1 = v16_fold_to_4(a[1]);
    __m128 f2 = v16_fold_to_4(a[2]), f3 = v16_fold_to_4(a[3]);
    _MM_TRANSPOSE4_PS(f0, f1, f2, f3);
    _mm_storeu_ps(out, _mm_add_ps(_mm_add_ps(f0, f2), _mm_add_ps(f1, f3)));
}

EK_V16_INLINE float v16f_largest(v16f a)
{
    __m256 eight = _mm256_max_ps(a.low, a.high);
    __m128 four = _mm_max_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
    __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
}

EK_V16_INLINE v16i v16i_zero(void)
{
    return (v16i){_mm256_setzero_si256(), _mm256_setzero_si256()};
}

EK_V16_INLINE v16i v16i_set1(int32_t x)
{
    return (v16i){_mm256_set1_epi32(x), _mm256_set1_epi32(x)};
}

EK_V16_INLINE v16i v16i_load(const void *x)
{
    const __m256i *at = x;
    return (v16i){_mm256_loadu_si256(at), _mm256_loadu_si256(at + 1)};
}

EK_V16_INLINE void v16i_store(void *x, v16i a)
{
    __m256i *at = x;
    _mm256_storeu_si256(at, a.low);
    _mm256_storeu_si256(at + 1, a.high);
}

EK_V16_INLINE v16i v16i_and(v16i a, v16i b)
{
    return (v16i){_mm256_and_si256(a.low, b.low), _mm256_and_si256(a.high, b.high)};
}

EK_V16_INLINE v16i v16i_or(v16i a, v16i b)
{
    return (v16i){_mm256_or_si256(a.low, b.low), _mm256_or_si256(a.high, b.high)};
}

EK_V16_INLINE v16i v16i_xor(v16i a, v16i b)
{
    return (v16i){_mm256_xor_si256(a.low, b.low), _mm256_xor_si256(a.high, b.high)};
}

/** Bits of a where those of mask are set, of b elsewhere. */
EK_V16_INLINE v16i v16i_select(v16i mask, v16i a, v16i b)
{
    return (v16i){
        _mm256_or_si256(_mm256_and_si256(mask.low, a.low), _mm256_andnot_si256(mask.low, b.low)),
        _mm256_or_si256(_mm256_and_si256(mask.high, a.high),
                        _mm256_andnot_si256(mask.high, b.high))};
}

EK_V16_INLINE v16i v16i_add(v16i a, v16i b)
{
    return (v16i){_mm256_add_epi32(a.low, b.low), _mm256_add_epi32(a.high, b.high)};
}

EK_V16_INLINE v16i v16i_sub(v16i a, v16i b)
{
    return (v16i){_mm256_sub_epi32(a.low, b.low), _mm256_sub_epi32(a.high, b.high)};
}

EK_V16_INLINE v16i v16i_max(v16i a, v16i b)
{
    return (v16i){_mm256_max_epi32(a.low, b.low), _mm256_max_epi32(a.high, b.high)};
}

EK_V16_INLINE v16i v16i_shl(v16i a, unsigned n)
{
    return (v16i){_mm256_slli_epi32(a.low, (int)n), _mm256_slli_epi32(a.high, (int)n)};
}

EK_V16_INLINE v16i v16i_shr(v16i a, unsigned n)
{
    return (v16i){_mm256_srli_epi32(a.low, (int)n), _mm256_srli_epi32(a.high, (int)n)};
}

EK_V16_INLINE v16i v16i_sar(v16i a, unsigned n)
{
    return (v16i){_mm256_srai_epi32(a.low, (int)n), _mm256_srai_epi32(a.high, (int)n)};
}

EK_V16_INLINE v16i v16i_round(v16f a)
{
    return (v16i){_mm256_cvtps_epi32(a.low), _mm256_cvtps_epi32(a.high)};
}

EK_V16_INLINE v16f v16f_from_i(v16i a)
{
    return (v16f){_mm256_cvtepi32_ps(a.low), _mm256_cvtepi32_ps(a.high)};
}

EK_V16_INLINE v16f v16f_of_bits(v16i a)
{
    return (v16f){_mm256_castsi256_ps(a.low), _mm256_castsi256_ps(a.high)};
}

EK_V16_INLINE v16i v16i_of_bits(v16f a)
{
    return (v16i){_mm256_castps_si256(a.low), _mm256_castps_si256(a.high)};
}

EK_V16_INLINE int32_t v16i_sum(v16i a)
{
    __m256i eight = _mm256_add_epi32(a.low, a.high);
    __m128i four = _mm_add_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    __m128i two = _mm_add_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_add_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

EK_V16_INLINE int32_t v16i_largest(v16i a)
{
    __m256i eight = _mm256_max_epi32(a.low, a.high);
    __m128i four = _mm_max_epi32(_mm256_castsi256_si128(eight), _mm256_extracti128_si256(eight, 1));
    __m128i two = _mm_max_epi32(four, _mm_shuffle_epi32(four, 0x4e));
    return _mm_cvtsi128_si32(_mm_max_epi32(two, _mm_shuffle_epi32(two, 0xb1)));
}

EK_V16_INLINE void v16i_store_bytes(int8_t *x, v16i a)
{
    /*
     * The first byte of each dword goes to the front of its 128-bit half, then the halves are
     * joined.
     */
    const __m256i heads =
        _mm256_setr_epi8(0, 4, 8, 12, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 0, 4, 8, 12,
                         -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    __m256i low = _mm256_shuffle_epi8(a.low, heads), high = _mm256_shuffle_epi8(a.high, heads);
    __m128i first =
        _mm_unpacklo_epi32(_mm256_castsi256_si128(low), _mm256_extracti128_si256(low, 1));
    __m128i second =
        _mm_unpacklo_epi32(_mm256_castsi256_si128(high), _mm256_extracti128_si256(high, 1));
    _mm_storeu_si128((__m128i *)x, _mm_unpacklo_epi64(first, second));
}

EK_V16_INLINE v16f v16f_from_low_f16(v16i a)
{
    const __m256i mask = _mm256_set1_epi32(0xffff);
    __m256i words =
        _mm256_packus_epi32(_mm256_and_si256(a.low, mask), _mm256_and_si256(a.high, mask));
    words = _mm256_permute4x64_epi64(words, 0xd8); /* pack works within 128-bit halves */
    return (v16f){_mm256_cvtph_ps(_mm256_castsi256_si128(words)),
                  _mm256_cvtph_ps(_mm256_extracti128_si256(words, 1))};
}

/* Eight rows of 16 bytes into 4 vectors of 8 lanes. */
EK_V16_INLINE void v16_load_columns_8(const uint8_t *first, size_t stride, __m256i out[4])
{
    __m256i pair[4]; /* pair[k]: rows k and k + 4 */
    for (size_t k = 0; k < 4; k++) {
        const uint8_t *low = first + k * stride, *high = first + (k + 4) * stride;
        __m128i a = _mm_loadu_si128((const __m128i *)(const void *)low);
        __m128i b = _mm_loadu_si128((const __m128i *)(const void *)high);
        pair[k] = _mm256_inserti128_si256(_mm256_castsi128_si256(a), b, 1);
    }
    __m256i low01 = _mm256_unpacklo_epi32(pair[0], pair[1]);
    __m256i low23 = _mm256_unpacklo_epi32(pair[2], pair[3]);
    __m256i high01 = _mm256_unpackhi_epi32(pair[0], pair[1]);
    __m256i high23 = _mm256_unpackhi_epi32(pair[2], pair[3]);
    out[0] = _mm256_unpacklo_epi64(low01, low23);
    out[1] = _mm256_unpackhi_epi64(low01, low23);
    out[2] = _mm256_unpacklo_epi64(high01, high23);
    out[3] = _mm256_unpackhi_epi64(high01, high23);
}

EK_V16_INLINE void v16_load_columns(const uint8_t *first, size_t stride, v16i out[4])
{
    __m256i low[4], high[4];
    v16_load_columns_8(first, stride, low);
    v16_load_columns_8(first + 8 * stride, stride, high);
    for (int i = 0; i < 4; i++)
        out[i] = (v16i){low[i], high[i]};
}

#endif
