/*
 * A model whose matrices are packed (kernels/pack.h) in memory of its own, made from an opened one.
 *
 * Packing copies weights once at start: they no longer lie in the page cache, where other processes
 * could share them, but in huge pages, in the order in which kernels want them. What cannot be
 * packed, and the token embeddings, of which single rows are read, stay where they are, so the
 * opened model has to live as long. Results are the same bits either way.
 */
#ifndef EK_EXPERT_PACK_H
#define EK_EXPERT_PACK_H

#include "base/err.h"
#include "kernels/kernels.h"
#include "model/desc.h"
#include "sys/pool.h"

typedef struct ek_packed_model ek_packed_model;

/**
 * Describe the packed model and reserve its memory, without touching it: what is built on the model
 * may take its pointers already.
 * @param model its tensors lie in a file's map; borrowed until destroy
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_expert_pack_create(const ek_model *model, const ek_kernels *kernels,
                                        ek_packed_model **out_packed, ek_err *err);
/** NUMA nodes that experts' weights shall lie on. Borrowed for the call. */
typedef struct ek_expert_homes {
    int32_t n_nodes;            /* of the pool's threads, 1..EK_EXPERT_HOMES_MAX */
    const int32_t *thread_node; /* (threads of the pool) each node has one at least */
    const int32_t *expert_node; /* (n_layers, n_experts) -1: any */
} ek_expert_homes;

#define EK_EXPERT_HOMES_MAX 64

/**
 * Pack, on all threads of the pool; to be called once, before anything is computed. The pages of
 * the map that were read are given back on the way, so that at no time both copies are resident.
 * @param homes an expert's weights are written, and so first touched, by threads of its node; what
 *        is smaller than a huge page may still share one with a neighbour. NULL: by anyone
 */
void ek_expert_pack_run(ek_packed_model *packed, ek_sys_pool *pool, const ek_expert_homes *homes);
/** The same model with packed tensors; lives as long as `packed`. */
const ek_model *ek_expert_pack_model(const ek_packed_model *packed);
/** Accepts NULL. */
void ek_expert_pack_destroy(ek_packed_model *packed);

#endif
