#include "route/near.h"

#include <string.h>

/* One assignment in progress. */
typedef struct giver {
    const ek_route_replicas *r;
    const ek_route_map *map;
    const uint16_t *home;
    int32_t *left;   /* (beg[n_experts]) of the quotas */
    int32_t *id_beg; /* (n_experts + 1) */
    int32_t *id;     /* (n_ids) token-slots by expert, in their order */
    uint16_t *slot;  /* (n_ids) result */
    int64_t *n;      /* (EK_ROUTE_N_DISTANCES) result */
} giver;

size_t ek_route_near_bytes(const ek_route_replicas *r, int32_t n_ids)
{
    size_t n = (size_t)r->beg[r->n_experts] + (size_t)r->n_experts + 1 + (size_t)n_ids;
    return n * sizeof(int32_t) + 3 * EK_CACHE_LINE;
}

static ek_route_distance distance_of(const ek_route_map *map, int32_t a, int32_t b)
{
    if (a == b) return EK_ROUTE_SAME_DEVICE;
    int32_t node_a = map->device_node[a], node_b = map->device_node[b];
    if (node_a == node_b) return EK_ROUTE_SAME_NODE;
    return !map->node_rack || map->node_rack[node_a] == map->node_rack[node_b]
               ? EK_ROUTE_SAME_RACK
               : EK_ROUTE_ACROSS_RACKS;
}

static void list_by_expert(giver *g, const uint16_t *expert_id, int32_t n_ids)
{
    int32_t n_experts = g->r->n_experts;
    for (int32_t i = 0; i < n_ids; i++)
        g->id_beg[expert_id[i] + 1]++;
    for (int32_t e = 0; e < n_experts; e++)
        g->id_beg[e + 1] += g->id_beg[e];
    /* id_beg[e] serves as the write position and is moved back afterwards. */
    for (int32_t i = 0; i < n_ids; i++)
        g->id[g->id_beg[expert_id[i]]++] = i;
    for (int32_t e = n_experts; e > 0; e--)
        g->id_beg[e] = g->id_beg[e - 1];
    g->id_beg[0] = 0;
}

/*
 * Level by level: first whoever has a replica on its own device, then on its node, on its rack,
 * anywhere. Within a level, tokens and replicas of one domain are all alike, so taking the first
 * that is left wastes nothing, and what a level leaves is either tokens or replicas of a domain:
 * the same number whoever was taken. Hence no other order leaves fewer to travel further.
 */
static void give_expert(giver *g, int32_t expert)
{
    int32_t *pending = g->id + g->id_beg[expert];
    int32_t n = g->id_beg[expert + 1] - g->id_beg[expert];
    int32_t beg = g->r->beg[expert], end = g->r->beg[expert + 1];
    for (int level = EK_ROUTE_SAME_DEVICE; level < EK_ROUTE_N_DISTANCES; level++) {
        int32_t n_kept = 0;
        for (int32_t i = 0; i < n; i++) {
            int32_t id = pending[i], k = beg;
            while (k < end && (g->left[k] == 0 ||
                               (int)distance_of(g->map, g->home[id], g->r->device[k]) > level))
                k++;
            if (k == end) {
                pending[n_kept++] = id;
                continue;
            }
            g->left[k]--;
            g->slot[id] = (uint16_t)g->r->slot[k];
            g->n[level]++;
        }
        n = n_kept;
    }
}

ek_status ek_route_assign_near(const ek_route_replicas *r, const ek_route_map *map,
                               const int32_t *quota, const uint16_t *expert_id,
                               const uint16_t *home, int32_t n_ids, ek_arena scratch,
                               uint16_t *out_slot, int64_t out_n[EK_ROUTE_N_DISTANCES])
{
    if (ek_arena_free_bytes(&scratch) < ek_route_near_bytes(r, n_ids)) return EK_ENOMEM;
    size_t n_replicas = (size_t)r->beg[r->n_experts];
    giver g = {.r = r, .map = map, .home = home, .slot = out_slot, .n = out_n};
    g.left = ek_new(&scratch, int32_t, n_replicas);
    g.id_beg = ek_new(&scratch, int32_t, r->n_experts + 1);
    g.id = ek_new(&scratch, int32_t, n_ids);
    memcpy(g.left, quota, n_replicas * sizeof *quota);
    memset(out_n, 0, EK_ROUTE_N_DISTANCES * sizeof *out_n);
    list_by_expert(&g, expert_id, n_ids);
    for (int32_t e = 0; e < r->n_experts; e++)
        give_expert(&g, e);
    return EK_OK;
}
