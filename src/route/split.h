/*
 * Splitting one batch over replicas: which replica of its expert does each token go to?
 *
 * All replicas of an expert compute the same thing, so this choice costs no quality; it only
 * decides how long the busiest device works. Given the batch's token count per expert and a
 * placement, ek_route_split finds quotas per replica whose busiest device has as few tokens as any
 * integer split can give (not an approximation: see docs/ROUTING.md for the argument), and
 * ek_route_assign hands replicas to tokens by them.
 *
 * Experts' quotas are first levelled over their devices in a few sweeps (block-coordinate descent
 * on the sum of squared device loads), then tokens are pushed off the busiest device along
 * augmenting paths device -> expert -> device until none is left. Deterministic; pure; scratch by
 * value.
 */
#ifndef EK_ROUTE_SPLIT_H
#define EK_ROUTE_SPLIT_H

#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/status.h"

#define EK_ROUTE_DEVICES_MAX 1024
#define EK_ROUTE_SLOTS_MAX   16384

/**
 * Where the usable replicas are: a CSR list over experts. Dead and draining replicas are simply not
 * in it.
 */
typedef struct ek_route_replicas {
    int32_t n_experts;
    int32_t n_slots;
    int32_t n_devices;
    int32_t *beg;    /* (n_experts + 1) */
    int32_t *slot;   /* (beg[n_experts]) physical slot, ascending within an expert */
    int32_t *device; /* (beg[n_experts]) device of that slot */
} ek_route_replicas;

/**
 * Build the lists from a placement.
 * @param slot_expert (n_slots) expert of each slot; < 0: not usable
 * @param slot_beg    (n_devices + 1) first slot of each device; the last one is n_slots
 * @return EK_OK; EK_EINVAL an id out of range, or an expert without a usable replica (err
 *         names it); EK_ENOMEM
 */
EK_MUST ek_status ek_route_replicas_build(const int32_t *slot_expert, const int32_t *slot_beg,
                                          int32_t n_experts, int32_t n_devices, ek_arena *perm,
                                          ek_route_replicas *out_replicas, ek_err *err);

/** Scratch bytes of split and assign. */
size_t ek_route_split_bytes(const ek_route_replicas *replicas);

/**
 * Quotas that make the busiest device as light as possible.
 * @param tokens      (n_experts) token-slots of this batch, >= 0; their sum fits int32
 * @param out_quota   (beg[n_experts]) tokens for each replica; sums to tokens[e] per expert
 * @param out_device  (n_devices) tokens per device
 * Cost: O(experts + replicas of the replicated ones * sweeps); 1 to 2 us for 256 experts on 32
 * devices.
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_route_split(const ek_route_replicas *replicas, const int32_t *tokens,
                                 ek_arena scratch, int32_t *out_quota, int32_t *out_device);

/** Count token-slots per expert: out_tokens (n_experts), zeroed here. */
void ek_route_count(const uint16_t *expert_id, int32_t n_ids, int32_t n_experts,
                    int32_t *out_tokens);

/**
 * Hand out replicas in token order by quota.
 * @param expert_id (n_ids) the expert of each token-slot; counts must be those that the
 *         quotas were made for
 * @param out_slot  (n_ids) physical slot
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_route_assign(const ek_route_replicas *replicas, const int32_t *quota,
                                  const uint16_t *expert_id, int32_t n_ids, ek_arena scratch,
                                  uint16_t *out_slot);

#endif
