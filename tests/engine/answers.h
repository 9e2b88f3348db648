/*
 * Reading requests' answers in tests: everything a request puts out, gathered until it finishes.
 */
#ifndef EK_TESTS_ENGINE_ANSWERS_H
#define EK_TESTS_ENGINE_ANSWERS_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"

#define ANSWER_TOKENS_MAX 4096
#define ANSWER_TEXT_MAX   65536

typedef struct answer {
    char text[ANSWER_TEXT_MAX];
    int32_t n_text;
    int32_t id[ANSWER_TOKENS_MAX];
    float logprob[ANSWER_TOKENS_MAX];
    int32_t text_end[ANSWER_TOKENS_MAX]; /* of the whole text */
    int32_t n_tokens;
    ek_finish finish;
    ek_usage usage;
} answer;

/** A plain greedy request; prompt is borrowed. */
ek_request_params answer_request(const int32_t *prompt, int32_t n_prompt, int32_t max_tokens);

/** Submit; fails the test when refused. */
ek_request *answer_submit(ek_engine *engine, const ek_request_params *params);

/** Add what is there to the answer; true when it is finished. Checks what holds for every read. */
bool answer_read(ek_engine *engine, ek_request *request, answer *a);

/**
 * Read until it is finished (fails after 60 s), and release. The answer is heap memory:
 * ek_sys_free.
 */
answer *answer_wait(ek_engine *engine, ek_request *request);

/** Submit and wait. */
answer *answer_get(ek_engine *engine, const ek_request_params *params);

answer *answer_new(void);

void answer_assert_equal(const answer *a, const answer *b);

/** Wait until nothing is inside (fails after 60 s), and check that the gauges say so. */
void answer_assert_idle(ek_engine *engine);

#endif
