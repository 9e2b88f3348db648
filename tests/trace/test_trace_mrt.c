/*
 * Goal: a recording reads as it was written, and nothing else is taken for one. Method: bytes made
 * by hand and read back field by field; the same bytes cut at every length, with each bit flipped,
 * and with one thing wrong at a time, each in a heap block of exactly its size, so that a sanitizer
 * sees the first byte read past the end; then the real recordings against the counts that came with
 * them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "support/fixtures.h"
#include "trace/mrt.h"

#define FILE_MAX 256

enum { N_TOKENS = 3, N_SEQUENCES = 2, N_LAYERS = 2, N_EXPERTS = 5, TOP_K = 2 };

static const uint8_t ids[N_TOKENS][N_LAYERS][TOP_K] = {
    {{0, 4}, {1, 2}}, {{4, 3}, {2, 1}}, {{4, 0}, {3, 2}}};

typedef struct file {
    uint8_t bytes[FILE_MAX];
    size_t len;
} file;

static void put(file *f, uint64_t value, int32_t n_bytes)
{
    for (int32_t i = 0; i < n_bytes; i++)
        f->bytes[f->len++] = (uint8_t)(value >> (8 * i));
}

/* Two sequences of 1 and 2 tokens. */
static file write_file(bool has_weights)
{
    file f = {{'M', 'R', 'T', '1'}, 4};
    put(&f, 1, 4);
    put(&f, N_TOKENS, 4);
    put(&f, N_SEQUENCES, 4);
    put(&f, N_LAYERS, 2);
    put(&f, N_EXPERTS, 2);
    put(&f, TOP_K, 2);
    put(&f, 7, 2); /* the first layer's number in the model */
    put(&f, has_weights, 4);
    put(&f, 0, 4);
    put(&f, 1, 4);
    put(&f, 2, 4);
    for (int32_t t = 0; t < N_TOKENS; t++)
        for (int32_t l = 0; l < N_LAYERS; l++)
            for (int32_t k = 0; k < TOP_K; k++)
                put(&f, ids[t][l][k], 1);
    for (int32_t i = 0; has_weights && i < N_TOKENS * N_LAYERS * TOP_K; i++)
        put(&f, 1000 + 100 * (uint64_t)i, 2);
    return f;
}

/* Opens a copy on the heap, and uses all of it when it opens. */
static ek_status open_bytes(const uint8_t *bytes, size_t len, ek_err *err)
{
    uint8_t *copy = malloc(len ? len : 1);
    assert_non_null(copy);
    if (len) memcpy(copy, bytes, len);
    ek_mrt m = {.n_tokens = -1};
    memset(err, 0, sizeof *err);
    ek_status status = ek_trace_mrt_open((ek_span){copy, len}, "hand.mrt", &m, err);
    if (status == EK_OK) {
        int64_t sum = 0, *counts = calloc((size_t)m.n_layers * (size_t)m.n_experts, sizeof *counts);
        assert_non_null(counts);
        ek_trace_mrt_count(&m, 0, m.n_tokens, counts);
        for (int32_t i = 0; i < m.n_layers * m.n_experts; i++)
            sum += counts[i];
        assert_int_equal(sum, (int64_t)m.n_tokens * m.n_layers * m.top_k);
        for (int32_t i = 0; i < m.n_sequences; i++)
            assert_in_range(ek_trace_mrt_length(&m, i), 0, (uint64_t)m.n_tokens);
        for (int32_t t = 0; t < m.n_tokens; t++)
            assert_true(ek_trace_mrt_weight(&m, t, m.n_layers - 1, m.top_k - 1) >= 0.0);
        free(counts);
    } else {
        assert_int_equal(m.n_tokens, -1); /* written on success only */
        assert_non_null(strstr(err->text, "hand.mrt: offset "));
    }
    free(copy);
    return status;
}

static void test_reads_what_was_written(void **state)
{
    (void)state;
    for (int32_t has_weights = 0; has_weights < 2; has_weights++) {
        file f = write_file(has_weights);
        ek_mrt m;
        assert_int_equal(ek_trace_mrt_open((ek_span){f.bytes, f.len}, "x", &m, NULL), EK_OK);
        assert_int_equal(m.n_tokens, N_TOKENS);
        assert_int_equal(m.n_sequences, N_SEQUENCES);
        assert_int_equal(m.n_layers, N_LAYERS);
        assert_int_equal(m.n_experts, N_EXPERTS);
        assert_int_equal(m.top_k, TOP_K);
        assert_int_equal(m.first_layer, 7);
        assert_int_equal(ek_trace_mrt_length(&m, 0), 1);
        assert_int_equal(ek_trace_mrt_length(&m, 1), 2);
        for (int32_t t = 0, i = 0; t < N_TOKENS; t++)
            for (int32_t l = 0; l < N_LAYERS; l++)
                for (int32_t k = 0; k < TOP_K; k++, i++) {
                    assert_int_equal(ek_trace_mrt_experts(&m, t, l)[k], ids[t][l][k]);
                    int64_t stored = has_weights ? 1000 + 100 * i : 0;
                    double weight = ek_trace_mrt_weight(&m, t, l, k);
                    assert_int_equal((int64_t)(weight * EK_MRT_WEIGHT_UNIT + 0.5), stored);
                }
    }
}

static void test_counts(void **state)
{
    (void)state;
    file f = write_file(true);
    ek_mrt m;
    assert_int_equal(ek_trace_mrt_open((ek_span){f.bytes, f.len}, "x", &m, NULL), EK_OK);
    int64_t counts[N_LAYERS * N_EXPERTS] = {100};
    ek_trace_mrt_count(&m, 1, 3, counts);
    static const int64_t expected[] = {101, 0, 0, 1, 2, 0, 1, 2, 1, 0};
    assert_memory_equal(counts, expected, sizeof counts);
    ek_trace_mrt_count(&m, 2, 2, counts); /* no tokens, nothing added */
    assert_memory_equal(counts, expected, sizeof counts);
}

static void test_cut_at_every_byte(void **state)
{
    (void)state;
    for (int32_t has_weights = 0; has_weights < 2; has_weights++) {
        file f = write_file(has_weights);
        ek_err err;
        for (size_t len = 0; len < f.len; len++)
            assert_int_equal(open_bytes(f.bytes, len, &err), EK_ETRUNCATED);
        assert_int_equal(open_bytes(f.bytes, f.len, &err), EK_OK);
        assert_int_equal(open_bytes(f.bytes, f.len + 1, &err), EK_EFORMAT);
        assert_non_null(strstr(err.text, "1 bytes too many"));
    }
}

/*
 * What a flipped bit leads to is often another valid file; that it is used safely is what counts.
 */
static void test_each_bit_flipped(void **state)
{
    (void)state;
    int32_t n_refused = 0, n_bits = 0;
    for (int32_t has_weights = 0; has_weights < 2; has_weights++) {
        file f = write_file(has_weights);
        for (size_t bit = 0; bit < 8 * f.len; bit++, n_bits++) {
            ek_err err;
            f.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
            n_refused += open_bytes(f.bytes, f.len, &err) != EK_OK;
            f.bytes[bit / 8] ^= (uint8_t)(1u << bit % 8);
        }
    }
    print_message("%d of %d flips refused\n", n_refused, n_bits);
    /* All of the header but the first layer's number and, upwards, that of experts. */
    assert_true(n_refused >= 2 * (32 * 8 - 16 - 16));
}

static void test_one_thing_wrong(void **state)
{
    (void)state;
    static const struct {
        size_t at;
        uint8_t value;
        const char *text;
    } cases[] = {
        {0, 'X', "offset 0: not an MRT1 file"},
        {4, 2, "offset 4: version 2 is not known, 1 is"},
        {11, 0x80, "offset 8: 2147483651 tokens, at most 2147483647"},
        {15, 0xff, "offset 12: 4278190082 sequences, at most 2147483647"},
        {16, 0, "offset 16: no layers"},
        {18, 0, "offset 18: 0 experts, 1 to 256 are known"},
        {19, 2, "offset 18: 517 experts, 1 to 256 are known"},
        {20, 0, "offset 20: each token visits 0 of 5 experts"},
        {20, 6, "offset 20: each token visits 6 of 5 experts"},
        {24, 2, "offset 24: flags 0x2, only 0x1 is known"},
        {28, 1, "offset 28: has to be 0"},
        {32, 2, "offset 36: sequences 0 to 1 have more than the file's 3 tokens"},
        {36, 1, "offset 32: the sequences have 2 tokens, the file 3"},
        {40, 5, "offset 40: token 0, layer 0: expert 5 is none of the layer's"},
        {47, 2, "offset 47: token 1, layer 1: expert 2 comes twice"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        file f = write_file(false);
        ek_err err;
        f.bytes[cases[i].at] = cases[i].value;
        assert_int_equal(open_bytes(f.bytes, f.len, &err), EK_EFORMAT);
        if (!strstr(err.text, cases[i].text))
            fail_msg("\"%s\" is not in \"%s\"", cases[i].text, err.text);
    }
}

static void test_empty_recordings(void **state)
{
    (void)state;
    file f = write_file(false);
    ek_err err;
    memset(f.bytes + 8, 0, 8); /* no tokens of no sequences */
    assert_int_equal(open_bytes(f.bytes, 32, &err), EK_OK);
    f.bytes[12] = 1; /* one sequence of none */
    memset(f.bytes + 32, 0, 4);
    assert_int_equal(open_bytes(f.bytes, 36, &err), EK_OK);
}

/* Sums of the recordings, taken from the counts.csv beside them: "set,layer,tokens,e0,e1,...". */
static void check_counts(const char *folder, const char *set, const ek_mrt *m)
{
    char name[256], start[64];
    ek_fixture_path path;
    snprintf(name, sizeof name, "data/traces/%s/counts.csv", folder);
    assert_true(ek_fixture_shared(name, &path));
    ek_span csv = ek_fixture_read(path.text);
    int64_t *counts = calloc((size_t)m->n_layers * (size_t)m->n_experts, sizeof *counts);
    assert_non_null(counts);
    ek_trace_mrt_count(m, 0, m->n_tokens, counts);
    for (int32_t l = 0; l < m->n_layers; l++) {
        int n = snprintf(start, sizeof start, "%s,%d,%d,", set, m->first_layer + l, m->n_tokens);
        ek_str text = {(const char *)csv.data, csv.len};
        ptrdiff_t at = ek_str_find(text, (ek_str){start, (size_t)n});
        assert_true(at >= 0);
        const char *field = text.data + at + n;
        for (int32_t e = 0; e < m->n_experts; e++) {
            char *end;
            assert_int_equal(strtoll(field, &end, 10), counts[l * m->n_experts + e]);
            field = end + 1;
        }
    }
    free(counts);
    ek_fixture_free(csv);
}

static void test_real_recordings(void **state)
{
    (void)state;
    static const struct {
        const char *folder, *name;
        const char *set; /* in counts.csv; NULL: the counts there are of more than this file */
        int32_t n_tokens, n_sequences, n_layers, n_experts, top_k, first_layer;
    } files[] = {
        {"dsv2lite-esft", "intent", "intent", 8222, 127, 26, 64, 6, 1},
        {"dsv2lite-esft", "law", "law", 8327, 33, 26, 64, 6, 1},
        {"dsv2lite-esft", "summary", "summary", 8479, 13, 26, 64, 6, 1},
        {"dsv2lite-esft", "translation", "translation", 8251, 40, 26, 64, 6, 1},
        {"gptoss20b-fingerprint", "decode_mix", NULL, 9062, 64, 24, 32, 4, 0},
        {"dsv4flash-reaploop", "decode_full", NULL, 1684, 6, 40, 256, 6, 3},
    };
    for (size_t i = 0; i < EK_COUNT_OF(files); i++) {
        char name[256];
        ek_fixture_path path;
        snprintf(name, sizeof name, "data/traces/%s/%s.mrt", files[i].folder, files[i].name);
        if (!ek_fixture_shared(name, &path)) skip();
        ek_span bytes = ek_fixture_read(path.text);
        ek_mrt m;
        ek_err err;
        if (ek_trace_mrt_open(bytes, name, &m, &err) != EK_OK) fail_msg("%s", err.text);
        assert_int_equal(m.n_tokens, files[i].n_tokens);
        assert_int_equal(m.n_sequences, files[i].n_sequences);
        assert_int_equal(m.n_layers, files[i].n_layers);
        assert_int_equal(m.n_experts, files[i].n_experts);
        assert_int_equal(m.top_k, files[i].top_k);
        assert_int_equal(m.first_layer, files[i].first_layer);
        if (files[i].set) check_counts(files[i].folder, files[i].set, &m);
        /* Weights of gpt-oss, as bf16 has them, sum to 1 per token, those of DeepSeek-V4-Flash to
         * 1.5. */
        double expected = i == 4 ? 1.0 : 1.5;
        for (int32_t t = 0; m.weight && t < m.n_tokens; t++) {
            double sum = 0.0;
            for (int32_t k = 0; k < m.top_k; k++)
                sum += ek_trace_mrt_weight(&m, t, t % m.n_layers, k);
            assert_true(sum > expected - 0.004 && sum < expected + 0.004);
        }
        ek_fixture_free(bytes);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reads_what_was_written), cmocka_unit_test(test_counts),
        cmocka_unit_test(test_cut_at_every_byte),      cmocka_unit_test(test_each_bit_flipped),
        cmocka_unit_test(test_one_thing_wrong),        cmocka_unit_test(test_empty_recordings),
        cmocka_unit_test(test_real_recordings),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
