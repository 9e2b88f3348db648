/*
 * The model description: hyper-parameters and weight views of one model, as data.
 *
 * An architecture is one row of a table (arch.c): its name in the file, which keys it reads, which
 * tensors each layer has, its rotary kind, its norms and its gate rule. Adding one is a row plus
 * whatever is truly new in its arithmetic. ek_model_load checks that every key is in range, every
 * tensor is there with the shape that the keys imply and with a supported type, so that the engine
 * never checks again.
 *
 * Everything lives in the arena given and in the mapped file, and is immutable afterwards. Pure.
 */
#ifndef EK_MODEL_DESC_H
#define EK_MODEL_DESC_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/span.h"
#include "model/gguf.h"
#include "quant/types.h"

#define EK_MODEL_LAYERS_MAX  1024
#define EK_MODEL_EXPERTS_MAX 1024
#define EK_MODEL_TOP_K_MAX   64
#define EK_MODEL_HEADS_MAX   1024
#define EK_MODEL_VOCAB_MAX   (1 << 24)
#define EK_MODEL_DIM_MAX     (1 << 20)
#define EK_MODEL_CONTEXT_MAX (1 << 30)

typedef enum ek_qk_norm {
    EK_QK_NORM_NONE,
    EK_QK_NORM_HEAD, /* weight (head_dim), each head on its own: qwen3moe */
    EK_QK_NORM_FULL, /* weight (n_heads * head_dim), over the whole width: olmoe */
} ek_qk_norm;

typedef enum ek_gate_score {
    EK_GATE_SOFTMAX,        /* softmax over all experts, then top-k */
    EK_GATE_SIGMOID,        /* sigmoid of each, then top-k */
    EK_GATE_SOFTMAX_CHOSEN, /* top-k on logits, softmax over the chosen */
} ek_gate_score;

/** How a layer turns gate logits into experts and weights. */
typedef struct ek_model_gate {
    ek_gate_score score;
    bool renormalise; /* weights divided by their sum over the chosen */
    float scale;      /* weights multiplied by this at the end; 1 for none */
    int32_t n_groups; /* 1: no groups */
    int32_t n_groups_used;
} ek_model_gate;

typedef struct ek_model_params {
    const char *arch; /* "qwen2moe" */
    ek_str name;      /* general.name, or the architecture */
    int32_t n_layers;
    int32_t d_model;
    int32_t n_vocab;
    int32_t context_tokens; /* trained context */
    int32_t n_heads;
    int32_t n_kv_heads;
    int32_t head_dim_k;
    int32_t head_dim_v;
    int32_t n_rot; /* rotary dimensions per head, even */
    int32_t n_experts;
    int32_t top_k;
    int32_t expert_ff; /* hidden width of one routed expert */
    int32_t shared_ff; /* hidden width of the shared expert; 0: none */
    bool rope_neox;    /* pairs (i, i + n_rot/2), else (2i, 2i + 1) */
    bool shared_gated; /* shared expert's output x sigmoid(gate . x) */
    ek_qk_norm qk_norm;
    float rope_base;
    float rope_scale; /* positions are divided by it; 1: no scaling */
    float rms_eps;
    ek_model_gate gate;
    int64_t n_params_total;
    int64_t n_params_active; /* read per token: chosen experts, one embedding row */
    int64_t weight_bytes;    /* bytes of all tensors */
} ek_model_params;

/** One layer's weights. Optional tensors are NULL where the architecture has none. */
typedef struct ek_model_layer {
    const ek_tensor *attn_norm;                /* (d) */
    const ek_tensor *attn_q, *attn_k, *attn_v; /* rows x d */
    const ek_tensor *attn_q_bias, *attn_k_bias, *attn_v_bias;
    const ek_tensor *attn_q_norm, *attn_k_norm;
    const ek_tensor *attn_out;                /* (d rows, n_heads * head_dim_v) */
    const ek_tensor *ffn_norm;                /* (d) */
    const ek_tensor *gate;                    /* (n_experts rows, d) */
    const ek_tensor *gate_bias;               /* (n_experts) selection bias or NULL */
    const ek_tensor *expert_gate, *expert_up; /* (n_experts, expert_ff rows, d) */
    const ek_tensor *expert_down;             /* (n_experts, d rows, expert_ff) */
    const ek_tensor *shared_gate_inp;         /* (d) */
    const ek_tensor *shared_gate, *shared_up; /* (shared_ff rows, d) */
    const ek_tensor *shared_down;             /* (d rows, shared_ff) */
} ek_model_layer;

typedef struct ek_model {
    ek_model_params params;
    const ek_gguf *gguf;          /* borrowed until the map is closed */
    const ek_tensor *token_embd;  /* (n_vocab rows, d) */
    const ek_tensor *output_norm; /* (d) */
    const ek_tensor *output;      /* (n_vocab rows, d); token_embd where tied */
    const ek_model_layer *layers; /* (n_layers) */
} ek_model;

/**
 * Read the description of a parsed file.
 * @return EK_OK; EK_EUNSUPPORTED architecture unknown (the text lists the known ones), a dense
 * model, or a tensor, type, width or rope scaling that this program has no arithmetic for;
 *         EK_EFORMAT a key or tensor is missing or out of range; EK_ENOMEM
 */
EK_MUST ek_status ek_model_load(const ek_gguf *gguf, ek_arena *perm, ek_model **out_model,
                                ek_err *err);

/** The most that ek_model_load takes from `perm` for that file. */
size_t ek_model_perm_bytes_max(const ek_gguf *gguf);

/** Comma-separated names of the architectures of this build, for --help and error texts. */
const char *ek_model_arch_list(void);

/** Bytes of KV cache that one token takes over all layers (f16 keys and values). */
int64_t ek_model_kv_bytes_per_token(const ek_model_params *params);

#endif
