/*
 * Byte-level BPE: text -> pieces -> bytes -> merges by rank. Private to the tokenizer.
 */
#ifndef EK_MODEL_TOKENIZER_BPE_H
#define EK_MODEL_TOKENIZER_BPE_H

#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/span.h"
#include "model/gguf.h"
#include "model/ids.h"
#include "model/pretokenize.h"
#include "model/str_index.h"
#include "model/vocab.h"

#define EK_BPE_MERGES_KEY "tokenizer.ggml.merges"

typedef struct ek_bpe_pair {
    int32_t left, right; /* key; left -1: free */
    uint32_t rank;       /* place in the file's list */
    int32_t id;          /* token of both together */
} ek_bpe_pair;

typedef struct ek_bpe {
    const ek_vocab *vocab; /* borrowed */
    ek_pretokenizer pre;   /* owned */
    ek_bpe_pair *pairs;    /* (mask + 1) open addressing */
    uint32_t mask;
    /*
     * Pieces that come out as one token: looked up first, which is what makes ordinary text fast.
     */
    ek_str_index words;
} ek_bpe;

/**
 * Read tokenizer.ggml.pre and merges.
 * @param vocab  borrowed as long as the object lives
 * @return EK_OK; EK_EFORMAT; EK_EUNSUPPORTED; EK_ENOMEM. On failure nothing is left to free.
 */
EK_MUST ek_status ek_model_bpe_init(ek_bpe *bpe, const ek_gguf *gguf, const ek_vocab *vocab,
                                    ek_arena *perm, ek_err *err);
/** Accepts a zeroed one. */
void ek_model_bpe_fini(ek_bpe *bpe);

/**
 * Append the ids of a text without special tokens.
 * @param cursor  opened on bpe->pre
 * @return EK_OK; EK_ERANGE ids are full; EK_ENOMEM
 */
EK_MUST ek_status ek_model_bpe_encode(const ek_bpe *bpe, ek_pretokenize_cursor *cursor, ek_str text,
                                      ek_arena scratch, ek_ids *ids);

/**
 * Append the ids of one piece.
 * @param io_steps  NULL, or gains the elementary steps of merging
 * @return EK_OK; EK_ERANGE ids are full; EK_ENOMEM
 */
EK_MUST ek_status ek_model_bpe_merge(const ek_bpe *bpe, ek_str piece, ek_arena scratch, ek_ids *ids,
                                     int64_t *io_steps);

#endif
