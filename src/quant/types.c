#include "quant/types.h"

#include "base/assert.h"

/*
 * Every number of the file format has its name here, so that an error can say "IQ4_XS" and not
 * "23".
 */
static const ek_type_info type_table[] = {
    [EK_TYPE_F32] = {"F32", 1, 4, true},
    [EK_TYPE_F16] = {"F16", 1, 2, true},
    [EK_TYPE_Q4_0] = {"Q4_0", 32, sizeof(ek_block_q4_0), true},
    [3] = {"Q4_1", 32, 20, false},
    [6] = {"Q5_0", 32, 22, false},
    [7] = {"Q5_1", 32, 24, false},
    [EK_TYPE_Q8_0] = {"Q8_0", 32, sizeof(ek_block_q8_0), true},
    [9] = {"Q8_1", 32, 36, false},
    [10] = {"Q2_K", 256, 84, false},
    [11] = {"Q3_K", 256, 110, false},
    [EK_TYPE_Q4_K] = {"Q4_K", EK_K_ELEMS, sizeof(ek_block_q4_K), true},
    [EK_TYPE_Q5_K] = {"Q5_K", EK_K_ELEMS, sizeof(ek_block_q5_K), true},
    [EK_TYPE_Q6_K] = {"Q6_K", EK_K_ELEMS, sizeof(ek_block_q6_K), true},
    [15] = {"Q8_K", 256, 292, false},
    [16] = {"IQ2_XXS", 256, 66, false},
    [17] = {"IQ2_XS", 256, 74, false},
    [18] = {"IQ3_XXS", 256, 98, false},
    [19] = {"IQ1_S", 256, 50, false},
    [20] = {"IQ4_NL", 32, 18, false},
    [21] = {"IQ3_S", 256, 110, false},
    [22] = {"IQ2_S", 256, 82, false},
    [23] = {"IQ4_XS", 256, 136, false},
    [24] = {"I8", 1, 1, false},
    [25] = {"I16", 1, 2, false},
    [26] = {"I32", 1, 4, false},
    [27] = {"I64", 1, 8, false},
    [28] = {"F64", 1, 8, false},
    [29] = {"IQ1_M", 256, 56, false},
    [EK_TYPE_BF16] = {"BF16", 1, 2, true},
    [34] = {"TQ1_0", 256, 54, false},
    [35] = {"TQ2_0", 256, 66, false},
    [39] = {"MXFP4", 32, 17, false},
};

const ek_type_info *ek_quant_type_info(uint32_t type)
{
    if (type >= sizeof type_table / sizeof type_table[0]) return NULL;
    return type_table[type].name ? &type_table[type] : NULL;
}

size_t ek_quant_row_bytes(ek_type type, int64_t n_cols)
{
    const ek_type_info *info = ek_quant_type_info((uint32_t)type);
    ek_assert(info);
    ek_assert(n_cols >= 0 && n_cols % info->block_elems == 0);
    return (size_t)(n_cols / info->block_elems) * (size_t)info->block_bytes;
}
