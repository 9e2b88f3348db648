#include "expert/ffn.h"

#include <assert.h>

#include "base/assert.h"
#include "base/size.h"
#include "quant/types.h"

enum {
    TILE_ROWS_MAX = 256,
    TILE_BYTES = 128 << 10,
    TILES_PER_THREAD = 8,
    TOKENS_AT_ONCE = 64, /* of a hidden tile: gate and up results stay in the caches */
};

static_assert(EK_EXPERT_FFN_SCRATCH_FLOATS == 2 * TOKENS_AT_ONCE * TILE_ROWS_MAX, "hidden tile");

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

ek_mat ek_expert_mat(const ek_tensor *tensor, int32_t idx)
{
    size_t row_bytes = ek_quant_row_bytes(tensor->type, tensor->dim[0]);
    return (ek_mat){
        .data = (const uint8_t *)tensor->data + (size_t)idx * (size_t)tensor->dim[1] * row_bytes,
        .row_bytes = row_bytes,
        .type = tensor->type,
        .n_rows = (int32_t)tensor->dim[1],
        .n_cols = (int32_t)tensor->dim[0],
        .packed = tensor->packed,
    };
}

ek_mat ek_expert_mat_rows(const ek_mat *mat, int32_t row_beg, int32_t row_end)
{
    ek_mat rows = *mat;
    rows.data = (const uint8_t *)mat->data + (size_t)row_beg * mat->row_bytes;
    rows.n_rows = row_end - row_beg;
    return rows;
}

int32_t ek_expert_tile_rows(const ek_mat *mat, int32_t n_mats, int32_t n_threads)
{
    int64_t rows = (int64_t)mat->n_rows * n_mats / ((int64_t)TILES_PER_THREAD * n_threads);
    int64_t of_bytes = (int64_t)(TILE_BYTES / mat->row_bytes);
    if (rows > of_bytes) rows = of_bytes;
    if (rows > TILE_ROWS_MAX) rows = TILE_ROWS_MAX;
    if (rows < EK_ACT_BLOCK) rows = EK_ACT_BLOCK;
    return (int32_t)(rows / EK_ACT_BLOCK * EK_ACT_BLOCK);
}

void ek_expert_ffn_hidden(const ek_kernels *kernels, const ek_ffn *ffn, const ek_ffn_rows *rows,
                          int32_t col_beg, int32_t col_end, float *scratch)
{
    int32_t n_cols = col_end - col_beg;
    ek_dassert(n_cols <= TILE_ROWS_MAX);
    ek_mat gate_mat = ek_expert_mat_rows(&ffn->gate, col_beg, col_end);
    ek_mat up_mat = ek_expert_mat_rows(&ffn->up, col_beg, col_end);
    ek_matmul_fn gate_matmul = kernels->matmul[gate_mat.type];
    ek_matmul_fn up_matmul = kernels->matmul[up_mat.type];
    float *gate = scratch;
    float *up = scratch + (ptrdiff_t)TOKENS_AT_ONCE * n_cols;

    for (int32_t beg = 0; beg < rows->n_rows; beg += TOKENS_AT_ONCE) {
        int32_t n = min_i32(TOKENS_AT_ONCE, rows->n_rows - beg);
        const int32_t *token_idx = rows->token_idx ? rows->token_idx + beg : NULL;
        ek_act x = ek_expert_act_skip(rows->x, token_idx ? 0 : beg);
        gate_matmul(&gate_mat, 0, n_cols, &x, token_idx, n, gate, n_cols);
        up_matmul(&up_mat, 0, n_cols, &x, token_idx, n, up, n_cols);
        for (int32_t i = 0; i < n; i++) {
            int64_t row = rows->row_beg + beg + i;
            kernels->swiglu(gate + (ptrdiff_t)i * n_cols, up + (ptrdiff_t)i * n_cols, n_cols,
                            rows->h->f32 + row * rows->h->n_cols + col_beg);
            ek_expert_act_prepare(kernels, rows->h, row, col_beg, col_end);
        }
    }
}

void ek_expert_ffn_down(const ek_kernels *kernels, const ek_ffn *ffn, const ek_ffn_rows *rows,
                        int32_t col_beg, int32_t col_end)
{
    ek_act h = ek_expert_act_rows(rows->h, rows->row_beg);
    int64_t d = ffn->down.n_rows;
    kernels->matmul[ffn->down.type](&ffn->down, col_beg, col_end, &h, NULL, rows->n_rows,
                                    rows->y + rows->row_beg * d, d);
}
