/*
 * A tokenizer under test, with heap memory of exactly the sizes that it promises to get by with,
 * and the calls around it that every test makes.
 */
#ifndef EK_TESTS_MODEL_TOKENIZED_H
#define EK_TESTS_MODEL_TOKENIZED_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/span.h"
#include "model/gguf.h"
#include "model/tokenizer.h"
#include "model/vocab.h"
#include "support/vocab_file.h"

typedef struct tokenized {
    ek_span file;   /* owned */
    void *gguf_mem; /* owned */
    void *perm_mem; /* owned */
    ek_gguf *gguf;
    ek_tokenizer *tokenizer; /* NULL unless status is EK_OK */
    ek_status status;
    ek_err err;
} tokenized;

/** Takes the bytes (heap). The file must parse; status says whether it holds a tokenizer. */
tokenized tokenized_try(ek_span file);
/** The same, and it must hold one. */
tokenized tokenized_open(ek_span file);
/** A file on disk; it must hold one. */
tokenized tokenized_read(const char *path);
/** Takes the builder's content and frees it. */
tokenized tokenized_build(vocab_file *f);
void tokenized_close(tokenized *t);

/** Takes the builder. Creation fails with that status and a text that contains `text`. */
void expect_refused(vocab_file *f, ek_status status, const char *text);

/** Ids in heap memory that the caller frees. */
typedef struct id_list {
    int32_t *data;
    int64_t n;
} id_list;

id_list encode(const tokenized *t, ek_str text, bool parse_special);
/**
 * Text of the ids, first space stripped where the model has one, in heap memory; len gets its
 * length.
 */
char *decode(const tokenized *t, const int32_t *ids, int64_t n, bool show_special, size_t *out_len);

void assert_ids(const char *what, id_list got, const int32_t *wanted, int64_t n_wanted);
/** Encode plainly and decode: the same bytes. */
void assert_round_trip(const tokenized *t, ek_str text);

/** One token beyond those that every vocabulary of these tests has. */
typedef struct extra_token {
    const char *name;
    ek_token_kind kind;
    float score; /* SentencePiece only */
} extra_token;

/**
 * Byte-level BPE: ids 0..255 are the bytes, then the extra ones; merges as the file writes them.
 */
void build_bpe(vocab_file *f, const char *pre, const extra_token *extra, size_t n_extra,
               const char *const *merges, size_t n_merges);
/** SentencePiece: 0 <unk>, 1 <s>, 2 </s>, 3..258 the bytes, then the extra ones. */
void build_spm(vocab_file *f, const extra_token *extra, size_t n_extra);
#define BPE_EXTRA 256
#define SPM_BYTE  3
#define SPM_EXTRA 259

#endif
