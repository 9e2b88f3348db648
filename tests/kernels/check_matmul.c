/*
 * matmul of one weight type: values, the promise that a result depends on nothing but its own
 * inputs, and what may be read and written.
 *
 * Bounds. Let x' be the activations as the kernel sees them (scale * q, or x itself), w the
 * weights, o the weight that code 0 means (what affine types subtract; 0 for floats), s a block's
 * activation scale:
 *   against the exact sum over x' in double:  (2 * n_terms + 8) * eps * sum (|w| + 2 |o|) |x'|
 *   against the reference over x:             that, plus sum |w| * |x - x'|
 * where n_terms counts the additions of one result: columns for floats, blocks for int8.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "kcheck.h"
#include "kernels/pack.h"
#include "quant/convert.h"

enum { TOKENS_MAX = 97, COLS_MAX = 2048 };

typedef struct matmul_case {
    ek_mat w;
    ek_act x;
    int32_t n_tokens;
    float *wide;   /* (n_rows, n_cols) dequantised */
    float *offset; /* (n_rows, n_cols) what code 0 means */
} matmul_case;

static bool is_float(ek_type type)
{
    return type == EK_TYPE_F32 || type == EK_TYPE_F16 || type == EK_TYPE_BF16;
}

/*
 * Any bits, or all of them, as codes and sub-scales; only the f16 scales are kept in a range that
 * makes sums finite.
 */
static void randomise_block(kc *k, ek_type type, kc_pattern pattern, uint8_t *block)
{
    const ek_type_info *info = ek_quant_type_info((uint32_t)type);
    for (int i = 0; i < info->block_bytes; i++)
        block[i] = pattern == KC_FULL ? 0xff : (uint8_t)ek_rng_below(&k->rng, 256);
    size_t at[2] = {0, 0};
    if (type == EK_TYPE_Q6_K) at[0] = at[1] = offsetof(ek_block_q6_K, d);
    if (type == EK_TYPE_Q4_K || type == EK_TYPE_Q5_K) at[1] = offsetof(ek_block_q4_K, dmin);
    for (int i = 0; i < 2; i++) {
        uint16_t d = ek_quant_f32_to_f16((float)kc_uniform(k, -0.02, 0.05));
        memcpy(block + at[i], &d, sizeof d);
    }
}

/* The same block with every code 0: what is left is the offset. */
static void zero_codes(ek_type type, uint8_t *block)
{
    switch (type) {
    case EK_TYPE_Q4_0: memset(block + offsetof(ek_block_q4_0, qs), 0, 16); break;
    case EK_TYPE_Q8_0: memset(block + offsetof(ek_block_q8_0, qs), 0x80, 32); break;
    case EK_TYPE_Q4_K: memset(block + offsetof(ek_block_q4_K, qs), 0, 128); break;
    case EK_TYPE_Q5_K: memset(block + offsetof(ek_block_q5_K, qh), 0, 32 + 128); break;
    case EK_TYPE_Q6_K: memset(block, 0, 128 + 64); break;
    case EK_TYPE_F32:
    case EK_TYPE_F16:
    case EK_TYPE_BF16: memset(block, 0, 2); break;
    }
    if (type == EK_TYPE_F32) memset(block, 0, 4);
}

static void fill_weights(kc *k, matmul_case *c, kc_pattern pattern)
{
    const ek_type_info *info = ek_quant_type_info((uint32_t)c->w.type);
    int64_t n_cols = c->w.n_cols;
    size_t row_bytes = ek_quant_row_bytes(c->w.type, n_cols);
    float plain[COLS_MAX];
    uint8_t codeless[COLS_MAX * 4];
    for (int32_t r = 0; r < c->w.n_rows; r++) {
        uint8_t *row = (uint8_t *)(uintptr_t)c->w.data + (size_t)r * c->w.row_bytes;
        if (is_float(c->w.type) || (pattern != KC_UNIFORM && pattern != KC_FULL)) {
            kc_fill(k, pattern == KC_LARGE ? KC_UNIFORM : pattern, plain, n_cols);
            for (int64_t i = 0; pattern == KC_MIXED && i < n_cols; i++)
                plain[i] *= 0.01f; /* f16 ends at 65504 */
            ek_status status = ek_quant_row_from_f32(c->w.type, plain, n_cols, row);
            ek_assert(status == EK_OK);
        } else {
            for (int64_t b = 0; b < n_cols / info->block_elems; b++)
                randomise_block(k, c->w.type, pattern, row + b * info->block_bytes);
        }
        ek_quant_row_to_f32(c->w.type, row, n_cols, c->wide + r * n_cols);
        memcpy(codeless, row, row_bytes);
        for (int64_t b = 0; b < n_cols / info->block_elems; b++)
            zero_codes(c->w.type, codeless + b * info->block_bytes);
        ek_quant_row_to_f32(c->w.type, codeless, n_cols, c->offset + r * n_cols);
    }
}

static void prepare_acts(const ek_kernels *table, matmul_case *c)
{
    int32_t n_cols = c->x.n_cols, n_blocks = n_cols / EK_ACT_BLOCK;
    for (int64_t t = 0; c->x.q && t < c->n_tokens; t++)
        table->act_quantize(c->x.f32 + t * n_cols, n_cols, c->x.q + t * n_cols,
                            c->x.scale + t * n_blocks, c->x.scaled_sum + t * n_blocks,
                            c->x.half_offset + 2 * t * n_blocks);
}

static matmul_case make_case(kc *k, ek_type type, kc_pattern pattern, int32_t n_rows,
                             int32_t n_cols, int32_t n_tokens)
{
    /* Some matrices end at the page; others have gaps between rows and any alignment. */
    size_t row_bytes = ek_quant_row_bytes(type, n_cols), slack = 0, gap = 0;
    if (ek_rng_below(&k->rng, 2)) {
        slack = (size_t)ek_rng_below(&k->rng, 64);
        gap = (size_t)ek_rng_below(&k->rng, 8);
    }
    size_t bytes = (size_t)(n_rows - 1) * (row_bytes + gap) + row_bytes;
    matmul_case c = {.n_tokens = n_tokens};
    c.w = (ek_mat){.data = kc_alloc(k, bytes, slack),
                   .row_bytes = row_bytes + gap,
                   .type = type,
                   .n_rows = n_rows,
                   .n_cols = n_cols};
    c.wide = kc_floats(k, (int64_t)n_rows * n_cols);
    c.offset = kc_floats(k, (int64_t)n_rows * n_cols);
    fill_weights(k, &c, pattern);
    float *x = kc_floats(k, (int64_t)n_tokens * n_cols);
    kc_fill(k, pattern, x, (int64_t)n_tokens * n_cols);
    c.x = (ek_act){.n_cols = n_cols, .f32 = x};
    if (k->table->act_int8[type]) {
        int64_t n_blocks = n_cols / EK_ACT_BLOCK;
        c.x.q = kc_alloc(k, (size_t)n_tokens * (size_t)n_cols, 0);
        c.x.scale = kc_floats(k, n_tokens * n_blocks);
        c.x.scaled_sum = kc_floats(k, n_tokens * n_blocks);
        c.x.half_offset = kc_alloc(k, (size_t)(2 * n_tokens * n_blocks) * sizeof(int32_t), 0);
        prepare_acts(k->table, &c);
    }
    return c;
}

/* One result against both expectations of the head comment. */
static void check_value(kc *k, const matmul_case *c, int32_t r, int32_t t, float got,
                        float reference)
{
    int32_t n_cols = c->w.n_cols;
    const float *w = c->wide + (int64_t)r * n_cols, *o = c->offset + (int64_t)r * n_cols;
    const float *x = c->x.f32 + (int64_t)t * n_cols;
    double exact = 0.0, size = 0.0, rounding = 0.0;
    for (int32_t col = 0; col < n_cols; col++) {
        double seen = (double)x[col];
        if (c->x.q) {
            int64_t block = ((int64_t)t * n_cols + col) / EK_ACT_BLOCK;
            seen = (double)c->x.scale[block] * c->x.q[(int64_t)t * n_cols + col];
        }
        exact += (double)w[col] * seen;
        size += (fabs((double)w[col]) + 2 * fabs((double)o[col])) * fabs(seen);
        rounding += fabs((double)w[col]) * fabs((double)x[col] - seen);
    }
    int n_terms = c->x.q ? n_cols / EK_ACT_BLOCK : n_cols;
    /* Subnormal intermediate results round by up to 2^-150 each. */
    double bound = (2 * n_terms + 8) * (KC_EPS * size + 0x1p-149);
    kc_near(k, r, got, exact, bound);
    kc_near(k, r, got, (double)reference, bound + rounding + 2 * KC_EPS * size);
}

/*
 * The promise of kernels.h: tokens alone, rows in pieces, tokens in another order, wider strides:
 * the same bits.
 */
static void check_invariance(kc *k, const matmul_case *c, const float *y)
{
    ek_matmul_fn matmul = k->table->matmul[c->w.type];
    int32_t n_rows = c->w.n_rows, n_tokens = c->n_tokens;
    int64_t stride = n_rows + (int64_t)ek_rng_below(&k->rng, 5);
    int32_t n_picks = n_tokens + 3;
    int32_t *token = kc_alloc(k, (size_t)n_picks * sizeof *token, 0);
    float *z = kc_floats(k, (n_picks - 1) * stride + n_rows);
    float untouched = z[0];
    for (int32_t i = 0; i < n_picks; i++)
        token[i] = (int32_t)ek_rng_below(&k->rng, (uint64_t)n_tokens);
    for (int32_t beg = 0; beg < n_rows;) {
        int32_t end = beg + 1 + (int32_t)ek_rng_below(&k->rng, (uint64_t)(n_rows - beg));
        matmul(&c->w, beg, end, &c->x, token, n_picks, z, stride);
        beg = end;
    }
    for (int32_t i = 0; i < n_picks; i++) {
        kc_same(k, "picked tokens, rows in pieces", z + i * stride, y + (int64_t)token[i] * n_rows,
                (size_t)n_rows * sizeof *z);
        for (int64_t r = n_rows; r < stride && i + 1 < n_picks; r++)
            kc_same(k, "between two outputs", z + i * stride + r, &untouched, sizeof untouched);
    }
    int32_t one = (int32_t)ek_rng_below(&k->rng, (uint64_t)n_tokens);
    float *alone = kc_floats(k, n_rows);
    matmul(&c->w, 0, n_rows, &c->x, &one, 1, alone, n_rows);
    kc_same(k, "one token", alone, y + (int64_t)one * n_rows, (size_t)n_rows * sizeof *alone);
    /* Rows outside the range stay as they are. */
    int32_t beg = n_rows / 3, end = n_rows - n_rows / 3;
    float *part = kc_floats(k, n_rows);
    matmul(&c->w, beg, end, &c->x, &one, 1, part, n_rows);
    for (int32_t r = 0; r < n_rows; r++) {
        const float *expected = r >= beg && r < end ? &alone[r] : &untouched;
        kc_same(k, "part of the rows", &part[r], expected, sizeof *part);
    }
}

/* The whole panels of the matrix, packed: the same bits, from any panel on, and nothing beyond. */
static void check_packed(kc *k, const matmul_case *c, const float *y)
{
    ek_mat w = c->w;
    w.n_rows = w.n_rows / EK_PACK_ROWS * EK_PACK_ROWS;
    if (!k->table->act_int8[w.type] || w.n_rows == 0) return;
    size_t row_bytes = ek_quant_row_bytes(w.type, w.n_cols);
    uint8_t *packed = kc_alloc(k, row_bytes * (size_t)w.n_rows, 0);
    for (int32_t r = 0; r < w.n_rows; r += EK_PACK_ROWS)
        ek_kernels_pack(w.type, w.n_cols, (const uint8_t *)c->w.data + (size_t)r * c->w.row_bytes,
                        c->w.row_bytes, packed + (size_t)r * row_bytes);
    w.data = packed;
    w.row_bytes = row_bytes;
    w.packed = true;
    float *z = kc_floats(k, (int64_t)c->n_tokens * w.n_rows);
    float untouched = z[0];
    int32_t n_panels = w.n_rows / EK_PACK_ROWS;
    int32_t beg = (int32_t)ek_rng_below(&k->rng, (uint64_t)n_panels) * EK_PACK_ROWS;
    int32_t end = beg + 1 + (int32_t)ek_rng_below(&k->rng, (uint64_t)(w.n_rows - beg));
    k->table->matmul[w.type](&w, beg, end, &c->x, NULL, c->n_tokens, z, w.n_rows);
    for (int32_t t = 0; t < c->n_tokens; t++)
        for (int32_t r = 0; r < w.n_rows; r++) {
            bool inside = r >= beg && r < end;
            const float *expected = inside ? &y[(int64_t)t * c->w.n_rows + r] : &untouched;
            kc_same(k, "packed", &z[(int64_t)t * w.n_rows + r], expected, sizeof *z);
        }
    k->table->matmul[w.type](&w, 0, w.n_rows, &c->x, NULL, c->n_tokens, z, w.n_rows);
    for (int32_t t = 0; t < c->n_tokens; t++)
        kc_same(k, "packed, all rows", z + (int64_t)t * w.n_rows, y + (int64_t)t * c->w.n_rows,
                (size_t)w.n_rows * sizeof *z);
}

static void check_case(kc *k, ek_type type, kc_pattern pattern, int32_t n_rows, int32_t n_cols,
                       int32_t n_tokens)
{
    kc_case(k, "matmul %s %s, %d x %d, %d tokens", ek_quant_type_info((uint32_t)type)->name,
            kc_pattern_name(pattern), n_rows, n_cols, n_tokens);
    matmul_case c = make_case(k, type, pattern, n_rows, n_cols, n_tokens);
    float *y = kc_floats(k, (int64_t)n_tokens * n_rows);
    float *expected = kc_floats(k, (int64_t)n_tokens * n_rows);
    k->table->matmul[type](&c.w, 0, n_rows, &c.x, NULL, n_tokens, y, n_rows);
    k->reference->matmul[type](&c.w, 0, n_rows, &c.x, NULL, n_tokens, expected, n_rows);
    for (int32_t t = 0; t < n_tokens; t++)
        for (int32_t r = 0; r < n_rows; r++) {
            int64_t at = (int64_t)t * n_rows + r;
            check_value(k, &c, r, t, y[at], expected[at]);
        }
    check_invariance(k, &c, y);
    check_packed(k, &c, y);
    if (k->twin) {
        float *twin = kc_floats(k, (int64_t)n_tokens * n_rows);
        k->twin->matmul[type](&c.w, 0, n_rows, &c.x, NULL, n_tokens, twin, n_rows);
        kc_same(k, "another instruction set", y, twin, (size_t)(n_tokens * n_rows) * sizeof *y);
    }
    kc_release(k);
}

/* NaN and infinity stay where they belong: in the row or token that has them. */
static void check_odd(kc *k, ek_type type, int32_t n_cols)
{
    enum { ROWS = 37, TOKENS = 9 };
    kc_case(k, "matmul %s with odd values, %d columns", ek_quant_type_info((uint32_t)type)->name,
            n_cols);
    matmul_case c = make_case(k, type, KC_UNIFORM, ROWS, n_cols, TOKENS);
    float *plain = kc_floats(k, ROWS * TOKENS), *y = kc_floats(k, ROWS * TOKENS);
    k->table->matmul[type](&c.w, 0, ROWS, &c.x, NULL, TOKENS, plain, ROWS);
    int32_t bad_row = 19, bad_token = 4;
    float x[COLS_MAX];
    kc_fill(k, KC_UNIFORM, x, n_cols);
    x[n_cols - 1] = NAN;
    uint8_t *row = (uint8_t *)(uintptr_t)c.w.data + (size_t)bad_row * c.w.row_bytes;
    ek_status status = ek_quant_row_from_f32(type, x, n_cols, row);
    ek_assert(status == EK_OK);
    ((float *)(uintptr_t)c.x.f32)[bad_token * n_cols + n_cols / 2] = INFINITY;
    prepare_acts(k->table, &c);
    k->table->matmul[type](&c.w, 0, ROWS, &c.x, NULL, TOKENS, y, ROWS);
    for (int32_t t = 0; t < TOKENS; t++)
        for (int32_t r = 0; r < ROWS; r++) {
            int at = t * ROWS + r;
            if (r == bad_row || t == bad_token) {
                if (isfinite(y[at])) kc_fail(k, "row %d, token %d came out finite", r, t);
            } else {
                kc_same(k, "a neighbour", &y[at], &plain[at], sizeof *y);
            }
        }
    kc_release(k);
}

void kc_check_matmul(kc *k, ek_type type)
{
    static const int32_t rows[] = {1, 2, 3, 4, 5, 15, 16, 17, 31, 32, 33, 50, 64, 70};
    static const int32_t float_cols[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 64, 100, 257};
    static const int32_t block_cols[] = {32, 64, 96, 224, 256, 288, 544, 1056};
    static const int32_t k_cols[] = {256, 512, 768, 1024, 2048};
    const int32_t *cols = float_cols;
    size_t n = EK_COUNT_OF(float_cols);
    if (!is_float(type)) {
        bool in_32 = ek_quant_type_info((uint32_t)type)->block_elems == 32;
        cols = in_32 ? block_cols : k_cols;
        n = in_32 ? EK_COUNT_OF(block_cols) : EK_COUNT_OF(k_cols);
    }
    for (size_t i = 0; i < n; i++) {
        for (size_t j = 0; j < EK_COUNT_OF(rows); j++) {
            int32_t n_tokens = 1 + (int32_t)ek_rng_below(&k->rng, 14);
            check_case(k, type, KC_UNIFORM, rows[j], cols[i], n_tokens);
        }
        check_odd(k, type, cols[i]);
    }
    for (int32_t n_tokens = 1; n_tokens <= 40; n_tokens++)
        check_case(k, type, KC_UNIFORM, 35, cols[1], n_tokens);
    check_case(k, type, KC_UNIFORM, 48, cols[n - 1], TOKENS_MAX);
    for (int pattern = 0; pattern < KC_PATTERNS; pattern++)
        for (size_t i = 0; i < n; i += 2)
            check_case(k, type, (kc_pattern)pattern, 33, cols[i], 7);
}
