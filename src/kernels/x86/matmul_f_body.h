/*
 * Matrices of F32, F16 and BF16 rows, written on v16; include a v16 header first.
 *
 * A tile is a few rows against a few tokens, each pair with 16 running sums: lane l adds the
 * products of columns c = l mod 16 in rising order, each fused, then v16f_sum. A row's tail is
 * padded with zeros. Rows are widened to f32 once per tile. Nothing of this depends on the tile's
 * shape.
 */
#include "kernels/kernels.h"

enum {
    ROWS = EK_V16_FLOAT_ROWS,
    TOKENS = EK_V16_FLOAT_TOKENS,
};

typedef struct float_tile {
    const uint8_t *row[ROWS];
    const float *x[TOKENS];
    int32_t n_cols;
} float_tile;

EK_V16_INLINE v16f widen(ek_type type, const uint8_t *row, int32_t c)
{
    if (type == EK_TYPE_F32) return v16f_load((const float *)(const void *)(row + (size_t)c * 4));
    const uint16_t *half = (const uint16_t *)(const void *)(row + (size_t)c * 2);
    return type == EK_TYPE_F16 ? v16f_from_f16(half) : v16f_from_bf16(half);
}

/* The last n < 16 columns, zeros behind. */
EK_V16_INLINE v16f widen_last(ek_type type, const uint8_t *row, int32_t c, int n)
{
    uint8_t last[64] = {0};
    size_t elem_bytes = type == EK_TYPE_F32 ? 4 : 2;
    memcpy(last, row + (size_t)c * elem_bytes, (size_t)n * elem_bytes);
    return widen(type, last, 0);
}

EK_V16_INLINE void tile_add(v16f sum[ROWS][TOKENS], const v16f w[ROWS], int t, v16f x)
{
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++)
        sum[r][t] = v16f_fma(w[r], x, sum[r][t]);
}

/* type and n_tokens are constants at every call. */
EK_V16_INLINE void tile_run(ek_type type, int n_tokens, const float_tile *tile,
                            float out[TOKENS][ROWS])
{
    v16f sum[ROWS][TOKENS], w[ROWS];
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int t = 0; t < n_tokens; t++)
            sum[r][t] = v16f_zero();
    int32_t c = 0;
    for (; c + 16 <= tile->n_cols; c += 16) {
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
            w[r] = widen(type, tile->row[r], c);
#pragma GCC unroll 4
        for (int t = 0; t < n_tokens; t++)
            tile_add(sum, w, t, v16f_load(tile->x[t] + c));
    }
    if (c < tile->n_cols) {
        int n = tile->n_cols - c;
#pragma GCC unroll 4
        for (int r = 0; r < ROWS; r++)
            w[r] = widen_last(type, tile->row[r], c, n);
#pragma GCC unroll 4
        for (int t = 0; t < n_tokens; t++)
            tile_add(sum, w, t, v16f_load_n(tile->x[t] + c, n));
    }
#pragma GCC unroll 4
    for (int r = 0; r < ROWS; r++)
#pragma GCC unroll 4
        for (int t = 0; t < n_tokens; t++)
            out[t][r] = v16f_sum(sum[r][t]);
}

EK_V16_INLINE void tile_dispatch(ek_type type, int n_tokens, const float_tile *tile,
                                 float out[TOKENS][ROWS])
{
    static_assert(TOKENS <= 4, "one case per number of tokens");
    switch (n_tokens) {
    case 1: tile_run(type, 1, tile, out); break;
    case 2: tile_run(type, 2, tile, out); break;
    case 3: tile_run(type, TOKENS < 3 ? TOKENS : 3, tile, out); break;
    default: tile_run(type, TOKENS, tile, out); break;
    }
}

EK_V16_INLINE void matmul_f(ek_type type, const ek_mat *w, int32_t row_beg, int32_t row_end,
                            const ek_act *x, const int32_t *token_idx, int32_t n_tokens, float *y,
                            int64_t y_stride)
{
    float_tile tile = {.n_cols = w->n_cols};
    for (int32_t row = row_beg; row < row_end; row += ROWS) {
        int n_rows = row_end - row < ROWS ? row_end - row : ROWS;
        for (int r = 0; r < ROWS; r++) {
            /*
             * Rows that are missing in the last tile repeat its last row; their sums are dropped.
             */
            int32_t id = row + (r < n_rows ? r : n_rows - 1);
            tile.row[r] = (const uint8_t *)w->data + (size_t)id * w->row_bytes;
        }
        for (int32_t i = 0; i < n_tokens; i += TOKENS) {
            int n = n_tokens - i < TOKENS ? n_tokens - i : TOKENS;
            for (int t = 0; t < n; t++) {
                int64_t token = token_idx ? token_idx[i + t] : i + t;
                tile.x[t] = x->f32 + token * x->n_cols;
            }
            float out[TOKENS][ROWS];
            tile_dispatch(type, n, &tile, out);
            for (int t = 0; t < n; t++)
                memcpy(y + (i + t) * y_stride + row, out[t], (size_t)n_rows * sizeof **out);
        }
    }
}

static void matmul_f32(const ek_mat *w, int32_t row_beg, int32_t row_end, const ek_act *x,
                       const int32_t *token_idx, int32_t n_tokens, float *y, int64_t y_stride)
{
    matmul_f(EK_TYPE_F32, w, row_beg, row_end, x, token_idx, n_tokens, y, y_stride);
}

static void matmul_f16(const ek_mat *w, int32_t row_beg, int32_t row_end, const ek_act *x,
                       const int32_t *token_idx, int32_t n_tokens, float *y, int64_t y_stride)
{
    matmul_f(EK_TYPE_F16, w, row_beg, row_end, x, token_idx, n_tokens, y, y_stride);
}

static void matmul_bf16(const ek_mat *w, int32_t row_beg, int32_t row_end, const ek_act *x,
                        const int32_t *token_idx, int32_t n_tokens, float *y, int64_t y_stride)
{
    matmul_f(EK_TYPE_BF16, w, row_beg, row_end, x, token_idx, n_tokens, y, y_stride);
}

static void matmul_f_fill(ek_kernels *table)
{
    table->matmul[EK_TYPE_F32] = matmul_f32;
    table->matmul[EK_TYPE_F16] = matmul_f16;
    table->matmul[EK_TYPE_BF16] = matmul_bf16;
}
