/*
 * Goal: requests are refused, turned away, ended and failed as engine.h says, on time and one at
 * a time. Method: engines on the toy model, with steps as slow or as faulty as a case needs.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "answers.h"
#include "sys/clock.h"
#include "sys/mem.h"
#include "toy_fixture.h"

static void assert_refused(ek_engine *engine, const ek_request_params *params, ek_status wanted,
                           const char *text)
{
    ek_request *request = NULL;
    ek_err err = {0};
    assert_int_equal(ek_engine_submit(engine, params, &request, &err), wanted);
    assert_null(request);
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

/* ---- refusals ---- */

static void bad_requests_are_refused_with_a_reason(void **state)
{
    ek_engine *engine = *state;
    ek_request_params ok = answer_request(toy_prompt, TOY_N_PROMPT, 10), p = ok;
    p.n_prompt = 0;
    assert_refused(engine, &p, EK_EINVAL, "prompt has no tokens");
    p = ok, p.max_tokens = 0;
    assert_refused(engine, &p, EK_EINVAL, "max_tokens is 0");
    p = ok, p.prompt = (int32_t[]){1, 2, -3}, p.n_prompt = 3;
    assert_refused(engine, &p, EK_EINVAL, "prompt[2] is -3; ids go from 0 to 95");
    p = ok, p.sampling.temperature = NAN;
    assert_refused(engine, &p, EK_EINVAL, "temperature");
    p = ok, p.stops = (ek_str[]){EK_STR("a"), EK_STR("")}, p.n_stops = 2;
    assert_refused(engine, &p, EK_EINVAL, "stop[1] has 0 bytes");
    p = ok, p.stops = (ek_str[]){EK_STR("\xE4\xB8")}, p.n_stops = 1;
    assert_refused(engine, &p, EK_EINVAL, "stop[0] is not valid UTF-8");
    p = ok, p.n_stops = 17;
    assert_refused(engine, &p, EK_EINVAL, "at most 16");
    p = ok, p.stop_ids = (int32_t[]){TOY_N_VOCAB}, p.n_stop_ids = 1;
    assert_refused(engine, &p, EK_EINVAL, "stop_token_ids[0] is 96");
    p = ok, p.n_stop_ids = 17;
    assert_refused(engine, &p, EK_EINVAL, "at most 16");
    assert_int_equal(ek_engine_inflight(engine), 0);
}

static void too_long_for_the_context_names_both_numbers(void **state)
{
    ek_engine *engine = *state;
    static int32_t given[5000];
    ek_request_params p = answer_request(given, 5000, 100);
    assert_refused(engine, &p, EK_ECONTEXT,
                   "prompt has 5000 tokens and max_tokens is 100: together more than the context "
                   "of 4096 tokens");
    p = answer_request(given, 4000, 97);
    assert_refused(engine, &p, EK_ECONTEXT, "context of 4096");
    p = answer_request(given, 1, INT32_MAX);
    assert_refused(engine, &p, EK_ECONTEXT, "context of 4096");
    p = answer_request(given, 4000, 96);
    ek_engine_release(engine, answer_submit(engine, &p));
}

static void what_can_never_fit_into_the_cache_is_refused_and_what_just_fits_is_not(void **state)
{
    (void)state;
    ek_engine_params params = toy_params();
    params.kv_bytes = 10 * toy_block_bytes(&params);
    ek_engine *engine = toy_engine(&params, NULL);
    static int32_t given[200];
    /* Ten blocks have 160 positions; the last token needs none. */
    ek_request_params p = answer_request(given, 100, 62);
    assert_refused(engine, &p, EK_ENOMEM, "they need 11 blocks of KV cache, and all of it has 10");
    p.max_tokens = 61;
    p.ignore_eos = true;
    answer *a = answer_get(engine, &p);
    assert_int_equal(a->n_tokens, 61);
    ek_sys_free(a);
    ek_engine_destroy(engine);
}

static void places_are_four_running_and_eight_waiting(void **state)
{
    ek_engine *engine = *state;
    ek_request *accepted[50];
    int32_t n_accepted = 0;
    /* Nobody reads, so nobody finishes. */
    ek_request_params params = toy_endless(1000);
    for (int32_t i = 0; i < 50; i++) {
        ek_err err = {0};
        ek_status status = ek_engine_submit(engine, &params, &accepted[n_accepted], &err);
        n_accepted += status == EK_OK;
        if (status != EK_OK) assert_int_equal(status, EK_EFULL);
        if (status != EK_OK) assert_non_null(strstr(err.text, "all 12 places"));
    }
    assert_int_equal(n_accepted, 12);
    assert_int_equal(ek_engine_inflight(engine), 12);
    /* One leaves, one comes in. */
    ek_engine_release(engine, accepted[0]);
    ek_request *late = NULL;
    while (ek_engine_submit(engine, &params, &late, NULL) != EK_OK)
        ek_sys_sleep_us(100);
    assert_int_equal(ek_engine_submit(engine, &params, &accepted[0], NULL), EK_EFULL);
    ek_engine_release(engine, late);
    for (int32_t i = 1; i < 12; i++)
        ek_engine_release(engine, accepted[i]);
    answer_assert_idle(engine);
}

static void a_draining_engine_takes_nothing_new_and_ends_what_it_has(void **state)
{
    ek_engine *engine = *state;
    ek_request_params params = toy_endless(500);
    ek_request *request = answer_submit(engine, &params);
    ek_engine_drain(engine);
    assert_refused(engine, &params, EK_EDRAINING, "draining");
    answer *a = answer_wait(engine, request);
    assert_int_equal(a->n_tokens, 500);
    assert_int_equal(a->finish, EK_FINISH_LENGTH);
    ek_sys_free(a);
    answer_assert_idle(engine);
}

/* ---- ends that are not the model's ---- */

static void cancel_ends_it_soon_and_once(void **state)
{
    ek_engine *engine = *state;
    toy.step_us = 1000;
    ek_request_params params = toy_endless(4000);
    ek_request *request = answer_submit(engine, &params);
    answer *a = answer_new();
    while (a->n_tokens < 3)
        assert_false(answer_read(engine, request, a));
    for (int i = 0; i < 3; i++)
        ek_engine_cancel(engine, request);
    int64_t n_steps = toy.n_steps;
    while (!answer_read(engine, request, a))
        ek_sys_sleep_us(100);
    assert_int_equal(a->finish, EK_FINISH_CANCELED);
    assert_true(toy.n_steps <= n_steps + 1);    /* the one that ran */
    assert_int_equal(a->n_tokens, toy.n_steps); /* and none of what they gave is lost */
    /* Reading on is harmless and gives the same end. */
    assert_true(answer_read(engine, request, a));
    ek_engine_cancel(engine, request);
    ek_engine_release(engine, request);
    answer_assert_idle(engine);
    ek_sys_free(a);
}

static void a_waiting_one_can_be_canceled(void **state)
{
    (void)state;
    ek_engine_params params = toy_params();
    params.running_max = 1;
    ek_engine *engine = toy_engine(&params, NULL);
    toy.step_us = 1000;
    ek_request_params p = toy_endless(4000);
    ek_request *first = answer_submit(engine, &p), *second = answer_submit(engine, &p);
    answer *a = answer_new();
    while (a->n_tokens < 3)
        (void)answer_read(engine, first, a);
    ek_engine_cancel(engine, second);
    answer *b = answer_wait(engine, second);
    assert_int_equal(b->finish, EK_FINISH_CANCELED);
    assert_int_equal(b->n_tokens, 0);
    assert_false(answer_read(engine, first, a));
    ek_engine_release(engine, first);
    ek_sys_free(a);
    ek_sys_free(b);
    ek_engine_destroy(engine);
}

static int64_t release_all(ek_engine *engine)
{
    ek_request_params params = toy_endless(4000);
    for (int i = 0; i < 12; i++)
        ek_engine_release(engine, answer_submit(engine, &params));
    int64_t start_us = ek_sys_now_us();
    answer_assert_idle(engine);
    return ek_sys_now_us() - start_us;
}

static void a_released_request_leaves_by_itself(void **state)
{
    toy.step_us = 1000;
    toy_assert_quick(*state, release_all, 50000);
}

static void a_deadline_ends_running_and_waiting_ones(void **state)
{
    ek_engine *engine = *state;
    toy.step_us = 5000;
    ek_request *request[6];
    ek_request_params params = toy_endless(4000);
    int64_t start_us = ek_sys_now_us();
    params.deadline_us = start_us + 300000; /* too soon for an outbox to be full */
    for (int i = 0; i < 6; i++)
        request[i] = answer_submit(engine, &params);
    for (int i = 0; i < 6; i++) {
        answer *a = answer_wait(engine, request[i]);
        assert_int_equal(a->finish, EK_FINISH_TIMEOUT);
        assert_true(a->usage.total_us >= 290000 && a->usage.total_us < 2000000);
        assert_true(i < 4 ? a->n_tokens > 0 : a->n_tokens == 0);
        ek_sys_free(a);
    }
    params.deadline_us = start_us; /* over before it began */
    answer *late = answer_get(engine, &params);
    assert_int_equal(late->finish, EK_FINISH_TIMEOUT);
    assert_int_equal(late->n_tokens, 0);
    ek_sys_free(late);
}

/* @return how long the second one waited beyond its limit */
static int64_t wait_too_long(ek_engine *engine)
{
    ek_request_params p = toy_endless(4000);
    ek_request *first = answer_submit(engine, &p);
    ek_request *second = answer_submit(engine, &p);
    answer *a = answer_new(), *b = answer_new();
    while (!answer_read(engine, second, b))
        assert_false(answer_read(engine, first, a)); /* it is not the queue's any more */
    assert_int_equal(b->finish, EK_FINISH_QUEUE_TIMEOUT);
    assert_int_equal(b->n_tokens, 0);
    assert_int_equal(b->usage.queue_us, b->usage.total_us);
    int64_t beyond_us = b->usage.total_us - 300000;
    assert_true(beyond_us >= 0);
    ek_engine_release(engine, first);
    ek_engine_release(engine, second);
    answer_assert_idle(engine);
    ek_sys_free(a);
    ek_sys_free(b);
    return beyond_us;
}

static void who_waits_too_long_for_a_place_is_turned_away_on_time(void **state)
{
    (void)state;
    ek_engine_params params = toy_params();
    params.running_max = 1;
    params.queue_timeout_us = 300000;
    ek_engine *engine = toy_engine(&params, NULL);
    toy.step_us = 5000; /* the first one's outbox is not full by then, whoever reads late */
    toy_assert_quick(engine, wait_too_long, 50000);
    ek_engine_destroy(engine);
}

static void a_failed_step_fails_those_in_it_and_nobody_else(void **state)
{
    ek_engine *engine = *state;
    toy.step_us = 1000;
    ek_request_params params = toy_endless(50);
    ek_request *in_it = answer_submit(engine, &params);
    while (ek_engine_inflight(engine) > 0 && toy.n_steps < 5)
        ek_sys_sleep_us(100);
    toy.fail_steps = 1;
    answer *a = answer_wait(engine, in_it);
    assert_int_equal(a->finish, EK_FINISH_UNAVAILABLE);
    answer *b = answer_get(engine, &params);
    assert_int_equal(b->finish, EK_FINISH_LENGTH);
    assert_int_equal(b->n_tokens, 50);
    ek_sys_free(a);
    ek_sys_free(b);
}

static void destroy_takes_released_requests_with_it(void **state)
{
    (void)state;
    ek_engine_params params = toy_params();
    ek_engine *engine = toy_engine(&params, NULL);
    toy.step_us = 5000;
    ek_request_params p = toy_endless(4000);
    for (int i = 0; i < 12; i++)
        ek_engine_release(engine, answer_submit(engine, &p));
    ek_engine_destroy(engine);
    ek_engine_destroy(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TOY_TEST(bad_requests_are_refused_with_a_reason),
        TOY_TEST(too_long_for_the_context_names_both_numbers),
        cmocka_unit_test(what_can_never_fit_into_the_cache_is_refused_and_what_just_fits_is_not),
        TOY_TEST(places_are_four_running_and_eight_waiting),
        TOY_TEST(a_draining_engine_takes_nothing_new_and_ends_what_it_has),
        TOY_TEST(cancel_ends_it_soon_and_once),
        cmocka_unit_test(a_waiting_one_can_be_canceled),
        TOY_TEST(a_released_request_leaves_by_itself),
        TOY_TEST(a_deadline_ends_running_and_waiting_ones),
        cmocka_unit_test(who_waits_too_long_for_a_place_is_turned_away_on_time),
        TOY_TEST(a_failed_step_fails_those_in_it_and_nobody_else),
        cmocka_unit_test(destroy_takes_released_requests_with_it),
    };
    return cmocka_run_group_tests_name("engine/requests", tests, NULL, NULL);
}
