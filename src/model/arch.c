#include "model/arch.h"

#include "base/attr.h"

/* Activations are quantised in blocks of 32 and attention reads 8 elements of a head at a time. */
#define ACT_BLOCK  32
#define HEAD_BLOCK 8

/* clang-format off */

/* Name without "<architecture>.", parameter, range, divisor, and what its absence means. */
#define KEY(name, param, min, max, multiple, absent) {name, offsetof(ek_model_params, param), min, \
                                                      EK_MODEL_##max##_MAX, multiple,              \
                                                      EK_ABSENT_##absent}

/* Name, where its pointer goes, set, and shape, fastest dimension first. Vectors are F32. */
#define MODEL(field) offsetof(ek_model, field)
#define LAYER(field) offsetof(ek_model_layer, field)
#define VECTOR(name, field, set, a)      {name, field, {EK_DIM_##a}, EK_SET_##set, true}
#define MATRIX(name, field, set, a, b)   {name, field, {EK_DIM_##a, EK_DIM_##b}, \
                                          EK_SET_##set, false}
#define STACK(name, field, set, a, b, c) {name, field, {EK_DIM_##a, EK_DIM_##b, EK_DIM_##c}, \
                                          EK_SET_##set, false}

const ek_key_rule ek_model_keys[] = {
    KEY("block_count",             n_layers,       1, LAYERS,  1,          ERROR),
    KEY("context_length",          context_tokens, 1, CONTEXT, 1,          ERROR),
    KEY("embedding_length",        d_model,        1, DIM,     ACT_BLOCK,  ERROR),
    KEY("attention.head_count",    n_heads,        1, HEADS,   1,          ERROR),
    KEY("attention.head_count_kv", n_kv_heads,     1, HEADS,   1,          HEADS),
    KEY("attention.key_length",    head_dim_k,     1, DIM,     HEAD_BLOCK, D_BY_HEADS),
    KEY("attention.value_length",  head_dim_v,     1, DIM,     HEAD_BLOCK, D_BY_HEADS),
    KEY("rope.dimension_count",    n_rot,          2, DIM,     2,          HEAD_K),
    KEY("expert_count",            n_experts,      1, EXPERTS, 1,          ERROR),
    KEY("expert_used_count",       top_k,          1, TOP_K,   1,          ERROR),
};

const ek_tensor_rule ek_model_tensors[] = {
    MATRIX("token_embd.weight",  MODEL(token_embd),  CORE, D, VOCAB),
    VECTOR("output_norm.weight", MODEL(output_norm), CORE, D),
    MATRIX("output.weight",      MODEL(output),      CORE, D, VOCAB),
};

const ek_tensor_rule ek_model_layer_tensors[] = {
    VECTOR("attn_norm.weight",          LAYER(attn_norm),       CORE,         D),
    MATRIX("attn_q.weight",             LAYER(attn_q),          CORE,         D, Q),
    MATRIX("attn_k.weight",             LAYER(attn_k),          CORE,         D, K),
    MATRIX("attn_v.weight",             LAYER(attn_v),          CORE,         D, V),
    MATRIX("attn_output.weight",        LAYER(attn_out),        CORE,         ATTN, D),
    VECTOR("attn_q.bias",               LAYER(attn_q_bias),     QKV_BIAS,     Q),
    VECTOR("attn_k.bias",               LAYER(attn_k_bias),     QKV_BIAS,     K),
    VECTOR("attn_v.bias",               LAYER(attn_v_bias),     QKV_BIAS,     V),
    VECTOR("attn_q_norm.weight",        LAYER(attn_q_norm),     QK_NORM_HEAD, HEAD_K),
    VECTOR("attn_k_norm.weight",        LAYER(attn_k_norm),     QK_NORM_HEAD, HEAD_K),
    VECTOR("attn_q_norm.weight",        LAYER(attn_q_norm),     QK_NORM_FULL, Q),
    VECTOR("attn_k_norm.weight",        LAYER(attn_k_norm),     QK_NORM_FULL, K),
    VECTOR("ffn_norm.weight",           LAYER(ffn_norm),        CORE,         D),
    MATRIX("ffn_gate_inp.weight",       LAYER(gate),            CORE,         D, E),
    STACK("ffn_gate_exps.weight",       LAYER(expert_gate),     CORE,         D, FF, E),
    STACK("ffn_up_exps.weight",         LAYER(expert_up),       CORE,         D, FF, E),
    STACK("ffn_down_exps.weight",       LAYER(expert_down),     CORE,         FF, D, E),
    VECTOR("ffn_gate_inp_shexp.weight", LAYER(shared_gate_inp), SHARED_GATE,  D),
    MATRIX("ffn_gate_shexp.weight",     LAYER(shared_gate),     SHARED,       D, SHARED),
    MATRIX("ffn_up_shexp.weight",       LAYER(shared_up),       SHARED,       D, SHARED),
    MATRIX("ffn_down_shexp.weight",     LAYER(shared_down),     SHARED,       SHARED, D),
};
/* clang-format on */

const int32_t ek_model_n_keys = EK_COUNT_OF(ek_model_keys);
const int32_t ek_model_n_tensors = EK_COUNT_OF(ek_model_tensors);
const int32_t ek_model_n_layer_tensors = EK_COUNT_OF(ek_model_layer_tensors);

/* Score, and whether the chosen weights are normalised; neither groups nor a scale. */
#define GATE(kind, renormalised)                                                           \
    {                                                                                      \
        .score = EK_GATE_##kind, .renormalise = (renormalised), .scale = 1, .n_groups = 1, \
        .n_groups_used = 1                                                                 \
    }

#define QWEN2MOE "qwen2moe"
#define QWEN3MOE "qwen3moe"
#define OLMOE    "olmoe"
#define LLAMA    "llama"

static const ek_arch archs[] = {
    {
        .name = QWEN2MOE, /* Qwen1.5-MoE, Qwen2-MoE */
        .key = {KEY("expert_feed_forward_length", expert_ff, 1, DIM, ACT_BLOCK, FF_BY_TOP_K),
                KEY("expert_shared_feed_forward_length", shared_ff, 1, DIM, ACT_BLOCK, FF)},
        .required = EK_SET_CORE | EK_SET_SHARED | EK_SET_SHARED_GATE,
        .optional = EK_SET_QKV_BIAS,
        .rope_neox = true,
        .shared_gated = true,
        .gate = GATE(SOFTMAX, false),
    },
    {
        .name = QWEN3MOE, /* Qwen3-30B-A3B, Qwen3-235B-A22B, Qwen3-Coder */
        .key = {KEY("expert_feed_forward_length", expert_ff, 1, DIM, ACT_BLOCK, FF_BY_TOP_K)},
        .required = EK_SET_CORE | EK_SET_QK_NORM_HEAD,
        .optional = EK_SET_QKV_BIAS,
        .output_may_be_tied = true,
        .rope_neox = true,
        .qk_norm = EK_QK_NORM_HEAD,
        .gate = GATE(SOFTMAX, true),
    },
    {
        .name = OLMOE, /* OLMoE-1B-7B */
        .key = {KEY("feed_forward_length", expert_ff, 1, DIM, ACT_BLOCK, ERROR)},
        .required = EK_SET_CORE | EK_SET_QK_NORM_FULL,
        .optional = EK_SET_QKV_BIAS,
        .rope_neox = true,
        .qk_norm = EK_QK_NORM_FULL,
        .gate = GATE(SOFTMAX, false),
    },
    {
        .name = LLAMA, /* with experts: Mixtral 8x7B, 8x22B */
        .key = {KEY("feed_forward_length", expert_ff, 1, DIM, ACT_BLOCK, ERROR)},
        .required = EK_SET_CORE,
        .optional = EK_SET_QKV_BIAS,
        .output_may_be_tied = true,
        .gate = GATE(SOFTMAX, true),
    },
};

const ek_arch *ek_model_arch_find(ek_str name)
{
    for (size_t i = 0; i < EK_COUNT_OF(archs); i++)
        if (ek_str_eqz(name, archs[i].name)) return &archs[i];
    return NULL;
}

const char *ek_model_arch_list(void)
{
    return QWEN2MOE ", " QWEN3MOE ", " OLMOE ", " LLAMA;
}
