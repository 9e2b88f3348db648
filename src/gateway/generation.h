/*
 * A request's text being made: its choices in the engine, and what has come of them so far.
 *
 * Created by a worker (which turns text into ids and hands one engine request per choice over), fed
 * by the pump, read by the event loop. Everything is guarded by the call's lock. Only the pump
 * reads from engine requests and gives them back, so a tag that the engine reports always points to
 * a living choice.
 */
#ifndef EK_GATEWAY_GENERATION_H
#define EK_GATEWAY_GENERATION_H

#include <stdbool.h>
#include <stdint.h>

#include "engine/engine.h"
#include "gateway/gen_request.h"
#include "gateway/logprobs.h"
#include "http/buf.h"
#include "http/fault.h"

struct ek_call;

#define EK_GENERATION_ID_MAX 40

typedef struct ek_choice {
    struct ek_call *call; /* borrowed: the call outlives it */
    ek_request *request;  /* owned until the pump releases it; NULL before and after */
    int32_t index;
    int32_t prompt_idx;
    bool begun;   /* stream: its first chunk is out */
    bool stalled; /* the engine has more, the client was too slow */
    ek_finish finish;
    ek_usage usage;       /* as of the last read */
    ek_buf text;          /* what is not written yet (stream: nothing) */
    ek_logprobs logprobs; /* only when asked for */
} ek_choice;

typedef struct ek_generation {
    char id[EK_GENERATION_ID_MAX]; /* "chatcmpl-..." */
    int64_t created_s;
    bool chat;
    bool stream;
    bool include_usage;
    bool logprobs;
    bool timings;
    ek_str *echo; /* owned, (n_prompts) texts to begin with; NULL: none */
    int32_t n_prompts;
    int32_t n_choices;
    int32_t n_finished; /* choices whose end has been seen */
    bool over;          /* finished, failed or abandoned: the pump gives back what is left */
    bool released;      /* nothing of it is in the engine any more */
    bool failed;        /* a fault has been told to the client */
    ek_choice choice[]; /* (n_choices) */
} ek_generation;

/**
 * Make ids of the prompts and hand them to the engine. On success the call waits for the pump; on
 * failure its reply is set. Runs on a worker; takes the call's lock.
 */
void ek_gateway_generation_start(struct ek_call *call, const ek_gen_request *request);

/* All below: under the call's lock. */

/** Take news of a choice from the engine. Pump only. */
void ek_gateway_generation_pull_locked(ek_choice *choice);

/** Go on with choices that stalled, if there is room again. Pump only. */
void ek_gateway_generation_unstall_locked(struct ek_call *call);

/** Whether a choice has more than the client took so far. */
bool ek_gateway_generation_is_stalled_locked(const ek_generation *generation);

/** Once it is over, give what is left in the engine back. Pump only. */
void ek_gateway_generation_release_locked(struct ek_call *call);

/** A ping or the stream's beginning, when nothing was sent for so long. Pump only. */
void ek_gateway_generation_tick_locked(struct ek_call *call, int64_t now_us);

/**
 * End it with a fault: a reply while none has begun, an error frame after. The caller kicks the
 * pump.
 */
void ek_gateway_generation_fail_locked(struct ek_call *call, const ek_fault *fault);

/** Sum over choices, the prompt of each counted once. */
void ek_gateway_generation_usage(const ek_generation *generation, ek_usage *out_usage);

/** Frees memory; nothing may be left in the engine. Accepts NULL. */
void ek_gateway_generation_destroy(ek_generation *generation);

#endif
