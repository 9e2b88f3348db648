/*
 * Recorded routing in the place of a model's gate: the tokens of a request follow a recorded
 * sequence, whose choices become gate logits. So the placement, the policies and the cluster under
 * them see the traffic of a real model, whatever model computes.
 *
 * The recording may be of another shape. Layer l of L takes the recording's layer l * L' / L, ids
 * of experts are taken modulo the model's number of experts, and of the choices the first top_k
 * different ones count. A sequence that is too short begins again. Pure; any number of threads may
 * read.
 */
#ifndef EK_TRACE_REPLAY_H
#define EK_TRACE_REPLAY_H

#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/status.h"
#include "trace/mrt.h"

/*
 * Share of a token's gate scores that the chosen experts have where a recording does not say it.
 */
#define EK_TRACE_CHOSEN_SHARE 0.8

typedef struct ek_trace_replay_seq {
    const ek_mrt *mrt;
    int32_t first, n_tokens; /* in mrt; n_tokens >= 1 */
} ek_trace_replay_seq;

typedef struct ek_trace_replay {
    const ek_trace_replay_seq *seq; /* recording r has begin[r] .. begin[r + 1] - 1, never none */
    const int32_t *begin;           /* (n + 1) */
    int32_t n;                      /* recordings */
    int32_t n_layers, n_experts, top_k; /* of the model */
} ek_trace_replay;

/** Arena bytes that make will take. */
size_t ek_trace_replay_bytes(const ek_mrt *recording, int32_t n);

/**
 * @param recording (n) borrowed as long as out_replay is used
 * @param arena     ek_trace_replay_bytes of room
 * @return EK_OK; EK_EINVAL one of them has not one token
 */
EK_MUST ek_status ek_trace_replay_make(const ek_mrt *recording, int32_t n, int32_t n_layers,
                                       int32_t n_experts, int32_t top_k, ek_arena *arena,
                                       ek_trace_replay *out_replay);

/**
 * The gate logits of one token.
 * @param key      of the request: key % n is the recording that it follows, key / n the sequence
 *                 in it, modulo their number
 * @param position of the token in its request, from 0
 * @param logits   (n_experts) in: the model's own, which decide the order of experts that were not
 *                 chosen; out: natural logarithms of shares, the chosen experts' the highest
 */
void ek_trace_replay_logits(const ek_trace_replay *replay, uint64_t key, int32_t position,
                            int32_t layer, float *logits);

#endif
