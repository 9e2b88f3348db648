/*
 * Which CPUs share a core and which are near which memory (hwloc), and how threads lie on them.
 *
 * A *node* here is a NUMA node: CPUs with memory of their own. Memory belongs to the node of the
 * thread that touches it first, and is read faster from there. Reading the topology asks the
 * operating system; laying out threads is arithmetic on what was read, so it is tested on
 * topologies that are not there.
 */
#ifndef EK_SYS_TOPOLOGY_H
#define EK_SYS_TOPOLOGY_H

#include <stdbool.h>
#include <stdint.h>

#include "base/attr.h"
#include "base/err.h"
#include "base/status.h"

#define EK_SYS_CPUS_MAX 1024 /* further ones are left out */

typedef struct ek_sys_cpu_place {
    int32_t cpu;  /* the kernel's number */
    int32_t node; /* 0.. in the order of the list */
    int32_t core; /* the same for CPUs that share one */
    int32_t rank; /* among those: 0 is the first */
} ek_sys_cpu_place;

/** CPUs that this process may use: by node, in each the first ones of all cores first. */
typedef struct ek_sys_topology {
    bool is_here; /* of this machine; else it is made up, and nothing can be pinned by it */
    int32_t n_nodes;
    int32_t n_cores;
    int32_t n_cpus;
    ek_sys_cpu_place cpu[EK_SYS_CPUS_MAX];
} ek_sys_topology;

/**
 * @param synthetic hwloc's description of a machine ("node:2 core:4 pu:2"), or NULL: this one, or
 *                  the one that the environment's HWLOC_SYNTHETIC or HWLOC_XMLFILE describes
 * A machine that cannot be read is one node of cores with a CPU each.
 * @return EK_OK; EK_EINVAL not a description; EK_ENOMEM
 */
EK_MUST ek_status ek_sys_topology_read(const char *synthetic, ek_sys_topology *out_topology,
                                       ek_err *err);

/**
 * A CPU for each thread. Nodes get threads in proportion to their cores (to their CPUs, when there
 * are more threads than cores), in order, and each CPU one thread as long as there are enough.
 * Threads of one group stay on one node where that is possible: where there are as many groups as
 * nodes at least, and no node would get more threads than it has cores or CPUs.
 * @param group    (n_threads) ascending ids of who works together
 * @param out_cpu  (n_threads) kernel numbers
 * @param out_node (n_threads)
 * Pure.
 */
void ek_sys_topology_spread(const ek_sys_topology *topology, int32_t n_threads,
                            const int32_t *group, int32_t *out_cpu, int32_t *out_node);

#endif
