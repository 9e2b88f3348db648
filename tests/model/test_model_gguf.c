/*
 * Goal: what a well-formed file says is what the reader gives back, and every look-up checks type
 * and range. Method: files from the builder with one value of every kind, and the project's own
 * tiny models.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "parsed.h"
#include "support/fixtures.h"

/* One key of every number kind, each the least or greatest value that the kind holds. */
static ek_builder *numbers_file(void)
{
    ek_builder *b = ek_builder_create();
    ek_builder_add(b, "u8", EK_GGUF_U8, "\xff", 1);
    ek_builder_add(b, "i8", EK_GGUF_I8, "\x80", 1);
    ek_builder_add(b, "u16", EK_GGUF_U16, "\xff\xff", 2);
    ek_builder_add(b, "i16", EK_GGUF_I16, "\x00\x80", 2);
    ek_builder_add(b, "u32", EK_GGUF_U32, "\xff\xff\xff\xff", 4);
    ek_builder_add(b, "i32", EK_GGUF_I32, "\x00\x00\x00\x80", 4);
    ek_builder_add(b, "u64", EK_GGUF_U64, "\xff\xff\xff\xff\xff\xff\xff\xff", 8);
    ek_builder_add(b, "i64", EK_GGUF_I64, "\xfe\xff\xff\xff\xff\xff\xff\xff", 8);
    return b;
}

static void test_integers_of_every_kind(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        int64_t value;
    } cases[] = {
        {"u8", 255},         {"i8", -128},           {"u16", 65535}, {"i16", -32768},
        {"u32", 4294967295}, {"i32", -2147483648LL}, {"i64", -2},
    };
    parsed p = parsed_open(numbers_file());
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        int64_t v = cases[i].value;
        int64_t value = 0;
        ek_err err;
        assert_int_equal(ek_model_gguf_int(p.gguf, cases[i].key, v, v, &value, &err), EK_OK);
        assert_true(value == v);
        value = 77;
        assert_int_equal(ek_model_gguf_int(p.gguf, cases[i].key, v + 1, v + 9, &value, &err),
                         EK_EFORMAT);
        assert_int_equal(ek_model_gguf_int(p.gguf, cases[i].key, v - 9, v - 1, &value, &err),
                         EK_EFORMAT);
        assert_non_null(strstr(err.text, cases[i].key));
        assert_true(value == 77); /* written on success only */
    }
    int64_t value;
    assert_int_equal(ek_model_gguf_int(p.gguf, "u64", INT64_MIN, INT64_MAX - 1, &value, NULL),
                     EK_EFORMAT);
    parsed_close(&p);
}

static void test_missing_and_mistyped_keys_are_told_apart(void **state)
{
    (void)state;
    ek_builder *b = ek_builder_create();
    ek_builder_str(b, "s", "text");
    ek_builder_f32(b, "f", 1.5f);
    ek_builder_bool(b, "b", 1);
    ek_builder_u32(b, "u", 3);
    ek_builder_strings(b, "a", 2);
    parsed p = parsed_open(b);
    int64_t i;
    double d;
    bool flag;
    ek_str s;
    ek_gguf_array a;
    ek_err err;
    assert_int_equal(ek_model_gguf_int(p.gguf, "none", 0, 9, &i, &err), EK_ENOTFOUND);
    assert_string_equal(err.text, "none: missing");
    assert_int_equal(ek_model_gguf_int(p.gguf, "s", 0, 9, &i, &err), EK_EFORMAT);
    assert_string_equal(err.text, "s: holds a string, must be an integer");
    assert_int_equal(ek_model_gguf_int(p.gguf, "f", 0, 9, &i, &err), EK_EFORMAT);
    assert_int_equal(ek_model_gguf_int(p.gguf, "b", 0, 9, &i, &err), EK_EFORMAT);
    assert_int_equal(ek_model_gguf_int(p.gguf, "a", 0, 9, &i, &err), EK_EFORMAT);
    assert_string_equal(err.text, "a: holds an array of string, must be an integer");
    assert_int_equal(ek_model_gguf_float(p.gguf, "u", &d, &err), EK_EFORMAT);
    assert_int_equal(ek_model_gguf_float(p.gguf, "none", &d, &err), EK_ENOTFOUND);
    assert_int_equal(ek_model_gguf_bool(p.gguf, "u", &flag, &err), EK_EFORMAT);
    assert_int_equal(ek_model_gguf_bool(p.gguf, "none", &flag, &err), EK_ENOTFOUND);
    assert_int_equal(ek_model_gguf_str(p.gguf, "u", &s, &err), EK_EFORMAT);
    assert_int_equal(ek_model_gguf_str(p.gguf, "none", &s, &err), EK_ENOTFOUND);
    assert_int_equal(ek_model_gguf_array(p.gguf, "s", EK_GGUF_STRING, &a, &err), EK_EFORMAT);
    assert_int_equal(ek_model_gguf_array(p.gguf, "a", EK_GGUF_F32, &a, &err), EK_EFORMAT);
    assert_string_equal(err.text, "a: holds an array of string, must be one of f32");
    assert_int_equal(ek_model_gguf_array(p.gguf, "none", EK_GGUF_F32, &a, &err), EK_ENOTFOUND);
    assert_true(ek_model_gguf_has(p.gguf, "b"));
    assert_false(ek_model_gguf_has(p.gguf, ""));
    parsed_close(&p);
}

static void test_floats_are_finite(void **state)
{
    (void)state;
    const double third = 1.0 / 3;
    const double infinite = (double)INFINITY;
    ek_builder *b = ek_builder_create();
    ek_builder_f32(b, "f32", 0.1f);
    ek_builder_add(b, "f64", EK_GGUF_F64, &third, sizeof third);
    ek_builder_f32(b, "nan", NAN);
    ek_builder_add(b, "inf", EK_GGUF_F64, &infinite, sizeof infinite);
    parsed p = parsed_open(b);
    double value = 0;
    assert_int_equal(ek_model_gguf_float(p.gguf, "f32", &value, NULL), EK_OK);
    assert_true(value == (double)0.1f);
    assert_int_equal(ek_model_gguf_float(p.gguf, "f64", &value, NULL), EK_OK);
    assert_true(value == third);
    assert_int_equal(ek_model_gguf_float(p.gguf, "nan", &value, NULL), EK_EFORMAT);
    assert_int_equal(ek_model_gguf_float(p.gguf, "inf", &value, NULL), EK_EFORMAT);
    parsed_close(&p);
}

static void test_strings_hold_any_bytes(void **state)
{
    (void)state;
    static const char bytes[] = "\4\0\0\0\0\0\0\0a\0\xff\n";
    ek_builder *b = ek_builder_create();
    ek_builder_add(b, "s", EK_GGUF_STRING, bytes, sizeof bytes - 1);
    ek_builder_str(b, "empty", "");
    parsed p = parsed_open(b);
    ek_str s;
    assert_int_equal(ek_model_gguf_str(p.gguf, "s", &s, NULL), EK_OK);
    assert_int_equal(s.len, 4);
    assert_memory_equal(s.data, "a\0\xff\n", 4);
    assert_int_equal(ek_model_gguf_str(p.gguf, "empty", &s, NULL), EK_OK);
    assert_int_equal(s.len, 0);
    parsed_close(&p);
}

static void test_arrays_give_their_elements(void **state)
{
    (void)state;
    struct {
        uint32_t kind, len_low, len_high;
        int32_t value[3];
    } ints = {EK_GGUF_I32, 3, 0, {INT32_MIN, -1, 7}};
    struct {
        uint32_t kind, len_low, len_high;
        float value[2];
    } floats = {EK_GGUF_F32, 2, 0, {-0.5f, FLT_MAX}};
    ek_builder *b = ek_builder_create();
    ek_builder_add(b, "x", EK_GGUF_U8, "\1", 1); /* so that the arrays lie unaligned */
    ek_builder_add(b, "ints", EK_GGUF_ARRAY, &ints, sizeof ints);
    ek_builder_add(b, "floats", EK_GGUF_ARRAY, &floats, sizeof floats);
    ek_builder_strings(b, "strings", 12);
    ek_builder_strings(b, "none", 0);
    parsed p = parsed_open(b);
    ek_gguf_array a;
    assert_int_equal(ek_model_gguf_array(p.gguf, "ints", EK_GGUF_I32, &a, NULL), EK_OK);
    assert_int_equal(a.len, 3);
    for (int64_t i = 0; i < 3; i++)
        assert_int_equal(ek_model_gguf_array_i32(&a, i), ints.value[i]);
    assert_int_equal(ek_model_gguf_array(p.gguf, "floats", EK_GGUF_F32, &a, NULL), EK_OK);
    assert_int_equal(a.len, 2);
    for (int64_t i = 0; i < 2; i++)
        assert_true(ek_model_gguf_array_f32(&a, i) == floats.value[i]);
    assert_int_equal(ek_model_gguf_array(p.gguf, "strings", EK_GGUF_STRING, &a, NULL), EK_OK);
    assert_int_equal(a.len, 12);
    assert_true(ek_str_eqz(a.strings[11], "11"));
    assert_int_equal(ek_model_gguf_array(p.gguf, "none", EK_GGUF_STRING, &a, NULL), EK_OK);
    assert_int_equal(a.len, 0);
    parsed_close(&p);
}

static void test_tensors_are_found_where_they_lie(void **state)
{
    (void)state;
    static const ek_type types[] = {EK_TYPE_F32,  EK_TYPE_F16,  EK_TYPE_BF16, EK_TYPE_Q8_0,
                                    EK_TYPE_Q4_0, EK_TYPE_Q4_K, EK_TYPE_Q5_K, EK_TYPE_Q6_K};
    static const uint64_t aligns[] = {8, 32, 4096};
    for (size_t a = 0; a < EK_COUNT_OF(aligns); a++) {
        ek_builder *b = ek_builder_create();
        b->align = aligns[a];
        b->version = a == 0 ? 2 : 3;
        ek_builder_u32(b, "general.alignment", (uint32_t)aligns[a]);
        for (size_t i = 0; i < EK_COUNT_OF(types); i++)
            ek_builder_tensor_add(b, ek_quant_type_info(types[i])->name, types[i],
                                  (const int64_t[4]){256, 3, 2, (int64_t)i % 2});
        parsed p = parsed_open(b);
        assert_int_equal(ek_model_gguf_tensor_count(p.gguf), EK_COUNT_OF(types));
        const uint8_t *last_end = p.file.data;
        for (size_t i = 0; i < EK_COUNT_OF(types); i++) {
            const char *name = ek_quant_type_info(types[i])->name;
            const ek_tensor *t = ek_model_gguf_tensor(p.gguf, ek_str_from(name));
            assert_ptr_equal(t, ek_model_gguf_tensor_at(p.gguf, (int64_t)i));
            assert_int_equal(t->type, types[i]);
            assert_int_equal(t->n_dims, i % 2 ? 4 : 3);
            assert_int_equal(t->dim[0] * t->dim[1] * t->dim[2] * t->dim[3], 256 * 3 * 2);
            assert_int_equal(t->bytes, 6 * ek_quant_row_bytes(types[i], 256));
            const uint8_t *beg = t->data;
            assert_int_equal((size_t)(beg - p.file.data) % aligns[a], 0);
            assert_true(beg >= last_end && beg - last_end < (ptrdiff_t)aligns[a] + 1024);
            last_end = beg + t->bytes;
        }
        assert_ptr_equal(last_end, p.file.data + p.file.len);
        assert_null(ek_model_gguf_tensor(p.gguf, EK_STR("F3")));
        assert_null(ek_model_gguf_tensor(p.gguf, EK_STR("F322")));
        assert_null(ek_model_gguf_tensor(p.gguf, EK_STR("")));
        parsed_close(&p);
    }
}

/* Enough names for every path of the index: prefixes of each other, and in no order. */
static void test_index_finds_every_name(void **state)
{
    (void)state;
    for (uint32_t n = 0; n <= 200; n += n < 9 ? 1 : 37) {
        ek_builder *b = ek_builder_create();
        char key[EK_GGUF_NAME_MAX + 1];
        for (uint32_t i = 0; i < n; i++) {
            snprintf(key, sizeof key, "%.*s%u", (int)(i % 5), "blk.", i * 7919 % 1000);
            ek_builder_u32(b, key, i);
        }
        parsed p = parsed_open(b);
        for (uint32_t i = 0; i < n; i++) {
            int64_t value = -1;
            snprintf(key, sizeof key, "%.*s%u", (int)(i % 5), "blk.", i * 7919 % 1000);
            assert_int_equal(ek_model_gguf_int(p.gguf, key, 0, 1000, &value, NULL), EK_OK);
            assert_int_equal(value, i);
            snprintf(key, sizeof key, "%.*s%ux", (int)(i % 5), "blk.", i * 7919 % 1000);
            assert_false(ek_model_gguf_has(p.gguf, key));
        }
        parsed_close(&p);
    }
}

static void test_tiny_models_parse(void **state)
{
    (void)state;
    static const struct {
        const char *file;
        int64_t n_tensors;
    } cases[] = {
        {"tests/support/tiny-qwen2moe-f32.gguf", 3 + 2 * 17},
        {"tests/support/tiny-qwen3moe-f32.gguf", 3 + 2 * 12},
        {"tests/support/tiny-olmoe-f32.gguf", 3 + 2 * 12},
        {"tests/support/tiny-llama-f32.gguf", 3 + 2 * 10},
        {"tests/support/tiny-qwen2moe-q6_k.gguf", 3 + 17},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_fixture_path path;
        ek_fixture_build(cases[i].file, &path);
        parsed p = parsed_try(ek_fixture_read(path.text));
        assert_int_equal(p.status, EK_OK);
        assert_int_equal(ek_model_gguf_tensor_count(p.gguf), cases[i].n_tensors);
        const ek_tensor *t = ek_model_gguf_tensor(p.gguf, EK_STR("blk.0.ffn_down_exps.weight"));
        assert_non_null(t);
        assert_int_equal(t->n_dims, 3);
        parsed_close(&p);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integers_of_every_kind),
        cmocka_unit_test(test_missing_and_mistyped_keys_are_told_apart),
        cmocka_unit_test(test_floats_are_finite),
        cmocka_unit_test(test_strings_hold_any_bytes),
        cmocka_unit_test(test_arrays_give_their_elements),
        cmocka_unit_test(test_tensors_are_found_where_they_lie),
        cmocka_unit_test(test_index_finds_every_name),
        cmocka_unit_test(test_tiny_models_parse),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
