/*
 * Goal: a table holds exactly what the CPU flags allow. Method: every choice under chosen masks;
 * filling a table runs no instruction of its set, so this works on any machine of the architecture.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/kernels.h"

static const char *name_for(ek_kernels_choice choice, uint32_t flags)
{
    static ek_kernels table, before;
    memset(&table, 0xee, sizeof table);
    memset(&before, 0xee, sizeof before);
    ek_status status = ek_kernels_select(choice, flags, &table);
    if (status == EK_OK) return table.name;
    assert_int_equal(status, EK_EUNSUPPORTED);
    assert_memory_equal(&table, &before, sizeof table);
    return "refused";
}

static void parses_names(void **state EK_UNUSED)
{
    static const char *const wrong[] = {"", "AVX2", "avx", "avx5122", "sse"};
    ek_kernels_choice choice = EK_KERNELS_REFERENCE;
    assert_true(ek_kernels_choice_parse("auto", &choice) && choice == EK_KERNELS_AUTO);
    assert_true(ek_kernels_choice_parse("reference", &choice) && choice == EK_KERNELS_REFERENCE);
    assert_true(ek_kernels_choice_parse("avx2", &choice) && choice == EK_KERNELS_AVX2);
    assert_true(ek_kernels_choice_parse("avx512", &choice) && choice == EK_KERNELS_AVX512);
    for (size_t i = 0; i < EK_COUNT_OF(wrong); i++) {
        choice = EK_KERNELS_AVX2;
        assert_false(ek_kernels_choice_parse(wrong[i], &choice));
        assert_int_equal(choice, EK_KERNELS_AVX2);
    }
}

static void reference_is_always_there(void **state EK_UNUSED)
{
    assert_string_equal(name_for(EK_KERNELS_REFERENCE, 0), "reference");
    assert_string_equal(name_for(EK_KERNELS_REFERENCE, EK_CPU_ALL), "reference");
    assert_string_equal(name_for(EK_KERNELS_AUTO, 0), "reference");
    ek_kernels table;
    assert_int_equal(ek_kernels_select(EK_KERNELS_REFERENCE, EK_CPU_ALL, &table), EK_OK);
    for (int type = 0; type < EK_TYPE_MAX; type++)
        assert_false(table.act_int8[type]);
}

static void follows_the_mask(void **state EK_UNUSED)
{
#ifndef __x86_64__
    print_message("this build has x86 kernels on x86-64 only\n");
    skip();
#endif
    uint32_t both = EK_CPU_AVX2 | EK_CPU_AVX512;
    assert_string_equal(name_for(EK_KERNELS_AUTO, EK_CPU_AVX2), "avx2");
    assert_string_equal(name_for(EK_KERNELS_AUTO, both), "avx512");
    assert_string_equal(name_for(EK_KERNELS_AUTO, EK_CPU_ALL), "avx512");
    assert_string_equal(name_for(EK_KERNELS_AUTO, EK_CPU_AVX512), "reference");
    assert_string_equal(name_for(EK_KERNELS_AVX2, EK_CPU_ALL), "avx2");
    assert_string_equal(name_for(EK_KERNELS_AVX2, 0), "refused");
    assert_string_equal(name_for(EK_KERNELS_AVX2, EK_CPU_AVX512), "refused");
    assert_string_equal(name_for(EK_KERNELS_AVX512, EK_CPU_AVX2), "refused");
    assert_string_equal(name_for(EK_KERNELS_AVX512, EK_CPU_AVX512), "refused");
    assert_string_equal(name_for(EK_KERNELS_AVX512, both), "avx512");
}

/* Without VNNI the AVX-512 table keeps AVX2's quantised matrices and has its own float ones. */
static void falls_back_without_vnni(void **state EK_UNUSED)
{
#ifndef __x86_64__
    print_message("this build has x86 kernels on x86-64 only\n");
    skip();
#endif
    ek_kernels avx2, plain, vnni;
    uint32_t both = EK_CPU_AVX2 | EK_CPU_AVX512;
    assert_int_equal(ek_kernels_select(EK_KERNELS_AVX2, both, &avx2), EK_OK);
    assert_int_equal(ek_kernels_select(EK_KERNELS_AVX512, both, &plain), EK_OK);
    assert_int_equal(ek_kernels_select(EK_KERNELS_AVX512, both | EK_CPU_AVX512_VNNI, &vnni), EK_OK);
    assert_true(plain.matmul[EK_TYPE_Q4_K] == avx2.matmul[EK_TYPE_Q4_K]);
    assert_true(plain.matmul[EK_TYPE_Q4_K] != vnni.matmul[EK_TYPE_Q4_K]);
    assert_true(plain.matmul[EK_TYPE_F32] != avx2.matmul[EK_TYPE_F32]);
    for (int type = 0; type < EK_TYPE_MAX; type++) {
        assert_int_equal(plain.act_int8[type], vnni.act_int8[type]);
        assert_int_equal(avx2.matmul[type] == NULL, vnni.matmul[type] == NULL);
    }
    assert_true(vnni.act_int8[EK_TYPE_Q6_K]);
    assert_false(vnni.act_int8[EK_TYPE_F16]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parses_names),
        cmocka_unit_test(reference_is_always_there),
        cmocka_unit_test(follows_the_mask),
        cmocka_unit_test(falls_back_without_vnni),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
