/*
 * A model file with everything that the forward pass needs around it, for tests: opened with one
 * call, failing the test where something fails. One thread.
 */
#ifndef EK_TESTS_ENGINE_FORWARD_RIG_H
#define EK_TESTS_ENGINE_FORWARD_RIG_H

#include "engine/forward.h"
#include "sys/file.h"
#include "sys/mem.h"

#define EK_RIG_BLOCKS_PER_SEQ 64

typedef struct ek_rig_params {
    const char *path;
    ek_kernels_choice kernels;
    int32_t n_threads;
    int32_t batch_tokens_max;
    int32_t block_tokens;
    int32_t n_blocks;
    bool prefix_cache;
    ek_route_params route;
    ek_keel_params keel;
    /* Puts something in the dispatcher's place that owns it; NULL: nothing. */
    ek_dispatcher *(*wrap)(ek_dispatcher *dispatcher);
} ek_rig_params;

typedef struct ek_rig {
    ek_sys_map map;
    ek_sys_region region;
    ek_model *model;
    ek_kernels kernels;
    ek_sys_pool *pool;
    ek_kv *kv;
    ek_router *router;
    ek_expert_stats *stats;
    ek_expert_stats *devices;
    ek_keel *keel;
    ek_dispatcher *dispatcher;
    ek_forward *forward;
} ek_rig;

typedef struct ek_rig_seq {
    ek_kv_seq kv;
    int32_t block[EK_RIG_BLOCKS_PER_SEQ];
} ek_rig_seq;

/** One thread, room for some sequences of some hundred tokens. */
ek_rig_params ek_rig_defaults(const char *path);

/** Parts of the rig point to each other, so it stays where it was opened. */
void ek_rig_open(const ek_rig_params *params, ek_rig *rig);
void ek_rig_close(ek_rig *rig);

/** False, with the reason printed, when this machine cannot run the kernels. */
bool ek_rig_has_kernels(ek_kernels_choice kernels);

void ek_rig_seq_init(ek_rig_seq *seq);

/**
 * Compute n tokens at the end of seq, at most `chunk` per step.
 * @param out_logits (n_vocab) of the last one
 */
void ek_rig_feed(ek_rig *rig, ek_rig_seq *seq, const int32_t *tokens, int32_t n, int32_t chunk,
                 float *out_logits);

/** A fresh sequence from tokens alone, freed again. */
void ek_rig_logits(ek_rig *rig, const int32_t *tokens, int32_t n, int32_t chunk, float *out_logits);

/** Index of the highest value, the lowest of equals. */
int32_t ek_rig_argmax(const float *logits, int32_t n);

#endif
