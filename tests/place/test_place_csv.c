/*
 * Loads and placements as text: what is read, and that each kind of fault is named with its line
 * and column.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "place/csv.h"
#include "support/fixtures.h"

static ek_status parse(const char *text, double min, bool integer, ek_place_table *out, ek_err *err)
{
    static uint8_t memory[1 << 16];
    ek_arena arena = ek_arena_over(memory, sizeof memory);
    return ek_place_csv_parse(ek_str_from(text), min, integer, "x.csv", &arena, out, err);
}

static void test_numbers(void **state)
{
    (void)state;
    ek_place_table t;
    ek_err err;
    assert_int_equal(parse("1,2.5, 3e2 \r\n4,0,-0.25\r\n\n\n", -1.0, false, &t, &err), EK_OK);
    assert_int_equal(t.n_rows, 2);
    assert_int_equal(t.n_columns, 3);
    const double want[] = {1, 2.5, 300, 4, 0, -0.25};
    for (int32_t i = 0; i < 6; i++)
        assert_float_equal(t.value[i], want[i], 1e-12);
    assert_int_equal(parse("7", 0.0, true, &t, &err), EK_OK);
    assert_int_equal(t.n_rows * t.n_columns, 1);
}

static void test_faults(void **state)
{
    (void)state;
    const struct {
        const char *text, *says;
    } faults[] = {
        {"", "x.csv: no numbers"},
        {"\n\n", "x.csv: no numbers"},
        {"1,2\n3,x\n", "x.csv:2:3: a number is expected"},
        {"1,,2", "x.csv:1:3: a number is expected"},
        {"1,2,", "x.csv:1:5: a number is expected"},
        {"1,2\n3\n", "x.csv:2:2: the line has fewer numbers"},
        {"1\n2,3\n", "x.csv:2:2: the line has more numbers"},
        {"1 2", "x.csv:1:3: a comma or the end of the line"},
        {"1,-3", "x.csv:1:3: the number is too small"},
        {"1.5", "x.csv:1:1: a whole number"},
        {"1e400", "x.csv:1:1: the number is too large"},
        {"99999999999999999999", "x.csv:1:1: the number is too large"},
        {"1e", "x.csv:1:1: the exponent has no digits"},
        {"nan", "x.csv:1:1: a number is expected"},
        {"0x10", "x.csv:1:2: a comma or the end"},
        {"1\n\n2\n", "x.csv:2:1: a number is expected"},
        {"\xef\xbb\xbf"
         "1",
         "x.csv:1:1: a number is expected"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(faults); i++) {
        ek_place_table t;
        ek_err err;
        assert_int_equal(parse(faults[i].text, 0.0, true, &t, &err), EK_EFORMAT);
        if (!strstr(err.text, faults[i].says))
            fail_msg("'%s' gave '%s', not '%s'", faults[i].text, err.text, faults[i].says);
    }
}

static void test_bounds(void **state)
{
    (void)state;
    ek_place_table t;
    ek_err err;
    char wide[2 * (EK_PLACE_COLUMNS_MAX + 1) + 1];
    for (size_t i = 0; i < sizeof wide - 1; i++)
        wide[i] = i % 2 ? ',' : '1';
    wide[sizeof wide - 2] = '\0';
    assert_int_equal(parse(wide, 0.0, true, &t, &err), EK_EFORMAT);
    wide[2 * EK_PLACE_COLUMNS_MAX - 1] = '\0';
    assert_int_equal(parse(wide, 0.0, true, &t, &err), EK_ENOMEM); /* 128 KiB into a 64 KiB arena */
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_faults),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
