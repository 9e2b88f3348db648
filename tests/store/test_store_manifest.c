/*
 * Goal: a manifest comes back as it was written, nothing that was changed or made up passes, what
 * is wanted is told apart, and requests are as few as they can be. Method: a small manifest made by
 * hand; each field spoilt in turn, the body's hash made right again where that is what would stop
 * it otherwise.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "store/ledger.h"
#include "store/manifest.h"
#include "sys/mem.h"

#define HEX "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef"

static ek_store_shard shards[] = {
    {.part = EK_STORE_HEAD, .layer = -1, .expert = -1, .bytes = 100, .tensor = "", .sha256 = HEX},
    {.part = EK_STORE_DENSE,
     .layer = -1,
     .expert = -1,
     .offset = 128,
     .bytes = 64,
     .tensor = "a \"b\"\\",
     .sha256 = HEX},
    {.part = EK_STORE_EXPERT, .offset = 192, .bytes = 50, .tensor = "x", .sha256 = HEX},
    {.part = EK_STORE_EXPERT,
     .expert = 1,
     .offset = 242,
     .bytes = 50,
     .tensor = "x",
     .sha256 = HEX},
    {.part = EK_STORE_GAP,
     .layer = -1,
     .expert = -1,
     .offset = 292,
     .bytes = 8,
     .tensor = "",
     .sha256 = HEX},
    {.part = EK_STORE_EXPERT,
     .file = 1,
     .layer = 2,
     .expert = 69,
     .offset = 10,
     .bytes = 90,
     .tensor = "y",
     .sha256 = HEX},
};
static ek_store_file files[] = {{"a.gguf", 400, 0, 5}, {"b.gguf", 100, 5, 1}};

static ek_store_manifest sample(void)
{
    return (ek_store_manifest){.arch = "qwen2moe",
                               .model = "name",
                               .n_layers = 3,
                               .n_experts = 70,
                               .identity = HEX,
                               .tokenizer = HEX,
                               .n_files = 2,
                               .n_shards = (int32_t)EK_COUNT_OF(shards),
                               .files = files,
                               .shards = shards};
}

static uint8_t memory[1 << 16];

static ek_status parse(const char *text, size_t len, ek_store_manifest *out, ek_err *err)
{
    ek_arena perm = ek_arena_over(memory, sizeof memory);
    return ek_store_manifest_parse((ek_str){text, len}, &perm, out, err);
}

static ek_str print(void)
{
    ek_store_manifest m = sample();
    ek_str text;
    assert_int_equal(ek_store_manifest_print(&m, &text, NULL), EK_OK);
    return text;
}

static void test_round_trip(void **state)
{
    (void)state;
    ek_str text = print();
    ek_store_manifest m;
    ek_err err = {0};
    assert_int_equal(parse(text.data, text.len, &m, &err), EK_OK);
    assert_string_equal(m.arch, "qwen2moe");
    assert_string_equal(m.model, "name");
    assert_int_equal(m.n_layers, 3);
    assert_int_equal(m.n_experts, 70);
    assert_int_equal(m.n_files, 2);
    assert_int_equal(m.n_shards, (int)EK_COUNT_OF(shards));
    for (int32_t i = 0; i < m.n_files; i++) {
        assert_string_equal(m.files[i].name, files[i].name);
        assert_int_equal(m.files[i].bytes, files[i].bytes);
        assert_int_equal(m.files[i].first, files[i].first);
        assert_int_equal(m.files[i].n_shards, files[i].n_shards);
    }
    for (int32_t i = 0; i < m.n_shards; i++) {
        assert_int_equal(m.shards[i].part, shards[i].part);
        assert_int_equal(m.shards[i].file, shards[i].file);
        assert_int_equal(m.shards[i].layer, shards[i].layer);
        assert_int_equal(m.shards[i].expert, shards[i].expert);
        assert_int_equal(m.shards[i].offset, shards[i].offset);
        assert_int_equal(m.shards[i].bytes, shards[i].bytes);
        assert_string_equal(m.shards[i].tensor, shards[i].tensor);
        assert_string_equal(m.shards[i].sha256, HEX);
    }
    char said[200];
    ek_store_shard_say(&m, 5, said, sizeof said);
    assert_string_equal(said, "y, expert 69 (b.gguf, 90 bytes at 10)");
    ek_sys_free((void *)(uintptr_t)text.data);
}

/* The text with `from` replaced by `to`, once; NUL-terminated. */
static char *replaced(const char *text, const char *from, const char *to)
{
    const char *at = strstr(text, from);
    assert_non_null(at);
    size_t bytes = strlen(text) + strlen(to) + 1;
    char *out = malloc(bytes);
    assert_non_null(out);
    snprintf(out, bytes, "%.*s%s%s", (int)(at - text), text, to, at + strlen(from));
    return out;
}

/* The hash that the error says was found, put in: what somebody who means it would do. */
static char *with_right_hash(char *text)
{
    ek_store_manifest m;
    ek_err err = {0};
    assert_true(parse(text, strlen(text), &m, &err) < 0);
    const char *expected = strstr(err.text, "should be "), *found = strstr(err.text, "found ");
    if (!expected || !found) return text; /* it does not get so far */
    char old[65], new[65];
    snprintf(old, sizeof old, "%.64s", expected + strlen("should be "));
    snprintf(new, sizeof new, "%.64s", found + strlen("found "));
    char *fixed = replaced(text, old, new);
    free(text);
    return fixed;
}

static void test_any_change_is_noticed(void **state)
{
    (void)state;
    ek_str text = print();
    char *copy = malloc(text.len + 1);
    assert_non_null(copy);
    for (size_t i = 0; i < text.len; i++) {
        ek_store_manifest m;
        ek_err err = {0};
        memcpy(copy, text.data, text.len + 1);
        copy[i] ^= 1;
        assert_true(parse(copy, text.len, &m, &err) < 0);
        assert_true(err.text[0] != '\0');
    }
    free(copy);
    ek_sys_free((void *)(uintptr_t)text.data);
}

static void test_what_cannot_be_is_refused(void **state)
{
    (void)state;
    static const struct {
        const char *from, *to, *said;
    } cases[] = {
        {"evenkeel-manifest", "something", "is no manifest"},
        {"\"version\": 1", "\"version\": 2", "this program reads version 1"},
        {"\"layers\": 3", "\"layers\": 0", "layers: a whole number"},
        {"\"layers\": 3", "\"layers\": 2", "shard 0: layer: a whole number"},
        {"\"experts\": 70", "\"experts\": 69", "expert: a whole number"},
        {"a.gguf", "../a.gguf", "a name is not that of a file"},
        {"a.gguf", "a/b", "a name is not that of a file"},
        {"a.gguf", "b.gguf", "two have the same name"},
        {"\"bytes\": 400", "\"bytes\": 299", "shard 4: bytes: a whole number"},
        {"\"offset\": 128", "\"offset\": 99", "shard 1: offset: a whole number"},
        {"\"offset\": 242", "\"offset\": 241", "shard 3: offset: a whole number"},
        {"\"bytes\": 100,\n      \"sha256\"", "\"bytes\": 0,\n      \"sha256\"", "shard 0: bytes"},
        {"\"part\": \"gap\"", "\"part\": \"hole\"", "is none of head"},
        {"\"tensor\": \"y\"", "\"tensor\": 1", "tensor: a text is missing"},
        {"\"identity\": \"0", "\"identity\": \"X", "is not 64 lower-case"},
        {"\"name\": \"b.gguf\"", "\"name\": 7", "a text is missing"},
    };
    ek_str text = print();
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_store_manifest m;
        ek_err err = {0};
        char *spoilt = with_right_hash(replaced(text.data, cases[i].from, cases[i].to));
        assert_true(parse(spoilt, strlen(spoilt), &m, &err) < 0);
        if (!strstr(err.text, cases[i].said)) fail_msg("%zu: %s", i, err.text);
        free(spoilt);
    }
    ek_store_manifest m;
    assert_int_equal(parse("{", 1, &m, NULL), EK_EFORMAT);
    assert_int_equal(parse("[]", 2, &m, NULL), EK_EFORMAT);
    ek_sys_free((void *)(uintptr_t)text.data);
}

static void test_too_little_memory(void **state)
{
    (void)state;
    ek_str text = print();
    for (size_t bytes = 0; bytes < 1500; bytes += 7) {
        ek_arena perm = ek_arena_over(memory, bytes);
        ek_store_manifest m;
        ek_status status = ek_store_manifest_parse(text, &perm, &m, NULL);
        assert_true(status == EK_OK || status == EK_ENOMEM);
    }
    ek_sys_free((void *)(uintptr_t)text.data);
}

static void test_wants(void **state)
{
    (void)state;
    ek_store_manifest m = sample();
    const uint64_t experts[3][2] = {{2, 0}, {0, 0}, {0, 32}}; /* 0:1 and 2:69 */
    const ek_store_want some = {.experts = &experts[0][0]};
    const ek_store_want dense = {.dense = true};
    const ek_store_want all = {.all = true};
    static const bool some_has[] = {true, false, false, true, false, true};
    static const bool dense_has[] = {true, true, false, false, true, false};
    for (int32_t i = 0; i < m.n_shards; i++) {
        assert_int_equal(ek_store_wants(&m, &some, i), some_has[i]);
        assert_int_equal(ek_store_wants(&m, &dense, i), dense_has[i]);
        assert_true(ek_store_wants(&m, &all, i));
    }
}

static void test_plan(void **state)
{
    (void)state;
    ek_store_manifest m = sample();
    ek_store_pull pulls[EK_COUNT_OF(shards)];
    const uint8_t all[] = {1, 1, 1, 1, 1, 1}, few[] = {1, 0, 0, 1, 1, 0}, none[6] = {0};
    assert_int_equal(ek_store_plan(&m, none, 1000, 1000, pulls), 0);
    assert_int_equal(ek_store_plan(&m, all, 1000, 28, pulls), 2); /* never across files */
    assert_int_equal(pulls[0].last, 4);
    assert_int_equal(pulls[1].first, 5);
    assert_int_equal(pulls[1].file, 1);
    assert_int_equal(ek_store_plan(&m, all, 1000, 27, pulls), 3); /* 28 bytes behind the head */
    assert_int_equal(ek_store_plan(&m, all, 114, 28, pulls), 4);  /* head; 64 + 50; 58; file 1 */
    assert_int_equal(pulls[1].last, 2);
    assert_int_equal(ek_store_plan(&m, all, 1, 1000, pulls), 6); /* a shard is never cut */
    assert_int_equal(ek_store_plan(&m, few, 1000, 10, pulls), 2);
    assert_int_equal(pulls[1].first, 3);
    assert_int_equal(pulls[1].last, 4);
}

static void test_ledger(void **state)
{
    (void)state;
    char path[] = "/tmp/evenkeel-ledger-XXXXXX";
    int fd = mkstemp(path);
    assert_true(fd >= 0);
    FILE *file = fdopen(fd, "w");
    assert_non_null(file);
    assert_int_equal(fclose(file), 0);
    ek_store_manifest m = sample(), other = sample();
    memcpy(m.body_sha256, HEX, sizeof m.body_sha256);
    const uint8_t done[6] = {1, 1, 0, 1, 0, 1};
    uint8_t read[6];
    ek_err err = {0};
    assert_int_equal(ek_store_ledger_write(path, &m, done, &err), EK_OK);
    assert_int_equal(ek_store_ledger_read(path, &m, read, &err), EK_OK);
    assert_memory_equal(read, done, sizeof done);
    assert_int_equal(ek_store_ledger_read(path, &other, read, &err), EK_ESTALE);
    m.n_shards = 5; /* a ledger that names shards which are not there */
    memset(read, 7, sizeof read);
    assert_int_equal(ek_store_ledger_read(path, &m, read, &err), EK_EFORMAT);
    assert_int_equal(read[0], 7);
    remove(path);
    assert_int_equal(ek_store_ledger_read(path, &m, read, &err), EK_ENOTFOUND);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_round_trip),
        cmocka_unit_test(test_any_change_is_noticed),
        cmocka_unit_test(test_what_cannot_be_is_refused),
        cmocka_unit_test(test_too_little_memory),
        cmocka_unit_test(test_wants),
        cmocka_unit_test(test_plan),
        cmocka_unit_test(test_ledger),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
