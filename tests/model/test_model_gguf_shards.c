/*
 * Goal: a split model is one model, and a shard that is missing, repeated or foreign is found.
 * Method: names by rule; the tiny model in three shards against the same weights in one file.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "model/gguf.h"
#include "support/fixtures.h"
#include "support/gguf_builder.h"

static void test_names_of_shards(void **state)
{
    (void)state;
    static const struct {
        const char *path;
        ek_status status;
        int32_t n;
    } cases[] = {
        {"m.gguf", EK_OK, 1},
        {"", EK_OK, 1},
        {"d/m-00001-of-00001.gguf", EK_OK, 1},
        {"d/m-00001-of-00003.gguf", EK_OK, 3},
        {"-00001-of-00512.gguf", EK_OK, 512},
        {"m-00001-of-00513.gguf", EK_EINVAL, 0},
        {"m-00001-of-00000.gguf", EK_EINVAL, 0},
        {"m-00002-of-00003.gguf", EK_EINVAL, 0},
        {"m-00004-of-00003.gguf", EK_EINVAL, 0},
        {"m-00000-of-00003.gguf", EK_EINVAL, 0},
        {"m-0001-of-00003.gguf", EK_OK, 1}, /* an ordinary name */
        {"m-0000a-of-00003.gguf", EK_OK, 1},
        {"m-00001-of-00003.GGUF", EK_OK, 1},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        int32_t n = 0;
        ek_err err = {0};
        assert_int_equal(ek_model_gguf_shard_count(cases[i].path, &n, &err), cases[i].status);
        assert_int_equal(n, cases[i].n);
        assert_int_equal(strlen(err.text) > 0, cases[i].status != EK_OK);
    }
    ek_err err;
    int32_t n;
    assert_int_equal(ek_model_gguf_shard_count("d/m-00002-of-00003.gguf", &n, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "name the first one, d/m-00001-of-00003.gguf"));
}

static void test_paths_of_shards(void **state)
{
    (void)state;
    char path[64];
    const char *first = "d/m-00001-of-00012.gguf";
    assert_int_equal(ek_model_gguf_shard_path(first, 11, path, sizeof path), EK_OK);
    assert_string_equal(path, "d/m-00012-of-00012.gguf");
    assert_int_equal(ek_model_gguf_shard_path(first, 0, path, strlen(first) + 1), EK_OK);
    assert_string_equal(path, first);
    assert_int_equal(ek_model_gguf_shard_path(first, 0, path, strlen(first)), EK_ERANGE);
    assert_int_equal(ek_model_gguf_shard_path("m.gguf", 0, path, 7), EK_OK);
    assert_string_equal(path, "m.gguf");
    assert_int_equal(ek_model_gguf_shard_path("m.gguf", 0, path, 6), EK_ERANGE);
}

#define N_SHARDS 3

typedef struct shards {
    ek_span file[N_SHARDS];
    void *mem;
    ek_gguf *gguf;
    ek_err err;
} shards;

static shards shards_read(void)
{
    shards s = {0};
    for (int32_t i = 0; i < N_SHARDS; i++) {
        ek_fixture_path first;
        char path[EK_FIXTURE_PATH_MAX];
        ek_fixture_build("tests/support/tiny-split-00001-of-00003.gguf", &first);
        assert_int_equal(ek_model_gguf_shard_path(first.text, i, path, sizeof path), EK_OK);
        s.file[i] = ek_fixture_read(path);
    }
    return s;
}

static ek_status shards_parse(shards *s, const ek_span *files, int32_t n)
{
    size_t bytes = 0;
    for (int32_t i = 0; i < n; i++)
        bytes += files[i].len;
    ek_fixture_arena_free(s->mem);
    ek_arena perm = ek_fixture_arena(ek_model_gguf_perm_bytes_max(bytes));
    s->mem = perm.beg;
    return ek_model_gguf_parse(files, n, &perm, &s->gguf, &s->err);
}

static void shards_free(shards *s)
{
    for (int32_t i = 0; i < N_SHARDS; i++)
        ek_fixture_free(s->file[i]);
    ek_fixture_arena_free(s->mem);
}

static void test_split_model_equals_the_whole(void **state)
{
    (void)state;
    ek_fixture_path path;
    ek_fixture_build("tests/support/tiny-qwen2moe-q8_0.gguf", &path);
    ek_span file = ek_fixture_read(path.text);
    ek_arena perm = ek_fixture_arena(ek_model_gguf_perm_bytes_max(file.len));
    void *perm_mem = perm.beg;
    ek_gguf *whole;
    assert_int_equal(ek_model_gguf_parse(&file, 1, &perm, &whole, NULL), EK_OK);

    shards s = shards_read();
    assert_int_equal(shards_parse(&s, s.file, N_SHARDS), EK_OK);
    int64_t n = ek_model_gguf_tensor_count(whole);
    assert_int_equal(ek_model_gguf_tensor_count(s.gguf), n);
    for (int64_t i = 0; i < n; i++) {
        const ek_tensor *a = ek_model_gguf_tensor_at(whole, i);
        const ek_tensor *b = ek_model_gguf_tensor(s.gguf, a->name);
        assert_non_null(b);
        assert_int_equal(a->type, b->type);
        assert_memory_equal(a->dim, b->dim, sizeof a->dim);
        assert_int_equal(a->bytes, b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    ek_str arch;
    assert_int_equal(ek_model_gguf_str(s.gguf, "general.architecture", &arch, NULL), EK_OK);
    assert_true(ek_str_eqz(arch, "qwen2moe"));
    shards_free(&s);
    ek_fixture_arena_free(perm_mem);
    ek_fixture_free(file);
}

static void expect_refused(shards *s, const ek_span *files, int32_t n, const char *text)
{
    assert_int_equal(shards_parse(s, files, n), EK_EFORMAT);
    if (!strstr(s->err.text, text)) fail_msg("\"%s\" is not in \"%s\"", text, s->err.text);
}

static void test_wrong_sets_of_shards_are_refused(void **state)
{
    (void)state;
    shards s = shards_read();
    expect_refused(&s, s.file, 1, "split.count: the model has 3 shards, the file's name says 1");
    expect_refused(&s, s.file, 2, "shard 1 of 2: split.count: the model has 3 shards");
    expect_refused(&s, (const ek_span[]){s.file[0], s.file[2], s.file[1]}, 3,
                   "shard 2 of 3: split.no: is 2, must be 1 here");
    expect_refused(&s, (const ek_span[]){s.file[0], s.file[0], s.file[2]}, 3,
                   "shard 2 of 3: split.no: is 0");
    shards_free(&s);
}

/* Two shards as the builder makes them, with what the case says of the second. */
static void expect_pair_refused(const char *no_key, uint32_t tensors_said, const char *tensor,
                                ek_status status, const char *text)
{
    ek_span files[2];
    for (uint32_t i = 0; i < 2; i++) {
        ek_builder *b = ek_builder_create();
        if (i == 0 || strcmp(no_key, "split.no") != 0) ek_builder_u32(b, "split.no", i);
        if (i == 0 || strcmp(no_key, "split.count") != 0) ek_builder_u32(b, "split.count", 2);
        if (i == 0) ek_builder_u32(b, "split.tensors.count", tensors_said);
        ek_builder_tensor_add(b, i == 0 ? "a" : tensor, EK_TYPE_F32, (const int64_t[4]){8});
        files[i] = ek_builder_finish(b);
        ek_builder_destroy(b);
    }
    shards s = {0};
    ek_status got = shards_parse(&s, files, 2);
    if (got != status || (status != EK_OK && !strstr(s.err.text, text)))
        fail_msg("expected %s with \"%s\", got %s with \"%s\"", ek_status_name(status), text,
                 ek_status_name(got), s.err.text);
    /* The second shard cut short is named, too. */
    if (status == EK_OK) {
        files[1].len -= 1;
        assert_int_equal(shards_parse(&s, files, 2), EK_ETRUNCATED);
        assert_string_equal(s.err.text, "shard 2 of 2: tensor b: data ends 1 bytes past the end of "
                                        "the file");
    }
    shards_free(&s);
    ek_fixture_free(files[0]);
    ek_fixture_free(files[1]);
}

static void test_shards_agree_on_the_split(void **state)
{
    (void)state;
    expect_pair_refused("", 2, "b", EK_OK, "");
    expect_pair_refused("split.no", 2, "b", EK_ENOTFOUND, "shard 2 of 2: split.no: missing");
    expect_pair_refused("split.count", 2, "b", EK_ENOTFOUND, "shard 2 of 2: split.count: missing");
    expect_pair_refused("", 3, "b", EK_EFORMAT, "split.tensors.count: is 3, but the shards have 2");
    expect_pair_refused("", 2, "a", EK_EFORMAT, "tensor a: is there more than once");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_names_of_shards),
        cmocka_unit_test(test_paths_of_shards),
        cmocka_unit_test(test_split_model_equals_the_whole),
        cmocka_unit_test(test_wrong_sets_of_shards_are_refused),
        cmocka_unit_test(test_shards_agree_on_the_split),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
