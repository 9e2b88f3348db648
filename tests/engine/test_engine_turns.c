/*
 * Goal: requests take turns as promised: places go to who came first, and a long prompt stops
 * nobody's answer. Method: engines on the toy model; who got what is read off the requests' own
 * times and tokens.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "answers.h"
#include "engine/outbox.h"
#include "sys/clock.h"
#include "sys/mem.h"
#include "toy_fixture.h"

/*
 * A request's times count from its hand-over, which lies between two readings of the clock.
 * Comparing the latest it can have been with the earliest that another can have been is never
 * wrong about a right order.
 */
typedef struct timed {
    ek_request *request;
    int64_t before_us, after_us;
    ek_usage usage;
} timed;

static timed submit_timed(ek_engine *engine, const ek_request_params *params)
{
    timed t = {.before_us = ek_sys_now_us()};
    t.request = answer_submit(engine, params);
    t.after_us = ek_sys_now_us();
    return t;
}

static void wait_timed(ek_engine *engine, timed *t)
{
    answer *a = answer_wait(engine, t->request);
    t->usage = a->usage;
    ek_sys_free(a);
}

static void places_go_to_who_came_first(void **state)
{
    (void)state;
    ek_engine_params params = toy_params();
    params.running_max = 1;
    ek_engine *engine = toy_engine(&params, NULL);
    toy.step_us = 500;
    timed t[9];
    for (int i = 0; i < 9; i++) {
        ek_request_params p = toy_endless(1 + (i * 5) % 9);
        t[i] = submit_timed(engine, &p);
    }
    for (int i = 0; i < 9; i++)
        wait_timed(engine, &t[i]);
    /* With one place, each begins when the one before it is through. */
    for (int i = 1; i < 9; i++)
        assert_true(t[i].after_us + t[i].usage.queue_us >=
                    t[i - 1].before_us + t[i - 1].usage.total_us);
    assert_int_equal(toy.n_tokens_max, TOY_N_PROMPT); /* never two at once */
    ek_engine_destroy(engine);
}

/*
 * Two blocks are left beside the first: not enough for the second, enough for the third behind
 * it.
 */
static void nobody_overtakes_who_waits_for_room(void **state)
{
    (void)state;
    static int32_t prompt[130];
    ek_engine_params params = toy_params();
    params.kv_bytes = 11 * toy_block_bytes(&params);
    params.prefix_cache = false;
    ek_engine *engine = toy_engine(&params, NULL);
    toy.step_us = 500;
    ek_request_params large = answer_request(prompt, 130, 20), small = toy_endless(2);
    large.ignore_eos = true;
    timed first = submit_timed(engine, &large);
    timed second = submit_timed(engine, &large);
    timed third = submit_timed(engine, &small);
    wait_timed(engine, &first);
    wait_timed(engine, &second);
    wait_timed(engine, &third);
    int64_t first_end_us = first.before_us + first.usage.total_us;
    assert_true(second.after_us + second.usage.queue_us >= first_end_us);
    assert_true(third.after_us + third.usage.queue_us >= first_end_us);
    ek_engine_destroy(engine);
}

static void a_long_prompt_stops_nobodys_answer(void **state)
{
    ek_engine *engine = *state;
    static int32_t prompt[4000];
    for (int32_t i = 0; i < 4000; i++)
        prompt[i] = 2 + i % 90;
    toy.step_us = 2000; /* whoever reads late, the talker's outbox holds the tokens of 63 steps */
    ek_request_params params = toy_endless(1000);
    ek_request *talker = answer_submit(engine, &params);
    answer *talk = answer_new();
    while (talk->n_tokens < 5)
        (void)answer_read(engine, talker, talk);
    int32_t n_before = talk->n_tokens;
    params = answer_request(prompt, 4000, 1);
    params.ignore_eos = true;
    ek_request *reader = answer_submit(engine, &params);
    answer *one = answer_new();
    while (!answer_read(engine, reader, one))
        (void)answer_read(engine, talker, talk);
    for (int i = 0; i < EK_OUTBOX_TOKENS / EK_ENGINE_READ_TOKENS; i++)
        (void)answer_read(engine, talker, talk);
    /* 63 chunks of at most 64 tokens, and the talker had a token in each of those steps. */
    assert_true(talk->n_tokens - n_before >= 62);
    assert_true(toy.n_prompt_max <= 64);
    ek_engine_release(engine, reader);
    ek_engine_release(engine, talker);
    ek_sys_free(one);
    ek_sys_free(talk);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(places_go_to_who_came_first),
        cmocka_unit_test(nobody_overtakes_who_waits_for_room),
        TOY_TEST(a_long_prompt_stops_nobodys_answer),
    };
    return cmocka_run_group_tests_name("engine/turns", tests, NULL, NULL);
}
