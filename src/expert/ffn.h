/*
 * One gated feed-forward network, down(silu(gate x) * up x), cut into tiles that threads take:
 * first tiles of the hidden columns, then, when all of those are there, tiles of the output. Routed
 * experts and shared experts are computed by the same two functions.
 *
 * A tile's result does not depend on how the work was cut: every element is a function of its own
 * inputs (kernels.h). Pure; any number of threads on disjoint tiles.
 */
#ifndef EK_EXPERT_FFN_H
#define EK_EXPERT_FFN_H

#include <stdint.h>

#include "expert/act.h"
#include "kernels/kernels.h"
#include "model/gguf.h"

typedef struct ek_ffn {
    ek_mat gate; /* (ff rows, d) */
    ek_mat up;   /* (ff rows, d) */
    ek_mat down; /* (d rows, ff) */
} ek_ffn;

/**
 * Matrix `idx` of a tensor of up to three dimensions (a plain matrix has only 0); data stay in the
 * map.
 */
ek_mat ek_expert_mat(const ek_tensor *tensor, int32_t idx);

/** Rows [row_beg, row_end) of a matrix as a matrix. */
ek_mat ek_expert_mat_rows(const ek_mat *mat, int32_t row_beg, int32_t row_end);

/**
 * How many rows of a matrix make one unit of work: some 128 KiB of weights, so that taking a ticket
 * costs nothing beside it, but no fewer units than the threads need to end at about the same time.
 * A multiple of EK_ACT_BLOCK.
 * @param n_mats matrices of this shape that are cut at the same time
 */
int32_t ek_expert_tile_rows(const ek_mat *mat, int32_t n_mats, int32_t n_threads);

static inline int32_t ek_expert_tile_count(int32_t n_rows, int32_t tile_rows)
{
    return (n_rows + tile_rows - 1) / tile_rows;
}

/** Floats of scratch that ek_expert_ffn_hidden needs, one thread's. */
#define EK_EXPERT_FFN_SCRATCH_FLOATS ((size_t)(2 * 64 * 256))

/** The tokens of one network: rows of x in, rows of h in between, rows of y out. */
typedef struct ek_ffn_rows {
    const ek_act *x;
    const int32_t *token_idx; /* (n_rows) rows of x; NULL: 0, 1, 2, ... */
    int32_t n_rows;
    const ek_act_buf *h; /* hidden activations, ff columns */
    int64_t row_beg;     /* first row of h and y */
    float *y;            /* (.., d) */
} ek_ffn_rows;

/**
 * Columns [col_beg, col_end) of h for all rows: silu(gate x) * up x, and their int8 form. Borders
 * are multiples of EK_ACT_BLOCK or the end, at most ek_expert_tile_rows apart.
 */
void ek_expert_ffn_hidden(const ek_kernels *kernels, const ek_ffn *ffn, const ek_ffn_rows *rows,
                          int32_t col_beg, int32_t col_end, float *scratch);

/** Columns [col_beg, col_end) of y for all rows; all columns of h are there. */
void ek_expert_ffn_down(const ek_kernels *kernels, const ek_ffn *ffn, const ek_ffn_rows *rows,
                        int32_t col_beg, int32_t col_end);

#endif
