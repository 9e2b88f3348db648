/*
 * A model whose matrices are packed (kernels/pack.h) in memory of its own, made from an opened one.
 *
 * Packing copies weights: they no longer lie in the page cache, where other processes could share
 * them, but in huge pages, in the order in which kernels want them. It takes longer than anything
 * else at start, nearly all of it the system clearing pages; since results are the same bits either
 * way, it can go on behind the first requests, matrix after matrix.
 *
 * What cannot be packed, and the token embeddings, of which single rows are read, stay where they
 * are, so the opened model has to live as long. One owner thread, which also owns the pool.
 */
#ifndef EK_EXPERT_PACK_H
#define EK_EXPERT_PACK_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "kernels/kernels.h"
#include "model/desc.h"
#include "sys/pool.h"

typedef struct ek_packed_model ek_packed_model;

/** A part of a model: what one of several processes computes with. */
typedef struct ek_model_part {
    bool dense; /* all but the routed experts */
    /* (n_layers, ceil(n_experts / 64)) bit e % 64 of word e / 64; NULL: no experts. Borrowed. */
    const uint64_t *experts;
} ek_model_part;

/**
 * Describe the packed model and reserve its memory, without touching it. Until a matrix is packed
 * its tensor is the file's.
 * @param model its tensors lie in a file's map; borrowed until destroy
 * @param part  what is going to be computed with, borrowed until all is packed; what is not in it
 *              must not be touched in the packed model. NULL: all of it
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_expert_pack_create(const ek_model *model, const ek_model_part *part,
                                        const ek_kernels *kernels, ek_packed_model **out_packed,
                                        ek_err *err);

#define EK_EXPERT_HOMES_MAX 64

/** NUMA nodes that experts' weights shall lie on. */
typedef struct ek_expert_homes {
    int32_t n_nodes;            /* of the pool's threads, 1..EK_EXPERT_HOMES_MAX */
    const int32_t *thread_node; /* (threads of the pool) each node has one at least */
    const int32_t *expert_node; /* (n_layers, n_experts) -1: any */
} ek_expert_homes;

/**
 * From now on an expert's weights are written, and so first touched, by threads of its node; what
 * is smaller than a huge page may still share one with a neighbour.
 * @param homes borrowed until everything is packed
 */
void ek_expert_pack_set_homes(ek_packed_model *packed, const ek_expert_homes *homes);

/**
 * Pack on, on all threads of the pool, for about budget_us and at least a little. The pages of the
 * map that were read are given back matrix by matrix, so that at no time both copies are resident.
 * @return whether matrices were completed: the model's tensors say something else from here on, and
 *         whoever copied what they said (ek_expert_mat) has to copy it again
 */
bool ek_expert_pack_some(ek_packed_model *packed, ek_sys_pool *pool, int64_t budget_us);

/** Pack all that is left. */
void ek_expert_pack_run(ek_packed_model *packed, ek_sys_pool *pool);

/**
 * Pack one more expert of a layer, when everything else is packed; `part` need not have it. Any
 * thread, as long as nobody computes with this expert.
 */
void ek_expert_pack_add(ek_packed_model *packed, int32_t layer, int32_t expert);
/** Give its memory back: its packed weights must not be touched any more. Likewise. */
void ek_expert_pack_drop(ek_packed_model *packed, int32_t layer, int32_t expert);

/** Bytes of matrices that can be packed, and of those that are. */
typedef struct ek_pack_progress {
    int64_t total_bytes, packed_bytes;
} ek_pack_progress;

ek_pack_progress ek_expert_pack_progress(const ek_packed_model *packed);

/** The same model, its tensors packed or still the file's; lives as long as `packed`. */
const ek_model *ek_expert_pack_model(const ek_packed_model *packed);
/** Accepts NULL. */
void ek_expert_pack_destroy(ek_packed_model *packed);

#endif
