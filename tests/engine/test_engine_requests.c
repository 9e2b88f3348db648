/*
 * Goal: a request's life, from being refused to its last byte, is what engine.h says, seen from
 * outside. Method: engines on the toy model, whose answers a test can work out itself; one
 * behaviour per test.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "answers.h"
#include "base/attr.h"
#include "sys/clock.h"
#include "sys/mem.h"
#include "toy_model.h"

static const int32_t prompt[] = {4, 5, 6, 7, 8, 9, 10};
#define N_PROMPT ((int32_t)EK_COUNT_OF(prompt))

static int32_t argmax(const float *logits)
{
    int32_t best = 0;
    for (int32_t id = 1; id < TOY_N_VOCAB; id++)
        if (logits[id] > logits[best]) best = id;
    return best;
}

/* The greedy answer from the definition of the toy, ends included. */
static int32_t work_out(const int32_t *given, int32_t n_given, int32_t n_answer, int32_t *out)
{
    int32_t tokens[TOY_CONTEXT];
    memcpy(tokens, given, (size_t)n_given * sizeof *given);
    for (int32_t i = 0; i < n_answer; i++) {
        float logits[TOY_N_VOCAB];
        toy_logits(tokens, n_given + i, logits);
        out[i] = tokens[n_given + i] = argmax(logits);
        if (out[i] == TOY_END) return i;
    }
    return n_answer;
}

/* A greedy request that goes on past end tokens. */
static ek_request_params endless(int32_t max_tokens)
{
    ek_request_params params = answer_request(prompt, N_PROMPT, max_tokens);
    params.ignore_eos = true;
    return params;
}

static void assert_refused(ek_engine *engine, const ek_request_params *params, ek_status wanted,
                           const char *text)
{
    ek_request *request = NULL;
    ek_err err = {0};
    assert_int_equal(ek_engine_submit(engine, params, &request, &err), wanted);
    assert_null(request);
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

/* ---- answers ---- */

static void the_answer_is_the_models(void **state)
{
    ek_engine *engine = *state;
    int32_t want[200];
    ek_request_params params = answer_request(prompt, N_PROMPT, 200);
    int32_t n = work_out(prompt, N_PROMPT, 200, want);
    answer *a = answer_get(engine, &params);
    assert_int_equal(a->n_tokens, n);
    assert_memory_equal(a->id, want, (size_t)n * sizeof *want);
    assert_int_equal(a->finish, n < 200 ? EK_FINISH_STOP : EK_FINISH_LENGTH);
    assert_int_equal(a->usage.prompt_tokens, N_PROMPT);
    assert_int_equal(a->usage.completion_tokens, n); /* the end token is not counted */
    assert_true(a->usage.ttft_us >= a->usage.queue_us && a->usage.queue_us >= 0);
    assert_true(a->usage.total_us >= a->usage.ttft_us && a->usage.ttft_us > 0);
    ek_sys_free(a);
}

static void every_length_of_prompt_and_answer_around_the_block_borders(void **state)
{
    ek_engine *engine = *state;
    int32_t given[70], want[40];
    for (int32_t i = 0; i < 70; i++)
        given[i] = 2 + i * 7 % (TOY_N_VOCAB - 2);
    const int32_t lengths[] = {1, 2, 15, 16, 17, 31, 32, 33, 63, 64, 65, 70};
    for (size_t i = 0; i < EK_COUNT_OF(lengths); i++) {
        for (int32_t n_answer = 1; n_answer <= 33; n_answer += 16) {
            ek_request_params params = answer_request(given, lengths[i], n_answer);
            int32_t n = work_out(given, lengths[i], n_answer, want);
            answer *a = answer_get(engine, &params);
            assert_int_equal(a->n_tokens, n);
            assert_memory_equal(a->id, want, (size_t)n * sizeof *want);
            ek_sys_free(a);
        }
    }
}

static void one_token_is_an_answer(void **state)
{
    ek_engine *engine = *state;
    ek_request_params params = endless(1);
    answer *a = answer_get(engine, &params);
    assert_int_equal(a->n_tokens, 1);
    assert_int_equal(a->finish, EK_FINISH_LENGTH);
    ek_sys_free(a);
}

static void the_whole_context_can_be_used(void **state)
{
    ek_engine *engine = *state;
    ek_request_params params = endless(TOY_CONTEXT - N_PROMPT);
    answer *a = answer_get(engine, &params);
    assert_int_equal(a->n_tokens, TOY_CONTEXT - N_PROMPT);
    ek_sys_free(a);
}

static void an_end_token_is_not_counted_nor_a_stop_id(void **state)
{
    ek_engine *engine = *state;
    int32_t want[3000];
    /* Some prompt whose answer is of a handy length. */
    int32_t given[] = {2, 3}, n = 0;
    while (n < 5 || n > 60 || want[n / 2] == want[0] || want[n / 2] == want[1])
        given[1] += 1, n = work_out(given, 2, 3000, want);
    ek_request_params params = answer_request(given, 2, 3000);
    answer *a = answer_get(engine, &params);
    assert_int_equal(a->finish, EK_FINISH_STOP);
    assert_int_equal(a->n_tokens, n);
    ek_sys_free(a);

    int32_t first = 0;
    while (want[first] != want[n / 2])
        first++;
    params.stop_ids = &want[n / 2];
    params.n_stop_ids = 1;
    a = answer_get(engine, &params);
    assert_int_equal(a->finish, EK_FINISH_STOP);
    assert_int_equal(a->n_tokens, first);
    ek_sys_free(a);

    /* Going on past the end: it is an ordinary token then, without text. */
    params.n_stop_ids = 0;
    params.ignore_eos = true;
    params.max_tokens = n + 1;
    a = answer_get(engine, &params);
    assert_int_equal(a->finish, EK_FINISH_LENGTH);
    assert_int_equal(a->id[n], TOY_END);
    ek_sys_free(a);
}

static void tokens_of_a_stop_string_count_and_their_text_stays(void **state)
{
    ek_engine *engine = *state;
    ek_request_params params = endless(300);
    answer *whole = answer_get(engine, &params);
    /* Stop at some text in the middle that begins inside one token and ends inside another. */
    ek_str stop = {whole->text + whole->text_end[40] - 1, 6};
    while ((*stop.data & 0xC0) == 0x80)
        stop.data--;
    while ((stop.data[stop.len] & 0xC0) == 0x80)
        stop.len++;
    params.stops = &stop;
    params.n_stops = 1;
    int32_t at = (int32_t)ek_str_find((ek_str){whole->text, (size_t)whole->n_text}, stop);
    answer *a = answer_get(engine, &params);
    assert_int_equal(a->finish, EK_FINISH_STOP);
    assert_int_equal(a->n_text, at);
    assert_memory_equal(a->text, whole->text, (size_t)at);
    /* The tokens go up to the one that made the stop string complete. */
    int32_t end = at + (int32_t)stop.len;
    assert_true(whole->text_end[a->n_tokens - 1] >= end);
    assert_true(a->n_tokens < 2 || whole->text_end[a->n_tokens - 2] < end);
    ek_sys_free(a);
    ek_sys_free(whole);
}

static void a_seed_repeats_and_others_differ(void **state)
{
    ek_engine *engine = *state;
    ek_request_params params = endless(100);
    params.sampling.temperature = 1.0f;
    params.sampling.seed = 5;
    answer *a = answer_get(engine, &params);
    answer *b = answer_get(engine, &params);
    params.sampling.seed = 6;
    answer *c = answer_get(engine, &params);
    answer_assert_equal(a, b);
    assert_memory_not_equal(a->id, c->id, 100 * sizeof *a->id);
    ek_sys_free(a);
    ek_sys_free(b);
    ek_sys_free(c);
}

static void logprobs_come_with_each_token(void **state)
{
    ek_engine *engine = *state;
    ek_request_params params = endless(80);
    params.sampling.n_logprobs = 5;
    ek_request *request = answer_submit(engine, &params);
    ek_output out = {0};
    int32_t n = 0;
    while (out.finish == EK_FINISH_NONE) {
        ek_engine_read(engine, request, &out);
        for (int32_t i = 0; i < out.n_tokens; i++, n++) {
            assert_int_equal(out.token[i].n_top, 5);
            assert_int_equal(out.token[i].top[0].id, out.token[i].id); /* greedy */
            assert_true(out.token[i].top[0].logprob == out.token[i].logprob);
            assert_true(out.token[i].logprob <= 0 && isfinite(out.token[i].logprob));
        }
    }
    assert_int_equal(n, 80);
    assert_int_equal(out.usage.completion_tokens, 80);
    ek_engine_release(engine, request);
}

static void a_common_beginning_is_computed_once(void **state)
{
    ek_engine *engine = *state;
    int32_t given[50];
    for (int32_t i = 0; i < 50; i++)
        given[i] = 20 + i;
    ek_request_params params = answer_request(given, 50, 10);
    answer *a = answer_get(engine, &params);
    assert_int_equal(a->usage.cached_tokens, 0);
    answer *b = answer_get(engine, &params);
    assert_int_equal(b->usage.cached_tokens, 48); /* three blocks of 16 */
    answer_assert_equal(a, b);
    ek_engine_load load;
    ek_engine_load_get(engine, &load);
    assert_int_equal(load.prompt_tokens, 100);
    assert_int_equal(load.cached_tokens, 48);
    assert_int_equal(load.completion_tokens, a->n_tokens + b->n_tokens);
    assert_true(load.kv_blocks_cached >= 3);
    ek_sys_free(a);
    ek_sys_free(b);
}

static void logits_are_the_models_and_checked_like_a_request(void **state)
{
    ek_engine *engine = *state;
    float want[TOY_N_VOCAB], got[TOY_N_VOCAB];
    ek_err err = {0};
    toy_logits(prompt, N_PROMPT, want);
    assert_int_equal(ek_engine_logits(engine, prompt, N_PROMPT, got, &err), EK_OK);
    assert_memory_equal(got, want, sizeof want);
    int32_t bad[] = {1, TOY_N_VOCAB};
    assert_int_equal(ek_engine_logits(engine, bad, 2, got, &err), EK_EINVAL);
    assert_int_equal(ek_engine_logits(engine, prompt, 0, got, &err), EK_EINVAL);
    toy.fail_steps = 1;
    assert_int_equal(ek_engine_logits(engine, prompt, N_PROMPT, got, &err), EK_EPEER);
    ek_engine_drain(engine);
    assert_int_equal(ek_engine_logits(engine, prompt, N_PROMPT, got, &err), EK_EDRAINING);
}

/* ---- refusals ---- */

static void bad_requests_are_refused_with_a_reason(void **state)
{
    ek_engine *engine = *state;
    ek_request_params ok = answer_request(prompt, N_PROMPT, 10), p = ok;
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
    ek_request_params params = endless(1000);
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
    ek_request_params params = endless(500);
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
    ek_request_params params = endless(4000);
    ek_request *request = answer_submit(engine, &params);
    answer *a = answer_new();
    while (a->n_tokens < 3)
        assert_false(answer_read(engine, request, a));
    for (int i = 0; i < 3; i++)
        ek_engine_cancel(engine, request);
    int64_t n_steps = toy.n_steps;
    int32_t n_before = a->n_tokens;
    while (!answer_read(engine, request, a))
        ek_sys_sleep_us(100);
    assert_int_equal(a->finish, EK_FINISH_CANCELED);
    assert_true(toy.n_steps <= n_steps + 1); /* the one that ran */
    assert_in_range(a->n_tokens, n_before, n_before + 2);
    /* Reading on is harmless and gives the same end. */
    assert_true(answer_read(engine, request, a));
    ek_engine_cancel(engine, request);
    ek_engine_release(engine, request);
    answer_assert_idle(engine);
    ek_sys_free(a);
}

static void a_released_request_leaves_by_itself(void **state)
{
    ek_engine *engine = *state;
    toy.step_us = 1000;
    ek_request_params params = endless(4000);
    for (int i = 0; i < 12; i++)
        ek_engine_release(engine, answer_submit(engine, &params));
    int64_t start_us = ek_sys_now_us();
    answer_assert_idle(engine);
    assert_true(ek_sys_now_us() - start_us < 200000);
}

static void a_deadline_ends_running_and_waiting_ones(void **state)
{
    ek_engine *engine = *state;
    toy.step_us = 1000;
    ek_request *request[6];
    ek_request_params params = endless(4000);
    int64_t start_us = ek_sys_now_us();
    params.deadline_us = start_us + 40000; /* too soon for an outbox to be full */
    for (int i = 0; i < 6; i++)
        request[i] = answer_submit(engine, &params);
    for (int i = 0; i < 6; i++) {
        answer *a = answer_wait(engine, request[i]);
        assert_int_equal(a->finish, EK_FINISH_TIMEOUT);
        assert_true(a->usage.total_us >= 38000 && a->usage.total_us < 200000);
        assert_true(i < 4 ? a->n_tokens > 0 : a->n_tokens == 0);
        ek_sys_free(a);
    }
    params.deadline_us = start_us; /* over before it began */
    answer *late = answer_get(engine, &params);
    assert_int_equal(late->finish, EK_FINISH_TIMEOUT);
    assert_int_equal(late->n_tokens, 0);
    ek_sys_free(late);
}

static void who_waits_too_long_for_a_place_is_turned_away_on_time(void **state)
{
    (void)state;
    ek_engine_params params = toy_params();
    params.running_max = 1;
    params.queue_timeout_us = 300000;
    ek_engine *engine = toy_engine(&params, NULL);
    toy.step_us = 1000;
    ek_request_params p = endless(4000);
    ek_request *first = answer_submit(engine, &p);
    ek_request *second = answer_submit(engine, &p);
    answer *a = answer_new(), *b = answer_new();
    while (!answer_read(engine, second, b))
        assert_false(answer_read(engine, first, a)); /* it is not the queue's any more */
    assert_int_equal(b->finish, EK_FINISH_QUEUE_TIMEOUT);
    assert_int_equal(b->n_tokens, 0);
    assert_true(b->usage.total_us >= 300000 && b->usage.total_us < 350000);
    assert_int_equal(b->usage.queue_us, b->usage.total_us);
    ek_engine_release(engine, first);
    ek_engine_release(engine, second);
    ek_sys_free(a);
    ek_sys_free(b);
    ek_engine_destroy(engine);
}

static void a_failed_step_fails_those_in_it_and_nobody_else(void **state)
{
    ek_engine *engine = *state;
    toy.step_us = 1000;
    ek_request_params params = endless(50);
    ek_request *in_it = answer_submit(engine, &params);
    while (ek_engine_inflight(engine) > 0 && toy.n_steps < 5)
        ek_sys_sleep_us(100);
    toy.fail_steps = 1;
    answer *a = answer_wait(engine, in_it);
    assert_int_equal(a->finish, EK_FINISH_ERROR);
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
    ek_request_params p = endless(4000);
    for (int i = 0; i < 12; i++)
        ek_engine_release(engine, answer_submit(engine, &p));
    ek_engine_destroy(engine);
    ek_engine_destroy(NULL);
}

/* ---- readers ---- */

static void a_slow_reader_stops_only_itself(void **state)
{
    (void)state;
    ek_engine_params params = toy_params();
    params.running_max = 1; /* even its place must not stay taken */
    ek_engine *engine = toy_engine(&params, NULL);
    ek_request_params p = endless(1000);
    ek_request *slow = answer_submit(engine, &p);
    while (toy.n_steps < 60)
        ek_sys_sleep_us(100);
    p.sampling.temperature = 1.0f;
    answer *quick = answer_get(engine, &p);
    assert_int_equal(quick->n_tokens, 1000);
    /* What it did not read waited for it, and the rest follows without a gap. */
    int32_t want[1000];
    answer *a = answer_wait(engine, slow);
    for (int32_t i = 0; i < 1000;) {
        int32_t given[TOY_CONTEXT];
        memcpy(given, prompt, sizeof prompt);
        memcpy(given + N_PROMPT, want, (size_t)i * sizeof *want);
        i += work_out(given, N_PROMPT + i, 1000 - i, want + i);
        if (i < 1000) want[i++] = TOY_END;
    }
    assert_int_equal(a->n_tokens, 1000);
    assert_memory_equal(a->id, want, sizeof want);
    ek_sys_free(quick);
    ek_sys_free(a);
    ek_engine_destroy(engine);
}

static void a_paused_engine_sleeps_and_a_read_wakes_it(void **state)
{
    ek_engine *engine = *state;
    ek_request_params params = endless(1000);
    ek_request *request = answer_submit(engine, &params);
    while (toy.n_steps < 64)
        ek_sys_sleep_us(100);
    ek_sys_sleep_us(20000);
    int64_t n_steps = toy.n_steps;
    ek_sys_sleep_us(50000);
    assert_int_equal(toy.n_steps, n_steps);
    answer *a = answer_new();
    int64_t start_us = ek_sys_now_us();
    while (a->n_tokens < 200)
        (void)answer_read(engine, request, a);
    /* Far less than the tick that would find it in the end. */
    assert_true(ek_sys_now_us() - start_us < 90000);
    ek_engine_release(engine, request);
    ek_sys_free(a);
}

static void news_name_each_request_once_until_it_is_read(void **state)
{
    ek_engine *engine = *state;
    int tag_a, tag_b;
    void *tags[8];
    ek_request_params params = endless(3);
    assert_int_equal(ek_engine_wait(engine, tags, 8, 10000), 0);
    params.tag = &tag_a;
    ek_request *a = answer_submit(engine, &params);
    assert_int_equal(ek_engine_wait(engine, tags, 8, 5000000), 1);
    assert_ptr_equal(tags[0], &tag_a);
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
    ek_request_params params = endless(3);
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
    ek_request_params p = endless(1);
    ek_request *request = answer_submit(engine, &p);
    int64_t start_us = ek_sys_now_us();
    while (ek_engine_healthy(engine) && ek_sys_now_us() - start_us < 10000000)
        ek_sys_sleep_us(500);
    assert_false(ek_engine_healthy(engine));
    ek_sys_free(answer_wait(engine, request));
    assert_true(ek_engine_healthy(engine));
    ek_engine_destroy(engine);
}

/* ---- fixtures ---- */

static int set_up(void **state)
{
    ek_engine_params params = toy_params();
    *state = toy_engine(&params, NULL);
    return 0;
}

static int tear_down(void **state)
{
    toy.step_us = 0;
    answer_assert_idle(*state);
    ek_engine_destroy(*state);
    return 0;
}

#define WITH_ENGINE(test) cmocka_unit_test_setup_teardown(test, set_up, tear_down)

int main(void)
{
    const struct CMUnitTest tests[] = {
        WITH_ENGINE(the_answer_is_the_models),
        WITH_ENGINE(every_length_of_prompt_and_answer_around_the_block_borders),
        WITH_ENGINE(one_token_is_an_answer),
        WITH_ENGINE(the_whole_context_can_be_used),
        WITH_ENGINE(an_end_token_is_not_counted_nor_a_stop_id),
        WITH_ENGINE(tokens_of_a_stop_string_count_and_their_text_stays),
        WITH_ENGINE(a_seed_repeats_and_others_differ),
        WITH_ENGINE(logprobs_come_with_each_token),
        WITH_ENGINE(a_common_beginning_is_computed_once),
        WITH_ENGINE(logits_are_the_models_and_checked_like_a_request),
        WITH_ENGINE(bad_requests_are_refused_with_a_reason),
        WITH_ENGINE(too_long_for_the_context_names_both_numbers),
        cmocka_unit_test(what_can_never_fit_into_the_cache_is_refused_and_what_just_fits_is_not),
        WITH_ENGINE(places_are_four_running_and_eight_waiting),
        WITH_ENGINE(a_draining_engine_takes_nothing_new_and_ends_what_it_has),
        WITH_ENGINE(cancel_ends_it_soon_and_once),
        WITH_ENGINE(a_released_request_leaves_by_itself),
        WITH_ENGINE(a_deadline_ends_running_and_waiting_ones),
        cmocka_unit_test(who_waits_too_long_for_a_place_is_turned_away_on_time),
        WITH_ENGINE(a_failed_step_fails_those_in_it_and_nobody_else),
        cmocka_unit_test(destroy_takes_released_requests_with_it),
        cmocka_unit_test(a_slow_reader_stops_only_itself),
        WITH_ENGINE(a_paused_engine_sleeps_and_a_read_wakes_it),
        WITH_ENGINE(news_name_each_request_once_until_it_is_read),
        WITH_ENGINE(a_released_request_is_not_named),
        cmocka_unit_test(a_step_longer_than_the_watchdog_is_seen_while_it_runs),
    };
    return cmocka_run_group_tests_name("engine/requests", tests, NULL, NULL);
}
