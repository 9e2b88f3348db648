/*
 * Expert placement: how many replicas each logical expert gets, and which device holds them.
 *
 * The job of DeepSeek's expert-parallel load balancer (github.com/deepseek-ai/EPLB), with another
 * objective. EPLB makes the largest *replica* small and then packs; what a step waits for is the
 * busiest *device*. So here the counts come from a divisor method of apportionment whose divisor is
 * tuned for the packing that follows (EPLB's rule is the special case divisor_shift = 0), the
 * packing is longest-first, and swaps against the busiest device then take the rest away.
 * docs/ROUTING.md tells the whole story with figures.
 *
 * Terms: a *logical expert* has one or more *replicas*, each in a *slot* of a *device*; devices
 * belong to *nodes*, nodes to *racks*. What fails together is a *domain*: a node or a rack. A
 * replica carries load/replicas tokens (equal split; the dispatcher does better within a batch).
 * Balance is the busiest device's load over the mean over the live devices.
 *
 * Pure: no allocation beyond the scratch arena (by value), no clock, no randomness; the same inputs
 * give the same placement on every machine. Any number of threads may solve at once, each with its
 * own scratch.
 */
#ifndef EK_PLACE_PLACE_H
#define EK_PLACE_PLACE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/attr.h"
#include "base/err.h"
#include "base/status.h"

#define EK_PLACE_EXPERTS_MAX 4096
#define EK_PLACE_SLOTS_MAX   16384
#define EK_PLACE_DEVICES_MAX 1024
#define EK_PLACE_EMPTY       (-1) /* a slot that holds nothing: on a dead device, or left over */

typedef enum ek_place_mode {
    EK_PLACE_QUICK, /* counts, packing and one swap: EPLB's balance in microseconds a layer */
    EK_PLACE_BEST,  /* swaps and tuned counts until target or effort is reached */
} ek_place_mode;

/** What devices have in common, for what must not fail together. */
typedef enum ek_place_domain {
    EK_PLACE_NODE,
    EK_PLACE_RACK,
} ek_place_domain;

/** How far weights or tokens travel; what is further is the larger number. */
typedef enum ek_place_distance {
    EK_PLACE_SAME_DEVICE,
    EK_PLACE_SAME_NODE,
    EK_PLACE_SAME_RACK,
    EK_PLACE_ACROSS_RACKS,
    EK_PLACE_FROM_STORAGE, /* no live device has it */
} ek_place_distance;
#define EK_PLACE_N_DISTANCES (EK_PLACE_FROM_STORAGE + 1)

/**
 * The machine, the same for every layer. Arrays are borrowed for the call. Zero what is not named:
 * later versions add fields whose zero is what was before.
 */
typedef struct ek_place_topology {
    int32_t n_experts; /* logical experts */
    int32_t n_slots;   /* of all devices, dead ones included */
    int32_t n_devices;
    int32_t n_nodes; /* without device_node: divides n_devices, neighbours share a node */
    /*
     * > 1: hierarchical, each group of experts stays on one node; divides n_experts; a multiple of
     * n_nodes.
     */
    int32_t n_groups;
    const int32_t *device_slots; /* (n_devices) summing to n_slots; NULL: equal */
    const bool *device_dead;     /* (n_devices) NULL: all alive */
    int32_t n_racks;             /* 0 or 1: one; without node_rack: divides n_nodes, likewise */
    /* Where nodes or racks are of different sizes, or numbered otherwise; each has one at least. */
    const int32_t *device_node; /* (n_devices) NULL: equal */
    const int32_t *node_rack;   /* (n_nodes) NULL: equal */
    /*
     * (n_slots) What lies there stays, and what is empty stays so: for rebalances only. NULL: none.
     */
    const bool *slot_fixed;
} ek_place_topology;

typedef struct ek_place_params {
    ek_place_mode mode;
    double target;           /* stop when busiest/mean is this or less; 1.00045 is a good value */
    int32_t effort_swaps;    /* most swaps of one packing; 400 */
    int32_t effort_packings; /* most packings tried for a layer (hierarchical: for a node); 32 */
    /*
     * So many of the hottest experts (lower id first where loads are equal) get two replicas at
     * least, on two domains at least; 0: none. Where slots do not suffice, or groups keep experts
     * on one node, as many as can be: n_together of the balance says how many are not.
     */
    int32_t spread_hottest;
    ek_place_domain spread_over;
} ek_place_params;

/** What a layer's placement achieves. */
typedef struct ek_place_balance {
    double max_over_mean; /* busiest device / mean device */
    double lower_bound;   /* no placement of these slots with equal split is below this */
    int32_t n_duplicates; /* slots that hold an expert that their device holds already */
    int32_t n_packings;   /* tried */
    int32_t n_swaps;      /* made in the packing that was kept */
    int32_t n_together;   /* experts that were to be spread and lie on one domain only */
} ek_place_balance;

void ek_place_params_default(ek_place_params *out_params);

/**
 * @return EK_OK; EK_EINVAL with a text that names the field: what cannot be placed is said before
 *         work begins
 */
EK_MUST ek_status ek_place_check(const ek_place_topology *topology, const ek_place_params *params,
                                 ek_err *err);

/** Scratch bytes that a solve of one layer needs. */
size_t ek_place_scratch_bytes(const ek_place_topology *topology);

/** Carried from layer to layer, to start from what worked before. */
typedef struct ek_place_hint {
    float divisor_shift;
    bool valid;
} ek_place_hint;

/**
 * Place one layer.
 * @param loads   (n_experts) tokens per expert, >= 0, finite; all zero is treated as all equal
 * @param hint    carried from layer to layer to start from what worked before; zero it first
 * @param scratch by value
 * @param out_slot_expert (n_slots) expert of each slot, or EK_PLACE_EMPTY; slots of a device are
 *                adjacent
 * Cost: O(slots * devices) for the packing, O(slots_per_device * n_slots) a swap.
 * @return EK_OK; EK_EINVAL (a topology that ek_place_check refuses, a load that is negative or not
 *         finite); EK_ENOMEM
 */
EK_MUST ek_status ek_place_layer(const ek_place_topology *topology, const ek_place_params *params,
                                 const double *loads, ek_place_hint *hint, ek_arena scratch,
                                 int32_t *out_slot_expert, ek_place_balance *out_balance);

/**
 * Measure a given placement under given loads.
 * @return EK_OK; EK_EINVAL an expert without replica, an id out of range
 */
EK_MUST ek_status ek_place_measure(const ek_place_topology *topology, const double *loads,
                                   const int32_t *slot_expert, ek_arena scratch,
                                   ek_place_balance *out_balance);

/** Least possible busiest/mean under equal split, whatever the placement (1 for no load). */
double ek_place_lower_bound(const ek_place_topology *topology, const double *loads);

/**
 * A higher bound, where groups stay on nodes, one each: besides a node's mean, what its twelve
 * heaviest experts come to when they are placed exactly, in every way that its spare slots allow,
 * with the lightest of the others where slots must take some, and the rest cut at will. Elsewhere,
 * on nodes of more than 32 devices, and as far as there are too many ways to look at, it is
 * ek_place_lower_bound's. Both hold for placements without two replicas of an expert on a device.
 * @param known busiest/mean of a placement, which shortens the search; 0: none
 * Cost: mostly some milliseconds a layer, at most some hundred; for reports, not for solves.
 */
double ek_place_tight_bound(const ek_place_topology *topology, const double *loads, double known);

int32_t ek_place_live_devices(const ek_place_topology *topology);

/** How far two devices are apart. Cost O(1). */
ek_place_distance ek_place_distance_of(const ek_place_topology *topology, int32_t device_a,
                                       int32_t device_b);

/**
 * Of the n_hottest experts, how many have all their replicas on live devices of one domain.
 * @param slot_expert (n_slots) a placement, ids in range
 * @param scratch     n_experts * 12 bytes
 * Cost O(n_slots + n_experts * n_hottest).
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_place_together(const ek_place_topology *topology, ek_place_domain domain,
                                    int32_t n_hottest, const double *loads,
                                    const int32_t *slot_expert, ek_arena scratch,
                                    int32_t *out_n_together);

#endif
