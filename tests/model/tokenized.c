#include "tokenized.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/utf8.h"
#include "support/fixtures.h"

tokenized tokenized_try(ek_span file)
{
    tokenized t = {.file = file};
    ek_arena gguf_arena = ek_fixture_arena(ek_model_gguf_perm_bytes_max(file.len));
    t.gguf_mem = gguf_arena.beg;
    t.status = ek_model_gguf_parse(&t.file, 1, &gguf_arena, &t.gguf, &t.err);
    if (t.status != EK_OK) fail_msg("GGUF: %s", t.err.text);
    ek_arena perm = ek_fixture_arena(ek_model_tokenizer_perm_bytes_max(t.gguf));
    t.perm_mem = perm.beg;
    t.status = ek_model_tokenizer_create(t.gguf, &perm, &t.tokenizer, &t.err);
    return t;
}

tokenized tokenized_open(ek_span file)
{
    tokenized t = tokenized_try(file);
    if (t.status != EK_OK) fail_msg("tokenizer: %s: %s", ek_status_name(t.status), t.err.text);
    return t;
}

tokenized tokenized_read(const char *path)
{
    return tokenized_open(ek_fixture_read(path));
}

/* A block of exactly the file's size, so that a sanitizer sees a read past its end. */
static ek_span take(vocab_file *f)
{
    ek_span file = vocab_file_finish(f);
    uint8_t *copy = malloc(file.len);
    assert_non_null(copy);
    memcpy(copy, file.data, file.len);
    vocab_file_free(f);
    return (ek_span){copy, file.len};
}

tokenized tokenized_build(vocab_file *f)
{
    return tokenized_open(take(f));
}

void tokenized_close(tokenized *t)
{
    if (t->status == EK_OK) ek_model_tokenizer_destroy(t->tokenizer);
    ek_fixture_arena_free(t->perm_mem);
    ek_fixture_arena_free(t->gguf_mem);
    ek_fixture_free(t->file);
    *t = (tokenized){0};
}

void expect_refused(vocab_file *f, ek_status status, const char *text)
{
    tokenized t = tokenized_try(take(f));
    if (t.status != status)
        fail_msg("%s instead of %s (%s)", ek_status_name(t.status), ek_status_name(status),
                 t.status == EK_OK ? "accepted" : t.err.text);
    if (!strstr(t.err.text, text)) fail_msg("\"%s\" does not say \"%s\"", t.err.text, text);
    tokenized_close(&t);
}

id_list encode(const tokenized *t, ek_str text, bool parse_special)
{
    int64_t max = ek_model_tokenizer_ids_max(t->tokenizer, text.len);
    id_list ids = {.data = malloc((size_t)max * sizeof(int32_t) + 1)};
    assert_non_null(ids.data);
    ek_arena scratch = ek_fixture_arena(ek_model_tokenizer_scratch_bytes(t->tokenizer, text.len));
    void *mem = scratch.beg;
    ek_status status = ek_model_tokenizer_encode(t->tokenizer, text, parse_special, scratch,
                                                 ids.data, max, &ids.n);
    ek_fixture_arena_free(mem);
    if (status != EK_OK) fail_msg("encode: %s", ek_status_name(status));
    for (int64_t i = 0; i < ids.n; i++) {
        assert_true(ids.data[i] >= 0);
        assert_true(ids.data[i] < ek_model_tokenizer_vocab(t->tokenizer));
    }
    return ids;
}

char *decode(const tokenized *t, const int32_t *ids, int64_t n, bool show_special, size_t *out_len)
{
    char *text = malloc((size_t)n * EK_TOKENIZER_PIECE_MAX + 1);
    assert_non_null(text);
    size_t len = 0;
    for (int64_t i = 0; i < n; i++)
        len += ek_model_tokenizer_piece(t->tokenizer, ids[i], show_special, text + len);
    if (ek_model_tokenizer_strips_first_space(t->tokenizer) && len > 0 && text[0] == ' ')
        memmove(text, text + 1, --len);
    *out_len = len;
    return text;
}

void assert_ids(const char *what, id_list got, const int32_t *wanted, int64_t n_wanted)
{
    for (int64_t i = 0; i < got.n && i < n_wanted; i++)
        if (got.data[i] != wanted[i])
            fail_msg("%s: id %lld of %lld is %d, not %d", what, (long long)i, (long long)n_wanted,
                     got.data[i], wanted[i]);
    if (got.n != n_wanted)
        fail_msg("%s: %lld ids, not %lld", what, (long long)got.n, (long long)n_wanted);
}

void assert_round_trip(const tokenized *t, ek_str text)
{
    id_list ids = encode(t, text, false);
    size_t len;
    char *back = decode(t, ids.data, ids.n, false, &len);
    if (len != text.len || (len > 0 && memcmp(back, text.data, len) != 0))
        fail_msg("%zu bytes came back as %zu: \"%.*s\" -> \"%.*s\"", text.len, len,
                 EK_STR_ARG(text), (int)len, back);
    free(back);
    free(ids.data);
}

/*
 * The characters that byte-level BPE spells bytes with: printable Latin-1 as is, others from
 * U+0100.
 */
static void spell_bytes(char text[256][3], ek_str *names)
{
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; byte++) {
        bool printable = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
        size_t len = ek_utf8_encode(printable ? byte : next++, text[byte]);
        names[byte] = (ek_str){text[byte], len};
    }
}

void build_bpe(vocab_file *f, const char *pre, const extra_token *extra, size_t n_extra,
               const char *const *merges, size_t n_merges)
{
    char text[256][3];
    size_t n = BPE_EXTRA + n_extra;
    ek_str *names = calloc(n + n_merges, sizeof *names);
    int32_t *kinds = calloc(n, sizeof *kinds);
    assert_true(names && kinds);
    spell_bytes(text, names);
    for (size_t i = 0; i < n; i++)
        kinds[i] = i < BPE_EXTRA ? EK_TOKEN_NORMAL : (int32_t)extra[i - BPE_EXTRA].kind;
    for (size_t i = 0; i < n_extra; i++)
        names[BPE_EXTRA + i] = ek_str_from(extra[i].name);
    for (size_t i = 0; i < n_merges; i++)
        names[n + i] = ek_str_from(merges[i]);
    vocab_file_str(f, "tokenizer.ggml.model", "gpt2");
    if (pre) vocab_file_str(f, "tokenizer.ggml.pre", pre);
    vocab_file_strings(f, "tokenizer.ggml.tokens", names, n);
    vocab_file_i32s(f, "tokenizer.ggml.token_type", kinds, n);
    vocab_file_strings(f, "tokenizer.ggml.merges", names + n, n_merges);
    free(kinds);
    free(names);
}

void build_spm(vocab_file *f, const extra_token *extra, size_t n_extra)
{
    char text[256][8];
    size_t n = SPM_EXTRA + n_extra;
    ek_str *names = calloc(n, sizeof *names);
    int32_t *kinds = calloc(n, sizeof *kinds);
    float *scores = calloc(n, sizeof *scores);
    assert_true(names && kinds && scores);
    static const char *const first[] = {"<unk>", "<s>", "</s>"};
    for (size_t i = 0; i < SPM_BYTE; i++) {
        names[i] = ek_str_from(first[i]);
        kinds[i] = i == 0 ? EK_TOKEN_UNKNOWN : EK_TOKEN_CONTROL;
    }
    for (unsigned byte = 0; byte < 256; byte++) {
        snprintf(text[byte], sizeof text[byte], "<0x%02X>", byte);
        names[SPM_BYTE + byte] = ek_str_from(text[byte]);
        kinds[SPM_BYTE + byte] = EK_TOKEN_BYTE;
    }
    for (size_t i = 0; i < n_extra; i++) {
        names[SPM_EXTRA + i] = ek_str_from(extra[i].name);
        kinds[SPM_EXTRA + i] = (int32_t)extra[i].kind;
        scores[SPM_EXTRA + i] = extra[i].score;
    }
    vocab_file_str(f, "tokenizer.ggml.model", "llama");
    vocab_file_strings(f, "tokenizer.ggml.tokens", names, n);
    vocab_file_i32s(f, "tokenizer.ggml.token_type", kinds, n);
    vocab_file_f32s(f, "tokenizer.ggml.scores", scores, n);
    free(scores);
    free(kinds);
    free(names);
}
