#include <math.h>
#include <string.h>

#include "place/core.h"

#define EXPERTS_LOOKED 12  /* that an estimate takes into account */
#define TRIALS_MAX     500 /* ways to hand out the spares that are estimated */
#define DEVICES_MAX    64

/* Number of ways to write n as an ordered sum of k parts, cut off above TRIALS_MAX. */
static int32_t n_ways(int32_t n, int32_t k)
{
    int64_t ways = 1;
    for (int32_t i = 1; i < k && ways <= TRIALS_MAX; i++)
        ways = ways * (n + i) / i;
    return ways > TRIALS_MAX ? TRIALS_MAX + 1 : (int32_t)ways;
}

/* The next such sum; *h and *t are the algorithm's own. Source: Nijenhuis and Wilf, NEXCOM. */
static bool next_sum(int32_t *part, int32_t k, int32_t n, int32_t *t, int32_t *h)
{
    if (n == 0 || part[k - 1] == n) return false;
    if (*t > 1) *h = 0;
    (*h)++;
    *t = part[*h - 1];
    part[*h - 1] = 0;
    part[0] = *t - 1;
    part[*h]++;
    return true;
}

/*
 * Load of the busiest device after the heaviest experts alone are packed, longest replica first,
 * those of one expert onto distinct devices.
 */
static double pack_heaviest(const ek_place_core *core, const int32_t *extra, int32_t n_tuned)
{
    double share[EXPERTS_LOOKED], load[DEVICES_MAX] = {0};
    int32_t count[EXPERTS_LOOKED], n = 0;
    for (; n < core->n_experts && n < EXPERTS_LOOKED; n++) {
        int32_t c = n < n_tuned ? 1 + extra[n] : 1, at = n;
        double here = core->load[core->order[n]] / c;
        for (; at > 0 && share[at - 1] < here; at--) {
            share[at] = share[at - 1];
            count[at] = count[at - 1];
        }
        share[at] = here;
        count[at] = c;
    }
    for (int32_t i = 0; i < n; i++) {
        /* Devices are kept in ascending order, so the first ones are the lightest. */
        for (int32_t d = 0; d < count[i]; d++)
            load[d] += share[i];
        for (int32_t d = 1; d < core->n_devices; d++) {
            double moving = load[d];
            int32_t at = d;
            for (; at > 0 && load[at - 1] > moving; at--)
                load[at] = load[at - 1];
            load[at] = moving;
        }
    }
    return load[core->n_devices - 1];
}

int32_t ek_place_counts_enumerate(const ek_place_core *core, double busiest, int32_t max,
                                  ek_place_handout *out)
{
    int32_t least[EK_PLACE_TUNED_MAX], part[EK_PLACE_TUNED_MAX] = {0}, t, h = 0, n = 0;
    int32_t n_left = core->n_slots - core->n_experts, n_tuned = 0;
    if (core->n_devices > DEVICES_MAX || core->n_devices < 2) return 0;
    /* No replica may weigh as much as the busiest device does already. */
    for (; n_tuned < EK_PLACE_TUNED_MAX && n_tuned < core->n_experts; n_tuned++) {
        double need = floor(core->load[core->order[n_tuned]] / (busiest * (1.0 - 1e-9)));
        if (need > core->n_devices - 1) return 0;
        least[n_tuned] = (int32_t)need;
        n_left -= least[n_tuned];
    }
    if (n_left < 0) return 0;
    while (n_tuned > 1 && n_ways(n_left, n_tuned) > TRIALS_MAX) {
        n_tuned--;
        n_left += least[n_tuned];
    }
    part[0] = t = n_left;
    do {
        ek_place_handout here = {.n = n_tuned};
        bool fits = true;
        for (int32_t i = 0; i < n_tuned; i++) {
            here.extra[i] = least[i] + part[i];
            fits &= here.extra[i] < core->n_devices;
        }
        if (!fits) continue;
        here.estimate = pack_heaviest(core, here.extra, n_tuned);
        int32_t at = n;
        for (; at > 0 && out[at - 1].estimate > here.estimate; at--)
            if (at < max) out[at] = out[at - 1];
        if (at == max) continue;
        out[at] = here;
        n = n < max ? n + 1 : max;
    } while (next_sum(part, n_tuned, n_left, &t, &h));
    return n;
}
