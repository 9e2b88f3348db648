/*
 * Panels: a piece of a quantised matrix, 16 rows by up to 256 columns, turned so that a vector
 * holds 4 neighbouring columns of 16 rows; and sinks, which take codes as they are unpacked.
 * Written on v16; include a v16 header and a dot header first.
 *
 * One result is, over its blocks of 32 columns, with S the exact integer sum of code * q:
 *     total = fma(S, a * scale, total)       where weights are a * code - b,
 *     total = fma(-b, scaled_sum, total)     in this order; and
 *     total = fma(S, f * scale, total)       per half block of Q6_K: f is a or b, S of code - 32
 * and of nothing else: blocks in rising order, but of each four blocks of Q6_K the lower halves
 * before the upper ones, and of these the first and third before the second and fourth, as the
 * codes lie. So neither tiles nor tokens nor
 * instruction sets change a bit of a result.
 */
#include "base/assert.h"
#include "kernels/kernels.h"
#include "kernels/pack.h"

enum {
    PANEL_ROWS = 16,
    PANEL_BLOCKS = 8, /* blocks of 32 columns */
    BLOCK_DWORDS = 8, /* a block's columns in groups of 4 */
    CODE_BYTES = 64,  /* one group of 4 columns of 16 rows */
    DIRECT_TOKENS = EK_DOT_DIRECT_TOKENS,
    SINK_SLOTS = 2, /* blocks whose codes arrive interleaved */
    STREAM_AHEAD_BYTES = 4096,
};

typedef struct panel {
    EK_ALIGNED(64) float a[PANEL_BLOCKS][PANEL_ROWS];
    EK_ALIGNED(64) float b[PANEL_BLOCKS][PANEL_ROWS];
    EK_ALIGNED(64) uint8_t code[PANEL_BLOCKS][BLOCK_DWORDS][CODE_BYTES];
} panel;

/* A token's activations, from a matrix's first column on. */
typedef struct panel_token {
    const int8_t *q;
    const float *scale, *scaled_sum;
    const int32_t *half_offset;
} panel_token;

EK_V16_INLINE v16f affine_add(v16f total, v16i sum, v16f a, v16f b, float scale, float scaled_sum)
{
    v16f factor = v16f_mul(a, v16f_set1(scale));
    total = v16f_fma(v16f_from_i(sum), factor, total);
    return v16f_fnma(b, v16f_set1(scaled_sum), total);
}

EK_V16_INLINE v16f half_add(v16f total, v16i sum, v16f f, float scale)
{
    v16f factor = v16f_mul(f, v16f_set1(scale));
    return v16f_fma(v16f_from_i(sum), factor, total);
}

/*
 * Where unpacked codes and scales go. With n_tokens 0 they are stored in a panel, for many tokens
 * to use; otherwise they are multiplied with a few tokens on the spot, which saves writing and
 * reading them. n_tokens is a constant at every call.
 */
typedef struct sink {
    panel *out;           /* n_tokens 0 */
    const panel_token *x; /* (n_tokens) */
    int64_t first_block;  /* of the panel, counted from the tokens' first column */
    v16i sum[SINK_SLOTS][DIRECT_TOKENS];
    v16f total[DIRECT_TOKENS];
} sink;

/*
 * To be called once per run of blocks: what x points to is read again from here on. Otherwise
 * compilers keep 24 pointers of six tokens, and for want of other registers in vector registers,
 * where every use takes a port away from products.
 */
EK_V16_INLINE void sink_reload(sink *s)
{
    __asm__("" : "+r"(s->x));
}

EK_V16_INLINE void sink_begin(int n_tokens, sink *s, int slot)
{
#pragma GCC unroll 6
    for (int t = 0; t < n_tokens; t++)
        s->sum[slot][t] = v16i_zero();
}

EK_V16_INLINE void sink_begin_half(int n_tokens, sink *s, int slot, int block, int half)
{
#pragma GCC unroll 6
    for (int t = 0; t < n_tokens; t++) {
        const int32_t *offset = s->x[t].half_offset + 2 * s->first_block;
        s->sum[slot][t] = v16i_set1(offset[2 * block + half]);
    }
}

/* Codes of columns 4 * dword.. of a block. */
EK_V16_INLINE void sink_take(int code_bits, int n_tokens, sink *s, int slot, int block, int dword,
                             v16i codes)
{
    if (n_tokens == 0) v16i_store(s->out->code[block][dword], codes);
#pragma GCC unroll 6
    for (int t = 0; t < n_tokens; t++) {
        const int8_t *q = s->x[t].q + s->first_block * EK_ACT_BLOCK;
        s->sum[slot][t] =
            dot_add_4(code_bits, s->sum[slot][t], codes, q + block * EK_ACT_BLOCK + dword * 4);
    }
}

EK_V16_INLINE void sink_finish(int n_tokens, sink *s, int slot, int block, v16f a, v16f b)
{
    if (n_tokens == 0) {
        v16f_store(s->out->a[block], a);
        v16f_store(s->out->b[block], b);
    }
#pragma GCC unroll 6
    for (int t = 0; t < n_tokens; t++) {
        const float *scale = s->x[t].scale + s->first_block;
        const float *scaled_sum = s->x[t].scaled_sum + s->first_block;
        s->total[t] =
            affine_add(s->total[t], s->sum[slot][t], a, b, scale[block], scaled_sum[block]);
    }
}

EK_V16_INLINE void sink_finish_half(int n_tokens, sink *s, int slot, int block, int half, v16f f)
{
    if (n_tokens == 0) v16f_store(half == 0 ? s->out->a[block] : s->out->b[block], f);
#pragma GCC unroll 6
    for (int t = 0; t < n_tokens; t++) {
        const float *scale = s->x[t].scale + s->first_block;
        s->total[t] = half_add(s->total[t], s->sum[slot][t], f, scale[block]);
    }
}
