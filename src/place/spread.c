/*
 * Spreading: hot experts on two domains at least, so that one that fails takes none of them along.
 */
#include "place/core.h"

static void set_count(ek_place_core *core, int32_t expert, int32_t count)
{
    core->count[expert] = count;
    core->replica_load[expert] = core->load[expert] / count;
}

/* Who is left with the lightest replicas by giving one away, and may; -1: nobody. */
static int32_t lightest_giver(const ek_place_core *core)
{
    int32_t giver = -1;
    double least = 0.0;
    for (int32_t e = 0; e < core->n_experts; e++) {
        int32_t kept = core->rank[e] < core->n_spread ? 2 : 1;
        if (core->count[e] <= kept) continue;
        double left = core->load[e] / (core->count[e] - 1);
        if (giver >= 0 && left >= least) continue;
        giver = e;
        least = left;
    }
    return giver;
}

void ek_place_spread_counts(ek_place_core *core)
{
    int32_t n_free = core->n_slots;
    for (int32_t e = 0; e < core->n_experts; e++)
        n_free -= core->count[e];
    for (int32_t i = 0; i < core->n_spread && core->n_devices > 1; i++) {
        if (core->count[core->order[i]] > 1) continue;
        if (n_free > 0) {
            n_free--;
        } else {
            int32_t giver = lightest_giver(core);
            if (giver < 0) return;
            set_count(core, giver, core->count[giver] - 1);
        }
        set_count(core, core->order[i], 2);
    }
}

int32_t ek_place_domains(const ek_place_core *core, int32_t expert, int32_t except_slot,
                         int32_t *out_domain)
{
    int32_t domain = -1;
    for (int32_t s = 0; s < core->n_slots; s++) {
        if (core->slot_expert[s] != expert || s == except_slot) continue;
        int32_t here = core->domain_of[core->slot_device[s]];
        if (domain >= 0 && here != domain) return 2;
        domain = here;
    }
    if (domain < 0) return 0;
    *out_domain = domain;
    return 1;
}

/*
 * The slot outside `domain` that another replica of the expert may take and whose device has least
 * to do besides; -1: there is none.
 */
static int32_t slot_elsewhere(const ek_place_core *core, int32_t expert, int32_t domain)
{
    int32_t best = -1;
    double lightest = 0.0;
    for (int32_t s = 0; s < core->n_slots; s++) {
        int32_t device = core->slot_device[s], old = core->slot_expert[s];
        double rest = core->device_load[device] - (double)core->slot_load[s];
        bool is_free = old < 0 || (old != expert && core->count[old] > 1);
        if (!is_free || core->domain_of[device] == domain || (best >= 0 && rest >= lightest) ||
            ek_place_holds(core, device, expert, s) || !ek_place_keeps_spread(core, s, -1))
            continue;
        best = s;
        lightest = rest;
    }
    return best;
}

static void refresh_loads(ek_place_core *core)
{
    for (int32_t d = 0; d < core->n_devices; d++)
        core->device_load[d] = 0.0;
    for (int32_t s = 0; s < core->n_slots; s++) {
        int32_t e = core->slot_expert[s];
        double load = e >= 0 ? core->replica_load[e] : 0.0;
        core->slot_load[s] = (float)load;
        core->device_load[core->slot_device[s]] += load;
    }
}

void ek_place_spread_by_copies(ek_place_core *core)
{
    for (int32_t i = 0; i < core->n_spread; i++) {
        int32_t e = core->order[i], domain = -1;
        if (ek_place_domains(core, e, -1, &domain) != 1) continue;
        int32_t slot = slot_elsewhere(core, e, domain);
        if (slot < 0) continue;
        int32_t old = core->slot_expert[slot];
        if (old >= 0) set_count(core, old, core->count[old] - 1);
        set_count(core, e, core->count[e] + 1);
        core->slot_expert[slot] = e;
        refresh_loads(core);
    }
}

int32_t ek_place_core_together(const ek_place_core *core)
{
    int32_t n_together = 0, domain;
    for (int32_t i = 0; i < core->n_spread; i++)
        n_together += ek_place_domains(core, core->order[i], -1, &domain) < 2;
    return n_together;
}

bool ek_place_keeps_spread(const ek_place_core *core, int32_t slot, int32_t device)
{
    int32_t e = core->slot_expert[slot], domain = -1;
    if (core->n_spread == 0 || e < 0 || core->rank[e] >= core->n_spread || core->count[e] < 2)
        return true;
    if (ek_place_domains(core, e, slot, &domain) != 1) return true;
    /* What lies together already cannot fall together. */
    return domain == core->domain_of[core->slot_device[slot]] ||
           (device >= 0 && core->domain_of[device] != domain);
}
