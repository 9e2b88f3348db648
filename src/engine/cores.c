#include "engine/cores.h"

#include "base/assert.h"
#include "expert/local.h"
#include "sys/mem.h"
#include "sys/topology.h"

/* A device's node, if all of its threads are on one. */
static void find_device_nodes(const ek_engine_params *params, const int32_t *thread_node,
                              int32_t *out_node)
{
    int32_t n_devices = params->keel.n_devices;
    for (int32_t d = 0; d < n_devices; d++) {
        bool is_first = true;
        for (int32_t t = 0; t < params->n_threads; t++) {
            int32_t beg = ek_expert_local_device(t, params->n_threads, n_devices);
            int32_t end = ek_expert_local_device(t + 1, params->n_threads, n_devices);
            if (d < beg || d >= (end > beg ? end : beg + 1)) continue;
            if (is_first)
                out_node[d] = thread_node[t];
            else if (out_node[d] != thread_node[t])
                out_node[d] = -1;
            is_first = false;
        }
    }
}

static int32_t count_nodes(const int32_t *thread_node, int32_t n_threads)
{
    int32_t n = 0;
    for (int32_t t = 0; t < n_threads; t++)
        n = thread_node[t] >= n ? thread_node[t] + 1 : n;
    return n;
}

ek_status ek_engine_cores_open(const ek_engine_params *params, ek_cores *out_cores,
                               ek_sys_pool **out_pool, ek_err *err)
{
    int32_t n_threads = params->n_threads;
    int32_t cpu[EK_CORES_THREADS_MAX], device[EK_CORES_THREADS_MAX];
    ek_sys_topology topology;
    topology.is_here = false;
    ek_assert(n_threads >= 1 && n_threads <= EK_CORES_THREADS_MAX);
    *out_cores = (ek_cores){0};
    if (params->pin_threads) {
        ek_status status = ek_sys_topology_read(NULL, &topology, err);
        if (status != EK_OK) return status;
        for (int32_t t = 0; t < n_threads; t++)
            device[t] = ek_expert_local_device(t, n_threads, params->keel.n_devices);
        ek_sys_topology_spread(&topology, n_threads, device, cpu, out_cores->thread_node);
        find_device_nodes(params, out_cores->thread_node, out_cores->device_node);
        out_cores->n_nodes = count_nodes(out_cores->thread_node, n_threads);
    }
    bool pinned = params->pin_threads && topology.is_here;
    if (ek_sys_pool_create_on(n_threads, pinned ? cpu : NULL, out_pool) == EK_OK) return EK_OK;
    return ek_err_set(err, EK_ENOMEM, "cannot start %d compute threads", (int)n_threads);
}

/* The node of the first device that has each expert of a layer; -1: any. */
static void find_expert_nodes(const ek_cores *cores, const ek_keel *keel, int32_t layer,
                              int32_t n_experts, int32_t *out_node)
{
    const int32_t *slot_expert = ek_keel_slot_expert(keel, layer), *beg = ek_keel_slot_beg(keel);
    for (int32_t e = 0; e < n_experts; e++)
        out_node[e] = -1;
    for (int32_t d = ek_keel_n_devices(keel) - 1; d >= 0; d--)
        for (int32_t s = beg[d]; s < beg[d + 1]; s++)
            if (slot_expert[s] >= 0) out_node[slot_expert[s]] = cores->device_node[d];
}

ek_status ek_engine_cores_set_homes(ek_cores *cores, const ek_keel *keel, ek_packed_model *packed,
                                    ek_err *err)
{
    const ek_model_params *p = &ek_expert_pack_model(packed)->params;
    if (cores->n_nodes < 2 || cores->n_nodes > EK_EXPERT_HOMES_MAX) return EK_OK;
    size_t n = (size_t)p->n_layers * (size_t)p->n_experts;
    cores->expert_node = ek_sys_calloc(n, sizeof *cores->expert_node);
    if (!cores->expert_node) return ek_err_set(err, EK_ENOMEM, "no memory to pack weights by node");
    for (int32_t l = 0; l < p->n_layers; l++)
        find_expert_nodes(cores, keel, l, p->n_experts,
                          cores->expert_node + (int64_t)l * p->n_experts);
    cores->homes = (ek_expert_homes){.n_nodes = cores->n_nodes,
                                     .thread_node = cores->thread_node,
                                     .expert_node = cores->expert_node};
    ek_expert_pack_set_homes(packed, &cores->homes);
    return EK_OK;
}

void ek_engine_cores_close(ek_cores *cores)
{
    ek_sys_free(cores->expert_node);
}
