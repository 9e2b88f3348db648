/* Expected values in JSON -> structs. A file that is there but not as expected fails the test. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "fixtures.h"

/* Decoded values are shorter than their text: 4 bytes for at least "0, ", 3 for 4 of base64. */
#define MEM_PER_JSON_BYTE 4

static json_t *json_load(const char *name, ek_arena *out_arena)
{
    ek_fixture_path path;
    if (!ek_fixture_shared(name, &path)) return NULL;
    ek_span text = ek_fixture_read(path.text);
    json_error_t error;
    json_t *root = json_loadb((const char *)text.data, text.len,
                              JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &error);
    if (!root) fail_msg("%s:%d: %s", path.text, error.line, error.text);
    *out_arena = ek_fixture_arena(text.len * MEM_PER_JSON_BYTE + 4096);
    ek_fixture_free(text);
    return root;
}

static json_t *member(const json_t *object, const char *key)
{
    json_t *value = json_object_get(object, key);
    if (!value) fail_msg("expected values: no member \"%s\"", key);
    return value;
}

static ek_str str_copy(const json_t *value, ek_arena *arena)
{
    if (!json_is_string(value)) fail_msg("expected values: not a string");
    ek_str text = {json_string_value(value), json_string_length(value)};
    return (ek_str){ek_arena_try_strz(arena, text), text.len};
}

static const int32_t *ids_copy(const json_t *array, ek_arena *arena, int32_t *out_n)
{
    if (!json_is_array(array)) fail_msg("expected values: not an array of ids");
    size_t n = json_array_size(array);
    int32_t *ids = ek_new(arena, int32_t, n ? n : 1);
    for (size_t i = 0; i < n; i++)
        ids[i] = (int32_t)json_integer_value(json_array_get(array, i));
    *out_n = (int32_t)n;
    return ids;
}

static uint32_t base64_digit(char c)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    const char *at = c ? strchr(digits, c) : NULL;
    if (!at) fail_msg("expected values: not base64: '%c'", c);
    return (uint32_t)(at - digits);
}

/* Little-endian f32 in base64, as the hosts of this program store them too. */
static const float *floats_decode(const json_t *value, ek_arena *arena, int32_t *out_n)
{
    const char *text = json_string_value(value);
    if (!text) fail_msg("expected values: not base64 text");
    size_t len = json_string_length(value);
    while (len > 0 && text[len - 1] == '=')
        len--;
    size_t n_bytes = len * 6 / 8;
    if (n_bytes % sizeof(float) != 0) fail_msg("expected values: %zu bytes of f32", n_bytes);
    float *floats = ek_new(arena, float, n_bytes / sizeof(float));
    uint8_t *bytes = (uint8_t *)floats;
    uint32_t bits = 0;
    for (size_t i = 0, n = 0; i < len; i++) {
        bits = bits << 6 | base64_digit(text[i]);
        size_t n_bits = (i + 1) * 6;
        if (n_bits / 8 > n) bytes[n++] = (uint8_t)(bits >> (n_bits % 8));
    }
    *out_n = (int32_t)(n_bytes / sizeof(float));
    return floats;
}

static void case_read(const json_t *json, ek_arena *arena, ek_fixture_case *out_case)
{
    ek_fixture_case *c = out_case;
    c->prompt = str_copy(member(json, "prompt"), arena);
    c->tokens = ids_copy(member(json, "tokens"), arena, &c->n_tokens);
    c->greedy = ids_copy(member(json, "greedy"), arena, &c->n_greedy);
    c->logits = floats_decode(member(json, "logits_b64"), arena, &c->n_logits);
    c->exact_greedy = c->greedy;
    c->n_exact_greedy = c->n_greedy;
    c->exact_logits = c->logits;
    if (json_object_get(json, "exact_logits_b64")) {
        int32_t n = 0;
        c->exact_logits = floats_decode(member(json, "exact_logits_b64"), arena, &n);
        assert_int_equal(n, c->n_logits);
        c->exact_greedy = ids_copy(member(json, "exact_greedy"), arena, &c->n_exact_greedy);
        c->nmse_of_peer = json_number_value(member(json, "nmse_of_peer"));
    }
    const json_t *margin = json_object_get(json, "top1_margin");
    c->top1_margin = margin ? json_number_value(margin) : (double)NAN;
    if (json_object_get(json, "text")) c->text = str_copy(member(json, "text"), arena);
}

bool ek_fixture_golden_load(const char *model_file, ek_fixture_golden *out_golden)
{
    bool is_demo = strncmp(model_file, "demo-", 5) == 0;
    ek_arena arena;
    json_t *root = json_load(
        is_demo ? "data/models/expected_demo.json" : "data/models/expected_logits.json", &arena);
    if (!root) return false;
    ek_fixture_golden golden = {.mem = arena.beg};
    const json_t *entry = is_demo ? root : member(root, model_file);
    const json_t *cases = member(entry, "cases");
    size_t n = json_array_size(cases);
    assert_true(n > 0);
    ek_fixture_case *items = ek_new(&arena, ek_fixture_case, n);
    for (size_t i = 0; i < n; i++)
        case_read(json_array_get(cases, i), &arena, &items[i]);
    golden.cases = items;
    golden.n_cases = (int32_t)n;
    golden.sha256 = str_copy(member(entry, "file_sha256"), &arena);
    if (!is_demo) {
        golden.preset = str_copy(member(entry, "preset"), &arena);
        golden.quant = str_copy(member(entry, "quant"), &arena);
    }
    json_decref(root);
    *out_golden = golden;
    return true;
}

void ek_fixture_golden_free(ek_fixture_golden *golden)
{
    ek_fixture_arena_free(golden->mem);
    *golden = (ek_fixture_golden){0};
}

bool ek_fixture_encodings_load(const char *preset, ek_fixture_encodings *out_encodings)
{
    ek_arena arena;
    json_t *root = json_load("data/models/expected_tokens.json", &arena);
    if (!root) return false;
    ek_fixture_encodings encodings = {.mem = arena.beg};
    const json_t *strings = member(root, "strings");
    const json_t *ids = member(member(root, "models"), preset);
    size_t n = json_array_size(strings);
    assert_true(n > 0);
    assert_int_equal(json_array_size(ids), n);
    ek_fixture_encoding *items = ek_new(&arena, ek_fixture_encoding, n);
    for (size_t i = 0; i < n; i++) {
        const json_t *pair = json_array_get(ids, i);
        assert_int_equal(json_array_size(pair), 2);
        items[i].text = str_copy(json_array_get(strings, i), &arena);
        items[i].plain = ids_copy(json_array_get(pair, 0), &arena, &items[i].n_plain);
        items[i].special = ids_copy(json_array_get(pair, 1), &arena, &items[i].n_special);
    }
    encodings.items = items;
    encodings.n_items = (int32_t)n;
    json_decref(root);
    *out_encodings = encodings;
    return true;
}

void ek_fixture_encodings_free(ek_fixture_encodings *encodings)
{
    ek_fixture_arena_free(encodings->mem);
    *encodings = (ek_fixture_encodings){0};
}
