#include "place/rebalance.h"

#include <math.h>
#include <string.h>

#include "place/mover.h"
#include "place/part.h"

#define COPY_WORTH 0.65f
#define BAND_MAX   0.05 /* half of what a target leaves, and at most this, is as good as even */

/*
 * Experts without a live replica come first, hottest first: into an empty slot, or in place of a
 * replica that can be spared, wherever the device ends up lightest. @return false when max_moves do
 * not suffice
 */
static bool restore_lost(ek_place_mover *m)
{
    ek_place_core *core = &m->core;
    for (int32_t i = 0; i < core->n_experts; i++) {
        int32_t e = core->order[i];
        if (core->count[e] > 0) continue;
        int32_t slot = -1;
        double lightest = INFINITY;
        for (int32_t s = 0; s < core->n_slots; s++) {
            int32_t old = core->slot_expert[s];
            double rest = core->device_load[core->slot_device[s]] - (double)core->slot_load[s];
            if (core->fixed && core->fixed[s]) continue;
            if ((old < 0 || core->count[old] > 1) && rest < lightest) {
                lightest = rest;
                slot = s;
            }
        }
        if (slot < 0 || m->n_replicas == m->max_moves) return false;
        ek_place_mover_copy(m, slot, e);
    }
    return true;
}

static void mover_init(ek_place_mover *m, ek_place_part *part, const ek_place_move_params *params,
                       bool may_spread, const int32_t *slot_expert, const bool *slot_fixed,
                       const int32_t *local_of, ek_arena *perm)
{
    bool spread = params->spread_hottest > 0 && may_spread;
    double total = 0.0;
    for (int32_t e = 0; e < part->n_experts; e++)
        total += part->load[e];
    ek_place_core *core = &m->core;
    for (int32_t e = 0; e < part->n_experts && total > 0.0; e++)
        part->load[e] *= part->n_devices / total;
    *core = (ek_place_core){
        .n_experts = part->n_experts,
        .n_devices = part->n_devices,
        .n_slots = part->slot_beg[part->n_devices],
        .load = part->load,
        .slot_beg = part->slot_beg,
        .mean = 1.0,
        .domain_of = spread ? part->domain : NULL,
        .n_spread = !spread                                    ? 0
                    : params->spread_hottest < part->n_experts ? params->spread_hottest
                                                               : part->n_experts,
    };
    ek_place_core_init(core, perm);
    bool *fixed = slot_fixed ? ek_new(perm, bool, core->n_slots) : NULL;
    core->fixed = fixed;
    for (int32_t d = 0; d < part->n_devices; d++)
        for (int32_t s = core->slot_beg[d]; s < core->slot_beg[d + 1]; s++) {
            int32_t e = slot_expert[part->slot[d] + s - core->slot_beg[d]];
            core->slot_expert[s] = e >= 0 ? local_of[e] : EK_PLACE_EMPTY;
            if (e >= 0) core->count[local_of[e]]++;
            if (fixed) fixed[s] = slot_fixed[part->slot[d] + s - core->slot_beg[d]];
        }
    m->limit = params->target;
    m->copy_worth = params->copy_worth > 0.0 ? (float)params->copy_worth : COPY_WORTH;
    m->band = (float)fmin((params->target - 1.0) / 2.0, BAND_MAX);
    ek_place_mover_init(m, perm);
}

/* The part's new steps in the caller's numbering. */
static void write_moves(const ek_place_part *part, const ek_place_mover *m, ek_place_move *out)
{
    const ek_place_core *core = &m->core;
    for (int32_t i = 0; i < m->n_moves; i++) {
        ek_place_move move = m->moves[i];
        int32_t d = core->slot_device[move.slot];
        out[i] = (ek_place_move){part->slot[d] + move.slot - core->slot_beg[d],
                                 part->expert[move.expert], -1, -1};
        if (move.other_slot < 0) continue;
        d = core->slot_device[move.other_slot];
        out[i].other_slot = part->slot[d] + move.other_slot - core->slot_beg[d];
        out[i].other_expert =
            move.other_expert >= 0 ? part->expert[move.other_expert] : EK_PLACE_EMPTY;
    }
}

/* The node with the fewest experts: where a group goes of which nothing is left. */
static int32_t emptiest_node(const ek_place_topology *t, const int32_t *node_of)
{
    int32_t best = 0, fewest = INT32_MAX;
    for (int32_t node = 0; node < t->n_nodes; node++) {
        int32_t n = 0;
        for (int32_t e = 0; e < t->n_experts; e++)
            n += node_of[e] == node;
        if (n < fewest) {
            fewest = n;
            best = node;
        }
    }
    return best;
}

/*
 * Node of each expert for a hierarchical topology: where its replicas lie, live or dead; where the
 * others of its group are, if it has none.
 */
static void experts_nodes(const ek_place_topology *t, const int32_t *slot_expert, int32_t *out_node)
{
    for (int32_t e = 0; e < t->n_experts; e++)
        out_node[e] = -1;
    for (int32_t d = 0, slot = 0; d < t->n_devices; d++)
        for (int32_t n = ek_place_slots_of(t, d); n > 0; n--, slot++)
            if (slot_expert[slot] >= 0) out_node[slot_expert[slot]] = ek_place_node_of(t, d);
    int32_t n_groups = t->n_groups > 1 ? t->n_groups : 1, per_group = t->n_experts / n_groups;
    for (int32_t beg = 0; beg < t->n_experts; beg += per_group) {
        int32_t node = -1;
        for (int32_t e = beg; e < beg + per_group; e++)
            node = out_node[e] >= 0 ? out_node[e] : node;
        if (node < 0) node = emptiest_node(t, out_node);
        for (int32_t e = beg; e < beg + per_group; e++)
            out_node[e] = out_node[e] >= 0 ? out_node[e] : node;
    }
}

size_t ek_place_rebalance_bytes(const ek_place_topology *t)
{
    size_t slots = (size_t)t->n_slots, experts = (size_t)t->n_experts;
    int32_t most = t->n_slots * EK_PLACE_MOVES_PER_SLOT;
    return ek_place_core_bytes(t->n_experts, t->n_slots, t->n_devices) + ek_place_part_bytes(t) +
           ek_place_mover_bytes(t->n_experts, t->n_slots, t->n_devices, most) +
           sizeof(int32_t) * (2 * experts + slots) + sizeof(ek_place_move) * ((size_t)most + 1) +
           slots * sizeof(bool) + 17 * EK_CACHE_LINE;
}

static ek_status check_slots(const ek_place_topology *t, const int32_t *slot_expert)
{
    for (int32_t s = 0; s < t->n_slots; s++)
        if (slot_expert[s] < EK_PLACE_EMPTY || slot_expert[s] >= t->n_experts) return EK_EINVAL;
    return EK_OK;
}

typedef struct outcome {
    ek_place_move *moves;
    int32_t n_moves;
    int32_t n_replicas;
    int32_t *slot_expert; /* (n_slots) caller's numbering */
} outcome;

static ek_status rebalance_part(const ek_place_topology *t, const ek_place_move_params *params,
                                const double *loads, const int32_t *node_of_expert, int32_t node,
                                ek_arena scratch, outcome *out)
{
    ek_place_part part;
    ek_place_part_init(&part, t, node, params->spread_over, &scratch);
    int32_t *local_of = ek_new(&scratch, int32_t, t->n_experts);
    for (int32_t e = 0; e < t->n_experts; e++) {
        local_of[e] = part.n_experts;
        if (node < 0 || node_of_expert[e] == node) ek_place_part_add_expert(&part, e, loads[e]);
    }
    if (part.n_experts == 0) return EK_OK;
    ek_place_mover m = {.max_moves = params->max_moves - out->n_replicas};
    mover_init(&m, &part, params, node < 0, out->slot_expert, t->slot_fixed, local_of, &scratch);
    if (!restore_lost(&m)) return EK_EINVAL;
    if (m.core.n_spread > 0) ek_place_mover_spread(&m);
    ek_place_mover_run(&m);
    write_moves(&part, &m, out->moves + out->n_moves);
    ek_place_part_write(&part, m.core.slot_expert, out->slot_expert);
    out->n_moves += m.n_moves;
    out->n_replicas += m.n_replicas;
    return EK_OK;
}

ek_status ek_place_rebalance(const ek_place_topology *t, const ek_place_move_params *params,
                             const double *loads, ek_arena scratch, int32_t *slot_expert,
                             ek_place_move *out_moves, int32_t *out_n_moves,
                             int32_t *out_n_replicas, ek_place_balance *out_balance)
{
    ek_place_params solve;
    ek_place_params_default(&solve);
    ek_status status = ek_place_check(t, &solve, NULL);
    if (status == EK_OK) status = check_slots(t, slot_expert);
    for (int32_t e = 0; status == EK_OK && e < t->n_experts; e++)
        if (!(loads[e] >= 0.0) || !isfinite(loads[e])) status = EK_EINVAL;
    if (status != EK_OK || params->max_moves < 0 || !(params->target >= 1.0) ||
        !(params->copy_worth >= 0.0) || params->spread_hottest < 0)
        return EK_EINVAL;
    if (ek_arena_free_bytes(&scratch) < ek_place_rebalance_bytes(t)) return EK_ENOMEM;
    ek_place_move_params bounded = *params;
    int32_t most = t->n_slots * EK_PLACE_MOVES_PER_SLOT;
    bounded.max_moves = params->max_moves < most ? params->max_moves : most;
    int32_t *node_of_expert = ek_new(&scratch, int32_t, t->n_experts);
    outcome out = {.slot_expert = ek_new(&scratch, int32_t, t->n_slots),
                   .moves = ek_new(&scratch, ek_place_move, bounded.max_moves + 1)};
    for (int32_t d = 0, s = 0; d < t->n_devices; d++)
        for (int32_t n = ek_place_slots_of(t, d); n > 0; n--, s++)
            out.slot_expert[s] = ek_place_is_dead(t, d) ? EK_PLACE_EMPTY : slot_expert[s];
    bool grouped = t->n_groups > 1;
    experts_nodes(t, slot_expert, node_of_expert);
    for (int32_t node = grouped ? 0 : -1; node < (grouped ? t->n_nodes : 0); node++) {
        status = rebalance_part(t, &bounded, loads, node_of_expert, node, scratch, &out);
        if (status != EK_OK) return status;
    }
    ek_place_balance balance;
    status = ek_place_measure(t, loads, out.slot_expert, scratch, &balance);
    if (status == EK_OK && params->spread_hottest > 0)
        status = ek_place_together(t, params->spread_over, params->spread_hottest, loads,
                                   out.slot_expert, scratch, &balance.n_together);
    if (status != EK_OK) return status;
    *out_balance = balance;
    memcpy(slot_expert, out.slot_expert, (size_t)t->n_slots * sizeof *slot_expert);
    memcpy(out_moves, out.moves, (size_t)out.n_moves * sizeof *out_moves);
    *out_n_moves = out.n_moves;
    *out_n_replicas = out.n_replicas;
    return EK_OK;
}
