/*
 * Local dispatcher: all experts in this process, computed as grouped FFNs over the packed lists.
 *
 * Each active expert reads its weights once per step for all of its tokens; (expert x row tile) is
 * the unit of work that the pool's threads take, so a hot expert is shared by all of them. Reports
 * busy time and service time per layer and expert to telemetry.
 */
#ifndef EK_EXPERT_LOCAL_H
#define EK_EXPERT_LOCAL_H

#include "base/err.h"
#include "expert/dispatch.h"
#include "kernels/kernels.h"
#include "model/desc.h"
#include "sys/pool.h"
#include "telemetry/experts.h"

/**
 * Make the dispatcher of a model whose experts all lie in this process.
 * @param model, kernels, pool borrowed until destroy; pool's owner thread is the only caller
 * @param stats   borrowed until destroy; NULL: nothing is counted
 * @return EK_OK; EK_ENOMEM
 */
EK_MUST ek_status ek_expert_local_create(const ek_model *model, const ek_kernels *kernels,
                                         ek_sys_pool *pool, ek_expert_stats *stats,
                                         ek_dispatcher **out_dispatcher, ek_err *err);

#endif
