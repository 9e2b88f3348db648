/*
 * Goal: no malformed file gets past the reader, and each is refused with its place in the text.
 * Method: a good file with one thing wrong; a good file cut at every byte and with every bit of its
 * header flipped.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "parsed.h"
#include "support/fixtures.h"

static ek_builder *one_tensor(ek_type type, const int64_t dim[4])
{
    ek_builder *b = ek_builder_create();
    ek_builder_tensor_add(b, "w", type, dim);
    return b;
}

static void test_header(void **state)
{
    (void)state;
    static const struct {
        uint32_t version;
        const char *text;
    } versions[] = {
        {0, "version 0 is not supported"}, {1, "version 1 is not supported"},
        {4, "version 4 is not supported"}, {0x03000000, "big-endian"},
        {0x02000000, "big-endian"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(versions); i++) {
        ek_builder *b = ek_builder_create();
        b->version = versions[i].version;
        expect_parse_error(b, EK_EUNSUPPORTED, versions[i].text);
    }
    ek_builder *b = ek_builder_model("llama");
    ek_span file = ek_builder_finish(b);
    ek_builder_destroy(b);
    memcpy((void *)(uintptr_t)file.data, "PK\3\4", 4);
    parsed p = parsed_try(file);
    assert_int_equal(p.status, EK_EFORMAT);
    assert_string_equal(p.err.text, "header: not a GGUF file (it begins 50 4b 03 04)");
    parsed_close(&p);
}

static void test_counts_are_bounded_by_the_file(void **state)
{
    (void)state;
    static const struct {
        int64_t n_pairs, n_tensors;
        ek_status status;
        const char *text;
    } cases[] = {
        {INT64_MAX, -1, EK_EFORMAT, "header: 9223372036854775807 keys are over the limit"},
        {EK_GGUF_KEYS_MAX, -1, EK_ETRUNCATED, "header: 65536 keys do not fit"},
        {-1, INT64_MAX, EK_EFORMAT, "tensors are over the limit"},
        {-1, EK_GGUF_TENSORS_MAX, EK_ETRUNCATED, "header: 262144 tensors do not fit"},
        {2, -1, EK_EFORMAT, "key 2 of 2: its name has 0 bytes"}, /* padding read as a key */
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_builder *b = one_tensor(EK_TYPE_F32, (const int64_t[4]){4});
        ek_builder_u32(b, "k", 1);
        if (cases[i].n_pairs == 2) ek_builder_remove(b, "w");
        b->align = 64;
        b->n_pairs_said = cases[i].n_pairs;
        b->n_tensors_said = cases[i].n_tensors;
        expect_parse_error(b, cases[i].status, cases[i].text);
    }
}

static void test_names(void **state)
{
    (void)state;
    char longest[EK_GGUF_NAME_MAX + 2];
    memset(longest, 'k', sizeof longest);
    longest[EK_GGUF_NAME_MAX + 1] = '\0';
    ek_builder *b = ek_builder_create();
    ek_builder_u32(b, longest, 1);
    expect_parse_error(b, EK_EFORMAT, "key 1 of 1: its name has 257 bytes, must have 1..256");
    b = ek_builder_create();
    ek_builder_u32(b, longest + 1, 1);
    parsed p = parsed_open(b);
    assert_true(ek_model_gguf_has(p.gguf, longest + 1));
    parsed_close(&p);

    b = ek_builder_create();
    ek_builder_u32(b, "", 1);
    expect_parse_error(b, EK_EFORMAT, "key 1 of 1: its name has 0 bytes");
    b = ek_builder_create();
    ek_builder_u32(b, "a\nb", 1);
    expect_parse_error(b, EK_EFORMAT, "key 1 of 1: byte 1 of its name is 0x0a");
    b = ek_builder_create();
    ek_builder_u32(b, "caf\xc3\xa9", 1);
    expect_parse_error(b, EK_EFORMAT, "key 1 of 1: byte 3 of its name is 0xc3");
    b = ek_builder_create();
    ek_builder_tensor_add(b, "\x7f", EK_TYPE_F32, (const int64_t[4]){4});
    expect_parse_error(b, EK_EFORMAT, "tensor 1 of 1: byte 0 of its name is 0x7f");
}

static void test_duplicates(void **state)
{
    (void)state;
    ek_builder *b = ek_builder_create();
    for (int i = 0; i < 3; i++)
        ek_builder_add(b, i == 1 ? "other" : "twice", EK_GGUF_U8, "\1", 1);
    expect_parse_error(b, EK_EFORMAT, "key twice: is there more than once");
    b = ek_builder_create();
    for (int i = 0; i < 3; i++)
        ek_builder_tensor_add(b, i == 1 ? "other" : "twice", EK_TYPE_F32, (const int64_t[4]){4});
    expect_parse_error(b, EK_EFORMAT, "tensor twice: is there more than once");
}

static void test_values(void **state)
{
    (void)state;
    static const struct {
        uint32_t kind;
        const char *value;
        size_t bytes;
        ek_status status;
        const char *text;
    } cases[] = {
        {13, "\0", 1, EK_EFORMAT, "key k: its kind is 13"},
        {UINT32_MAX, "\0", 1, EK_EFORMAT, "key k: its kind is 4294967295"},
        {EK_GGUF_BOOL, "\2", 1, EK_EFORMAT, "key k: a boolean is 2, must be 0 or 1"},
        {EK_GGUF_U64, "1234567", 7, EK_ETRUNCATED, "key k: the value needs 8 bytes"},
        {EK_GGUF_STRING, "\xff\xff\xff\xff\xff\xff\xff\xff", 8, EK_ETRUNCATED,
         "key k: the string needs 18446744073709551615 bytes"},
        {EK_GGUF_ARRAY, "\x0d\0\0\0\0\0\0\0\0\0\0\0", 12, EK_EFORMAT,
         "key k: its element kind is 13"},
        {EK_GGUF_ARRAY, "\x09\0\0\0\1\0\0\0\0\0\0\0\x04\0\0\0\0\0\0\0\0\0\0\0", 24, EK_EUNSUPPORTED,
         "key k: arrays of arrays are not supported"},
        {EK_GGUF_ARRAY, "\x07\0\0\0\3\0\0\0\0\0\0\0\0\1\5", 15, EK_EFORMAT,
         "key k: a boolean is 5"},
        {EK_GGUF_ARRAY, "\x08\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f", 12, EK_ETRUNCATED,
         "key k: an array of 9223372036854775807 string does not fit"},
        {EK_GGUF_ARRAY, "\x08\0\0\0\xff\xff\xff\xff\xff\xff\xff\xff", 12, EK_EFORMAT,
         "key k: its array length is"},
        {EK_GGUF_ARRAY, "\x08\0\0\0\1\0\0\0\0\0\0\0\x40\0\0\0\0\0\0\0", 20, EK_ETRUNCATED,
         "key k: the string in its array needs 64 bytes"},
        {EK_GGUF_ARRAY, "\x0a\0\0\0\0\0\0\0\0\0\0\x20", 12, EK_ETRUNCATED,
         "key k: an array of 2305843009213693952 u64 does not fit"}, /* 2^61 x 8 wraps to 0 */
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_builder *b = ek_builder_create();
        b->align = 1;
        ek_builder_add(b, "k", cases[i].kind, cases[i].value, cases[i].bytes);
        expect_parse_error(b, cases[i].status, cases[i].text);
    }
}

static void test_alignment(void **state)
{
    (void)state;
    static const struct {
        uint32_t align;
        const char *text;
    } cases[] = {
        {0, "general.alignment: is 0, must be within 8..1048576"},
        {4, "general.alignment: is 4, must be within 8"},
        {24, "general.alignment: 24 is not a power of two"},
        {1 << 21, "general.alignment: is 2097152"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_builder *b = ek_builder_create();
        ek_builder_u32(b, "general.alignment", cases[i].align);
        expect_parse_error(b, EK_EFORMAT, cases[i].text);
    }
    ek_builder *b = ek_builder_create();
    ek_builder_str(b, "general.alignment", "32");
    expect_parse_error(b, EK_EFORMAT, "general.alignment: holds a string");
}

static void test_tensor_shapes(void **state)
{
    (void)state;
    static const struct {
        uint32_t n_dims;
        uint64_t dim[8];
        uint32_t type;
        ek_status status;
        const char *text;
    } cases[] = {
        {0, {0}, EK_TYPE_F32, EK_EFORMAT, "tensor w: has 0 dimensions, must have 1..4"},
        {5, {1, 1, 1, 1, 1}, EK_TYPE_F32, EK_EFORMAT, "tensor w: has 5 dimensions"},
        {UINT32_MAX, {0}, EK_TYPE_F32, EK_EFORMAT, "tensor w: has 4294967295 dimensions"},
        {1, {0}, EK_TYPE_F32, EK_EFORMAT, "tensor w: dimension 0 is 0"},
        {3, {32, 4, 0}, EK_TYPE_F32, EK_EFORMAT, "tensor w: dimension 2 is 0"},
        {2, {1ULL << 32, 1ULL << 32}, EK_TYPE_F32, EK_EFORMAT, "tensor w: its number of elements"},
        {1, {UINT64_MAX}, EK_TYPE_F32, EK_EFORMAT, "tensor w: its number of elements overflows"},
        {2, {1ULL << 31, 1ULL << 31}, EK_TYPE_F32, EK_EFORMAT, "tensor w: its size in bytes"},
        {1, {48}, EK_TYPE_Q8_0, EK_EFORMAT, "a row of 48 elements is not a multiple of Q8_0's"},
        {2, {128, 2}, EK_TYPE_Q4_K, EK_EFORMAT, "a row of 128 elements is not a multiple of Q4_K"},
        {1,
         {256},
         10,
         EK_EUNSUPPORTED,
         "tensor w: type Q2_K is not supported (supported: F32, F16"},
        {1, {4}, 4, EK_EUNSUPPORTED, "tensor w: type number 4 is not known (supported: F32"},
        {1, {4}, UINT32_MAX, EK_EUNSUPPORTED, "tensor w: type number 4294967295 is not known"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_builder *b = one_tensor(EK_TYPE_F32, (const int64_t[4]){4});
        b->tensor[0].n_dims = cases[i].n_dims <= 8 ? cases[i].n_dims : 8;
        memcpy(b->tensor[0].dim, cases[i].dim, sizeof cases[i].dim);
        b->tensor[0].type = cases[i].type;
        if (cases[i].n_dims <= 8) {
            expect_parse_error(b, cases[i].status, cases[i].text);
            continue;
        }
        ek_span file = ek_builder_finish(b);
        ek_builder_destroy(b);
        /* magic, version, two counts, name length, "w": the number of dimensions follows */
        memset((uint8_t *)(uintptr_t)file.data + 24 + 8 + 1, 0xff, 4);
        parsed p = parsed_try(file);
        assert_int_equal(p.status, cases[i].status);
        assert_non_null(strstr(p.err.text, cases[i].text));
        parsed_close(&p);
    }
}

static void test_tensor_places(void **state)
{
    (void)state;
    static const struct {
        uint64_t offset;
        ek_status status;
        const char *text;
    } cases[] = {
        {16, EK_EFORMAT, "tensor v: data offset 16 is not a multiple of 32"},
        {0, EK_EFORMAT, "tensor v: its data overlaps the tensor before it"},
        {160, EK_ETRUNCATED, "tensor v: data ends 32 bytes past the end of the file"},
        {1ULL << 62, EK_ETRUNCATED, "bytes past the end of the file"},
        {UINT64_MAX - 31, EK_EFORMAT, "tensor v: data offset 18446744073709551584 is outside"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_builder *b = one_tensor(EK_TYPE_F32, (const int64_t[4]){32});
        ek_builder_tensor_add(b, "v", EK_TYPE_F32, (const int64_t[4]){8});
        b->tensor[1].offset = cases[i].offset;
        expect_parse_error(b, cases[i].status, cases[i].text);
    }
    /* A gap between two tensors is no fault. */
    ek_builder *b = one_tensor(EK_TYPE_F32, (const int64_t[4]){32});
    ek_builder_tensor_add(b, "v", EK_TYPE_F32, (const int64_t[4]){8});
    b->tensor[0].bytes += 64;
    parsed p = parsed_open(b);
    parsed_close(&p);
}

static ek_span prefix_of(ek_span file, size_t len)
{
    uint8_t *copy = malloc(len ? len : 1);
    if (!copy) fail_msg("no memory for %zu bytes", len);
    memcpy(copy, file.data, len);
    return (ek_span){copy, len};
}

static const char *const archs[] = {"qwen2moe", "qwen3moe", "olmoe", "llama"};

#define SCRATCH_BYTES (4 << 20)

/* As parsed_try, many thousand times over: in memory that is used again. */
static ek_status outcome(ek_span file, ek_arena scratch, ek_err *err)
{
    ek_gguf *gguf;
    ek_model *model;
    assert_true(ek_model_gguf_perm_bytes_max(file.len) < SCRATCH_BYTES / 2);
    ek_status status = ek_model_gguf_parse(&file, 1, &scratch, &gguf, err);
    return status == EK_OK ? ek_model_load(gguf, &scratch, &model, err) : status;
}

static size_t data_offset(const parsed *p)
{
    const uint8_t *first = ek_model_gguf_tensor_at(p->gguf, 0)->data;
    return (size_t)(first - p->file.data);
}

/* Cut at any byte of its header, and at many of its data, a file is an error. */
static void test_truncation(void **state)
{
    (void)state;
    ek_arena scratch = ek_fixture_arena(SCRATCH_BYTES);
    for (size_t a = 0; a < EK_COUNT_OF(archs); a++) {
        parsed whole = parsed_load(ek_builder_model(archs[a]));
        size_t header_len = data_offset(&whole);
        size_t stride = 97;
        size_t end = whole.file.len;
        for (size_t len = 0; len < end;
             len += len < header_len || len + stride > end ? 1 : stride) {
            ek_err err = {0};
            ek_span file = prefix_of(whole.file, len);
            assert_int_equal(outcome(file, scratch, &err), EK_ETRUNCATED);
            assert_int_equal(err.status, EK_ETRUNCATED);
            assert_true(strlen(err.text) > 0);
            ek_fixture_free(file);
        }
        parsed_close(&whole);
    }
    ek_fixture_arena_free(scratch.beg);
}

/* Any flipped bit of the header gives a whole model, or an error with a text; never a crash. */
static void test_every_bit_flipped(void **state)
{
    (void)state;
    ek_arena scratch = ek_fixture_arena(SCRATCH_BYTES);
    for (size_t a = 0; a < EK_COUNT_OF(archs); a++) {
        parsed whole = parsed_load(ek_builder_model(archs[a]));
        ek_span file = prefix_of(whole.file, whole.file.len);
        size_t header_len = data_offset(&whole);
        int32_t n_refused = 0;
        for (size_t bit = 0; bit < header_len * 8; bit++) {
            uint8_t *byte = (uint8_t *)(uintptr_t)file.data + bit / 8;
            uint8_t was = *byte;
            ek_err err = {0};
            *byte ^= (uint8_t)(1u << (bit % 8));
            ek_status status = outcome(file, scratch, &err);
            *byte = was;
            assert_int_equal(err.status, status);
            assert_int_not_equal(status, EK_ENOMEM);
            n_refused += status != EK_OK;
            if (status != EK_OK) assert_true(strlen(err.text) > 0);
        }
        /* Most bits matter; those of the vocabulary's texts, some widths and padding do not. */
        assert_true(n_refused > (int32_t)header_len * 6);
        ek_fixture_free(file);
        parsed_close(&whole);
    }
    ek_fixture_arena_free(scratch.beg);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_header),        cmocka_unit_test(test_counts_are_bounded_by_the_file),
        cmocka_unit_test(test_names),         cmocka_unit_test(test_duplicates),
        cmocka_unit_test(test_values),        cmocka_unit_test(test_alignment),
        cmocka_unit_test(test_tensor_shapes), cmocka_unit_test(test_tensor_places),
        cmocka_unit_test(test_truncation),    cmocka_unit_test(test_every_bit_flipped),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
