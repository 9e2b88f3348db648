/*
 * Goal: a flag is set exactly where the kernel, which looks at CPUID and XCR0 by itself, lists the
 * features. Method: the flags line of /proc/cpuinfo.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "sys/cpu.h"

static char flags_line[16384];

/* Finds the line and puts a blank at both ends, so that words can be looked for. */
static bool read_flags_line(void)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    if (!file) return false;
    bool found = false;
    while (!found && fgets(flags_line, sizeof flags_line, file))
        found = strncmp(flags_line, "flags", 5) == 0;
    fclose(file);
    char *end = strchr(flags_line, '\n');
    if (end) *end = ' ';
    return found;
}

static bool has_words(const char *const *words)
{
    for (; *words; words++) {
        char word[32];
        snprintf(word, sizeof word, " %s ", *words);
        if (!strstr(flags_line, word)) return false;
    }
    return true;
}

static void test_flags_agree_with_the_kernel(void **state)
{
    (void)state;
    if (!read_flags_line()) {
        print_message("no flags line in /proc/cpuinfo: not an x86 machine\n");
        assert_int_equal(ek_sys_cpu_flags(), 0);
        skip();
    }
    static const struct {
        uint32_t flag;
        const char *words[8];
    } features[] = {
        {EK_CPU_AVX2, {"avx2", "fma", "f16c"}},
        {EK_CPU_AVX512, {"avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512cd"}},
        {EK_CPU_AVX512_VNNI, {"avx512f", "avx512bw", "avx512_vnni"}},
        {EK_CPU_AVX512_BF16, {"avx512f", "avx512bw", "avx512_bf16"}},
        {EK_CPU_AVX512_VBMI, {"avx512f", "avx512bw", "avx512vbmi"}},
    };
    uint32_t known = 0;
    for (size_t i = 0; i < EK_COUNT_OF(features); i++) {
        bool set = (ek_sys_cpu_flags() & features[i].flag) != 0;
        assert_int_equal(set, has_words(features[i].words));
        known |= features[i].flag;
    }
    assert_int_equal(ek_sys_cpu_flags() & ~known, 0);
}

static void test_name_is_tidy(void **state)
{
    (void)state;
    char name[64];
    memset(name, '#', sizeof name);
    ek_sys_cpu_name(name);
    size_t len = strnlen(name, sizeof name);
    assert_true(len > 0 && len < sizeof name);
    assert_true(name[0] != ' ' && name[len - 1] != ' ');
    assert_null(strstr(name, "  "));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_flags_agree_with_the_kernel),
        cmocka_unit_test(test_name_is_tidy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
