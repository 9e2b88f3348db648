/*
 * A crowd of clients for soak tests: threads that send random requests to one engine, read
 * slowly, cancel and release at random moments. What each request asks for follows from its
 * client and number alone, so that an idle engine can be asked the same afterwards.
 */
#ifndef EK_TESTS_ENGINE_CROWD_H
#define EK_TESTS_ENGINE_CROWD_H

#include <stdint.h>

#include "engine/engine.h"

#define CROWD_AT_ONCE    16 /* requests that one client has going */
#define CROWD_PROMPT_MAX 120

typedef struct crowd_params {
    int32_t n_vocab; /* ids 0 and 1 are left out of prompts */
    int32_t n_clients;
    int32_t n_per_client;
    int32_t prompt_max; /* <= CROWD_PROMPT_MAX */
    int32_t answer_max;
} crowd_params;

typedef struct crowd crowd;

/** Let the crowd loose and wait until all of its requests came to an end. */
crowd *crowd_run(ek_engine *engine, const crowd_params *params);

/**
 * Ask an idle engine for every answer that was let finish; fails the test unless tokens,
 * logprobs, text and finish are the same. @return number of answers compared
 */
int32_t crowd_compare(crowd *c, ek_engine *alone);

/** Requests that were canceled or released before their end. */
int32_t crowd_given_up(const crowd *c);

void crowd_free(crowd *c);

#endif
