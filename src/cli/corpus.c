#include "cli/corpus.h"

#include "sys/file.h"
#include "sys/mem.h"

static ek_status read_file(const ek_tokenizer *tokenizer, const char *path, ek_cli_tokens *out,
                           ek_err *err)
{
    ek_str text;
    ek_status status = ek_sys_file_read(path, EK_CLI_TEXT_MAX, &text, err);
    if (status < 0) return status;
    status = ek_cli_tokens_encode(tokenizer, text, true, true, out, err);
    if (status < 0) ek_err_prefix(err, "%s", path);
    ek_sys_free((void *)text.data);
    return status;
}

static int64_t chunks_of(int64_t n_tokens, int32_t chunk_tokens)
{
    return n_tokens / chunk_tokens + (n_tokens % chunk_tokens >= EK_CORPUS_CHUNK_MIN);
}

static void cut(ek_cli_corpus *corpus, const ek_cli_tokens *file, int32_t chunk_tokens)
{
    for (int64_t at = 0; file->n - at >= EK_CORPUS_CHUNK_MIN; at += chunk_tokens) {
        const int64_t left = file->n - at;
        const int32_t n = (int32_t)(left < chunk_tokens ? left : chunk_tokens);
        corpus->chunks[corpus->n_chunks++] = (ek_cli_chunk){file->id + at, n, corpus->n_tokens};
        corpus->n_tokens += n;
    }
}

ek_status ek_cli_corpus_open(const ek_tokenizer *tokenizer, const char *const *paths,
                             int32_t n_paths, int32_t chunk_tokens, ek_cli_corpus *out_corpus,
                             ek_err *err)
{
    ek_cli_corpus corpus = {0};
    ek_status status = EK_OK;
    int64_t n_chunks = 0;
    for (int32_t i = 0; i < n_paths && status >= 0; i++) {
        status = read_file(tokenizer, paths[i], &corpus.file[i], err);
        if (status < 0) break;
        corpus.n_files = i + 1;
        n_chunks += chunks_of(corpus.file[i].n, chunk_tokens);
    }
    if (status >= 0 && (n_chunks == 0 || n_chunks > INT32_MAX))
        status = ek_err_set(err, EK_ERANGE, "%s: %s text for a chunk of %d tokens", paths[0],
                            n_chunks == 0 ? "not enough" : "too much", EK_CORPUS_CHUNK_MIN);
    if (status >= 0) {
        corpus.chunks = ek_sys_calloc((size_t)n_chunks, sizeof *corpus.chunks);
        if (!corpus.chunks)
            status = ek_err_set(err, EK_ENOMEM, "no memory for %lld chunks", (long long)n_chunks);
    }
    if (status < 0) {
        ek_cli_corpus_close(&corpus);
        return status;
    }
    for (int32_t i = 0; i < corpus.n_files; i++)
        cut(&corpus, &corpus.file[i], chunk_tokens);
    *out_corpus = corpus;
    return EK_OK;
}

void ek_cli_corpus_close(ek_cli_corpus *corpus)
{
    for (int32_t i = 0; i < corpus->n_files; i++)
        ek_cli_tokens_free(&corpus->file[i]);
    ek_sys_free(corpus->chunks);
    *corpus = (ek_cli_corpus){0};
}
