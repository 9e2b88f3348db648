/*
 * A data link's self-test, when a worker joins: how long a small message takes there and back, how
 * many bytes a second get through, and whether they arrive as they were sent. It costs at most two
 * seconds and some MB, before any request depends on the link; heartbeats wait meanwhile.
 */
#ifndef EK_CLUSTER_PROBE_H
#define EK_CLUSTER_PROBE_H

#include <stddef.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "cluster/params.h"
#include "link/fabric.h"

typedef struct ek_link_quality {
    int64_t latency_us;  /* median, there and back; -1: not measured */
    int64_t bytes_per_s; /* of a long message and its echo, each way; -1: not measured */
} ek_link_quality;

/**
 * Measure. The worker answers each PROBE with its own bytes.
 * @param link      attached; the caller's
 * @param bytes_max longest body that the worker takes
 * @return EK_OK; EK_ETIMEOUT no answer in time; EK_EPEER the link broke; EK_EFORMAT what came back
 *         is not what was sent; EK_ENOMEM
 */
EK_MUST ek_status ek_cluster_probe(ek_link *link, uint32_t epoch, size_t bytes_max,
                                   ek_link_quality *out_quality, ek_err *err);

/**
 * Is it good enough for cluster.link_latency_max and cluster.link_bandwidth_min?
 * @return EK_OK; EK_ERANGE no, and err says by how much. What was not measured is good enough
 */
EK_MUST ek_status ek_cluster_probe_judge(const ek_link_quality *quality,
                                         const ek_cluster_params *params, ek_err *err);

#endif
