/* Q4_0 and Q8_0: 32 elements under one f16 scale. */
#include <math.h>
#include <string.h>

#include "quant/block.h"
#include "quant/convert.h"

enum { ELEMS = 32 };

void ek_quant_q4_0_unpack(const uint8_t *block, float *out)
{
    ek_block_q4_0 b;
    memcpy(&b, block, sizeof b);
    float d = ek_quant_f16_to_f32(b.d);
    for (int j = 0; j < ELEMS / 2; j++) {
        out[j] = d * (float)((b.qs[j] & 15) - 8);
        out[j + ELEMS / 2] = d * (float)((b.qs[j] >> 4) - 8);
    }
}

void ek_quant_q8_0_unpack(const uint8_t *block, float *out)
{
    ek_block_q8_0 b;
    memcpy(&b, block, sizeof b);
    float d = ek_quant_f16_to_f32(b.d);
    for (int j = 0; j < ELEMS; j++)
        out[j] = d * (float)b.qs[j];
}

/* The element of the largest magnitude, with its sign; NaN when one element is not finite. */
static float extreme_of(const float *x)
{
    float extreme = 0.0f;
    for (int j = 0; j < ELEMS; j++) {
        if (!isfinite(x[j])) return NAN;
        if (fabsf(x[j]) > fabsf(extreme)) extreme = x[j];
    }
    return extreme;
}

static int code_of(float x, float inverse, int low, int high)
{
    float q = rintf(x * inverse);
    return q < (float)low ? low : q > (float)high ? high : (int)q;
}

void ek_quant_q4_0_pack(const float *x, uint8_t *out_block)
{
    ek_block_q4_0 b = {.d = EK_QUANT_F16_NAN};
    float extreme = extreme_of(x);
    if (!isnan(extreme)) {
        /* Codes reach from -8 to 7: the extreme element takes -8, whatever its sign. */
        b.d = ek_quant_f32_to_f16(extreme / -8.0f);
        float d = ek_quant_f16_to_f32(b.d);
        float inverse = d != 0.0f ? 1.0f / d : 0.0f;
        for (int j = 0; j < ELEMS / 2; j++) {
            int low = code_of(x[j], inverse, -8, 7) + 8;
            int high = code_of(x[j + ELEMS / 2], inverse, -8, 7) + 8;
            b.qs[j] = (uint8_t)(low | high << 4);
        }
    }
    memcpy(out_block, &b, sizeof b);
}

void ek_quant_q8_0_pack(const float *x, uint8_t *out_block)
{
    ek_block_q8_0 b = {.d = EK_QUANT_F16_NAN};
    float extreme = extreme_of(x);
    if (!isnan(extreme)) {
        b.d = ek_quant_f32_to_f16(fabsf(extreme) / 127.0f);
        float d = ek_quant_f16_to_f32(b.d);
        float inverse = d != 0.0f ? 1.0f / d : 0.0f;
        for (int j = 0; j < ELEMS; j++)
            b.qs[j] = (int8_t)code_of(x[j], inverse, -127, 127);
    }
    memcpy(out_block, &b, sizeof b);
}
