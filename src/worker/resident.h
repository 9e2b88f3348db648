/*
 * A worker's weights: the experts that it has, opened, packed and read into memory, and the threads
 * that compute with them. Whoever computes holds the one lock here; there is one dispatch at a
 * time, in the order in which they came.
 */
#ifndef EK_WORKER_RESIDENT_H
#define EK_WORKER_RESIDENT_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "expert/dispatch.h"
#include "expert/model_file.h"
#include "expert/pack.h"
#include "kernels/kernels.h"
#include "link/expert_set.h"
#include "link/wire.h"
#include "store/carrier.h"
#include "store/manifest.h"
#include "sys/mem.h"
#include "sys/pool.h"
#include "sys/thread.h"
#include "telemetry/experts.h"
#include "worker/pace.h"

/** What experts are loaded from and computed with. */
typedef struct ek_resident_setup {
    ek_model_file *file; /* borrowed until close */
    ek_expert_set set;   /* what it has from the start; its bits are borrowed until close */
    ek_kernels_choice kernels;
    int32_t n_threads;
    bool pin_threads;
    bool pack_weights;
    ek_worker_pace pace;
    /* (EK_IDENTITY_BYTES) of the whole model, from its manifest, where the file may have holes.
     * NULL: computed from the file. Borrowed. */
    const uint8_t *identity;
    /* What experts that come later are read by (worker/acquire.h); all borrowed until close. */
    const char *model_path;
    const ek_store_manifest *manifest; /* NULL: the file is taken for whole */
    ek_store_access access;
} ek_resident_setup;

typedef struct ek_resident {
    ek_resident_setup setup;
    const ek_model *model; /* borrowed from packed or the file */
    ek_kernels kernels;
    ek_packed_model *packed; /* owned, like all below; NULL: computed from the map */
    ek_sys_pool *pool;
    ek_expert_stats *stats;
    ek_dispatcher *dispatcher; /* local, one device */
    ek_sys_region region;      /* of stats */
    bool x_int8;               /* some gate or up matrix reads int8 */
    int64_t expert_bytes;
    int64_t load_us;

    ek_sys_mutex lock; /* whoever computes */
    ek_sys_cond turn;
    uint64_t next_ticket, serving; /* under lock: dispatches go in the order of their tickets */
    ek_expert_set held;            /* under lock: what can be computed; its bits are owned */
    ek_pace pace;                  /* of whoever's turn it is */
    _Atomic uint32_t n_waiting;
    _Atomic uint64_t busy_us;
    _Atomic int64_t computing_since_us; /* the dispatch whose turn it is; 0: none */
} ek_resident;

/**
 * Load. Takes as long as reading the experts takes.
 * @return EK_OK; EK_ENOMEM; EK_EUNSUPPORTED the kernels do not run here
 */
EK_MUST ek_status ek_worker_resident_open(const ek_resident_setup *setup, ek_resident *out_resident,
                                          ek_err *err);
/** Accepts a zeroed or half-opened one. */
void ek_worker_resident_close(ek_resident *resident);

/** One front's buffers, for dispatches of its shape. One thread's. */
typedef struct ek_resident_desk {
    ek_wire_shape shape;
    uint8_t *body; /* (dispatch_bytes_max) a received dispatch */
    size_t body_bytes;
    uint8_t *out;       /* (combine_bytes_max) an answer that is not sent from where it lies */
    uint32_t *share_us; /* (n_experts) */
    int32_t *lists;     /* expert_beg, share_row, row_of */
    float *weight;      /* (tokens_max, top_k) */
    void *act;          /* (act_bytes) */
    size_t act_bytes;
    void *step; /* (step_bytes) of the dispatcher */
    size_t step_bytes;
    ek_sys_region region; /* owned */
} ek_resident_desk;

/** @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_worker_resident_desk_open(const ek_resident *resident,
                                               const ek_wire_shape *shape,
                                               ek_resident_desk *out_desk);
/** Accepts a zeroed one. */
void ek_worker_resident_desk_close(ek_resident_desk *desk);

/**
 * Compute the dispatch that lies in desk->body; any thread, waits for its turn.
 * @param out_header of the answer, but for epoch and load report
 * @param out_parts  the answer's body, in the desk's memory until its next dispatch
 * @return EK_OK; EK_EFORMAT the dispatch is not well-formed, or for experts that are not here;
 *         EK_ENOMEM
 */
EK_MUST ek_status ek_worker_resident_compute(ek_resident *resident, ek_resident_desk *desk,
                                             const ek_wire_header *header,
                                             ek_wire_header *out_header, ek_span out_parts[2],
                                             ek_err *err);

/* ---- experts that come and go, while others are computed; one thread (resident_moves.c) ---- */

/** Bytes of one expert's weights in a layer. */
int64_t ek_worker_resident_bytes(const ek_resident *resident, int32_t layer);

/** Read and pack an expert whose bytes are in the model's file; from then on it is computed. */
void ek_worker_resident_add(ek_resident *resident, int32_t layer, int32_t expert);

/** Wait until no dispatch uses it any more, and give its memory back. Not of the setup's set. */
void ek_worker_resident_drop(ek_resident *resident, int32_t layer, int32_t expert);

#endif
