/*
 * The front's rebalancing: counts of experts to a placement (place/controller.h), and what that
 * comes to for each worker.
 *
 * Workers are the controller's devices, with so many slots in each layer as they have experts from
 * the start and room for more. What they were started with is fixed there, and so is what is empty
 * where a worker is full or has just failed at something; so a rebalance is made of replicas that
 * come, go and change places in the memory that workers give for it. A step is carried out by
 * saying what is wanted of workers (cluster/member_moves.h), and confirmed when they have it.
 *
 * One thread of its own, `ek-rebalance`; what others call is named.
 */
#ifndef EK_CLUSTER_REBALANCE_H
#define EK_CLUSTER_REBALANCE_H

#include "base/attr.h"
#include "base/err.h"
#include "cluster/front.h"
#include "telemetry/experts.h"

typedef struct ek_rebalance ek_rebalance;

/** Start, where params ask for it and there are workers to choose from. @return EK_OK; EK_ENOMEM */
EK_MUST ek_status ek_cluster_rebalance_start(ek_front *front, ek_rebalance **out_rebalance,
                                             ek_err *err);

/**
 * The engine's thread: from now on these are the counts; NULL: there are none any more.
 * @param stats borrowed until the next call
 */
void ek_cluster_rebalance_watch(ek_rebalance *rebalance, const ek_expert_stats *stats);

/** Any thread: what it is about. False: it does not run, or has not enough to go by yet. */
bool ek_cluster_rebalance_report(ek_rebalance *rebalance, ek_rebalance_report *out_report);

/** Ends its thread. Accepts NULL. */
void ek_cluster_rebalance_stop(ek_rebalance *rebalance);

#endif
