/*
 * Kernels over one vector: activation quantisation, norms, rope, swiglu, axpy, half floats. Written
 * on v16; include a v16 header and v16_exp.h first. Sums run over lanes c mod 16, then in the order
 * of v16f_sum; squares are summed in f64. Contracts are those of kernels.h.
 */
#include <math.h>

#include "kernels/act_rule.h"
#include "kernels/kernels.h"

static void act_quantize(const float *x, int32_t n_cols, int8_t *q, float *scale, float *scaled_sum,
                         int32_t *half_offset)
{
    const v16i magnitude = v16i_set1(0x7fffffff);
    for (int32_t b = 0; b < n_cols / EK_ACT_BLOCK; b++) {
        v16f low = v16f_load(x + b * EK_ACT_BLOCK), high = v16f_load(x + b * EK_ACT_BLOCK + 16);
        /* As integers, magnitudes order like floats, with infinity and NaN on top. */
        int32_t bits = v16i_largest(v16i_max(v16i_and(v16i_of_bits(low), magnitude),
                                             v16i_and(v16i_of_bits(high), magnitude)));
        float largest = NAN;
        if (bits < 0x7f800000) memcpy(&largest, &bits, sizeof largest);
        ek_act_rule rule = ek_act_rule_for(largest);
        v16f inverse = v16f_set1(rule.inverse);
        v16i q_low = v16i_round(v16f_mul(low, inverse));
        v16i q_high = v16i_round(v16f_mul(high, inverse));
        if (isnan(largest)) q_low = q_high = v16i_zero();
        v16i_store_bytes(q + b * EK_ACT_BLOCK, q_low);
        v16i_store_bytes(q + b * EK_ACT_BLOCK + 16, q_high);
        scale[b] = rule.scale;
        int32_t sum_low = v16i_sum(q_low), sum_high = v16i_sum(q_high);
        scaled_sum[b] = rule.scale * (float)(sum_low + sum_high);
        half_offset[2 * b] = -32 * sum_low;
        half_offset[2 * b + 1] = -32 * sum_high;
    }
}

static void rms_norm(const float *x, const float *weight, int32_t n, float eps, float *y)
{
    v16d squares = v16d_zero();
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        squares = v16d_add_squares(squares, v16f_load(x + i));
    if (i < n) squares = v16d_add_squares(squares, v16f_load_n(x + i, n - i));
    double mean = v16d_sum(squares) / n;
    v16f factor = v16f_set1((float)(1.0 / sqrt(mean + (double)eps)));
    for (i = 0; i + 16 <= n; i += 16)
        v16f_store(y + i, v16f_mul(v16f_mul(v16f_load(x + i), factor), v16f_load(weight + i)));
    if (i < n) {
        v16f scaled = v16f_mul(v16f_load_n(x + i, n - i), factor);
        v16f_store_n(y + i, n - i, v16f_mul(scaled, v16f_load_n(weight + i, n - i)));
    }
}

/*
 * Products and sums are rounded one by one, as the reference does, so that a rotation is the same
 * everywhere.
 */
static void rope_neox(float *x, int32_t n_pairs, const float *cos, const float *sin)
{
    for (int32_t i = 0; i < n_pairs; i += 16) {
        int n = n_pairs - i < 16 ? n_pairs - i : 16;
        v16f a = v16f_load_n(x + i, n), b = v16f_load_n(x + i + n_pairs, n);
        v16f c = v16f_load_n(cos + i, n), s = v16f_load_n(sin + i, n);
        v16f_store_n(x + i, n, v16f_sub(v16f_mul(a, c), v16f_mul(b, s)));
        v16f_store_n(x + i + n_pairs, n, v16f_add(v16f_mul(a, s), v16f_mul(b, c)));
    }
}

static void rope_norm(float *x, int32_t n_pairs, const float *cos, const float *sin)
{
    for (int32_t i = 0; i < n_pairs; i += 8) {
        int n = n_pairs - i < 8 ? n_pairs - i : 8;
        float c[16] = {0}, s[16] = {0}; /* each angle twice, once per element of its pair */
        for (int k = 0; k < n; k++) {
            c[2 * k] = c[2 * k + 1] = cos[i + k];
            s[2 * k] = s[2 * k + 1] = sin[i + k];
        }
        v16f pairs = v16f_load_n(x + 2 * i, 2 * n);
        v16f crossed = v16f_mul(v16f_swap_pairs(pairs), v16f_load(s));
        v16f_store_n(x + 2 * i, 2 * n, v16f_addsub(v16f_mul(pairs, v16f_load(c)), crossed));
    }
}

static void rope(ek_rope_kind kind, float *x, int32_t n_rot, const float *cos, const float *sin)
{
    if (kind == EK_ROPE_NORM)
        rope_norm(x, n_rot / 2, cos, sin);
    else
        rope_neox(x, n_rot / 2, cos, sin);
}

EK_V16_INLINE v16f silu_times(v16f gate, v16f up)
{
    v16f one = v16f_set1(1.0f);
    v16f denominator = v16f_add(one, v16f_exp(v16f_sub(v16f_zero(), gate)));
    return v16f_mul(v16f_div(gate, denominator), up);
}

static void swiglu(const float *gate, const float *up, int32_t n, float *y)
{
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16f_store(y + i, silu_times(v16f_load(gate + i), v16f_load(up + i)));
    if (i < n) {
        v16f last = silu_times(v16f_load_n(gate + i, n - i), v16f_load_n(up + i, n - i));
        v16f_store_n(y + i, n - i, last);
    }
}

static void axpy(float a, const float *x, int32_t n, float *y)
{
    v16f factor = v16f_set1(a);
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16f_store(y + i, v16f_fma(factor, v16f_load(x + i), v16f_load(y + i)));
    if (i < n) {
        v16f last = v16f_fma(factor, v16f_load_n(x + i, n - i), v16f_load_n(y + i, n - i));
        v16f_store_n(y + i, n - i, last);
    }
}

static void f32_to_f16(const float *x, int32_t n, uint16_t *y)
{
    int32_t i = 0;
    for (; i + 16 <= n; i += 16)
        v16f_to_f16(y + i, v16f_load(x + i));
    if (i < n) {
        uint16_t last[16];
        v16f_to_f16(last, v16f_load_n(x + i, n - i));
        memcpy(y + i, last, (size_t)(n - i) * sizeof *y);
    }
}

static void softmax(float *x, int32_t n)
{
    const v16f lowest = v16f_set1(-INFINITY);
    v16f top = lowest;
    int32_t whole = n & ~15, rest = n & 15;
    for (int32_t i = 0; i < whole; i += 16)
        top = v16f_max(top, v16f_load(x + i));
    if (rest > 0) top = v16f_max(top, v16f_first(rest, v16f_load_n(x + whole, rest), lowest));
    v16f largest = v16f_set1(v16f_largest(top)), sum = v16f_zero();
    for (int32_t i = 0; i < whole; i += 16) {
        v16f e = v16f_exp(v16f_sub(v16f_load(x + i), largest));
        v16f_store(x + i, e);
        sum = v16f_add(sum, e);
    }
    if (rest > 0) {
        v16f e = v16f_exp(v16f_sub(v16f_load_n(x + whole, rest), largest));
        v16f_store_n(x + whole, rest, e);
        sum = v16f_add(sum, v16f_first(rest, e, v16f_zero()));
    }
    v16f inverse = v16f_set1(1.0f / v16f_sum(sum));
    for (int32_t i = 0; i < whole; i += 16)
        v16f_store(x + i, v16f_mul(v16f_load(x + i), inverse));
    if (rest > 0) v16f_store_n(x + whole, rest, v16f_mul(v16f_load_n(x + whole, rest), inverse));
}

static void vector_fill(ek_kernels *table)
{
    table->act_quantize = act_quantize;
    table->rms_norm = rms_norm;
    table->rope = rope;
    table->swiglu = swiglu;
    table->axpy = axpy;
    table->f32_to_f16 = f32_to_f16;
    table->softmax = softmax;
}
