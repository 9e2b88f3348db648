/*
 * Goal: an answer is what the model, the sampling parameters and the stops make of it. Method:
 * engines on the toy model, whose answers a test can work out itself; one behaviour per test.
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
#include "sys/mem.h"
#include "toy_fixture.h"

/* ---- answers ---- */

static void the_answer_is_the_models(void **state)
{
    ek_engine *engine = *state;
    int32_t want[200];
    ek_request_params params = answer_request(toy_prompt, TOY_N_PROMPT, 200);
    int32_t n = toy_work_out(toy_prompt, TOY_N_PROMPT, 200, want);
    answer *a = answer_get(engine, &params);
    assert_int_equal(a->n_tokens, n);
    assert_memory_equal(a->id, want, (size_t)n * sizeof *want);
    assert_int_equal(a->finish, n < 200 ? EK_FINISH_STOP : EK_FINISH_LENGTH);
    assert_int_equal(a->usage.prompt_tokens, TOY_N_PROMPT);
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
            int32_t n = toy_work_out(given, lengths[i], n_answer, want);
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
    ek_request_params params = toy_endless(1);
    answer *a = answer_get(engine, &params);
    assert_int_equal(a->n_tokens, 1);
    assert_int_equal(a->finish, EK_FINISH_LENGTH);
    ek_sys_free(a);
}

static void the_whole_context_can_be_used(void **state)
{
    ek_engine *engine = *state;
    ek_request_params params = toy_endless(TOY_CONTEXT - TOY_N_PROMPT);
    answer *a = answer_get(engine, &params);
    assert_int_equal(a->n_tokens, TOY_CONTEXT - TOY_N_PROMPT);
    ek_sys_free(a);
}

static void an_end_token_is_not_counted_nor_a_stop_id(void **state)
{
    ek_engine *engine = *state;
    int32_t want[3000];
    /* Some prompt whose answer is of a handy length. */
    int32_t given[] = {2, 3}, n = 0;
    while (n < 5 || n > 60 || want[n / 2] == want[0] || want[n / 2] == want[1])
        given[1] += 1, n = toy_work_out(given, 2, 3000, want);
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
    ek_request_params params = toy_endless(300);
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

/*
 * What is held back because it may become a stop string leaves with the end, whatever the end is.
 */
static void held_back_text_leaves_with_the_end(void **state)
{
    ek_engine *engine = *state;
    ek_request_params params = answer_request(toy_prompt, TOY_N_PROMPT, 300);
    for (int ends = 0; ends <= 1; ends++) {
        params.ignore_eos = ends == 0;
        answer *whole = answer_get(engine, &params);
        assert_int_equal(whole->finish, ends ? EK_FINISH_STOP : EK_FINISH_LENGTH);
        char text[8] = "??\x01";
        int32_t n_last = whole->n_text >= 2 ? 2 : 1;
        /* The last bytes, whole characters of them, and one that never comes. */
        while ((whole->text[whole->n_text - n_last] & 0xC0) == 0x80)
            n_last++;
        memcpy(text, whole->text + whole->n_text - n_last, (size_t)n_last);
        text[n_last] = '\x01';
        const ek_str stop = {text, (size_t)n_last + 1};
        params.stops = &stop;
        params.n_stops = 1;
        answer *a = answer_get(engine, &params);
        assert_int_equal(a->n_text, whole->n_text);
        assert_memory_equal(a->text, whole->text, (size_t)a->n_text);
        /* It belongs to the last token; where an end token came after that, to nobody. */
        assert_int_equal(a->text_end[a->n_tokens - 1], ends ? a->n_text - n_last : a->n_text);
        params.n_stops = 0;
        ek_sys_free(a);
        ek_sys_free(whole);
    }
}

static void a_seed_repeats_and_others_differ(void **state)
{
    ek_engine *engine = *state;
    ek_request_params params = toy_endless(100);
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
    ek_request_params params = toy_endless(80);
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
    toy_logits(toy_prompt, TOY_N_PROMPT, want);
    assert_int_equal(ek_engine_logits(engine, toy_prompt, TOY_N_PROMPT, got, &err), EK_OK);
    assert_memory_equal(got, want, sizeof want);
    int32_t bad[] = {1, TOY_N_VOCAB};
    assert_int_equal(ek_engine_logits(engine, bad, 2, got, &err), EK_EINVAL);
    assert_int_equal(ek_engine_logits(engine, toy_prompt, 0, got, &err), EK_EINVAL);
    toy.fail_steps = 1;
    assert_int_equal(ek_engine_logits(engine, toy_prompt, TOY_N_PROMPT, got, &err), EK_EPEER);
    ek_engine_drain(engine);
    assert_int_equal(ek_engine_logits(engine, toy_prompt, TOY_N_PROMPT, got, &err), EK_EDRAINING);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TOY_TEST(the_answer_is_the_models),
        TOY_TEST(every_length_of_prompt_and_answer_around_the_block_borders),
        TOY_TEST(one_token_is_an_answer),
        TOY_TEST(the_whole_context_can_be_used),
        TOY_TEST(an_end_token_is_not_counted_nor_a_stop_id),
        TOY_TEST(tokens_of_a_stop_string_count_and_their_text_stays),
        TOY_TEST(held_back_text_leaves_with_the_end),
        TOY_TEST(a_seed_repeats_and_others_differ),
        TOY_TEST(logprobs_come_with_each_token),
        TOY_TEST(a_common_beginning_is_computed_once),
        TOY_TEST(logits_are_the_models_and_checked_like_a_request),
    };
    return cmocka_run_group_tests_name("engine/answers", tests, NULL, NULL);
}
