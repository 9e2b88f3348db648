/*
 * Quantised matrices against int8 activations, written on v16; include panel_body.h and
 * unpack_body.h first. The order of additions is theirs.
 *
 * Few tokens are multiplied directly: row tiles are one panel, whose codes are used as they are
 * unpacked, and totals stay in registers over all columns. With more tokens row tiles have
 * EK_DOT_PANELS panels, which are unpacked into a buffer once per chunk of tokens. Loops from
 * outside: chunks of tokens, row tiles, panels of 256 columns, groups of tokens; between panels
 * totals wait in a small array.
 */

#include "base/size.h"

enum {
    DIRECT_PLAIN_TOKENS = EK_DOT_DIRECT_PLAIN_TOKENS,
    TILE_PANELS = EK_DOT_PANELS,
    TILE_TOKENS = EK_DOT_TOKENS,
    TILE_TOKENS_MIN = DIRECT_PLAIN_TOKENS / 2 + 1, /* tiles are equal parts of more tokens */
    TILE_ROWS = TILE_PANELS * PANEL_ROWS,
    FETCH_TILES = 2, /* of a panel's tiles, that fetch the next panel */
    CHUNK_TOKENS =
        96, /* their totals and one panel's activations stay near the first-level cache */
    PANEL_COLS = PANEL_BLOCKS * EK_ACT_BLOCK,
};

/* Some tokens against the panels of one row tile. */
typedef struct tile_job {
    const panel *panels; /* (TILE_PANELS) */
    int n_blocks, n_tokens;
    const panel_token *x;             /* (n_tokens) from the panels' first column on */
    const uint8_t *next[TILE_PANELS]; /* what will be unpacked after these panels */
    size_t fetch_bytes;               /* of each of them with every block; 0: not packed */
    float (*total)[TILE_ROWS];        /* (n_tokens) */
} tile_job;

/* A matrix times tokens, as ek_matmul_fn has it. */
typedef struct rows_job {
    const ek_mat *w;
    int32_t row_end;
    const panel_token *x; /* (n_tokens) */
    int n_tokens;
    bool first_chunk; /* of tokens: the weights come from memory */
    float *y;
    int64_t y_stride;
} rows_job;

typedef struct q_format {
    int block_cols, block_bytes;
    void (*direct)(const rows_job *job, int32_t row); /* a row tile of one panel */
    void (*unpack)(bool packed, source *from, panel *out);
    void (*tile)(const tile_job *job);
} q_format;

/*
 * By type of the weights; defined below by the file that includes this one, which knows the tiles.
 */
static const q_format format_table[EK_TYPE_MAX];

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

/*
 * Fetch a part of the next panels. Products of a tile touch no memory beyond the first-level cache,
 * so this is when the memory has time; in one go with unpacking, fetches would queue up and both
 * would wait.
 */
EK_V16_INLINE void tile_fetch(const tile_job *job, int block)
{
    size_t beg = (size_t)block * job->fetch_bytes;
    for (size_t at = beg; at < beg + job->fetch_bytes; at += EK_CACHE_LINE)
        for (int v = 0; v < TILE_PANELS; v++)
            _mm_prefetch((const char *)(job->next[v] + at), _MM_HINT_T1);
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
        tile_fetch(job, block);
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
                total[t][v] = affine_add(total[t][v], sum[t][v], a, b, job->x[t].scale[block],
                                         job->x[t].scaled_sum[block]);
        }
    }
    totals_store(job, n_tokens, total);
}

/* One half of a block: 16 columns whose weights are factor * (code - 32). */
EK_V16_INLINE void tile_half(int half, int block, int n_tokens, const tile_job *job,
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
        q[t] = job->x[t].q + (2 * block + half) * EK_ACT_BLOCK / 2;
#pragma GCC unroll 2
        for (int v = 0; v < TILE_PANELS; v++)
            sum[t][v] = v16i_set1(job->x[t].half_offset[2 * block + half]);
    }
    dot_add(6, n_tokens, BLOCK_DWORDS / 2, code, q, sum);
#pragma GCC unroll 2
    for (int v = 0; v < TILE_PANELS; v++) {
        const panel *p = &job->panels[v];
        v16f factor = v16f_load(half == 0 ? p->a[block] : p->b[block]);
#pragma GCC unroll 6
        for (int t = 0; t < n_tokens; t++)
            total[t][v] = half_add(total[t][v], sum[t][v], factor, job->x[t].scale[block]);
    }
}

EK_V16_INLINE void tile_halves(int n_tokens, const tile_job *job)
{
    v16f total[TILE_TOKENS][TILE_PANELS];
    totals_load(job, n_tokens, total);
    for (int group = 0; group < 2 * PANEL_BLOCKS; group += 4) {
        int first = group / 8 * 4, half = group / 4 % 2;
        for (int i = 0; i < 4; i++) { /* 0, 2, 1, 3 */
            int block = first + (i & 1) * 2 + (i >> 1);
            if (half == 0) tile_fetch(job, block);
            tile_half(half, block, n_tokens, job, total);
        }
    }
    totals_store(job, n_tokens, total);
}

EK_V16_INLINE void panel_fill(codes_fn codes, bool packed, source *from, panel *out)
{
    sink s = {.out = out};
    if (packed)
        codes(true, 0, from, &s);
    else
        codes(false, 0, from, &s);
}

static int32_t min_i32(int32_t a, int32_t b)
{
    return a < b ? a : b;
}

/*
 * The panel of 16 rows that has rows `row` and following in it. At the end of a matrix it begins
 * earlier, so that all of its rows exist; those of others are computed and dropped.
 */
static int32_t panel_first_row(const ek_mat *w, int32_t row)
{
    return row + PANEL_ROWS <= w->n_rows ? row : w->n_rows - PANEL_ROWS;
}

/* The n_rows rows behind a tile that starts at `row`, as far as they belong to this call. */
static prefetch rows_after(const ek_mat *w, int32_t row, int32_t row_end, int32_t n_rows)
{
    uintptr_t data = (uintptr_t)w->data;
    int32_t beg = min_i32(row + n_rows, row_end), end = min_i32(row + 2 * n_rows, row_end);
    return (prefetch){data + (uintptr_t)beg * w->row_bytes, data + (uintptr_t)end * w->row_bytes};
}

/* A panel's worth of a matrix of fewer than 16 rows, the last one repeated. */
typedef struct padded_rows {
    uint8_t data[PANEL_ROWS * PANEL_BLOCKS * sizeof(ek_block_q8_0)];
} padded_rows;

static_assert(sizeof(ek_block_q8_0) * PANEL_BLOCKS >= sizeof(ek_block_q6_K), "any type fits");

/* Columns `col` and following of panel rows from `row` on; `pad` is used by tiny matrices only. */
static source source_at(const ek_mat *w, int32_t row, int32_t col, padded_rows *pad)
{
    const q_format *format = &format_table[w->type];
    const uint8_t *data = w->data;
    int32_t n_cols = min_i32(PANEL_COLS, w->n_cols - col);
    size_t block = (size_t)(col / format->block_cols);
    source from = {.n_blocks = n_cols / EK_ACT_BLOCK};
    if (w->packed) {
        size_t code_bytes = ek_kernels_pack_dwords(w->type) * sizeof(uint32_t);
        size_t n_blocks = (size_t)(w->n_cols / format->block_cols);
        const uint8_t *rows = data + (size_t)panel_first_row(w, row) * w->row_bytes;
        from.first = rows + block * code_bytes * PANEL_ROWS;
        from.scales = rows + (n_blocks * code_bytes + block * sizeof(uint16_t)) * PANEL_ROWS;
        return from;
    }
    size_t offset = block * (size_t)format->block_bytes;
    if (w->n_rows >= PANEL_ROWS) {
        from.first = data + (size_t)panel_first_row(w, row) * w->row_bytes + offset;
        from.stride = w->row_bytes;
        return from;
    }
    size_t bytes = (size_t)(n_cols / format->block_cols) * (size_t)format->block_bytes;
    for (int32_t r = 0; r < PANEL_ROWS; r++) {
        size_t id = (size_t)min_i32(r, w->n_rows - 1);
        memcpy(pad->data + (size_t)r * bytes, data + id * w->row_bytes + offset, bytes);
    }
    from.first = pad->data;
    from.stride = bytes;
    return from;
}

/* Results of the rows from `row` on that belong to this call, out of their panel's lanes. */
static void panel_store(const ek_mat *w, int32_t row, int32_t row_end, const float *lanes, float *y)
{
    int32_t first = w->n_rows >= PANEL_ROWS ? panel_first_row(w, row) : 0;
    int32_t n = min_i32(PANEL_ROWS, row_end - row);
    if (n == PANEL_ROWS && row == first)
        v16f_store(y + row, v16f_load(lanes)); /* nearly always; a length that is known is faster */
    else if (n > 0)
        memcpy(y + row, lanes + (row - first), (size_t)n * sizeof *y);
}

static panel_token token_of(const ek_act *x, int64_t token)
{
    int64_t block = token * (x->n_cols / EK_ACT_BLOCK);
    return (panel_token){.q = x->q + token * x->n_cols,
                         .scale = x->scale + block,
                         .scaled_sum = x->scaled_sum + block,
                         .half_offset = x->half_offset + 2 * block};
}

static panel_token token_after(const panel_token *x, int n_blocks)
{
    return (panel_token){.q = x->q + n_blocks * EK_ACT_BLOCK,
                         .scale = x->scale + n_blocks,
                         .scaled_sum = x->scaled_sum + n_blocks,
                         .half_offset = x->half_offset + 2 * n_blocks};
}

/*
 * How many of n things the next of n_parts nearly equal parts takes: 8 tokens are 4 + 4, not 6 + 2.
 */
static int next_part(int n, int n_parts)
{
    return (n + n_parts - 1) / n_parts;
}

/*
 * One panel of rows against all of the job's tokens. packed, n_tokens and codes are constants at
 * every call.
 */
EK_V16_INLINE void direct_panel(bool packed, codes_fn codes, int n_tokens, const rows_job *job,
                                int32_t row)
{
    const ek_mat *w = job->w;
    const int panel_blocks = PANEL_COLS / format_table[w->type].block_cols;
    const size_t code_bytes = ek_kernels_pack_dwords(w->type) * sizeof(uint32_t);
    EK_ALIGNED(64) float lanes[PANEL_ROWS];
    padded_rows pad;
    sink s = {.x = job->x};
#pragma GCC unroll 6
    for (int t = 0; t < n_tokens; t++)
        s.total[t] = v16f_zero();
    source from = source_at(w, row, 0, &pad);
    if (packed)
        from.ahead = (prefetch){(uintptr_t)from.first + STREAM_AHEAD_BYTES, UINTPTR_MAX};
    else
        from.ahead = rows_after(w, row, job->row_end, PANEL_ROWS);
    for (int32_t col = 0;;) {
        codes(packed, n_tokens, &from, &s);
        col += PANEL_COLS;
        if (col >= w->n_cols) break;
        s.first_block += PANEL_BLOCKS;
        if (packed) {
            from.first += (size_t)panel_blocks * code_bytes * PANEL_ROWS;
            from.scales += (size_t)panel_blocks * sizeof(uint16_t) * PANEL_ROWS;
            from.n_blocks = min_i32(PANEL_BLOCKS, (w->n_cols - col) / EK_ACT_BLOCK);
        } else {
            prefetch ahead = from.ahead;
            from = source_at(w, row, col, &pad);
            from.ahead = ahead;
        }
    }
#pragma GCC unroll 6
    for (int t = 0; t < n_tokens; t++) {
        v16f_store(lanes, s.total[t]);
        panel_store(w, row, job->row_end, lanes, job->y + t * job->y_stride);
    }
}

/* direct_panel with n_tokens as a constant. */
EK_V16_INLINE void direct_switch(bool packed, codes_fn codes, const rows_job *job, int32_t row)
{
    static_assert(DIRECT_TOKENS == 1 || DIRECT_TOKENS == 6, "every number is listed");
    /* Those that do not occur are not compiled: each is hundreds of instructions. */
    const int most = packed ? DIRECT_TOKENS : DIRECT_PLAIN_TOKENS;
    switch (most == 1 ? 1 : job->n_tokens) {
    case 1: direct_panel(packed, codes, 1, job, row); break;
    case 2: direct_panel(packed, codes, 2, job, row); break;
    case 3: direct_panel(packed, codes, 3, job, row); break;
    case 4: direct_panel(packed, codes, 4, job, row); break;
    case 5: direct_panel(packed, codes, most < 5 ? most : 5, job, row); break;
    default: direct_panel(packed, codes, most, job, row); break;
    }
}

EK_V16_INLINE void direct_rows(codes_fn codes, const rows_job *job, int32_t row)
{
    if (job->w->packed)
        direct_switch(true, codes, job, row);
    else
        direct_switch(false, codes, job, row);
}

/* What format_table names, the same for every instruction set. */

static void q4_0_unpack(bool packed, source *from, panel *out)
{
    panel_fill(codes_q4_0, packed, from, out);
}

static void q4_0_direct(const rows_job *job, int32_t row)
{
    direct_rows(codes_q4_0, job, row);
}

static void q8_0_unpack(bool packed, source *from, panel *out)
{
    panel_fill(codes_q8_0, packed, from, out);
}

static void q8_0_direct(const rows_job *job, int32_t row)
{
    direct_rows(codes_q8_0, job, row);
}

static void q4_k_unpack(bool packed, source *from, panel *out)
{
    panel_fill(codes_q4_k, packed, from, out);
}

static void q4_k_direct(const rows_job *job, int32_t row)
{
    direct_rows(codes_q4_k, job, row);
}

static void q5_k_unpack(bool packed, source *from, panel *out)
{
    panel_fill(codes_q5_k, packed, from, out);
}

static void q5_k_direct(const rows_job *job, int32_t row)
{
    direct_rows(codes_q5_k, job, row);
}

static void q6_k_unpack(bool packed, source *from, panel *out)
{
    panel_fill(codes_q6_k, packed, from, out);
}

static void q6_k_direct(const rows_job *job, int32_t row)
{
    direct_rows(codes_q6_k, job, row);
}

/*
 * All tokens against the panels that tile has. The first tiles fetch what comes next.
 * @param panel_bytes of each of the next panels
 */
static void tokens_add(const rows_job *job, const panel_token *x, size_t panel_bytes,
                       tile_job *tile, float (*total)[TILE_ROWS])
{
    const int n_tiles_all = next_part(job->n_tokens, TILE_TOKENS);
    const int n_fetching = min_i32(n_tiles_all, FETCH_TILES);
    const size_t tile_bytes = panel_bytes / (size_t)n_fetching;
    int done = 0;
    for (int i = 0; i < n_tiles_all; i++) {
        int n_tiles = n_tiles_all - i;
        tile->n_tokens = next_part(job->n_tokens - done, n_tiles);
        tile->fetch_bytes =
            i < n_fetching ? ek_size_align(tile_bytes / PANEL_BLOCKS, EK_CACHE_LINE) : 0;
        tile->x = x + done;
        tile->total = total + done;
        format_table[job->w->type].tile(tile);
        done += tile->n_tokens;
        for (int v = 0; v < TILE_PANELS; v++)
            tile->next[v] += tile_bytes;
    }
}

static void tile_rows(const rows_job *job, int32_t row)
{
    const ek_mat *w = job->w;
    panel panels[TILE_PANELS];
    panel_token x[CHUNK_TOKENS];
    EK_ALIGNED(64) float total[CHUNK_TOKENS][TILE_ROWS];
    padded_rows pad;
    prefetch ahead = {0, 0};
    if (!w->packed && job->first_chunk) ahead = rows_after(w, row, job->row_end, TILE_ROWS);
    memset(total, 0, (size_t)job->n_tokens * sizeof total[0]);
    memcpy(x, job->x, (size_t)job->n_tokens * sizeof x[0]);
    tile_job tile = {.panels = panels};
    /* Those of the next columns or, at the end, of the next rows. */
    const size_t panel_bytes = w->packed && job->first_chunk
                                   ? (size_t)(PANEL_COLS / format_table[w->type].block_cols) *
                                         (size_t)format_table[w->type].block_bytes * PANEL_ROWS
                                   : 0;
    const size_t to_next_rows = (size_t)TILE_ROWS * w->row_bytes - w->row_bytes * PANEL_ROWS;
    for (int32_t col = 0; col < w->n_cols; col += PANEL_COLS) {
        const bool is_last = col + PANEL_COLS >= w->n_cols;
        for (int v = 0; v < TILE_PANELS; v++) {
            source from = source_at(w, row + v * PANEL_ROWS, col, &pad);
            from.ahead = ahead;
            tile.n_blocks = from.n_blocks;
            tile.next[v] = from.first + panel_bytes + (is_last ? to_next_rows : 0);
            format_table[w->type].unpack(w->packed, &from, &panels[v]);
            ahead = from.ahead;
        }
        tokens_add(job, x, panel_bytes, &tile, total);
        for (int t = 0; t < job->n_tokens; t++)
            x[t] = token_after(&x[t], PANEL_BLOCKS);
    }
    for (int t = 0; t < job->n_tokens; t++)
        for (int v = 0; v < TILE_PANELS; v++)
            panel_store(w, row + v * PANEL_ROWS, job->row_end, total[t] + v * PANEL_ROWS,
                        job->y + t * job->y_stride);
}

/* Chunks of tokens from outside: their activations stay in the second-level cache for all rows. */
static void matmul_q(const ek_mat *w, int32_t row_beg, int32_t row_end, const ek_act *x,
                     const int32_t *token_idx, int32_t n_tokens, float *y, int64_t y_stride)
{
    ek_dassert(!w->packed || row_beg % EK_PACK_ROWS == 0);
    const bool direct = n_tokens <= (w->packed ? DIRECT_TOKENS : DIRECT_PLAIN_TOKENS);
    const int32_t n_rows = direct ? PANEL_ROWS : TILE_ROWS;
    panel_token token[CHUNK_TOKENS];
    rows_job job = {.w = w, .row_end = row_end, .x = token, .y_stride = y_stride};
    int32_t done = 0;
    for (int n_chunks = next_part(n_tokens, CHUNK_TOKENS); n_chunks > 0; n_chunks--) {
        job.first_chunk = done == 0;
        job.n_tokens = next_part(n_tokens - done, n_chunks);
        job.y = y + done * y_stride;
        for (int t = 0; t < job.n_tokens; t++)
            token[t] = token_of(x, token_idx ? token_idx[done + t] : done + t);
        for (int32_t row = row_beg; row < row_end; row += n_rows) {
            if (direct)
                format_table[w->type].direct(&job, row);
            else
                tile_rows(&job, row);
        }
        done += job.n_tokens;
    }
}

static void matmul_q_fill(ek_kernels *table)
{
    for (int type = 0; type < EK_TYPE_MAX; type++) {
        if (!format_table[type].tile) continue;
        table->matmul[type] = matmul_q;
        table->act_int8[type] = true;
    }
}
