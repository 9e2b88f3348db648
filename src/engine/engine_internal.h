/*
 * What an engine is made of; for the files of this room that implement engine.h.
 *
 * Three groups of state. What create sets is read by everybody and written by nobody afterwards.
 * What users and the step thread exchange is atomic or has its own lock. The rest, ek_crew and
 * ek_step, belongs to the step thread alone.
 */
#ifndef EK_ENGINE_ENGINE_INTERNAL_H
#define EK_ENGINE_ENGINE_INTERNAL_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "engine/cores.h"
#include "engine/engine.h"
#include "engine/evenness.h"
#include "engine/forward.h"
#include "engine/kv.h"
#include "engine/meters.h"
#include "engine/news.h"
#include "engine/recorded.h"
#include "engine/request.h"
#include "expert/dispatch.h"
#include "expert/model_file.h"
#include "expert/pack.h"
#include "kernels/kernels.h"
#include "route/route.h"
#include "sched/pace.h"
#include "sched/sched.h"
#include "sys/mem.h"
#include "sys/pool.h"
#include "sys/queue.h"
#include "sys/thread.h"

/** The step thread's lists. A request that the engine knows is in exactly one of them. */
typedef struct ek_crew {
    ek_request **running; /* (running_max) */
    int32_t n_running;
    ek_request *first_waiting, *last_waiting;   /* by order of arrival */
    ek_request *first_finished, *last_finished; /* since the last delivery */
    int64_t next_order;
    int64_t due_us; /* no waiting request's time is up before this */
    uint32_t
        cancels_seen;    /* of engine->n_cancels, when the waiting ones were last looked through */
    ek_news_item **news; /* (running_max) of running requests, for the next delivery */
    int32_t n_news;
} ek_crew;

/** The step thread's scratch: filled anew in every step. All arrays have running_max entries. */
typedef struct ek_step {
    ek_sched_running *view;
    ek_sched_pick *pick;
    int32_t *preempt;
    ek_batch_seq *seq;
    ek_request **row; /* whose logits row i is */
    ek_sampled *sampled;
    float *logits;             /* (running_max, n_vocab) */
    ek_arena *sampler_scratch; /* (n_threads) */
    ek_sys_ticket ticket;
    int32_t n_rows;
    int32_t n_decode; /* sequences of the step that compute their one next token */
} ek_step;

struct ek_engine {
    /* ---- set by create ---- */
    ek_engine_params params; /* resolved: no zeros that mean "automatic" */
    ek_engine_info info;
    ek_request_shape shape;
    ek_sched_params sched;
    int32_t kv_blocks;
    ek_model_file *file;     /* owned, like all below */
    ek_recorded *recorded;   /* NULL: the model's gate decides */
    ek_packed_model *packed; /* NULL: weights as they lie in the file */
    const ek_model *model;   /* borrowed from packed or file */
    ek_kernels kernels;
    ek_sys_region home;   /* the engine itself */
    ek_sys_region region; /* what needs no destructor */
    ek_sys_pool *pool;
    ek_router *router;
    ek_expert_stats *stats;
    ek_expert_stats *device_stats;
    ek_queues *queues; /* of devices */
    ek_cores cores;
    ek_keel *keel;
    ek_dispatcher *dispatcher;
    ek_kv *kv;
    ek_forward *forward;
    ek_meters meters;

    /* ---- users and step thread ---- */
    ek_sys_queue *inbox; /* of ek_request *, or of the engine itself: a nudge to look around */
    ek_news news;
    _Atomic int32_t n_inflight; /* requests inside, waiting and running */
    _Atomic int32_t n_handles;  /* requests not released yet */
    _Atomic uint32_t n_cancels; /* calls so far */
    _Atomic bool draining;
    _Atomic bool stopping;
    _Atomic bool nudged;           /* a nudge is in the inbox */
    _Atomic int64_t step_start_us; /* of the step that runs; 0: none */

    /* ---- step thread ---- */
    ek_sys_thread thread;
    ek_crew crew;
    ek_step step;
    ek_sched_pace pace; /* what steps cost */
    ek_evenness evenness;
    int64_t tick_us;       /* when the next tick is due */
    bool packing;          /* weights are not all packed yet */
    int64_t pack_us;       /* when packing began */
    int32_t *slot_scratch; /* (n_slots) a layer's placement on its way to the keel */
};

/** Make the step thread look at flags and deadlines soon. Any thread. */
void ek_engine_nudge(ek_engine *engine);

#endif
