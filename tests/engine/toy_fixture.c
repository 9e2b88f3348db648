#include "toy_fixture.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

const int32_t toy_prompt[TOY_N_PROMPT] = {4, 5, 6, 7, 8, 9, 10};

int toy_set_up(void **state)
{
    ek_engine_params params = toy_params();
    *state = toy_engine(&params, NULL);
    return 0;
}

int toy_tear_down(void **state)
{
    toy.step_us = 0;
    answer_assert_idle(*state);
    ek_engine_destroy(*state);
    return 0;
}

ek_request_params toy_endless(int32_t max_tokens)
{
    ek_request_params params = answer_request(toy_prompt, TOY_N_PROMPT, max_tokens);
    params.ignore_eos = true;
    return params;
}

static int32_t argmax(const float *logits)
{
    int32_t best = 0;
    for (int32_t id = 1; id < TOY_N_VOCAB; id++)
        if (logits[id] > logits[best]) best = id;
    return best;
}

int32_t toy_work_out(const int32_t *given, int32_t n_given, int32_t n_answer, int32_t *out)
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

void toy_assert_quick(ek_engine *engine, int64_t (*run)(ek_engine *engine), int64_t limit_us)
{
    int64_t took_us = 0;
    for (int i = 0; i < 3; i++) {
        took_us = run(engine);
        if (took_us <= limit_us) return;
    }
    fail_msg("it took %lld us three times, at most %lld are allowed", (long long)took_us,
             (long long)limit_us);
}
