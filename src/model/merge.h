/*
 * The inner loop of both tokenizers: adjacent symbols are joined, best pair first, until no pair
 * joins.
 * Source: Sennrich et al. 2016 (BPE); SentencePiece's BPE model (Kudo and Richardson 2018).
 *
 * What joins, and how good a join is, is the caller's function; the order is lowest rank first,
 * leftmost first among equals. Symbols live in a linked list over arrays; short inputs search it
 * for the lowest rank, long ones keep a binary heap, so that n symbols cost O(n log n) whatever the
 * text. Pure; one ek_merge belongs to one call. Private to the tokenizer.
 */
#ifndef EK_MODEL_MERGE_H
#define EK_MODEL_MERGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"

#define EK_MERGE_SMALL     32 /* up to here a linear search beats the heap */
#define EK_JOIN_NONE       UINT32_MAX
#define EK_MERGE_SYM_BYTES 40 /* scratch that one symbol takes */

typedef struct ek_join {
    uint32_t rank; /* EK_JOIN_NONE: these two do not join */
    int32_t id;    /* token of the joined symbol */
} ek_join;

typedef struct ek_merge {
    int32_t n;
    int32_t *beg;   /* (n + 1) offset in the text; a live symbol ends where its successor begins */
    int32_t *id;    /* (n) token; -1: none has this text */
    int32_t *next;  /* (n) n after the last; live symbols only */
    int32_t *prev;  /* (n) -1 before the first; of a swallowed symbol: its turn, counted from 0 */
    uint32_t *rank; /* (n) of the join with next */
    int32_t *join;  /* (n) its token */
    uint64_t *heap; /* (2n) rank << 32 | symbol, or NULL for short inputs */
    int32_t n_heap;
    int32_t n_joins;
    int64_t n_steps; /* elementary steps so far: what tests hold against n log n */
} ek_merge;

/** Arrays for short inputs, on the caller's stack. */
typedef struct ek_merge_small {
    int32_t beg[EK_MERGE_SMALL + 1], id[EK_MERGE_SMALL], next[EK_MERGE_SMALL], prev[EK_MERGE_SMALL];
    uint32_t rank[EK_MERGE_SMALL];
    int32_t join[EK_MERGE_SMALL];
} ek_merge_small;

/** Decides whether the symbols left and right = next[left] join. */
typedef ek_join (*ek_join_fn)(const void *ctx, const ek_merge *merge, int32_t left, int32_t right);

/** Scratch for n symbols, alignment included. */
static inline size_t ek_model_merge_bytes(size_t n)
{
    return n * EK_MERGE_SYM_BYTES + 64;
}

/**
 * Arrays for n >= 1 symbols: from `small` where they fit, else from scratch.
 * @return false: scratch is full
 */
EK_MUST bool ek_model_merge_init(ek_merge *merge, int32_t n, ek_merge_small *small,
                                 ek_arena *scratch);

/**
 * Join until nothing joins; beg (where the caller's function reads it) and id are filled before.
 */
void ek_model_merge_run(ek_merge *merge, ek_join_fn join, const void *ctx);

#endif
