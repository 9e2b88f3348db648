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

/* Every code point goes through its text and comes back. */
static void test_utf8_reads_what_it_writes(void **state)
{
    (void)state;
    for (uint32_t c = 0; c <= 0x10ffff; c++) {
        char s[4];
        uint32_t back = UINT32_MAX;
        bool surrogate = c >= 0xd800 && c <= 0xdfff;
        size_t n = ek_utf8_encode(c, s);
        assert_int_equal(n, c < 0x80 ? 1 : c < 0x800 ? 2 : c < 0x10000 ? 3 : 4);
        assert_int_equal(ek_utf8_decode((ek_str){s, n}, &back), surrogate ? 0 : n);
        assert_int_equal(back, surrogate ? UINT32_MAX : c);
        assert_int_equal(ek_utf8_decode((ek_str){s, n - 1}, &back), 0);
    }
}

static bool in(uint8_t byte, uint8_t low, uint8_t high)
{
    return byte >= low && byte <= high;
}

/* Table 3-7 of the standard, row by row: the length of the character in the first n bytes of s. */
static size_t length_by_table(const uint8_t *s, size_t n)
{
    static const struct {
        uint8_t first_low, first_high, second_low, second_high;
        size_t len;
    } rows[] = {
        {0xc2, 0xdf, 0x80, 0xbf, 2}, {0xe0, 0xe0, 0xa0, 0xbf, 3}, {0xe1, 0xec, 0x80, 0xbf, 3},
        {0xed, 0xed, 0x80, 0x9f, 3}, {0xee, 0xef, 0x80, 0xbf, 3}, {0xf0, 0xf0, 0x90, 0xbf, 4},
        {0xf1, 0xf3, 0x80, 0xbf, 4}, {0xf4, 0xf4, 0x80, 0x8f, 4},
    };
    if (s[0] < 0x80) return 1;
    for (size_t i = 0; i < EK_COUNT_OF(rows); i++) {
        if (!in(s[0], rows[i].first_low, rows[i].first_high)) continue;
        if (n < rows[i].len || !in(s[1], rows[i].second_low, rows[i].second_high)) return 0;
        for (size_t k = 2; k < rows[i].len; k++)
            if (!in(s[k], 0x80, 0xbf)) return 0;
        return rows[i].len;
    }
    return 0;
}

/* All that can be told apart: every first and second byte, borders of the others, every length. */
static void test_utf8_agrees_with_the_standard(void **state)
{
    (void)state;
    static const uint8_t edges[] = {0x00, 0x7f, 0x80, 0xbf, 0xc0, 0xff};
    for (int first = 0; first < 256; first++)
        for (int second = 0; second < 256; second++)
            for (size_t e = 0; e < EK_COUNT_OF(edges) * EK_COUNT_OF(edges); e++)
                for (size_t n = 1; n <= 4; n++) {
                    const uint8_t s[4] = {(uint8_t)first, (uint8_t)second, edges[e % 6],
                                          edges[e / 6]};
                    ek_str text = {(const char *)s, n};
                    size_t len = length_by_table(s, n);
                    uint32_t cp = 0;
                    assert_int_equal(ek_utf8_char_len(text), len);
                    assert_int_equal(ek_utf8_decode(text, &cp), len);
                    if (len == 0) assert_false(ek_utf8_valid(text));
                    if (len == n) assert_true(ek_utf8_valid(text));
                }
    assert_true(ek_utf8_valid((ek_str){0}));
    assert_true(ek_utf8_valid(EK_STR("a\xc3\xa9\xe4\xb8\xad\xf0\x9f\x98\x80")));
    assert_false(ek_utf8_valid(EK_STR("a\xc3\xa9\xe4\xb8")));
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
        cmocka_unit_test(test_utf8_reads_what_it_writes),
        cmocka_unit_test(test_utf8_agrees_with_the_standard),
        cmocka_unit_test(test_statuses_know_their_names),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
