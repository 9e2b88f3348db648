/*
 * Goal: digests are SHA-256's, however the bytes are cut. Method: the standard's own examples.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sys/sha256.h"

static void test_examples(void **state)
{
    (void)state;
    char hex[EK_SHA256_HEX_BYTES];
    assert_int_equal(ek_sys_sha256_of("", 0, hex), EK_OK);
    assert_string_equal(hex, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    assert_int_equal(ek_sys_sha256_of("abc", 3, hex), EK_OK);
    assert_string_equal(hex, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
}

static void test_pieces(void **state)
{
    (void)state;
    static const char text[] = "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq";
    char hex[EK_SHA256_HEX_BYTES];
    for (size_t cut = 0; cut <= strlen(text); cut++) {
        ek_sys_sha256 hash;
        assert_int_equal(ek_sys_sha256_open(&hash), EK_OK);
        ek_sys_sha256_add(&hash, text, cut);
        ek_sys_sha256_add(&hash, text + cut, strlen(text) - cut);
        ek_sys_sha256_close(&hash, hex);
        assert_string_equal(hex,
                            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_examples),
        cmocka_unit_test(test_pieces),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
