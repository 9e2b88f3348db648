/*
 * Goal: each block type means what types.h says, and packing loses no more than its codes must.
 * Method: blocks put together bit by bit from chosen codes and scales, with the expected values
 * from the same numbers; then rows packed and unpacked under an error budget.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "base/rng.h"
#include "quant/convert.h"

enum { ONE = 0x3c00, HALF = 0x3800, QUARTER = 0x3400, MINUS_EIGHTH = 0xb000 }; /* f16 */

static const ek_type block_types[] = {EK_TYPE_Q4_0, EK_TYPE_Q8_0, EK_TYPE_Q4_K, EK_TYPE_Q5_K,
                                      EK_TYPE_Q6_K};
static const ek_type all_types[] = {EK_TYPE_F32,  EK_TYPE_F16,  EK_TYPE_BF16, EK_TYPE_Q4_0,
                                    EK_TYPE_Q8_0, EK_TYPE_Q4_K, EK_TYPE_Q5_K, EK_TYPE_Q6_K};

static void assert_exact(float got, double expected)
{
    if ((double)got != expected) fail_msg("%.9g, expected %.9g", (double)got, expected);
}

static void reads_q4_0(void **state EK_UNUSED)
{
    ek_block_q4_0 block = {.d = HALF};
    float out[32];
    for (int j = 0; j < 16; j++)
        block.qs[j] = (uint8_t)(j | (15 - j) << 4);
    ek_quant_row_to_f32(EK_TYPE_Q4_0, &block, 32, out);
    for (int j = 0; j < 16; j++) {
        assert_exact(out[j], 0.5 * (j - 8));
        assert_exact(out[j + 16], 0.5 * (7 - j));
    }
}

static void reads_q8_0(void **state EK_UNUSED)
{
    ek_block_q8_0 block = {.d = MINUS_EIGHTH};
    float out[32];
    for (int j = 0; j < 32; j++)
        block.qs[j] = (int8_t)(j * 8 - 128);
    ek_quant_row_to_f32(EK_TYPE_Q8_0, &block, 32, out);
    for (int j = 0; j < 32; j++)
        assert_exact(out[j], -0.125 * (j * 8 - 128));
}

/*
 * Scales 1, 10, 19, 28, 37, 46, 55, 63 and mins 63, 0, 5, 33, 16, 47, 48, 31, packed by hand. Byte
 * j (j < 4) is scale j with the top two bits of scale j + 4 above it, byte 4 + j the same of the
 * mins, byte 8 + j the low nibbles of scale j + 4 and, above, min j + 4.
 *   37 = 10 0101, 46 = 10 1110, 55 = 11 0111, 63 = 11 1111;
 *   16 = 01 0000, 47 = 10 1111, 48 = 11 0000, 31 = 01 1111
 */
static const uint8_t packed_scales[12] = {
    0x80 | 1, 0x80 | 10, 0xc0 | 19, 0xc0 | 28, 0x40 | 63, 0x80 | 0,
    0xc0 | 5, 0x40 | 33, 0x05,      0xfe,      0x07,      0xff,
};
static const int scale_of[8] = {1, 10, 19, 28, 37, 46, 55, 63};
static const int min_of[8] = {63, 0, 5, 33, 16, 47, 48, 31};

static void reads_q4_k(void **state EK_UNUSED)
{
    ek_block_q4_K block = {.d = QUARTER, .dmin = HALF};
    float out[256];
    memcpy(block.scales, packed_scales, sizeof packed_scales);
    for (int pair = 0; pair < 4; pair++)
        for (int i = 0; i < 32; i++) /* codes (i + pair) % 16 below, 15 - i % 16 above */
            block.qs[32 * pair + i] = (uint8_t)((i + pair) % 16 + 16 * (15 - i % 16));
    ek_quant_row_to_f32(EK_TYPE_Q4_K, &block, 256, out);
    for (int pair = 0; pair < 4; pair++)
        for (int i = 0; i < 32; i++) {
            int low = 2 * pair, high = low + 1;
            assert_exact(out[64 * pair + i],
                         0.25 * scale_of[low] * ((i + pair) % 16) - 0.5 * min_of[low]);
            assert_exact(out[64 * pair + 32 + i],
                         0.25 * scale_of[high] * (15 - i % 16) - 0.5 * min_of[high]);
        }
}

static int five_bits(int j, int i)
{
    return (7 * i + 3 * j) % 32;
}

static void reads_q5_k(void **state EK_UNUSED)
{
    ek_block_q5_K block = {.d = ONE, .dmin = QUARTER};
    float out[256];
    memcpy(block.scales, packed_scales, sizeof packed_scales);
    for (int i = 0; i < 32; i++)
        for (int pair = 0; pair < 4; pair++) {
            int low = five_bits(2 * pair, i), high = five_bits(2 * pair + 1, i);
            block.qs[32 * pair + i] = (uint8_t)(low % 16 + high % 16 * 16);
            block.qh[i] =
                (uint8_t)(block.qh[i] + (low / 16 << 2 * pair) + (high / 16 << (2 * pair + 1)));
        }
    ek_quant_row_to_f32(EK_TYPE_Q5_K, &block, 256, out);
    for (int j = 0; j < 8; j++)
        for (int i = 0; i < 32; i++)
            assert_exact(out[32 * j + i], scale_of[j] * five_bits(j, i) - 0.25 * min_of[j]);
}

static int six_bits(int e)
{
    return (e * 29 + e / 32) % 64;
}

static void reads_q6_k(void **state EK_UNUSED)
{
    ek_block_q6_K block = {.d = QUARTER};
    float out[256];
    for (int s = 0; s < 16; s++)
        block.scales[s] = (int8_t)(s * 17 - 128);
    for (int half = 0; half < 2; half++)
        for (int i = 0; i < 32; i++) {
            int q[4];
            for (int k = 0; k < 4; k++)
                q[k] = six_bits(128 * half + 32 * k + i);
            block.ql[64 * half + i] = (uint8_t)(q[0] % 16 + q[2] % 16 * 16);
            block.ql[64 * half + 32 + i] = (uint8_t)(q[1] % 16 + q[3] % 16 * 16);
            block.qh[32 * half + i] =
                (uint8_t)(q[0] / 16 + q[1] / 16 * 4 + q[2] / 16 * 16 + q[3] / 16 * 64);
        }
    ek_quant_row_to_f32(EK_TYPE_Q6_K, &block, 256, out);
    for (int e = 0; e < 256; e++)
        assert_exact(out[e], 0.25 * (e / 16 * 17 - 128) * (six_bits(e) - 32));
}

/* Rows lie anywhere in a mapped file. */
static void reads_at_any_address(void **state EK_UNUSED)
{
    enum { N = 512 };
    float x[N], even[N], odd[N];
    uint8_t row[N * 4 + 1], moved[N * 4 + 1];
    for (int i = 0; i < N; i++)
        x[i] = (float)(i % 61 - 30) * 0.37f;
    for (size_t t = 0; t < EK_COUNT_OF(all_types); t++) {
        assert_int_equal(ek_quant_row_from_f32(all_types[t], x, N, row), EK_OK);
        assert_int_equal(ek_quant_row_from_f32(all_types[t], x, N, moved + 1), EK_OK);
        assert_memory_equal(row, moved + 1, ek_quant_row_bytes(all_types[t], N));
        ek_quant_row_to_f32(all_types[t], row, N, even);
        ek_quant_row_to_f32(all_types[t], moved + 1, N, odd);
        assert_memory_equal(even, odd, sizeof even);
    }
}

/*
 * Uniform numbers in [-1, 1]. A step of s leaves s / sqrt(12) of root mean square and s / 2 at
 * most; the budget is the step of a block whose range is the whole interval, plus what rounding the
 * scales to six bits (1 / 126) adds.
 */
static void packs_within_budget(void **state EK_UNUSED)
{
    static const struct {
        ek_type type;
        double step, worst; /* worst: in steps */
    } budget[] = {
        {EK_TYPE_F32, 0.0, 0.0},       {EK_TYPE_F16, 0x1p-11, 0.51},
        {EK_TYPE_BF16, 0x1p-8, 0.51},  {EK_TYPE_Q8_0, 1.0 / 127, 0.6},
        {EK_TYPE_Q4_0, 1.0 / 8, 1.01}, {EK_TYPE_Q4_K, 2.0 / 15, 0.7},
        {EK_TYPE_Q5_K, 2.0 / 31, 0.9}, {EK_TYPE_Q6_K, 1.0 / 31, 0.7},
    };
    enum { N = 256 * 64 };
    static float x[N], back[N];
    static uint8_t row[N * 4];
    ek_rng rng;
    ek_rng_init(&rng, 7);
    for (int i = 0; i < N; i++)
        x[i] = (float)(ek_rng_unit(&rng) * 2.0 - 1.0);
    for (size_t b = 0; b < EK_COUNT_OF(budget); b++) {
        assert_int_equal(ek_quant_row_from_f32(budget[b].type, x, N, row), EK_OK);
        ek_quant_row_to_f32(budget[b].type, row, N, back);
        double squares = 0.0, worst = 0.0;
        for (int i = 0; i < N; i++) {
            double error = fabs((double)x[i] - (double)back[i]);
            squares += error * error;
            worst = fmax(worst, error);
        }
        double rms = sqrt(squares / N), step = budget[b].step;
        if (rms > step / sqrt(12.0) * 1.05 || worst > step * budget[b].worst)
            fail_msg("%s: rms %.3g, worst %.3g steps",
                     ek_quant_type_info((uint32_t)budget[b].type)->name, rms, worst / step);
    }
}

/*
 * Numbers that a block can hold come back as they are: the extremes decide the scale, the codes hit
 * exactly.
 */
static void packs_exact_numbers_exactly(void **state EK_UNUSED)
{
    float x[256], back[256];
    uint8_t row[256 * 2];
    for (size_t t = 0; t < EK_COUNT_OF(block_types); t++) {
        for (int e = 0; e < 256; e++) {
            int i = e % 32;
            switch (block_types[t]) {
            case EK_TYPE_Q4_0: x[e] = 0.5f * (float)(i % 16 - 8); break;
            case EK_TYPE_Q8_0: x[e] = 0.5f * (float)(i * 8 - 127 + (i > 15)); break;
            case EK_TYPE_Q4_K: x[e] = 0.25f * (float)(63 * (i % 16)) - 0.5f * 63; break;
            case EK_TYPE_Q5_K: x[e] = 0.25f * (float)(63 * i) - 0.5f * 63; break;
            case EK_TYPE_Q6_K: x[e] = 0.25f * (float)(127 * (2 * (e % 32) - 31)); break;
            case EK_TYPE_F32:
            case EK_TYPE_F16:
            case EK_TYPE_BF16: fail();
            }
        }
        assert_int_equal(ek_quant_row_from_f32(block_types[t], x, 256, row), EK_OK);
        ek_quant_row_to_f32(block_types[t], row, 256, back);
        for (int e = 0; e < 256; e++)
            assert_exact(back[e], (double)x[e]);
    }
}

static void packs_zeros_and_odd_values(void **state EK_UNUSED)
{
    static const float odd[] = {NAN, INFINITY, -INFINITY};
    float x[512], back[512];
    uint8_t row[512 * 2];
    for (size_t t = 0; t < EK_COUNT_OF(block_types); t++) {
        int elems = ek_quant_type_info((uint32_t)block_types[t])->block_elems;
        memset(x, 0, sizeof x);
        assert_int_equal(ek_quant_row_from_f32(block_types[t], x, 512, row), EK_OK);
        ek_quant_row_to_f32(block_types[t], row, 512, back);
        for (int e = 0; e < 512; e++)
            assert_exact(back[e], 0.0);
        for (size_t o = 0; o < EK_COUNT_OF(odd);
             o++) { /* the bad block is NaN, its neighbour is not */
            x[elems + 3] = odd[o];
            assert_int_equal(ek_quant_row_from_f32(block_types[t], x, 512, row), EK_OK);
            ek_quant_row_to_f32(block_types[t], row, 512, back);
            for (int e = 0; e < 512; e++) {
                if (e / elems == 1)
                    assert_true(isnan(back[e]));
                else
                    assert_exact(back[e], 0.0);
            }
            x[elems + 3] = 0.0f;
        }
    }
}

static void refuses_other_types(void **state EK_UNUSED)
{
    float x[256] = {0};
    uint8_t row[4] = {1, 2, 3, 4};
    assert_int_equal(ek_quant_row_from_f32((ek_type)23, x, 256, row), EK_EUNSUPPORTED);
    assert_int_equal(ek_quant_row_from_f32((ek_type)999, x, 256, row), EK_EUNSUPPORTED);
    assert_int_equal(row[0], 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_q4_0),
        cmocka_unit_test(reads_q8_0),
        cmocka_unit_test(reads_q4_k),
        cmocka_unit_test(reads_q5_k),
        cmocka_unit_test(reads_q6_k),
        cmocka_unit_test(reads_at_any_address),
        cmocka_unit_test(packs_within_budget),
        cmocka_unit_test(packs_exact_numbers_exactly),
        cmocka_unit_test(packs_zeros_and_odd_values),
        cmocka_unit_test(refuses_other_types),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
