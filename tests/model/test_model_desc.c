/*
 * Goal: the description of a good file says what the file and its architecture say. Method: the
 * smallest model of each architecture, keys left out or added one at a time, and the project's tiny
 * models.
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

static void test_widths_and_counts(void **state)
{
    (void)state;
    parsed p = parsed_load(ek_builder_model("qwen2moe"));
    const ek_model_params *m = &p.model->params;
    assert_string_equal(m->arch, "qwen2moe");
    assert_true(ek_str_eqz(m->name, "qwen2moe"));
    assert_int_equal(m->n_layers, 1);
    assert_int_equal(m->d_model, 32);
    assert_int_equal(m->n_vocab, 5);
    assert_int_equal(m->context_tokens, 128);
    assert_int_equal(m->n_heads, 2);
    assert_int_equal(m->n_kv_heads, 1);
    assert_int_equal(m->head_dim_k, 16);
    assert_int_equal(m->head_dim_v, 16);
    assert_int_equal(m->n_rot, 16);
    assert_int_equal(m->n_experts, 4);
    assert_int_equal(m->top_k, 2);
    assert_int_equal(m->expert_ff, 64);
    assert_int_equal(m->shared_ff, 96);
    assert_true(m->rope_base == 10000.0f && m->rope_scale == 1.0f);
    assert_true(m->rms_eps == 1e-5f);
    /* 4 experts of 3 x 32 x 64, of which a token leaves 2 alone. */
    const int64_t expert = 3 * 32 * 64;
    const int64_t rest = 2 * 5 * 32 + 32 /* embeddings, norm */ + 2 * 32 /* norms */ + 32 * 32 * 2 +
                         2 * 16 * 32 + 32 + 16 + 16 /* attention */ + 32 * 4 + 32 /* gates */ +
                         3 * 32 * 96 /* shared */;
    assert_int_equal(m->n_params_total, rest + 4 * expert);
    /* Of the 5 embeddings a token reads its own; the output matrix is read whole. */
    assert_int_equal(m->n_params_active, rest - 4 * 32 + 2 * expert);
    assert_int_equal(m->weight_bytes, 4 * m->n_params_total);
    assert_int_equal(ek_model_kv_bytes_per_token(m), 1 * 1 * (16 + 16) * 2);
    parsed_close(&p);
}

/* What ENGINE and file formats say sets the architectures apart. */
static void test_rules_of_each_architecture(void **state)
{
    (void)state;
    static const struct {
        const char *arch;
        bool neox, renormalise, shared, biases;
        ek_qk_norm qk_norm;
    } cases[] = {
        {"qwen2moe", true, false, true, true, EK_QK_NORM_NONE},
        {"qwen3moe", true, true, false, false, EK_QK_NORM_HEAD},
        {"olmoe", true, false, false, false, EK_QK_NORM_FULL},
        {"llama", false, true, false, false, EK_QK_NORM_NONE},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        parsed p = parsed_load(ek_builder_model(cases[i].arch));
        const ek_model_params *m = &p.model->params;
        const ek_model_layer *l = &p.model->layers[0];
        assert_int_equal(m->rope_neox, cases[i].neox);
        assert_int_equal(m->gate.score, EK_GATE_SOFTMAX);
        assert_int_equal(m->gate.renormalise, cases[i].renormalise);
        assert_true(m->gate.scale == 1.0f);
        assert_int_equal(m->gate.n_groups, 1);
        assert_int_equal(m->gate.n_groups_used, 1);
        assert_int_equal(m->qk_norm, cases[i].qk_norm);
        assert_int_equal(m->shared_gated, cases[i].shared);
        assert_int_equal(m->shared_ff, cases[i].shared ? 96 : 0);
        assert_int_equal(l->attn_q_norm != NULL, cases[i].qk_norm != EK_QK_NORM_NONE);
        assert_int_equal(l->attn_k_norm != NULL, cases[i].qk_norm != EK_QK_NORM_NONE);
        assert_int_equal(l->attn_q_bias != NULL, cases[i].biases);
        assert_int_equal(l->attn_k_bias != NULL, cases[i].biases);
        assert_int_equal(l->attn_v_bias != NULL, cases[i].biases);
        assert_int_equal(l->shared_gate_inp != NULL, cases[i].shared);
        assert_int_equal(l->shared_gate != NULL, cases[i].shared);
        assert_int_equal(l->shared_up != NULL, cases[i].shared);
        assert_int_equal(l->shared_down != NULL, cases[i].shared);
        assert_null(l->gate_bias);
        parsed_close(&p);
    }
}

static void assert_bound(const parsed *p, const char *name, const ek_tensor *bound)
{
    assert_non_null(bound);
    assert_ptr_equal(bound, ek_model_gguf_tensor(p->gguf, ek_str_from(name)));
}

static void test_every_tensor_is_bound_to_its_field(void **state)
{
    (void)state;
    parsed p = parsed_load(ek_builder_model("qwen2moe"));
    const ek_model_layer *l = &p.model->layers[0];
    assert_bound(&p, "token_embd.weight", p.model->token_embd);
    assert_bound(&p, "output_norm.weight", p.model->output_norm);
    assert_bound(&p, "output.weight", p.model->output);
    assert_bound(&p, "blk.0.attn_norm.weight", l->attn_norm);
    assert_bound(&p, "blk.0.attn_q.weight", l->attn_q);
    assert_bound(&p, "blk.0.attn_k.weight", l->attn_k);
    assert_bound(&p, "blk.0.attn_v.weight", l->attn_v);
    assert_bound(&p, "blk.0.attn_q.bias", l->attn_q_bias);
    assert_bound(&p, "blk.0.attn_k.bias", l->attn_k_bias);
    assert_bound(&p, "blk.0.attn_v.bias", l->attn_v_bias);
    assert_bound(&p, "blk.0.attn_output.weight", l->attn_out);
    assert_bound(&p, "blk.0.ffn_norm.weight", l->ffn_norm);
    assert_bound(&p, "blk.0.ffn_gate_inp.weight", l->gate);
    assert_bound(&p, "blk.0.ffn_gate_exps.weight", l->expert_gate);
    assert_bound(&p, "blk.0.ffn_up_exps.weight", l->expert_up);
    assert_bound(&p, "blk.0.ffn_down_exps.weight", l->expert_down);
    assert_bound(&p, "blk.0.ffn_gate_inp_shexp.weight", l->shared_gate_inp);
    assert_bound(&p, "blk.0.ffn_gate_shexp.weight", l->shared_gate);
    assert_bound(&p, "blk.0.ffn_up_shexp.weight", l->shared_up);
    assert_bound(&p, "blk.0.ffn_down_shexp.weight", l->shared_down);
    parsed_close(&p);
    p = parsed_load(ek_builder_model("olmoe"));
    assert_bound(&p, "blk.0.attn_q_norm.weight", p.model->layers[0].attn_q_norm);
    assert_bound(&p, "blk.0.attn_k_norm.weight", p.model->layers[0].attn_k_norm);
    parsed_close(&p);
}

static void test_output_may_be_tied_where_the_architecture_allows(void **state)
{
    (void)state;
    static const struct {
        const char *arch;
        bool allowed;
    } cases[] = {{"qwen2moe", false}, {"qwen3moe", true}, {"olmoe", false}, {"llama", true}};
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_builder *b = ek_builder_model(cases[i].arch);
        ek_builder_remove(b, "output.weight");
        if (!cases[i].allowed) {
            expect_load_error(b, EK_EFORMAT, "tensor output.weight: missing, architecture");
            continue;
        }
        parsed p = parsed_load(b);
        assert_ptr_equal(p.model->output, p.model->token_embd);
        parsed_close(&p);
    }
}

static void test_optional_biases(void **state)
{
    (void)state;
    ek_builder *b = ek_builder_model("llama");
    ek_builder_tensor_add(b, "blk.0.attn_q.bias", EK_TYPE_F32, (const int64_t[4]){32});
    ek_builder_tensor_add(b, "blk.0.attn_k.bias", EK_TYPE_F32, (const int64_t[4]){16});
    ek_builder_tensor_add(b, "blk.0.attn_v.bias", EK_TYPE_F32, (const int64_t[4]){16});
    parsed p = parsed_load(b);
    assert_bound(&p, "blk.0.attn_v.bias", p.model->layers[0].attn_v_bias);
    parsed_close(&p);
    /* One of them brings the duty to have all. */
    b = ek_builder_model("llama");
    ek_builder_tensor_add(b, "blk.0.attn_k.bias", EK_TYPE_F32, (const int64_t[4]){16});
    expect_load_error(b, EK_EFORMAT, "tensor blk.0.attn_q.bias: missing");
}

static void test_keys_that_files_may_leave_out(void **state)
{
    (void)state;
    ek_builder *b = ek_builder_model("qwen2moe");
    ek_builder_remove(b, "qwen2moe.expert_feed_forward_length");
    ek_builder_remove(b, "qwen2moe.expert_shared_feed_forward_length");
    ek_builder_u32(b, "qwen2moe.feed_forward_length", 128);
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"gate", "up", "down"};
        char name[64];
        snprintf(name, sizeof name, "blk.0.ffn_%s_shexp.weight", names[i]);
        ek_builder_tensor *t = ek_builder_tensor_find(b, name);
        t->dim[i == 2 ? 0 : 1] = 128;
        t->bytes = 128 * 32 * sizeof(float);
    }
    parsed p = parsed_load(b);
    assert_int_equal(p.model->params.expert_ff, 128 / 2); /* over the experts used */
    assert_int_equal(p.model->params.shared_ff, 128);
    parsed_close(&p);

    b = ek_builder_model("olmoe");
    ek_builder_remove(b, "olmoe.attention.head_count_kv"); /* as many as query heads */
    ek_builder_remove(b, "tokenizer.ggml.tokens");         /* as many as embeddings */
    ek_builder_str(b, "general.name", "A model");
    for (int i = 0; i < 3; i++) {
        static const char *const names[] = {"k.weight", "v.weight", "k_norm.weight"};
        char name[64];
        snprintf(name, sizeof name, "blk.0.attn_%s", names[i]);
        ek_builder_tensor *t = ek_builder_tensor_find(b, name);
        t->dim[i == 2 ? 0 : 1] = 32;
        t->bytes *= 2;
    }
    p = parsed_load(b);
    assert_int_equal(p.model->params.n_kv_heads, 2);
    assert_int_equal(p.model->params.n_vocab, 5);
    assert_true(ek_str_eqz(p.model->params.name, "A model"));
    parsed_close(&p);
}

static void test_head_widths_of_their_own(void **state)
{
    (void)state;
    ek_builder *b = ek_builder_model("qwen3moe");
    ek_builder_u32(b, "qwen3moe.attention.key_length", 24);
    ek_builder_u32(b, "qwen3moe.attention.value_length", 48);
    ek_builder_u32(b, "qwen3moe.rope.dimension_count", 8);
    static const struct {
        const char *name;
        int32_t dim_idx;
        uint64_t dim;
        size_t bytes;
    } cases[] = {
        {"blk.0.attn_q.weight", 1, 2 * 24, 32 * 48 * 4},
        {"blk.0.attn_k.weight", 1, 24, 32 * 24 * 4},
        {"blk.0.attn_v.weight", 1, 48, 32 * 48 * 4},
        {"blk.0.attn_output.weight", 0, 2 * 48, 32 * 96 * 4},
        {"blk.0.attn_q_norm.weight", 0, 24, 24 * 4},
        {"blk.0.attn_k_norm.weight", 0, 24, 24 * 4},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_builder_tensor *t = ek_builder_tensor_find(b, cases[i].name);
        t->dim[cases[i].dim_idx] = cases[i].dim;
        t->bytes = cases[i].bytes;
    }
    parsed p = parsed_load(b);
    assert_int_equal(p.model->params.head_dim_k, 24);
    assert_int_equal(p.model->params.head_dim_v, 48);
    assert_int_equal(p.model->params.n_rot, 8);
    assert_int_equal(ek_model_kv_bytes_per_token(&p.model->params), (24 + 48) * 2);
    parsed_close(&p);
}

static void test_rope_scaling(void **state)
{
    (void)state;
    static const struct {
        const char *type; /* NULL: absent */
        float factor;     /* < 0: absent */
        float old_factor; /* rope.scale_linear */
        float scale;
    } cases[] = {
        {NULL, -1, -1, 1}, {"none", -1, -1, 1}, {"none", 4, -1, 1},  {"linear", 4, -1, 4},
        {NULL, 4, -1, 4},  {NULL, -1, 2, 2},    {"linear", 4, 2, 4}, {"linear", 0, -1, 1},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_builder *b = ek_builder_model("llama");
        ek_builder_f32(b, "llama.rope.freq_base", 1e6f);
        if (cases[i].type) ek_builder_str(b, "llama.rope.scaling.type", cases[i].type);
        if (cases[i].factor >= 0) ek_builder_f32(b, "llama.rope.scaling.factor", cases[i].factor);
        if (cases[i].old_factor >= 0)
            ek_builder_f32(b, "llama.rope.scale_linear", cases[i].old_factor);
        parsed p = parsed_load(b);
        assert_true(p.model->params.rope_base == 1e6f);
        assert_true(p.model->params.rope_scale == cases[i].scale);
        parsed_close(&p);
    }
}

static void test_gate_keys_override_the_architecture(void **state)
{
    (void)state;
    ek_builder *b = ek_builder_model("olmoe");
    ek_builder_u32(b, "olmoe.expert_gating_func", 2);
    ek_builder_bool(b, "olmoe.expert_weights_norm", 1);
    ek_builder_f32(b, "olmoe.expert_weights_scale", 2.5f);
    ek_builder_u32(b, "olmoe.expert_group_count", 2);
    ek_builder_u32(b, "olmoe.expert_group_used_count", 1);
    parsed p = parsed_load(b);
    const ek_model_gate *gate = &p.model->params.gate;
    assert_int_equal(gate->score, EK_GATE_SIGMOID);
    assert_true(gate->renormalise);
    assert_true(gate->scale == 2.5f);
    assert_int_equal(gate->n_groups, 2);
    assert_int_equal(gate->n_groups_used, 1);
    parsed_close(&p);

    b = ek_builder_model("llama");
    ek_builder_u32(b, "llama.expert_gating_func", 3);
    ek_builder_bool(b, "llama.expert_weights_norm", 0);
    p = parsed_load(b);
    assert_int_equal(p.model->params.gate.score, EK_GATE_SOFTMAX_CHOSEN);
    assert_false(p.model->params.gate.renormalise);
    parsed_close(&p);
}

static void test_list_names_every_architecture(void **state)
{
    (void)state;
    char list[256];
    int32_t n = 0;
    int len = snprintf(list, sizeof list, "%s", ek_model_arch_list());
    assert_true(len > 0 && (size_t)len < sizeof list);
    char *rest = NULL;
    for (char *name = strtok_r(list, ", ", &rest); name; name = strtok_r(NULL, ", ", &rest)) {
        parsed p = parsed_load(ek_builder_model(name));
        assert_string_equal(p.model->params.arch, name);
        parsed_close(&p);
        n++;
    }
    assert_int_equal(n, 4);
}

static void test_tiny_models_load(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        ek_type type;
        int32_t n_layers;
    } cases[] = {
        {"qwen2moe-f32", EK_TYPE_F32, 2},   {"qwen3moe-f32", EK_TYPE_F32, 2},
        {"olmoe-f32", EK_TYPE_F32, 2},      {"llama-f32", EK_TYPE_F32, 2},
        {"qwen2moe-f16", EK_TYPE_F16, 2},   {"qwen2moe-bf16", EK_TYPE_BF16, 2},
        {"qwen2moe-q8_0", EK_TYPE_Q8_0, 2}, {"qwen2moe-q4_0", EK_TYPE_Q4_0, 2},
        {"qwen2moe-q4_k", EK_TYPE_Q4_K, 1}, {"qwen2moe-q5_k", EK_TYPE_Q5_K, 1},
        {"qwen2moe-q6_k", EK_TYPE_Q6_K, 1},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_fixture_path path;
        char name[64];
        snprintf(name, sizeof name, "tests/support/tiny-%s.gguf", cases[i].name);
        ek_fixture_build(name, &path);
        parsed p = parsed_try(ek_fixture_read(path.text));
        if (p.status != EK_OK) fail_msg("%s: %s", name, p.err.text);
        assert_int_equal(p.model->params.n_layers, cases[i].n_layers);
        assert_int_equal(p.model->layers[0].expert_up->type, cases[i].type);
        assert_int_equal(p.model->token_embd->type, cases[i].type);
        assert_true(p.model->params.weight_bytes <= (int64_t)p.file.len);
        parsed_close(&p);
    }
}

static void test_models_of_other_makers_load(void **state)
{
    (void)state;
    static const struct {
        const char *preset, *quant, *arch;
    } cases[] = {
        {"tiny-qwen2moe", "q4_k_m", "qwen2moe"},
        {"tiny-qwen3moe", "f32", "qwen3moe"},
        {"tiny-olmoe", "q4_k_m", "olmoe"},
        {"tiny-mixtral", "q4_k_m", "llama"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        ek_fixture_path path;
        if (!ek_fixture_shared_gguf(cases[i].preset, cases[i].quant, &path)) skip();
        parsed p = parsed_try(ek_fixture_read(path.text));
        if (p.status != EK_OK) fail_msg("%s: %s", path.text, p.err.text);
        assert_string_equal(p.model->params.arch, cases[i].arch);
        assert_int_equal(p.model->params.n_vocab, 1024);
        parsed_close(&p);
    }
    ek_fixture_path path;
    if (!ek_fixture_shared_gguf("tiny-deepseek2", "f32", &path)) skip();
    parsed p = parsed_try(ek_fixture_read(path.text));
    assert_int_equal(p.status, EK_EUNSUPPORTED);
    assert_string_equal(p.err.text, "general.architecture: \"deepseek2\" is not supported "
                                    "(supported: qwen2moe, qwen3moe, olmoe, llama)");
    parsed_close(&p);
}

static void test_demo_model_has_the_size_that_its_maker_states(void **state)
{
    (void)state;
    ek_fixture_path path;
    if (!ek_fixture_shared("data/models/demo-q8_0.gguf", &path)) skip();
    parsed p = parsed_try(ek_fixture_read(path.text));
    if (p.status != EK_OK) fail_msg("%s", p.err.text);
    const ek_model_params *m = &p.model->params;
    assert_int_equal(m->n_layers, 4);
    assert_int_equal(m->d_model, 128);
    assert_int_equal(m->n_experts, 32);
    assert_int_equal(m->top_k, 4);
    assert_int_equal(m->n_vocab, 4096);
    assert_int_equal((m->n_params_total + 50000) / 100000, 46); /* 4.6 M */
    parsed_close(&p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_widths_and_counts),
        cmocka_unit_test(test_rules_of_each_architecture),
        cmocka_unit_test(test_every_tensor_is_bound_to_its_field),
        cmocka_unit_test(test_output_may_be_tied_where_the_architecture_allows),
        cmocka_unit_test(test_optional_biases),
        cmocka_unit_test(test_keys_that_files_may_leave_out),
        cmocka_unit_test(test_head_widths_of_their_own),
        cmocka_unit_test(test_rope_scaling),
        cmocka_unit_test(test_gate_keys_override_the_architecture),
        cmocka_unit_test(test_list_names_every_architecture),
        cmocka_unit_test(test_tiny_models_load),
        cmocka_unit_test(test_models_of_other_makers_load),
        cmocka_unit_test(test_demo_model_has_the_size_that_its_maker_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
