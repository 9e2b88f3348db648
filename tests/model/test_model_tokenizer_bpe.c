/*
 * Goal: byte-level BPE does what its file says: merges by rank, special tokens only where they are
 * asked for, any bytes back unchanged, and no text that makes it slow. Method: vocabularies of a
 * few tokens, in which every expected id can be worked out by hand.
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

enum { AB = BPE_EXTRA, BC, ABC, SPACE_A, MARK, MARK_LONG, USER, UNSEEN };

static const extra_token extra[] = {
    {"ab", EK_TOKEN_NORMAL, 0},          {"bc", EK_TOKEN_NORMAL, 0},
    {"abc", EK_TOKEN_NORMAL, 0},         {"Ġa", EK_TOKEN_NORMAL, 0},
    {"<|x|>", EK_TOKEN_CONTROL, 0},      {"<|x|>y", EK_TOKEN_CONTROL, 0},
    {"word  word", EK_TOKEN_USER, 0},    {"unseen", EK_TOKEN_NORMAL, 0},
    {"<|im_end|>", EK_TOKEN_CONTROL, 0}, {"<|end|>", EK_TOKEN_CONTROL, 0},
    {"</s>", EK_TOKEN_NORMAL, 0},        {"<|typed_as_user|>", EK_TOKEN_USER, 0},
};
static const char *const merges[] = {"b c", "a b", "a bc", "Ġ a"};

static tokenized open_small(const char *pre)
{
    vocab_file f = {0};
    build_bpe(&f, pre, extra, EK_COUNT_OF(extra), merges, EK_COUNT_OF(merges));
    vocab_file_id(&f, "tokenizer.ggml.bos_token_id", MARK);
    vocab_file_id(&f, "tokenizer.ggml.eos_token_id", UNSEEN);
    return tokenized_build(&f);
}

#define EXPECT(t, text, special, ...)                                        \
    do {                                                                     \
        static const int32_t wanted_[] = {__VA_ARGS__};                      \
        id_list got_ = encode(t, (ek_str){text, sizeof(text) - 1}, special); \
        assert_ids(text, got_, wanted_, (int64_t)EK_COUNT_OF(wanted_));      \
        free(got_.data);                                                     \
    } while (0)

static void test_merges_go_by_rank(void **state)
{
    (void)state;
    tokenized t = open_small("qwen2");
    EXPECT(&t, "abc", false, ABC); /* b c first, then a bc */
    EXPECT(&t, "abab", false, AB, AB);
    EXPECT(&t, "bcbc", false, BC, BC);
    EXPECT(&t, "abcbcab", false, ABC, BC, AB);
    EXPECT(&t, " a", false, SPACE_A);
    EXPECT(&t, "  a", false, ' ', SPACE_A); /* the pre-tokenizer leaves one space to the word */
    EXPECT(&t, " ab", false, ' ', AB);      /* "a b" outranks "Ġ a" */
    EXPECT(&t, "a", false, 'a');
    EXPECT(&t, "\0", false, 0);
    EXPECT(&t, "ab\0ab", false, AB, 0, AB);
    id_list none = encode(&t, (ek_str){NULL, 0}, true);
    assert_int_equal(none.n, 0);
    free(none.data);
    tokenized_close(&t);
}

static void test_pieces_are_whole_only_where_merges_are_ignored(void **state)
{
    (void)state;
    tokenized t = open_small("qwen2");
    EXPECT(&t, "unseen", false, 'u', 'n', 's', 'e', 'e', 'n');
    tokenized_close(&t);
    t = open_small("llama-bpe");
    EXPECT(&t, "unseen", false, UNSEEN);
    EXPECT(&t, "unseenab", false, 'u', 'n', 's', 'e', 'e', 'n', AB);
    assert_true(
        ek_model_tokenizer_adds_bos(t.tokenizer)); /* this family does unless the file denies it */
    tokenized_close(&t);
}

static void test_special_tokens_need_permission(void **state)
{
    (void)state;
    tokenized t = open_small("qwen2");
    EXPECT(&t, "<|x|>", true, MARK);
    EXPECT(&t, "<|x|>", false, '<', '|', 'x', '|', '>');
    EXPECT(&t, "<|x|>y", true, MARK_LONG);
    EXPECT(&t, "<|x|>z", true, MARK, 'z');
    EXPECT(&t, "a<|x|><|x|>b", true, 'a', MARK, MARK, 'b');
    EXPECT(&t, "<|x|", true, '<', '|', 'x', '|');
    EXPECT(&t, "<<|x|>", true, '<', MARK);
    /* User-defined text is never split, whoever wrote it, and wins over merges. */
    EXPECT(&t, "word  word", false, USER);
    EXPECT(&t, "word  word", true, USER);
    EXPECT(&t, "abword  wordab", false, AB, USER, AB);
    EXPECT(&t, "word word", false, 'w', 'o', 'r', 'd', ' ', 'w', 'o', 'r', 'd');
    tokenized_close(&t);
}

static void test_marks_limit_where_control_tokens_are(void **state)
{
    (void)state;
    tokenized t = open_small("qwen2");
    ek_str text = EK_STR("<|x|>ab<|x|>c<|x|>word  word");
    int32_t ids[64];
    int64_t n = -1;
    ek_arena scratch = ek_fixture_arena(65536);
    void *mem = scratch.beg;
    /*
     * The first is trusted, the second is not, the third lies half outside, then c is given as a
     * token.
     */
    const ek_token_mark marks[] = {{0, 5, -1}, {12, 13, UNSEEN}, {13, 17, -1}};
    assert_int_equal(
        ek_model_tokenizer_encode_marked(t.tokenizer, text, marks, 3, scratch, ids, 64, &n), EK_OK);
    static const int32_t wanted[] = {MARK,   AB,  '<', '|', 'x', '|', '>',
                                     UNSEEN, '<', '|', 'x', '|', '>', USER};
    assert_ids("marked", (id_list){ids, n}, wanted, EK_COUNT_OF(wanted));
    /* A given token may stand for no text at all, anywhere. */
    const ek_token_mark empty[] = {{0, 0, MARK}, {5, 5, MARK_LONG}, {text.len, text.len, USER}};
    assert_int_equal(
        ek_model_tokenizer_encode_marked(t.tokenizer, text, empty, 3, scratch, ids, 64, &n), EK_OK);
    assert_int_equal(ids[0], MARK);
    assert_int_equal(ids[6], MARK_LONG);
    assert_int_equal(ids[n - 2], USER);
    assert_int_equal(ids[n - 1], USER);
    ek_fixture_arena_free(mem);
    tokenized_close(&t);
}

static void test_bytes_that_are_no_text(void **state)
{
    (void)state;
    tokenized t = open_small("qwen2");
    EXPECT(&t,
           "ab\xff"
           "ab",
           false, AB, 0xff, AB);
    EXPECT(&t, "\xe4\xbd", false, 0xe4, 0xbd);           /* a character cut short */
    EXPECT(&t, "\xc0\xaf", false, 0xc0, 0xaf);           /* overlong */
    EXPECT(&t, "\xed\xa0\x80", false, 0xed, 0xa0, 0x80); /* a surrogate */
    EXPECT(&t, "\xf4\x90\x80\x80", false, 0xf4, 0x90, 0x80, 0x80);
    EXPECT(&t, "\xff<|x|>\xff", true, 0xff, MARK, 0xff);
    char all[256];
    for (int i = 0; i < 256; i++)
        all[i] = (char)i;
    assert_round_trip(&t, (ek_str){all, sizeof all});
    tokenized_close(&t);
}

static void test_bounds_are_kept(void **state)
{
    (void)state;
    tokenized t = open_small("qwen2");
    ek_str text = EK_STR("abab<|x|>ab");
    int32_t ids[8] = {[4] = 77};
    int64_t n = -1;
    ek_arena scratch = ek_fixture_arena(65536);
    void *mem = scratch.beg;
    assert_int_equal(ek_model_tokenizer_encode(t.tokenizer, text, true, scratch, ids, 3, &n),
                     EK_ERANGE);
    assert_int_equal(n, -1);
    assert_int_equal(ek_model_tokenizer_encode(t.tokenizer, text, true, scratch, ids, 4, &n),
                     EK_OK);
    assert_int_equal(n, 4);
    assert_int_equal(ids[4], 77);
    assert_int_equal(ek_model_tokenizer_encode(t.tokenizer, text, true, scratch, ids, 0, &n),
                     EK_ERANGE);
    /* A word too long for the stack needs scratch; without it there is an answer, not a crash. */
    char word[500];
    memset(word, 'x', sizeof word);
    int32_t many[500];
    ek_arena tiny = ek_arena_over(mem, 100);
    assert_int_equal(ek_model_tokenizer_encode(t.tokenizer, (ek_str){word, sizeof word}, false,
                                               tiny, many, 500, &n),
                     EK_ENOMEM);
    assert_int_equal(n, 4);
    ek_fixture_arena_free(mem);
    tokenized_close(&t);
}

static void test_pieces_and_names(void **state)
{
    (void)state;
    tokenized t = open_small("qwen2");
    char piece[EK_TOKENIZER_PIECE_MAX];
    assert_int_equal(ek_model_tokenizer_piece(t.tokenizer, SPACE_A, false, piece), 2);
    assert_memory_equal(piece, " a", 2);
    assert_int_equal(ek_model_tokenizer_piece(t.tokenizer, 0xad, false, piece), 1);
    assert_int_equal((uint8_t)piece[0], 0xad);
    assert_int_equal(ek_model_tokenizer_piece(t.tokenizer, MARK, false, piece), 0);
    assert_int_equal(ek_model_tokenizer_piece(t.tokenizer, MARK, true, piece), 5);
    assert_memory_equal(piece, "<|x|>", 5);
    assert_int_equal(ek_model_tokenizer_piece(t.tokenizer, USER, false, piece), 10);
    assert_true(ek_str_eqz(ek_model_tokenizer_name(t.tokenizer, SPACE_A), "Ġa"));
    assert_int_equal(ek_model_tokenizer_find(t.tokenizer, EK_STR("Ġa")), SPACE_A);
    assert_int_equal(ek_model_tokenizer_find(t.tokenizer, EK_STR(" a")), -1);
    assert_int_equal(ek_model_tokenizer_find(t.tokenizer, (ek_str){NULL, 0}), -1);
    assert_int_equal(ek_model_tokenizer_vocab(t.tokenizer), BPE_EXTRA + (int)EK_COUNT_OF(extra));
    assert_int_equal(ek_model_tokenizer_bos(t.tokenizer), MARK);
    assert_int_equal(ek_model_tokenizer_eos(t.tokenizer), UNSEEN);
    assert_false(ek_model_tokenizer_adds_bos(t.tokenizer));
    assert_false(ek_model_tokenizer_strips_first_space(t.tokenizer));
    assert_true(ek_model_tokenizer_is_special(t.tokenizer, MARK));
    assert_false(ek_model_tokenizer_is_special(t.tokenizer, USER));
    assert_string_equal(ek_model_tokenizer_kind(t.tokenizer), "bpe/qwen2");
    tokenized_close(&t);
}

static bool is_end(const tokenized *t, const char *name)
{
    int32_t id = ek_model_tokenizer_find(t->tokenizer, ek_str_from(name));
    assert_true(id >= 0);
    return ek_model_tokenizer_is_end(t->tokenizer, id);
}

static void test_end_tokens(void **state)
{
    (void)state;
    tokenized t = open_small("qwen2");
    assert_true(is_end(&t, "<|im_end|>"));
    assert_true(is_end(&t, "<|end|>"));
    assert_true(is_end(&t, "unseen")); /* eos_token_id says so */
    assert_false(is_end(&t, "</s>"));  /* spelled like one, but plain text in this vocabulary */
    assert_false(is_end(&t, "<|x|>"));
    tokenized_close(&t);

    static const extra_token harmony[] = {{"<|end|>", EK_TOKEN_CONTROL, 0},
                                          {"<|return|>", EK_TOKEN_CONTROL, 0},
                                          {"<|call|>", EK_TOKEN_CONTROL, 0},
                                          {"<turn>", EK_TOKEN_CONTROL, 0}};
    vocab_file f = {0};
    build_bpe(&f, "o200k", harmony, EK_COUNT_OF(harmony), NULL, 0);
    vocab_file_id(&f, "tokenizer.ggml.eot_token_id", BPE_EXTRA + 3);
    t = tokenized_build(&f);
    assert_true(is_end(&t, "<|return|>"));
    assert_true(is_end(&t, "<|call|>"));
    assert_true(is_end(&t, "<turn>"));
    assert_false(is_end(&t, "<|end|>")); /* there it closes a channel */
    assert_int_equal(ek_model_tokenizer_eos(t.tokenizer), -1);
    assert_int_equal(ek_model_tokenizer_bos(t.tokenizer), -1);
    tokenized_close(&t);
}

static void test_markers_filed_as_text_are_control(void **state)
{
    (void)state;
    tokenized t = open_small("qwen2");
    int32_t id = ek_model_tokenizer_find(t.tokenizer, EK_STR("<|typed_as_user|>"));
    assert_true(ek_model_tokenizer_is_special(t.tokenizer, id));
    id_list ids = encode(&t, EK_STR("<|typed_as_user|>"), false);
    for (int64_t i = 0; i < ids.n; i++)
        assert_int_not_equal(ids.data[i], id);
    free(ids.data);
    tokenized_close(&t);
}

/*
 * Counted in elementary steps, not seconds: sixteen times the text takes about sixteen times the
 * steps.
 */
static void test_long_runs_are_not_quadratic(void **state)
{
    (void)state;
    static const extra_token doubling[] = {
        {"aa", EK_TOKEN_NORMAL, 0}, {"aaaa", EK_TOKEN_NORMAL, 0}, {"aaaaaaaa", EK_TOKEN_NORMAL, 0}};
    static const char *const joins[] = {"a a", "aa aa", "aaaa aaaa"};
    vocab_file f = {0};
    build_bpe(&f, "qwen2", doubling, 3, joins, 3);
    tokenized t = tokenized_build(&f);
    enum { LONG = 1 << 20 };
    char *text = malloc(LONG);
    assert_non_null(text);
    memset(text, 'a', LONG);
    ek_arena scratch = ek_fixture_arena(ek_model_tokenizer_scratch_bytes(t.tokenizer, LONG));
    void *mem = scratch.beg;
    int32_t *data = malloc(LONG * sizeof *data);
    assert_non_null(data);
    int64_t steps[2] = {0};
    for (int i = 0; i < 2; i++) {
        ek_ids ids = {.data = data, .max = LONG};
        ek_str piece = {text, i ? LONG : LONG / 16};
        assert_int_equal(ek_model_bpe_merge(&t.tokenizer->bpe, piece, scratch, &ids, &steps[i]),
                         EK_OK);
        assert_int_equal(ids.n, (int64_t)piece.len / 8);
    }
    assert_true(steps[0] > 0);
    assert_true(steps[1] < 40 * (int64_t)LONG); /* n log n: 20 levels, two pushes */
    assert_true(steps[1] < 24 * steps[0]);      /* 16 x (20 / 16 levels), not 256 x */
    print_message("%lld steps for %d symbols\n", (long long)steps[1], LONG);
    free(data);
    ek_fixture_arena_free(mem);
    free(text);
    tokenized_close(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_merges_go_by_rank),
        cmocka_unit_test(test_pieces_are_whole_only_where_merges_are_ignored),
        cmocka_unit_test(test_special_tokens_need_permission),
        cmocka_unit_test(test_marks_limit_where_control_tokens_are),
        cmocka_unit_test(test_bytes_that_are_no_text),
        cmocka_unit_test(test_bounds_are_kept),
        cmocka_unit_test(test_pieces_and_names),
        cmocka_unit_test(test_end_tokens),
        cmocka_unit_test(test_markers_filed_as_text_are_control),
        cmocka_unit_test(test_long_runs_are_not_quadratic),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
