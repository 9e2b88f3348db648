/*
 * Tokens that are found in a text before it is cut into pieces: the longest one that starts at a
 * place.
 *
 * User-defined tokens are always found, since their models never saw them split; control and
 * unknown tokens only where the caller allows it. Immutable. Private to the tokenizer.
 */
#ifndef EK_MODEL_SPECIALS_H
#define EK_MODEL_SPECIALS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/span.h"
#include "base/status.h"
#include "model/vocab.h"

typedef struct ek_special {
    ek_str text;
    int32_t id;
} ek_special;

typedef struct ek_specials {
    const ek_vocab *vocab;    /* borrowed */
    const ek_special *sorted; /* (n) by text, bytewise ascending */
    int32_t n;
    size_t len_min;  /* of the shortest */
    bool first[256]; /* bytes that one may start with: what lets ordinary text be skipped fast */
} ek_specials;

/** @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_model_specials_init(const ek_vocab *vocab, ek_arena *perm,
                                         ek_specials *out_specials);

/**
 * The longest token that starts at text[at].
 * @param user_end     user-defined tokens must end at or before here
 * @param control_end  control and unknown ones here; `at` or less: none of them
 * @param out_len      bytes it takes; written when there is one
 * @return its id, or -1. Cost O(length of the match * log n).
 */
int32_t ek_model_specials_match(const ek_specials *specials, ek_str text, size_t at,
                                size_t user_end, size_t control_end, size_t *out_len);

#endif
