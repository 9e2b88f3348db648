#include <math.h>

#include "base/assert.h"
#include "place/part.h"

int32_t ek_place_live_devices(const ek_place_topology *t)
{
    int32_t n_live = 0;
    for (int32_t d = 0; d < t->n_devices; d++)
        n_live += !(t->device_dead && t->device_dead[d]);
    return n_live;
}

ek_status ek_place_measure(const ek_place_topology *t, const double *loads,
                           const int32_t *slot_expert, ek_arena scratch,
                           ek_place_balance *out_balance)
{
    int32_t *count = ek_try_new(&scratch, int32_t, t->n_experts);
    int32_t *seen_on = ek_try_new(&scratch, int32_t, t->n_experts);
    double *share = ek_try_new(&scratch, double, t->n_experts);
    if (!count || !seen_on || !share) return EK_ENOMEM;
    for (int32_t s = 0; s < t->n_slots; s++) {
        if (slot_expert[s] >= t->n_experts || slot_expert[s] < EK_PLACE_EMPTY) return EK_EINVAL;
        if (slot_expert[s] >= 0) count[slot_expert[s]]++;
    }
    double total = 0.0;
    for (int32_t e = 0; e < t->n_experts; e++) {
        if (count[e] == 0) return EK_EINVAL;
        seen_on[e] = -1;
        share[e] = loads[e] / count[e];
        total += loads[e];
    }
    int32_t slot = 0, n_duplicates = 0;
    double busiest = 0.0;
    for (int32_t d = 0; d < t->n_devices; d++) {
        int32_t n = t->device_slots ? t->device_slots[d] : t->n_slots / t->n_devices;
        double load = 0.0;
        for (int32_t s = slot; s < slot + n; s++) {
            int32_t e = slot_expert[s];
            if (e < 0) continue;
            load += share[e];
            n_duplicates += seen_on[e] == d;
            seen_on[e] = d;
        }
        slot += n;
        busiest = fmax(busiest, load);
    }
    double mean = total / ek_place_live_devices(t);
    *out_balance = (ek_place_balance){
        .max_over_mean = mean > 0.0 ? busiest / mean : 1.0,
        .lower_bound = ek_place_lower_bound(t, loads),
        .n_duplicates = n_duplicates,
    };
    return EK_OK;
}

ek_status ek_place_together(const ek_place_topology *t, ek_place_domain domain, int32_t n_hottest,
                            const double *loads, const int32_t *slot_expert, ek_arena scratch,
                            int32_t *out_n_together)
{
    enum { NOWHERE = -1, SEVERAL = -2 };
    int32_t *where = ek_try_new(&scratch, int32_t, t->n_experts);
    bool *counted = ek_try_new(&scratch, bool, t->n_experts);
    if (!where || !counted) return EK_ENOMEM;
    for (int32_t e = 0; e < t->n_experts; e++)
        where[e] = NOWHERE;
    for (int32_t d = 0, s = 0; d < t->n_devices; d++) {
        int32_t here = ek_place_domain_of(t, domain, d);
        for (int32_t n = ek_place_slots_of(t, d); n > 0; n--, s++) {
            int32_t e = slot_expert[s];
            if (e < 0 || ek_place_is_dead(t, d)) continue;
            where[e] = where[e] == NOWHERE || where[e] == here ? here : SEVERAL;
        }
    }
    int32_t n_together = 0;
    for (int32_t i = 0; i < n_hottest && i < t->n_experts; i++) {
        int32_t hottest = -1;
        for (int32_t e = 0; e < t->n_experts; e++)
            if (!counted[e] && (hottest < 0 || (float)loads[e] > (float)loads[hottest]))
                hottest = e; /* as floats, which is how a solve ranks them */
        counted[hottest] = true;
        n_together += where[hottest] != SEVERAL;
    }
    *out_n_together = n_together;
    return EK_OK;
}
