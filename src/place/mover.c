#include "place/mover.h"

#include <math.h>
#include <string.h>

#define N_DETOURS  12    /* tried when no step helps */
#define LEAST_GAIN 1e-6f /* of a step; less is rounding */

/*
 * What is tried in turn until the limit is reached: shapes of unease, and caps on a replica's load
 * as shares of a device's mean, above which experts get more replicas before anything else. The
 * first shape moves least; it is nearly always enough.
 */
static const struct {
    float away, slope;
    double cap;
} attempts[] = {
    {0.01f, 16.0f, INFINITY}, {0.05f, 4.0f, 0.5}, {0.2f, 0.0f, INFINITY},
    {0.05f, 4.0f, 0.6},       {0.2f, 0.0f, 0.55}, {0.05f, 4.0f, 0.45},
};

static ek_place_mark mark_new(const ek_place_core *core, int32_t max_moves, ek_arena *perm)
{
    return (ek_place_mark){
        .slot_expert = ek_new(perm, int32_t, core->n_slots),
        .count = ek_new(perm, int32_t, core->n_experts),
        .moves = ek_new(perm, ek_place_move, max_moves + 1),
    };
}

size_t ek_place_mover_bytes(int32_t n_experts, int32_t n_slots, int32_t n_devices,
                            int32_t max_moves)
{
    size_t experts = (size_t)n_experts, slots = (size_t)n_slots, moves = (size_t)max_moves + 1;
    size_t mark = (slots + experts) * sizeof(int32_t) + moves * sizeof(ek_place_move);
    return 4 * mark + moves * sizeof(ek_place_move) + experts * sizeof(int32_t) +
           (3 * slots + 1) * sizeof(int32_t) + slots * (2 * sizeof(int32_t) + 10 * sizeof(float)) +
           (size_t)n_devices * (sizeof(float) + sizeof(double)) + 32 * EK_CACHE_LINE;
}

void ek_place_mover_init(ek_place_mover *m, ek_arena *perm)
{
    const ek_place_core *core = &m->core;
    m->moves = ek_new(perm, ek_place_move, m->max_moves + 1);
    m->head = ek_new(perm, int32_t, core->n_experts);
    m->next = ek_new(perm, int32_t, core->n_slots);
    m->unease = ek_new(perm, float, core->n_devices);
    m->delta = ek_new(perm, double, core->n_devices);
    m->touched = ek_new(perm, int32_t, 2 * core->n_slots + 1);
    m->partners = (ek_place_partners){
        .slot = ek_new(perm, int32_t, core->n_slots),
        .load = ek_new_aligned(perm, float, core->n_slots),
        .device = ek_new_aligned(perm, float, core->n_slots),
        .unease = ek_new_aligned(perm, float, core->n_slots),
        .share = ek_new_aligned(perm, float, core->n_slots),
        .gain = ek_new_aligned(perm, float, core->n_slots),
    };
    m->spares = (ek_place_spares){
        .slot = ek_new(perm, int32_t, core->n_slots),
        .worth = ek_new_aligned(perm, float, core->n_slots),
        .load = ek_new_aligned(perm, float, core->n_slots),
        .device = ek_new_aligned(perm, float, core->n_slots),
        .unease = ek_new_aligned(perm, float, core->n_slots),
        .gain = ek_new_aligned(perm, float, core->n_slots),
    };
    m->start = mark_new(core, m->max_moves, perm);
    m->saved = mark_new(core, m->max_moves, perm);
    m->best = mark_new(core, m->max_moves, perm);
    m->kept = mark_new(core, m->max_moves, perm);
    m->away = attempts[0].away;
    m->slope = attempts[0].slope;
    ek_place_mover_refresh(m);
}

/* ---- state ---- */

static void refresh_device(ek_place_mover *m, int32_t device)
{
    ek_place_core *core = &m->core;
    double load = 0.0;
    for (int32_t s = core->slot_beg[device]; s < core->slot_beg[device + 1]; s++) {
        int32_t e = core->slot_expert[s];
        core->slot_load[s] = e >= 0 ? (float)core->replica_load[e] : 0.0f;
        load += e >= 0 ? core->replica_load[e] : 0.0;
    }
    core->device_load[device] = load;
    m->unease[device] = ek_place_unease(m, (float)load);
}

static void link_slot(ek_place_mover *m, int32_t slot, int32_t expert)
{
    if (expert < 0) return;
    m->next[slot] = m->head[expert];
    m->head[expert] = slot;
}

static void unlink_slot(ek_place_mover *m, int32_t slot, int32_t expert)
{
    if (expert < 0) return;
    int32_t *at = &m->head[expert];
    while (*at != slot)
        at = &m->next[*at];
    *at = m->next[slot];
}

static void share_out(ek_place_core *core, int32_t expert)
{
    core->replica_load[expert] =
        core->count[expert] > 0 ? core->load[expert] / core->count[expert] : 0.0;
}

void ek_place_mover_refresh(ek_place_mover *m)
{
    ek_place_core *core = &m->core;
    for (int32_t e = 0; e < core->n_experts; e++) {
        share_out(core, e);
        m->head[e] = -1;
    }
    m->n_empty = 0;
    for (int32_t s = core->n_slots - 1; s >= 0; s--) {
        link_slot(m, s, core->slot_expert[s]);
        m->n_empty += core->slot_expert[s] < 0;
    }
    for (int32_t d = 0; d < core->n_devices; d++)
        refresh_device(m, d);
}

static void save(const ek_place_mover *m, ek_place_mark *out)
{
    const ek_place_core *core = &m->core;
    memcpy(out->slot_expert, core->slot_expert, (size_t)core->n_slots * sizeof(int32_t));
    memcpy(out->count, core->count, (size_t)core->n_experts * sizeof(int32_t));
    memcpy(out->moves, m->moves, (size_t)m->n_moves * sizeof *m->moves);
    out->n_moves = m->n_moves;
    out->n_replicas = m->n_replicas;
    out->busiest = ek_place_busiest(core, NULL);
}

static void restore(ek_place_mover *m, const ek_place_mark *from)
{
    ek_place_core *core = &m->core;
    memcpy(core->slot_expert, from->slot_expert, (size_t)core->n_slots * sizeof(int32_t));
    memcpy(core->count, from->count, (size_t)core->n_experts * sizeof(int32_t));
    memcpy(m->moves, from->moves, (size_t)from->n_moves * sizeof *m->moves);
    m->n_moves = from->n_moves;
    m->n_replicas = from->n_replicas;
    ek_place_mover_refresh(m);
}

/* ---- steps ---- */

int32_t ek_place_mover_rank(ek_place_candidate *list, int32_t n, int32_t max,
                            const ek_place_candidate *step)
{
    int32_t at = n;
    while (at > 0 && list[at - 1].gain < step->gain)
        at--;
    if (at == max) return n;
    n = n < max ? n + 1 : max;
    for (int32_t i = n - 1; i > at; i--)
        list[i] = list[i - 1];
    list[at] = *step;
    return n;
}

static void refresh_holders(ek_place_mover *m, int32_t expert)
{
    for (int32_t s = m->head[expert]; s >= 0; s = m->next[s])
        refresh_device(m, m->core.slot_device[s]);
}

void ek_place_mover_take(ek_place_mover *m, const ek_place_candidate *step)
{
    ek_place_core *core = &m->core;
    ek_place_move *move = &m->moves[m->n_moves++];
    int32_t old = core->slot_expert[step->slot];
    if (step->other_slot >= 0) {
        int32_t taken = core->slot_expert[step->other_slot];
        unlink_slot(m, step->slot, old);
        unlink_slot(m, step->other_slot, taken);
        core->slot_expert[step->slot] = taken;
        core->slot_expert[step->other_slot] = old;
        link_slot(m, step->slot, taken);
        link_slot(m, step->other_slot, old);
        refresh_device(m, core->slot_device[step->slot]);
        refresh_device(m, core->slot_device[step->other_slot]);
        *move = (ek_place_move){step->other_slot, old, step->slot, taken};
        m->n_replicas += taken >= 0 ? 2 : 1;
        return;
    }
    unlink_slot(m, step->slot, old);
    core->slot_expert[step->slot] = step->expert;
    link_slot(m, step->slot, step->expert);
    core->count[step->expert]++;
    share_out(core, step->expert);
    m->n_empty -= old < 0;
    if (old >= 0) {
        core->count[old]--;
        share_out(core, old);
        refresh_holders(m, old);
    }
    refresh_holders(m, step->expert);
    *move = (ek_place_move){step->slot, step->expert, -1, -1};
    m->n_replicas++;
}

void ek_place_mover_copy(ek_place_mover *m, int32_t slot, int32_t expert)
{
    ek_place_mover_take(m, &(ek_place_candidate){0.0f, slot, -1, expert});
}

/*
 * Step after step, the best first, until the limit is met, the moves are used up, or no step helps.
 * @return whether the limit is met
 */
static bool descend(ek_place_mover *m)
{
    for (;;) {
        int32_t busiest;
        double load = ek_place_busiest(&m->core, &busiest);
        if (load <= m->limit || m->n_replicas >= m->max_moves) return load <= m->limit;
        ek_place_candidate best = {LEAST_GAIN, -1, -1, -1};
        ek_place_mover_weigh_swaps(m, busiest, &best);
        ek_place_mover_weigh_copies(m, busiest, &best);
        if (best.slot < 0) return false;
        ek_place_mover_take(m, &best);
    }
}

/*
 * No step helps: try some that make things worse for a moment and descend again from there; keep
 * the one that ends lowest. @return whether it is lower than before
 */
static bool escape(ek_place_mover *m)
{
    ek_place_candidate detours[2 * N_DETOURS];
    double lowest = ek_place_busiest(&m->core, NULL) - 1e-4;
    bool found = false;
    save(m, &m->saved);
    int32_t n = ek_place_mover_copy_detours(m, 0, N_DETOURS, detours);
    if (m->n_replicas + 2 <= m->max_moves)
        n += ek_place_mover_swap_detours(m, 0, N_DETOURS, detours + n);
    for (int32_t i = 0; i < n; i++) {
        ek_place_mover_take(m, &detours[i]);
        bool reached = descend(m);
        if (ek_place_busiest(&m->core, NULL) < lowest) {
            found = true;
            save(m, &m->best);
            lowest = m->best.busiest;
        }
        restore(m, &m->saved);
        if (reached) break;
    }
    if (found) restore(m, &m->best);
    return found;
}

/* Down to the limit, or to where neither a step nor a detour helps. */
static void settle(ek_place_mover *m)
{
    while (!descend(m) && m->n_replicas < m->max_moves)
        if (!escape(m)) return;
}

/* More replicas for whoever has one above the cap, hottest first, while there are moves. */
static void raise_counts(ek_place_mover *m, double cap)
{
    ek_place_core *core = &m->core;
    for (int32_t i = 0; i < core->n_experts; i++) {
        int32_t e = core->order[i];
        if (core->load[e] <= cap) return;
        while (core->replica_load[e] > cap && m->n_replicas < m->max_moves) {
            int32_t slot = ek_place_mover_slot_for(m, e);
            if (slot < 0) break;
            ek_place_mover_copy(m, slot, e);
        }
    }
}

/* Slots that hold what their device holds already serve nobody: they get another expert first. */
static void resolve_duplicates(ek_place_mover *m)
{
    ek_place_core *core = &m->core;
    for (int32_t s = 0; s < core->n_slots && m->n_replicas < m->max_moves; s++) {
        int32_t e = core->slot_expert[s];
        if (e < 0 || core->count[e] < 2 || !ek_place_holds(core, core->slot_device[s], e, s))
            continue;
        int32_t expert = ek_place_mover_expert_for(m, s);
        if (expert >= 0) ek_place_mover_copy(m, s, expert);
    }
}

void ek_place_mover_run(ek_place_mover *m)
{
    save(m, &m->kept);
    if (m->kept.busiest <= m->limit) return;
    resolve_duplicates(m);
    save(m, &m->start);
    for (size_t i = 0; i < EK_COUNT_OF(attempts); i++) {
        m->away = attempts[i].away;
        m->slope = attempts[i].slope;
        restore(m, &m->start);
        raise_counts(m, attempts[i].cap);
        if (attempts[i].cap < INFINITY && m->n_moves == m->start.n_moves) continue;
        settle(m);
        double busiest = ek_place_busiest(&m->core, NULL);
        /* Duplicates were worth resolving, if that did not make things worse. */
        bool better = i == 0 ? busiest <= m->kept.busiest : busiest < m->kept.busiest;
        if (better) save(m, &m->kept);
        if (busiest <= m->limit) return;
    }
    restore(m, &m->kept);
}
