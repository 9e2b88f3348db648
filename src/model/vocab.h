/*
 * Vocabulary: what the file says about each token, and the bytes that each stands for in text.
 *
 * A token has a *name* (the string stored in the file: "<|im_end|>", "Ġthe", "▁the", "<0x0A>") and
 * a *piece* (the bytes it adds to a text: nothing, " the", " the", a newline). Names are borrowed
 * from the mapped file, pieces from there or from perm. Immutable after loading. Private to the
 * tokenizer.
 */
#ifndef EK_MODEL_VOCAB_H
#define EK_MODEL_VOCAB_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/span.h"
#include "model/gguf.h"
#include "model/str_index.h"

#define EK_VOCAB_TOKENS_KEY "tokenizer.ggml.tokens"

/** tokenizer.ggml.token_type; the numbers are the file's. */
typedef enum ek_token_kind {
    EK_TOKEN_NORMAL = 1,
    EK_TOKEN_UNKNOWN = 2, /* stands for what the vocabulary cannot spell */
    EK_TOKEN_CONTROL = 3, /* <s>, <|im_end|>: not text, unless the caller says so */
    EK_TOKEN_USER = 4,    /* text that is never split: found before anything else is done */
    EK_TOKEN_UNUSED = 5,
    EK_TOKEN_BYTE = 6, /* <0x0A> */
} ek_token_kind;

/** How a name spells its piece. */
typedef enum ek_spelling {
    EK_SPELLING_BYTES, /* one printable character per byte: byte-level BPE */
    EK_SPELLING_SPACE, /* text with U+2581 for each space: SentencePiece */
} ek_spelling;

typedef struct ek_vocab {
    int32_t n_tokens;
    ek_spelling spelling;
    const ek_str *names;   /* (n_tokens) borrowed from the file */
    ek_str *pieces;        /* (n_tokens) empty for control and unknown tokens */
    uint8_t *kinds;        /* (n_tokens) ek_token_kind */
    ek_str_index by_name;  /* every token that has a name */
    int32_t byte_ids[256]; /* the token of a single byte; -1: none */
} ek_vocab;

/**
 * Read tokenizer.ggml.tokens and token_type, and spell every piece.
 * @return EK_OK; EK_EFORMAT (the text names key and index); EK_ENOMEM
 */
EK_MUST ek_status ek_model_vocab_load(const ek_gguf *gguf, ek_spelling spelling, ek_arena *perm,
                                      ek_vocab *out_vocab, ek_err *err);

static inline ek_token_kind ek_model_vocab_kind(const ek_vocab *vocab, int32_t id)
{
    return (ek_token_kind)vocab->kinds[id];
}

/**
 * Spelled with the byte alphabet throughout, so that encoding may produce it (EK_SPELLING_BYTES
 * only).
 */
bool ek_model_vocab_is_byte_spelled(const ek_vocab *vocab, int32_t id);

/** Not text: control or unknown. */
static inline bool ek_model_vocab_is_special(const ek_vocab *vocab, int32_t id)
{
    return vocab->kinds[id] == EK_TOKEN_CONTROL || vocab->kinds[id] == EK_TOKEN_UNKNOWN;
}

/** A piece of ordinary text: what merging may build. */
static inline bool ek_model_vocab_is_text(const ek_vocab *vocab, int32_t id)
{
    return vocab->kinds[id] == EK_TOKEN_NORMAL || vocab->kinds[id] == EK_TOKEN_UNUSED;
}

#endif
