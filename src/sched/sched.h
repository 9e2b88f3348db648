/*
 * Who joins the next step: continuous batching with chunked prefill. Pure: state in, composition
 * out.
 *
 * Decode goes first: every decoding sequence gets its one token in every step. What is left of
 * the step's budget is given to prompts, first come first served, in chunks, so that a long
 * prompt never freezes the others. Waiting requests are admitted while a place and KV blocks for
 * their whole prompt are there. When decoding sequences need blocks and none is left, somebody
 * gives way: first the paused ones, which compute nothing anyway, then the youngest running one.
 * Whoever gave way goes back to the queue with its age kept, and its prompt plus what it
 * generated is computed again later. The oldest sequence that is not paused never gives way, so
 * work always goes on.
 */
#ifndef EK_SCHED_SCHED_H
#define EK_SCHED_SCHED_H

#include <stdbool.h>
#include <stdint.h>

typedef struct ek_sched_params {
    int32_t running_max;          /* sequences that hold a place */
    int32_t step_tokens_max;      /* decode + prefill tokens of one step, > running_max */
    int32_t prefill_chunk_tokens; /* prompt tokens of one step over all sequences, >= 1 */
    int32_t kv_block_tokens;
} ek_sched_params;

/** A running sequence as the scheduler sees it. */
typedef struct ek_sched_running {
    int32_t n_cached; /* positions in the KV cache */
    int32_t n_tokens; /* tokens known: prompt and generated; n_cached < n_tokens */
    int32_t n_blocks; /* KV blocks it holds */
    bool paused;      /* its reader is slow: not this step */
    int64_t order;    /* when it was first admitted, ascending = older; no two are equal */
} ek_sched_running;

/** One entry of the composed step. */
typedef struct ek_sched_pick {
    int32_t idx;      /* into running */
    int32_t n_tokens; /* positions to compute */
} ek_sched_pick;

typedef struct ek_sched_step {
    ek_sched_pick
        *pick; /* (n_running) caller's memory; decoding sequences first, then oldest first */
    int32_t n_picks;
    int32_t
        *preempt; /* (n_running) caller's memory: indices to give up before the step, in order */
    int32_t n_preempts;
} ek_sched_step;

/**
 * Compose the next step.
 * @param running     (n_running) in any order; fastest when ascending by order
 * @param free_blocks KV blocks that can be had now
 * A pick never needs more blocks than free_blocks plus what the preempted ones hold. Where
 * sequences share blocks, giving one up frees fewer than it holds: then give up, and compose again.
 * Cost O(n_running^2) at worst, O(n_running) when sorted and blocks suffice.
 */
void ek_sched_compose(const ek_sched_params *params, const ek_sched_running *running,
                      int32_t n_running, int32_t free_blocks, ek_sched_step *out_step);

/**
 * True when a waiting request may join now. Besides its own prompt's blocks one block per running
 * sequence has to be left, or the next few steps would throw it out again.
 * @param n_prompt    tokens to compute before its next one is sampled
 * @param n_hit       of them already in blocks that it shares; a multiple of the block size
 * @param free_blocks what can be had beyond the shared blocks
 */
bool ek_sched_admits(const ek_sched_params *params, int32_t n_running, int32_t free_blocks,
                     int32_t n_prompt, int32_t n_hit);

/**
 * Who gives its place and blocks to a waiting request that ek_sched_admits refused: the youngest
 * paused one. Parameters as there.
 * @return index into running; -1 when nobody is paused or all of the paused ones would not suffice
 */
int32_t ek_sched_yields(const ek_sched_params *params, const ek_sched_running *running,
                        int32_t n_running, int32_t free_blocks, int32_t n_prompt, int32_t n_hit);

/** Blocks that n_tokens positions take. */
int32_t ek_sched_blocks(const ek_sched_params *params, int32_t n_tokens);

#endif
