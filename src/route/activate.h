/*
 * Splitting one small batch over replicas: as few weights as possible to be read on any device.
 *
 * While a batch is small a device's time is not its tokens but the weights that it has to read, one
 * expert's for each replica that gets a token at all. By the roofline a device with `active`
 * replicas and `tokens` token-slots takes
 *
 *     max(knee * active, tokens)       in units of one token-slot's arithmetic,
 *
 * where the *knee* is how many token-slots take as long as reading one expert's weights.
 * ek_route_activate finds quotas that make the highest of these low: each expert goes to one
 * replica wherever that is possible, to more only where its tokens would otherwise be what the
 * batch waits for. With knee 0 this is ek_route_split (route/split.h), whose lists and quotas it
 * shares; ek_route_assign hands the replicas out. docs/ROUTING.md has the argument and figures.
 * Deterministic; pure; scratch by value.
 */
#ifndef EK_ROUTE_ACTIVATE_H
#define EK_ROUTE_ACTIVATE_H

#include <stdint.h>

#include "route/split.h"

/** What quotas mean for the devices. Times are in token-slots. */
typedef struct ek_route_activation {
    int64_t busiest;      /* highest max(knee * active, tokens) of a device */
    int64_t bound;        /* no quotas have less; where it is `busiest`, they are optimal */
    int32_t n_active;     /* replicas that get tokens */
    int32_t n_active_max; /* of one device */
    int32_t n_tokens_max; /* of one device */
} ek_route_activation;

/**
 * The knee of a device: token-slots that take as long as reading one expert's weights, rounded.
 * @param expert_bytes  of one expert's weights in one layer
 * @param bytes_per_s   at which they are read
 * @param seconds_per_row that one token-slot takes once they are there
 * @return in [0, INT32_MAX]; 0 where an argument is not positive
 */
int32_t ek_route_knee(double expert_bytes, double bytes_per_s, double seconds_per_row);

/** Scratch bytes of ek_route_activate. */
size_t ek_route_activate_bytes(const ek_route_replicas *replicas);

/**
 * Quotas for a batch whose devices read weights and compute at the same time.
 * Source: semi-matchings of Harvey, Ladner, Lovasz and Tamir, "Semi-matchings for bipartite graphs
 * and load balancing", WADS 2003, section 3.2; differs: only the busiest device is made optimal,
 * and a local search takes over where tokens rather than weights are what devices wait for.
 * @param tokens    (n_experts) token-slots of this batch, >= 0; their sum fits int32
 * @param knee      >= 0
 * @param out_quota (beg[n_experts]) tokens for each replica; sums to tokens[e] per expert
 * Optimal where no device has more tokens than the most activated one has knees, which is where
 * decode batches are. Above that, where the token split is not optimal either, the problem is
 * NP-hard; the answer is then at most that of either, and `bound` says how far it may be off.
 * Cost: some 2 us for 256 experts in 512 slots on 32 devices; 10 to 20 us above the knee.
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_route_activate(const ek_route_replicas *replicas, const int32_t *tokens,
                                    int32_t knee, ek_arena scratch, int32_t *out_quota,
                                    ek_route_activation *out_activation);

#endif
