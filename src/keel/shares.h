/*
 * Shares: which device computes which rows of a route plan.
 *
 * A plan lists rows by expert. Where an expert has replicas on several devices, its rows are cut
 * into runs, one for each replica that gets any, in the order of its slots. Which replica computes
 * a row changes nothing about the row, so shares are free to be whatever is quickest.
 *
 * What quickest means depends on the batch: where experts get few rows a device waits for the
 * weights that it has to read, and one more replica of an expert costs as much as many rows
 * (route/activate.h); where they get many, rows count (route/split.h, the same with knee 0). Pure.
 */
#ifndef EK_KEEL_SHARES_H
#define EK_KEEL_SHARES_H

#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/status.h"
#include "route/split.h"

/** In the form in which a dispatcher takes them (expert/dispatch.h). */
typedef struct ek_keel_shares {
    int32_t n_devices;
    int32_t n_shares;
    int32_t *device_beg;   /* (n_devices + 1) shares of each device */
    int32_t *share_expert; /* (n_shares) */
    int32_t *share_row;    /* (n_shares, 2) first row and the one after the last; never empty */
} ek_keel_shares;

/** Arena bytes that the two below take, scratch included. */
size_t ek_keel_shares_bytes(int32_t n_experts, int32_t n_slots, int32_t n_devices);

/**
 * One device computes everything.
 * @param expert_beg (n_experts + 1) of the plan
 * @param step       the shares' memory
 * @return EK_OK; EK_ENOMEM step full (nothing was taken from it)
 */
EK_MUST ek_status ek_keel_shares_whole(const int32_t *expert_beg, int32_t n_experts, ek_arena *step,
                                       ek_keel_shares *out_shares);

/**
 * Cut a plan over replicas.
 * @param knee rows of one expert that take a device as long as reading its weights
 * Cost: one ek_route_activate, and O(n_experts + n_slots).
 * @return EK_OK; EK_ENOMEM step full (nothing was taken from it)
 */
EK_MUST ek_status ek_keel_shares_split(const ek_route_replicas *replicas, const int32_t *expert_beg,
                                       int32_t knee, ek_arena *step, ek_keel_shares *out_shares);

#endif
