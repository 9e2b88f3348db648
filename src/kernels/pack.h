/*
 * Packed matrices: the bytes of a quantised matrix in the order in which vector units want them.
 *
 * A vector of 16 lanes holds one row in each lane, but a file stores rows one after the other, so
 * that a kernel has to read 16 places at once and turn what it finds. Packing does that turn ahead
 * of time. EK_PACK_ROWS rows become a panel of exactly as many bytes: their blocks one after the
 * other, of each block its first four bytes of all rows, then the next four, and so on. Types whose
 * block has a 2-byte scale beyond a multiple of four have all these scales behind the panel's
 * blocks, those of 16 rows side by side.
 *
 * Q6_K, whose codes lie in two parts of a block, is regrouped on the way. Of each half block, 16
 * codes of six bits, the first twelve become the low bits of twelve bytes, and the last four are
 * cut up into the bytes' top bits: code 12 + i has bits 5 and 4 in byte i, 3 and 2 in byte 4 + i, 1
 * and 0 in byte 8 + i. Half blocks follow each other in the order in which kernels add them up
 * (ek_kernels_pack_q6_k_block).
 *
 * No bit of a weight changes. Pure.
 */
#ifndef EK_KERNELS_PACK_H
#define EK_KERNELS_PACK_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "quant/types.h"

#define EK_PACK_ROWS 16

/** 4-byte groups of a block that are interleaved; 0: matrices of this type cannot be packed. */
size_t ek_kernels_pack_dwords(ek_type type);

/** Which of a Q6_K block's eight 32-column blocks half block i (0..15) of a packed one is of. */
static inline int ek_kernels_pack_q6_k_block(int i)
{
    return i / 8 * 4 + i % 2 * 2 + i / 2 % 2; /* 0 2 1 3 0 2 1 3 4 6 5 7 4 6 5 7 */
}

/** Which of that block's halves it is. */
static inline int ek_kernels_pack_q6_k_half(int i)
{
    return i / 4 % 2;
}

/**
 * Pack one panel.
 * @param rows      EK_PACK_ROWS rows of n_cols elements, row_stride bytes apart
 * @param out_panel as many bytes as the rows have; must not overlap them
 */
void ek_kernels_pack(ek_type type, int32_t n_cols, const uint8_t *rows, size_t row_stride,
                     uint8_t *out_panel);

#endif
