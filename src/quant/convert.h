/*
 * Element conversions: half floats, and whole rows of any type to f32 (the definition of what each
 * block means; every kernel is tested against it) and from f32 (round to nearest; for tools and
 * tests). Pure.
 */
#ifndef EK_QUANT_CONVERT_H
#define EK_QUANT_CONVERT_H

#include "base/attr.h"
#include "base/status.h"
#include "quant/types.h"

float ek_quant_f16_to_f32(uint16_t h);
/** Round to nearest even; overflow gives infinity, NaN stays NaN. */
uint16_t ek_quant_f32_to_f16(float f);
float ek_quant_bf16_to_f32(uint16_t b);
uint16_t ek_quant_f32_to_bf16(float f);

/** @param row  (n_cols) elements of `type`, any alignment; @param out (n_cols) f32 */
void ek_quant_row_to_f32(ek_type type, const void *row, int64_t n_cols, float *out);

/** @param out_row ek_quant_row_bytes(type, n_cols) bytes. @return EK_OK; EK_EUNSUPPORTED */
EK_MUST ek_status ek_quant_row_from_f32(ek_type type, const float *x, int64_t n_cols,
                                        void *out_row);

#endif
