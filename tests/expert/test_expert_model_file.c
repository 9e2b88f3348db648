/*
 * Goal: a model opens whole (one file or shards) or not at all, and what is wrong is said with its
 * path. Method: the tiny models of every architecture; the shards with one taken away; files that
 * are no model.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include <cmocka.h>

#include "expert/model_file.h"
#include "support/fixtures.h"
#include "support/gguf_builder.h"

static void test_models_of_every_architecture(void **state)
{
    (void)state;
    static const struct {
        const char *arch, *tokenizer;
    } cases[] = {{"qwen2moe", "bpe/qwen2"},
                 {"qwen3moe", "bpe/qwen2"},
                 {"olmoe", "bpe/olmo"},
                 {"llama", "spm"}};
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_fixture_path path;
        char name[64];
        ek_model_file *file = NULL;
        ek_err err;
        snprintf(name, sizeof name, "tests/support/tiny-%s-f32.gguf", cases[i].arch);
        ek_fixture_build(name, &path);
        if (ek_expert_model_open(path.text, NULL, &file, &err) != EK_OK) fail_msg("%s", err.text);
        assert_string_equal(file->model->params.arch, cases[i].arch);
        assert_string_equal(ek_model_tokenizer_kind(file->tokenizer), cases[i].tokenizer);
        assert_int_equal(ek_model_tokenizer_vocab(file->tokenizer), file->model->params.n_vocab);
        assert_non_null(file->chat);
        assert_string_equal(file->chat_problem, "");
        struct stat info;
        assert_int_equal(stat(path.text, &info), 0);
        assert_int_equal(file->file_bytes, info.st_size);
        ek_expert_model_close(file);
    }
    ek_expert_model_close(NULL);
}

static void test_shards_open_as_one_model(void **state)
{
    (void)state;
    ek_fixture_path split;
    ek_fixture_path whole;
    ek_model_file *a = NULL;
    ek_model_file *b = NULL;
    ek_fixture_build("tests/support/tiny-split-00001-of-00003.gguf", &split);
    ek_fixture_build("tests/support/tiny-qwen2moe-q8_0.gguf", &whole);
    assert_int_equal(ek_expert_model_open(split.text, NULL, &a, NULL), EK_OK);
    assert_int_equal(ek_expert_model_open(whole.text, NULL, &b, NULL), EK_OK);
    assert_int_equal(a->model->params.n_params_total, b->model->params.n_params_total);
    assert_int_equal(a->model->params.weight_bytes, b->model->params.weight_bytes);
    const ek_tensor *x = a->model->layers[1].expert_down;
    const ek_tensor *y = b->model->layers[1].expert_down;
    assert_int_equal(x->bytes, y->bytes);
    assert_memory_equal(x->data, y->data, x->bytes);
    assert_true(a->file_bytes > b->file_bytes); /* each shard has a header */
    ek_expert_model_close(a);
    ek_expert_model_close(b);
}

/* A copy of the first n shards of three in a folder of its own; the path of the first. */
static void shards_copy(const ek_fixture_path *dir, int32_t n, ek_fixture_path *out_first)
{
    for (int32_t i = n; i >= 1; i--) {
        char name[128];
        ek_fixture_path from;
        snprintf(name, sizeof name, "tests/support/tiny-split-%05d-of-00003.gguf", i);
        ek_fixture_build(name, &from);
        ek_span bytes = ek_fixture_read(from.text);
        ek_fixture_join(dir, strrchr(name, '/') + 1, out_first);
        ek_fixture_write(out_first->text, bytes);
        ek_fixture_free(bytes);
    }
}

static void expect_refused(const char *path, const char *chat, ek_status status, const char *text)
{
    ek_model_file *file = NULL;
    ek_err err = {0};
    ek_status got = ek_expert_model_open(path, chat, &file, &err);
    if (got != status || !strstr(err.text, text) || strncmp(err.text, path, strlen(path)) != 0)
        fail_msg("expected %s with \"%s...%s\", got %s with \"%s\"", ek_status_name(status), path,
                 text, ek_status_name(got), err.text);
    assert_null(file);
}

static void test_missing_shard_is_named(void **state)
{
    (void)state;
    ek_fixture_path dir;
    ek_fixture_path first;
    ek_fixture_path second;
    ek_fixture_tempdir(&dir);
    shards_copy(&dir, 2, &first);
    ek_fixture_join(&dir, "tiny-split-00002-of-00003.gguf", &second);
    expect_refused(first.text, NULL, EK_ENOTFOUND, "shard 3 of 3: ");
    expect_refused(first.text, NULL, EK_ENOTFOUND, "tiny-split-00003-of-00003.gguf");
    expect_refused(second.text, NULL, EK_EINVAL, "this is shard 2 of 3: name the first one");
    ek_fixture_tempdir_remove(&dir);
}

static void test_what_is_no_model(void **state)
{
    (void)state;
    ek_fixture_path dir;
    ek_fixture_path path;
    ek_fixture_tempdir(&dir);
    ek_fixture_join(&dir, "absent.gguf", &path);
    expect_refused(path.text, NULL, EK_ENOTFOUND, "");
    expect_refused(dir.text, NULL, EK_EIO, "");
    ek_fixture_join(&dir, "empty.gguf", &path);
    ek_fixture_write(path.text, (ek_span){(const uint8_t *)"", 0});
    expect_refused(path.text, NULL, EK_EIO, "empty");
    ek_fixture_join(&dir, "text.gguf", &path);
    ek_fixture_write(path.text, (ek_span){(const uint8_t *)"hello, world", 12});
    expect_refused(path.text, NULL, EK_EFORMAT, ": header: not a GGUF file");
    ek_fixture_tempdir_remove(&dir);
}

/* The smallest model has no tokenizer; that is an error of the file like any other. */
static void test_faults_of_every_layer_name_the_path(void **state)
{
    (void)state;
    static const struct {
        const char *key, *text;
        uint32_t value;
        ek_status status;
    } cases[] = {
        {"general.alignment", ": general.alignment: is 3", 3, EK_EFORMAT},
        {"llama.expert_count", ": llama.expert_count: is 5000", 5000, EK_EFORMAT},
        {"other", ": tokenizer.ggml.model", 1, EK_EFORMAT},
    };
    ek_fixture_path dir;
    ek_fixture_path path;
    ek_fixture_tempdir(&dir);
    ek_fixture_join(&dir, "m.gguf", &path);
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_builder *b = ek_builder_model("llama");
        ek_builder_u32(b, cases[i].key, cases[i].value);
        ek_span bytes = ek_builder_finish(b);
        ek_fixture_write(path.text, bytes);
        ek_fixture_free(bytes);
        ek_builder_destroy(b);
        expect_refused(path.text, NULL, cases[i].status, cases[i].text);
    }
    ek_fixture_tempdir_remove(&dir);
}

static void test_chat_format_by_name(void **state)
{
    (void)state;
    ek_fixture_path path;
    ek_model_file *file = NULL;
    ek_fixture_build("tests/support/tiny-llama-f32.gguf", &path);
    assert_int_equal(ek_expert_model_open(path.text, "chatml", &file, NULL), EK_OK);
    assert_string_equal(ek_model_chat_name(file->chat), "chatml");
    ek_expert_model_close(file);
    expect_refused(path.text, "klingon", EK_EINVAL,
                   "chat format \"klingon\" is not known (known: ");
}

/* The template's marker is overwritten in place: everything else about the file stays right. */
static void test_unknown_template_is_no_error_but_a_reason(void **state)
{
    (void)state;
    static const char marker[] = "[INST]";
    ek_fixture_path dir;
    ek_fixture_path path;
    ek_model_file *file = NULL;
    ek_fixture_build("tests/support/tiny-llama-f32.gguf", &path);
    ek_span bytes = ek_fixture_read(path.text);
    ek_str text = {(const char *)bytes.data, bytes.len};
    int32_t n = 0;
    for (ptrdiff_t at; (at = ek_str_find(text, ek_str_from(marker))) >= 0; n++)
        memset((char *)(uintptr_t)text.data + at, '?', sizeof marker - 1);
    assert_true(n > 0);
    ek_fixture_tempdir(&dir);
    ek_fixture_join(&dir, "m.gguf", &path);
    ek_fixture_write(path.text, bytes);
    ek_fixture_free(bytes);
    assert_int_equal(ek_expert_model_open(path.text, NULL, &file, NULL), EK_OK);
    assert_null(file->chat);
    assert_true(strlen(file->chat_problem) > 0);
    ek_expert_model_close(file);
    ek_fixture_tempdir_remove(&dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_models_of_every_architecture),
        cmocka_unit_test(test_shards_open_as_one_model),
        cmocka_unit_test(test_missing_shard_is_named),
        cmocka_unit_test(test_what_is_no_model),
        cmocka_unit_test(test_faults_of_every_layer_name_the_path),
        cmocka_unit_test(test_chat_format_by_name),
        cmocka_unit_test(test_unknown_template_is_no_error_but_a_reason),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
