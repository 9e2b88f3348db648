/*
 * The cache's own state, shared by kv.c (memory, references) and kv_prefix.c (reuse).
 *
 * Every block is in exactly one of three states: free (on the free stack), used (n_refs > 0),
 * cached (published, n_refs = 0, in the LRU list).
 *
 * A published block stands in a tree: its parent is the published block before it in the prompt,
 * and it is found by (parent, its tokens). Because a sequence that references a block references
 * all of its ancestors too, and gives them back deepest first, an ancestor is always younger in the
 * LRU list than its descendants. So taking blocks from the old end never cuts a chain in the
 * middle, and a parent id can be trusted for as long as the child exists.
 */
#ifndef EK_ENGINE_KV_INTERNAL_H
#define EK_ENGINE_KV_INTERNAL_H

#include <stddef.h>

#include "engine/kv.h"
#include "sys/mem.h"

#define EK_KV_NONE (-1) /* no block: ends of lists, and the parent of a prompt's first block */

typedef struct ek_kv_block {
    uint64_t hash;      /* of all tokens up to the block's end; valid while published */
    int64_t used_us;    /* when it was last given back */
    int32_t n_refs;     /* sequences that hold it */
    int32_t n_children; /* published blocks whose parent it is */
    int32_t parent;     /* block id or EK_KV_NONE */
    int32_t hash_next;  /* chain of its bucket */
    int32_t lru_prev;   /* older */
    int32_t lru_next;   /* younger */
    bool published;
} ek_kv_block;

struct ek_kv {
    ek_kv_params params;
    size_t block_bytes;
    size_t layer_bytes; /* of one block */
    size_t head_bytes;  /* of one layer of one block: keys and values */
    size_t value_at;    /* bytes from a head's keys to its values */

    uint8_t *data;      /* (n_blocks, block_bytes) in data_region */
    ek_kv_block *block; /* (n_blocks) */
    int32_t *tokens;    /* (n_blocks, block_tokens) what a published block holds */
    int32_t *free;      /* (n_free) stack */
    int32_t n_free;

    int32_t *bucket; /* (bucket_mask + 1) first block of each hash chain */
    uint32_t bucket_mask;
    int32_t lru_oldest;
    int32_t lru_youngest;
    int32_t n_cached;

    uint64_t lookup_tokens;
    uint64_t hit_tokens;
    uint64_t evicted_blocks;
    uint64_t expired_blocks;

    ek_sys_region data_region; /* owned */
    ek_sys_region meta_region; /* owned; this struct lies in it */
};

/**
 * Take the least recently used cached block out of the tree; there is one. It belongs to nobody
 * then.
 */
int32_t ek_engine_kv_evict(ek_kv *kv);

/** Put a published block without references among the cached ones. */
void ek_engine_kv_cache(ek_kv *kv, int32_t id, int64_t now_us);

/** Drop one reference to a block. */
void ek_engine_kv_unref(ek_kv *kv, int32_t id, int64_t now_us);

#endif
