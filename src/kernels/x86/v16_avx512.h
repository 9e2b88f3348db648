/*
 * Sixteen lanes of f32 or 32-bit integers, as one AVX-512 register.
 *
 * v16_avx2.h gives the same functions over two AVX2 registers. A kernel is written once on these
 * (the *_body.h files) and included by one .c file per instruction set, so that both tables do the
 * same additions in the same order and agree bit for bit. Only intrinsics headers may differ
 * between the two. Private to this room. Pure.
 */
#ifndef EK_KERNELS_X86_V16_AVX512_H
#define EK_KERNELS_X86_V16_AVX512_H

#include <immintrin.h>
#include <stdint.h>
#include <string.h>

#define EK_V16_INLINE static inline __attribute__((always_inline, unused))

/* Register tiles: what 32 registers hold without spilling. Tiles never change a result. */
enum {
    EK_V16_FLOAT_ROWS = 4,   /* matmul_f: rows and tokens of a tile */
    EK_V16_FLOAT_TOKENS = 4, /* 16 sums */
    EK_V16_ATTEND_QUERIES = 4,
};

typedef __m512 v16f;
typedef __m512i v16i;

EK_V16_INLINE __mmask16 v16_first(int n)
{
    return (__mmask16)((1u << n) - 1u);
}

EK_V16_INLINE v16f v16f_zero(void)
{
    return _mm512_setzero_ps();
}

EK_V16_INLINE v16f v16f_set1(float x)
{
    return _mm512_set1_ps(x);
}

EK_V16_INLINE v16f v16f_load(const float *x)
{
    return _mm512_loadu_ps(x);
}

/** The first n (0..16) of x, zeros behind; reads no further. */
EK_V16_INLINE v16f v16f_load_n(const float *x, int n)
{
    return _mm512_maskz_loadu_ps(v16_first(n), x);
}

EK_V16_INLINE void v16f_store(float *x, v16f a)
{
    _mm512_storeu_ps(x, a);
}

EK_V16_INLINE void v16f_store_n(float *x, int n, v16f a)
{
    _mm512_mask_storeu_ps(x, v16_first(n), a);
}

/** `inside` where lane < n, `a` elsewhere. */
EK_V16_INLINE v16f v16f_first(int n, v16f inside, v16f a)
{
    return _mm512_mask_blend_ps(v16_first(n), a, inside);
}

EK_V16_INLINE v16f v16f_add(v16f a, v16f b)
{
    return _mm512_add_ps(a, b);
}

EK_V16_INLINE v16f v16f_sub(v16f a, v16f b)
{
    return _mm512_sub_ps(a, b);
}

EK_V16_INLINE v16f v16f_mul(v16f a, v16f b)
{
    return _mm512_mul_ps(a, b);
}

EK_V16_INLINE v16f v16f_div(v16f a, v16f b)
{
    return _mm512_div_ps(a, b);
}

/** b when either is NaN: keep the value that may be NaN in b. */
EK_V16_INLINE v16f v16f_max(v16f a, v16f b)
{
    return _mm512_max_ps(a, b);
}

/** b when either is NaN. */
EK_V16_INLINE v16f v16f_min(v16f a, v16f b)
{
    return _mm512_min_ps(a, b);
}

/** a * b + c, rounded once. */
EK_V16_INLINE v16f v16f_fma(v16f a, v16f b, v16f c)
{
    return _mm512_fmadd_ps(a, b, c);
}

/** c - a * b, rounded once. */
EK_V16_INLINE v16f v16f_fnma(v16f a, v16f b, v16f c)
{
    return _mm512_fnmadd_ps(a, b, c);
}

/** a where x >= limit or either is NaN, zero elsewhere. */
EK_V16_INLINE v16f v16f_zero_below(v16f a, v16f x, v16f limit)
{
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_NLT_UQ), a);
}

EK_V16_INLINE v16f v16f_from_f16(const uint16_t *x)
{
    return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)x));
}

EK_V16_INLINE v16f v16f_from_bf16(const uint16_t *x)
{
    __m256i half = _mm256_loadu_si256((const __m256i *)x);
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16));
}

EK_V16_INLINE void v16f_to_f16(uint16_t *x, v16f a)
{
    __m256i half = _mm512_cvtps_ph(a, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    _mm256_storeu_si256((__m256i *)x, half);
}

/* Neighbours in pairs: lanes (0, 0, 2, 2, ...), (1, 1, 3, 3, ...) and (1, 0, 3, 2, ...). */
EK_V16_INLINE v16f v16f_evens(v16f a)
{
    return _mm512_moveldup_ps(a);
}

EK_V16_INLINE v16f v16f_odds(v16f a)
{
    return _mm512_movehdup_ps(a);
}

EK_V16_INLINE v16f v16f_swap_pairs(v16f a)
{
    return _mm512_permute_ps(a, 0xb1);
}

/** a - b in even lanes, a + b in odd ones. */
EK_V16_INLINE v16f v16f_addsub(v16f a, v16f b)
{
    return _mm512_mask_sub_ps(_mm512_add_ps(a, b), 0x5555, a, b);
}

/*
 * The one order in which 16 lanes become one number: lanes 8 apart, then 4, 2 and 1.
 */
EK_V16_INLINE __m128 v16_fold_to_4(v16f a)
{
    __m256 low = _mm512_castps512_ps256(a);
    __m256 high = _mm512_extractf32x8_ps(a, 1);
    __m256 eight = _mm256_add_ps(low, high);
    return _mm_add_ps(_mm256_castps256_ps128(eight), _mm256_extractf128_ps(eight, 1));
}

EK_V16_INLINE float v16f_sum(v16f a)
{
    __m128 four = v16_fold_to_4(a);
    __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
}

/* Sixteen lanes of f64, for sums of squares. */
typedef struct v16d {
    __m512d low, high;
} v16d;

EK_V16_INLINE v16d v16d_zero(void)
{
    return (v16d){_mm512_setzero_pd(), _mm512_setzero_pd()};
}

EK_V16_INLINE v16d v16d_add_squares(v16d sum, v16f a)
{
    __m512d low = _mm512_cvtps_pd(_mm512_castps512_ps256(a));
    __m512d high = _mm512_cvtps_pd(_mm512_extractf32x8_ps(a, 1));
    return (v16d){_mm512_fmadd_pd(low, low, sum.low), _mm512_fmadd_pd(high, high, sum.high)};
}

/** Lanes 8 apart, then 4, 2 and 1, as v16f_sum. */
EK_V16_INLINE double v16d_sum(v16d a)
{
    __m512d eight = _mm512_add_pd(a.low, a.high);
    __m256d four = _mm256_add_pd(_mm512_castpd512_pd256(eight), _mm512_extractf64x4_pd(eight, 1));
    __m128d two = _mm_add_pd(_mm256_castpd256_pd128(four), _mm256_extractf128_pd(four, 1));
    return _mm_cvtsd_f64(_mm_add_sd(two, _mm_unpackhi_pd(two, two)));
}

/** Four sums at once, each in the order of v16f_sum. */
EK_V16_INLINE void v16f_sum4(const v16f a[4], float out[4])
{
    __m512 x01 = _mm512_add_ps(_mm512_shuffle_f32x4(a[0], a[1], 0x44),
                               _mm512_shuffle_f32x4(a[0], a[1], 0xee));
    __m512 x23 = _mm512_add_ps(_mm512_shuffle_f32x4(a[2], a[3], 0x44),
                               _mm512_shuffle_f32x4(a[2], a[3], 0xee));
    __m512 four =
        _mm512_add_ps(_mm512_shuffle_f32x4(x01, x23, 0x88), _mm512_shuffle_f32x4(x01, x23, 0xdd));
    __m512 two = _mm512_add_ps(four, _mm512_permute_ps(four, 0x4e));
    __m512 one = _mm512_add_ps(two, _mm512_permute_ps(two, 0xb1));
    __m512i heads = _mm512_set_epi32(0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 12, 8, 4, 0);
    _mm_storeu_ps(out, _mm512_castps512_ps128(_mm512_permutexvar_ps(heads, one)));
}

/** The largest lane; any NaN rule. */
EK_V16_INLINE float v16f_largest(v16f a)
{
    return _mm512_reduce_max_ps(a);
}

EK_V16_INLINE v16i v16i_zero(void)
{
    return _mm512_setzero_si512();
}

EK_V16_INLINE v16i v16i_set1(int32_t x)
{
    return _mm512_set1_epi32(x);
}

EK_V16_INLINE v16i v16i_load(const void *x)
{
    return _mm512_loadu_si512(x);
}

EK_V16_INLINE void v16i_store(void *x, v16i a)
{
    _mm512_storeu_si512(x, a);
}

EK_V16_INLINE v16i v16i_and(v16i a, v16i b)
{
    return _mm512_and_si512(a, b);
}

EK_V16_INLINE v16i v16i_or(v16i a, v16i b)
{
    return _mm512_or_si512(a, b);
}

EK_V16_INLINE v16i v16i_xor(v16i a, v16i b)
{
    return _mm512_xor_si512(a, b);
}

/** Bits of a where those of mask are set, of b elsewhere. */
EK_V16_INLINE v16i v16i_select(v16i mask, v16i a, v16i b)
{
    return _mm512_ternarylogic_epi32(mask, a, b, 0xca);
}

EK_V16_INLINE v16i v16i_add(v16i a, v16i b)
{
    return _mm512_add_epi32(a, b);
}

EK_V16_INLINE v16i v16i_sub(v16i a, v16i b)
{
    return _mm512_sub_epi32(a, b);
}

EK_V16_INLINE v16i v16i_max(v16i a, v16i b)
{
    return _mm512_max_epi32(a, b);
}

/* Shifts: n is a constant at every call. */
EK_V16_INLINE v16i v16i_shl(v16i a, unsigned n)
{
    return _mm512_slli_epi32(a, n);
}

EK_V16_INLINE v16i v16i_shr(v16i a, unsigned n)
{
    return _mm512_srli_epi32(a, n);
}

EK_V16_INLINE v16i v16i_sar(v16i a, unsigned n)
{
    return _mm512_srai_epi32(a, n);
}

/** Round to nearest, ties to even; NaN and what does not fit give INT32_MIN. */
EK_V16_INLINE v16i v16i_round(v16f a)
{
    return _mm512_cvtps_epi32(a);
}

EK_V16_INLINE v16f v16f_from_i(v16i a)
{
    return _mm512_cvtepi32_ps(a);
}

EK_V16_INLINE v16f v16f_of_bits(v16i a)
{
    return _mm512_castsi512_ps(a);
}

EK_V16_INLINE v16i v16i_of_bits(v16f a)
{
    return _mm512_castps_si512(a);
}

EK_V16_INLINE int32_t v16i_sum(v16i a)
{
    return _mm512_reduce_add_epi32(a);
}

EK_V16_INLINE int32_t v16i_largest(v16i a)
{
    return _mm512_reduce_max_epi32(a);
}

/** The low byte of each lane. */
EK_V16_INLINE void v16i_store_bytes(int8_t *x, v16i a)
{
    _mm_storeu_si128((__m128i *)x, _mm512_cvtepi32_epi8(a));
}

/** f32 of the f16 in the low half of each lane. */
EK_V16_INLINE v16f v16f_from_low_f16(v16i a)
{
    return _mm512_cvtph_ps(_mm512_cvtepi32_epi16(a));
}

EK_V16_INLINE __m128i v16_load_16(const uint8_t *x)
{
    return _mm_loadu_si128((const __m128i *)(const void *)x);
}

/*
 * Turn 16 rows of 16 bytes, `stride` apart, into 4 vectors: out[i] has dword i of every row, row r
 * in lane r. Two rows at a time are merged while they are loaded, which blends; only pairs of pairs
 * take the ports that shuffle. Compilers would rather keep 16 row pointers than use the addressing
 * modes of four, so they are not told how these belong together.
 */
EK_V16_INLINE void v16_load_columns(const uint8_t *first, size_t stride, v16i out[4])
{
    size_t stride3 = 3 * stride;
    const uint8_t *r0 = first, *r4 = r0 + 4 * stride, *r8 = r4 + 4 * stride, *r12 = r8 + 4 * stride;
    __asm__("" : "+r"(r0), "+r"(r4), "+r"(r8), "+r"(r12), "+r"(stride3));
    const size_t at[4] = {0, stride, 2 * stride, stride3};
    __m512i quad[4]; /* quad[k]: rows k, k + 4, k + 8, k + 12 */
#pragma GCC unroll 4
    for (int k = 0; k < 4; k++) {
        __m256i low = _mm256_castsi128_si256(v16_load_16(r0 + at[k]));
        __m256i high = _mm256_castsi128_si256(v16_load_16(r8 + at[k]));
        low = _mm256_inserti128_si256(low, v16_load_16(r4 + at[k]), 1);
        high = _mm256_inserti128_si256(high, v16_load_16(r12 + at[k]), 1);
        quad[k] = _mm512_inserti64x4(_mm512_castsi256_si512(low), high, 1);
    }
    __m512i low01 = _mm512_unpacklo_epi32(quad[0], quad[1]);
    __m512i low23 = _mm512_unpacklo_epi32(quad[2], quad[3]);
    __m512i high01 = _mm512_unpackhi_epi32(quad[0], quad[1]);
    __m512i high23 = _mm512_unpackhi_epi32(quad[2], quad[3]);
    out[0] = _mm512_unpacklo_epi64(low01, low23);
    out[1] = _mm512_unpackhi_epi64(low01, low23);
    out[2] = _mm512_unpacklo_epi64(high01, high23);
    out[3] = _mm512_unpackhi_epi64(high01, high23);
}

#endif
