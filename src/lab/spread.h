/*
 * Which worker has which experts in a lab: a placement that is even in ordinary hours, and uneven
 * when traffic changes.
 *
 * An ordinary way to place experts is side by side as they are used together: a token then visits
 * fewer workers, and needs fewer messages. As long as traffic is what the placement was made from,
 * every worker has as much to do as the others. Under traffic of one kind the worker that has
 * this kind's experts has more than all others. Pure.
 */
#ifndef EK_LAB_SPREAD_H
#define EK_LAB_SPREAD_H

#include <stdint.h>

#include "base/attr.h"
#include "base/status.h"

#define EK_LAB_WORKERS_MAX 64
#define EK_LAB_EXPERTS_MAX 1024

/**
 * One layer: experts of the same kind of traffic side by side, every worker with about the same
 * part of the ordinary load.
 * @param ordinary   (n_experts) token-slots in ordinary traffic
 * @param kind       (n_experts) token-slots of the kind of traffic that experts are sorted by
 * @param n_experts  1..EK_LAB_EXPERTS_MAX
 * @param n_workers  1..n_experts, at most EK_LAB_WORKERS_MAX; each gets an expert at least
 * @param out_worker (n_experts) of each expert; 0 has those that `kind` prefers most
 * @return EK_OK; EK_EINVAL a count is out of range
 */
EK_MUST ek_status ek_lab_together(const int64_t *ordinary, const int64_t *kind, int32_t n_experts,
                                  int32_t n_workers, int32_t *out_worker);

/**
 * One layer: a second replica of the experts that are hottest in ordinary traffic. The replicas of
 * one worker's experts are spread over the others, the least loaded first.
 * @param worker       (n_experts) as from ek_lab_together
 * @param n_replicas   0..n_experts
 * @param out_replica  (n_experts) worker of the second replica; -1: none. All -1 with one worker
 * @return EK_OK; EK_EINVAL a count is out of range
 */
EK_MUST ek_status ek_lab_replicas(const int64_t *ordinary, const int32_t *worker, int32_t n_experts,
                                  int32_t n_workers, int32_t n_replicas, int32_t *out_replica);

#endif
