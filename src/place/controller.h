/*
 * When to rebalance: the controller between load counts and whoever moves weights.
 *
 * It is fed with windows of counts and keeps, per layer, the loads (older counts weigh less: halved
 * each half-life) and the last windows themselves. A rebalance is proposed by ek_place_rebalance
 * from the loads, but judged by history: in each of the last windows, what would busiest/mean have
 * been with the new placement, and what was it with the present one? The mean of the differences,
 * less `confidence` standard errors, is the gain that is believed. The list of moves is cut where
 * one more move gains less than it costs, and the rest is carried out only when
 *
 *     gain x rows/s / devices x seconds_per_row x horizon  >  bytes / link_bytes_per_s
 *
 * both sides being seconds that the busiest device works. When traffic changes its kind (drift from
 * the last windows beyond chance, base/drift.h), what was before is forgotten, so that the new kind
 * is judged by its own windows, at least n_windows_min of them.
 *
 * One layer is rebalanced at a time, in steps that an executor asks for, carries out and confirms:
 *
 *     IDLE --decide--> READY --next--> WAITING --confirm--> READY ... --last confirm--> IDLE
 *                        |                |
 *                        +---- fail, timeout, change of devices: IDLE, steps so far stay --+
 *
 * After every step the placement is valid: each expert has a live replica, no device holds an
 * expert twice that did not before. What is not a matter of gain comes first: experts that lost all
 * of their replicas with a device, and shared experts that a returned device lacks.
 *
 * Under traffic that stays the same it converges and lies still: what windows of a few hundred
 * token-slots differ by is mostly chance, and a gain has to stand out from it.
 *
 * Pure: time is an argument and must not run backwards, nothing is allocated after creation, the
 * same calls give the same answers. One thread.
 */
#ifndef EK_PLACE_CONTROLLER_H
#define EK_PLACE_CONTROLLER_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "place/params.h"
#include "place/place.h"
#include "place/rebalance.h"

#define EK_PLACE_CONTROLLER_LAYERS_MAX 1024

typedef struct ek_place_controller ek_place_controller;

/**
 * Busiest device over mean device that a placement comes to for one window of one layer, >= 1.
 * @param tokens      (n_experts)
 * @param slot_expert (n_slots)
 */
typedef double ek_place_balance_fn(const void *ctx, const int32_t *tokens,
                                   const int32_t *slot_expert, ek_arena scratch);

/** What is rebalanced. */
typedef struct ek_place_controller_setup {
    ek_place_topology topology; /* all experts, shared ones too; its arrays are copied */
    int32_t n_layers;
    /*
     * Rebalances leave so many of the hottest experts on two domains at least, and bring them there
     * when they pay; 0: none.
     */
    int32_t spread_hottest;
    ek_place_domain spread_over;
    int32_t n_shared; /* the last of the topology's experts: every token visits them */
    /*
     * true: each live device holds each shared expert and computes it for its own tokens. That
     * takes n_shared slots of every device and adds the same work to all, so these replicas never
     * move, and dilute what there is to gain. false: shared experts are experts like others, only
     * hotter, and get as many replicas as balance needs.
     */
    bool shared_everywhere;
    const int32_t *slot_expert; /* (n_layers, n_slots) present placements; copied */
    /*
     * How tokens are given to replicas, if not in equal parts: a dispatcher that splits each batch
     * evens out part of what a placement leaves, and that part is no reason to move anything.
     */
    ek_place_balance_fn *balance; /* NULL: equal parts */
    const void *balance_ctx;      /* borrowed as long as the controller lives */
    size_t balance_scratch_bytes;
} ek_place_controller_setup;

/** Moves of one layer that are carried out together, in order. */
typedef struct ek_place_step {
    uint64_t id; /* names it to confirm and fail; never 0 */
    int32_t layer;
    const ek_place_move *moves; /* (n_moves); borrowed until the controller's next call */
    int32_t n_moves;
    int32_t n_replicas; /* whose weights move */
    int64_t bytes;
} ek_place_step;

typedef enum ek_place_state {
    EK_PLACE_IDLE,
    EK_PLACE_READY,   /* a rebalance is under way, no step is out */
    EK_PLACE_WAITING, /* a step is out */
} ek_place_state;

/** What came of looking at a layer. The first two begin a rebalance. */
typedef enum ek_place_verdict {
    EK_PLACE_PAYS,
    EK_PLACE_REQUIRED,    /* an expert is lost, or a shared one missing */
    EK_PLACE_NO_ROOM,     /* required, but the live devices have no slot for it */
    EK_PLACE_STALE,       /* the last window is too old */
    EK_PLACE_FEW_WINDOWS, /* less than n_windows_min since traffic changed */
    EK_PLACE_EVEN,        /* perfect balance would gain less than min_gain */
    EK_PLACE_SMALL,       /* the gain is below min_gain, or may be chance */
    EK_PLACE_DEAR,        /* it does not pay for the bytes */
} ek_place_verdict;

typedef struct ek_place_outlook {
    ek_place_verdict verdict;
    int32_t layer;
    double now;      /* busiest/mean of the present placement, mean over the history */
    double then;     /* of the proposed one; = now where nothing is proposed */
    double gain;     /* now - then less `confidence` standard errors */
    double saved_s;  /* of the busiest device's time within the horizon, by that gain */
    double cost_s;   /* of moving */
    int32_t n_moves; /* proposed */
    int32_t n_replicas;
} ek_place_outlook;

typedef struct ek_place_controller_stats {
    ek_place_state state;
    int32_t layer;        /* being rebalanced; -1: none */
    int64_t n_rebalances; /* begun; each ends in one of the next three */
    int64_t n_finished;
    int64_t n_failed;   /* the executor said so, or devices changed */
    int64_t n_timeouts; /* taken back by the watchdog */
    int64_t n_steps;    /* confirmed */
    int64_t n_replicas; /* that those moved */
    int64_t bytes;
    int64_t n_from[EK_PLACE_N_DISTANCES]; /* n_replicas by where the weights came from, nearest */
    int64_t n_reclaimed;                  /* replicas among those that replaced an idle one */
    int64_t n_fresh_starts;               /* of a layer's history */
    int64_t last_commit_us;               /* when a step was last confirmed; -1: never */
    int64_t last_window_us;               /* end of the last window; -1: none yet */
} ek_place_controller_stats;

/** @return EK_OK; EK_EINVAL, the text names what is wrong */
EK_MUST ek_status ek_place_controller_check(const ek_place_controller_setup *setup,
                                            const ek_place_controller_params *params, ek_err *err);

/** Arena bytes that create takes, and scratch bytes of decide, for a setup that check accepts. */
size_t ek_place_controller_bytes(const ek_place_controller_setup *setup,
                                 const ek_place_controller_params *params);
size_t ek_place_controller_scratch_bytes(const ek_place_controller_setup *setup,
                                         const ek_place_controller_params *params);

/** @return EK_OK; EK_EINVAL as check says; EK_ENOMEM perm has less than ..._bytes */
EK_MUST ek_status ek_place_controller_create(const ek_place_controller_setup *setup,
                                             const ek_place_controller_params *params,
                                             ek_arena *perm, ek_place_controller **out_controller,
                                             ek_err *err);

/**
 * A window of counts that ended at now_us; one without any tokens is no news and is left out.
 * @param window_us how long it was, > 0
 * @param tokens    (n_layers, n_experts) token-slots >= 0, those of shared experts too
 * Cost O(n_layers * n_experts * n_windows).
 */
void ek_place_controller_feed(ek_place_controller *controller, int64_t now_us, int64_t window_us,
                              const int64_t *tokens);

/**
 * Look at the layer that loses most and was not looked at since the last window. Called again and
 * again, each call is one layer's work: call until a rebalance begins or none is left.
 * @param scratch ..._scratch_bytes
 * Cost: one ek_place_rebalance, and a measurement per move proposed and window.
 * @return EK_OK (out_outlook says what came of it); EK_END no layer is left to look at; EK_AGAIN a
 *         rebalance is under way; EK_ENOMEM
 */
EK_MUST ek_status ek_place_controller_decide(ek_place_controller *controller, int64_t now_us,
                                             ek_arena scratch, ek_place_outlook *out_outlook);

/** The next step to carry out. @return EK_OK; EK_AGAIN there is none, or one is out already */
EK_MUST ek_status ek_place_controller_next(ek_place_controller *controller, int64_t now_us,
                                           ek_place_step *out_step);

/**
 * The step is done, and the placement is what it makes of it.
 * @return EK_OK; EK_ESTALE no such step is out: it was taken back by the watchdog or a change of
 *         devices. Undo it, or tell by ek_place_controller_adopt what the placement is now.
 */
EK_MUST ek_status ek_place_controller_confirm(ek_place_controller *controller, int64_t now_us,
                                              uint64_t step_id);

/** The step could not be done and left nothing behind: the rebalance ends. @return as confirm */
EK_MUST ek_status ek_place_controller_fail(ek_place_controller *controller, int64_t now_us,
                                           uint64_t step_id);

/**
 * The watchdog, to be called every now and then: an executor that neither asks for the next step
 * nor confirms for step_timeout loses the rebalance. @return whether one was taken back
 */
bool ek_place_controller_watch(ek_place_controller *controller, int64_t now_us);

/**
 * Some devices died or came back; what lay on a dead one is lost, and one that comes back is empty.
 * A rebalance under way ends.
 * @param dead (n_devices); NULL: all are alive
 */
void ek_place_controller_devices(ek_place_controller *controller, int64_t now_us, const bool *dead);

/**
 * Take over what a layer's placement really is. A rebalance of that layer ends.
 * @param slot_expert (n_slots)
 * @return EK_OK; EK_EINVAL an id out of range, something on a dead device, a shared expert twice on
 *         a device or neither there nor room for it; nothing has changed
 */
EK_MUST ek_status ek_place_controller_adopt(ek_place_controller *controller, int64_t now_us,
                                            int32_t layer, const int32_t *slot_expert);

/**
 * Which slots of a layer may not be changed, from the next look at it on: where weights stay, or
 * where there is no memory for any. None at the start. Shared experts that are everywhere need no
 * mention, and cannot have one.
 * @param slot_fixed (n_slots) copied
 */
void ek_place_controller_fix(ek_place_controller *controller, int32_t layer,
                             const bool *slot_fixed);

/** Present placement: (n_slots); borrowed until the controller's next call. */
const int32_t *ek_place_controller_slots(const ek_place_controller *controller, int32_t layer);

/** Loads: (n_experts), decayed sums of token-slots; borrowed until the next call. */
const double *ek_place_controller_loads(const ek_place_controller *controller, int32_t layer);

/**
 * Replicas of a layer that its loads do not ask for. With m the mean load of a live slot, expert e
 * needs ceil(load(e) / m) replicas, at least one; what it has beyond is idle. Idle replicas keep
 * their slots until a hotter expert is worth moving there: weights that lie still cost nothing.
 */
int32_t ek_place_controller_idle(const ek_place_controller *controller, int32_t layer);

void ek_place_controller_stats_get(const ek_place_controller *controller,
                                   ek_place_controller_stats *out_stats);

/** "pays", "required", "no_room", ...: for logs and metric labels. */
const char *ek_place_verdict_name(ek_place_verdict verdict);

#endif
