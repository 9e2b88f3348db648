/*
 * When a step is cut into two micro-batches.
 *
 * Two halves of a step hide the way to the experts behind each other's attention. They cost, too:
 * every weight is read twice, and every message is sent twice. What weighs more depends on the
 * model, the links, the workers and the size of the step, so it is measured: steps are classed by
 * the power of two below their tokens, and in each class both ways are tried, the quicker one is
 * taken, and the other one is looked at again now and then. An answer does not depend on it.
 *
 * A plan that looks at the whole batch would be another one for each half; such steps are never
 * cut: those of capacity limits, and those small enough to be coalesced as a whole or by halves.
 * Pure; the forward pass owns the rule.
 */
#ifndef EK_ENGINE_MICROBATCH_H
#define EK_ENGINE_MICROBATCH_H

#include <stdint.h>

#include "expert/dispatch.h"
#include "route/params.h"

#define EK_MICROBATCH_TOKENS_MIN 16 /* that auto cuts: below, weights are what a step waits for */
#define EK_MICROBATCH_CLASSES    24
#define EK_MICROBATCH_TRIALS     4  /* steps of a class in which each way is tried first */
#define EK_MICROBATCH_AGAIN      64 /* steps of a class between two looks at the slower way */

/** What steps of one class took, in one or in two micro-batches. */
typedef struct ek_microbatch_class {
    double ns_per_token[EK_MICRO_BATCHES_MAX];
    int32_t n_seen[EK_MICRO_BATCHES_MAX]; /* up to EK_MICROBATCH_TRIALS */
    int32_t n_since;                      /* steps since the slower way was tried */
} ek_microbatch_class;

typedef struct ek_microbatch_rule {
    ek_micro_batching choice;
    ek_microbatch_class classes[EK_MICROBATCH_CLASSES];
} ek_microbatch_rule;

void ek_engine_microbatch_init(ek_microbatch_rule *rule, ek_micro_batching choice);

/** How many micro-batches the next step is cut into: 1 or 2. */
int32_t ek_engine_microbatch_choose(ek_microbatch_rule *rule, const ek_route_params *route,
                                    int32_t n_tokens);

/** A step has taken so long; with which it was cut counts. */
void ek_engine_microbatch_learn(ek_microbatch_rule *rule, int32_t n_tokens, int32_t n_micro,
                                int64_t took_ns);

/** Tokens of the first of two: the larger half. */
static inline int32_t ek_engine_microbatch_first(int32_t n_tokens)
{
    return n_tokens - n_tokens / 2;
}

#endif
