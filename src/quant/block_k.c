/* Q4_K, Q5_K and Q6_K: 256 elements under a hierarchy of scales. */
#include <math.h>
#include <string.h>

#include "quant/block.h"
#include "quant/convert.h"

enum { SUBS = 8, SUB_ELEMS = 32, Q6_SUBS = 16, Q6_SUB_ELEMS = 16 };

/*
 * The 6-bit scales and mins of 8 sub-blocks share 12 bytes: bytes 0..3 hold the low six bits of
 * scales 0..3, bytes 4..7 of mins 0..3; their upper two bits and the nibbles of bytes 8..11 hold
 * scales and mins 4..7.
 */
static void scales_unpack(const uint8_t packed[12], uint8_t scale[SUBS], uint8_t min[SUBS])
{
    for (int j = 0; j < 4; j++) {
        scale[j] = packed[j] & 63;
        min[j] = packed[j + 4] & 63;
        scale[j + 4] = (uint8_t)((packed[j + 8] & 15) | (packed[j] >> 6 << 4));
        min[j + 4] = (uint8_t)((packed[j + 8] >> 4) | (packed[j + 4] >> 6 << 4));
    }
}

static void scales_pack(const uint8_t scale[SUBS], const uint8_t min[SUBS], uint8_t packed[12])
{
    for (int j = 0; j < 4; j++) {
        packed[j] = (uint8_t)(scale[j] | (scale[j + 4] >> 4 << 6));
        packed[j + 4] = (uint8_t)(min[j] | (min[j + 4] >> 4 << 6));
        packed[j + 8] = (uint8_t)((scale[j + 4] & 15) | ((min[j + 4] & 15) << 4));
    }
}

void ek_quant_q4_k_unpack(const uint8_t *block, float *out)
{
    ek_block_q4_K b;
    memcpy(&b, block, sizeof b);
    float d = ek_quant_f16_to_f32(b.d), dmin = ek_quant_f16_to_f32(b.dmin);
    uint8_t scale[SUBS], min[SUBS];
    scales_unpack(b.scales, scale, min);
    for (int j = 0; j < SUBS; j++)
        for (int i = 0; i < SUB_ELEMS; i++) {
            int q = b.qs[j / 2 * SUB_ELEMS + i] >> (j % 2 * 4) & 15;
            out[j * SUB_ELEMS + i] = d * (float)(scale[j] * q) - dmin * (float)min[j];
        }
}

void ek_quant_q5_k_unpack(const uint8_t *block, float *out)
{
    ek_block_q5_K b;
    memcpy(&b, block, sizeof b);
    float d = ek_quant_f16_to_f32(b.d), dmin = ek_quant_f16_to_f32(b.dmin);
    uint8_t scale[SUBS], min[SUBS];
    scales_unpack(b.scales, scale, min);
    for (int j = 0; j < SUBS; j++)
        for (int i = 0; i < SUB_ELEMS; i++) {
            int low = b.qs[j / 2 * SUB_ELEMS + i] >> (j % 2 * 4) & 15;
            int q = low | (b.qh[i] >> j & 1) << 4;
            out[j * SUB_ELEMS + i] = d * (float)(scale[j] * q) - dmin * (float)min[j];
        }
}

/*
 * Where Q6_K keeps element e of its 256: each half of 128 has 64 bytes of low nibbles and 32 bytes
 * of high pairs; quarter k of the half takes nibble k / 2 of the bytes 32 * (k % 2) + i and bit
 * pair k of the bytes i.
 */
typedef struct q6_place {
    int low_byte, low_shift, high_byte, high_shift;
} q6_place;

static q6_place q6_place_of(int e)
{
    int half = e / 128, quarter = e % 128 / 32, i = e % 32;
    return (q6_place){.low_byte = half * 64 + quarter % 2 * 32 + i,
                      .low_shift = quarter / 2 * 4,
                      .high_byte = half * 32 + i,
                      .high_shift = quarter * 2};
}

void ek_quant_q6_k_unpack(const uint8_t *block, float *out)
{
    ek_block_q6_K b;
    memcpy(&b, block, sizeof b);
    float d = ek_quant_f16_to_f32(b.d);
    for (int e = 0; e < EK_K_ELEMS; e++) {
        q6_place at = q6_place_of(e);
        int low = b.ql[at.low_byte] >> at.low_shift & 15;
        int high = b.qh[at.high_byte] >> at.high_shift & 3;
        int q = (low | high << 4) - 32;
        out[e] = d * (float)(b.scales[e / Q6_SUB_ELEMS] * q);
    }
}

static bool all_finite(const float *x)
{
    for (int e = 0; e < EK_K_ELEMS; e++)
        if (!isfinite(x[e])) return false;
    return true;
}

static int clamp_code(float q, int low, int high)
{
    return q < (float)low ? low : q > (float)high ? high : (int)rintf(q);
}

/* Scales, mins and codes of a Q4_K or Q5_K block. */
typedef struct affine_fit {
    uint16_t d, dmin; /* f16 */
    uint8_t scale[SUBS], min[SUBS];
    uint8_t code[EK_K_ELEMS];
} affine_fit;

/*
 * The range of a sub-block, with zero in it, is cut into code_max steps. Both levels of scales are
 * rounded first, and the codes chosen last against what the reader will compute: so that rounding a
 * scale costs the codes nothing.
 */
static void affine_fit_block(const float *x, int code_max, affine_fit *out)
{
    float step[SUBS], depth[SUBS], step_max = 0.0f, depth_max = 0.0f;
    for (int j = 0; j < SUBS; j++) {
        float low = 0.0f, high = 0.0f;
        for (int i = 0; i < SUB_ELEMS; i++) {
            low = fminf(low, x[j * SUB_ELEMS + i]);
            high = fmaxf(high, x[j * SUB_ELEMS + i]);
        }
        step[j] = (high - low) / (float)code_max;
        depth[j] = -low;
        step_max = fmaxf(step_max, step[j]);
        depth_max = fmaxf(depth_max, depth[j]);
    }
    out->d = ek_quant_f32_to_f16(step_max / 63.0f);
    out->dmin = ek_quant_f32_to_f16(depth_max / 63.0f);
    float d = ek_quant_f16_to_f32(out->d), dmin = ek_quant_f16_to_f32(out->dmin);
    for (int j = 0; j < SUBS; j++) {
        out->scale[j] = (uint8_t)(d > 0.0f ? clamp_code(step[j] / d, 0, 63) : 0);
        out->min[j] = (uint8_t)(dmin > 0.0f ? clamp_code(depth[j] / dmin, 0, 63) : 0);
        float scale = d * (float)out->scale[j], min = dmin * (float)out->min[j];
        for (int i = 0; i < SUB_ELEMS; i++) {
            float q = scale > 0.0f ? (x[j * SUB_ELEMS + i] + min) / scale : 0.0f;
            out->code[j * SUB_ELEMS + i] = (uint8_t)clamp_code(q, 0, code_max);
        }
    }
}

void ek_quant_q4_k_pack(const float *x, uint8_t *out_block)
{
    ek_block_q4_K b = {.d = EK_QUANT_F16_NAN};
    if (all_finite(x)) {
        affine_fit fit;
        affine_fit_block(x, 15, &fit);
        b.d = fit.d;
        b.dmin = fit.dmin;
        scales_pack(fit.scale, fit.min, b.scales);
        for (int e = 0; e < EK_K_ELEMS; e++) {
            int j = e / SUB_ELEMS, i = e % SUB_ELEMS;
            b.qs[j / 2 * SUB_ELEMS + i] |= (uint8_t)(fit.code[e] << (j % 2 * 4));
        }
    }
    memcpy(out_block, &b, sizeof b);
}

void ek_quant_q5_k_pack(const float *x, uint8_t *out_block)
{
    ek_block_q5_K b = {.d = EK_QUANT_F16_NAN};
    if (all_finite(x)) {
        affine_fit fit;
        affine_fit_block(x, 31, &fit);
        b.d = fit.d;
        b.dmin = fit.dmin;
        scales_pack(fit.scale, fit.min, b.scales);
        for (int e = 0; e < EK_K_ELEMS; e++) {
            int j = e / SUB_ELEMS, i = e % SUB_ELEMS;
            b.qs[j / 2 * SUB_ELEMS + i] |= (uint8_t)((fit.code[e] & 15) << (j % 2 * 4));
            b.qh[i] |= (uint8_t)(fit.code[e] >> 4 << j);
        }
    }
    memcpy(out_block, &b, sizeof b);
}

void ek_quant_q6_k_pack(const float *x, uint8_t *out_block)
{
    ek_block_q6_K b = {.d = EK_QUANT_F16_NAN};
    if (!all_finite(x)) {
        memcpy(out_block, &b, sizeof b);
        return;
    }
    float step[Q6_SUBS], step_max = 0.0f;
    for (int s = 0; s < Q6_SUBS; s++) {
        float extreme = 0.0f;
        for (int i = 0; i < Q6_SUB_ELEMS; i++)
            extreme = fmaxf(extreme, fabsf(x[s * Q6_SUB_ELEMS + i]));
        step[s] = extreme / 31.0f;
        step_max = fmaxf(step_max, step[s]);
    }
    b.d = ek_quant_f32_to_f16(step_max / 127.0f);
    float d = ek_quant_f16_to_f32(b.d);
    for (int s = 0; s < Q6_SUBS; s++)
        b.scales[s] = (int8_t)(d > 0.0f ? clamp_code(step[s] / d, 0, 127) : 0);
    for (int e = 0; e < EK_K_ELEMS; e++) {
        float scale = d * (float)b.scales[e / Q6_SUB_ELEMS];
        int q = 32 + (scale > 0.0f ? clamp_code(x[e] / scale, -32, 31) : 0);
        q6_place at = q6_place_of(e);
        b.ql[at.low_byte] |= (uint8_t)((q & 15) << at.low_shift);
        b.qh[at.high_byte] |= (uint8_t)(q >> 4 << at.high_shift);
    }
    memcpy(out_block, &b, sizeof b);
}
