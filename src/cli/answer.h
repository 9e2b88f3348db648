/*
 * One answer of a chat: sends the conversation to /v1/chat/completions and prints the text as it
 * streams in.
 */
#ifndef EK_CLI_ANSWER_H
#define EK_CLI_ANSWER_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "cli/http.h"
#include "cli/text.h"

typedef struct ek_cli_question {
    const char *url;    /* server's base URL */
    const char *model;  /* NULL: the one that the server has */
    json_t *messages;   /* borrowed; an array of {role, content} */
    int64_t max_tokens; /* 0: the server's default */
    double temperature; /* < 0: the server's default */
    int64_t seed;       /* < 0: none */
} ek_cli_question;

typedef struct ek_cli_answer {
    ek_cli_text text; /* owned: what was printed */
    char finish[32];  /* finish_reason; "" when it was cut off */
    bool canceled;    /* by `stop` */
    int64_t prompt_tokens, cached_tokens, completion_tokens;
    int64_t first_us; /* from sending to the first text; 0: none came */
    int64_t total_us;
} ek_cli_answer;

/**
 * Ask, and print the answer to standard output while it comes.
 * @param stop asked several times a second; true cancels the answer
 * @return EK_OK, also for a canceled answer; EK_EINVAL the server refused the question, EK_EPEER it
 *         failed or broke off, both with its words in the text; as ek_cli_http_run
 */
EK_MUST ek_status ek_cli_answer_stream(ek_cli_http *http, const ek_cli_question *question,
                                       bool (*stop)(void *ctx), void *ctx,
                                       ek_cli_answer *out_answer, ek_err *err);

/** Tokens per second after the first one; 0 while that means nothing. */
double ek_cli_answer_rate(const ek_cli_answer *answer);

#endif
