#include "place/part.h"

#include <math.h>
#include <string.h>

/* Four at a time, because one addition has to wait for the other. */
ek_place_sum ek_place_sum_of(const double *loads, int32_t n)
{
    double total[4] = {0}, most[4], least[4];
    int32_t i = 0;
    for (int32_t k = 0; k < 4; k++)
        most[k] = least[k] = loads[0];
    for (; i + 4 <= n; i += 4)
        for (int32_t k = 0; k < 4; k++) {
            double load = loads[i + k];
            total[k] += load;
            most[k] = load > most[k] ? load : most[k];
            least[k] = load < least[k] ? load : least[k];
        }
    for (; i < n; i++) {
        total[0] += loads[i];
        most[0] = loads[i] > most[0] ? loads[i] : most[0];
        least[0] = loads[i] < least[0] ? loads[i] : least[0];
    }
    return (ek_place_sum){
        .total = (total[0] + total[1]) + (total[2] + total[3]),
        .most = fmax(fmax(most[0], most[1]), fmax(most[2], most[3])),
        .least = fmin(fmin(least[0], least[1]), fmin(least[2], least[3])),
    };
}

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
    if (topology->device_node) return topology->device_node[device];
    return device / (topology->n_devices / topology->n_nodes);
}

int32_t ek_place_rack_of(const ek_place_topology *topology, int32_t node)
{
    if (topology->n_racks <= 1) return 0;
    if (topology->node_rack) return topology->node_rack[node];
    return node / (topology->n_nodes / topology->n_racks);
}

int32_t ek_place_domain_of(const ek_place_topology *topology, ek_place_domain domain,
                           int32_t device)
{
    int32_t node = ek_place_node_of(topology, device);
    return domain == EK_PLACE_RACK ? ek_place_rack_of(topology, node) : node;
}

ek_place_distance ek_place_distance_of(const ek_place_topology *topology, int32_t device_a,
                                       int32_t device_b)
{
    if (device_a == device_b) return EK_PLACE_SAME_DEVICE;
    int32_t a = ek_place_node_of(topology, device_a), b = ek_place_node_of(topology, device_b);
    if (a == b) return EK_PLACE_SAME_NODE;
    return ek_place_rack_of(topology, a) == ek_place_rack_of(topology, b) ? EK_PLACE_SAME_RACK
                                                                          : EK_PLACE_ACROSS_RACKS;
}

size_t ek_place_part_bytes(const ek_place_topology *t)
{
    return (size_t)t->n_experts * (sizeof(int32_t) + sizeof(double)) +
           ((size_t)t->n_devices + 1) * 4 * sizeof(int32_t) + 8 * EK_CACHE_LINE;
}

void ek_place_part_init(ek_place_part *part, const ek_place_topology *t, int32_t node,
                        ek_place_domain spread_over, ek_arena *perm)
{
    *part = (ek_place_part){0};
    part->expert = ek_new(perm, int32_t, t->n_experts);
    part->load = ek_new(perm, double, t->n_experts);
    part->device = ek_new(perm, int32_t, t->n_devices);
    part->slot = ek_new(perm, int32_t, t->n_devices);
    part->domain = ek_new(perm, int32_t, t->n_devices);
    part->slot_beg = ek_new(perm, int32_t, t->n_devices + 1);
    for (int32_t d = 0, slot = 0; d < t->n_devices; d++) {
        int32_t n_slots = ek_place_slots_of(t, d), here = ek_place_node_of(t, d);
        if (!ek_place_is_dead(t, d) && (node < 0 || node == here)) {
            int32_t i = part->n_devices++;
            part->device[i] = d;
            part->slot[i] = slot;
            part->domain[i] = ek_place_domain_of(t, spread_over, d);
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

void ek_place_part_add_all(ek_place_part *part, int32_t n_experts, const double *loads)
{
    part->n_experts = n_experts;
    memcpy(part->load, loads, (size_t)n_experts * sizeof *loads);
    for (int32_t e = 0; e < n_experts; e++)
        part->expert[e] = e;
}

void ek_place_part_write(const ek_place_part *part, const int32_t *local, int32_t *slot_expert)
{
    for (int32_t i = 0; i < part->n_devices; i++)
        for (int32_t s = part->slot_beg[i]; s < part->slot_beg[i + 1]; s++)
            slot_expert[part->slot[i] + s - part->slot_beg[i]] =
                local[s] >= 0 ? part->expert[local[s]] : EK_PLACE_EMPTY;
}
