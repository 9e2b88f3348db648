/*
 * Texts as a model reads them to be studied: token ids, cut into chunks that are computed one by
 * one.
 */
#ifndef EK_CLI_CORPUS_H
#define EK_CLI_CORPUS_H

#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "cli/tokens.h"
#include "model/tokenizer.h"

#define EK_CORPUS_FILES_MAX 64
#define EK_CORPUS_CHUNK_MIN 16 /* tokens; what is left over of a file is dropped below that */

typedef struct ek_cli_chunk {
    const int32_t *tokens; /* borrowed from the corpus */
    int32_t n_tokens;
    int64_t first; /* number of its first token in the corpus */
} ek_cli_chunk;

typedef struct ek_cli_corpus {
    ek_cli_tokens file[EK_CORPUS_FILES_MAX]; /* owned */
    int32_t n_files;
    ek_cli_chunk *chunks; /* (n_chunks) owned */
    int32_t n_chunks;
    int64_t n_tokens; /* of all chunks */
} ek_cli_corpus;

/**
 * Read and encode files. Text that spells a special token becomes that token.
 * @param chunk_tokens longest chunk, >= EK_CORPUS_CHUNK_MIN
 * @return EK_OK; EK_ERANGE no chunk came of them; EK_ENOMEM; what reading a file gave; the text
 *         names the file
 */
EK_MUST ek_status ek_cli_corpus_open(const ek_tokenizer *tokenizer, const char *const *paths,
                                     int32_t n_paths, int32_t chunk_tokens,
                                     ek_cli_corpus *out_corpus, ek_err *err);
/** Accepts a zeroed corpus. */
void ek_cli_corpus_close(ek_cli_corpus *corpus);

#endif
