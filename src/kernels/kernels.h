/*
 * The arithmetic of the forward pass: one table of functions per instruction set.
 *
 * ek_kernels_select fills the scalar reference first and overwrites what the CPU flags allow; the
 * reference stays the readable specification, and tests/kernels/kcheck holds every other entry
 * against it.
 *
 * The rule that everything above relies on: **an output element is a function of its own inputs
 * only**. The order of its additions is fixed; it depends neither on how many tokens or rows one
 * call handles, nor on the split of rows between threads, nor on the tile a kernel picks. So a
 * greedy answer never depends on the batch. The vector tables do the same additions in the same
 * order and agree bit for bit, so it does not depend on the worker's processor either; the
 * reference sums in f64 and agrees with them only closely.
 *
 * A NaN or infinity in a weight row or a token makes that row's or token's results NaN or infinite
 * and leaves all others alone. Pure: no state, no allocation, any thread.
 */
#ifndef EK_KERNELS_KERNELS_H
#define EK_KERNELS_KERNELS_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/cpu_flags.h"
#include "base/status.h"
#include "quant/types.h"

/**
 * A weight matrix. Plain, in GGUF's own layout: row r at data + r * row_bytes, n_cols elements.
 * Packed (pack.h): 16 rows at data + r * row_bytes, r a multiple of 16, with their blocks
 * interleaved. Both give the same results, bit by bit; packed matrices are faster with few tokens.
 */
typedef struct ek_mat {
    const void *data; /* borrowed; any alignment */
    size_t row_bytes;
    ek_type type;
    int32_t n_rows; /* outputs */
    int32_t n_cols; /* inputs */
    bool packed;    /* only for entries with act_int8, and whole panels of rows */
} ek_mat;

#define EK_ACT_BLOCK 32 /* elements that share one activation scale */

/**
 * Activations of several tokens, prepared once and used by every matrix that reads them. f32 is
 * always there. The int8 form is needed where ek_kernels.act_int8[type] says so:
 *
 *     x[t][c] ~ scale[t][c / 32] * q[t][c], q in [-127, 127]
 *     scaled_sum[t][b] = scale[t][b] * (sum of the block's q)
 *     half_offset[t][h] = -32 * (sum of the q of half block h)
 *
 * A block's minimum (Q4_K, Q5_K) or zero point (Q4_0, Q8_0) is multiplied with the former; the
 * latter is what sums start from when codes count from 32 (Q6_K).
 */
typedef struct ek_act {
    int32_t n_cols;       /* a multiple of 32 whenever the int8 form is used */
    const float *f32;     /* (n_tokens, n_cols) */
    int8_t *q;            /* (n_tokens, n_cols), 64-byte aligned rows; NULL: no int8 form */
    float *scale;         /* (n_tokens, n_cols / 32) */
    float *scaled_sum;    /* (n_tokens, n_cols / 32) */
    int32_t *half_offset; /* (n_tokens, n_cols / 16) */
} ek_act;

/**
 * y[i * y_stride + r] = sum over c of W[r][c] * x[token_idx[i]][c]
 * for r in [row_beg, row_end), i in [0, n_tokens). No other element of y is written. Of a packed
 * matrix row_beg is a multiple of EK_PACK_ROWS.
 * @param token_idx (n_tokens) rows of `x`; NULL: 0, 1, 2, ...
 * @param y_stride  floats between two tokens' outputs, >= w->n_rows
 */
typedef void (*ek_matmul_fn)(const ek_mat *w, int32_t row_beg, int32_t row_end, const ek_act *x,
                             const int32_t *token_idx, int32_t n_tokens, float *y,
                             int64_t y_stride);

/**
 * Attention of a group of query vectors over one KV head's paged cache:
 * out[i] = sum over p of softmax_p(scale * q_i . k_p) * v_p, with f32 (or wider) accumulation.
 *
 * Query i sees the first n_pos[i] positions, and what lies behind them may be anything. Position p
 * lies in block b = p / block_tokens; its key is at k_blocks[b] + (p % block_tokens) * head_dim_k
 * (f16), values likewise with head_dim_v.
 */
typedef struct ek_attend_args {
    const float *const *q; /* (n_q) each (head_dim_k) f32 */
    float *const *out;     /* (n_q) each (head_dim_v) f32 */
    float *lse; /* (n_q) log of the softmax's denominator, sum_p exp(scale * q_i . k_p); or NULL */
    const int32_t *n_pos;            /* (n_q), >= 1 */
    const uint16_t *const *k_blocks; /* (ceil(max n_pos / block_tokens)) */
    const uint16_t *const *v_blocks;
    int32_t n_q;
    int32_t head_dim_k; /* a multiple of 8 */
    int32_t head_dim_v; /* a multiple of 8 */
    int32_t block_tokens;
    float scale;
    float *scratch; /* at least max n_pos + 16 floats, one thread's; the vector tables need none */
} ek_attend_args;

typedef enum ek_rope_kind {
    EK_ROPE_NORM, /* pairs (2i, 2i + 1): llama */
    EK_ROPE_NEOX, /* pairs (i, i + n_rot / 2): qwen, olmoe */
} ek_rope_kind;

typedef struct ek_kernels {
    const char *name; /* "reference", "avx2", "avx512" */

    /**
     * Fill one token's int8 form: q (n_cols), scale and scaled_sum (n_cols / 32), half_offset
     * (n_cols / 16), n_cols a multiple of 32. The same bytes from every table (act_rule.h). A block
     * with a NaN or infinity gets q and half_offset 0 and scale and scaled_sum NaN.
     */
    void (*act_quantize)(const float *x, int32_t n_cols, int8_t *q, float *scale, float *scaled_sum,
                         int32_t *half_offset);

    ek_matmul_fn matmul[EK_TYPE_MAX]; /* by ek_type of the weights; NULL: no such type */
    bool act_int8[EK_TYPE_MAX];       /* this matmul reads the int8 form (else f32) */

    /** y = x / sqrt(mean(x^2) + eps) * weight; y may be x. */
    void (*rms_norm)(const float *x, const float *weight, int32_t n, float eps, float *y);
    /** Rotate the first n_rot elements of x in place; cos, sin (n_rot / 2) of this position. */
    void (*rope)(ek_rope_kind kind, float *x, int32_t n_rot, const float *cos, const float *sin);
    /** y = silu(gate) * up, silu(v) = v / (1 + exp(-v)); y may be gate or up. */
    void (*swiglu)(const float *gate, const float *up, int32_t n, float *y);
    void (*attend)(const ek_attend_args *args);
    /** y += a * x */
    void (*axpy)(float a, const float *x, int32_t n, float *y);
    void (*f32_to_f16)(const float *x, int32_t n, uint16_t *y);
    /** softmax in place over n >= 1 finite logits, the maximum subtracted first. */
    void (*softmax)(float *x, int32_t n);
} ek_kernels;

typedef enum ek_kernels_choice {
    EK_KERNELS_AUTO, /* the best that the flags allow */
    EK_KERNELS_REFERENCE,
    EK_KERNELS_AVX2,
    EK_KERNELS_AVX512,
} ek_kernels_choice;

/**
 * Fill a table.
 * @param cpu_flags EK_CPU_* bits of base/cpu_flags.h
 * @return EK_OK; EK_EUNSUPPORTED the choice needs a flag that is not set, or is not in this build
 */
EK_MUST ek_status ek_kernels_select(ek_kernels_choice choice, uint32_t cpu_flags,
                                    ek_kernels *out_kernels);

/** "auto", "reference", "avx2", "avx512" -> choice; false for anything else. */
bool ek_kernels_choice_parse(const char *name, ek_kernels_choice *out_choice);

#endif
