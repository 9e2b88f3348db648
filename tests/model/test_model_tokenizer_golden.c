/*
 * Goal: the ids are those of an independent implementation, for every pre-tokenizer and vocabulary
 * kind that the reference data covers, with special tokens parsed and not. Method: the 84 strings
 * of the reference data (Chinese, English, code, edge cases) through five tokenizers, each way, and
 * the prompts of the reference logits with BOS as the file says.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include <cmocka.h>

#include "support/fixtures.h"
#include "tokenized.h"

static void check_encodings(const char *preset, const char *kind)
{
    ek_fixture_encodings expected;
    ek_fixture_path path;
    if (!ek_fixture_encodings_load(preset, &expected)) skip();
    if (!ek_fixture_shared_gguf(preset, "f32", &path)) skip();
    tokenized t = tokenized_read(path.text);
    assert_string_equal(ek_model_tokenizer_kind(t.tokenizer), kind);
    assert_true(expected.n_items >= 84);
    for (int32_t i = 0; i < expected.n_items; i++) {
        const ek_fixture_encoding *item = &expected.items[i];
        char what[64];
        snprintf(what, sizeof what, "%s, string %d, not parsed", preset, i);
        id_list plain = encode(&t, item->text, false);
        assert_ids(what, plain, item->plain, item->n_plain);
        snprintf(what, sizeof what, "%s, string %d, parsed", preset, i);
        id_list special = encode(&t, item->text, true);
        assert_ids(what, special, item->special, item->n_special);
        free(plain.data);
        free(special.data);
        assert_round_trip(&t, item->text);
    }
    print_message("%s: %d strings, parsed and not\n", preset, expected.n_items);
    tokenized_close(&t);
    ek_fixture_encodings_free(&expected);
}

static void test_qwen2(void **state)
{
    (void)state;
    check_encodings("tiny-qwen2moe", "bpe/qwen2");
}

static void test_olmo(void **state)
{
    (void)state;
    check_encodings("tiny-olmoe", "bpe/olmo");
}

static void test_deepseek_llm(void **state)
{
    (void)state;
    check_encodings("tiny-deepseek2", "bpe/deepseek-llm");
}

static void test_deepseek_v3(void **state)
{
    (void)state;
    check_encodings("tiny-deepseek2-v3", "bpe/deepseek-v3");
}

static void test_spm(void **state)
{
    (void)state;
    check_encodings("tiny-mixtral", "spm");
}

static void check_prompts(const tokenized *t, const ek_fixture_golden *golden)
{
    int64_t n_bos = ek_model_tokenizer_adds_bos(t->tokenizer) ? 1 : 0;
    for (int32_t i = 0; i < golden->n_cases; i++) {
        const ek_fixture_case *item = &golden->cases[i];
        char what[64];
        snprintf(what, sizeof what, "%.*s, prompt %d", EK_STR_ARG(golden->preset), i);
        if (n_bos) assert_int_equal(item->tokens[0], ek_model_tokenizer_bos(t->tokenizer));
        id_list ids = encode(t, item->prompt, true);
        assert_ids(what, ids, item->tokens + n_bos, item->n_tokens - n_bos);
        free(ids.data);
    }
    print_message("%.*s: %d prompts\n", EK_STR_ARG(golden->preset), golden->n_cases);
}

static void test_logit_prompts(void **state)
{
    (void)state;
    static const char *const presets[] = {"tiny-qwen2moe",  "tiny-qwen3moe",     "tiny-olmoe",
                                          "tiny-deepseek2", "tiny-deepseek2-v3", "tiny-mixtral"};
    for (size_t i = 0; i < EK_COUNT_OF(presets); i++) {
        char file[64];
        ek_fixture_golden golden;
        ek_fixture_path path;
        snprintf(file, sizeof file, "%s-f32.gguf", presets[i]);
        if (!ek_fixture_golden_load(file, &golden)) skip();
        if (!ek_fixture_shared_gguf(presets[i], "f32", &path)) skip();
        tokenized t = tokenized_read(path.text);
        check_prompts(&t, &golden);
        tokenized_close(&t);
        ek_fixture_golden_free(&golden);
    }
}

static void test_demo_prompts(void **state)
{
    (void)state;
    ek_fixture_golden golden;
    ek_fixture_path path;
    if (!ek_fixture_golden_load("demo-q8_0.gguf", &golden)) skip();
    if (!ek_fixture_shared("data/models/demo-q8_0.gguf", &path)) skip();
    tokenized t = tokenized_read(path.text);
    check_prompts(&t, &golden);
    for (int32_t i = 0; i < golden.n_cases; i++) {
        const ek_fixture_case *item = &golden.cases[i];
        size_t len;
        char *text = decode(&t, item->greedy, item->n_greedy, false, &len);
        assert_int_equal(len, item->text.len);
        assert_memory_equal(text, item->text.data, len);
        free(text);
        assert_true(ek_model_tokenizer_is_end(t.tokenizer, item->greedy[item->n_greedy - 1]));
    }
    tokenized_close(&t);
    ek_fixture_golden_free(&golden);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_qwen2),        cmocka_unit_test(test_olmo),
        cmocka_unit_test(test_deepseek_llm), cmocka_unit_test(test_deepseek_v3),
        cmocka_unit_test(test_spm),          cmocka_unit_test(test_logit_prompts),
        cmocka_unit_test(test_demo_prompts),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
