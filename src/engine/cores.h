/*
 * Where compute threads run: how pinned threads lie on cores and NUMA nodes, and with them devices.
 *
 * Read once, when the engine is made; constant afterwards.
 */
#ifndef EK_ENGINE_CORES_H
#define EK_ENGINE_CORES_H

#include <stdint.h>

#include "base/err.h"
#include "engine/params.h"
#include "expert/pack.h"
#include "keel/keel.h"
#include "sys/pool.h"

#define EK_CORES_THREADS_MAX 1024

typedef struct ek_cores {
    int32_t n_nodes; /* NUMA nodes that the threads lie on; 0: they are not pinned */
    int32_t thread_node[EK_CORES_THREADS_MAX]; /* (threads) */
    int32_t device_node[EK_KEEL_DEVICES_MAX];  /* (devices) -1: on several */
    int32_t *expert_node;                      /* owned (n_layers, n_experts); NULL: no homes */
    ek_expert_homes homes;
} ek_cores;

/**
 * Start the pool, its threads pinned if the params say so: a device's on one node where that is
 * possible, a core each before two on one. Of a machine that is only described (HWLOC_SYNTHETIC)
 * the layout is made, and nothing is pinned.
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_engine_cores_open(const ek_engine_params *params, ek_cores *out_cores,
                                       ek_sys_pool **out_pool, ek_err *err);

/**
 * Where threads lie on several nodes, have an expert's packed weights first touched on that of the
 * first device that has it when serving begins; rebalancing does not move them.
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_engine_cores_set_homes(ek_cores *cores, const ek_keel *keel,
                                            ek_packed_model *packed, ek_err *err);

/** Of a zeroed one, too. What was packed with its homes is packed, or never will be. */
void ek_engine_cores_close(ek_cores *cores);

#endif
