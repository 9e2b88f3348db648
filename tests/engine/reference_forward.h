/*
 * An independent forward pass in double: plain loops over whole sequences, no cache, no batches, no
 * int8 form, nothing shared with src/engine, src/kernels or src/route. It reads tensors through the
 * model description and turns rows into floats with the quant room's definition of each type. Slow
 * and obvious on purpose.
 */
#ifndef EK_TESTS_ENGINE_REFERENCE_FORWARD_H
#define EK_TESTS_ENGINE_REFERENCE_FORWARD_H

#include <stdint.h>

#include "model/desc.h"

/**
 * @param out_logits (n_vocab) of the last token
 * @param out_chosen (n_layers, n_tokens, top_k) expert ids, best first
 * @param out_margin smallest distance between the last chosen and the first rejected gate score of
 *   any token and layer: how far the choice is from going the other way
 */
void ek_reference_forward(const ek_model *model, const int32_t *tokens, int32_t n_tokens,
                          double *out_logits, int32_t *out_chosen, double *out_margin);

#endif
