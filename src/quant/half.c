#include <string.h>

#include "quant/convert.h"

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u;
}

static float float_of(uint32_t u)
{
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

float ek_quant_f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16;
    uint32_t exponent = (h >> 10) & 0x1fu;
    uint32_t fraction = h & 0x3ffu;
    if (exponent == 0) {
        /* Zero or subnormal: fraction * 2^-24 is exact in f32. */
        float magnitude = (float)fraction * 0x1p-24f;
        return float_of(bits_of(magnitude) | sign);
    }
    if (exponent == 0x1f) {
        /* Infinity, or a NaN that becomes a quiet one, as F16C does it. */
        uint32_t quiet = fraction ? 0x400000u : 0;
        return float_of(sign | 0x7f800000u | quiet | (fraction << 13));
    }
    return float_of(sign | ((exponent + 112) << 23) | (fraction << 13));
}

uint16_t ek_quant_f32_to_f16(float f)
{
    uint32_t u = bits_of(f);
    uint32_t sign = (u >> 16) & 0x8000u;
    uint32_t magnitude = u & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return (uint16_t)(sign | 0x7e00u | ((magnitude >> 13) & 0x1ffu));
    if (magnitude >= 0x47800000u) return (uint16_t)(sign | 0x7c00u); /* >= 2^16 */
    if (magnitude < 0x38800000u) {
        /*
         * Below 2^-14 the result is subnormal: adding 0.5 makes the FPU round at 2^-24, the unit of
         * the result.
         */
        float rounded = float_of(magnitude) + 0.5f;
        return (uint16_t)(sign | (bits_of(rounded) - bits_of(0.5f)));
    }
    uint32_t tie_to_even = (magnitude >> 13) & 1u;
    uint32_t rounded = magnitude + 0xfffu + tie_to_even;
    return (uint16_t)(sign |
                      ((rounded - (112u << 23)) >> 13)); /* a carry out of 65504 is infinity */
}

float ek_quant_bf16_to_f32(uint16_t b)
{
    return float_of((uint32_t)b << 16);
}

uint16_t ek_quant_f32_to_bf16(float f)
{
    uint32_t u = bits_of(f);
    if ((u & 0x7fffffffu) > 0x7f800000u) return (uint16_t)((u >> 16) | 0x40u);
    uint32_t tie_to_even = (u >> 16) & 1u;
    return (uint16_t)((u + 0x7fffu + tie_to_even) >> 16);
}
