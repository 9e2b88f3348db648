#include "place/core.h"

#include <math.h>

/* The swap that leaves the higher of two devices lowest. */
typedef struct best_swap {
    float higher; /* load of the higher device afterwards */
    int32_t from; /* slot of the busiest device; -1: none found */
    int32_t to;
} best_swap;

static void refresh_all(ek_place_core *core)
{
    for (int32_t s = 0; s < core->n_slots; s++)
        core->slot_rest[s] =
            (float)(core->device_load[core->slot_device[s]] - (double)core->slot_load[s]);
}

/*
 * An infinite rest makes a slot lose every comparison: how slots that must not take part are
 * hidden.
 */
static void hide_device(ek_place_core *core, int32_t device)
{
    for (int32_t s = core->slot_beg[device]; s < core->slot_beg[device + 1]; s++)
        core->slot_rest[s] = INFINITY;
}

static void show_device(ek_place_core *core, int32_t device)
{
    for (int32_t s = core->slot_beg[device]; s < core->slot_beg[device + 1]; s++)
        core->slot_rest[s] = (float)(core->device_load[device] - (double)core->slot_load[s]);
}

static bool is_legal(const ek_place_core *core, int32_t from, int32_t to)
{
    int32_t a = core->slot_expert[from], b = core->slot_expert[to];
    int32_t device_a = core->slot_device[from], device_b = core->slot_device[to];
    if (a == b) return false;
    if (a >= 0 && core->count[a] > 1 && ek_place_holds(core, device_b, a, to)) return false;
    if (b >= 0 && core->count[b] > 1 && ek_place_holds(core, device_a, b, from)) return false;
    return ek_place_keeps_spread(core, from, device_b) && ek_place_keeps_spread(core, to, device_a);
}

/*
 * Lowest possible "higher of the two loads" over all partners of one slot. This loop is where a
 * refinement's time goes; the pragma lets the compiler keep several minima at once, which changes
 * nothing, since min is exact.
 */
static float lowest_higher(const ek_place_core *core, float load, float rest)
{
    const float *their_load = core->slot_load, *their_rest = core->slot_rest;
    float lowest = INFINITY;
#pragma omp simd reduction(min : lowest)
    for (int32_t s = 0; s < core->n_slots; s++) {
        float here = rest + their_load[s];
        float there = their_rest[s] + load;
        float higher = here > there ? here : there;
        lowest = higher < lowest ? higher : lowest;
    }
    return lowest;
}

static void look_for_partner(const ek_place_core *core, int32_t from, float rest, best_swap *best)
{
    float load = core->slot_load[from];
    for (int32_t s = 0; s < core->n_slots; s++) {
        float here = rest + core->slot_load[s];
        float there = core->slot_rest[s] + load;
        float higher = here > there ? here : there;
        if (higher < best->higher && is_legal(core, from, s)) *best = (best_swap){higher, from, s};
    }
}

/*
 * The best legal swap of the busiest device. A vector pass per slot gives what its best partner
 * would reach, legal or not; only the slot that promises most is then searched for a legal partner,
 * and the next one only if that disappoints. Mostly one search is enough.
 */
static best_swap find_swap(ek_place_core *core, int32_t busiest)
{
    float load = (float)core->device_load[busiest];
    int32_t beg = core->slot_beg[busiest], end = core->slot_beg[busiest + 1];
    best_swap best = {load, -1, -1};
    hide_device(core, busiest);
    for (int32_t s = beg; s < end; s++)
        core->slot_promise[s] = core->slot_expert[s] >= 0 ? lowest_higher(core, core->slot_load[s],
                                                                          load - core->slot_load[s])
                                                          : INFINITY;
    for (;;) {
        int32_t from = beg;
        for (int32_t s = beg + 1; s < end; s++)
            if (core->slot_promise[s] < core->slot_promise[from]) from = s;
        if (!(core->slot_promise[from] < best.higher)) break;
        look_for_partner(core, from, load - core->slot_load[from], &best);
        core->slot_promise[from] = INFINITY;
    }
    show_device(core, busiest);
    return best;
}

int32_t ek_place_refine(ek_place_core *core, double limit, int32_t max_swaps)
{
    refresh_all(core);
    for (int32_t n_swaps = 0;; n_swaps++) {
        int32_t busiest;
        double load = ek_place_busiest(core, &busiest);
        if (load <= limit || n_swaps >= max_swaps) return n_swaps;
        best_swap best = find_swap(core, busiest);
        /*
         * The gain has to be more than rounding, or two devices would trade the same pair for ever.
         */
        if (best.from < 0 || (double)best.higher > load - 1e-6 * core->mean) return n_swaps;
        ek_place_swap(core, best.from, best.to);
    }
}

/*
 * The slot whose exchange with `from` costs least, among devices that pass the filter of the
 * caller.
 */
static int32_t cheapest_partner(const ek_place_core *core, int32_t from, int32_t not_domain)
{
    int32_t device = core->slot_device[from];
    float rest = (float)(core->device_load[device] - (double)core->slot_load[from]);
    best_swap best = {INFINITY, -1, -1};
    for (int32_t s = 0; s < core->n_slots; s++) {
        if (core->slot_device[s] == device ||
            (not_domain >= 0 && core->domain_of[core->slot_device[s]] == not_domain))
            continue;
        float here = rest + core->slot_load[s];
        float there = core->slot_rest[s] + core->slot_load[from];
        float higher = here > there ? here : there;
        if (higher < best.higher && is_legal(core, from, s)) best = (best_swap){higher, from, s};
    }
    return best.to;
}

void ek_place_repair(ek_place_core *core)
{
    refresh_all(core);
    for (int32_t s = 0; s < core->n_slots; s++) {
        int32_t e = core->slot_expert[s];
        if (e < 0 || core->count[e] < 2 || !ek_place_holds(core, core->slot_device[s], e, s))
            continue;
        int32_t partner = cheapest_partner(core, s, -1);
        if (partner >= 0) ek_place_swap(core, s, partner);
    }
    for (int32_t i = 0; core->domain_of && i < core->n_spread; i++) {
        int32_t e = core->order[i], domain = -1, partner = -1;
        if (core->count[e] < 2 || ek_place_domains(core, e, -1, &domain) != 1) continue;
        for (int32_t s = 0; s < core->n_slots && partner < 0; s++) {
            if (core->slot_expert[s] != e) continue;
            partner = cheapest_partner(core, s, domain);
            if (partner >= 0) ek_place_swap(core, s, partner);
        }
    }
}
