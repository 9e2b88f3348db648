/*
 * Quantised matrices against int8 activations, written on v16; include panel_body.h and
 * unpack_body.h first. The order of additions is theirs.
 *
 * One to DIRECT_TOKENS tokens: row tiles of one panel, whose codes are multiplied as they are
 * unpacked. More tokens, loops from outside: row tiles of EK_DOT_PANELS panels, chunks of tokens,
 * panels of 256 columns, token tiles; a panel is unpacked once per chunk, and between panels totals
 * wait in a small array.
 */

enum {
    TILE_PANELS = EK_DOT_PANELS,
    TILE_TOKENS = EK_DOT_TOKENS,
    TILE_TOKENS_MIN = DIRECT_TOKENS / 2 + 1, /* tiles are equal parts of more than DIRECT_TOKENS */
    TILE_ROWS = TILE_PANELS * PANEL_ROWS,
    CHUNK_TOKENS = 48, /* their totals and one panel's activations share the first-level cache */
    PANEL_COLS = PANEL_BLOCKS * EK_ACT_BLOCK,
};

/* Some tokens against the panels of one row tile. */
typedef struct tile_job {
    const panel *panels; /* (TILE_PANELS) */
    int n_blocks, n_tokens;
    panel_token x[TILE_TOKENS];
    float (*total)[TILE_ROWS]; /* (n_tokens) */
} tile_job;

/* A few tokens against one panel's worth of blocks. */
typedef struct direct_job {
    source from;
    int n_tokens;
    panel_token x[DIRECT_TOKENS];
    int32_t half_offset[DIRECT_TOKENS][2 * PANEL_BLOCKS]; /* Q6_K */
    float total[DIRECT_TOKENS][PANEL_ROWS];
} direct_job;

typedef struct q_format {
    int block_cols, block_bytes;
    void (*unpack)(const source *from, panel *out);
    void (*tile)(const tile_job *job);
    void (*direct)(direct_job *job);
} q_format;

EK_V16_INLINE void totals_load(const tile_job *job, int n_tokens,
                               v16f total[TILE_TOKENS][TILE_PANELS])
{
#pragma GCC unroll 6
    for (int t = 0; t < n_tokens; t++)
#pragma GCC unroll 2
        for (int v = 0; v < TILE_PANELS; v++)
            total[t][v] = v16f_load(job->total[t] + v * PANEL_ROWS);
}

EK_V16_INLINE void totals_store(const tile_job *job, int n_tokens,
                                v16f total[TILE_TOKENS][TILE_PANELS])
{
#pragma GCC unroll 6
    for (int t = 0; t < n_tokens; t++)
#pragma GCC unroll 2
        for (int v = 0; v < TILE_PANELS; v++)
            v16f_store(job->total[t] + v * PANEL_ROWS, total[t][v]);
}

/* Weights a * code - b. code_bits and n_tokens are constants at every call. */
EK_V16_INLINE void tile_affine(int code_bits, int n_tokens, const tile_job *job)
{
    v16f total[TILE_TOKENS][TILE_PANELS];
    totals_load(job, n_tokens, total);
    for (int block = 0; block < job->n_blocks; block++) {
        v16i sum[TILE_TOKENS][TILE_PANELS];
        const uint8_t *code[TILE_PANELS];
        const int8_t *q[TILE_TOKENS];
#pragma GCC unroll 2
        for (int v = 0; v < TILE_PANELS; v++)
            code[v] = job->panels[v].code[block][0];
#pragma GCC unroll 6
        for (int t = 0; t < n_tokens; t++) {
            q[t] = job->x[t].q + block * EK_ACT_BLOCK;
#pragma GCC unroll 2
            for (int v = 0; v < TILE_PANELS; v++)
                sum[t][v] = v16i_zero();
        }
        dot_add(code_bits, n_tokens, BLOCK_DWORDS, code, q, sum);
#pragma GCC unroll 2
        for (int v = 0; v < TILE_PANELS; v++) {
            v16f a = v16f_load(job->panels[v].a[block]), b = v16f_load(job->panels[v].b[block]);
#pragma GCC unroll 6
            for (int t = 0; t < n_tokens; t++)
                total[t][v] = affine_add(total[t][v], sum[t][v], a, b, &job->x[t], block);
        }
    }
    totals_store(job, n_tokens, total);
}

/* One half of a block: 16 columns whose weights are factor * (code - 32). */
EK_V16_INLINE void tile_half(int half, int block, int n_tokens, const tile_job *job,
                             int32_t offset[TILE_TOKENS][2 * PANEL_BLOCKS],
                             v16f total[TILE_TOKENS][TILE_PANELS])
{
    v16i sum[TILE_TOKENS][TILE_PANELS];
    const uint8_t *code[TILE_PANELS];
    const int8_t *q[TILE_TOKENS];
#pragma GCC unroll 2
    for (int v = 0; v < TILE_PANELS; v++)
        code[v] = job->panels[v].code[block][half * 4];
#pragma GCC unroll 6
    for (int t = 0; t < n_tokens; t++) {
        q[t] = job->x[t].q + block * EK_ACT_BLOCK + half * EK_ACT_BLOCK / 2;
#pragma GCC unroll 2
        for (int v = 0; v < TILE_PANELS; v++)
            sum[t][v] = v16i_set1(offset[t][2 * block + half]);
    }
    dot_add(6, n_tokens, BLOCK_DWORDS / 2, code, q, sum);
#pragma GCC unroll 2
    for (int v = 0; v < TILE_PANELS; v++) {
        const panel *p = &job->panels[v];
        v16f factor = v16f_load(half == 0 ? p->a[block] : p->b[block]);
#pragma GCC unroll 6
        for (int t = 0; t < n_tokens; t++)
            total[t][v] = half_add(total[t][v], sum[t][v], factor, &job->x[t], block);
    }
}

EK_V16_INLINE void tile_halves(int n_tokens, const tile_job *job)
{
    int32_t offset[TILE_TOKENS][2 * PANEL_BLOCKS];
    for (int t = 0; t < n_tokens; t++)
        half_offsets(job->x[t].q, offset[t]);
    v16f total[TILE_TOKENS][TILE_PANELS];
    totals_load(job, n_tokens, total);
    for (int group = 0; group < 2 * PANEL_BLOCKS; group += 4) {
        int first = group / 8 * 4, half = group / 4 % 2;
        for (int block = first; block < first + 4; block++)
            tile_half(half, block, n_tokens, job, offset, total);
    }
    totals_store(job, n_tokens, total);
}

/* unpack and n_tokens are constants at every call. */
EK_V16_INLINE void direct_run(unpack_fn unpack, int n_tokens, direct_job *job)
{
    panel scales;
    sink s = {.out = &scales, .x = job->x, .half_offset = job->half_offset};
#pragma GCC unroll 4
    for (int t = 0; t < n_tokens; t++)
        s.total[t] = v16f_load(job->total[t]);
    unpack(n_tokens, &job->from, &s);
#pragma GCC unroll 4
    for (int t = 0; t < n_tokens; t++)
        v16f_store(job->total[t], s.total[t]);
}

EK_V16_INLINE void panel_fill(unpack_fn unpack, const source *from, panel *out)
{
    sink s;
    s.out = out;
    unpack(0, from, &s);
}

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/* The rows of one tile, as far as they exist: missing ones repeat the last and are not stored. */
static int rows_locate(const ek_mat *w, int32_t row, int32_t row_end, int rows_max,
                       const uint8_t *out_row[TILE_ROWS])
{
    int n = min_i32(rows_max, row_end - row);
    for (int r = 0; r < rows_max; r++) {
        size_t id = (size_t)(row + min_i32(r, n - 1));
        out_row[r] = (const uint8_t *)w->data + id * w->row_bytes;
    }
    return n;
}

/* The n_rows rows behind a tile that starts at `row`, as far as they belong to this call. */
static prefetch rows_after(const ek_mat *w, int32_t row, int32_t row_end, int32_t n_rows)
{
    uintptr_t data = (uintptr_t)w->data;
    int32_t beg = min_i32(row + n_rows, row_end), end = min_i32(row + 2 * n_rows, row_end);
    return (prefetch){data + (uintptr_t)beg * w->row_bytes, data + (uintptr_t)end * w->row_bytes};
}

static source source_at(const q_format *format, const ek_mat *w, int32_t col,
                        const uint8_t *const *row, prefetch *ahead)
{
    return (source){
        .row = row,
        .offset = (size_t)(col / format->block_cols) * (size_t)format->block_bytes,
        .n_blocks = min_i32(PANEL_COLS, w->n_cols - col) / EK_ACT_BLOCK,
        .ahead = ahead,
    };
}

static panel_token token_at(const ek_act *x, int64_t token, int32_t col)
{
    int64_t block = token * (x->n_cols / EK_ACT_BLOCK) + col / EK_ACT_BLOCK;
    return (panel_token){x->q + token * x->n_cols + col, x->scale + block, x->scaled_sum + block};
}

static void direct_rows(const q_format *format, const ek_mat *w, int32_t row, int32_t row_end,
                        const ek_act *x, const int32_t *token, int n_tokens, float *y,
                        int64_t y_stride)
{
    const uint8_t *rows[TILE_ROWS];
    int n_rows = rows_locate(w, row, row_end, PANEL_ROWS, rows);
    prefetch ahead = rows_after(w, row, row_end, PANEL_ROWS);
    direct_job job = {.n_tokens = n_tokens};
    for (int32_t col = 0; col < w->n_cols; col += PANEL_COLS) {
        job.from = source_at(format, w, col, rows, &ahead);
        for (int t = 0; t < n_tokens; t++) {
            job.x[t] = token_at(x, token[t], col);
            if (w->type == EK_TYPE_Q6_K) half_offsets(job.x[t].q, job.half_offset[t]);
        }
        format->direct(&job);
    }
    for (int t = 0; t < n_tokens; t++)
        memcpy(y + t * y_stride + row, job.total[t], (size_t)n_rows * sizeof *y);
}

/*
 * How many of n things the next of n_parts nearly equal parts takes: 8 tokens are 4 + 4, not 6 + 2.
 */
static int next_part(int n, int n_parts)
{
    return (n + n_parts - 1) / n_parts;
}

static void tokens_add(const q_format *format, const ek_act *x, const int32_t *token, int n_tokens,
                       int32_t col, tile_job *job, float (*total)[TILE_ROWS])
{
    int done = 0;
    for (int n_tiles = next_part(n_tokens, TILE_TOKENS); n_tiles > 0; n_tiles--) {
        job->n_tokens = next_part(n_tokens - done, n_tiles);
        for (int t = 0; t < job->n_tokens; t++)
            job->x[t] = token_at(x, token[done + t], col);
        job->total = total + done;
        format->tile(job);
        done += job->n_tokens;
    }
}

static void tile_rows(const q_format *format, const ek_mat *w, int32_t row, int32_t row_end,
                      const ek_act *x, const int32_t *token, int n_tokens, bool first_chunk,
                      float *y, int64_t y_stride)
{
    panel panels[TILE_PANELS];
    EK_ALIGNED(64) float total[CHUNK_TOKENS][TILE_ROWS];
    const uint8_t *rows[TILE_ROWS];
    int n_rows = rows_locate(w, row, row_end, TILE_ROWS, rows);
    prefetch ahead = {0, 0};
    if (first_chunk) ahead = rows_after(w, row, row_end, TILE_ROWS);
    memset(total, 0, (size_t)n_tokens * sizeof total[0]);
    tile_job job = {.panels = panels};
    for (int32_t col = 0; col < w->n_cols; col += PANEL_COLS) {
        for (int v = 0; v < TILE_PANELS; v++) {
            source from = source_at(format, w, col, rows + v * PANEL_ROWS, &ahead);
            job.n_blocks = from.n_blocks;
            format->unpack(&from, &panels[v]);
        }
        tokens_add(format, x, token, n_tokens, col, &job, total);
    }
    for (int t = 0; t < n_tokens; t++)
        memcpy(y + t * y_stride + row, total[t], (size_t)n_rows * sizeof *y);
}

/*
 * By type of the weights; defined below by the file that includes this one, which knows the tiles.
 */
static const q_format format_table[EK_TYPE_MAX];

/* One row tile against all tokens. */
static void rows_times_tokens(const q_format *format, const ek_mat *w, int32_t row, int32_t row_end,
                              const ek_act *x, const int32_t *token_idx, int32_t n_tokens, float *y,
                              int64_t y_stride)
{
    int32_t done = 0;
    for (int n_chunks = next_part(n_tokens, CHUNK_TOKENS); n_chunks > 0; n_chunks--) {
        int32_t token[CHUNK_TOKENS];
        int n = next_part(n_tokens - done, n_chunks);
        for (int t = 0; t < n; t++)
            token[t] = token_idx ? token_idx[done + t] : done + t;
        float *out = y + done * y_stride;
        if (n_tokens <= DIRECT_TOKENS)
            direct_rows(format, w, row, row_end, x, token, n, out, y_stride);
        else
            tile_rows(format, w, row, row_end, x, token, n, done == 0, out, y_stride);
        done += n;
    }
}

static void matmul_q(const ek_mat *w, int32_t row_beg, int32_t row_end, const ek_act *x,
                     const int32_t *token_idx, int32_t n_tokens, float *y, int64_t y_stride)
{
    const q_format *format = &format_table[w->type];
    int32_t tile_rows_max = n_tokens <= DIRECT_TOKENS ? PANEL_ROWS : TILE_ROWS;
    for (int32_t row = row_beg; row < row_end; row += tile_rows_max)
        rows_times_tokens(format, w, row, row_end, x, token_idx, n_tokens, y, y_stride);
}

static void matmul_q_fill(ek_kernels *table)
{
    for (int type = 0; type < EK_TYPE_MAX; type++) {
        if (!format_table[type].unpack) continue;
        table->matmul[type] = matmul_q;
        table->act_int8[type] = true;
    }
}
