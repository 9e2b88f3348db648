/*
 * Experts that move, for a front: who of its workers shall have what, and what is told of it. What
 * is wanted of a worker is carried out by its member's thread (cluster/member_moves.h).
 */
#ifndef EK_CLUSTER_MOVES_H
#define EK_CLUSTER_MOVES_H

#include "cluster/front_internal.h"

/** Bytes of one expert in the layer where they are most. */
int64_t ek_cluster_moves_expert_bytes(const ek_model *model);

/** Register what is counted. */
void ek_cluster_moves_metrics(ek_front *front, ek_metrics *metrics);

/** Experts that a worker may come to have in a layer. Under front->lock. */
int32_t ek_cluster_moves_slots_locked(const ek_member *member, int32_t layer);

/** Under front->lock. */
void ek_cluster_moves_report_locked(const ek_member *member, ek_member_moves_report *out_report);

#endif
