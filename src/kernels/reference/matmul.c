#include "base/assert.h"
#include "kernels/reference/reference.h"
#include "quant/convert.h"

enum {
    PIECE_COLS = 256, /* a multiple of every type's block */
    TOKEN_TILE = 32,  /* tokens that share one dequantisation of a row */
};

static double dot(const float *a, const float *b, int32_t n)
{
    double sum = 0.0;
    for (int32_t i = 0; i < n; i++)
        sum += (double)a[i] * (double)b[i];
    return sum;
}

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* One row against tokens [token_beg, token_end), a piece of columns at a time. */
static void row_times_tokens(const ek_mat *w, int32_t row, const ek_act *x,
                             const int32_t *token_idx, int32_t token_beg, int32_t token_end,
                             float *y, int64_t y_stride)
{
    const uint8_t *row_data = (const uint8_t *)w->data + (size_t)row * w->row_bytes;
    double sum[TOKEN_TILE] = {0};
    for (int32_t c = 0; c < w->n_cols; c += PIECE_COLS) {
        int32_t n = min_i32(PIECE_COLS, w->n_cols - c);
        float piece[PIECE_COLS];
        ek_quant_row_to_f32(w->type, row_data + ek_quant_row_bytes(w->type, c), n, piece);
        for (int32_t i = token_beg; i < token_end; i++) {
            int64_t token = token_idx ? token_idx[i] : i;
            sum[i - token_beg] += dot(piece, x->f32 + token * x->n_cols + c, n);
        }
    }
    for (int32_t i = token_beg; i < token_end; i++)
        y[i * y_stride + row] = (float)sum[i - token_beg];
}

void ek_kernels_reference_matmul(const ek_mat *w, int32_t row_beg, int32_t row_end, const ek_act *x,
                                 const int32_t *token_idx, int32_t n_tokens, float *y,
                                 int64_t y_stride)
{
    ek_dassert(x->n_cols == w->n_cols);
    for (int32_t row = row_beg; row < row_end; row++)
        for (int32_t i = 0; i < n_tokens; i += TOKEN_TILE)
            row_times_tokens(w, row, x, token_idx, i, min_i32(i + TOKEN_TILE, n_tokens), y,
                             y_stride);
}
