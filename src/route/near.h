/*
 * Near before far: which replica takes which token, when tokens have a home.
 *
 * ek_route_split (route/split.h) says how many tokens each replica takes, and the busiest device
 * depends on nothing else. Which ones is free, and decides how far activations travel: a token
 * whose own device, node or rack has a replica need not leave it. ek_route_assign_near hands
 * replicas out so that as few token-slots as these quotas allow leave their device, of those as few
 * as can be their node, and of those their rack. Deterministic; pure; scratch by value.
 */
#ifndef EK_ROUTE_NEAR_H
#define EK_ROUTE_NEAR_H

#include <stdint.h>

#include "route/split.h"

/** How far a token-slot travels; what is further is the larger number. */
typedef enum ek_route_distance {
    EK_ROUTE_SAME_DEVICE,
    EK_ROUTE_SAME_NODE,
    EK_ROUTE_SAME_RACK,
    EK_ROUTE_ACROSS_RACKS,
} ek_route_distance;
#define EK_ROUTE_N_DISTANCES (EK_ROUTE_ACROSS_RACKS + 1)

/** Where devices stand. Borrowed for the call. */
typedef struct ek_route_map {
    const int32_t *device_node; /* (n_devices of the replicas) any ids >= 0 */
    const int32_t *node_rack;   /* (highest node id + 1) NULL: all in one rack */
} ek_route_map;

/** Scratch bytes of ek_route_assign_near. */
size_t ek_route_near_bytes(const ek_route_replicas *replicas, int32_t n_ids);

/**
 * Hand out replicas by quota, near before far.
 * @param quota     (beg[n_experts]) as ek_route_split or ek_route_activate made them
 * @param expert_id (n_ids) the expert of each token-slot; counts must be those of the quotas
 * @param home      (n_ids) the device that each token-slot is on, < n_devices
 * @param out_slot  (n_ids) physical slot
 * @param out_n     token-slots by how far they travel; bytes are these times a token's
 * Cost O(n_experts + n_ids * replicas of its expert).
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_route_assign_near(const ek_route_replicas *replicas, const ek_route_map *map,
                                       const int32_t *quota, const uint16_t *expert_id,
                                       const uint16_t *home, int32_t n_ids, ek_arena scratch,
                                       uint16_t *out_slot, int64_t out_n[EK_ROUTE_N_DISTANCES]);

#endif
