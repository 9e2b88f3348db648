/*
 * Goal: arenas give aligned, zeroed memory out of what they were made over, and nothing beyond it.
 * Method: dirty memory with known borders; sizes at the edge, past it, and such that their product
 * overflows.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/arena.h"

typedef struct pair {
    uint64_t a, b;
} pair;

static EK_ALIGNED(64) uint8_t memory[1024];

static ek_arena fresh(void)
{
    memset(memory, 0xaa, sizeof memory);
    return ek_arena_over(memory, sizeof memory);
}

static void test_memory_is_zeroed_and_aligned(void **state)
{
    (void)state;
    ek_arena arena = fresh();
    uint8_t *one = ek_new(&arena, uint8_t, 1);
    pair *two = ek_new(&arena, pair, 2);
    float *lines = ek_new_aligned(&arena, float, 4);
    assert_ptr_equal(one, memory);
    assert_int_equal((uintptr_t)two % _Alignof(pair), 0);
    assert_int_equal((uintptr_t)lines % EK_CACHE_LINE, 0);
    static const pair zeros[2];
    assert_memory_equal(two, zeros, sizeof zeros);
    assert_int_equal(*one, 0);
    /* The padding was skipped, not written. */
    assert_int_equal(memory[1], 0xaa);
}

static void test_exactly_what_is_there(void **state)
{
    (void)state;
    ek_arena arena = fresh();
    assert_non_null(ek_try_new(&arena, uint8_t, sizeof memory));
    assert_int_equal(ek_arena_free_bytes(&arena), 0);
    assert_null(ek_try_new(&arena, uint8_t, 1));
    /* Nothing at all still fits, and is not NULL. */
    assert_non_null(ek_try_new(&arena, uint8_t, 0));
}

static void test_failure_takes_nothing(void **state)
{
    (void)state;
    ek_arena arena = fresh();
    assert_null(ek_try_new(&arena, uint8_t, sizeof memory + 1));
    assert_null(ek_try_new(&arena, pair, SIZE_MAX / sizeof(pair) + 1)); /* the product wraps to 0 */
    assert_null(ek_arena_try_alloc(&arena, SIZE_MAX, 1, 64));
    assert_int_equal(ek_arena_free_bytes(&arena), sizeof memory);
}

static void test_padding_alone_can_be_too_much(void **state)
{
    (void)state;
    memset(memory, 0xaa, sizeof memory);
    ek_arena arena = ek_arena_over(memory + 1, 8);
    assert_null(ek_arena_try_alloc(&arena, 1, 1, 64));
    assert_int_equal(ek_arena_free_bytes(&arena), 8);
}

static void test_raw_memory_is_left_as_it_was(void **state)
{
    (void)state;
    ek_arena arena = fresh();
    uint8_t *raw = ek_arena_try_raw(&arena, 4, 1, 16);
    assert_non_null(raw);
    assert_int_equal(raw[0], 0xaa);
    assert_int_equal(raw[3], 0xaa);
    assert_int_equal(ek_arena_free_bytes(&arena), sizeof memory - 4);
    assert_null(ek_arena_try_raw(&arena, SIZE_MAX, 2, 1));
    assert_null(ek_arena_try_raw(&arena, sizeof memory, 1, 1));
}

static void use_scratch(ek_arena scratch)
{
    assert_non_null(ek_try_new(&scratch, uint8_t, 512));
}

static void test_scratch_by_value_gives_back(void **state)
{
    (void)state;
    ek_arena arena = fresh();
    for (int i = 0; i < 10; i++)
        use_scratch(arena);
    assert_int_equal(ek_arena_free_bytes(&arena), sizeof memory);
}

static void test_strz_copies_with_an_end(void **state)
{
    (void)state;
    ek_arena arena = fresh();
    const char *copy = ek_arena_try_strz(&arena, (ek_str){"abcdef", 3});
    assert_string_equal(copy, "abc");
    assert_string_equal(ek_arena_try_strz(&arena, (ek_str){NULL, 0}), "");
    arena = ek_arena_over(memory, 3);
    assert_null(ek_arena_try_strz(&arena, EK_STR("abc"))); /* no room for the NUL */
    assert_null(ek_arena_try_strz(&arena, (ek_str){"x", SIZE_MAX}));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_memory_is_zeroed_and_aligned),
        cmocka_unit_test(test_exactly_what_is_there),
        cmocka_unit_test(test_failure_takes_nothing),
        cmocka_unit_test(test_padding_alone_can_be_too_much),
        cmocka_unit_test(test_raw_memory_is_left_as_it_was),
        cmocka_unit_test(test_scratch_by_value_gives_back),
        cmocka_unit_test(test_strz_copies_with_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
