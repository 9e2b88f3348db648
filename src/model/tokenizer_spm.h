/*
 * SentencePiece-style BPE: characters are joined while the vocabulary has what they spell together,
 * best score first; what it cannot spell falls back to bytes. Private to the tokenizer.
 *
 * Pieces are compared with a plain space for U+2581, so that text is used as it is. A U+2581 that
 * somebody typed is therefore not taken for a space (SentencePiece would): it goes through its
 * bytes and comes back.
 */
#ifndef EK_MODEL_TOKENIZER_SPM_H
#define EK_MODEL_TOKENIZER_SPM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/span.h"
#include "model/gguf.h"
#include "model/ids.h"
#include "model/str_index.h"
#include "model/vocab.h"

typedef struct ek_spm {
    const ek_vocab *vocab; /* borrowed */
    ek_str_index by_piece; /* tokens of text */
    uint32_t *ranks;       /* (n_tokens) higher scores have lower ranks */
    bool *is_word;         /* (n_tokens) its own text comes out as this token */
    int32_t unknown_id;    /* -1: none */
    bool prefix_space;     /* a text gets a space in front */
    bool whole_words;      /* no piece goes on across the start of a word */
} ek_spm;

/**
 * Read tokenizer.ggml.scores, add_space_prefix and unknown_token_id.
 * @param vocab  borrowed as long as the object lives
 * @return EK_OK; EK_EFORMAT; EK_ENOMEM
 */
EK_MUST ek_status ek_model_spm_init(ek_spm *spm, const ek_gguf *gguf, const ek_vocab *vocab,
                                    ek_arena *perm, ek_err *err);

/**
 * Append the ids of a text without special tokens, any bytes.
 * @param with_prefix  the text begins here: put the space in front, if this vocabulary has one
 * @return EK_OK; EK_ERANGE ids are full; EK_ENOMEM
 */
EK_MUST ek_status ek_model_spm_encode(const ek_spm *spm, ek_str text, bool with_prefix,
                                      ek_arena scratch, ek_ids *ids);

/**
 * Append the ids of one word, or any text, by joining.
 * @param io_steps  NULL, or gains the elementary steps of joining
 * @return EK_OK; EK_ERANGE ids are full; EK_ENOMEM
 */
EK_MUST ek_status ek_model_spm_merge(const ek_spm *spm, ek_str word, ek_arena scratch, ek_ids *ids,
                                     int64_t *io_steps);

#endif
