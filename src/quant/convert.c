#include "quant/convert.h"

#include <string.h>

#include "base/assert.h"
#include "quant/block.h"

/* A block type's two directions; floats have none and are done element by element. */
typedef struct block_codec {
    void (*unpack)(const uint8_t *block, float *out);
    void (*pack)(const float *x, uint8_t *out_block);
} block_codec;

static const block_codec codec_table[EK_TYPE_MAX] = {
    [EK_TYPE_Q4_0] = {ek_quant_q4_0_unpack, ek_quant_q4_0_pack},
    [EK_TYPE_Q8_0] = {ek_quant_q8_0_unpack, ek_quant_q8_0_pack},
    [EK_TYPE_Q4_K] = {ek_quant_q4_k_unpack, ek_quant_q4_k_pack},
    [EK_TYPE_Q5_K] = {ek_quant_q5_k_unpack, ek_quant_q5_k_pack},
    [EK_TYPE_Q6_K] = {ek_quant_q6_k_unpack, ek_quant_q6_k_pack},
};

static uint16_t u16_at(const uint8_t *bytes, int64_t i)
{
    uint16_t v;
    memcpy(&v, bytes + i * 2, sizeof v);
    return v;
}

void ek_quant_row_to_f32(ek_type type, const void *row, int64_t n_cols, float *out)
{
    const ek_type_info *info = ek_quant_type_info((uint32_t)type);
    ek_assert(info && info->supported);
    ek_assert(n_cols >= 0 && n_cols % info->block_elems == 0);
    const uint8_t *bytes = row;
    if (type == EK_TYPE_F32) {
        if (n_cols > 0) memcpy(out, bytes, (size_t)n_cols * sizeof *out);
    } else if (type == EK_TYPE_F16) {
        for (int64_t i = 0; i < n_cols; i++)
            out[i] = ek_quant_f16_to_f32(u16_at(bytes, i));
    } else if (type == EK_TYPE_BF16) {
        for (int64_t i = 0; i < n_cols; i++)
            out[i] = ek_quant_bf16_to_f32(u16_at(bytes, i));
    } else {
        for (int64_t b = 0; b < n_cols / info->block_elems; b++)
            codec_table[type].unpack(bytes + b * info->block_bytes, out + b * info->block_elems);
    }
}

ek_status ek_quant_row_from_f32(ek_type type, const float *x, int64_t n_cols, void *out_row)
{
    const ek_type_info *info = ek_quant_type_info((uint32_t)type);
    if (!info || !info->supported) return EK_EUNSUPPORTED;
    ek_assert(n_cols >= 0 && n_cols % info->block_elems == 0);
    uint8_t *bytes = out_row;
    if (type == EK_TYPE_F32) {
        if (n_cols > 0) memcpy(bytes, x, (size_t)n_cols * sizeof *x);
    } else if (type == EK_TYPE_F16 || type == EK_TYPE_BF16) {
        for (int64_t i = 0; i < n_cols; i++) {
            uint16_t v =
                type == EK_TYPE_F16 ? ek_quant_f32_to_f16(x[i]) : ek_quant_f32_to_bf16(x[i]);
            memcpy(bytes + i * 2, &v, sizeof v);
        }
    } else {
        for (int64_t b = 0; b < n_cols / info->block_elems; b++)
            codec_table[type].pack(x + b * info->block_elems, bytes + b * info->block_bytes);
    }
    return EK_OK;
}
