/*
 * Packing chosen (token, choice) pairs by expert. Pure.
 */
#ifndef EK_ROUTE_PACK_H
#define EK_ROUTE_PACK_H

#include "route/route.h"

/**
 * Fill a plan's rows: expert_beg, row_token, row_of, n_rows, n_active. Going through the tokens in
 * order keeps them ascending inside each expert.
 * @param next (n_experts) scratch
 */
void ek_route_pack(ek_route_plan *plan, int32_t *next);

/**
 * The same without the token-slots that wait.
 * @param plan deferred and n_deferred are set
 */
void ek_route_pack_undeferred(ek_route_plan *plan, int32_t *next);

#endif
