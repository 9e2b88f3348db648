/*
 * Local dispatcher: all experts in this process, computed as grouped FFNs over the packed lists.
 *
 * The pool's threads are divided into devices: with D devices and T threads, device d has threads
 * d * T / D and following; with more devices than threads, a thread works for several of them in
 * turn. A device computes its shares and nothing else, so that what one has too much is seen and
 * not smoothed over by its neighbours; with one device all threads share all work. Each share reads
 * its expert's weights once for all of its rows; (share x tile of weight rows) is the unit that a
 * device's threads take, so a hot expert is shared by all of them. Reports busy time and service
 * time per layer and expert, and per layer and device, to telemetry, and what each device has still
 * to do while it does it.
 */
#ifndef EK_EXPERT_LOCAL_H
#define EK_EXPERT_LOCAL_H

#include "base/err.h"
#include "expert/dispatch.h"
#include "kernels/kernels.h"
#include "model/desc.h"
#include "sys/pool.h"
#include "telemetry/experts.h"
#include "telemetry/queues.h"

#define EK_EXPERT_LOCAL_DEVICES_MAX 64

/** What a dispatcher is made of; all borrowed until destroy. */
typedef struct ek_expert_local_params {
    const ek_model *model; /* all of its experts lie in this process */
    const ek_kernels *kernels;
    ek_sys_pool *pool; /* its owner thread is the only caller */
    int32_t n_devices; /* 1..EK_EXPERT_LOCAL_DEVICES_MAX; of all work that will be handed over */
    ek_expert_stats *stats;        /* of experts; NULL: not counted */
    ek_expert_stats *device_stats; /* of devices, in the place of experts; NULL: not counted */
    ek_queues *queues;             /* rows that wait at each device; NULL: not counted */
} ek_expert_local_params;

/** First device of a thread; its last one is the first of the next thread, or the same. */
static inline int32_t ek_expert_local_device(int32_t thread_idx, int32_t n_threads,
                                             int32_t n_devices)
{
    return (int32_t)((int64_t)thread_idx * n_devices / n_threads);
}

/** @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_expert_local_create(const ek_expert_local_params *params,
                                         ek_dispatcher **out_dispatcher, ek_err *err);

/* ---- for whoever sums elsewhere (worker/worker.h) ---- */

/**
 * End a layer that was dispatched without summing it up, in the place of combine.
 * @param local of ek_expert_local_create
 * @return (n_rows, d_model) outputs of the work's rows, not weighted; in the memory that dispatch
 *         took out of `step`
 */
const float *ek_expert_local_take_rows(ek_dispatcher *local, const ek_expert_work *work);

/**
 * Time that threads computed for an expert in the last layer, added up; 0 for one without rows, and
 * where nobody counts (stats and device_stats are NULL).
 */
int64_t ek_expert_local_busy_ns(const ek_dispatcher *local, int32_t expert);

#endif
