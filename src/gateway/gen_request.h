/*
 * A request to generate text, checked: what /v1/chat/completions and /v1/completions have in
 * common.
 *
 * Parsing is pure (bytes in, struct or fault out): it needs no engine, so it is fuzzed as it is.
 * What only the engine knows (vocabulary size, context length) is checked later, by generation.c.
 */
#ifndef EK_GATEWAY_GEN_REQUEST_H
#define EK_GATEWAY_GEN_REQUEST_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "engine/engine.h"
#include "gateway/fields.h"
#include "http/fault.h"
#include "sys/mem.h"

#define EK_GEN_STOP_IDS_MAX 16

typedef struct ek_gen_limits {
    bool strict; /* unknown fields are faults */
    int32_t json_depth_max;
    int32_t messages_max;
    int32_t choices_max; /* prompts times n */
} ek_gen_limits;

/** One prompt of a completion: text, or ids as they are. */
typedef struct ek_gen_prompt {
    ek_str text;
    const int32_t *ids; /* (n_ids); NULL: text */
    int32_t n_ids;
} ek_gen_prompt;

typedef struct ek_gen_request {
    json_t *root;         /* owned; strings below borrow from it */
    ek_sys_region region; /* owned; arrays below live in it */
    ek_arena arena;       /* over region */
    ek_gen_limits limits;
    bool chat;
    ek_str model;                      /* empty: none named */
    const ek_engine_message *messages; /* (n_messages) of a chat */
    int32_t n_messages;
    const ek_gen_prompt *prompts; /* (n_prompts) of a completion */
    int32_t n_prompts;
    int64_t n; /* choices per prompt */
    bool stream;
    bool include_usage;
    bool has_stream_options;
    bool echo;
    bool timings;
    bool ignore_eos;
    int64_t max_tokens;            /* -1: not given */
    int64_t max_completion_tokens; /* the newer name of the same, which wins */
    double temperature;
    int64_t top_k;
    double top_p;
    double min_p;
    double repetition_penalty;
    double frequency_penalty;
    double presence_penalty;
    bool has_seed;
    uint64_t seed;
    bool logprobs;
    int64_t top_logprobs;      /* -1: not given */
    const ek_logit_bias *bias; /* (n_bias) */
    int32_t n_bias;
    ek_str stops[EK_ENGINE_STOPS_MAX];
    int32_t n_stops;
    int32_t stop_ids[EK_GEN_STOP_IDS_MAX];
    int32_t n_stop_ids;
    int32_t n_ignored; /* fields we do not know */
} ek_gen_request;

/** Parse a chat request. @return false: the fault is set and nothing needs to be freed */
EK_MUST bool ek_gateway_chat_parse(ek_str body, const ek_gen_limits *limits,
                                   ek_gen_request *out_request, ek_fault *fault);
/** Parse a completion request. @return as above */
EK_MUST bool ek_gateway_completion_parse(ek_str body, const ek_gen_limits *limits,
                                         ek_gen_request *out_request, ek_fault *fault);
void ek_gateway_gen_fini(ek_gen_request *request);

/* ---- for the two parsers ---- */

/** Load the body, set defaults, read the common fields and those of `own`; frees all on failure. */
EK_MUST bool ek_gateway_gen_read(ek_str body, const ek_gen_limits *limits, bool chat,
                                 const ek_field_set *own, ek_gen_request *out_request,
                                 ek_fault *fault);

/** An array of token ids into the request's memory; param names it. */
EK_MUST bool ek_gateway_gen_ids(ek_gen_request *request, const json_t *array, const char *param,
                                const int32_t **out_ids, int32_t *out_n, ek_fault *fault);

#endif
