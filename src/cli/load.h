/*
 * Load on a completions server: streams of requests over libcurl, and when each piece of an answer
 * arrived.
 *
 * Prompts are token ids: drawn from a seed and the request's number, so that every run sends the
 * same and no two share a beginning, or whatever the caller says. Answers are greedy and of fixed
 * length (`ignore_eos`). In a closed loop n_streams requests are under way at any time; in an open
 * loop they are due at times known beforehand (by default those of a Poisson process), whatever the
 * server does, and latency counts from the time when a request was due: a server that falls behind
 * does not slow down its own exam. One thread.
 */
#ifndef EK_CLI_LOAD_H
#define EK_CLI_LOAD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"

#define EK_CLI_LOAD_STREAMS_MAX  1024
#define EK_CLI_LOAD_REQUESTS_MAX 1000000
#define EK_CLI_LOAD_TOKENS_MAX   65536     /* of a prompt, of an answer */
#define EK_CLI_LOAD_SAMPLES_MAX  100000000 /* gaps between pieces of text */

/** An answer, or why there is none. Times are those of ek_sys_now_us. */
typedef struct ek_cli_load_answer {
    int32_t request;     /* its number, from 0 */
    int64_t due_us;      /* when it should have been sent */
    int64_t first_us;    /* its first text; 0: none came */
    int64_t end_us;      /* it was complete, or had failed */
    int64_t n_output;    /* tokens */
    const char *problem; /* NULL: it went well; borrowed for the call */
} ek_cli_load_answer;

typedef struct ek_cli_load_params {
    const char *url;      /* of the server, borrowed */
    const char *model_id; /* sent as "model", borrowed */
    int32_t n_streams;    /* 1..EK_CLI_LOAD_STREAMS_MAX; open loop: most that run at once */
    int32_t n_requests;   /* 1..EK_CLI_LOAD_REQUESTS_MAX */
    int32_t n_prompt;     /* tokens of each, 1..EK_CLI_LOAD_TOKENS_MAX */
    int32_t n_new;        /* tokens of each answer, likewise */
    int32_t n_vocab;      /* ids are drawn from [0, n_vocab) */
    double rate;          /* open loop: requests per second; 0: closed loop */
    uint64_t seed;

    /* What follows may be left out. */
    const int64_t *due_us; /* (n_requests) ascending, since the start: an open loop; borrowed */
    /** Token ids (n_prompt) of a request; NULL: drawn. */
    const int32_t *(*prompt)(void *ctx, int32_t request);
    /** The "seed" of a request, 0..2^53; NULL: none is sent. */
    uint64_t (*request_seed)(void *ctx, int32_t request);
    /** Each answer as it ends. */
    void (*on_answer)(void *ctx, const ek_cli_load_answer *answer);
    /** Asked several times a second; true ends the run with EK_ECANCELED. */
    bool (*stop)(void *ctx);
    void *ctx;
} ek_cli_load_params;

/** Times of one kind, in milliseconds. */
typedef struct ek_cli_times {
    double *ms; /* owned */
    int64_t n, room;
} ek_cli_times;

typedef struct ek_cli_load_result {
    ek_cli_times ttft; /* due -> first text; one for each request that went well */
    ek_cli_times gap;  /* between two pieces of text of one answer */
    ek_cli_times e2e;  /* due -> end */
    int64_t n_ok, n_failed;
    int64_t n_short;         /* went well, but did not have n_new tokens */
    int64_t n_output_tokens; /* as the server counts them, or else pieces of text */
    int64_t n_prompt_tokens;
    int64_t n_pieces;  /* less than tokens when a character takes several */
    double seconds;    /* from the first request to the last answer */
    char problem[256]; /* of the first request that failed */
} ek_cli_load_result;

/**
 * What /v1/models says.
 * @param out_id    (bytes) the first model's id
 * @param out_vocab tokens that it knows, 0 when the server does not say
 * @return EK_OK; EK_EPEER, EK_EINVAL no such server; EK_EFORMAT the answer names no model;
 *         EK_ENOMEM
 */
EK_MUST ek_status ek_cli_load_model(const char *url, char *out_id, size_t bytes, int32_t *out_vocab,
                                    ek_err *err);

/**
 * Send all requests and wait for their answers. Requests that fail are counted, not returned.
 * @param out_result zero-initialised; ek_cli_load_free, also after a failure
 * @return EK_OK; EK_EINVAL the URL is none; EK_ENOMEM; EK_ECANCELED stop said so, and answers that
 *         were under way are given up; EK_EINTERNAL libcurl gave up
 */
EK_MUST ek_status ek_cli_load_run(const ek_cli_load_params *params, ek_cli_load_result *out_result,
                                  ek_err *err);
void ek_cli_load_free(ek_cli_load_result *result);

/** q = 0 shortest, 0.5 median, 1 longest; 0 when there are none. Sorts the times. */
double ek_cli_times_quantile(ek_cli_times *times, double q);

#endif
