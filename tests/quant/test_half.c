/*
 * Goal: half floats are converted exactly and rounded to nearest, ties to even. Method: every one
 * of the 65,536 values of both formats against arithmetic in double, and every gap between
 * neighbours at its middle and beside it.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "quant/convert.h"

typedef struct half_format {
    int fraction_bits, exponent_bias, exponent_max; /* all ones: infinity and NaN */
    float (*widen)(uint16_t);
    uint16_t (*round)(float);
} half_format;

static const half_format formats[] = {
    {10, 15, 31, ek_quant_f16_to_f32, ek_quant_f32_to_f16},
    {7, 127, 255, ek_quant_bf16_to_f32, ek_quant_f32_to_bf16},
};

/* Sign, exponent and fraction put together as the format's definition says. */
static double value_of(const half_format *f, uint16_t half)
{
    int fraction = half & ((1 << f->fraction_bits) - 1);
    int exponent = half >> f->fraction_bits & f->exponent_max;
    double sign = half & 0x8000 ? -1.0 : 1.0;
    if (exponent == f->exponent_max) return fraction ? (double)NAN : sign * (double)INFINITY;
    int hidden = exponent ? 1 << f->fraction_bits : 0;
    int scale = (exponent ? exponent : 1) - f->exponent_bias - f->fraction_bits;
    return sign * ldexp(hidden + fraction, scale);
}

static void widens_and_comes_back(void **state EK_UNUSED)
{
    for (size_t i = 0; i < EK_COUNT_OF(formats); i++)
        for (uint32_t half = 0; half < 65536; half++) {
            const half_format *f = &formats[i];
            float wide = f->widen((uint16_t)half);
            double expected = value_of(f, (uint16_t)half);
            uint16_t back = f->round(wide);
            if (isnan(expected)) {
                assert_true(isnan(wide));
                assert_true(isnan(f->widen(back)));
                assert_int_equal(back & 0x8000, half & 0x8000);
            } else {
                assert_true((double)wide == expected);
                assert_int_equal(signbit(wide) != 0, half >> 15);
                assert_int_equal(back, half);
            }
        }
}

static void rounds_to_nearest_even(void **state EK_UNUSED)
{
    for (size_t i = 0; i < EK_COUNT_OF(formats); i++) {
        const half_format *f = &formats[i];
        uint16_t infinity = (uint16_t)(f->exponent_max << f->fraction_bits);
        for (uint16_t half = 0; half < infinity; half++) {
            /*
             * Above the largest finite value comes what would be the next one, were there room for
             * it.
             */
            double low = value_of(f, half),
                   step = value_of(f, half) - value_of(f, half ? half - 1 : 0);
            double high = half + 1 < infinity ? value_of(f, half + 1) : low + step;
            float middle = (float)((low + high) / 2);
            if ((double)middle != (low + high) / 2) continue; /* below f32's own precision */
            uint16_t even = (uint16_t)(half + (half & 1));
            assert_int_equal(f->round(middle), even);
            assert_int_equal(f->round(-middle), even | 0x8000);
            assert_int_equal(f->round(nextafterf(middle, 0.0f)), half);
            assert_int_equal(f->round(nextafterf(middle, INFINITY)), half + 1);
        }
        assert_int_equal(f->round(INFINITY), infinity);
        assert_int_equal(f->round(-INFINITY), infinity | 0x8000);
    }
    assert_int_equal(ek_quant_f32_to_f16(3e38f), 0x7c00);
    assert_int_equal(ek_quant_f32_to_f16(1e-30f), 0x0000);
    assert_int_equal(ek_quant_f32_to_f16(-1e-30f), 0x8000);
}

/* A NaN whose payload lies only in the bits that are cut must not become infinity. */
static void keeps_nan(void **state EK_UNUSED)
{
    uint32_t bits = 0x7f800001u;
    float nan;
    memcpy(&nan, &bits, sizeof nan);
    assert_true(isnan(ek_quant_f16_to_f32(ek_quant_f32_to_f16(nan))));
    assert_true(isnan(ek_quant_bf16_to_f32(ek_quant_f32_to_bf16(nan))));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(widens_and_comes_back),
        cmocka_unit_test(rounds_to_nearest_even),
        cmocka_unit_test(keeps_nan),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
