/*
 * Goal: a file that parses but is no model that this program can run is refused with the key or
 * tensor in the text; among them what has aborted other engines (expert counts, head counts and
 * layer counts out of range, zero widths). Method: the smallest model with one thing wrong.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "parsed.h"
#include "support/fixtures.h"

static void test_integer_keys_out_of_range(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        uint32_t value;
        ek_status status;
        const char *text;
    } cases[] = {
        {"expert_used_count", 0, EK_EFORMAT, "is 0, must be within 1..64"},
        {"expert_used_count", 99, EK_EFORMAT, "is 99, must be within 1..64"},
        {"expert_used_count", 5, EK_EFORMAT, "is 5, must be within 1..4"},
        {"expert_count", 0, EK_EUNSUPPORTED, "this is a dense model"},
        {"expert_count", 5000, EK_EFORMAT, "is 5000, must be within 0..1024"},
        {"expert_count", 8, EK_EFORMAT, "shape is 32 x 4, must be 32 x 8"},
        {"block_count", 0, EK_EFORMAT, "is 0, must be within 1..1024"},
        {"block_count", 600, EK_EFORMAT, "tensor blk.1.attn_norm.weight: missing"},
        {"block_count", 2000000000, EK_EFORMAT, "is 2000000000, must be within 1..1024"},
        {"attention.head_count", 0, EK_EFORMAT, "is 0, must be within 1..1024"},
        {"attention.head_count", 3, EK_EFORMAT, "3 heads do not divide the embedding length 32"},
        {"attention.head_count", 1, EK_EFORMAT, "tensor blk.0.attn_k.weight: shape is 32 x 16"},
        {"attention.head_count", 100000, EK_EFORMAT, "must be within 1..1024"},
        {"attention.head_count", 8, EK_EUNSUPPORTED, "key_length: is 4, must be a multiple of 8"},
        {"attention.head_count_kv", 0, EK_EFORMAT, "is 0, must be within"},
        {"attention.head_count_kv", 3, EK_EFORMAT, "3 does not divide the 2 heads"},
        {"attention.key_length", 20, EK_EUNSUPPORTED, "is 20, must be a multiple of 8"},
        {"attention.key_length", 0, EK_EFORMAT, "is 0, must be within"},
        {"attention.key_length", 1 << 20, EK_EFORMAT, "are wider than 1048576"},
        {"attention.value_length", 8, EK_EUNSUPPORTED, "2 heads of 8 are not a multiple of 32"},
        {"attention.value_length", 32, EK_EFORMAT,
         "attn_v.weight: shape is 32 x 16, must be 32 x 32"},
        {"rope.dimension_count", 17, EK_EUNSUPPORTED, "is 17, must be a multiple of 2"},
        {"rope.dimension_count", 18, EK_EFORMAT, "is 18, wider than a head (16)"},
        {"rope.dimension_count", 0, EK_EFORMAT, "is 0, must be within"},
        {"embedding_length", 0, EK_EFORMAT, "is 0, must be within"},
        {"embedding_length", 48, EK_EUNSUPPORTED, "is 48, must be a multiple of 32"},
        {"embedding_length", 64, EK_EFORMAT, "token_embd.weight: shape is 32 x 5, must be 64 x 5"},
        {"context_length", 0, EK_EFORMAT, "is 0, must be within"},
        {"context_length", UINT32_MAX, EK_EFORMAT, "must be within 1..1073741824"},
        {"expert_feed_forward_length", 0, EK_EFORMAT, "is 0, must be within"},
        {"expert_feed_forward_length", 40, EK_EUNSUPPORTED, "is 40, must be a multiple of 32"},
        {"expert_feed_forward_length", 96, EK_EFORMAT, "shape is 32 x 64 x 4, must be 32 x 96 x 4"},
        {"expert_shared_feed_forward_length", 50, EK_EUNSUPPORTED, "must be a multiple of 32"},
        {"expert_shared_feed_forward_length", 64, EK_EFORMAT,
         "ffn_gate_shexp.weight: shape is 32 x 96"},
        {"expert_gating_func", 4, EK_EFORMAT, "is 4, must be within 0..3"},
        {"expert_group_count", 3, EK_EFORMAT, "3 groups, 3 used, do not fit 2 of 4 experts"},
        {"expert_group_count", 5, EK_EFORMAT, "is 5, must be within 0..4"},
        {"expert_group_used_count", 2, EK_EFORMAT, "1 groups, 2 used, do not fit"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        char key[128];
        snprintf(key, sizeof key, "qwen2moe.%s", cases[i].key);
        ek_builder *b = ek_builder_model("qwen2moe");
        ek_builder_u32(b, key, cases[i].value);
        expect_load_error(b, cases[i].status, cases[i].text);
    }
}

static void test_groups_leave_enough_experts(void **state)
{
    (void)state;
    ek_builder *b = ek_builder_model("qwen2moe");
    ek_builder_u32(b, "qwen2moe.expert_group_count", 4);
    ek_builder_u32(b, "qwen2moe.expert_group_used_count", 1);
    expect_load_error(b, EK_EFORMAT, "4 groups, 1 used, do not fit 2 of 4 experts");
}

static void test_number_keys_out_of_range(void **state)
{
    (void)state;
    static const struct {
        const char *key;
        float value;
        const char *text;
    } cases[] = {
        {"attention.layer_norm_rms_epsilon", 0, "is 0, must be within"},
        {"attention.layer_norm_rms_epsilon", -1e-5f, "must be within"},
        {"attention.layer_norm_rms_epsilon", 2, "is 2, must be within"},
        {"attention.layer_norm_rms_epsilon", NAN, "is not a finite number"},
        {"rope.freq_base", 0, "is 0, must be within"},
        {"rope.freq_base", -10000, "must be within"},
        {"rope.freq_base", INFINITY, "is not a finite number"},
        {"rope.scaling.factor", -2, "must be within"},
        {"rope.scaling.factor", 1e-20f, "rope.scaling.factor: 1e-20 is too small"},
        {"rope.scale_linear", -2, "must be within"},
        {"expert_weights_scale", -1, "must be within"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        char key[128];
        snprintf(key, sizeof key, "olmoe.%s", cases[i].key);
        ek_builder *b = ek_builder_model("olmoe");
        ek_builder_f32(b, key, cases[i].value);
        expect_load_error(b, EK_EFORMAT, cases[i].text);
    }
}

static void test_keys_of_the_wrong_type(void **state)
{
    (void)state;
    ek_builder *b = ek_builder_model("olmoe");
    ek_builder_str(b, "olmoe.expert_count", "4");
    expect_load_error(b, EK_EFORMAT, "olmoe.expert_count: holds a string, must be an integer");
    b = ek_builder_model("olmoe");
    ek_builder_strings(b, "olmoe.feed_forward_length", 3);
    expect_load_error(b, EK_EFORMAT, "olmoe.feed_forward_length: holds an array of string");
    b = ek_builder_model("olmoe");
    ek_builder_u32(b, "olmoe.rope.freq_base", 10000);
    expect_load_error(b, EK_EFORMAT, "olmoe.rope.freq_base: holds a u32, must be a floating-point");
    b = ek_builder_model("olmoe");
    ek_builder_u32(b, "olmoe.rope.scaling.type", 1);
    expect_load_error(b, EK_EFORMAT, "olmoe.rope.scaling.type: holds a u32, must be a string");
    b = ek_builder_model("olmoe");
    ek_builder_u32(b, "olmoe.expert_weights_norm", 1);
    expect_load_error(b, EK_EFORMAT, "olmoe.expert_weights_norm: holds a u32, must be a boolean");
    b = ek_builder_model("olmoe");
    ek_builder_u32(b, "general.name", 1);
    expect_load_error(b, EK_EFORMAT, "general.name: holds a u32");
    b = ek_builder_model("olmoe");
    ek_builder_u32(b, "general.architecture", 1);
    expect_load_error(b, EK_EFORMAT, "general.architecture: holds a u32");
    b = ek_builder_model("olmoe");
    ek_builder_u32(b, "tokenizer.ggml.tokens", 5);
    expect_load_error(b, EK_EFORMAT, "tokenizer.ggml.tokens: holds a u32, must be an array");
}

static void test_keys_that_must_be_there(void **state)
{
    (void)state;
    static const char *const keys[] = {
        "general.architecture",       "llama.block_count",
        "llama.context_length",       "llama.embedding_length",
        "llama.attention.head_count", "llama.attention.layer_norm_rms_epsilon",
        "llama.expert_used_count",    "llama.feed_forward_length",
    };
    for (size_t i = 0; i < EK_COUNT_OF(keys); i++) {
        char text[128];
        snprintf(text, sizeof text, "%s: missing", keys[i]);
        ek_builder *b = ek_builder_model("llama");
        ek_builder_remove(b, keys[i]);
        expect_load_error(b, EK_EFORMAT, text);
    }
    ek_builder *b = ek_builder_model("qwen3moe");
    ek_builder_remove(b, "qwen3moe.expert_feed_forward_length");
    expect_load_error(b, EK_EFORMAT, "qwen3moe.expert_feed_forward_length: missing");
}

static void test_every_tensor_must_be_there(void **state)
{
    (void)state;
    ek_builder *model = ek_builder_model("qwen2moe");
    for (int32_t i = 0; i < model->n_tensors; i++) {
        char text[EK_BUILDER_NAME_MAX + 32];
        snprintf(text, sizeof text, "tensor %s: missing, architecture qwen2moe",
                 model->tensor[i].name);
        ek_builder *b = ek_builder_model("qwen2moe");
        ek_builder_remove(b, model->tensor[i].name);
        expect_load_error(b, EK_EFORMAT, text);
    }
    ek_builder_destroy(model);
}

static void test_every_shape_is_checked(void **state)
{
    (void)state;
    static const char *const archs[] = {"qwen2moe", "qwen3moe", "olmoe"};
    for (size_t a = 0; a < EK_COUNT_OF(archs); a++) {
        ek_builder *model = ek_builder_model(archs[a]);
        for (int32_t i = 0; i < model->n_tensors; i++)
            for (uint32_t d = 0; d < model->tensor[i].n_dims; d++) {
                ek_builder *b = ek_builder_model(archs[a]);
                char text[EK_BUILDER_NAME_MAX + 32];
                ek_builder_tensor *t = &b->tensor[i];
                t->bytes = t->bytes / t->dim[d] * (t->dim[d] + 32);
                t->dim[d] += 32;
                snprintf(text, sizeof text, "tensor %s: shape is ", t->name);
                expect_load_error(b, EK_EFORMAT, text);
            }
        ek_builder_destroy(model);
    }
    /* A fourth dimension of more than 1 is no shape that any rule has. */
    ek_builder *b = ek_builder_model("olmoe");
    ek_builder_tensor *t = ek_builder_tensor_find(b, "blk.0.ffn_up_exps.weight");
    t->dim[t->n_dims++] = 2;
    t->bytes *= 2;
    expect_load_error(b, EK_EFORMAT, "shape is 32 x 64 x 4 x 2, must be 32 x 64 x 4");
}

static void test_vectors_are_f32_and_the_gate_any_type(void **state)
{
    (void)state;
    ek_builder *model = ek_builder_model("qwen2moe");
    int32_t n_vectors = 0;
    for (int32_t i = 0; i < model->n_tensors; i++) {
        ek_builder *b = ek_builder_model("qwen2moe");
        ek_builder_tensor *t = &b->tensor[i];
        t->type = EK_TYPE_F16;
        t->bytes /= 2;
        if (t->n_dims > 1) {
            parsed p = parsed_load(b);
            parsed_close(&p);
            continue;
        }
        char text[EK_BUILDER_NAME_MAX + 32];
        snprintf(text, sizeof text, "tensor %s: type is F16, must be F32", t->name);
        expect_load_error(b, EK_EUNSUPPORTED, text);
        n_vectors++;
    }
    assert_int_equal(n_vectors, 7); /* 3 norms, 3 biases, the shared expert's gate */
    ek_builder_destroy(model);
}

static void test_tensors_that_nothing_reads(void **state)
{
    (void)state;
    ek_builder *b = ek_builder_model("llama");
    ek_builder_tensor_add(b, "rope_freqs.weight", EK_TYPE_F32, (const int64_t[4]){8});
    expect_load_error(b, EK_EUNSUPPORTED,
                      "tensor rope_freqs.weight: is not part of architecture llama");
    b = ek_builder_model("llama");
    ek_builder_tensor_add(b, "blk.1.attn_norm.weight", EK_TYPE_F32, (const int64_t[4]){32});
    expect_load_error(b, EK_EUNSUPPORTED, "tensor blk.1.attn_norm.weight: is not part");
}

static void test_what_is_known_but_not_supported(void **state)
{
    (void)state;
    ek_builder *b = ek_builder_model("llama");
    ek_builder_remove(b, "llama.expert_count");
    expect_load_error(b, EK_EUNSUPPORTED, "llama.expert_count: missing or 0, so this is a dense");
    b = ek_builder_model("gpt2");
    expect_load_error(b, EK_EUNSUPPORTED,
                      "general.architecture: \"gpt2\" is not supported (supported: qwen2moe, ");
    b = ek_builder_model("qwen3moe");
    ek_builder_str(b, "qwen3moe.rope.scaling.type", "yarn");
    expect_load_error(b, EK_EUNSUPPORTED, "qwen3moe.rope.scaling.type: \"yarn\" is not supported");
    b = ek_builder_model("llama");
    ek_builder_remove(b, "blk.0.ffn_gate_exps.weight");
    ek_builder_tensor_add(b, "blk.0.ffn_gate.0.weight", EK_TYPE_F32, (const int64_t[4]){32, 64});
    expect_load_error(b, EK_EUNSUPPORTED, "stores experts one by one, an old layout");
}

static void test_vocabulary_sizes(void **state)
{
    (void)state;
    ek_builder *b = ek_builder_model("llama");
    ek_builder_strings(b, "tokenizer.ggml.tokens", 0);
    expect_load_error(b, EK_EFORMAT, "tokenizer.ggml.tokens: 0 tokens, must be within 1..");
    b = ek_builder_model("llama");
    ek_builder_strings(b, "tokenizer.ggml.tokens", 6);
    expect_load_error(b, EK_EFORMAT, "tensor token_embd.weight: shape is 32 x 5, must be 32 x 6");
}

/* A text from a file cannot forge a line of the log nor overrun the error. */
static void test_texts_from_the_file_are_tamed(void **state)
{
    (void)state;
    char name[400];
    memset(name, 'x', sizeof name);
    name[sizeof name - 1] = '\0';
    memcpy(name, "a\nlevel=error", 13);
    ek_builder *b = ek_builder_model("llama");
    ek_builder_str(b, "general.architecture", name);
    parsed p = parsed_open(b);
    ek_model *model = NULL;
    ek_err err;
    ek_arena none = {0};
    assert_int_equal(ek_model_load(p.gguf, &none, &model, &err), EK_EUNSUPPORTED);
    assert_null(strchr(err.text, '\n'));
    parsed_close(&p);
}

static void test_no_memory_is_an_error(void **state)
{
    (void)state;
    parsed p = parsed_load(ek_builder_model("qwen2moe"));
    char mem[sizeof(ek_model) + 512];
    for (size_t bytes = 0; bytes < sizeof mem; bytes += 8) {
        ek_arena perm = ek_arena_over(mem, bytes);
        ek_model *model = NULL;
        ek_status status = ek_model_load(p.gguf, &perm, &model, NULL);
        assert_true(status == EK_ENOMEM || (status == EK_OK && model));
    }
    parsed_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_integer_keys_out_of_range),
        cmocka_unit_test(test_groups_leave_enough_experts),
        cmocka_unit_test(test_number_keys_out_of_range),
        cmocka_unit_test(test_keys_of_the_wrong_type),
        cmocka_unit_test(test_keys_that_must_be_there),
        cmocka_unit_test(test_every_tensor_must_be_there),
        cmocka_unit_test(test_every_shape_is_checked),
        cmocka_unit_test(test_vectors_are_f32_and_the_gate_any_type),
        cmocka_unit_test(test_tensors_that_nothing_reads),
        cmocka_unit_test(test_what_is_known_but_not_supported),
        cmocka_unit_test(test_vocabulary_sizes),
        cmocka_unit_test(test_texts_from_the_file_are_tamed),
        cmocka_unit_test(test_no_memory_is_an_error),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
