#include "place/part.h"

bool ek_place_is_dead(const ek_place_topology *topology, int32_t device)
{
    return topology->device_dead && topology->device_dead[device];
}

int32_t ek_place_slots_of(const ek_place_topology *topology, int32_t device)
{
    return topology->device_slots ? topology->device_slots[device]
                                  : topology->n_slots / topology->n_devices;
}

int32_t ek_place_node_of(const ek_place_topology *topology, int32_t device)
{
    return device / (topology->n_devices / topology->n_nodes);
}

size_t ek_place_part_bytes(const ek_place_topology *t)
{
    return (size_t)t->n_experts * (sizeof(int32_t) + sizeof(double)) +
           ((size_t)t->n_devices + 1) * 4 * sizeof(int32_t) + 8 * EK_CACHE_LINE;
}

void ek_place_part_init(ek_place_part *part, const ek_place_topology *t, int32_t node,
                        ek_arena *perm)
{
    *part = (ek_place_part){0};
    part->expert = ek_new(perm, int32_t, t->n_experts);
    part->load = ek_new(perm, double, t->n_experts);
    part->device = ek_new(perm, int32_t, t->n_devices);
    part->slot = ek_new(perm, int32_t, t->n_devices);
    part->node = ek_new(perm, int32_t, t->n_devices);
    part->slot_beg = ek_new(perm, int32_t, t->n_devices + 1);
    for (int32_t d = 0, slot = 0; d < t->n_devices; d++) {
        int32_t n_slots = ek_place_slots_of(t, d), here = ek_place_node_of(t, d);
        if (!ek_place_is_dead(t, d) && (node < 0 || node == here)) {
            int32_t i = part->n_devices++;
            part->device[i] = d;
            part->slot[i] = slot;
            part->node[i] = here;
            part->slot_beg[i + 1] = part->slot_beg[i] + n_slots;
        }
        slot += n_slots;
    }
}

void ek_place_part_add_expert(ek_place_part *part, int32_t expert, double load)
{
    part->expert[part->n_experts] = expert;
    part->load[part->n_experts++] = load;
}

void ek_place_part_write(const ek_place_part *part, const int32_t *local, int32_t *slot_expert)
{
    for (int32_t i = 0; i < part->n_devices; i++)
        for (int32_t s = part->slot_beg[i]; s < part->slot_beg[i + 1]; s++)
            slot_expert[part->slot[i] + s - part->slot_beg[i]] =
                local[s] >= 0 ? part->expert[local[s]] : EK_PLACE_EMPTY;
}
