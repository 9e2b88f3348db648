#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "place/controller_internal.h"
#include "place/part.h"

#define US_PER_S 1e6

/* Steps that put lost experts back are wanted from ek_place_rebalance, but no improvement. */
#define ANY_BALANCE 1e30

/*
 * Replicas of hot experts are what a dispatcher evens batches out with, so more of them are asked
 * for where there is one. Measured (bench/rebalance).
 */
#define COPY_WORTH_SPLIT 2.0
#define COPY_WORTH_EQUAL 1.0

/* One look at a layer. */
typedef struct look {
    ek_place_controller *c;
    int32_t layer;
    int64_t oldest; /* window of the history */
    int32_t n_windows;
    int32_t *slots;       /* (n_slots) the placement as moves are tried on it */
    ek_place_move *moves; /* (moves_max) proposed, in the whole topology's numbers */
    int32_t n_moves;
    int32_t n_replicas;
} look;

/* Busiest over mean device in one window. */
static double balance_of(const ek_place_controller *c, int32_t layer, int64_t window,
                         const int32_t *slots, ek_arena scratch)
{
    const int32_t *tokens = ek_place_controller_row(c, window, layer);
    if (c->balance) return c->balance(c->balance_ctx, tokens, slots, scratch);
    double *loads = ek_new(&scratch, double, c->topology.n_experts);
    for (int32_t e = 0; e < c->topology.n_experts; e++)
        loads[e] = tokens[e];
    ek_place_balance b;
    ek_status status = ek_place_measure(&c->topology, loads, slots, scratch, &b);
    ek_assert(status == EK_OK); /* the layer is complete, and every move leaves it so */
    return b.max_over_mean;
}

/* The same of the present placement, which is measured once. */
static double balance_now(ek_place_controller *c, int32_t layer, int64_t window, ek_arena scratch)
{
    double *now = &c->now[ek_place_controller_cell(c, window, layer)];
    if (*now == EK_PLACE_UNMEASURED)
        *now = balance_of(c, layer, window, ek_place_controller_slots(c, layer), scratch);
    return *now;
}

static bool has_rows(const ek_place_controller *c, int32_t layer, int64_t window)
{
    return c->rows[ek_place_controller_cell(c, window, layer)] > 0;
}

/* ---- which layer ---- */

/* Rows that a layer's busiest device worked through while others waited, per window. */
static double lost_rows(ek_place_controller *c, int32_t layer, ek_arena scratch)
{
    double lost = 0.0;
    int32_t n = 0;
    for (int64_t w = ek_place_controller_oldest(c, layer); w < c->n_windows; w++) {
        if (!has_rows(c, layer, w)) continue;
        double rows = (double)c->rows[ek_place_controller_cell(c, w, layer)];
        lost += (balance_now(c, layer, w, scratch) - 1.0) * rows;
        n++;
    }
    return n > 0 ? lost / n : 0.0;
}

/* The incomplete layers first, then whoever loses most; -1: none is to be looked at. */
static int32_t pick_layer(ek_place_controller *c, int64_t now_us, ek_arena scratch)
{
    int32_t worst = -1;
    double most = -1.0;
    for (int32_t l = 0; l < c->n_layers; l++) {
        const ek_place_layer_state *state = &c->layer[l];
        if (now_us < state->paused_until_us) continue;
        if (state->is_incomplete) return l;
        if (state->looked_at >= c->n_windows) continue;
        double lost = lost_rows(c, l, scratch);
        if (lost > most) {
            most = lost;
            worst = l;
        }
    }
    return worst;
}

/* ---- what is required ---- */

/* A copy of each missing shared expert into an empty slot of its device. */
static void propose_shared(look *k)
{
    const ek_place_controller *c = k->c;
    for (int32_t d = 0; d < c->topology.n_devices; d++) {
        if (c->dead[d]) continue;
        for (int32_t e = c->routed.n_experts; e < c->topology.n_experts; e++) {
            int32_t empty = -1;
            bool held = false;
            for (int32_t s = c->slot_beg[d]; s < c->slot_beg[d + 1]; s++) {
                held = held || k->slots[s] == e;
                if (k->slots[s] < 0 && empty < 0) empty = s;
            }
            if (held) continue;
            ek_assert(empty >= 0); /* what a device must have been given with, or come back as */
            k->slots[empty] = e;
            k->moves[k->n_moves++] = (ek_place_move){empty, e, -1, -1};
            k->n_replicas++;
        }
    }
}

/* Slots of the routed topology in the whole one's numbers, and what lies in them. */
static void routed_slots(const look *k, int32_t *out_slot, int32_t *out_expert)
{
    const ek_place_controller *c = k->c;
    for (int32_t d = 0, n = 0; d < c->topology.n_devices; d++) {
        int32_t end = n + c->routed.device_slots[d];
        for (int32_t s = c->slot_beg[d]; n < end; s++) {
            if (k->slots[s] >= c->routed.n_experts) continue;
            out_slot[n] = s;
            out_expert[n++] = k->slots[s];
        }
    }
}

/* Ask for moves of the routed experts; they are appended in the whole topology's numbers. */
static ek_status propose(look *k, double target, int32_t max_replicas, ek_arena scratch)
{
    const ek_place_controller *c = k->c;
    const ek_place_move_params params = {
        .target = target,
        .max_moves = max_replicas,
        .copy_worth = c->balance ? COPY_WORTH_SPLIT : COPY_WORTH_EQUAL,
        .spread_hottest = c->spread_hottest,
        .spread_over = c->spread_over,
    };
    int32_t *slot = ek_new(&scratch, int32_t, c->routed.n_slots);
    int32_t *expert = ek_new(&scratch, int32_t, c->routed.n_slots);
    int32_t n_moves, n_replicas;
    ek_place_balance reached;
    routed_slots(k, slot, expert);
    ek_place_topology routed = c->routed;
    if (c->has_fixed) routed.slot_fixed = c->fixed + (int64_t)k->layer * c->topology.n_slots;
    ek_status status =
        ek_place_rebalance(&routed, &params, ek_place_controller_loads(c, k->layer), scratch,
                           expert, k->moves + k->n_moves, &n_moves, &n_replicas, &reached);
    if (status != EK_OK) return status;
    for (int32_t i = k->n_moves; i < k->n_moves + n_moves; i++) {
        k->moves[i].slot = slot[k->moves[i].slot];
        if (k->moves[i].other_slot >= 0) k->moves[i].other_slot = slot[k->moves[i].other_slot];
    }
    k->n_moves += n_moves;
    k->n_replicas += n_replicas;
    return EK_OK;
}

static int32_t lost_experts(const look *k)
{
    bool seen[EK_PLACE_EXPERTS_MAX] = {false};
    int32_t n_lost = 0;
    for (int32_t s = 0; s < k->c->topology.n_slots; s++)
        if (k->slots[s] >= 0) seen[k->slots[s]] = true;
    for (int32_t e = 0; e < k->c->routed.n_experts; e++)
        n_lost += !seen[e];
    return n_lost;
}

static ek_place_verdict look_at_incomplete(look *k, int64_t now_us, ek_arena scratch,
                                           ek_place_outlook *out)
{
    ek_place_controller *c = k->c;
    propose_shared(k);
    int32_t n_lost = lost_experts(k);
    /* On error nothing was appended: what lacks room can wait, a shared expert need not. */
    ek_status status = n_lost > 0 ? propose(k, ANY_BALANCE, n_lost, scratch) : EK_OK;
    ek_assert(status == EK_OK || status == EK_EINVAL);
    if (k->n_moves == 0) {
        c->layer[k->layer].paused_until_us = now_us + c->params.pause_us;
        return EK_PLACE_NO_ROOM;
    }
    out->n_moves = k->n_moves;
    out->n_replicas = k->n_replicas;
    out->cost_s =
        (double)k->n_replicas * (double)c->params.bytes_per_expert / c->params.link_bytes_per_s;
    return EK_PLACE_REQUIRED;
}

/* ---- what pays ---- */

/* Gains of one proposal over the windows of the history. */
typedef struct gains {
    double mean;
    double believed; /* less the standard errors asked for */
    double then;     /* mean of busiest/mean itself */
} gains;

static gains gains_of(look *k, ek_arena scratch)
{
    ek_place_controller *c = k->c;
    double sum = 0.0, squares = 0.0, then_sum = 0.0;
    for (int64_t w = k->oldest; w < c->n_windows; w++) {
        if (!has_rows(c, k->layer, w)) continue;
        double then = balance_of(c, k->layer, w, k->slots, scratch);
        double gain = balance_now(c, k->layer, w, scratch) - then;
        sum += gain;
        squares += gain * gain;
        then_sum += then;
    }
    double n = k->n_windows, mean = sum / n;
    /* One window says nothing about chance: its gain is believed as it is. */
    double variance = n > 1.0 ? fmax(0.0, squares - n * mean * mean) / (n - 1.0) : 0.0;
    return (gains){mean, mean - c->params.confidence * sqrt(variance / n), then_sum / n};
}

/* Seconds of the busiest device within the horizon, per unit of busiest/mean. */
static double seconds_of_balance(const look *k)
{
    const ek_place_controller *c = k->c;
    double rows = 0.0, us = 0.0;
    for (int64_t w = k->oldest; w < c->n_windows; w++) {
        rows += (double)c->rows[ek_place_controller_cell(c, w, k->layer)];
        us += (double)c->window[w % c->params.n_windows].length_us;
    }
    double share_of_time =
        rows / us * US_PER_S / ek_place_live_devices(&c->topology) * c->params.seconds_per_row;
    return share_of_time * ((double)c->params.horizon_us / US_PER_S);
}

/* Seconds for which replicas on their way disturb devices, by where they come from. */
static double seconds_of_moves(const ek_place_controller_params *p,
                               const int64_t n_from[EK_PLACE_N_DISTANCES])
{
    double rack = p->rack_bytes_per_s > 0.0 ? p->rack_bytes_per_s : p->link_bytes_per_s;
    double far = p->far_bytes_per_s > 0.0 ? p->far_bytes_per_s : rack;
    double bytes = (double)p->bytes_per_expert;
    int64_t n_near = n_from[EK_PLACE_SAME_DEVICE] + n_from[EK_PLACE_SAME_NODE];
    int64_t n_far = n_from[EK_PLACE_ACROSS_RACKS] + n_from[EK_PLACE_FROM_STORAGE];
    return (double)n_near * (bytes / p->link_bytes_per_s) +
           (double)n_from[EK_PLACE_SAME_RACK] * (bytes / rack) + (double)n_far * (bytes / far);
}

/*
 * Carry the proposed moves out one after the other and keep as many as leave most after their
 * cost. All of them are tried: a move that costs may be what the next one builds on.
 */
static void weigh(look *k, ek_arena scratch, ek_place_outlook *out)
{
    const ek_place_controller *c = k->c;
    double worth = seconds_of_balance(k), best = 0.0;
    int64_t n_from[EK_PLACE_N_DISTANCES] = {0};
    int32_t n_replicas = 0;
    for (int32_t i = 0; i < k->n_moves; i++) {
        ek_place_moves_apply(&c->topology, &k->moves[i], 1, k->slots, n_from);
        n_replicas += ek_place_controller_replicas(&k->moves[i]);
        gains g = gains_of(k, scratch);
        double cost = seconds_of_moves(&c->params, n_from), left = g.mean * worth - cost;
        if (i > 0 && left <= best) continue;
        best = left;
        out->then = g.then;
        out->gain = g.believed;
        out->saved_s = g.believed * worth;
        out->cost_s = cost;
        out->n_moves = i + 1;
        out->n_replicas = n_replicas;
    }
}

static ek_place_verdict look_at_complete(look *k, int64_t now_us, ek_arena scratch,
                                         ek_place_outlook *out)
{
    ek_place_controller *c = k->c;
    const ek_place_controller_params *p = &c->params;
    c->layer[k->layer].looked_at = c->n_windows;
    if (c->n_windows > 0 && now_us - c->stats.last_window_us > p->stale_us) return EK_PLACE_STALE;
    double now = 0.0;
    for (int64_t w = k->oldest; w < c->n_windows; w++) {
        if (!has_rows(c, k->layer, w)) continue;
        now += balance_now(c, k->layer, w, scratch);
        k->n_windows++;
    }
    if (k->n_windows < p->n_windows_min) return EK_PLACE_FEW_WINDOWS;
    out->now = out->then = now / k->n_windows;
    if (out->now - 1.0 <= p->min_gain) return EK_PLACE_EVEN;
    ek_status status = propose(k, p->target, p->max_replicas, scratch);
    ek_assert(status == EK_OK);
    if (k->n_moves == 0) return EK_PLACE_SMALL;
    weigh(k, scratch, out);
    if (out->gain < p->min_gain || out->gain <= 0.0) return EK_PLACE_SMALL;
    return out->saved_s > out->cost_s ? EK_PLACE_PAYS : EK_PLACE_DEAR;
}

size_t ek_place_controller_scratch_bytes(const ek_place_controller_setup *setup,
                                         const ek_place_controller_params *params)
{
    const ek_place_topology *t = &setup->topology;
    size_t slots = (size_t)t->n_slots, experts = (size_t)t->n_experts;
    /* ek_place_measure: three arrays; the loads that it is given. */
    size_t measure = experts * (2 * sizeof(int32_t) + 2 * sizeof(double)) + 4 * EK_CACHE_LINE;
    size_t balance = setup->balance ? setup->balance_scratch_bytes : 0;
    size_t moves = (size_t)ek_place_controller_moves_max(setup, params) + 1;
    return ek_place_rebalance_bytes(t) + 3 * slots * sizeof(int32_t) +
           moves * sizeof(ek_place_move) + (measure > balance ? measure : balance) +
           8 * EK_CACHE_LINE;
}

/* The same for a controller that is there. */
static size_t scratch_needed(const ek_place_controller *c)
{
    const ek_place_controller_setup setup = {
        .topology = c->topology,
        .n_layers = c->n_layers,
        .n_shared = c->n_pinned,
        .shared_everywhere = true,
        .balance = c->balance,
        .balance_scratch_bytes = c->balance_scratch_bytes,
    };
    return ek_place_controller_scratch_bytes(&setup, &c->params);
}

ek_status ek_place_controller_decide(ek_place_controller *c, int64_t now_us, ek_arena scratch,
                                     ek_place_outlook *out_outlook)
{
    if (c->active.state != EK_PLACE_IDLE) return EK_AGAIN;
    if (ek_arena_free_bytes(&scratch) < scratch_needed(c)) return EK_ENOMEM;
    look k = {.c = c, .layer = pick_layer(c, now_us, scratch)};
    if (k.layer < 0) return EK_END;
    k.oldest = ek_place_controller_oldest(c, k.layer);
    k.slots = ek_new(&scratch, int32_t, c->topology.n_slots);
    k.moves = ek_new(&scratch, ek_place_move, c->moves_max + 1);
    memcpy(k.slots, ek_place_controller_slots(c, k.layer),
           (size_t)c->topology.n_slots * sizeof *k.slots);
    ek_place_outlook outlook = {.layer = k.layer};
    outlook.verdict = c->layer[k.layer].is_incomplete
                          ? look_at_incomplete(&k, now_us, scratch, &outlook)
                          : look_at_complete(&k, now_us, scratch, &outlook);
    if (outlook.verdict == EK_PLACE_PAYS || outlook.verdict == EK_PLACE_REQUIRED) {
        memcpy(c->active.moves, k.moves, (size_t)outlook.n_moves * sizeof *k.moves);
        ek_place_controller_begin(c, now_us, k.layer, outlook.n_moves);
    }
    *out_outlook = outlook;
    return EK_OK;
}
