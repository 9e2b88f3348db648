#include "expert/act.h"

#include "base/assert.h"
#include "base/size.h"

static size_t blocks_per_row(int32_t n_cols)
{
    return (size_t)(n_cols / EK_ACT_BLOCK);
}

size_t ek_expert_act_bytes(int32_t n_rows, int32_t n_cols, bool int8)
{
    size_t n = (size_t)n_rows;
    size_t bytes = n * (size_t)n_cols * sizeof(float) + EK_CACHE_LINE;
    if (int8) bytes += n * ((size_t)n_cols + 4 * blocks_per_row(n_cols) * sizeof(float));
    return bytes + (int8 ? 4 * EK_CACHE_LINE : 0);
}

bool ek_expert_act_take(ek_arena *arena, int32_t n_rows, int32_t n_cols, bool int8,
                        ek_act_buf *out_buf)
{
    ek_assert(!int8 || n_cols % EK_ACT_BLOCK == 0);
    size_t n = (size_t)n_rows;
    size_t n_blocks = n * blocks_per_row(n_cols);
    ek_arena rest = *arena;
    ek_act_buf buf = {
        .n_cols = n_cols,
        .f32 = ek_arena_try_raw(&rest, n * (size_t)n_cols, sizeof(float), EK_CACHE_LINE),
    };
    if (!buf.f32) return false;
    if (int8) {
        buf.q = ek_arena_try_raw(&rest, n * (size_t)n_cols, sizeof(int8_t), EK_CACHE_LINE);
        buf.scale = ek_arena_try_raw(&rest, n_blocks, sizeof(float), EK_CACHE_LINE);
        buf.scaled_sum = ek_arena_try_raw(&rest, n_blocks, sizeof(float), EK_CACHE_LINE);
        buf.half_offset = ek_arena_try_raw(&rest, 2 * n_blocks, sizeof(int32_t), EK_CACHE_LINE);
        if (!buf.q || !buf.scale || !buf.scaled_sum || !buf.half_offset) return false;
    }
    *arena = rest;
    *out_buf = buf;
    return true;
}

ek_act ek_expert_act_skip(const ek_act *act, int64_t n_rows)
{
    ek_act rest = *act;
    rest.f32 += n_rows * act->n_cols;
    if (act->q) {
        int64_t n_blocks = n_rows * (act->n_cols / EK_ACT_BLOCK);
        rest.q += n_rows * act->n_cols;
        rest.scale += n_blocks;
        rest.scaled_sum += n_blocks;
        rest.half_offset += 2 * n_blocks;
    }
    return rest;
}

ek_act ek_expert_act_rows(const ek_act_buf *buf, int64_t row)
{
    ek_act all = {.n_cols = buf->n_cols,
                  .f32 = buf->f32,
                  .q = buf->q,
                  .scale = buf->scale,
                  .scaled_sum = buf->scaled_sum,
                  .half_offset = buf->half_offset};
    return ek_expert_act_skip(&all, row);
}

void ek_expert_act_prepare(const ek_kernels *kernels, const ek_act_buf *buf, int64_t row,
                           int32_t col_beg, int32_t col_end)
{
    if (!buf->q) return;
    ek_dassert(col_beg % EK_ACT_BLOCK == 0 && col_end % EK_ACT_BLOCK == 0);
    int64_t at = row * buf->n_cols + col_beg;
    int64_t block = at / EK_ACT_BLOCK;
    kernels->act_quantize(buf->f32 + at, col_end - col_beg, buf->q + at, buf->scale + block,
                          buf->scaled_sum + block, buf->half_offset + 2 * block);
}
