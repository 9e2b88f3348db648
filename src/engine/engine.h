/*
 * The engine's header for its users (gateway, cli, bench): requests in, text out. (What keeps
 * experts even is watched through engine/watch.h.)
 *
 * An engine owns one opened model, its KV cache and two kinds of threads: the step thread, which
 * owns all state and runs step after step, and the pool that computes. Users talk to it from any
 * thread through bounded queues: submit hands a request over, wait tells which requests have
 * news, read takes the news out. A request whose reader is slow pauses by itself when its output
 * ring is full; it never holds up others. Cancellation, deadlines and the queue's time limit are
 * looked at between steps.
 *
 * Text never leaves in the middle of a UTF-8 character, and never contains a stop string or what
 * could still become one.
 */
#ifndef EK_ENGINE_ENGINE_H
#define EK_ENGINE_ENGINE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/span.h"
#include "engine/params.h"
#include "engine/sampler.h"
#include "telemetry/metrics.h"

#define EK_ENGINE_STOPS_MAX      16   /* stop strings of one request */
#define EK_ENGINE_STOP_BYTES_MAX 256  /* bytes of one of them */
#define EK_ENGINE_READ_TOKENS    32   /* token records of one read, at most */
#define EK_ENGINE_READ_BYTES     8192 /* text bytes of one read, at most */

typedef struct ek_engine ek_engine;
typedef struct ek_request ek_request; /* a handle; reference counted inside */

/* ---- life ---- */

/**
 * Open the model and start. Takes as long as reading the metadata takes; weights are mapped.
 * @param params       copied; ranges as in params.h
 * @param model_path   .gguf, or the first shard
 * @param chat_format  NULL: recognise
 * @param metrics      borrowed until destroy; the engine registers its series (docs/METRICS.md),
 *                     so one registry serves one engine. NULL: counted, but seen by nobody
 * @return EK_OK; EK_ENOMEM with the computed need in the text (weights + KV + buffers, 20 %
 *         margin); EK_EINVAL a parameter is out of range for this model; the model's errors
 */
EK_MUST ek_status ek_engine_create(const ek_engine_params *params, const char *model_path,
                                   const char *chat_format, ek_metrics *metrics,
                                   ek_engine **out_engine, ek_err *err);
/**
 * Cancels what still runs, joins the threads, frees everything. All handles must be released
 * before, and nobody may be inside a call. Accepts NULL.
 */
void ek_engine_destroy(ek_engine *engine);

typedef struct ek_engine_memory {
    int64_t weight_bytes; /* of the files, mapped */
    int64_t kv_bytes;
    int64_t buffer_bytes; /* activations, logits, counters */
    int64_t need_bytes;   /* all of it and 20 % */
} ek_engine_memory;

/**
 * What create would need with these parameters, for planning: nothing is served, and the need may
 * exceed what this machine has.
 * @return EK_OK; as create
 */
EK_MUST ek_status ek_engine_estimate(const ek_engine_params *params, const char *model_path,
                                     ek_engine_memory *out_memory, ek_err *err);

/** From now on submit answers EK_EDRAINING; what is inside goes on. */
void ek_engine_drain(ek_engine *engine);
/** Requests inside: waiting and running. */
int32_t ek_engine_inflight(const ek_engine *engine);
/** False when a step has been running for longer than the watchdog allows. */
bool ek_engine_healthy(const ek_engine *engine);

/* ---- what it serves ---- */

typedef struct ek_engine_info {
    const char *arch;
    const char *chat_format; /* NULL: none known */
    const char *kernels;     /* table in use */
    int32_t n_layers;
    int32_t n_experts;
    int32_t top_k;
    int32_t n_vocab;
    int32_t context_tokens; /* prompt + answer */
    int32_t running_max;
    int64_t params_total;
    int64_t params_active;
    int64_t weight_bytes;
    int64_t kv_bytes;
    const char *overlay_method; /* how the gates were calibrated; NULL: they are the model's own */
    const char *overlay_sha256; /* of the overlay's file */
    int64_t kv_tokens;          /* positions the KV cache has: no request can use more */
} ek_engine_info;

void ek_engine_info_get(const ek_engine *engine, ek_engine_info *out_info);

typedef struct ek_engine_load {
    int32_t n_running, n_waiting;
    int32_t kv_blocks, kv_blocks_used, kv_blocks_cached;
    uint64_t prompt_tokens, cached_tokens, completion_tokens; /* since start */
} ek_engine_load;
void ek_engine_load_get(const ek_engine *engine, ek_engine_load *out_load);

/* ---- text <-> ids (any thread) ---- */

/** Ids of text, in heap memory that the caller frees with ek_sys_free. @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_engine_tokenize(const ek_engine *engine, ek_str text, bool parse_special,
                                     bool add_bos, int32_t **out_ids, int64_t *out_n, ek_err *err);
/**
 * Text of ids in heap memory, NUL-terminated besides its length; freed with ek_sys_free. Bytes as
 * the tokens have them: not checked to be UTF-8.
 * @return EK_OK; EK_EINVAL an id outside the vocabulary; EK_ENOMEM
 */
EK_MUST ek_status ek_engine_detokenize(const ek_engine *engine, const int32_t *ids, int64_t n_ids,
                                       bool show_special, ek_str *out_text, ek_err *err);

typedef struct ek_engine_message {
    ek_str role;
    ek_str content;
} ek_engine_message;

/**
 * Ids of a conversation up to where the answer begins, in heap memory as from tokenize.
 * @return EK_OK; EK_EINVAL (role; err names messages[i]); EK_EUNSUPPORTED (no chat format);
 *          EK_ENOMEM
 */
EK_MUST ek_status ek_engine_chat_ids(const ek_engine *engine, const ek_engine_message *messages,
                                     int32_t n_messages, int32_t **out_ids, int64_t *out_n,
                                     ek_err *err);

/**
 * Bytes of one token for logprobs: special tokens spelled out.
 * @return byte count, at most 1,024
 */
size_t ek_engine_piece(const ek_engine *engine, int32_t id, char out_piece[1024]);

/* ---- requests ---- */

typedef struct ek_request_params {
    const int32_t *prompt; /* (n_prompt) copied by submit */
    int32_t n_prompt;      /* >= 1 */
    int32_t max_tokens;    /* >= 1; n_prompt + max_tokens <= context */
    ek_sampling sampling;  /* bias copied */
    const ek_str *stops;   /* (n_stops) copied */
    int32_t n_stops;
    const int32_t *stop_ids; /* (n_stop_ids <= 16) besides the model's own end tokens; copied */
    int32_t n_stop_ids;
    bool ignore_eos; /* go on past the model's end tokens (benchmarks) */
    bool fresh_text; /* the answer begins a text (chat): SentencePiece's first space is dropped */
    int64_t deadline_us; /* monotonic; 0: none. Passed: finish = EK_FINISH_TIMEOUT */
    void *tag;           /* the user's, given back by wait */
} ek_request_params;

typedef enum ek_finish {
    EK_FINISH_NONE,          /* still going */
    EK_FINISH_STOP,          /* end token, stop id or stop string */
    EK_FINISH_LENGTH,        /* max_tokens */
    EK_FINISH_CANCELED,      /* ek_engine_cancel, or shutdown */
    EK_FINISH_QUEUE_TIMEOUT, /* waited longer than queue_timeout_us; nothing was computed */
    EK_FINISH_TIMEOUT,       /* its own deadline passed */
    EK_FINISH_ERROR,         /* the engine failed on it */
    EK_FINISH_UNAVAILABLE,   /* experts that it needs are out of reach */
} ek_finish;

/**
 * Hand a request over.
 * @param out_request the user's handle: read until finish, then ek_engine_release. News of it may
 *         reach a thread that waits before this call has returned
 * @return EK_OK; EK_EFULL running and waiting places are taken; EK_EDRAINING; EK_ECONTEXT too
 *         long (err has both numbers); EK_EINVAL (err names the parameter); EK_ENOMEM it could
 *         never fit into the KV budget, or no memory
 */
EK_MUST ek_status ek_engine_submit(ek_engine *engine, const ek_request_params *params,
                                   ek_request **out_request, ek_err *err);

/**
 * Stop it at the next step border; its reader still gets a finish. Any thread, any number of
 * times.
 */
void ek_engine_cancel(ek_engine *engine, ek_request *request);

/** Give the handle back (cancels what is not finished). The handle must not be used again. */
void ek_engine_release(ek_engine *engine, ek_request *request);

/**
 * Tags of requests that have news since they were last read; each appears at most once until it is
 * read, and none after its release. One thread waits.
 * @param timeout_us < 0: for ever
 * @return number of tags, 0 on timeout or wake
 */
int32_t ek_engine_wait(ek_engine *engine, void **out_tags, int32_t max, int64_t timeout_us);
/** Make a waiting thread return. */
void ek_engine_wake(ek_engine *engine);

typedef struct ek_output_token {
    int32_t id;
    /* Bytes of this read's text that are out after it; what is held back comes with a later one. */
    int32_t text_end;
    float logprob;
    int32_t n_top;
    ek_token_logprob top[EK_SAMPLER_TOP_LOGPROBS_MAX];
} ek_output_token;

typedef struct ek_usage {
    int32_t prompt_tokens;
    int32_t cached_tokens; /* of the prompt, taken from the prefix cache */
    /* Sampled so far; the token that ended it (end token, stop id) is not counted. */
    int32_t completion_tokens;
    bool degraded;    /* part of it was computed without an expert, since nobody had it */
    int64_t queue_us; /* submit to first step */
    int64_t ttft_us;  /* submit to first token; 0 before it */
    int64_t total_us; /* submit to finish (or to now) */
} ek_usage;

/** What a read takes out of a request: memory is the caller's. */
typedef struct ek_output {
    char text[EK_ENGINE_READ_BYTES];
    int32_t n_text;
    ek_output_token token[EK_ENGINE_READ_TOKENS];
    int32_t n_tokens;
    bool more;        /* there is more to read right now */
    ek_finish finish; /* set with the read that empties a finished request */
    ek_usage usage;
} ek_output;

/** Take out what is there; never waits. One reader per request. */
void ek_engine_read(ek_engine *engine, ek_request *request, ek_output *out_output);

/* ---- looking inside (the `logits` command, tests) ---- */

/**
 * Logits (n_vocab) of the last prompt position, computed as any request's are; waits for them.
 * @return EK_OK; as submit; EK_ECANCELED the engine was destroyed meanwhile; EK_ETIMEOUT waited
 *         too long for a place; EK_EPEER the step failed
 */
EK_MUST ek_status ek_engine_logits(ek_engine *engine, const int32_t *prompt, int32_t n_prompt,
                                   float *out_logits, ek_err *err);

#endif
