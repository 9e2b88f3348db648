/*
 * A model with everything that a forward pass needs and nothing else: no requests, no sampling, no
 * text. Programs that measure steps set it up and run steps of random tokens: speed and the
 * mechanics of routing are real then, text is not. One thread owns it.
 */
#ifndef EK_BENCH_RIG_H
#define EK_BENCH_RIG_H

#include "base/attr.h"
#include "base/rng.h"
#include "engine/forward.h"
#include "expert/model_file.h"
#include "expert/pack.h"
#include "sys/mem.h"

enum {
    EK_BENCH_RIG_TOKENS = 512,      /* most of one step, and of one sequence */
    EK_BENCH_RIG_SEQS = 64,         /* that decode; one more, the last, prefills */
    EK_BENCH_RIG_SEQ_TOKENS = 64,   /* most of a sequence that decodes */
    EK_BENCH_RIG_BLOCK_TOKENS = 32, /* of the paged cache */
    EK_BENCH_RIG_SEQ_BLOCKS = EK_BENCH_RIG_TOKENS / EK_BENCH_RIG_BLOCK_TOKENS,
};

typedef struct ek_bench_rig_params {
    const char *model_path;
    ek_kernels_choice choice;
    int32_t n_threads;
    bool plain; /* leave weights as they lie in the file */
} ek_bench_rig_params;

/** Zero-initialise, then ek_bench_rig_open. */
typedef struct ek_bench_rig {
    ek_model_file *file; /* all owned */
    ek_packed_model *packed;
    const ek_model *model; /* borrowed from packed or file */
    ek_kernels kernels;
    ek_sys_pool *pool;
    ek_kv *kv;
    ek_router *router;
    ek_dispatcher *dispatcher;
    ek_forward *forward;
    ek_sys_region perm_region;
    float *logits; /* (EK_BENCH_RIG_SEQS, n_vocab) */
    ek_kv_seq seqs[EK_BENCH_RIG_SEQS + 1];
    int32_t blocks[EK_BENCH_RIG_SEQS + 1][EK_BENCH_RIG_SEQ_BLOCKS];
    ek_rng rng; /* draws the tokens */
} ek_bench_rig;

/**
 * @return EK_OK; whatever the parts return; EK_ECONTEXT the model's context is too short. What was
 *         made until then is closed by ek_bench_rig_close.
 */
EK_MUST ek_status ek_bench_rig_open(ek_bench_rig *rig, const ek_bench_rig_params *params,
                                    ek_err *err);
/** Accepts a rig that was opened half or not at all. */
void ek_bench_rig_close(ek_bench_rig *rig);

/**
 * One step: n_tokens random tokens for each of n_seqs sequences from `first` on. Their positions
 * advance; set seqs[i].n_tokens to go back.
 * @param out_ns how long it took; written only on EK_OK
 * @return what the forward pass returned
 */
EK_MUST ek_status ek_bench_rig_step(ek_bench_rig *rig, int32_t first, int32_t n_seqs,
                                    int32_t n_tokens, int64_t *out_ns);

/**
 * n_steps steps of the first n_seqs sequences, or with n_seqs = 0 of the one that prefills, from
 * its beginning each time. A function of its own so that a profiler can count just this.
 * @return what the forward pass returned
 */
EK_MUST ek_status ek_bench_rig_steps(ek_bench_rig *rig, int32_t n_seqs, int32_t n_tokens,
                                     int32_t n_steps);

#endif
