/*
 * What the parts of the tokenizer share, and the one entry that chat formats need beyond
 * tokenizer.h: a text in which only some stretches may hold special tokens. Private to the room.
 */
#ifndef EK_MODEL_TOKENIZER_INTERNAL_H
#define EK_MODEL_TOKENIZER_INTERNAL_H

#include <stdbool.h>
#include <stdint.h>

#include "model/specials.h"
#include "model/tokenizer.h"
#include "model/tokenizer_bpe.h"
#include "model/tokenizer_spm.h"
#include "model/vocab.h"

#define EK_TOKENIZER_TEXT_MAX (1 << 30) /* bytes of one text: places in it are int32_t */

struct ek_tokenizer {
    ek_vocab vocab;
    ek_specials specials;
    bool is_spm;
    ek_bpe bpe; /* zero when is_spm */
    ek_spm spm; /* zero when not */
    int32_t bos_id, eos_id;
    bool adds_bos;
    bool *is_end; /* (n_tokens) */
    char kind[64];
};

/** A stretch of a text that its author may trust: text[beg, end). */
typedef struct ek_token_mark {
    size_t beg, end;
    int32_t id; /* >= 0: the stretch is exactly this token; -1: it may hold special tokens */
} ek_token_mark;

/**
 * Encode a text. A control token is recognised only where it lies within one mark, a user-defined
 * one anywhere, except that it does not reach from outside into a mark.
 * @param marks  (n_marks) ascending, not overlapping
 * @return EK_OK; EK_ERANGE more than max_ids, or a text over EK_TOKENIZER_TEXT_MAX; EK_ENOMEM
 */
EK_MUST ek_status ek_model_tokenizer_encode_marked(const ek_tokenizer *tokenizer, ek_str text,
                                                   const ek_token_mark *marks, int64_t n_marks,
                                                   ek_arena scratch, int32_t *out_ids,
                                                   int64_t max_ids, int64_t *out_n);

#endif
