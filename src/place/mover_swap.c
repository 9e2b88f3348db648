#include "place/mover.h"

/* Slots of the devices below the mean: who could take something over. */
static void list_partners(ek_place_mover *m)
{
    const ek_place_core *core = &m->core;
    ek_place_partners *p = &m->partners;
    p->n = 0;
    for (int32_t d = 0; d < core->n_devices; d++) {
        if (core->device_load[d] >= 1.0) continue;
        for (int32_t s = core->slot_beg[d]; s < core->slot_beg[d + 1]; s++) {
            p->slot[p->n] = s;
            p->load[p->n] = core->slot_load[s];
            p->device[p->n] = (float)core->device_load[d];
            p->unease[p->n] = m->unease[d];
            p->share[p->n++] = core->slot_expert[s] >= 0 ? 0.5f : 1.0f;
        }
    }
}

/*
 * Distance plus `away`. The unease of two devices of which these are a and b is linear
 * in a + b and in 1 / a + 1 / b, which is one division: (a + b) / ab.
 */
static inline float divisor(float load, float margin, float away)
{
    float above = load - 1.0f, below = 1.0f - load, far = above > below ? above : below;
    float inside = 0.1f * far, outside = far - margin;
    return (inside > outside ? inside : outside) + away;
}

/*
 * What the swap of one slot of a device above the mean with each partner is worth, legal or not.
 * What does not lower the higher of the two is worth less than nothing: either both go away from
 * the mean, or they change places and more. @return the most, at least 0
 */
static float weigh_partners(const ek_place_mover *m, float slot_load, float load, float unease)
{
    const ek_place_partners *p = &m->partners;
    const float *their_load = p->load, *device = p->device, *their_unease = p->unease;
    const float *share = p->share;
    float *gain = p->gain, margin = 0.9f * m->band, most = 0.0f;
    float away = m->away, slope = m->slope;
    float before = unease - 2.0f * (1.0f - slope * away);
#pragma omp simd reduction(max : most)
    for (int32_t i = 0; i < p->n; i++) {
        float given = slot_load - their_load[i];
        float a = divisor(load - given, margin, away), b = divisor(device[i] + given, margin, away);
        float after = (a + b) * (slope - away / (a * b));
        float here = (before + their_unease[i] - after) * share[i];
        gain[i] = here;
        most = here > most ? here : most;
    }
    return most;
}

bool ek_place_mover_may_swap(const ek_place_core *core, int32_t a, int32_t b)
{
    int32_t expert_a = core->slot_expert[a], expert_b = core->slot_expert[b];
    if (core->fixed && (core->fixed[a] || core->fixed[b])) return false;
    if (expert_a == expert_b) return false;
    if (core->count[expert_a] > 1 && ek_place_holds(core, core->slot_device[b], expert_a, b))
        return false;
    if (expert_b >= 0 && core->count[expert_b] > 1 &&
        ek_place_holds(core, core->slot_device[a], expert_b, a))
        return false;
    return ek_place_keeps_spread(core, a, core->slot_device[b]) &&
           ek_place_keeps_spread(core, b, core->slot_device[a]);
}

/* The best legal partner of one slot among those that were just weighed. */
static void take_best(ek_place_mover *m, int32_t slot, ek_place_candidate *best)
{
    const ek_place_partners *p = &m->partners;
    bool one_only = m->n_replicas + 1 == m->max_moves;
    for (int32_t i = 0; i < p->n; i++)
        if (p->gain[i] > best->gain && !(one_only && p->share[i] < 1.0f) &&
            ek_place_mover_may_swap(&m->core, slot, p->slot[i]))
            *best = (ek_place_candidate){p->gain[i], slot, p->slot[i], -1};
}

/*
 * A vector pass per slot of the busiest device says what its best partner would bring; only the
 * slot that promises most is then searched for a legal one, and the next only if that disappoints.
 */
void ek_place_mover_weigh_swaps(ek_place_mover *m, int32_t busiest, ek_place_candidate *best)
{
    ek_place_core *core = &m->core;
    int32_t beg = core->slot_beg[busiest], end = core->slot_beg[busiest + 1];
    float load = (float)core->device_load[busiest], unease = m->unease[busiest];
    list_partners(m);
    for (int32_t s = beg; s < end; s++)
        core->slot_promise[s] =
            core->slot_expert[s] >= 0 ? weigh_partners(m, core->slot_load[s], load, unease) : 0.0f;
    for (;;) {
        int32_t slot = beg;
        for (int32_t s = beg + 1; s < end; s++)
            if (core->slot_promise[s] > core->slot_promise[slot]) slot = s;
        if (beg == end || !(core->slot_promise[slot] > best->gain)) return;
        (void)weigh_partners(m, core->slot_load[slot], load, unease);
        take_best(m, slot, best);
        core->slot_promise[slot] = 0.0f;
    }
}

int32_t ek_place_mover_swap_detours(ek_place_mover *m, int32_t n, int32_t max,
                                    ek_place_candidate *list)
{
    const ek_place_core *core = &m->core;
    int32_t busiest;
    double load = ek_place_busiest(core, &busiest);
    for (int32_t slot = core->slot_beg[busiest]; slot < core->slot_beg[busiest + 1]; slot++) {
        for (int32_t s = 0; core->slot_expert[slot] >= 0 && s < core->n_slots; s++) {
            double given = (double)core->slot_load[slot] - (double)core->slot_load[s];
            double there = core->device_load[core->slot_device[s]] + given;
            if (core->slot_device[s] == busiest || load - given > m->limit) continue;
            if (n == max && -(float)there <= list[n - 1].gain) continue;
            if (ek_place_mover_may_swap(core, slot, s))
                n = ek_place_mover_rank(list, n, max,
                                        &(ek_place_candidate){-(float)there, slot, s, -1});
        }
    }
    return n;
}
