/*
 * What tests of an engine on the toy model share: an engine for each test, a prompt, a request
 * that goes on and on.
 */
#ifndef EK_TESTS_ENGINE_TOY_FIXTURE_H
#define EK_TESTS_ENGINE_TOY_FIXTURE_H

#include <stdint.h>

#include "answers.h"
#include "toy_model.h"

#define TOY_N_PROMPT 7
extern const int32_t toy_prompt[TOY_N_PROMPT];

/**
 * cmocka fixtures: *state is an engine with toy_params; nothing may be inside when the test is
 * over.
 */
int toy_set_up(void **state);
int toy_tear_down(void **state);

#define TOY_TEST(test) cmocka_unit_test_setup_teardown(test, toy_set_up, toy_tear_down)

/** A greedy request with toy_prompt that goes on past end tokens. */
ek_request_params toy_endless(int32_t max_tokens);

/**
 * The greedy answer from the toy's definition.
 * @return its length, without the end token if it came to one
 */
int32_t toy_work_out(const int32_t *given, int32_t n_given, int32_t n_answer, int32_t *out);

/**
 * Times depend on what else the machine does: try up to three times whether something takes at most
 * limit_us; what it does is checked every time. @param run returns how long it took
 */
void toy_assert_quick(ek_engine *engine, int64_t (*run)(ek_engine *engine), int64_t limit_us);

#endif
