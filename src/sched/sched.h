/*
 * Who joins the next step: continuous batching with chunked prefill. Pure: state in, composition out.
 *
 * Decode goes first: every decoding sequence gets its one token in every step. What is left of the
 * step's budget is given to prompts, first come first served, in chunks, so that a long prompt never freezes the
 * others. Waiting requests are admitted while a place and KV blocks for their whole prompt are there. When
 * decoding sequences need blocks and none is left, the youngest running one gives way (it goes back to
 * the head of the queue and its prompt plus what it generated is computed again later).
 */
#ifndef EK_SCHED_SCHED_H
#define EK_SCHED_SCHED_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ek_sched_params {
    int32_t running_max;          /* sequences that hold a place */
    int32_t step_tokens_max;      /* decode + prefill tokens of one step */
    int32_t prefill_chunk_tokens; /* prompt tokens of one step over all sequences, >= 1 */
    int32_t kv_block_tokens;
} ek_sched_params;

/** A running sequence as the scheduler sees it. */
typedef struct ek_sched_running {
    int32_t n_cached; /* positions in the KV cache */
    int32_t n_tokens; /* tokens known: prompt and generated; n_cached < n_tokens */
    int32_t n_blocks; /* KV blocks it holds */
    bool paused;      /* its reader is slow: not this step */
    int64_t order;    /* admission order, ascending = older */
} ek_sched_running;

/** One entry of the composed step. */
typedef struct ek_sched_pick {
    int32_t idx;      /* into running */
    int32_t n_tokens; /* positions to compute */
} ek_sched_pick;

typedef struct ek_sched_step {
    ek_sched_pick *pick; /* (n_running) caller's memory */
    int32_t n_picks;
    int32_t *
        preempt; /* (n_running) caller's memory: indices to give up before the step, youngest first */
    int32_t n_preempts;
} ek_sched_step;

/**
 * Compose the next step.
 * @param running     (n_running)
 * @param free_blocks KV blocks that can be had now
 * A pick never needs more blocks than free_blocks plus what the preempted ones give back.
 */
void ek_sched_compose(const ek_sched_params *params, const ek_sched_running *running,
                      int32_t n_running, int32_t free_blocks, ek_sched_step *out_step);

/** True when a waiting request of n_prompt tokens may join now (n_hit of them are in the prefix cache). */
bool ek_sched_admits(const ek_sched_params *params, int32_t n_running, int32_t free_blocks,
                     int32_t n_prompt, int32_t n_hit);

#endif
