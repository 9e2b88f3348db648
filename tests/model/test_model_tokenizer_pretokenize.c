/*
 * Goal: each pre-tokenizer cuts where its published expression cuts, loses nothing, and does the
 * same with and without machine code. Method: texts cut by hand per rule; random Unicode through
 * every rule both ways.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "base/utf8.h"
#include "model/pretokenize.h"

static void open_rule(const char *name, bool allow_jit, ek_pretokenizer *pre,
                      ek_pretokenize_cursor *cursor)
{
    ek_err err = {0};
    if (ek_model_pretokenizer_init(pre, ek_str_from(name), allow_jit, &err) != EK_OK)
        fail_msg("%s", err.text);
    assert_int_equal(ek_model_pretokenize_open(cursor, pre), EK_OK);
}

static void close_rule(ek_pretokenizer *pre, ek_pretokenize_cursor *cursor)
{
    ek_model_pretokenize_close(cursor);
    ek_model_pretokenizer_fini(pre);
}

/* `pieces` ends with NULL; their concatenation is the text. */
static void check_cut(const char *rule, const char *const *pieces)
{
    char text[512] = "";
    size_t len = 0;
    for (int i = 0; pieces[i]; i++) {
        memcpy(text + len, pieces[i], strlen(pieces[i]));
        len += strlen(pieces[i]);
    }
    for (int jit = 0; jit < 2; jit++) {
        ek_pretokenizer pre;
        ek_pretokenize_cursor cursor;
        open_rule(rule, jit, &pre, &cursor);
        ek_model_pretokenize_text(&cursor, (ek_str){text, len});
        int i = 0;
        ek_str piece;
        while (ek_model_pretokenize_next(&cursor, &piece) == EK_OK) {
            if (!pieces[i] || !ek_str_eqz(piece, pieces[i]))
                fail_msg("%s%s: piece %d of \"%s\" is \"%.*s\", not \"%s\"", rule,
                         jit ? "" : " (interpreted)", i, text, EK_STR_ARG(piece),
                         pieces[i] ? pieces[i] : "(none)");
            i++;
        }
        if (pieces[i]) fail_msg("%s: \"%s\" ends before piece %d", rule, text, i);
        close_rule(&pre, &cursor);
    }
}

#define CUT(rule, ...) check_cut(rule, (const char *const[]){__VA_ARGS__, NULL})

static void test_gpt2(void **state)
{
    (void)state;
    CUT("gpt-2", "Hello", " world", "'s", " 123", " don", "'t", " ", " x", "\n", "\n", "y");
    CUT("gpt2", "I", "'", "LL", " '", "d", "\t", "x", "   ");
    CUT("olmo", "a", "1", "b", "!?", " #", "x", "\n\n");
    CUT("gpt-2", "e", "\u0301", "a"); /* a combining mark is no letter here */
}

static void test_qwen2(void **state)
{
    (void)state;
    CUT("qwen2", "I", "'LL", " x", "\n\n", "y", " ", "1", "2", "3", "\r\n", " ", " z", "!!\n");
    CUT("qwen2", "\tx", ".y", " ...\n", "  \n", " ", " z");
    CUT("qwen2", "我的快递", "！\n", "（abc", "）");
    CUT("qwen35", "e\u0301a", " ", "1");
    CUT("qwen2", "e", "\u0301a", " ", "1");
    CUT("bailingmoe", "x", "'s", "\n\n", "y", "1", "2");
}

static void test_llama3(void **state)
{
    (void)state;
    CUT("llama-bpe", "123", "456", "7", " ", "89", "x", "'S", "!\n\n", "y");
    CUT("llama3", "a", "\n", "b");
    CUT("glm4", "123", "4");
}

static void test_o200k(void **state)
{
    (void)state;
    CUT("gpt-4o", "camel", "Case", "HTTPServer's", " ABC", " def", "1", "/b", "//", "c", "\n");
    CUT("o200k", "ΑΒγ", " Жж'LL", "!//\n/", "x");
    CUT("tekken", "HTTPServer", "'s", " ", "1", "2");
}

static void test_deepseek(void **state)
{
    (void)state;
    CUT("deepseek-llm", "Hi", " there", ",", " ", "你好", "1", "2", "3", " x", "  ", "\n");
    CUT("deepseek-llm", "  ", "ไ", "   "); /* white space is cut off only at the end of a piece */
    CUT("deepseek-llm", "  ع  ع", " ");
    CUT("deepseek-coder", "if", "(", "x", ")", "\n", "\n", "\t", "\ty", "1", "2");
    CUT("deepseek-v3", "abc", "123", "4", " ", "你好", ",x", "();\n", "!!");
    CUT("deepseek-v3", "カタ漢", "\x01\x02", " é");
}

static void test_others(void **state)
{
    (void)state;
    CUT("default", "a", "$", "b", " ", "123", "4", "...", " c");
    CUT("starcoder", "a", " ", "1", "2", " b");
}

/* Unicode's White_Space, which is what the published expressions mean by \s. */
static void test_white_space_is_unicodes(void **state)
{
    (void)state;
    static const uint32_t spaces[] = {0x09,   0x0b,   0x0c,   0x85,   0xa0,   0x1680, 0x2000,
                                      0x2005, 0x200a, 0x2028, 0x2029, 0x202f, 0x205f, 0x3000};
    static const uint32_t others[] = {0x08, 0x1c, 0x1f, 0x180e, 0x200b, 0x2060, 0xfeff};
    for (size_t i = 0; i < EK_COUNT_OF(spaces) + EK_COUNT_OF(others); i++) {
        bool space = i < EK_COUNT_OF(spaces);
        char one[5] = "";
        char two[9] = "";
        ek_utf8_encode(space ? spaces[i] : others[i - EK_COUNT_OF(spaces)], one);
        snprintf(two, sizeof two, "%s%s", one, one);
        if (space)
            CUT("gpt-2", one, one, "x"); /* a run of spaces less the one before a word */
        else
            CUT("gpt-2", two, "x");
    }
}

static size_t random_text(ek_rng *rng, char *text, size_t max)
{
    static const char *const bits[] = {
        " ",  "  ", "\n",     "\r\n",   "\t",     "a", "Word",    "WORD", "'s",   "'LL", "1", "23",
        "½",  "你", "好",     "の",     "ไท",     "é", "e\u0301", "😀",    "!",    "..",  "/", "$",
        "＋", "。", "\u00a0", "\u3000", "\u200b", "Ж", "ǅ",       "ª",    "\x01", "한"};
    size_t len = 0;
    while (len + 8 < max) {
        if (ek_rng_below(rng, 8) == 0) {
            uint32_t cp = (uint32_t)ek_rng_below(rng, 0x110000);
            if (cp < 0xd800 || cp > 0xdfff) len += ek_utf8_encode(cp, text + len);
            continue;
        }
        const char *bit = bits[ek_rng_below(rng, EK_COUNT_OF(bits))];
        memcpy(text + len, bit, strlen(bit));
        len += strlen(bit);
    }
    return len;
}

static void test_all_rules_both_ways(void **state)
{
    (void)state;
    int32_t n_rules;
    const ek_pretokenize_rule *rules = ek_model_pretokenize_rules(&n_rules);
    ek_rng rng;
    ek_rng_init(&rng, 11);
    int n_jit = 0;
    for (int32_t r = 0; r < n_rules; r++) {
        ek_pretokenizer pre[2];
        ek_pretokenize_cursor cursor[2];
        for (int jit = 0; jit < 2; jit++)
            open_rule(rules[r].name, jit, &pre[jit], &cursor[jit]);
        assert_false(pre[0].jit[0]);
        n_jit += pre[1].jit[0];
        for (int round = 0; round < 60; round++) {
            char text[400];
            size_t len = random_text(&rng, text, 16 + ek_rng_below(&rng, sizeof text - 16));
            for (int jit = 0; jit < 2; jit++)
                ek_model_pretokenize_text(&cursor[jit], (ek_str){text, len});
            size_t at = 0;
            for (;;) {
                ek_str piece[2];
                ek_status first = ek_model_pretokenize_next(&cursor[0], &piece[0]);
                assert_int_equal(ek_model_pretokenize_next(&cursor[1], &piece[1]), first);
                if (first == EK_END) break;
                assert_int_equal(first, EK_OK);
                assert_ptr_equal(piece[0].data, text + at);
                assert_ptr_equal(piece[1].data, text + at);
                assert_int_equal(piece[0].len, piece[1].len);
                assert_true(piece[0].len > 0);
                at += piece[0].len;
            }
            assert_int_equal(at, len);
        }
        for (int jit = 0; jit < 2; jit++)
            close_rule(&pre[jit], &cursor[jit]);
    }
    print_message("%d rules, %d of them compiled to machine code\n", n_rules, n_jit);
}

/*
 * A megabyte of one thing, in the shapes that would be quadratic if an expression tried every
 * start: a regression shows as a test that does not end.
 */
static void test_megabytes_end(void **state)
{
    (void)state;
    static const char *const units[] = {" ", "\n", "a", "A", "!", "1", "你", "\x01", " \t", "' "};
    enum { LONG = 1 << 20 };
    char *text = malloc(LONG + 8);
    assert_non_null(text);
    int32_t n_rules;
    const ek_pretokenize_rule *rules = ek_model_pretokenize_rules(&n_rules);
    for (int32_t r = 0; r < n_rules; r++) {
        if (r > 0 && rules[r].patterns == rules[r - 1].patterns) continue;
        ek_pretokenizer pre;
        ek_pretokenize_cursor cursor;
        open_rule(rules[r].name, true, &pre, &cursor);
        for (size_t u = 0; u < EK_COUNT_OF(units); u++) {
            size_t len = 0;
            for (; len + 4 < LONG; len += strlen(units[u]))
                memcpy(text + len, units[u], strlen(units[u]));
            memcpy(text + len, "ไ", 3);
            ek_model_pretokenize_text(&cursor, (ek_str){text, len + 3});
            size_t total = 0;
            ek_str piece;
            ek_status status;
            while ((status = ek_model_pretokenize_next(&cursor, &piece)) == EK_OK)
                total += piece.len;
            assert_int_equal(status, EK_END);
            assert_int_equal(total, len + 3);
        }
        close_rule(&pre, &cursor);
    }
    free(text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_gpt2),
        cmocka_unit_test(test_qwen2),
        cmocka_unit_test(test_llama3),
        cmocka_unit_test(test_o200k),
        cmocka_unit_test(test_deepseek),
        cmocka_unit_test(test_others),
        cmocka_unit_test(test_white_space_is_unicodes),
        cmocka_unit_test(test_all_rules_both_ways),
        cmocka_unit_test(test_megabytes_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
