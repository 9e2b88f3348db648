/*
 * The dispatcher boundary: an engine hands packed token lists over and gets summed outputs back.
 *
 * The engine does not know whether experts live in this process (expert/local.h) or on other
 * machines (the cluster room implements the same table). A dispatcher executes plans and knows
 * nothing of policies. One owner thread (the engine's) calls it.
 *
 * A layer has two phases, dispatch and combine, which always come in pairs (or end with cancel);
 * between them the engine may compute something else: the shared expert, and, where the dispatcher
 * says that this gains, the other half of the step. Of a step's two *micro-batches* one is then
 * computed by whoever has the experts while the engine computes the attention of the other.
 */
#ifndef EK_EXPERT_DISPATCH_H
#define EK_EXPERT_DISPATCH_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/status.h"
#include "kernels/kernels.h"
#include "sys/pool.h"
#include "telemetry/experts.h"

#define EK_MICRO_BATCHES_MAX 2 /* of a step */

/** How many micro-batches a step is handed over in. */
typedef enum ek_micro_batching {
    EK_MICRO_BATCHING_ONE,  /* all rows of a layer at once */
    EK_MICRO_BATCHING_TWO,  /* two, whenever a step has two rows */
    EK_MICRO_BATCHING_AUTO, /* whichever was quicker for steps of that size */
} ek_micro_batching;

/**
 * One layer's work: a route plan's lists, the tokens they point to, and which device computes which
 * rows. All borrowed until combine returns.
 *
 * A share is a run of one expert's rows that one device computes. Shares of a device stand
 * together; those of an expert, whatever their devices, are its rows once. No share is empty.
 */
typedef struct ek_expert_work {
    int32_t layer;
    int32_t micro_batch; /* of the step, 0 first: works of different ones may be under way at once;
                            the second never has more tokens than the first */
    int32_t n_tokens;
    int32_t top_k;
    int32_t n_experts;
    const int32_t *expert_beg; /* (n_experts + 1) rows of each expert */
    const int32_t *row_token;  /* (n_rows) */
    const int32_t *row_of;     /* (n_tokens, top_k), -1: skipped */
    const float *weight;       /* (n_tokens, top_k) */
    int32_t n_devices;
    const int32_t *device_beg;   /* (n_devices + 1) shares of each device */
    const int32_t *share_expert; /* (n_shares) */
    const int32_t *share_row;    /* (n_shares, 2) first row and the one after the last */
    const ek_act
        *x; /* (n_tokens, d_model) normalised activations, prepared for the experts' types */
} ek_expert_work;

typedef struct ek_dispatcher ek_dispatcher;

typedef struct ek_dispatcher_ops {
    /** Start a layer. Scratch of the step comes from `step`. @return EK_OK; EK_EPEER; EK_ENOMEM */
    ek_status (*dispatch)(ek_dispatcher *self, const ek_expert_work *work, ek_arena *step);
    /**
     * Finish it: out[t] += sum over k, in order of k, of weight[t][k] * expert(x[t]).
     * @param out (n_tokens, d_model). The order of additions is fixed, so the sum depends on
     *   nothing but the token.
     */
    ek_status (*combine)(ek_dispatcher *self, const ek_expert_work *work, float *out);
    /*
     * Of dispatchers that can have two micro-batches under way; else NULL.
     */
    /** End a layer that was dispatched without its result; waits for what is under way. */
    void (*cancel)(ek_dispatcher *self, const ek_expert_work *work);
    /** While the owner computes something else: move what can be moved, without waiting. */
    void (*progress)(ek_dispatcher *self);
    /** Step bytes that dispatch takes for a batch of n_tokens. */
    size_t (*step_bytes)(const ek_dispatcher *self, int32_t n_tokens);
    void (*destroy)(ek_dispatcher *self);
    /*
     * Of dispatchers whose devices come and go, which are those of an ek_expert_source; else NULL.
     * Both between layers, by the owner.
     */
    /**
     * Have some come or gone since this was last asked? Takes in what devices say of their load, to
     * be called between steps, and every now and then when there are none.
     * @param out_loads_known whether all that are there have said so lately
     */
    bool (*devices_changed)(ek_dispatcher *self, bool *out_loads_known);
    /**
     * What lies in the slots of a layer now.
     * @param slot_beg        (n_devices + 1) first slot of each device
     * @param out_slot_expert every expert at least once, one that nobody has wherever there is
     *                        room; -1: the slot holds nothing
     */
    void (*device_slots)(const ek_dispatcher *self, int32_t layer, const int32_t *slot_beg,
                         int32_t *out_slot_expert);
} ek_dispatcher_ops;

/** Implementations embed this as their first member. */
struct ek_dispatcher {
    const ek_dispatcher_ops *ops;
    ek_micro_batching micro_batching; /* constant; ONE without cancel and progress */
    int64_t n_rows_lost; /* left out since it was made, because nobody had their expert; owner's */
};

EK_MUST static inline ek_status ek_expert_dispatch(ek_dispatcher *d, const ek_expert_work *work,
                                                   ek_arena *step)
{
    return d->ops->dispatch(d, work, step);
}

EK_MUST static inline ek_status ek_expert_combine(ek_dispatcher *d, const ek_expert_work *work,
                                                  float *out)
{
    return d->ops->combine(d, work, out);
}

/** @param work a second micro-batch, or a first one beside it, that was dispatched */
static inline void ek_expert_cancel(ek_dispatcher *d, const ek_expert_work *work)
{
    if (d->ops->cancel) d->ops->cancel(d, work);
}

static inline void ek_expert_progress(ek_dispatcher *d)
{
    if (d->ops->progress) d->ops->progress(d);
}

static inline size_t ek_expert_step_bytes(const ek_dispatcher *d, int32_t n_tokens)
{
    return d->ops->step_bytes(d, n_tokens);
}

/** What an engine has for the dispatcher that it asks for; borrowed until destroy. */
typedef struct ek_dispatcher_setup {
    const ek_kernels *kernels;
    ek_sys_pool *pool;
    int32_t tokens_max;            /* most tokens of one dispatch */
    ek_expert_stats *stats;        /* of experts */
    ek_expert_stats *device_stats; /* of devices, in the place of experts */
} ek_dispatcher_setup;

/** Experts that lie outside of the engine's process; whoever wires the two gives it this. */
typedef struct ek_expert_source {
    void *ctx;
    int32_t n_devices;
    /** @return EK_OK; EK_ENOMEM; EK_EINVAL tokens_max is beyond what devices take; EK_EPEER */
    ek_status (*open)(void *ctx, const ek_dispatcher_setup *setup, ek_dispatcher **out_dispatcher,
                      ek_err *err);
} ek_expert_source;

static inline void ek_expert_destroy(ek_dispatcher *d)
{
    if (d) d->ops->destroy(d);
}

#endif
