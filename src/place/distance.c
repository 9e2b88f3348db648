#include "place/part.h"
#include "place/rebalance.h"

static int32_t device_of(const ek_place_topology *t, int32_t slot)
{
    int32_t d = 0;
    for (int32_t end = ek_place_slots_of(t, 0); slot >= end; end += ek_place_slots_of(t, d))
        d++;
    return d;
}

int32_t ek_place_source(const ek_place_topology *t, const int32_t *slot_expert, int32_t slot,
                        int32_t expert, ek_place_distance *out_distance)
{
    int32_t home = device_of(t, slot), source = -1;
    ek_place_distance nearest = EK_PLACE_FROM_STORAGE;
    for (int32_t d = 0, s = 0; d < t->n_devices; d++) {
        int32_t end = s + ek_place_slots_of(t, d);
        ek_place_distance here = ek_place_distance_of(t, d, home);
        bool is_dead = ek_place_is_dead(t, d);
        for (; s < end; s++) {
            if (is_dead || here >= nearest || slot_expert[s] != expert) continue;
            nearest = here;
            source = s;
        }
    }
    if (out_distance) *out_distance = nearest;
    return source;
}

void ek_place_moves_apply(const ek_place_topology *t, const ek_place_move *moves, int32_t n_moves,
                          int32_t *slot_expert, int64_t out_n[EK_PLACE_N_DISTANCES])
{
    for (int32_t i = 0; i < n_moves; i++) {
        const ek_place_move *move = &moves[i];
        ek_place_distance distance;
        (void)ek_place_source(t, slot_expert, move->slot, move->expert, &distance);
        out_n[distance]++;
        /* Both of a swap travel before either slot is overwritten. */
        if (move->other_slot >= 0 && move->other_expert >= 0) {
            (void)ek_place_source(t, slot_expert, move->other_slot, move->other_expert, &distance);
            out_n[distance]++;
        }
        slot_expert[move->slot] = move->expert;
        if (move->other_slot >= 0) slot_expert[move->other_slot] = move->other_expert;
    }
}
