/*
 * Goal: a vocabulary that is wrong in any way is refused with one text that names the key and the
 * place. Method: a right one with one thing changed per case.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/fixtures.h"
#include "tokenized.h"

static void refuse_bpe(const extra_token *extra, size_t n_extra, const char *merge,
                       const char *text)
{
    vocab_file f = {0};
    build_bpe(&f, "gpt2", extra, n_extra, &merge, merge ? 1 : 0);
    expect_refused(&f, EK_EFORMAT, text);
}

static void test_merges(void **state)
{
    (void)state;
    static const extra_token ab[] = {{"ab", EK_TOKEN_NORMAL, 0}};
    static const extra_token control[] = {{"ab", EK_TOKEN_CONTROL, 0}};
    refuse_bpe(ab, 1, "ab", "tokenizer.ggml.merges[0] is \"ab\", not two tokens and a space");
    refuse_bpe(ab, 1, " b", "tokenizer.ggml.merges[0]");
    refuse_bpe(ab, 1, "a ", "tokenizer.ggml.merges[0]");
    refuse_bpe(ab, 1, "", "tokenizer.ggml.merges[0]");
    refuse_bpe(ab, 1, "a xyz", "no token \"xyz\"");
    refuse_bpe(ab, 1, "xyz a", "no token \"xyz\"");
    refuse_bpe(ab, 1, "a c", "no token \"ac\"");
    refuse_bpe(control, 1, "a b", "makes \"ab\", which is not a token of text");
}

static void test_tokens(void **state)
{
    (void)state;
    static const extra_token twice[] = {{"xy", EK_TOKEN_NORMAL, 0}, {"xy", EK_TOKEN_NORMAL, 0}};
    refuse_bpe(twice, 2, NULL, "tokenizer.ggml.tokens[256] and [257] are both \"xy\"");
    static const extra_token no_byte[] = {{"<0x4>", EK_TOKEN_BYTE, 0}};
    refuse_bpe(no_byte, 1, NULL, "tokenizer.ggml.tokens[256] is a byte by its type");
    static const extra_token no_hex[] = {{"<0x4G>", EK_TOKEN_BYTE, 0}};
    refuse_bpe(no_hex, 1, NULL, "tokenizer.ggml.tokens[256] is a byte by its type");
    static const extra_token bad_type[] = {{"x", (ek_token_kind)7, 0}};
    refuse_bpe(bad_type, 1, NULL, "tokenizer.ggml.token_type[256] is 7");
    static const extra_token low_type[] = {{"x", (ek_token_kind)-1, 0}};
    refuse_bpe(low_type, 1, NULL, "tokenizer.ggml.token_type[256] is -1");

    char name[EK_TOKENIZER_PIECE_MAX + 2];
    memset(name, 'x', sizeof name);
    name[EK_TOKENIZER_PIECE_MAX + 1] = '\0';
    const extra_token too_long[] = {{name, EK_TOKEN_NORMAL, 0}};
    refuse_bpe(too_long, 1, NULL, "tokenizer.ggml.tokens[256] is 1025 bytes long");
    name[EK_TOKENIZER_PIECE_MAX] = '\0';
    const extra_token longest[] = {{name, EK_TOKEN_NORMAL, 0}, {"", EK_TOKEN_NORMAL, 0}};
    vocab_file f = {0};
    build_bpe(&f, "llama3", longest, 2, NULL, 0);
    tokenized t = tokenized_build(&f);
    id_list ids = encode(&t, (ek_str){name, EK_TOKENIZER_PIECE_MAX}, false);
    assert_int_equal(ids.n, 1);
    assert_int_equal(ids.data[0], BPE_EXTRA);
    free(ids.data);
    tokenized_close(&t);
}

static void test_bytes_are_complete(void **state)
{
    (void)state;
    static const ek_str one[] = {{"a", 1}};
    vocab_file f = {0};
    vocab_file_str(&f, "tokenizer.ggml.model", "gpt2");
    vocab_file_strings(&f, "tokenizer.ggml.tokens", one, 1);
    vocab_file_strings(&f, "tokenizer.ggml.merges", one, 0);
    expect_refused(&f, EK_EFORMAT, "no token for the byte 0x00 alone");
    static const float score[] = {0};
    vocab_file_str(&f, "tokenizer.ggml.model", "llama");
    vocab_file_strings(&f, "tokenizer.ggml.tokens", one, 1);
    vocab_file_f32s(&f, "tokenizer.ggml.scores", score, 1);
    expect_refused(&f, EK_EFORMAT, "neither <0x00> nor an unknown token");
}

static void test_missing_and_mistyped_keys(void **state)
{
    (void)state;
    static const ek_str one[] = {{"a", 1}};
    static const int32_t kind[] = {1};
    vocab_file f = {0};
    vocab_file_str(&f, "general.name", "none");
    expect_refused(&f, EK_EFORMAT, "tokenizer.ggml.model is missing");
    vocab_file_id(&f, "tokenizer.ggml.model", 1);
    expect_refused(&f, EK_EFORMAT, "tokenizer.ggml.model");
    vocab_file_str(&f, "tokenizer.ggml.model", "gpt2");
    expect_refused(&f, EK_EFORMAT, "tokenizer.ggml.tokens is missing");
    vocab_file_str(&f, "tokenizer.ggml.model", "gpt2");
    vocab_file_i32s(&f, "tokenizer.ggml.tokens", kind, 1);
    expect_refused(&f, EK_EFORMAT, "tokenizer.ggml.tokens");
    vocab_file_str(&f, "tokenizer.ggml.model", "gpt2");
    vocab_file_strings(&f, "tokenizer.ggml.tokens", one, 0);
    expect_refused(&f, EK_EFORMAT, "tokenizer.ggml.tokens has 0 entries");
    vocab_file_str(&f, "tokenizer.ggml.model", "llama");
    vocab_file_strings(&f, "tokenizer.ggml.tokens", one, 1);
    vocab_file_i32s(&f, "tokenizer.ggml.token_type", kind, 0);
    expect_refused(&f, EK_EFORMAT,
                   "tokenizer.ggml.token_type has 0 entries, tokenizer.ggml.tokens has 1");
    vocab_file_str(&f, "tokenizer.ggml.model", "llama");
    vocab_file_strings(&f, "tokenizer.ggml.tokens", one, 1);
    vocab_file_strings(&f, "tokenizer.ggml.token_type", one, 1);
    expect_refused(&f, EK_EFORMAT, "tokenizer.ggml.token_type");
}

static void test_unknown_kinds_list_the_known(void **state)
{
    (void)state;
    vocab_file f = {0};
    vocab_file_str(&f, "tokenizer.ggml.model", "bert");
    expect_refused(&f, EK_EUNSUPPORTED, "\"bert\"; known: gpt2");
    build_bpe(&f, "of-the-future", NULL, 0, NULL, 0);
    expect_refused(&f, EK_EUNSUPPORTED,
                   "tokenizer.ggml.pre is \"of-the-future\"; known pre-tokenizers: default, gpt-2");
}

static void test_special_ids(void **state)
{
    (void)state;
    static const char *const keys[] = {"tokenizer.ggml.bos_token_id", "tokenizer.ggml.eos_token_id",
                                       "tokenizer.ggml.eot_token_id",
                                       "tokenizer.ggml.eom_token_id"};
    for (size_t i = 0; i < EK_COUNT_OF(keys); i++) {
        vocab_file f = {0};
        build_bpe(&f, "gpt2", NULL, 0, NULL, 0);
        vocab_file_id(&f, keys[i], 256);
        expect_refused(&f, EK_EFORMAT, keys[i]);
        build_bpe(&f, "gpt2", NULL, 0, NULL, 0);
        vocab_file_id(&f, keys[i], UINT32_MAX);
        expect_refused(&f, EK_EFORMAT, keys[i]);
    }
    vocab_file f = {0};
    build_spm(&f, NULL, 0);
    vocab_file_id(&f, "tokenizer.ggml.unknown_token_id", SPM_EXTRA);
    expect_refused(&f, EK_EFORMAT, "tokenizer.ggml.unknown_token_id");
    build_bpe(&f, "gpt2", NULL, 0, NULL, 0);
    vocab_file_bool(&f, "tokenizer.ggml.add_bos_token", 1);
    expect_refused(&f, EK_EFORMAT, "tokenizer.ggml.bos_token_id is missing");
    build_bpe(&f, "gpt2", NULL, 0, NULL, 0);
    vocab_file_str(&f, "tokenizer.ggml.add_bos_token", "yes");
    expect_refused(&f, EK_EFORMAT, "tokenizer.ggml.add_bos_token");
    build_spm(&f, NULL, 0);
    vocab_file_id(&f, "tokenizer.ggml.add_space_prefix", 1);
    expect_refused(&f, EK_EFORMAT, "tokenizer.ggml.add_space_prefix");
}

static void test_scores(void **state)
{
    (void)state;
    static const ek_str names[] = {{"<unk>", 5}, {"a", 1}};
    static const int32_t kinds[] = {2, 1};
    static const union {
        uint32_t bits[2];
        float f[2];
    } nan = {.bits = {0, 0x7fc00000}}, infinite = {.bits = {0xff800000, 0}};
    vocab_file f = {0};
    for (int i = 0; i < 3; i++) {
        vocab_file_str(&f, "tokenizer.ggml.model", "llama");
        vocab_file_strings(&f, "tokenizer.ggml.tokens", names, 2);
        vocab_file_i32s(&f, "tokenizer.ggml.token_type", kinds, 2);
        if (i > 0) vocab_file_f32s(&f, "tokenizer.ggml.scores", i == 1 ? nan.f : infinite.f, 2);
        expect_refused(&f, EK_EFORMAT,
                       i == 0   ? "tokenizer.ggml.scores is missing"
                       : i == 1 ? "tokenizer.ggml.scores[1] is not a finite number"
                                : "tokenizer.ggml.scores[0] is not a finite number");
    }
    vocab_file_str(&f, "tokenizer.ggml.model", "llama");
    vocab_file_strings(&f, "tokenizer.ggml.tokens", names, 2);
    vocab_file_i32s(&f, "tokenizer.ggml.token_type", kinds, 2);
    vocab_file_f32s(&f, "tokenizer.ggml.scores", nan.f, 1);
    expect_refused(&f, EK_EFORMAT,
                   "tokenizer.ggml.scores has 1 entries, tokenizer.ggml.tokens has 2");
}

/*
 * Whatever the arena has room for: an error that says memory, or success; never a crash or a leak.
 */
static void test_every_arena_size(void **state)
{
    (void)state;
    static const extra_token ab[] = {{"ab", EK_TOKEN_NORMAL, 0}, {"<|x|>", EK_TOKEN_CONTROL, 0}};
    static const char *const merges[] = {"a b"};
    for (int spm = 0; spm < 2; spm++) {
        vocab_file f = {0};
        if (spm)
            build_spm(&f, ab, 2);
        else
            build_bpe(&f, "deepseek-llm", ab, 2, merges, 1);
        tokenized t = tokenized_build(&f);
        size_t enough = ek_model_tokenizer_perm_bytes_max(t.gguf);
        int n_refused = 0;
        for (size_t bytes = 0; bytes <= enough; bytes += 509) {
            ek_arena perm = ek_fixture_arena(bytes);
            void *mem = perm.beg;
            ek_tokenizer *tokenizer = NULL;
            ek_err err = {0};
            ek_status status = ek_model_tokenizer_create(t.gguf, &perm, &tokenizer, &err);
            if (status == EK_OK) {
                ek_model_tokenizer_destroy(tokenizer);
            } else {
                assert_int_equal(status, EK_ENOMEM);
                assert_non_null(strstr(err.text, "no memory"));
                n_refused++;
            }
            ek_fixture_arena_free(mem);
        }
        assert_true(n_refused > 4);
        tokenized_close(&t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges),
        cmocka_unit_test(test_tokens),
        cmocka_unit_test(test_bytes_are_complete),
        cmocka_unit_test(test_missing_and_mistyped_keys),
        cmocka_unit_test(test_unknown_kinds_list_the_known),
        cmocka_unit_test(test_special_ids),
        cmocka_unit_test(test_scores),
        cmocka_unit_test(test_every_arena_size),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
