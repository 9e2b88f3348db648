/*
 * Event streams taken apart for tests, and answers of a wanted text.
 *
 * The real engine has no script, but with logit_bias and a strong repetition penalty a greedy
 * answer runs through given tokens, each once: so any text whose bytes differ from each other can
 * be had, in single-byte tokens.
 */
#ifndef EK_TESTS_GATEWAY_STREAM_H
#define EK_TESTS_GATEWAY_STREAM_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "engine/engine.h"
#include "http/client.h"

#define STREAM_CHOICES_MAX 16

typedef struct stream_choice {
    char *text; /* heap, NUL-terminated besides n_text */
    size_t n_text;
    char finish[24]; /* "": none came */
    int32_t n_chunks;
    int32_t n_logprobs;
    bool role; /* its first chunk had the role */
} stream_choice;

typedef struct stream {
    stream_choice choice[STREAM_CHOICES_MAX];
    int32_t n_choices;
    json_t *usage; /* owned; NULL: none came */
    json_t *error; /* owned; NULL: none came */
    int32_t n_pings;
    bool done; /* [DONE] came, and nothing after it */
} stream;

/**
 * Take a whole body apart and check what holds for every stream: one event per line, each frame
 * JSON, the same id, created and model in all, valid UTF-8, usage only in a chunk without choices,
 * nothing behind [DONE].
 */
stream stream_parse(const char *body, size_t n_body);
void stream_free(stream *s);

/** Id of the token that is this one byte; fails the test when the vocabulary has none. */
int32_t byte_token(const ek_engine *engine, unsigned char byte);

/**
 * Fields of a request ("logit_bias":{...},...) that make its greedy answer these bytes; they must
 * all differ.
 * @param max_tokens of the request; at least n to get all of the text
 */
void force_text(const ek_engine *engine, const char *text, size_t n, int32_t max_tokens,
                char *out_fields, size_t bytes);

#endif
