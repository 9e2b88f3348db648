/*
 * One block of each quantised type, to and from f32: the parts that convert.h is made of. Private
 * to this room.
 *
 * Pointers to blocks are bytes of any alignment: a mapped file promises none. Pure.
 */
#ifndef EK_QUANT_BLOCK_H
#define EK_QUANT_BLOCK_H

#include <stdint.h>

#include "quant/types.h"

/** Unpack one block of block_elems elements. */
void ek_quant_q4_0_unpack(const uint8_t *block, float *out);
void ek_quant_q8_0_unpack(const uint8_t *block, float *out);
void ek_quant_q4_k_unpack(const uint8_t *block, float *out);
void ek_quant_q5_k_unpack(const uint8_t *block, float *out);
void ek_quant_q6_k_unpack(const uint8_t *block, float *out);

/**
 * Round block_elems elements to one block. Every element lands on the code nearest to it under the
 * block's own scale and minimum, which follow from the range of the elements; a block with a NaN or
 * infinity becomes NaN whole.
 */
void ek_quant_q4_0_pack(const float *x, uint8_t *out_block);
void ek_quant_q8_0_pack(const float *x, uint8_t *out_block);
void ek_quant_q4_k_pack(const float *x, uint8_t *out_block);
void ek_quant_q5_k_pack(const float *x, uint8_t *out_block);
void ek_quant_q6_k_pack(const float *x, uint8_t *out_block);

#define EK_QUANT_F16_NAN 0x7e00u

#endif
