/*
 * Goal: the fixtures themselves can be trusted. Method: known answers (lengths, first values) of
 * the files in
 * ../shared where it is there, and the round trip of a file in a temporary folder.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <unistd.h>

#include <cmocka.h>

#include "fixtures.h"

static void test_tempdir_holds_files_until_removed(void **state)
{
    (void)state;
    ek_fixture_path dir;
    ek_fixture_path file;
    ek_fixture_tempdir(&dir);
    ek_fixture_join(&dir, "a", &file);
    ek_fixture_write(file.text, (ek_span){(const uint8_t *)"xyz", 3});
    ek_span bytes = ek_fixture_read(file.text);
    assert_int_equal(bytes.len, 3);
    assert_memory_equal(bytes.data, "xyz", 3);
    ek_fixture_free(bytes);
    ek_fixture_tempdir_remove(&dir);
    assert_int_not_equal(access(dir.text, F_OK), 0);
}

static void test_logits_have_truth_and_margin(void **state)
{
    (void)state;
    ek_fixture_golden golden;
    if (!ek_fixture_golden_load("tiny-qwen2moe-q8_0.gguf", &golden)) skip();
    assert_true(ek_str_eqz(golden.preset, "tiny-qwen2moe"));
    assert_true(ek_str_eqz(golden.quant, "q8_0"));
    assert_int_equal(golden.sha256.len, 64);
    assert_int_equal(golden.n_cases, 8);
    for (int32_t i = 0; i < golden.n_cases; i++) {
        const ek_fixture_case *c = &golden.cases[i];
        assert_true(c->n_tokens > 0 && c->n_greedy > 0 && c->n_exact_greedy > 0);
        assert_int_equal(c->n_logits, 1024);
        /* The error that the file states is the one its numbers have: both were decoded rightly. */
        double error = 0;
        double power = 0;
        for (int32_t j = 0; j < c->n_logits; j++) {
            double exact = (double)c->exact_logits[j];
            error += pow((double)c->logits[j] - exact, 2);
            power += exact * exact;
        }
        assert_true(fabs(error / power - c->nmse_of_peer) <= 0.02 * c->nmse_of_peer);
        assert_true(c->top1_margin >= 0);
    }
    ek_fixture_golden_free(&golden);
}

static void test_demo_has_text(void **state)
{
    (void)state;
    ek_fixture_golden golden;
    if (!ek_fixture_golden_load("demo-q8_0.gguf", &golden)) skip();
    assert_int_equal(golden.n_cases, 10);
    assert_true(golden.cases[0].text.len > 0);
    assert_int_equal(golden.cases[0].n_logits, 4096);
    assert_true(isnan(golden.cases[0].top1_margin));
    ek_fixture_golden_free(&golden);
}

static void test_encodings_cover_all_strings(void **state)
{
    (void)state;
    static const char *const presets[] = {"tiny-qwen2moe", "tiny-olmoe", "tiny-deepseek2",
                                          "tiny-deepseek2-v3", "tiny-mixtral"};
    for (size_t p = 0; p < EK_COUNT_OF(presets); p++) {
        ek_fixture_encodings encodings;
        if (!ek_fixture_encodings_load(presets[p], &encodings)) skip();
        assert_int_equal(encodings.n_items, 84);
        int32_t n_parsed_differently = 0;
        for (int32_t i = 0; i < encodings.n_items; i++) {
            const ek_fixture_encoding *item = &encodings.items[i];
            assert_true(item->text.len == 0 || item->n_plain > 0);
            n_parsed_differently += item->n_plain != item->n_special;
        }
        assert_true(n_parsed_differently > 0);
        ek_fixture_encodings_free(&encodings);
    }
}

static void test_generated_model_is_made_once(void **state)
{
    (void)state;
    ek_fixture_path first;
    ek_fixture_path second;
    if (!ek_fixture_shared_gguf("tiny-olmoe", "q4_k_m", &first)) skip();
    assert_true(ek_fixture_shared_gguf("tiny-olmoe", "q4_k_m", &second));
    assert_string_equal(first.text, second.text);
    ek_span bytes = ek_fixture_read(first.text);
    assert_memory_equal(bytes.data, "GGUF", 4);
    ek_fixture_free(bytes);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tempdir_holds_files_until_removed),
        cmocka_unit_test(test_logits_have_truth_and_margin),
        cmocka_unit_test(test_demo_has_text),
        cmocka_unit_test(test_encodings_cover_all_strings),
        cmocka_unit_test(test_generated_model_is_made_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
