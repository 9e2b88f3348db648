/*
 * Goal: the type table says what the file format says. Method: every number against a list written
 * from the format's specification.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/attr.h"
#include "quant/types.h"

static void knows_every_number(void **state EK_UNUSED)
{
    static const struct {
        uint32_t type;
        const char *name;
        int32_t elems, bytes;
        bool supported;
    } expected[] = {
        {0, "F32", 1, 4, true},          {1, "F16", 1, 2, true},
        {2, "Q4_0", 32, 18, true},       {3, "Q4_1", 32, 20, false},
        {6, "Q5_0", 32, 22, false},      {7, "Q5_1", 32, 24, false},
        {8, "Q8_0", 32, 34, true},       {9, "Q8_1", 32, 36, false},
        {10, "Q2_K", 256, 84, false},    {11, "Q3_K", 256, 110, false},
        {12, "Q4_K", 256, 144, true},    {13, "Q5_K", 256, 176, true},
        {14, "Q6_K", 256, 210, true},    {15, "Q8_K", 256, 292, false},
        {16, "IQ2_XXS", 256, 66, false}, {17, "IQ2_XS", 256, 74, false},
        {18, "IQ3_XXS", 256, 98, false}, {19, "IQ1_S", 256, 50, false},
        {20, "IQ4_NL", 32, 18, false},   {21, "IQ3_S", 256, 110, false},
        {22, "IQ2_S", 256, 82, false},   {23, "IQ4_XS", 256, 136, false},
        {24, "I8", 1, 1, false},         {25, "I16", 1, 2, false},
        {26, "I32", 1, 4, false},        {27, "I64", 1, 8, false},
        {28, "F64", 1, 8, false},        {29, "IQ1_M", 256, 56, false},
        {30, "BF16", 1, 2, true},        {34, "TQ1_0", 256, 54, false},
        {35, "TQ2_0", 256, 66, false},   {39, "MXFP4", 32, 17, false},
    };
    size_t next = 0;
    for (uint32_t type = 0; type < 300; type++) {
        const ek_type_info *info = ek_quant_type_info(type);
        if (next < EK_COUNT_OF(expected) && expected[next].type == type) {
            assert_non_null(info);
            assert_string_equal(info->name, expected[next].name);
            assert_int_equal(info->block_elems, expected[next].elems);
            assert_int_equal(info->block_bytes, expected[next].bytes);
            assert_int_equal(info->supported, expected[next].supported);
            next++;
        } else {
            assert_null(info);
        }
    }
    assert_int_equal(next, EK_COUNT_OF(expected));
    assert_null(ek_quant_type_info(UINT32_MAX));
}

static void sizes_rows(void **state EK_UNUSED)
{
    assert_int_equal(ek_quant_row_bytes(EK_TYPE_F32, 7), 28);
    assert_int_equal(ek_quant_row_bytes(EK_TYPE_BF16, 7), 14);
    assert_int_equal(ek_quant_row_bytes(EK_TYPE_Q8_0, 96), 102);
    assert_int_equal(ek_quant_row_bytes(EK_TYPE_Q4_K, 2048), 1152);
    assert_int_equal(ek_quant_row_bytes(EK_TYPE_Q6_K, 0), 0);
    assert_int_equal(ek_quant_row_bytes(EK_TYPE_Q5_K, INT64_C(256) << 30), INT64_C(176) << 30);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(knows_every_number),
        cmocka_unit_test(sizes_rows),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
