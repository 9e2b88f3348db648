#include "answers.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "base/utf8.h"
#include "sys/clock.h"
#include "sys/mem.h"

#define PATIENCE_US 60000000

ek_request_params answer_request(const int32_t *prompt, int32_t n_prompt, int32_t max_tokens)
{
    return (ek_request_params){
        .prompt = prompt,
        .n_prompt = n_prompt,
        .max_tokens = max_tokens,
        .sampling = {.top_p = 1.0f, .repetition_penalty = 1.0f, .n_logprobs = -1},
    };
}

ek_request *answer_submit(ek_engine *engine, const ek_request_params *params)
{
    ek_request *request = NULL;
    ek_err err = {0};
    ek_status status = ek_engine_submit(engine, params, &request, &err);
    if (status != EK_OK) fail_msg("submit: %s: %s", ek_status_name(status), err.text);
    return request;
}

answer *answer_new(void)
{
    answer *a = ek_sys_calloc(1, sizeof *a);
    assert_non_null(a);
    return a;
}

/* What is true of every read, whatever the request. */
static void check_output(const ek_output *out)
{
    assert_in_range(out->n_text, 0, EK_ENGINE_READ_BYTES);
    assert_in_range(out->n_tokens, 0, EK_ENGINE_READ_TOKENS);
    assert_true(ek_utf8_valid((ek_str){out->text, (size_t)out->n_text}));
    int32_t last = 0;
    for (int32_t i = 0; i < out->n_tokens; i++) {
        assert_true(out->token[i].text_end >= last && out->token[i].text_end <= out->n_text);
        last = out->token[i].text_end;
    }
    assert_false(out->more && out->finish != EK_FINISH_NONE);
}

bool answer_read(ek_engine *engine, ek_request *request, answer *a)
{
    ek_output out;
    ek_engine_read(engine, request, &out);
    check_output(&out);
    assert_true(a->n_text + out.n_text <= ANSWER_TEXT_MAX);
    assert_true(a->n_tokens + out.n_tokens <= ANSWER_TOKENS_MAX);
    memcpy(a->text + a->n_text, out.text, (size_t)out.n_text);
    for (int32_t i = 0; i < out.n_tokens; i++, a->n_tokens++) {
        a->id[a->n_tokens] = out.token[i].id;
        a->logprob[a->n_tokens] = out.token[i].logprob;
        a->text_end[a->n_tokens] = a->n_text + out.token[i].text_end;
    }
    a->n_text += out.n_text;
    a->finish = out.finish;
    a->usage = out.usage;
    return out.finish != EK_FINISH_NONE;
}

answer *answer_wait(ek_engine *engine, ek_request *request)
{
    answer *a = answer_new();
    int64_t start_us = ek_sys_now_us();
    while (!answer_read(engine, request, a)) {
        if (ek_sys_now_us() - start_us > PATIENCE_US) fail_msg("the request does not finish");
        ek_sys_sleep_us(100);
    }
    assert_int_equal(a->usage.completion_tokens, a->n_tokens);
    ek_engine_release(engine, request);
    return a;
}

answer *answer_get(ek_engine *engine, const ek_request_params *params)
{
    return answer_wait(engine, answer_submit(engine, params));
}

void answer_assert_equal(const answer *a, const answer *b)
{
    assert_int_equal(a->n_tokens, b->n_tokens);
    assert_memory_equal(a->id, b->id, (size_t)a->n_tokens * sizeof *a->id);
    assert_memory_equal(a->logprob, b->logprob, (size_t)a->n_tokens * sizeof *a->logprob);
    assert_memory_equal(a->text_end, b->text_end, (size_t)a->n_tokens * sizeof *a->text_end);
    assert_int_equal(a->n_text, b->n_text);
    assert_memory_equal(a->text, b->text, (size_t)a->n_text);
    assert_int_equal(a->finish, b->finish);
}

void answer_assert_idle(ek_engine *engine)
{
    int64_t start_us = ek_sys_now_us();
    while (ek_engine_inflight(engine) > 0) {
        if (ek_sys_now_us() - start_us > PATIENCE_US) fail_msg("somebody stays inside");
        ek_sys_sleep_us(200);
    }
    ek_engine_load load;
    ek_engine_load_get(engine, &load);
    assert_int_equal(load.n_running, 0);
    assert_int_equal(load.n_waiting, 0);
    assert_int_equal(load.kv_blocks_used, 0);
}
