/*
 * Quantised matrices against int8 activations, written on v16; include a v16 header, a dot header and unpack_body.h first.
 *
 * One result is, over its blocks of 32 columns in rising order, with S the exact integer sum of code * q:
 *     total = fma(S, a * scale, total), total = total - b * scaled_sum fused     where weights are a * code - b
 *     total = fma(S1, a * scale, total), total = fma(S2, b * scale, total)       for the two halves of Q6_K, whose
 *                                                                              S count codes from -32
 * and of nothing else, so neither tiles nor tokens nor instruction sets change a bit of it.
 *
 * Loops, from outside: row tiles (EK_DOT_PANELS panels of 16 rows), chunks of tokens, panels of 256 columns, token tiles.
 * A panel is unpacked once per chunk; between panels totals wait in a small array.
 */
#include "kernels/kernels.h"

enum {
    TILE_PANELS = EK_DOT_PANELS,
    TILE_TOKENS = EK_DOT_TOKENS,
    TILE_ROWS = TILE_PANELS * PANEL_ROWS,
    CHUNK_TOKENS = 48, /* their totals and one panel's activations share the first-level cache */
    PANEL_COLS = PANEL_BLOCKS * EK_ACT_BLOCK,
};

/* Some tokens against the panels of one row tile. */
typedef struct tile_job {
    const panel *panels; /* (n_panels) */
    int n_panels, n_blocks, n_tokens;
    const int8_t *x[TILE_TOKENS];    /* at the panel's first column */
    const float *scale[TILE_TOKENS]; /* at its first block */
    const float *scaled_sum[TILE_TOKENS];
    float (*total)[TILE_ROWS]; /* (n_tokens) */
} tile_job;

typedef struct q_format {
    int block_cols, block_bytes;
    unpack_fn unpack;
    void (*tile)(const tile_job *job);
} q_format;

EK_V16_INLINE void totals_load(const tile_job *job, int n_panels, int n_tokens,
                               v16f total[TILE_TOKENS][TILE_PANELS])
{
#pragma GCC unroll 6
    for (int t = 0; t < n_tokens; t++)
#pragma GCC unroll 2
        for (int v = 0; v < n_panels; v++)
            total[t][v] = v16f_load(job->total[t] + v * PANEL_ROWS);
}

EK_V16_INLINE void totals_store(const tile_job *job, int n_panels, int n_tokens,
                                v16f total[TILE_TOKENS][TILE_PANELS])
{
#pragma GCC unroll 6
    for (int t = 0; t < n_tokens; t++)
#pragma GCC unroll 2
        for (int v = 0; v < n_panels; v++)
            v16f_store(job->total[t] + v * PANEL_ROWS, total[t][v]);
}

/* Weights a * code - b. code_bits, n_panels and n_tokens are constants at every call. */
EK_V16_INLINE void tile_affine(int code_bits, int n_panels, int n_tokens, const tile_job *job)
{
    v16f total[TILE_TOKENS][TILE_PANELS];
    totals_load(job, n_panels, n_tokens, total);
    for (int block = 0; block < job->n_blocks; block++) {
        v16i sum[TILE_TOKENS][TILE_PANELS];
        const uint8_t *code[TILE_PANELS];
#pragma GCC unroll 2
        for (int v = 0; v < n_panels; v++) {
            code[v] = job->panels[v].code[block][0];
#pragma GCC unroll 6
            for (int t = 0; t < n_tokens; t++)
                sum[t][v] = v16i_zero();
        }
        dot_add(code_bits, n_panels, n_tokens, BLOCK_DWORDS, code, job->x, block * EK_ACT_BLOCK,
                sum);
#pragma GCC unroll 2
        for (int v = 0; v < n_panels; v++) {
            v16f a = v16f_load(job->panels[v].a[block]), b = v16f_load(job->panels[v].b[block]);
#pragma GCC unroll 6
            for (int t = 0; t < n_tokens; t++) {
                v16f scale = v16f_set1(job->scale[t][block]);
                v16f scaled_sum = v16f_set1(job->scaled_sum[t][block]);
                total[t][v] = v16f_fma(v16f_from_i(sum[t][v]), v16f_mul(a, scale), total[t][v]);
                total[t][v] = v16f_fnma(b, scaled_sum, total[t][v]);
            }
        }
    }
    totals_store(job, n_panels, n_tokens, total);
}

/* One half of a block: 16 columns whose weights are factor * (code - 32). */
EK_V16_INLINE void half_add(int half, int block, int n_panels, int n_tokens, const tile_job *job,
                            int32_t offset[TILE_TOKENS][2 * PANEL_BLOCKS],
                            v16f total[TILE_TOKENS][TILE_PANELS])
{
    v16i sum[TILE_TOKENS][TILE_PANELS];
    const uint8_t *code[TILE_PANELS];
#pragma GCC unroll 2
    for (int v = 0; v < n_panels; v++) {
        code[v] = job->panels[v].code[block][half * 4];
#pragma GCC unroll 6
        for (int t = 0; t < n_tokens; t++)
            sum[t][v] = v16i_set1(offset[t][2 * block + half]);
    }
    dot_add(6, n_panels, n_tokens, BLOCK_DWORDS / 2, code, job->x,
            block * EK_ACT_BLOCK + half * EK_ACT_BLOCK / 2, sum);
#pragma GCC unroll 2
    for (int v = 0; v < n_panels; v++) {
        const panel *p = &job->panels[v];
        v16f factor = v16f_load(half == 0 ? p->a[block] : p->b[block]);
#pragma GCC unroll 6
        for (int t = 0; t < n_tokens; t++) {
            v16f scale = v16f_set1(job->scale[t][block]);
            total[t][v] = v16f_fma(v16f_from_i(sum[t][v]), v16f_mul(factor, scale), total[t][v]);
        }
    }
}

EK_V16_INLINE void tile_halves(int n_panels, int n_tokens, const tile_job *job)
{
    /* What counting codes from 0 instead of -32 adds to each half. */
    int32_t offset[TILE_TOKENS][2 * PANEL_BLOCKS];
    for (int t = 0; t < n_tokens; t++) {
        half_sums(job->x[t], offset[t]);
        v16i_store(offset[t], v16i_sub(v16i_zero(), v16i_shl(v16i_load(offset[t]), 5)));
    }
    v16f total[TILE_TOKENS][TILE_PANELS];
    totals_load(job, n_panels, n_tokens, total);
    for (int block = 0; block < PANEL_BLOCKS; block++) {
        half_add(0, block, n_panels, n_tokens, job, offset, total);
        half_add(1, block, n_panels, n_tokens, job, offset, total);
    }
    totals_store(job, n_panels, n_tokens, total);
}

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* The rows of one tile, as far as they exist: missing ones repeat the last and are not stored. */
typedef struct row_tile {
    const uint8_t *row[TILE_ROWS];
    int n_rows, n_panels;
} row_tile;

static row_tile row_tile_at(const ek_mat *w, int32_t row, int32_t row_end)
{
    row_tile tile = {.n_rows = min_i32(TILE_ROWS, row_end - row)};
    tile.n_panels = (tile.n_rows + PANEL_ROWS - 1) / PANEL_ROWS;
    for (int r = 0; r < tile.n_panels * PANEL_ROWS; r++)
        tile.row[r] =
            (const uint8_t *)w->data + (size_t)(row + min_i32(r, tile.n_rows - 1)) * w->row_bytes;
    return tile;
}

/* Tiles of nearly equal size: 8 tokens are 4 + 4, not 6 + 2. */
static void tokens_add(const q_format *format, const ek_act *x, const int32_t *token, int n_tokens,
                       int32_t col, tile_job *job, float (*total)[TILE_ROWS])
{
    int64_t n_act_blocks = x->n_cols / EK_ACT_BLOCK;
    int n_tiles = (n_tokens + TILE_TOKENS - 1) / TILE_TOKENS;
    for (int i = 0, done = 0; i < n_tiles; i++, done += job->n_tokens) {
        job->n_tokens = (n_tokens - done + n_tiles - i - 1) / (n_tiles - i);
        for (int t = 0; t < job->n_tokens; t++) {
            int64_t at = token[done + t], block = at * n_act_blocks + col / EK_ACT_BLOCK;
            job->x[t] = x->q + at * x->n_cols + col;
            job->scale[t] = x->scale + block;
            job->scaled_sum[t] = x->scaled_sum + block;
        }
        job->total = total + done;
        format->tile(job);
    }
}

/* The rows of the tile after `row`, as far as they belong to this call. */
static prefetch rows_after(const ek_mat *w, int32_t row, int32_t row_end)
{
    uintptr_t data = (uintptr_t)w->data;
    int32_t beg = min_i32(row + TILE_ROWS, row_end), end = min_i32(row + 2 * TILE_ROWS, row_end);
    return (prefetch){data + (uintptr_t)beg * w->row_bytes, data + (uintptr_t)end * w->row_bytes};
}

static void row_tile_run(const q_format *format, const ek_mat *w, int32_t row, int32_t row_end,
                         const ek_act *x, const int32_t *token, int n_tokens, bool first_chunk,
                         float *y, int64_t y_stride)
{
    panel panels[TILE_PANELS];
    EK_ALIGNED(64) float total[CHUNK_TOKENS][TILE_ROWS];
    row_tile tile = row_tile_at(w, row, row_end);
    prefetch ahead = {0, 0};
    if (first_chunk) ahead = rows_after(w, row, row_end);
    int32_t n_panels = (w->n_cols + PANEL_COLS - 1) / PANEL_COLS;
    memset(total, 0, (size_t)n_tokens * sizeof total[0]);
    for (int32_t i = 0; i < n_panels; i++) {
        int32_t col = i * PANEL_COLS;
        tile_job job = {.panels = panels, .n_panels = tile.n_panels};
        job.n_blocks = min_i32(PANEL_COLS, w->n_cols - col) / EK_ACT_BLOCK;
        size_t offset = (size_t)(col / format->block_cols) * (size_t)format->block_bytes;
        for (int v = 0; v < tile.n_panels; v++)
            format->unpack(tile.row + v * PANEL_ROWS, offset, job.n_blocks, &ahead, &panels[v]);
        tokens_add(format, x, token, n_tokens, col, &job, total);
    }
    for (int t = 0; t < n_tokens; t++)
        memcpy(y + t * y_stride + row, total[t], (size_t)tile.n_rows * sizeof total[0][0]);
}

/* By type of the weights; defined below by the file that includes this one, which knows the tiles. */
static const q_format format_table[EK_TYPE_MAX];

static void matmul_q(const ek_mat *w, int32_t row_beg, int32_t row_end, const ek_act *x,
                     const int32_t *token_idx, int32_t n_tokens, float *y, int64_t y_stride)
{
    const q_format *format = &format_table[w->type];
    for (int32_t row = row_beg; row < row_end; row += TILE_ROWS) {
        for (int32_t i = 0; i < n_tokens; i += CHUNK_TOKENS) {
            int32_t token[CHUNK_TOKENS];
            int n = min_i32(CHUNK_TOKENS, n_tokens - i);
            for (int t = 0; t < n; t++)
                token[t] = token_idx ? token_idx[i + t] : i + t;
            row_tile_run(format, w, row, row_end, x, token, n, i == 0, y + i * y_stride, y_stride);
        }
    }
}

static void matmul_q_fill(ek_kernels *table)
{
    for (int type = 0; type < EK_TYPE_MAX; type++) {
        if (!format_table[type].unpack) continue;
        table->matmul[type] = matmul_q;
        table->act_int8[type] = true;
    }
}
