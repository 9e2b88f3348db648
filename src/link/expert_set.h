/*
 * A set of experts: which of each layer's experts somebody has. A bit per layer and expert, the
 * same in memory and on the wire. Pure; plain memory of the caller's.
 */
#ifndef EK_LINK_EXPERT_SET_H
#define EK_LINK_EXPERT_SET_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/status.h"

typedef struct ek_expert_set {
    int32_t n_layers;
    int32_t n_experts;
    uint64_t *bits; /* (n_layers, words); bit e % 64 of word e / 64 */
} ek_expert_set;

/** Words of one layer. */
static inline size_t ek_link_set_words(int32_t n_experts)
{
    return ((size_t)n_experts + 63) / 64;
}

/** Bytes of `bits`. */
static inline size_t ek_link_set_bytes(int32_t n_layers, int32_t n_experts)
{
    return (size_t)n_layers * ek_link_set_words(n_experts) * sizeof(uint64_t);
}

static inline bool ek_link_set_has(const ek_expert_set *set, int32_t layer, int32_t expert)
{
    size_t word = (size_t)layer * ek_link_set_words(set->n_experts) + (size_t)expert / 64;
    return set->bits[word] >> (expert % 64) & 1;
}

void ek_link_set_add(ek_expert_set *set, int32_t layer, int32_t expert);
void ek_link_set_remove(ek_expert_set *set, int32_t layer, int32_t expert);

/** How many there are: of one layer, and of all. */
int32_t ek_link_set_count_layer(const ek_expert_set *set, int32_t layer);
int64_t ek_link_set_count(const ek_expert_set *set);

/** Are all bits of experts that exist? What came over a wire is asked this first. */
bool ek_link_set_is_valid(const ek_expert_set *set);

/**
 * Add what a text says: "all", or groups "LAYERS:EXPERTS" separated by blanks or semicolons, each
 * side numbers and ranges separated by commas, or "*": "0-11:0-31,48 12:*".
 * @return EK_OK; EK_EINVAL, the text names the place and what is allowed; nothing was added
 */
EK_MUST ek_status ek_link_set_parse(const char *text, ek_expert_set *set, ek_err *err);

#endif
