/*
 * Goal: SentencePiece-style BPE joins by score, puts its space in front where it should, and falls
 * back to bytes without losing any. Method: vocabularies of a few tokens, in which every expected
 * id can be worked out by hand.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "model/tokenizer_internal.h"
#include "support/fixtures.h"
#include "tokenized.h"

#define BYTE(b) (SPM_BYTE + (b))

enum { SP = SPM_EXTRA, A, B, AB, SP_A, SP_AB, BA, NIHAO, STEP, STEP_LONG, USER, SP2, C, D };

static const extra_token extra[] = {
    {"▁", EK_TOKEN_NORMAL, -100},  {"a", EK_TOKEN_NORMAL, -101},  {"b", EK_TOKEN_NORMAL, -102},
    {"ab", EK_TOKEN_NORMAL, -2},   {"▁a", EK_TOKEN_NORMAL, -3},   {"▁ab", EK_TOKEN_NORMAL, -4},
    {"ba", EK_TOKEN_NORMAL, -2},   {"你好", EK_TOKEN_NORMAL, -5}, {"cd", EK_TOKEN_UNUSED, -1},
    {"cdcd", EK_TOKEN_NORMAL, -6}, {"[x▁y]", EK_TOKEN_USER, 0},   {"▁▁", EK_TOKEN_NORMAL, -7},
    {"c", EK_TOKEN_NORMAL, -103},  {"d", EK_TOKEN_NORMAL, -104},
};

static tokenized open_small(bool prefix)
{
    vocab_file f = {0};
    build_spm(&f, extra, EK_COUNT_OF(extra));
    if (!prefix) vocab_file_bool(&f, "tokenizer.ggml.add_space_prefix", 0);
    return tokenized_build(&f);
}

#define EXPECT(t, text, special, ...)                                        \
    do {                                                                     \
        static const int32_t wanted_[] = {__VA_ARGS__};                      \
        id_list got_ = encode(t, (ek_str){text, sizeof(text) - 1}, special); \
        assert_ids(text, got_, wanted_, (int64_t)EK_COUNT_OF(wanted_));      \
        free(got_.data);                                                     \
    } while (0)

static void test_joins_go_by_score(void **state)
{
    (void)state;
    tokenized t = open_small(true);
    EXPECT(&t, "a", false, SP_A);
    EXPECT(&t, "ab", false, SP_AB);     /* ab (-2) before ▁a (-3), then ▁ab */
    EXPECT(&t, "aba", false, SP_AB, A); /* ab and ba score alike: the left one goes first */
    EXPECT(&t, "bab", false, SP, BA, B);
    EXPECT(&t, "a a", false, SP_A, SP_A);
    EXPECT(&t, "a  a", false, SP_A, SP, SP_A);
    EXPECT(&t, " a", false, SP, SP_A);
    EXPECT(&t, "a ", false, SP_A, SP);
    EXPECT(&t, "  ", false, SP2, SP);
    EXPECT(&t, "你好", false, SP, NIHAO); /* neither character alone is in the vocabulary */
    tokenized_close(&t);
    t = open_small(false);
    EXPECT(&t, "a", false, A);
    EXPECT(&t, "ab ab", false, AB, SP_AB);
    assert_false(ek_model_tokenizer_strips_first_space(t.tokenizer));
    tokenized_close(&t);
}

static void test_bytes_catch_the_rest(void **state)
{
    (void)state;
    tokenized t = open_small(true);
    EXPECT(&t, "a\n", false, SP_A, BYTE('\n'));
    EXPECT(&t, "你", false, SP, BYTE(0xe4), BYTE(0xbd), BYTE(0xa0));
    EXPECT(&t, "\xff", false, SP, BYTE(0xff));
    EXPECT(&t, "a\0a", false, SP_A, BYTE(0), A);
    /* A typed U+2581 is not a space: it has to come back as it was. */
    EXPECT(&t, "▁", false, SP, BYTE(0xe2), BYTE(0x96), BYTE(0x81));
    assert_round_trip(&t, EK_STR("a▁b b"));
    /* The names of byte and control tokens are text like any other. */
    assert_round_trip(&t, EK_STR("<0x0A></s><unk>"));
    char all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    assert_round_trip(&t, (ek_str){all, sizeof all});
    id_list none = encode(&t, (ek_str){NULL, 0}, true);
    assert_int_equal(none.n, 0);
    free(none.data);
    tokenized_close(&t);
}

static void test_unknown_stands_in_for_missing_bytes(void **state)
{
    (void)state;
    static const ek_str names[] = {{"<unk>", 5}, {"<s>", 3}, {"</s>", 4}, {"▁", 3}, {"a", 1}};
    static const int32_t kinds[] = {2, 3, 3, 1, 1};
    static const float scores[5] = {0};
    vocab_file f = {0};
    vocab_file_str(&f, "tokenizer.ggml.model", "llama");
    vocab_file_strings(&f, "tokenizer.ggml.tokens", names, 5);
    vocab_file_i32s(&f, "tokenizer.ggml.token_type", kinds, 5);
    vocab_file_f32s(&f, "tokenizer.ggml.scores", scores, 5);
    tokenized t = tokenized_build(&f);
    EXPECT(&t, "a你a", false, 3, 4, 0, 4); /* one for the whole character */
    tokenized_close(&t);
}

static void test_special_tokens(void **state)
{
    (void)state;
    tokenized t = open_small(true);
    EXPECT(&t, "<s>a</s>a", true, 1, SP_A, 2, SP_A); /* the space comes again after each */
    EXPECT(&t, "</s>", true, 2);
    EXPECT(&t, "<s></s>", true, 1, 2);
    EXPECT(&t, "<unk>", true, 0);
    /* User-defined text belongs to the text around it, which has had its space. */
    EXPECT(&t, "a[x y]a", false, SP_A, USER, A);
    EXPECT(&t, "[x y]a", false, SP, USER, A);
    EXPECT(&t, "<s>[x y]a", true, 1, SP, USER, A);
    assert_round_trip(&t, EK_STR("[x y] [x y]a"));
    assert_int_equal(ek_model_tokenizer_bos(t.tokenizer), 1);
    assert_int_equal(ek_model_tokenizer_eos(t.tokenizer), 2);
    assert_true(ek_model_tokenizer_adds_bos(t.tokenizer));
    assert_true(ek_model_tokenizer_is_end(t.tokenizer, 2));
    assert_false(ek_model_tokenizer_is_end(t.tokenizer, 1));
    assert_true(ek_model_tokenizer_is_special(t.tokenizer, 0));
    assert_true(ek_model_tokenizer_strips_first_space(t.tokenizer));
    assert_string_equal(ek_model_tokenizer_kind(t.tokenizer), "spm");
    tokenized_close(&t);
}

static void test_unused_pieces_are_only_steps(void **state)
{
    (void)state;
    tokenized t = open_small(true);
    EXPECT(&t, "cdcd", false, SP, STEP_LONG);
    EXPECT(&t, "cd", false, SP, C, D);
    EXPECT(&t, "cdcdcd", false, SP, STEP_LONG, C, D);
    tokenized_close(&t);

    /* Two levels deep, and taken apart in the order of the joins: ((c d) (c d)) -> c d c d. */
    static const extra_token nested[] = {{"c", EK_TOKEN_NORMAL, -9},
                                         {"d", EK_TOKEN_NORMAL, -9},
                                         {"cd", EK_TOKEN_UNUSED, -1},
                                         {"cdcd", EK_TOKEN_UNUSED, -2},
                                         {"dc", EK_TOKEN_NORMAL, -3}};
    vocab_file f = {0};
    build_spm(&f, nested, EK_COUNT_OF(nested));
    vocab_file_bool(&f, "tokenizer.ggml.add_space_prefix", 0);
    t = tokenized_build(&f);
    EXPECT(&t, "cdcd", false, SPM_EXTRA, SPM_EXTRA + 1, SPM_EXTRA, SPM_EXTRA + 1);
    EXPECT(&t, "dcdc", false, SPM_EXTRA + 1, SPM_EXTRA, SPM_EXTRA + 1, SPM_EXTRA);
    assert_round_trip(&t, EK_STR("cdcdcdcdc"));
    tokenized_close(&t);
}

static void test_words_are_cut_only_where_no_piece_crosses(void **state)
{
    (void)state;
    static const extra_token crossing[] = {{"▁", EK_TOKEN_NORMAL, -9},
                                           {"a", EK_TOKEN_NORMAL, -9},
                                           {"a▁", EK_TOKEN_NORMAL, -1},
                                           {"a▁a", EK_TOKEN_NORMAL, -2}};
    vocab_file f = {0};
    build_spm(&f, crossing, EK_COUNT_OF(crossing));
    vocab_file_bool(&f, "tokenizer.ggml.add_space_prefix", 0);
    tokenized t = tokenized_build(&f);
    EXPECT(&t, "a a", false, SPM_EXTRA + 3);
    EXPECT(&t, "a a a", false, SPM_EXTRA + 2, SPM_EXTRA + 3);
    tokenized_close(&t);
}

static void test_long_runs_are_not_quadratic(void **state)
{
    (void)state;
    tokenized t = open_small(true);
    enum { LONG = 1 << 20 };
    char *text = malloc(LONG);
    int32_t *data = malloc(LONG * sizeof *data);
    assert_true(text && data);
    for (int i = 0; i < LONG; i++)
        text[i] = i % 2 ? 'b' : 'a';
    ek_arena scratch = ek_fixture_arena(ek_model_tokenizer_scratch_bytes(t.tokenizer, LONG));
    void *mem = scratch.beg;
    int64_t steps[2] = {0};
    for (int i = 0; i < 2; i++) {
        ek_ids ids = {.data = data, .max = LONG};
        ek_str word = {text, i ? LONG : LONG / 16};
        assert_int_equal(ek_model_spm_merge(&t.tokenizer->spm, word, scratch, &ids, &steps[i]),
                         EK_OK);
        assert_int_equal(ids.n, (int64_t)word.len / 2);
    }
    assert_true(steps[0] > 0);
    assert_true(steps[1] < 40 * (int64_t)LONG);
    assert_true(steps[1] < 24 * steps[0]);
    print_message("%lld steps for %d symbols\n", (long long)steps[1], LONG);
    ek_fixture_arena_free(mem);
    free(data);
    free(text);
    tokenized_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_joins_go_by_score),
        cmocka_unit_test(test_bytes_catch_the_rest),
        cmocka_unit_test(test_unknown_stands_in_for_missing_bytes),
        cmocka_unit_test(test_special_tokens),
        cmocka_unit_test(test_unused_pieces_are_only_steps),
        cmocka_unit_test(test_words_are_cut_only_where_no_piece_crosses),
        cmocka_unit_test(test_long_runs_are_not_quadratic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
