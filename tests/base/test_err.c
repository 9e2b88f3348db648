/*
 * Goal: an error's text is one bounded, printable line, and prefixes stack up in front of it.
 * Method: texts with control characters, texts longer than the room, prefixes that leave no room.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/err.h"

static void test_set_returns_the_status(void **state)
{
    (void)state;
    ek_err err;
    assert_int_equal(ek_err_set(&err, EK_EFORMAT, "%s: %d", "a", 7), EK_EFORMAT);
    assert_int_equal(err.status, EK_EFORMAT);
    assert_string_equal(err.text, "a: 7");
    assert_int_equal(ek_err_set(NULL, EK_EIO, "nobody asks"), EK_EIO);
    assert_int_equal(ek_err_prefix(NULL, "nobody asks"), EK_OK);
}

static void test_control_characters_cannot_start_a_line(void **state)
{
    (void)state;
    ek_err err;
    ek_err_set(&err, EK_EINVAL, "key %s", "a\nb\r\x1b[31m\x7f\tc");
    assert_string_equal(err.text, "key a?b??[31m??c");
    ek_err_prefix(&err, "file\n%d", 3);
    assert_string_equal(err.text, "file?3: key a?b??[31m??c");
}

static void test_long_texts_are_cut(void **state)
{
    (void)state;
    char text[2 * EK_ERR_TEXT_MAX];
    memset(text, 'x', sizeof text);
    text[sizeof text - 1] = '\0';
    ek_err err;
    ek_err_set(&err, EK_EINVAL, "%s", text);
    assert_int_equal(strlen(err.text), EK_ERR_TEXT_MAX - 1);
    ek_err_prefix(&err, "place");
    assert_int_equal(strlen(err.text), EK_ERR_TEXT_MAX - 1);
    assert_memory_equal(err.text, "place: xxx", 10);
    /* A prefix that fills everything leaves itself, cut. */
    assert_int_equal(ek_err_prefix(&err, "%s", text), EK_EINVAL);
    assert_int_equal(strlen(err.text), EK_ERR_TEXT_MAX - 1);
}

static void test_prefixes_stack(void **state)
{
    (void)state;
    ek_err err;
    ek_err_set(&err, EK_ERANGE, "offset 9 of 8");
    ek_err_prefix(&err, "blk.%d", 3);
    assert_int_equal(ek_err_prefix(&err, "a.gguf"), EK_ERANGE);
    assert_string_equal(err.text, "a.gguf: blk.3: offset 9 of 8");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_set_returns_the_status),
        cmocka_unit_test(test_control_characters_cannot_start_a_line),
        cmocka_unit_test(test_long_texts_are_cut),
        cmocka_unit_test(test_prefixes_stack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
