/*
 * How much memory an engine will need, worked out before anything is loaded. Pure.
 */
#ifndef EK_ENGINE_MEMORY_H
#define EK_ENGINE_MEMORY_H

#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "engine/params.h"

/** What the plan is made from. */
typedef struct ek_memory_facts {
    int64_t available_bytes; /* that the machine can give now */
    int64_t weight_bytes;    /* mapped, so they are needed in the page cache to be fast */
    int64_t buffer_bytes;    /* activations, logits, counters */
    int64_t block_bytes;     /* of one KV block */
    int32_t context_tokens;
} ek_memory_facts;

typedef struct ek_memory_plan {
    int32_t kv_blocks;
    int64_t kv_bytes;
    int64_t need_bytes; /* all of it and 20 % */
} ek_memory_plan;

/**
 * Decide the size of the KV cache and whether all fits.
 * @return EK_OK; EK_ENOMEM the need exceeds what is available, or the budget holds not one block;
 *         the text has the numbers and the remedy
 */
EK_MUST ek_status ek_engine_memory_plan(const ek_engine_params *params,
                                        const ek_memory_facts *facts, ek_memory_plan *out_plan,
                                        ek_err *err);

#endif
