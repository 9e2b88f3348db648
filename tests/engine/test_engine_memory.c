/*
 * Goal: the memory plan adds up, keeps to its share, and refuses with numbers that a person can
 * act on. Method: made-up machines and models; nothing is allocated.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "engine/memory.h"

#define MIB ((int64_t)1 << 20)
#define GIB ((int64_t)1 << 30)

static const ek_engine_params params = {.running_max = 4, .kv_block_tokens = 16};
static const ek_memory_facts facts = {
    .available_bytes = 16 * GIB,
    .weight_bytes = 4 * GIB,
    .buffer_bytes = GIB,
    .block_bytes = MIB,
    .context_tokens = 1000,
};

static void the_default_cache_holds_all_places_at_full_length(void **state)
{
    (void)state;
    ek_memory_plan plan;
    assert_int_equal(ek_engine_memory_plan(&params, &facts, &plan, NULL), EK_OK);
    assert_int_equal(plan.kv_blocks, 4 * 63); /* 1000 tokens take 63 blocks of 16 */
    assert_int_equal(plan.kv_bytes, 252 * MIB);
    assert_int_equal(plan.need_bytes, (int64_t)(1.2 * (double)(5 * GIB + 252 * MIB)));
}

static void the_default_cache_takes_at_most_a_quarter_of_free_memory(void **state)
{
    (void)state;
    ek_memory_facts tight = facts;
    ek_memory_plan plan;
    tight.weight_bytes = tight.buffer_bytes = 0;
    tight.available_bytes = 400 * MIB;
    assert_int_equal(ek_engine_memory_plan(&params, &tight, &plan, NULL), EK_OK);
    assert_int_equal(plan.kv_blocks, 100);
}

static void a_given_budget_is_kept(void **state)
{
    (void)state;
    ek_engine_params given = params;
    ek_memory_plan plan;
    given.kv_bytes = 10 * MIB + 1;
    assert_int_equal(ek_engine_memory_plan(&given, &facts, &plan, NULL), EK_OK);
    assert_int_equal(plan.kv_blocks, 10);
    given.kv_bytes = MIB;
    assert_int_equal(ek_engine_memory_plan(&given, &facts, &plan, NULL), EK_OK);
    assert_int_equal(plan.kv_blocks, 1);
}

static void a_budget_below_one_block_is_refused(void **state)
{
    (void)state;
    ek_engine_params given = params;
    ek_memory_facts tight = facts;
    ek_memory_plan plan;
    ek_err err;
    given.kv_bytes = MIB - 1;
    assert_int_equal(ek_engine_memory_plan(&given, &facts, &plan, &err), EK_ENOMEM);
    assert_non_null(strstr(err.text, "1048575 bytes"));
    assert_non_null(strstr(err.text, "--kv-cache"));
    tight.available_bytes = 3 * MIB;
    assert_int_equal(ek_engine_memory_plan(&params, &tight, &plan, &err), EK_ENOMEM);
}

static void too_little_memory_is_refused_with_the_numbers_and_a_remedy(void **state)
{
    (void)state;
    ek_memory_facts small = facts;
    ek_memory_plan plan;
    ek_err err;
    small.available_bytes = 6 * GIB;
    assert_int_equal(ek_engine_memory_plan(&params, &small, &plan, &err), EK_ENOMEM);
    const char *parts[] = {"needs 6.30 GiB", "weights 4.00",           "KV cache 0.25",
                           "buffers 1.00",   "6.00 GiB are available", "--kv-cache",
                           "--context",      "smaller model"};
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (!strstr(err.text, parts[i])) fail_msg("%s: no %s", err.text, parts[i]);
}

static void absurd_sizes_do_not_wrap_around(void **state)
{
    (void)state;
    ek_engine_params given = params;
    ek_memory_facts big = facts;
    ek_memory_plan plan;
    given.kv_bytes = INT64_MAX;
    assert_int_equal(ek_engine_memory_plan(&given, &facts, &plan, NULL), EK_ENOMEM);
    big.weight_bytes = big.buffer_bytes = INT64_MAX;
    assert_int_equal(ek_engine_memory_plan(&params, &big, &plan, NULL), EK_ENOMEM);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_default_cache_holds_all_places_at_full_length),
        cmocka_unit_test(the_default_cache_takes_at_most_a_quarter_of_free_memory),
        cmocka_unit_test(a_given_budget_is_kept),
        cmocka_unit_test(a_budget_below_one_block_is_refused),
        cmocka_unit_test(too_little_memory_is_refused_with_the_numbers_and_a_remedy),
        cmocka_unit_test(absurd_sizes_do_not_wrap_around),
    };
    return cmocka_run_group_tests_name("engine/memory", tests, NULL, NULL);
}
