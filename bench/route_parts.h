/*
 * Parts of build/bench/route that replay recordings. Each prints a table, or one member of a JSON
 * object; on failure err says why.
 */
#ifndef EK_BENCH_ROUTE_PARTS_H
#define EK_BENCH_ROUTE_PARTS_H

#include <stdbool.h>

#include "base/err.h"

/** Distinct experts, score loss and planning time of small batches, coalesced or not. */
bool ek_bench_route_coalesce(const char *dir, bool json, ek_err *err);

/** Tails under each policy on a plant whose traffic changes its kind. */
bool ek_bench_route_adaptive(const char *dir, bool json, ek_err *err);

#endif
