/*
 * Goal: what a text says is the set that comes of it, and a mistake is named with its place.
 * Method: texts with their counts, and wrong texts with a word of their error.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "link/expert_set.h"

enum { LAYERS = 4, EXPERTS = 70 }; /* two words a layer, the second one hardly used */

static void parses(void **state EK_UNUSED)
{
    static const struct {
        const char *text;
        int64_t n;
        int32_t layer, expert; /* that is in it */
    } cases[] = {
        {"all", 280, 3, 69},    {"*:*", 280, 0, 0},       {"0:5", 1, 0, 5},
        {"1-2:3", 2, 2, 3},     {"0,3:0-9", 20, 3, 9},    {"0:1,3,5-6", 4, 0, 6},
        {"0:0 1:1", 2, 1, 1},   {"0:0;1:1-2 ;", 3, 1, 2}, {"0-1,3:*", 210, 3, 69},
        {" 2:64-69", 6, 2, 64}, {"0:1 0:1", 1, 0, 1},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        uint64_t bits[LAYERS * 2] = {0};
        ek_expert_set set = {.n_layers = LAYERS, .n_experts = EXPERTS, .bits = bits};
        ek_err err = {0};
        if (ek_link_set_parse(cases[i].text, &set, &err) != EK_OK) fail_msg("%s", err.text);
        assert_int_equal(ek_link_set_count(&set), cases[i].n);
        assert_true(ek_link_set_has(&set, cases[i].layer, cases[i].expert));
        assert_true(ek_link_set_is_valid(&set));
        ek_link_set_remove(&set, cases[i].layer, cases[i].expert);
        assert_false(ek_link_set_has(&set, cases[i].layer, cases[i].expert));
        assert_int_equal(ek_link_set_count(&set), cases[i].n - 1);
    }
}

static void names_mistakes(void **state EK_UNUSED)
{
    static const struct {
        const char *text, *word;
    } cases[] = {
        {"", "no experts"},
        {" ", "no experts"},
        {"0", "colon"},
        {"0:", "number"},
        {"0:70", "no such expert"},
        {"4:0", "no such layer"},
        {"0:5-3", "before"},
        {"0:1-", "end of a range"},
        {"0:1,", "number"},
        {"x:1", "number"},
        {"0:1 2", "colon"},
        {"0:1x", "group"},
        {"0,:1", "number"},
        {"0:99999999999", "no such"},
        {"0:1:2", "group"},
        {"0,1", "colon"},
        {"ALL", "number"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        uint64_t bits[LAYERS * 2] = {0};
        ek_expert_set set = {.n_layers = LAYERS, .n_experts = EXPERTS, .bits = bits};
        ek_err err = {0};
        assert_int_equal(ek_link_set_parse(cases[i].text, &set, &err), EK_EINVAL);
        if (!strstr(err.text, cases[i].word)) fail_msg("%s: %s", cases[i].text, err.text);
        assert_non_null(strstr(err.text, "LAYERS:EXPERTS"));
        assert_int_equal(ek_link_set_count(&set), 0);
    }
}

static void sees_experts_that_are_none(void **state EK_UNUSED)
{
    uint64_t bits[LAYERS * 2] = {0};
    ek_expert_set set = {.n_layers = LAYERS, .n_experts = EXPERTS, .bits = bits};
    bits[3] = UINT64_C(1) << 6; /* expert 70 of layer 1 */
    assert_false(ek_link_set_is_valid(&set));
    bits[3] = UINT64_C(1) << 5;
    assert_true(ek_link_set_is_valid(&set));
    assert_int_equal(ek_link_set_count_layer(&set, 1), 1);
    assert_int_equal(ek_link_set_count_layer(&set, 0), 0);
    uint64_t whole[2] = {UINT64_MAX, UINT64_MAX};
    ek_expert_set full = {.n_layers = 1, .n_experts = 128, .bits = whole};
    assert_true(ek_link_set_is_valid(&full));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parses),
        cmocka_unit_test(names_mistakes),
        cmocka_unit_test(sees_experts_that_are_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
