/*
 * Goal: whatever else goes on, a request's answer is the one it gets alone, and everything that was
 * taken is given back.
 * Method: 64 concurrent requests of a crowd on the toy model, with a cache far too small for all of
 * them; every answer that was let finish is compared byte for byte with that of an idle engine.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "answers.h"
#include "crowd.h"
#include "sys/mem.h"
#include "toy_model.h"

static const crowd_params people = {
    .n_vocab = TOY_N_VOCAB,
    .n_clients = 4,
    .n_per_client = 150,
    .prompt_max = CROWD_PROMPT_MAX,
    .answer_max = 120,
};

static ek_engine_params soak_params(void)
{
    ek_engine_params params = toy_params();
    params.running_max = 12;
    params.queue_max = 60;
    params.prefill_chunk_tokens = 48;
    return params;
}

/* @return how often somebody gave way */
static uint64_t soak(int64_t kv_blocks, bool prefix_cache)
{
    ek_engine_params params = soak_params();
    params.kv_bytes = kv_blocks * toy_block_bytes(&params);
    params.prefix_cache = prefix_cache;
    ek_metrics *metrics;
    ek_sys_region region;
    assert_int_equal(ek_sys_region_open(EK_METRICS_BYTES_MAX, 0, &region), EK_OK);
    ek_arena arena = ek_sys_region_arena(&region);
    assert_int_equal(ek_telemetry_metrics_create(&arena, &metrics), EK_OK);

    ek_engine *engine = toy_engine(&params, metrics);
    crowd *c = crowd_run(engine, &people);
    answer_assert_idle(engine);
    assert_true(toy.n_tokens_max <= params.running_max + params.prefill_chunk_tokens);
    assert_true(toy.n_prompt_max <= params.prefill_chunk_tokens);
    ek_engine_destroy(engine);
    uint64_t n_preemptions =
        ek_counter_get(ek_telemetry_counter(metrics, "evenkeel_preemptions_total", NULL, ""));
    ek_sys_region_close(&region);

    params = soak_params();
    engine = toy_engine(&params, NULL);
    int32_t n_compared = crowd_compare(c, engine), n_given_up = crowd_given_up(c);
    ek_engine_destroy(engine);
    crowd_free(c);
    print_message("%d answers compared, %d given up, %d preemptions\n", (int)n_compared,
                  (int)n_given_up, (int)n_preemptions);
    assert_int_equal(n_compared + n_given_up, people.n_clients * people.n_per_client);
    assert_true(n_compared > 100 && n_given_up > 20);
    return n_preemptions;
}

/* The largest request takes 15 blocks. */
static void answers_are_those_of_an_idle_engine_when_the_cache_is_tiny(void **state)
{
    (void)state;
    assert_true(soak(16, true) > 20);
    assert_true(soak(16, false) > 20);
}

static void answers_are_those_of_an_idle_engine_when_the_cache_is_small(void **state)
{
    (void)state;
    assert_true(soak(40, true) > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(answers_are_those_of_an_idle_engine_when_the_cache_is_tiny),
        cmocka_unit_test(answers_are_those_of_an_idle_engine_when_the_cache_is_small),
    };
    return cmocka_run_group_tests_name("engine/soak", tests, NULL, NULL);
}
