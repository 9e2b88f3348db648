/*
 * Goal: readers get news, a slow one stops only itself, and health is what the step thread does.
 * Method: engines on the toy model; readers that wait, stall, come back and go away.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "answers.h"
#include "sys/clock.h"
#include "sys/mem.h"
#include "toy_fixture.h"

/* ---- readers ---- */

/* What the toy says when nothing ends it. */
static void work_out_endless(int32_t n, int32_t *want)
{
    int32_t given[TOY_CONTEXT];
    memcpy(given, toy_prompt, sizeof toy_prompt);
    for (int32_t i = 0; i < n;) {
        memcpy(given + TOY_N_PROMPT, want, (size_t)i * sizeof *want);
        i += toy_work_out(given, TOY_N_PROMPT + i, n - i, want + i);
        if (i < n) want[i++] = TOY_END;
    }
}

static void a_slow_reader_stops_only_itself(void **state)
{
    (void)state;
    ek_engine_params params = toy_params();
    params.running_max = 1; /* even its place must not stay taken */
    ek_engine *engine = toy_engine(&params, NULL);
    ek_request_params p = toy_endless(1000);
    ek_request *slow = answer_submit(engine, &p);
    while (toy.n_steps < 60)
        ek_sys_sleep_us(100);
    p.sampling.temperature = 1.0f;
    for (int i = 0; i < 2; i++) {
        answer *quick = answer_get(engine, &p);
        assert_int_equal(quick->n_tokens, 1000);
        ek_sys_free(quick);
    }
    /* What it did not read waited for it, and the rest follows without a gap. */
    int32_t want[1000];
    work_out_endless(1000, want);
    answer *a = answer_wait(engine, slow);
    assert_int_equal(a->n_tokens, 1000);
    assert_memory_equal(a->id, want, sizeof want);
    /* It was admitted more than once, and counted once. */
    ek_engine_load load;
    ek_engine_load_get(engine, &load);
    assert_int_equal(load.prompt_tokens, 3 * TOY_N_PROMPT);
    assert_int_equal(a->usage.cached_tokens, 0);
    ek_sys_free(a);
    ek_engine_destroy(engine);
}

/*
 * One place: the slow one gave it to the second; once it is read again it comes before the third.
 */
static void who_gave_way_keeps_its_turn(void **state)
{
    (void)state;
    ek_engine_params params = toy_params();
    params.running_max = 1;
    ek_engine *engine = toy_engine(&params, NULL);
    toy.step_us = 2000; /* nobody reads so slowly by accident that 64 of these fill its outbox */
    ek_request_params p = toy_endless(100);
    ek_request *slow = answer_submit(engine, &p);
    ek_request *second = answer_submit(engine, &p);
    ek_request *third = answer_submit(engine, &p);
    answer *a = answer_new(), *b = answer_new(), *c = answer_new();
    while (b->n_tokens < 20)
        (void)answer_read(engine, second, b);
    /* From here on all read as fast as they can, the third last in each round. */
    bool ended[3] = {false};
    while (!ended[2]) {
        if (!ended[1]) ended[1] = answer_read(engine, second, b);
        if (!ended[0]) ended[0] = answer_read(engine, slow, a);
        ended[2] = answer_read(engine, third, c);
        if (c->n_tokens > 0 && !ended[0]) ended[0] = answer_read(engine, slow, a);
        assert_true(c->n_tokens == 0 || ended[0]);
    }
    assert_int_equal(a->n_tokens, 100);
    ek_engine_release(engine, slow);
    ek_engine_release(engine, second);
    ek_engine_release(engine, third);
    ek_sys_free(a);
    ek_sys_free(b);
    ek_sys_free(c);
    ek_engine_destroy(engine);
}

static void an_idle_engine_uses_no_processor(void **state)
{
    (void)state;
    clock_t before = clock();
    ek_sys_sleep_us(400000);
    double used_s = (double)(clock() - before) / CLOCKS_PER_SEC;
    assert_true(used_s < 0.1);
}

/* Ten times full and read again: were it left to the ticks to find that, it would take a second. */
static int64_t read_640(ek_engine *engine)
{
    ek_request_params params = toy_endless(1000);
    ek_request *request = answer_submit(engine, &params);
    answer *a = answer_new();
    int64_t start_us = ek_sys_now_us();
    while (a->n_tokens < 640)
        (void)answer_read(engine, request, a);
    int64_t took_us = ek_sys_now_us() - start_us;
    ek_engine_release(engine, request);
    ek_sys_free(a);
    return took_us;
}

static void a_paused_engine_sleeps_and_a_read_wakes_it(void **state)
{
    ek_engine *engine = *state;
    ek_request_params params = toy_endless(1000);
    ek_request *request = answer_submit(engine, &params);
    while (toy.n_steps < 64)
        ek_sys_sleep_us(100);
    ek_sys_sleep_us(20000);
    int64_t n_steps = toy.n_steps;
    ek_sys_sleep_us(50000);
    assert_int_equal(toy.n_steps, n_steps);
    ek_engine_release(engine, request);
    toy_assert_quick(engine, read_640, 500000);
}

static void news_name_each_request_once_until_it_is_read(void **state)
{
    ek_engine *engine = *state;
    int tag_a, tag_b;
    void *tags[8];
    ek_request_params params = toy_endless(3);
    assert_int_equal(ek_engine_wait(engine, tags, 8, 10000), 0);
    toy.step_us = 2000; /* the first token's news are taken before the second comes */
    params.tag = &tag_a;
    ek_request *a = answer_submit(engine, &params);
    assert_int_equal(ek_engine_wait(engine, tags, 8, 5000000), 1);
    assert_ptr_equal(tags[0], &tag_a);
    assert_int_equal(ek_engine_wait(engine, tags, 8, 30000), 0);
    params.tag = &tag_b;
    ek_request *b = answer_submit(engine, &params);
    assert_int_equal(ek_engine_wait(engine, tags, 8, 5000000), 1);
    assert_ptr_equal(tags[0], &tag_b); /* a was not read, so it is not named again */
    answer_assert_idle(engine);
    ek_output out;
    ek_engine_read(engine, a, &out);
    assert_int_equal(out.finish, EK_FINISH_LENGTH);
    assert_int_equal(ek_engine_wait(engine, tags, 8, 0), 0);
    ek_engine_release(engine, a);
    ek_engine_release(engine, b);
}

static void a_released_request_is_not_named(void **state)
{
    ek_engine *engine = *state;
    void *tags[8];
    ek_request_params params = toy_endless(3);
    params.tag = &params;
    ek_request *request = answer_submit(engine, &params);
    answer_assert_idle(engine);
    ek_engine_release(engine, request);
    assert_int_equal(ek_engine_wait(engine, tags, 8, 0), 0);
    ek_engine_wake(engine);
    assert_int_equal(ek_engine_wait(engine, tags, 8, -1), 0); /* the wake was not lost */
}

/* ---- health ---- */

static void a_step_longer_than_the_watchdog_is_seen_while_it_runs(void **state)
{
    (void)state;
    ek_engine_params params = toy_params();
    params.step_watchdog_us = 20000;
    ek_engine *engine = toy_engine(&params, NULL);
    assert_true(ek_engine_healthy(engine));
    toy.step_us = 200000;
    ek_request_params p = toy_endless(1);
    ek_request *request = answer_submit(engine, &p);
    int64_t start_us = ek_sys_now_us();
    while (ek_engine_healthy(engine) && ek_sys_now_us() - start_us < 10000000)
        ek_sys_sleep_us(500);
    assert_false(ek_engine_healthy(engine));
    ek_sys_free(answer_wait(engine, request));
    assert_true(ek_engine_healthy(engine));
    ek_engine_destroy(engine);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_slow_reader_stops_only_itself),
        cmocka_unit_test(who_gave_way_keeps_its_turn),
        TOY_TEST(an_idle_engine_uses_no_processor),
        TOY_TEST(a_paused_engine_sleeps_and_a_read_wakes_it),
        TOY_TEST(news_name_each_request_once_until_it_is_read),
        TOY_TEST(a_released_request_is_not_named),
        cmocka_unit_test(a_step_longer_than_the_watchdog_is_seen_while_it_runs),
    };
    return cmocka_run_group_tests_name("engine/readers", tests, NULL, NULL);
}
