/*
 * A bounded list of token ids that an encoder appends to. The memory is the caller's.
 */
#ifndef EK_MODEL_IDS_H
#define EK_MODEL_IDS_H

#include <stdint.h>

#include "base/status.h"

typedef struct ek_ids {
    int32_t *data; /* (max) borrowed */
    int64_t n;
    int64_t max;
} ek_ids;

static inline ek_status ek_model_ids_push(ek_ids *ids, int32_t id)
{
    if (ids->n == ids->max) return EK_ERANGE;
    ids->data[ids->n++] = id;
    return EK_OK;
}

#endif
