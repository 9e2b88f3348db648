#include <math.h>

#include "place/mover.h"

/*
 * The slot outside `domain` that another replica of the expert may take and whose device is
 * lightest then; -1: there is none.
 */
static int32_t slot_elsewhere(const ek_place_mover *m, int32_t expert, int32_t domain)
{
    const ek_place_core *core = &m->core;
    int32_t best = -1;
    double lightest = INFINITY;
    for (int32_t s = 0; s < core->n_slots; s++) {
        double rest = core->device_load[core->slot_device[s]] - (double)core->slot_load[s];
        if (core->domain_of[core->slot_device[s]] == domain || rest >= lightest ||
            !ek_place_mover_may_copy(core, s, expert))
            continue;
        lightest = rest;
        best = s;
    }
    return best;
}

/* The swap of one of the expert's replicas out of `domain` that leaves the higher device lowest. */
static ek_place_candidate swap_elsewhere(const ek_place_mover *m, int32_t expert, int32_t domain)
{
    const ek_place_core *core = &m->core;
    ek_place_candidate best = {0.0f, -1, -1, -1};
    double lowest = INFINITY;
    for (int32_t a = m->head[expert]; a >= 0; a = m->next[a])
        for (int32_t b = 0; b < core->n_slots; b++) {
            int32_t device_a = core->slot_device[a], device_b = core->slot_device[b];
            if (core->domain_of[device_b] == domain || !ek_place_mover_may_swap(core, a, b))
                continue;
            double given = (double)core->slot_load[a] - (double)core->slot_load[b];
            double higher =
                fmax(core->device_load[device_a] - given, core->device_load[device_b] + given);
            if (higher >= lowest) continue;
            lowest = higher;
            best = (ek_place_candidate){0.0f, a, b, -1};
        }
    return best;
}

void ek_place_mover_spread(ek_place_mover *m)
{
    const ek_place_core *core = &m->core;
    for (int32_t i = 0; i < core->n_spread && m->n_replicas < m->max_moves; i++) {
        int32_t e = core->order[i], domain = -1;
        if (ek_place_domains(core, e, -1, &domain) != 1) continue;
        int32_t slot = slot_elsewhere(m, e, domain);
        if (slot >= 0) {
            ek_place_mover_copy(m, slot, e);
            continue;
        }
        if (core->count[e] < 2 || m->n_replicas + 2 > m->max_moves) continue;
        ek_place_candidate swap = swap_elsewhere(m, e, domain);
        if (swap.slot >= 0) ek_place_mover_take(m, &swap);
    }
}
