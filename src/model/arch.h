/*
 * The architectures of this build, as data: which keys a file must have, which tensors a layer has
 * with what shape, and how the gate chooses. Private to desc*.c and arch.c; the next architecture
 * is a row in arch.c, and a rule where it has a tensor or key that none had before.
 */
#ifndef EK_MODEL_ARCH_H
#define EK_MODEL_ARCH_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/span.h"
#include "model/desc.h"

/** What a tensor's dimension is, until a file's keys give it a number. */
typedef enum ek_dim {
    EK_DIM_ONE, /* no such dimension */
    EK_DIM_D,
    EK_DIM_VOCAB,
    EK_DIM_Q,      /* n_heads * head_dim_k */
    EK_DIM_K,      /* n_kv_heads * head_dim_k */
    EK_DIM_V,      /* n_kv_heads * head_dim_v */
    EK_DIM_ATTN,   /* n_heads * head_dim_v: what attention gives */
    EK_DIM_HEAD_K, /* head_dim_k */
    EK_DIM_E,
    EK_DIM_FF,
    EK_DIM_SHARED,
    EK_DIM_COUNT,
} ek_dim;

/** Tensors that an architecture has all together or not at all; bits of a set. */
typedef enum ek_tensor_set {
    EK_SET_CORE = 1 << 0,
    EK_SET_QKV_BIAS = 1 << 1,
    EK_SET_QK_NORM_HEAD = 1 << 2,
    EK_SET_QK_NORM_FULL = 1 << 3,
    EK_SET_SHARED = 1 << 4,
    EK_SET_SHARED_GATE = 1 << 5,
} ek_tensor_set;

typedef struct ek_tensor_rule {
    const char *name; /* without the "blk.<layer>." of a layer's tensor */
    size_t field;     /* offset of the `const ek_tensor *` in ek_model_layer or ek_model */
    ek_dim dim[3];    /* fastest first */
    uint32_t set;     /* one of EK_SET_* */
    bool f32;         /* no other type: read element by element, not by a matrix kernel */
} ek_tensor_rule;

/** What an absent key means. */
typedef enum ek_key_absent {
    EK_ABSENT_ERROR,
    EK_ABSENT_HEADS,       /* as many as query heads */
    EK_ABSENT_D_BY_HEADS,  /* d_model / n_heads */
    EK_ABSENT_HEAD_K,      /* head_dim_k */
    EK_ABSENT_FF,          /* feed_forward_length */
    EK_ABSENT_FF_BY_TOP_K, /* feed_forward_length / top_k */
} ek_key_absent;

/** An integer key. Rules are read in their order, so that one may follow from an earlier one. */
typedef struct ek_key_rule {
    const char *name; /* without the "<architecture>." */
    size_t field;     /* offset of the int32_t in ek_model_params */
    int32_t min;
    int32_t max;
    int32_t multiple; /* what the kernels need it to be a multiple of */
    ek_key_absent absent;
} ek_key_rule;

#define EK_ARCH_KEYS_MAX 2

typedef struct ek_arch {
    const char *name;
    ek_key_rule key[EK_ARCH_KEYS_MAX]; /* besides the common ones; name NULL: none */
    uint32_t required;                 /* EK_SET_* */
    uint32_t optional;                 /* taken where layer 0 has one of them */
    bool output_may_be_tied;           /* to token_embd, when output.weight is absent */
    bool rope_neox;
    bool shared_gated;
    ek_qk_norm qk_norm;
    ek_model_gate gate; /* unless the file has keys that say otherwise */
} ek_arch;

/** NULL: not known. */
const ek_arch *ek_model_arch_find(ek_str name);

extern const ek_key_rule ek_model_keys[]; /* that every architecture has */
extern const int32_t ek_model_n_keys;
extern const ek_tensor_rule ek_model_tensors[]; /* once per model */
extern const int32_t ek_model_n_tensors;
extern const ek_tensor_rule ek_model_layer_tensors[]; /* once per layer */
extern const int32_t ek_model_n_layer_tensors;

#endif
