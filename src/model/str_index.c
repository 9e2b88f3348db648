#include "model/str_index.h"

#include <string.h>

/*
 * Eight bytes per step and a multiplication between them (in the manner of wyhash). Keys are short,
 * and a file that is built to collide only slows its own loading.
 */
static uint64_t hash_str(ek_str s)
{
    const uint64_t k = 0x9e3779b97f4a7c15u;
    uint64_t h = (uint64_t)s.len * k;
    size_t i = 0;
    for (; i + 8 <= s.len; i += 8) {
        uint64_t word;
        memcpy(&word, s.data + i, 8);
        h = (h ^ word) * k;
        h ^= h >> 32;
    }
    uint64_t tail = 0;
    if (i < s.len) memcpy(&tail, s.data + i, s.len - i);
    h = (h ^ tail) * k;
    return h ^ h >> 29;
}

bool ek_model_str_index_init(ek_str_index *index, const ek_str *keys, int32_t n_max, ek_arena *perm)
{
    uint32_t n_slots = 16;
    while (n_slots / 2 < (uint32_t)n_max)
        n_slots *= 2;
    ek_str_slot *slots = ek_try_new(perm, ek_str_slot, n_slots);
    if (!slots) return false;
    *index = (ek_str_index){.keys = keys, .slots = slots, .mask = n_slots - 1};
    return true;
}

/* The slot that holds key, or the free one where it would go. */
static ek_str_slot *slot_of(const ek_str_index *index, ek_str key, uint32_t *out_tag)
{
    uint64_t hash = hash_str(key);
    uint32_t tag = (uint32_t)(hash >> 32);
    *out_tag = tag;
    for (uint32_t i = (uint32_t)hash & index->mask;; i = (i + 1) & index->mask) {
        ek_str_slot *slot = &index->slots[i];
        if (slot->entry == 0) return slot;
        if (slot->tag == tag && ek_str_eq(index->keys[slot->entry - 1], key)) return slot;
    }
}

int32_t ek_model_str_index_put(ek_str_index *index, int32_t place)
{
    ek_str key = index->keys[place];
    uint32_t tag;
    ek_str_slot *slot = slot_of(index, key, &tag);
    if (slot->entry != 0) return (int32_t)(slot->entry - 1);
    *slot = (ek_str_slot){.tag = tag, .entry = (uint32_t)place + 1};
    if (key.len > index->len_max) index->len_max = key.len;
    return -1;
}

int32_t ek_model_str_index_find(const ek_str_index *index, ek_str key)
{
    if (key.len > index->len_max) return -1;
    uint32_t tag;
    return (int32_t)slot_of(index, key, &tag)->entry - 1;
}
