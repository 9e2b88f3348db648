/*
 * Hash index from strings to their places in an array: open addressing, linear probing, never more
 * than half full. The strings stay where they are; the index holds places and a piece of each hash.
 * Filled once by its owner, then read by any number of threads.
 */
#ifndef EK_MODEL_STR_INDEX_H
#define EK_MODEL_STR_INDEX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/span.h"

typedef struct ek_str_slot {
    uint32_t tag;   /* upper hash bits: most misses end here, without touching the string */
    uint32_t entry; /* place + 1; 0: free */
} ek_str_slot;

typedef struct ek_str_index {
    const ek_str *keys; /* borrowed, as long as the index lives */
    ek_str_slot *slots; /* (mask + 1) */
    uint32_t mask;
    size_t len_max; /* of all keys that were put in */
} ek_str_index;

/** Room for n_max keys out of `keys`. False: the arena is full. */
EK_MUST bool ek_model_str_index_init(ek_str_index *index, const ek_str *keys, int32_t n_max,
                                     ek_arena *perm);

/**
 * Enter keys[place].
 * @return the place of an equal key that was there before, and nothing changes; else -1
 */
int32_t ek_model_str_index_put(ek_str_index *index, int32_t place);

/** Place of a key; -1: not there. */
int32_t ek_model_str_index_find(const ek_str_index *index, ek_str key);

#endif
