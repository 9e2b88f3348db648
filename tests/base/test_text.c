/*
 * Goal: the small inline helpers do what their comments say: checked sizes, counted text, UTF-8,
 * statuses. Method: values at both sides of every border; the status table against itself.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "base/size.h"
#include "base/span.h"
#include "base/status.h"
#include "base/utf8.h"

static void test_sizes_refuse_to_overflow(void **state)
{
    (void)state;
    size_t size = 77;
    assert_true(ek_size_mul(SIZE_MAX / 2, 2, &size));
    assert_true(size == SIZE_MAX - 1);
    assert_false(ek_size_mul(SIZE_MAX / 2 + 1, 2, &size));
    assert_true(ek_size_add(SIZE_MAX - 1, 1, &size));
    assert_true(size == SIZE_MAX);
    assert_false(ek_size_add(SIZE_MAX, 1, &size));
    assert_true(size == SIZE_MAX); /* untouched */
    uint64_t wide = 77;
    assert_false(ek_u64_mul(UINT64_C(1) << 32, UINT64_C(1) << 32, &wide));
    assert_false(ek_u64_add(UINT64_MAX, 1, &wide));
    assert_int_equal(wide, 77);
    assert_true(ek_u64_mul(UINT64_C(1) << 32, UINT64_C(1) << 31, &wide));
    assert_true(wide == UINT64_C(1) << 63);
    assert_int_equal(ek_size_align(0, 64), 0);
    assert_int_equal(ek_size_align(1, 64), 64);
    assert_int_equal(ek_size_align(64, 64), 64);
    assert_int_equal(ek_size_align(65, 64), 128);
}

static void test_counted_text(void **state)
{
    (void)state;
    ek_str empty = {NULL, 0}, abc = EK_STR("abc"), with_nul = EK_STR("a\0b");
    assert_true(ek_str_eq(empty, EK_STR("")));
    assert_true(ek_str_eqz(empty, NULL));
    assert_true(ek_str_eqz(abc, "abc"));
    assert_false(ek_str_eqz(abc, "abd"));
    assert_false(ek_str_eqz(with_nul, "a")); /* the length counts, not a NUL */
    assert_int_equal(with_nul.len, 3);
    assert_true(ek_str_starts(abc, EK_STR("ab")));
    assert_true(ek_str_starts(abc, empty));
    assert_false(ek_str_starts(EK_STR("ab"), abc));
    assert_int_equal(ek_str_find(EK_STR("aab"), EK_STR("ab")), 1);
    assert_int_equal(ek_str_find(abc, EK_STR("abcd")), -1);
    assert_int_equal(ek_str_find(abc, empty), -1);
    assert_int_equal(ek_str_find(empty, abc), -1);
    assert_true(ek_str_contains(abc, EK_STR("c")));
    char shown[16];
    snprintf(shown, sizeof shown, "<%.*s>", EK_STR_ARG(empty));
    assert_string_equal(shown, "<>");
    snprintf(shown, sizeof shown, "<%.*s>", EK_STR_ARG(((ek_str){"abcdef", 2})));
    assert_string_equal(shown, "<ab>");
}

static void test_utf8_lengths(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        size_t len; /* of the first character; 0: none */
    } cases[] = {
        {"a", 1},
        {"\x7f", 1},
        {"\xc2\x80", 2},
        {"\xc3\xa9x", 2},
        {"\xe4\xb8\xad", 3},
        {"\xef\xbf\xbf", 3},
        {"\xf0\x9f\x98\x80", 4},
        {"\xf4\x8f\xbf\xbf", 4},
        {"\x80", 0},             /* a continuation alone */
        {"\xc1\xbf", 0},         /* overlong, two bytes */
        {"\xe0\x9f\xbf", 0},     /* overlong, three */
        {"\xf0\x8f\xbf\xbf", 0}, /* overlong, four */
        {"\xed\xa0\x80", 0},     /* a surrogate */
        {"\xf4\x90\x80\x80", 0}, /* past U+10FFFF */
        {"\xf5\x80\x80\x80", 0},
        {"\xff", 0},
        {"\xc3", 0}, /* cut off */
        {"\xe4\xb8", 0},
        {"\xf0\x9f\x98", 0},
        {"\xe4\x62\xad", 0},
        {"\xe4\xb8z", 0},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++)
        assert_int_equal(ek_utf8_char_len(ek_str_from(cases[i].text)), cases[i].len);
    assert_int_equal(ek_utf8_char_len((ek_str){NULL, 0}), 0);
    assert_int_equal(ek_utf8_char_len((ek_str){"\0", 1}), 1);
}

/*
 * Every code point in its shortest form is one character of the right length, and no surrogate is.
 */
static void test_utf8_takes_every_character(void **state)
{
    (void)state;
    for (uint32_t c = 0x80; c <= 0x10ffff; c++) {
        char s[4];
        size_t n = c < 0x800 ? 2 : c < 0x10000 ? 3 : 4;
        static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
        for (size_t i = n - 1, rest = c; i > 0; i--, rest >>= 6)
            s[i] = (char)(0x80 | (rest & 0x3f));
        s[0] = (char)(lead[n] | (c >> (6 * (n - 1))));
        bool surrogate = c >= 0xd800 && c <= 0xdfff;
        assert_int_equal(ek_utf8_char_len((ek_str){s, n}), surrogate ? 0 : n);
    }
}

static void test_statuses_know_their_names(void **state)
{
    (void)state;
    assert_string_equal(ek_status_name(EK_OK), "EK_OK");
    assert_string_equal(ek_status_name(EK_ECONFIG), "EK_ECONFIG");
    assert_string_equal(ek_status_text(EK_EFULL), "queue is full");
    assert_string_equal(ek_status_name((ek_status)-99), "EK_?");
    assert_string_equal(ek_status_text((ek_status)-99), "unknown status");
    static const struct {
        ek_status status;
        int value;
    } table[] = {
#define ROW(name, value, text) {name, value},
        EK_STATUS_TABLE(ROW)
#undef ROW
    };
    for (size_t i = 0; i < EK_COUNT_OF(table); i++) {
        assert_int_equal(table[i].status, table[i].value);
        assert_true(strlen(ek_status_text(table[i].status)) > 0);
        for (size_t j = 0; j < i; j++)
            assert_int_not_equal(table[i].value, table[j].value);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sizes_refuse_to_overflow),
        cmocka_unit_test(test_counted_text),
        cmocka_unit_test(test_utf8_lengths),
        cmocka_unit_test(test_utf8_takes_every_character),
        cmocka_unit_test(test_statuses_know_their_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
