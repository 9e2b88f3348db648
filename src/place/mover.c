#include "place/mover.h"

#include <string.h>

#include "base/assert.h"

#define COPY_ABOVE    1.05 /* busiest/mean from which copies are weighed against swaps */
#define COPY_EXPERTS  1 /* experts of the busiest device that are considered for another replica */
#define N_ESCAPES     6 /* copies tried when no step helps */
#define DETOUR_FACTOR 0.25 /* what a swap is worth that makes its partner the next problem */

/*
 * A step that could be taken next, and what it is worth: the fall of the sum of squared device
 * loads.
 */
typedef struct step {
    double gain; /* per replica moved; 0: no step */
    int32_t slot;
    int32_t other_slot; /* -1: a copy of `expert` into slot */
    int32_t expert;
} step;

static void refresh_device(ek_place_core *core, int32_t device)
{
    for (int32_t s = core->slot_beg[device]; s < core->slot_beg[device + 1]; s++)
        core->slot_rest[s] = (float)(core->device_load[device] - (double)core->slot_load[s]);
}

/* Loads from counts and slots, from scratch. */
void ek_place_mover_refresh(ek_place_core *core)
{
    for (int32_t e = 0; e < core->n_experts; e++)
        core->replica_load[e] = core->count[e] > 0 ? core->load[e] / core->count[e] : 0.0;
    for (int32_t d = 0; d < core->n_devices; d++) {
        core->device_load[d] = 0.0;
        for (int32_t s = core->slot_beg[d]; s < core->slot_beg[d + 1]; s++) {
            int32_t e = core->slot_expert[s];
            core->slot_load[s] = e >= 0 ? (float)core->replica_load[e] : 0.0f;
            core->device_load[d] += e >= 0 ? core->replica_load[e] : 0.0;
        }
        refresh_device(core, d);
    }
}

/* ---- swaps ---- */

/*
 * Exchanging replicas of load w and v between devices that carry r and q besides them lowers the
 * sum of squares by 2 (w - v)(r - q). Largest over all partners of one slot, legal or not.
 */
static float best_swap_gain(const ek_place_core *core, float load, float rest)
{
    const float *their_load = core->slot_load, *their_rest = core->slot_rest;
    float best = 0.0f;
#pragma omp simd reduction(max : best)
    for (int32_t s = 0; s < core->n_slots; s++) {
        float given = load - their_load[s];
        given = given > 0.0f ? given : 0.0f;
        float gain = given * (rest - their_rest[s]);
        best = gain > best ? gain : best;
    }
    return best;
}

static bool may_swap(const ek_place_core *core, int32_t a, int32_t b)
{
    int32_t expert_a = core->slot_expert[a], expert_b = core->slot_expert[b];
    if (expert_a == expert_b) return false;
    if (core->count[expert_a] > 1 && ek_place_holds(core, core->slot_device[b], expert_a, b))
        return false;
    return expert_b < 0 || core->count[expert_b] == 1 ||
           !ek_place_holds(core, core->slot_device[a], expert_b, a);
}

static void look_for_swap(const ek_place_mover *m, int32_t slot, step *best)
{
    const ek_place_core *core = &m->core;
    int32_t device = core->slot_device[slot];
    double load = core->device_load[device];
    for (int32_t s = 0; s < core->n_slots; s++) {
        int32_t other = core->slot_device[s];
        double given = (double)core->slot_load[slot] - (double)core->slot_load[s];
        double here = load - given, there = core->device_load[other] + given;
        if (other == device || given <= 0.0 || there >= load) continue;
        double gain = given * (here - core->device_load[other]); /* per replica: two move */
        if (there > m->limit && there > here) gain *= DETOUR_FACTOR;
        if (gain > best->gain && may_swap(core, slot, s)) *best = (step){gain, slot, s, -1};
    }
}

static void weigh_swaps(ek_place_mover *m, int32_t busiest, step *best)
{
    ek_place_core *core = &m->core;
    int32_t beg = core->slot_beg[busiest], end = core->slot_beg[busiest + 1];
    for (int32_t s = beg; s < end; s++)
        core->slot_promise[s] = core->slot_expert[s] >= 0
                                    ? best_swap_gain(core, core->slot_load[s], core->slot_rest[s])
                                    : 0.0f;
    for (;;) {
        int32_t slot = beg;
        for (int32_t s = beg + 1; s < end; s++)
            if (core->slot_promise[s] > core->slot_promise[slot]) slot = s;
        if (!((double)core->slot_promise[slot] > best->gain)) return;
        look_for_swap(m, slot, best);
        core->slot_promise[slot] = 0.0f;
    }
}

/* ---- copies ---- */

/* Lists of the slots of every expert that has more than one, and of those on the busiest device. */
static void index_slots(ek_place_mover *m)
{
    for (int32_t e = 0; e < m->core.n_experts; e++)
        m->head[e] = -1;
    for (int32_t s = m->core.n_slots - 1; s >= 0; s--) {
        int32_t e = m->core.slot_expert[s];
        if (e < 0) continue;
        m->next[s] = m->head[e];
        m->head[e] = s;
    }
}

static void touch(ek_place_mover *m, int32_t device, double by)
{
    if (m->delta[device] == 0.0) m->touched[m->n_touched++] = device;
    m->delta[device] += by != 0.0 ? by : 1e-300; /* touched stays visible */
}

/*
 * What a copy of `expert` into `slot` would do: fall of the sum of squares, and the highest load it
 * touches.
 */
static double copy_gain(ek_place_mover *m, int32_t slot, int32_t expert, double *out_highest)
{
    ek_place_core *core = &m->core;
    int32_t old = core->slot_expert[slot];
    double old_now = old >= 0 ? core->replica_load[old] : 0.0;
    double old_then = old >= 0 ? core->load[old] / (core->count[old] - 1) : 0.0;
    double new_now = core->replica_load[expert];
    double new_then = core->load[expert] / (core->count[expert] + 1);
    m->n_touched = 0;
    touch(m, core->slot_device[slot], new_then - old_now);
    for (int32_t s = old >= 0 ? m->head[old] : -1; s >= 0; s = m->next[s])
        if (s != slot) touch(m, core->slot_device[s], old_then - old_now);
    for (int32_t s = m->head[expert]; s >= 0; s = m->next[s])
        touch(m, core->slot_device[s], new_then - new_now);
    double gain = 0.0, highest = 0.0;
    for (int32_t i = 0; i < m->n_touched; i++) {
        int32_t d = m->touched[i];
        double now = core->device_load[d], then = now + m->delta[d];
        gain += (now - then) * (now + then - 2.0 * core->mean);
        highest = then > highest ? then : highest;
        m->delta[d] = 0.0;
    }
    *out_highest = highest;
    return gain;
}

static bool may_copy(const ek_place_core *core, int32_t slot, int32_t expert)
{
    int32_t old = core->slot_expert[slot];
    return old != expert && (old < 0 || core->count[old] > 1) &&
           core->count[expert] < core->n_devices &&
           !ek_place_holds(core, core->slot_device[slot], expert, slot);
}

/* Experts of a device by how much one more replica would relieve it; at most max of them. */
static int32_t most_relief(const ek_place_core *core, int32_t device, int32_t max,
                           int32_t *out_expert)
{
    double relief[N_ESCAPES];
    int32_t n = 0;
    ek_dassert(max <= N_ESCAPES);
    for (int32_t s = core->slot_beg[device]; s < core->slot_beg[device + 1]; s++) {
        int32_t e = core->slot_expert[s];
        if (e < 0) continue;
        double here = core->replica_load[e] / (core->count[e] + 1);
        int32_t at = n;
        while (at > 0 && relief[at - 1] < here)
            at--;
        if (at == max) continue;
        n = n < max ? n + 1 : max;
        for (int32_t i = n - 1; i > at; i--) {
            relief[i] = relief[i - 1];
            out_expert[i] = out_expert[i - 1];
        }
        relief[at] = here;
        out_expert[at] = e;
    }
    return n;
}

static void weigh_copies(ek_place_mover *m, int32_t busiest, step *best)
{
    ek_place_core *core = &m->core;
    int32_t expert[COPY_EXPERTS];
    int32_t n = most_relief(core, busiest, COPY_EXPERTS, expert);
    index_slots(m);
    for (int32_t s = 0; s < core->n_slots; s++) {
        int32_t old = core->slot_expert[s];
        if (old >= 0 && core->count[old] < 2) continue;
        for (int32_t i = 0; i < n; i++) {
            double highest;
            if (!may_copy(core, s, expert[i])) continue;
            double gain = copy_gain(m, s, expert[i], &highest);
            if (gain > best->gain && highest < core->device_load[busiest])
                *best = (step){gain, s, -1, expert[i]};
        }
    }
}

/* ---- taking steps ---- */

static void take_step(ek_place_mover *m, const step *s)
{
    ek_place_core *core = &m->core;
    ek_place_move *move = &m->moves[m->n_moves++];
    if (s->other_slot >= 0) {
        int32_t given = core->slot_expert[s->slot], taken = core->slot_expert[s->other_slot];
        ek_place_swap(core, s->slot, s->other_slot);
        *move = (ek_place_move){s->other_slot, given, s->slot, taken};
        m->n_replicas += taken >= 0 ? 2 : 1;
        return;
    }
    int32_t old = core->slot_expert[s->slot];
    if (old >= 0) core->count[old]--;
    core->count[s->expert]++;
    core->slot_expert[s->slot] = s->expert;
    *move = (ek_place_move){s->slot, s->expert, -1, -1};
    m->n_replicas++;
    ek_place_mover_refresh(core);
}

void ek_place_mover_copy(ek_place_mover *m, int32_t slot, int32_t expert)
{
    take_step(m, &(step){0.0, slot, -1, expert});
}

bool ek_place_mover_descend(ek_place_mover *m)
{
    ek_place_core *core = &m->core;
    for (;;) {
        int32_t busiest;
        double load = ek_place_busiest(core, &busiest);
        if (load <= m->limit || m->n_replicas >= m->max_moves) return load <= m->limit;
        step best = {1e-9 * core->mean * core->mean, -1, -1, -1};
        if (m->n_replicas + 2 <= m->max_moves) weigh_swaps(m, busiest, &best);
        if (load > COPY_ABOVE * core->mean) weigh_copies(m, busiest, &best);
        if (best.slot < 0) return false;
        take_step(m, &best);
    }
}

static void save(const ek_place_mover *m, ek_place_mark *out)
{
    const ek_place_core *core = &m->core;
    memcpy(out->slot_expert, core->slot_expert, (size_t)core->n_slots * sizeof(int32_t));
    memcpy(out->count, core->count, (size_t)core->n_experts * sizeof(int32_t));
    out->n_moves = m->n_moves;
    out->n_replicas = m->n_replicas;
}

static void restore(ek_place_mover *m, const ek_place_mark *from)
{
    ek_place_core *core = &m->core;
    memcpy(core->slot_expert, from->slot_expert, (size_t)core->n_slots * sizeof(int32_t));
    memcpy(core->count, from->count, (size_t)core->n_experts * sizeof(int32_t));
    m->n_moves = from->n_moves;
    m->n_replicas = from->n_replicas;
    ek_place_mover_refresh(core);
}

/* A copy that does not help by itself, in the order of the highest load that it leaves. */
typedef struct detour {
    double highest;
    int32_t slot;
    int32_t expert;
} detour;

static int32_t list_detours(ek_place_mover *m, detour *out)
{
    ek_place_core *core = &m->core;
    int32_t busiest, expert[N_ESCAPES], n = 0;
    ek_place_busiest(core, &busiest);
    int32_t n_experts = most_relief(core, busiest, N_ESCAPES, expert);
    index_slots(m);
    for (int32_t s = 0; s < core->n_slots; s++)
        for (int32_t i = 0; i < n_experts; i++) {
            double highest;
            int32_t old = core->slot_expert[s];
            if ((old >= 0 && core->count[old] < 2) || !may_copy(core, s, expert[i])) continue;
            (void)copy_gain(m, s, expert[i], &highest);
            int32_t at = n;
            while (at > 0 && out[at - 1].highest > highest)
                at--;
            if (at == N_ESCAPES) continue;
            n = n < N_ESCAPES ? n + 1 : N_ESCAPES;
            for (int32_t k = n - 1; k > at; k--)
                out[k] = out[k - 1];
            out[at] = (detour){highest, s, expert[i]};
        }
    return n;
}

bool ek_place_mover_escape(ek_place_mover *m)
{
    detour detours[N_ESCAPES];
    double before = ek_place_busiest(&m->core, NULL), lowest = before - 1e-4 * m->core.mean;
    bool found = false;
    save(m, &m->saved);
    int32_t n = list_detours(m, detours);
    ek_place_move *kept = m->moves + m->max_moves; /* second half of the list's memory */
    for (int32_t i = 0; i < n; i++) {
        ek_place_mover_copy(m, detours[i].slot, detours[i].expert);
        bool reached = ek_place_mover_descend(m);
        double now = ek_place_busiest(&m->core, NULL);
        if (now < lowest) {
            lowest = now;
            found = true;
            save(m, &m->best);
            memcpy(kept, m->moves, (size_t)m->n_moves * sizeof *kept);
        }
        restore(m, &m->saved);
        if (reached) break;
    }
    if (found) {
        restore(m, &m->best);
        memcpy(m->moves, kept, (size_t)m->n_moves * sizeof *kept);
    }
    return found;
}
