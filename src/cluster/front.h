/*
 * A front's side of the cluster: it keeps in touch with its workers, and is a dispatcher
 * (expert/dispatch.h) made of them.
 *
 * Threads: one for each worker (cluster/member.h), which joins it, exchanges heartbeats with it and
 * joins it anew when it went; and the engine's, which alone moves data while a layer runs
 * (cluster/dispatch.h). Workers are the devices of the engine's keel, in the order in which they
 * are configured.
 */
#ifndef EK_CLUSTER_FRONT_H
#define EK_CLUSTER_FRONT_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "cluster/params.h"
#include "expert/dispatch.h"
#include "model/desc.h"
#include "telemetry/metrics.h"

#define EK_CLUSTER_ADDRESS_MAX 128
#define EK_CLUSTER_WHY_MAX     256

typedef struct ek_front ek_front;

/**
 * Start to join the workers that params name.
 * @param params     copied; its strings are borrowed until destroy
 * @param model      what is served; borrowed until destroy
 * @param tokens_max most tokens of one dispatch
 * @param metrics    borrowed until destroy; NULL: counted, but seen by nobody
 * @return EK_OK; EK_EINVAL the list of workers; EK_ECONFIG certificates; EK_ENOMEM; EK_EINTERNAL
 */
EK_MUST ek_status ek_cluster_front_create(const ek_cluster_params *params, const ek_model *model,
                                          int32_t tokens_max, ek_metrics *metrics,
                                          ek_front **out_front, ek_err *err);

/**
 * Can serving begin?
 * @param all wait for every worker, else only until each expert has one
 * @return EK_OK; EK_AGAIN not yet, and err says whom or what it waits for
 */
EK_MUST ek_status ek_cluster_front_ready(ek_front *front, bool all, ek_err *err);

int32_t ek_cluster_front_n_workers(const ek_front *front);

/** Slots of each layer that hold what every worker has now, the same number for each worker. */
int32_t ek_cluster_front_n_slots(ek_front *front);
/** What lies in them: (n_layers, n_slots), -1 for nothing. Once ready. */
void ek_cluster_front_slots(ek_front *front, int32_t n_slots, int32_t *out_slot_expert);

/** For ek_engine_params; borrowed until destroy. */
const ek_expert_source *ek_cluster_front_source(ek_front *front);

/* ---- looking at it, and changing it; any thread ---- */

typedef enum ek_member_state {
    EK_MEMBER_ABSENT, /* not joined; `why` says what stands against it */
    EK_MEMBER_SERVING,
    EK_MEMBER_DRAINING, /* gets what nobody else can do */
    EK_MEMBER_LATE,     /* has not answered in time; gets nothing until it has */
} ek_member_state;

/** What a worker acquired beyond what it was started with, and the order under way. */
typedef struct ek_member_moves_report {
    bool is_able;      /* it has room for some */
    int64_t n_experts; /* acquired */
    int64_t room_bytes, used_bytes;
    const char *verb; /* "acquire" or "release"; NULL: nothing is under way */
    int32_t layer;
    int32_t n_wanted, n_done; /* experts of the order */
    int64_t bytes, bytes_all;
    char why[EK_CLUSTER_WHY_MAX]; /* why the last one failed; empty: it did not */
} ek_member_moves_report;

typedef struct ek_member_report {
    char address[EK_CLUSTER_ADDRESS_MAX];
    char why[EK_CLUSTER_WHY_MAX]; /* why it is not serving; else empty */
    char fabric[8];               /* of its data link */
    ek_member_moves_report moves;
    ek_member_state state;
    bool drained; /* by ek_cluster_front_drain */
    uint32_t epoch;
    int32_t n_threads;
    int64_t n_experts; /* of all layers */
    int64_t weight_bytes;
    int64_t heard_ago_us;  /* -1: never */
    int64_t round_trip_us; /* of heartbeats; -1: not known */
    int64_t busy_us;       /* since it started, as it says */
    int32_t queue;
    uint64_t n_dispatches;
    uint64_t bytes_sent, bytes_received;
    uint64_t buffer_reserved_bytes; /* for its messages: address space */
    uint64_t buffer_used_bytes;     /* of that, by a layer at most so far */
    uint64_t n_joined;              /* times */
    int64_t link_latency_us;        /* of the data link's self-test when it joined; -1: not known */
    int64_t link_bytes_per_s;       /* of the same; -1: not known */
} ek_member_report;

/** What has happened to layers and their rows, since start. */
typedef struct ek_front_counts {
    uint64_t redone_rows;   /* computed by another worker than the one that had them first */
    uint64_t degraded_rows; /* left out: nobody had their expert */
    uint64_t failed_layers;
    uint64_t stale_answers;     /* that came when rows were somebody else's */
    uint64_t late_answers;      /* dispatches that were not answered in time */
    uint64_t overlapped_layers; /* that went out while the step's other half was under way */
    uint64_t exchange_us;       /* from dispatches until the last answer was there */
    uint64_t hidden_us;         /* of that, while the front computed something else */
} ek_front_counts;

void ek_cluster_front_report(ek_front *front, int32_t worker, ek_member_report *out_report);

/** What rebalancing is about (cluster/rebalance.h). */
typedef struct ek_rebalance_report {
    const char *verdict; /* of the last look at a layer: "pays", "even", ... (place/controller.h) */
    int32_t verdict_layer;
    double now, then; /* busiest worker over mean there: as it is, and as was proposed */
    int32_t layer;    /* being rebalanced; -1: none */
    int64_t n_rebalances, n_finished, n_failed;
    int64_t n_replicas; /* that were moved */
} ek_rebalance_report;

/** @return false: it does not, or has not enough to go by yet */
bool ek_cluster_front_rebalance(ek_front *front, ek_rebalance_report *out_report);
void ek_cluster_front_counts(ek_front *front, ek_front_counts *out_counts);

const char *ek_cluster_member_state_name(ek_member_state state);

/**
 * Send a worker no more than what nobody else can do, or as much as others again.
 * @param address as configured
 * @return EK_OK; EK_ENOTFOUND no such worker, err lists them
 */
EK_MUST ek_status ek_cluster_front_drain(ek_front *front, const char *address, bool drain,
                                         ek_err *err);

/**
 * Have a worker acquire experts, or release what it acquired; begins now, and goes on until it is
 * so or something else is wanted. From then on this front decides what the worker has.
 * @param experts as link/expert_set.h reads them
 * @return EK_OK; EK_ENOTFOUND no such worker; EK_EINVAL experts, or one that it was started with;
 *         EK_EUNSUPPORTED it acquires none, or is not there, or a placement is under way; EK_EFULL
 *         it has no room for so many;
 *         EK_ENOMEM
 */
EK_MUST ek_status ek_cluster_front_move(ek_front *front, const char *address, const char *experts,
                                        bool release, ek_err *err);

/** Which device of a placement a worker is. */
typedef struct ek_cluster_device {
    const char *worker; /* address, as configured */
    int32_t device;
} ek_cluster_device;

/** A placement for all workers (docs/formats/placement.md); all borrowed for the call. */
typedef struct ek_cluster_placement {
    int32_t n_layers;
    int32_t n_slots;
    const int32_t *slot_expert; /* (n_layers, n_slots) -1: empty; a device's are adjacent */
    int32_t n_named;
    const ek_cluster_device
        *named; /* (n_named) the other workers have the devices left, in order */
} ek_cluster_placement;

/**
 * Have every worker acquire what its device has, and release what else it acquired: layer by layer,
 * what comes before what goes. Begins now; one that is under way gives way. Until it has ended
 * rebalancing stands still, and ek_cluster_front_move is refused.
 * @return EK_OK; EK_EINVAL it does not fit the model or the workers; EK_ENOTFOUND no such worker;
 *         EK_EFULL a worker has no room for its part; EK_EUNSUPPORTED a worker does not serve;
 *         EK_ENOMEM
 */
EK_MUST ek_status ek_cluster_front_place(ek_front *front, const ek_cluster_placement *placement,
                                         ek_err *err);

/** What has become of the placement that was given last. */
typedef struct ek_placement_report {
    uint64_t number;   /* the first one's is 1 */
    const char *state; /* "moving", "done", "failed" */
    int32_t layer;     /* being brought about; -1: it has ended */
    int32_t n_layers;
    int64_t n_acquire, n_acquired; /* experts to come, of all workers and layers; and that came */
    int64_t n_release, n_released;
    int64_t us;                   /* that it takes, or took */
    char why[EK_CLUSTER_WHY_MAX]; /* it has failed; else empty */
} ek_placement_report;

/** @return false: none was given yet */
bool ek_cluster_front_placement(ek_front *front, ek_placement_report *out_report);

/** After the engine. Accepts NULL. */
void ek_cluster_front_destroy(ek_front *front);

#endif
