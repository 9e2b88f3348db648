/*
 * Tokenizer: text <-> token ids, as the model file defines it.
 *
 * Two families: byte-level BPE ("gpt2" in the file, with a named pre-tokenizer: a regular
 * expression run by PCRE2) and SentencePiece-style BPE ("llama": scores, byte fallback). Encoding
 * any byte string and decoding the ids gives the same bytes back (SentencePiece adds one leading
 * space, as its models expect).
 *
 * The object is immutable after creation and may be used by any number of threads; what a call
 * needs to write comes from the scratch arena and from per-call match state. Vocabulary strings are
 * borrowed from the mapped file.
 */
#ifndef EK_MODEL_TOKENIZER_H
#define EK_MODEL_TOKENIZER_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/span.h"
#include "model/gguf.h"

typedef struct ek_tokenizer ek_tokenizer;

/**
 * The most that creating takes from `perm`: in proportion to what the file spends on its
 * vocabulary.
 */
size_t ek_model_tokenizer_perm_bytes_max(const ek_gguf *gguf);

/**
 * Build from a parsed file.
 * @param perm lives as long as the tokenizer
 * @return EK_OK; EK_EFORMAT; EK_EUNSUPPORTED (model or pre-tokenizer unknown: the text lists the
 *         known); EK_ENOMEM
 */
EK_MUST ek_status ek_model_tokenizer_create(const ek_gguf *gguf, ek_arena *perm,
                                            ek_tokenizer **out_tokenizer, ek_err *err);
/** Frees the compiled patterns; accepts NULL. */
void ek_model_tokenizer_destroy(ek_tokenizer *tokenizer);

/** Upper bound of ids for n bytes of text, and of scratch bytes for encoding them. */
int64_t ek_model_tokenizer_ids_max(const ek_tokenizer *tokenizer, size_t text_bytes);
size_t ek_model_tokenizer_scratch_bytes(const ek_tokenizer *tokenizer, size_t text_bytes);

/**
 * Encode text. Invalid UTF-8 is encoded byte by byte and survives the round trip. User-defined
 * tokens are found in any text, since their models never saw them split. SentencePiece puts its
 * leading space in front of the text and again of what follows a control token.
 * @param parse_special text that spells a control or unknown token becomes that token (the longest
 *         that fits, at each place); else it is plain text
 * @param out_ids  (max_ids), max_ids >= ek_model_tokenizer_ids_max for certain success
 * @return EK_OK; EK_ERANGE more than max_ids; EK_ENOMEM scratch too small
 */
EK_MUST ek_status ek_model_tokenizer_encode(const ek_tokenizer *tokenizer, ek_str text,
                                            bool parse_special, ek_arena scratch, int32_t *out_ids,
                                            int64_t max_ids, int64_t *out_n);

/**
 * Bytes of one token as they appear in text (never NUL-terminated; may be part of a UTF-8
 * character; empty for control and unknown tokens unless show_special).
 * @param id in [0, n_vocab)
 * @param out_piece receives the bytes; the count is returned
 */
#define EK_TOKENIZER_PIECE_MAX \
    1024 /* longest piece in bytes; create refuses longer vocabulary entries */
EK_MUST size_t ek_model_tokenizer_piece(const ek_tokenizer *tokenizer, int32_t id,
                                        bool show_special, char out_piece[EK_TOKENIZER_PIECE_MAX]);

/** SentencePiece: the very first piece of a text loses its leading space. */
bool ek_model_tokenizer_strips_first_space(const ek_tokenizer *tokenizer);

/** The stored name of a token ("<|im_end|>"), and the id of a name; -1: none. */
ek_str ek_model_tokenizer_name(const ek_tokenizer *tokenizer, int32_t id);
int32_t ek_model_tokenizer_find(const ek_tokenizer *tokenizer, ek_str name);

int32_t ek_model_tokenizer_vocab(const ek_tokenizer *tokenizer);
int32_t ek_model_tokenizer_bos(const ek_tokenizer *tokenizer); /* -1: none */
int32_t ek_model_tokenizer_eos(const ek_tokenizer *tokenizer); /* -1: none */
bool ek_model_tokenizer_adds_bos(const ek_tokenizer *tokenizer);
/**
 * True for every id that ends a generation: eos, eot and their like (<|im_end|>, <|endoftext|>,
 * </s>).
 */
bool ek_model_tokenizer_is_end(const ek_tokenizer *tokenizer, int32_t id);
/** True for control and unknown tokens: what is not text. */
bool ek_model_tokenizer_is_special(const ek_tokenizer *tokenizer, int32_t id);
/** "bpe/qwen2", "spm": for `evenkeel models`. */
const char *ek_model_tokenizer_kind(const ek_tokenizer *tokenizer);

#endif
