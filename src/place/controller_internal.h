/*
 * The rebalance controller's state, for its own sources: controller_setup.c makes it, controller.c
 * feeds it and answers questions, controller_decide.c looks for a rebalance, controller_steps.c
 * carries one through.
 */
#ifndef EK_PLACE_CONTROLLER_INTERNAL_H
#define EK_PLACE_CONTROLLER_INTERNAL_H

#include "place/controller.h"

#define EK_PLACE_UNMEASURED (-1.0)
#define EK_PLACE_NEVER      (-1)

typedef struct ek_place_window {
    int64_t end_us;
    int64_t length_us;
} ek_place_window;

typedef struct ek_place_layer_state {
    int64_t first_window;    /* number of the oldest one that the history may use */
    int64_t looked_at;       /* windows there were when this placement was last looked at */
    int64_t paused_until_us; /* after a rebalance, or a vain attempt at one that is required */
    bool is_incomplete;      /* an expert is lost, or a shared one missing on a live device */
} ek_place_layer_state;

/* The rebalance under way. */
typedef struct ek_place_active {
    ek_place_state state;
    int32_t layer;
    ek_place_move *moves; /* (moves_max) */
    int32_t n_moves;
    int32_t n_done; /* moves confirmed */
    int32_t n_out;  /* moves of the step that is out */
    uint64_t step_id;
    int64_t progress_us; /* when it last went on */
} ek_place_active;

struct ek_place_controller {
    ek_place_controller_params params;
    ek_place_topology topology; /* arrays owned */
    ek_place_topology routed;   /* without pinned shared experts and their slots; arrays owned */
    int32_t n_layers;
    int32_t spread_hottest;
    ek_place_domain spread_over;
    int32_t n_pinned; /* shared experts that every live device holds: the last of the topology's */
    int32_t moves_max;
    ek_place_balance_fn *balance;
    const void *balance_ctx;
    size_t balance_scratch_bytes;
    int32_t *slot_beg; /* (n_devices + 1) */
    bool *dead;        /* (n_devices) what both topologies point to */
    bool *fixed;       /* (n_layers, n_slots) */
    bool has_fixed;    /* some may be */

    int32_t *slot_expert;    /* (n_layers, n_slots) */
    double *loads;           /* (n_layers, n_experts) */
    int64_t n_windows;       /* since start; number i lies in place i % params.n_windows */
    ek_place_window *window; /* (params.n_windows) */
    int32_t *tokens;         /* (params.n_windows, n_layers, n_experts) */
    int64_t *rows;           /* (params.n_windows, n_layers) sums of tokens */
    double *now;        /* (params.n_windows, n_layers) busiest/mean of the present placement */
    int64_t *reference; /* (n_experts) working space of feed */
    ek_place_layer_state *layer; /* (n_layers) */
    ek_place_active active;
    ek_place_controller_stats stats;
};

/** Most moves that any rebalance may have. */
int32_t ek_place_controller_moves_max(const ek_place_controller_setup *setup,
                                      const ek_place_controller_params *params);

/** Replicas of a move whose weights have to come from somewhere. */
static inline int32_t ek_place_controller_replicas(const ek_place_move *move)
{
    return move->other_slot >= 0 && move->other_expert >= 0 ? 2 : 1;
}

/** A layer's row of one window's counts. */
static inline const int32_t *ek_place_controller_row(const ek_place_controller *c, int64_t window,
                                                     int32_t layer)
{
    int64_t row = window % c->params.n_windows * c->n_layers + layer;
    return c->tokens + row * c->topology.n_experts;
}

/** Where a figure of a window and layer lies in rows and now. */
static inline int64_t ek_place_controller_cell(const ek_place_controller *c, int64_t window,
                                               int32_t layer)
{
    return window % c->params.n_windows * c->n_layers + layer;
}

/**
 * Is this a placement that the topology allows?
 * @param layer for the error's text
 * @return EK_OK; EK_EINVAL
 */
EK_MUST ek_status ek_place_controller_slots_check(const ek_place_topology *t, int32_t n_pinned,
                                                  int32_t layer, const int32_t *slots, ek_err *err);

/** The oldest window that a layer's history may use; the newest is n_windows - 1. */
int64_t ek_place_controller_oldest(const ek_place_controller *c, int32_t layer);

/** A layer's placement has changed: nothing measured of it holds any more. */
void ek_place_controller_changed(ek_place_controller *c, int32_t layer);

/** Replicas of an expert beyond what its load asks for, never all of them. */
int32_t ek_place_controller_idle_of(const ek_place_controller *c, int32_t layer, int32_t expert);

/** Make a rebalance the one under way; its moves stand in active.moves already. */
void ek_place_controller_begin(ek_place_controller *c, int64_t now_us, int32_t layer,
                               int32_t n_moves);

/** End the rebalance under way and leave its layer alone for a while. */
void ek_place_controller_end(ek_place_controller *c, int64_t now_us);

#endif
