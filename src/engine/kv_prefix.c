/*
 * Reuse of prompt prefixes: the tree of published blocks, found by (parent block, tokens), and the
 * list of those that nobody references at the moment.
 */
#include <string.h>

#include <xxhash.h>

#include "base/assert.h"
#include "engine/kv.h"
#include "engine/kv_internal.h"

static int32_t *block_tokens(ek_kv *kv, int32_t id)
{
    return kv->tokens + (ptrdiff_t)id * kv->params.block_tokens;
}

/** Hash of a block's tokens and, through the parent's hash, of all tokens before them. */
static uint64_t hash_of(const ek_kv *kv, int32_t parent, const int32_t *tokens)
{
    uint64_t seed = parent == EK_KV_NONE ? 0 : kv->block[parent].hash;
    return XXH3_64bits_withSeed(tokens, (size_t)kv->params.block_tokens * sizeof *tokens, seed);
}

/**
 * The published block that continues `parent` with exactly these tokens. The hash only leads to
 * candidates; the parent's identity and every token decide.
 */
static int32_t find(ek_kv *kv, int32_t parent, const int32_t *tokens, uint64_t hash)
{
    size_t bytes = (size_t)kv->params.block_tokens * sizeof *tokens;
    int32_t id = kv->bucket[hash & kv->bucket_mask];
    for (; id != EK_KV_NONE; id = kv->block[id].hash_next) {
        const ek_kv_block *block = &kv->block[id];
        if (block->hash == hash && block->parent == parent &&
            memcmp(block_tokens(kv, id), tokens, bytes) == 0)
            return id;
    }
    return EK_KV_NONE;
}

static void insert(ek_kv *kv, int32_t id, int32_t parent, const int32_t *tokens, uint64_t hash)
{
    ek_kv_block *block = &kv->block[id];
    int32_t *first = &kv->bucket[hash & kv->bucket_mask];
    memcpy(block_tokens(kv, id), tokens, (size_t)kv->params.block_tokens * sizeof *tokens);
    block->hash = hash;
    block->parent = parent;
    block->published = true;
    block->hash_next = *first;
    *first = id;
    if (parent != EK_KV_NONE) kv->block[parent].n_children++;
}

static void remove_published(ek_kv *kv, int32_t id)
{
    ek_kv_block *block = &kv->block[id];
    ek_assert(block->n_children == 0);
    int32_t *link = &kv->bucket[block->hash & kv->bucket_mask];
    while (*link != id)
        link = &kv->block[*link].hash_next;
    *link = block->hash_next;
    block->published = false;
    if (block->parent != EK_KV_NONE) kv->block[block->parent].n_children--;
}

static void lru_unlink(ek_kv *kv, int32_t id)
{
    ek_kv_block *block = &kv->block[id];
    int32_t *from_older =
        block->lru_prev == EK_KV_NONE ? &kv->lru_oldest : &kv->block[block->lru_prev].lru_next;
    int32_t *from_younger =
        block->lru_next == EK_KV_NONE ? &kv->lru_youngest : &kv->block[block->lru_next].lru_prev;
    *from_older = block->lru_next;
    *from_younger = block->lru_prev;
    kv->n_cached--;
}

void ek_engine_kv_cache(ek_kv *kv, int32_t id, int64_t now_us)
{
    ek_kv_block *block = &kv->block[id];
    block->used_us = now_us;
    block->lru_prev = kv->lru_youngest;
    block->lru_next = EK_KV_NONE;
    if (kv->lru_youngest == EK_KV_NONE)
        kv->lru_oldest = id;
    else
        kv->block[kv->lru_youngest].lru_next = id;
    kv->lru_youngest = id;
    kv->n_cached++;
}

static int32_t take_oldest(ek_kv *kv)
{
    int32_t id = kv->lru_oldest;
    ek_assert(id != EK_KV_NONE);
    lru_unlink(kv, id);
    remove_published(kv, id);
    return id;
}

int32_t ek_engine_kv_evict(ek_kv *kv)
{
    kv->evicted_blocks++;
    return take_oldest(kv);
}

void ek_engine_kv_expire(ek_kv *kv, int64_t now_us)
{
    /* The list is in the order of used_us, so the first one that is young enough ends the work. */
    while (kv->lru_oldest != EK_KV_NONE &&
           now_us - kv->block[kv->lru_oldest].used_us > kv->params.prefix_ttl_us) {
        kv->free[kv->n_free++] = take_oldest(kv);
        kv->expired_blocks++;
    }
}

static void ref(ek_kv *kv, int32_t id)
{
    if (kv->block[id].n_refs++ == 0) lru_unlink(kv, id);
}

int32_t ek_engine_kv_match(ek_kv *kv, ek_kv_seq *seq, const int32_t *tokens, int32_t n_tokens,
                           int64_t now_us)
{
    ek_assert(seq->n_blocks == 0 && seq->n_tokens == 0 && seq->n_published == 0);
    if (!kv->params.prefix_cache) return 0;
    ek_engine_kv_expire(kv, now_us);

    int32_t bt = kv->params.block_tokens;
    int32_t n_blocks = (n_tokens - 1) / bt;
    if (n_blocks > seq->n_blocks_max) n_blocks = seq->n_blocks_max;
    int32_t parent = EK_KV_NONE;
    while (seq->n_blocks < n_blocks) {
        const int32_t *block = tokens + (ptrdiff_t)seq->n_blocks * bt;
        int32_t id = find(kv, parent, block, hash_of(kv, parent, block));
        if (id == EK_KV_NONE) break;
        ref(kv, id);
        seq->block[seq->n_blocks++] = id;
        parent = id;
    }
    seq->n_published = seq->n_blocks;
    seq->n_tokens = seq->n_blocks * bt;
    kv->lookup_tokens += (uint64_t)(n_tokens > 0 ? n_tokens : 0);
    kv->hit_tokens += (uint64_t)seq->n_tokens;
    return seq->n_tokens;
}

void ek_engine_kv_publish(ek_kv *kv, ek_kv_seq *seq, const int32_t *tokens, int32_t n_tokens,
                          int64_t now_us)
{
    ek_assert(n_tokens <= seq->n_tokens);
    if (!kv->params.prefix_cache) return;
    int32_t bt = kv->params.block_tokens;
    while (seq->n_published < n_tokens / bt) {
        int32_t i = seq->n_published++;
        int32_t parent = i == 0 ? EK_KV_NONE : seq->block[i - 1];
        const int32_t *block = tokens + (ptrdiff_t)i * bt;
        uint64_t hash = hash_of(kv, parent, block);
        int32_t twin = find(kv, parent, block, hash);
        if (twin == EK_KV_NONE) {
            insert(kv, seq->block[i], parent, block, hash);
        } else {
            ref(kv, twin);
            ek_engine_kv_unref(kv, seq->block[i], now_us);
            seq->block[i] = twin;
        }
    }
}
