#include <math.h>

#include "base/assert.h"
#include "place/mover.h"

#define COPY_EXPERTS   6 /* of the busiest device that are considered for another replica */
#define NOT_SPARE      (-INFINITY)
#define EXPERTS_LISTED 8

static bool is_spare(const ek_place_core *core, int32_t slot)
{
    int32_t e = core->slot_expert[slot];
    if (core->fixed && core->fixed[slot]) return false;
    return e < 0 || core->count[e] > 1;
}

bool ek_place_mover_may_copy(const ek_place_core *core, int32_t slot, int32_t expert)
{
    return is_spare(core, slot) && core->slot_expert[slot] != expert &&
           core->count[expert] < core->n_devices &&
           !ek_place_holds(core, core->slot_device[slot], expert, slot) &&
           ek_place_keeps_spread(core, slot, -1);
}

/* Fall of a device's unease when its load changes by so much. */
static float relief_of(const ek_place_mover *m, int32_t device, double by)
{
    return m->unease[device] - ek_place_unease(m, (float)(m->core.device_load[device] + by));
}

/* What one more replica of an expert does to the devices that hold it already. */
static float relief_by(const ek_place_mover *m, int32_t expert)
{
    const ek_place_core *core = &m->core;
    double by = core->load[expert] / (core->count[expert] + 1) - core->replica_load[expert];
    float relief = 0.0f;
    for (int32_t s = m->head[expert]; s >= 0; s = m->next[s])
        relief += relief_of(m, core->slot_device[s], by);
    return relief;
}

static void add_spare(ek_place_mover *m, int32_t slot, float worth)
{
    ek_place_spares *sp = &m->spares;
    int32_t d = m->core.slot_device[slot];
    sp->slot[sp->n] = slot;
    sp->worth[sp->n] = worth;
    sp->load[sp->n] = m->core.slot_load[slot];
    sp->device[sp->n] = (float)m->core.device_load[d];
    sp->unease[sp->n++] = m->unease[d];
}

/*
 * The replicas of one expert. Whichever is taken away, the others get heavier by the same; left out
 * are those that would bring the device of one of the others up to the ceiling.
 */
static void add_spares_of(ek_place_mover *m, int32_t expert, double ceiling)
{
    const ek_place_core *core = &m->core;
    double by = core->load[expert] / (core->count[expert] - 1) - core->replica_load[expert];
    float relief = 0.0f;
    int32_t n_full = 0;
    for (int32_t s = m->head[expert]; s >= 0; s = m->next[s]) {
        int32_t d = core->slot_device[s];
        relief += relief_of(m, d, by);
        n_full += core->device_load[d] + by >= ceiling;
    }
    for (int32_t s = m->head[expert]; s >= 0 && n_full < 2; s = m->next[s]) {
        int32_t d = core->slot_device[s];
        if (n_full == 0 || core->device_load[d] + by >= ceiling)
            add_spare(m, s, relief - relief_of(m, d, by));
    }
}

static void list_spares(ek_place_mover *m, double ceiling)
{
    const ek_place_core *core = &m->core;
    m->spares.n = 0;
    for (int32_t e = 0; e < core->n_experts; e++)
        if (core->count[e] > 1) add_spares_of(m, e, ceiling);
    for (int32_t s = 0; s < core->n_slots && m->n_empty > 0; s++)
        if (core->slot_expert[s] < 0) add_spare(m, s, 0.0f);
}

/*
 * What copies of one expert into each spare slot are worth, legal or not, from the parts: as if no
 * device held both the expert that comes and the one that goes. Those that do are few; who takes a
 * step asks copy_exactly. @return the most
 */
static float weigh_slots(const ek_place_mover *m, double replica_load, float relief)
{
    const ek_place_spares *sp = &m->spares;
    const float *worth = sp->worth, *load = sp->load, *device = sp->device, *unease = sp->unease;
    float *gain = sp->gain, most = -INFINITY, mine = (float)replica_load, margin = 0.9f * m->band;
    float away = m->away, slope = m->slope;
#pragma omp simd reduction(max : most)
    for (int32_t i = 0; i < sp->n; i++) {
        float after = device[i] + mine - load[i];
        float above = after - 1.0f, below = 1.0f - after, far = above > below ? above : below;
        float inside = 0.1f * far, outside = far - margin;
        float distance = inside > outside ? inside : outside;
        float then = slope * distance + distance / (distance + away);
        float here = worth[i] + relief + unease[i] - then;
        gain[i] = here;
        most = here > most ? here : most;
    }
    return most;
}

static void touch(ek_place_mover *m, int32_t device, double by)
{
    if (m->delta[device] == 0.0) m->touched[m->n_touched++] = device;
    m->delta[device] += by != 0.0 ? by : 1e-300; /* touched stays visible */
}

/* Fall of unease by a copy of `expert` into `slot`, and the highest load that it touches. */
static float copy_exactly(ek_place_mover *m, int32_t slot, int32_t expert, double *out_highest)
{
    const ek_place_core *core = &m->core;
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
    float gain = 0.0f;
    double highest = 0.0;
    for (int32_t i = 0; i < m->n_touched; i++) {
        int32_t d = m->touched[i];
        highest = fmax(highest, core->device_load[d] + m->delta[d]);
        gain += relief_of(m, d, m->delta[d]);
        m->delta[d] = 0.0;
    }
    *out_highest = highest;
    return gain;
}

/* Experts of a device by how much one more replica would relieve it; at most max of them. */
static int32_t most_relieved(const ek_place_core *core, int32_t device, int32_t max,
                             int32_t *out_expert)
{
    double relief[EXPERTS_LISTED];
    int32_t n = 0;
    ek_dassert(max <= EXPERTS_LISTED);
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

void ek_place_mover_weigh_copies(ek_place_mover *m, int32_t busiest, ek_place_candidate *best)
{
    const ek_place_core *core = &m->core;
    const ek_place_spares *sp = &m->spares;
    int32_t expert[EXPERTS_LISTED];
    int32_t n = most_relieved(core, busiest, COPY_EXPERTS, expert);
    double load = core->device_load[busiest], highest;
    ek_place_candidate found = *best;
    list_spares(m, load);
    for (int32_t i = 0; i < n; i++) {
        double replica_load = core->load[expert[i]] / (core->count[expert[i]] + 1);
        float most = weigh_slots(m, replica_load, relief_by(m, expert[i]));
        for (int32_t k = 0; k < sp->n && m->copy_worth * most > found.gain; k++)
            if (m->copy_worth * sp->gain[k] > found.gain &&
                ek_place_mover_may_copy(core, sp->slot[k], expert[i]))
                found =
                    (ek_place_candidate){m->copy_worth * sp->gain[k], sp->slot[k], -1, expert[i]};
    }
    if (found.gain <= best->gain) return;
    found.gain = m->copy_worth * copy_exactly(m, found.slot, found.expert, &highest);
    if (found.gain > best->gain && highest < load) *best = found;
}

int32_t ek_place_mover_slot_for(ek_place_mover *m, int32_t expert)
{
    const ek_place_spares *sp = &m->spares;
    int32_t best = -1;
    float most = -INFINITY;
    list_spares(m, INFINITY);
    (void)weigh_slots(m, m->core.load[expert] / (m->core.count[expert] + 1), 0.0f);
    for (int32_t k = 0; k < sp->n; k++) {
        if (sp->gain[k] <= most || !ek_place_mover_may_copy(&m->core, sp->slot[k], expert))
            continue;
        most = sp->gain[k];
        best = sp->slot[k];
    }
    return best;
}

int32_t ek_place_mover_expert_for(ek_place_mover *m, int32_t slot)
{
    const ek_place_core *core = &m->core;
    int32_t best = -1;
    float most = -INFINITY;
    for (int32_t e = 0; e < core->n_experts; e++) {
        if (!ek_place_mover_may_copy(core, slot, e)) continue;
        double by = core->load[e] / (core->count[e] + 1) - (double)core->slot_load[slot];
        float gain = relief_by(m, e) + relief_of(m, core->slot_device[slot], by);
        if (gain <= most) continue;
        most = gain;
        best = e;
    }
    return best;
}

int32_t ek_place_mover_copy_detours(ek_place_mover *m, int32_t n, int32_t max,
                                    ek_place_candidate *list)
{
    const ek_place_core *core = &m->core;
    int32_t busiest, expert[EXPERTS_LISTED];
    ek_place_busiest(core, &busiest);
    int32_t n_experts = most_relieved(core, busiest, EXPERTS_LISTED, expert);
    for (int32_t s = 0; s < core->n_slots; s++) {
        for (int32_t i = 0; is_spare(core, s) && i < n_experts; i++) {
            double highest;
            if (!ek_place_mover_may_copy(core, s, expert[i])) continue;
            (void)copy_exactly(m, s, expert[i], &highest);
            n = ek_place_mover_rank(list, n, max,
                                    &(ek_place_candidate){-(float)highest, s, -1, expert[i]});
        }
    }
    return n;
}
