/*
 * Goal: a library that is there is loaded, one that is not is told. Method: the C library's own
 * mathematics.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "sys/library.h"

static void test_load(void **state)
{
    (void)state;
    ek_sys_library library = {0};
    ek_err err;
    assert_int_equal(ek_sys_library_open("libm.so.6", &library, &err), EK_OK);
    double (*cosine)(double) = (double (*)(double))ek_sys_library_function(&library, "cos");
    assert_non_null(cosine);
    assert_true(cosine(0.0) == 1.0);
    assert_null(ek_sys_library_function(&library, "no_such_function"));
    ek_sys_library_close(&library);
    ek_sys_library_close(&library);
    assert_int_equal(ek_sys_library_open("libno-such.so.1", &library, &err), EK_ENOTFOUND);
    assert_non_null(strstr(err.text, "libno-such.so.1"));
}

static void test_environment(void **state)
{
    (void)state;
    ek_sys_environment_default("EK_TEST_VARIABLE", "first");
    ek_sys_environment_default("EK_TEST_VARIABLE", "second");
    assert_string_equal(getenv("EK_TEST_VARIABLE"), "first");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_load),
        cmocka_unit_test(test_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
