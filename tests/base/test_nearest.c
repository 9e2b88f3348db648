/*
 * Goal: typing mistakes lead to the name that was meant, and nonsense leads to none.
 * Method: distances known by hand, then offers in an order that would show a wrong tie rule.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/nearest.h"

static void test_distances(void **state)
{
    (void)state;
    static const struct {
        const char *a, *b;
        int32_t distance;
    } cases[] = {
        {"", "", 0},
        {"", "abc", 3},
        {"abc", "", 3},
        {"listen", "listen", 0},
        {"lsiten", "listen", 1},
        {"tiemout", "timeout", 1},
        {"threds", "threads", 1},
        {"kernels", "kernel", 1},
        {"ab", "ba", 1},
        {"abcd", "badc", 2},
        {"kitten", "sitting", 3},
    };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        const ek_str a = ek_str_from(cases[i].a), b = ek_str_from(cases[i].b);
        assert_int_equal(ek_nearest_distance(a, b), cases[i].distance);
        assert_int_equal(ek_nearest_distance(b, a), cases[i].distance);
    }
}

static void test_long_words_are_never_near(void **state)
{
    (void)state;
    char word[EK_NEAREST_WORD_MAX + 2];
    memset(word, 'x', sizeof word - 1);
    word[sizeof word - 1] = '\0';
    assert_int_equal(ek_nearest_distance(ek_str_from(word), EK_STR("x")), INT32_MAX);
    assert_int_equal(ek_nearest_distance(EK_STR("x"), ek_str_from(word)), INT32_MAX);

    word[EK_NEAREST_WORD_MAX] = '\0';
    assert_int_equal(ek_nearest_distance(ek_str_from(word), EK_STR("x")), EK_NEAREST_WORD_MAX - 1);

    ek_nearest nearest = ek_nearest_start(EK_STR("listen"));
    word[EK_NEAREST_WORD_MAX] = 'x';
    ek_nearest_offer(&nearest, word);
    assert_null(nearest.name);
}

static void test_best_offer_wins(void **state)
{
    (void)state;
    ek_nearest nearest = ek_nearest_start(EK_STR("runing_max"));
    ek_nearest_offer(&nearest, "queue_max");
    assert_null(nearest.name);
    ek_nearest_offer(&nearest, "warming_max");
    ek_nearest_offer(&nearest, "running_max");
    ek_nearest_offer(&nearest, "cunning_max");
    assert_string_equal(nearest.name, "running_max");

    /* Of two names equally far the first stays. */
    nearest = ek_nearest_start(EK_STR("port"));
    ek_nearest_offer(&nearest, "sort");
    ek_nearest_offer(&nearest, "fort");
    assert_string_equal(nearest.name, "sort");
}

static void test_nonsense_gets_nothing(void **state)
{
    (void)state;
    ek_nearest nearest = ek_nearest_start(EK_STR("zzzzzz"));
    ek_nearest_offer(&nearest, "listen");
    ek_nearest_offer(&nearest, "model");
    assert_null(nearest.name);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distances),
        cmocka_unit_test(test_long_words_are_never_near),
        cmocka_unit_test(test_best_offer_wins),
        cmocka_unit_test(test_nonsense_gets_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
