/*
 * Activations as a place to write to: the f32 rows and, where a matrix that reads them wants it,
 * their int8 form. kernels.h's ek_act is the read-only view of the same memory.
 *
 * A row is written by one thread, or by several that own disjoint blocks of EK_ACT_BLOCK columns.
 */
#ifndef EK_EXPERT_ACT_H
#define EK_EXPERT_ACT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "kernels/kernels.h"

typedef struct ek_act_buf {
    int32_t n_cols;
    float *f32;           /* (n_rows, n_cols) */
    int8_t *q;            /* (n_rows, n_cols); NULL: no int8 form */
    float *scale;         /* (n_rows, n_cols / EK_ACT_BLOCK) */
    float *scaled_sum;    /* (n_rows, n_cols / EK_ACT_BLOCK) */
    int32_t *half_offset; /* (n_rows, 2 * n_cols / EK_ACT_BLOCK) */
} ek_act_buf;

/** Bytes that ek_expert_act_take takes at most. */
size_t ek_expert_act_bytes(int32_t n_rows, int32_t n_cols, bool int8);

/**
 * Take a buffer out of an arena; its contents are undefined.
 * @param int8 n_cols is a multiple of EK_ACT_BLOCK
 * @return false: the arena is too small
 */
EK_MUST bool ek_expert_act_take(ek_arena *arena, int32_t n_rows, int32_t n_cols, bool int8,
                                ek_act_buf *out_buf);

/** Rows `row` and following, for reading. */
ek_act ek_expert_act_rows(const ek_act_buf *buf, int64_t row);

/** The same activations without their first n_rows rows. */
ek_act ek_expert_act_skip(const ek_act *act, int64_t n_rows);

/**
 * Bring columns [col_beg, col_end) of a row into int8 form, if the buffer has one. Each block of
 * EK_ACT_BLOCK columns stands for itself, so any split at block borders gives the same bytes.
 */
void ek_expert_act_prepare(const ek_kernels *kernels, const ek_act_buf *buf, int64_t row,
                           int32_t col_beg, int32_t col_end);

#endif
