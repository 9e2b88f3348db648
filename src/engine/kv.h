/*
 * Paged KV cache: f16 keys and values in blocks of kv_block_tokens positions, plus reuse of prompt
 * prefixes.
 *
 * A block holds, for every layer and KV head, the keys and then the values of its positions, so
 * that attention reads each head's run of a block as one piece. A sequence owns a list of block
 * ids. Full blocks of a prompt are published under a hash of *all* tokens up to their end, and
 * verified token by token on a hit, so a collision never mixes conversations; a later prompt with
 * the same beginning shares them by reference count. Blocks nobody references stay until they are
 * needed (least recently used first) or older than their time limit. Memory is reserved at creation
 * and touched when first used. One owner: the engine thread.
 */
#ifndef EK_ENGINE_KV_H
#define EK_ENGINE_KV_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/status.h"

typedef struct ek_kv ek_kv;

typedef struct ek_kv_params {
    int32_t n_layers;
    int32_t n_kv_heads;
    int32_t head_dim_k;
    int32_t head_dim_v;
    int32_t block_tokens;
    int32_t n_blocks; /* budget */
    bool prefix_cache;
    int64_t prefix_ttl_us;
} ek_kv_params;

/** A sequence's place in the cache; zero-initialised by its owner, freed by ek_engine_kv_free. */
typedef struct ek_kv_seq {
    int32_t *block; /* (n_blocks_max) ids; memory is the owner's (request arena) */
    int32_t n_blocks_max;
    int32_t n_blocks;
    int32_t n_tokens;    /* positions written so far */
    int32_t n_published; /* leading blocks already offered for reuse */
} ek_kv_seq;

typedef struct ek_kv_stats {
    int32_t n_blocks;
    int32_t n_used;          /* referenced by a sequence */
    int32_t n_cached;        /* unreferenced, kept for reuse */
    uint64_t lookup_tokens;  /* prompt tokens looked up */
    uint64_t hit_tokens;     /* of them found */
    uint64_t evicted_blocks; /* taken for other uses */
    uint64_t expired_blocks; /* dropped by age */
} ek_kv_stats;

/** Bytes of one block, and so of a budget: n_blocks = budget / this. */
int64_t ek_engine_kv_block_bytes(const ek_kv_params *params);

/** @return EK_OK; EK_ENOMEM; EK_EINVAL a parameter is out of range */
EK_MUST ek_status ek_engine_kv_create(const ek_kv_params *params, ek_kv **out_kv, ek_err *err);
/** Accepts NULL. Sequences need not be freed before. */
void ek_engine_kv_destroy(ek_kv *kv);

/**
 * Start a sequence: share the longest cached prefix of the prompt. At least the last prompt token
 * is left to compute, since its logits are needed.
 * @param seq empty
 * @return number of tokens that are already in the cache (a multiple of block_tokens); sets
 *   seq->n_tokens
 */
int32_t ek_engine_kv_match(ek_kv *kv, ek_kv_seq *seq, const int32_t *tokens, int32_t n_tokens,
                           int64_t now_us);

/**
 * Make room for positions up to n_tokens (total).
 * @return EK_OK; EK_ENOMEM no blocks left, or seq's own list is too short: nothing was taken
 */
EK_MUST ek_status ek_engine_kv_reserve(ek_kv *kv, ek_kv_seq *seq, int32_t n_tokens);

/** Blocks that could be had right now (free or evictable). */
int32_t ek_engine_kv_available(const ek_kv *kv);

/**
 * Publish the full blocks among the first n_tokens of tokens, which are in the cache by now. Where
 * the same tokens were published by another sequence meanwhile, seq takes those blocks and gives
 * its own back: their contents are equal, since a token's keys and values do not depend on the
 * batch.
 * @param tokens (n_tokens) of the sequence from its start, n_tokens <= seq->n_tokens
 */
void ek_engine_kv_publish(ek_kv *kv, ek_kv_seq *seq, const int32_t *tokens, int32_t n_tokens,
                          int64_t now_us);

/** Give a sequence's blocks back; published ones stay for reuse. Leaves seq empty. */
void ek_engine_kv_free(ek_kv *kv, ek_kv_seq *seq, int64_t now_us);

/** Drop cached blocks that nobody used for longer than the time limit. */
void ek_engine_kv_expire(ek_kv *kv, int64_t now_us);

void ek_engine_kv_stats_get(const ek_kv *kv, ek_kv_stats *out_stats);

/** What it was created with. */
const ek_kv_params *ek_engine_kv_params(const ek_kv *kv);

/**
 * Keys (block_tokens, head_dim_k) / values (block_tokens, head_dim_v), f16, of one layer and head
 * in a block.
 */
uint16_t *ek_engine_kv_keys(ek_kv *kv, int32_t block, int32_t layer, int32_t kv_head);
uint16_t *ek_engine_kv_values(ek_kv *kv, int32_t block, int32_t layer, int32_t kv_head);

#endif
