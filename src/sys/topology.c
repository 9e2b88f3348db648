#include "sys/topology.h"

#include <hwloc.h>
#include <string.h>

#include "base/assert.h"
#include "sys/thread.h"

/* ---- reading ---- */

/* One node, a core for each CPU that may be used. */
static void make_flat(ek_sys_topology *out)
{
    *out = (ek_sys_topology){.is_here = true, .n_nodes = 1};
    for (int32_t cpu = 0; out->n_cpus < EK_SYS_CPUS_MAX && cpu < EK_SYS_CPUS_MAX; cpu++)
        if (ek_sys_cpu_allowed(cpu)) {
            out->cpu[out->n_cpus] = (ek_sys_cpu_place){.cpu = cpu, .core = out->n_cpus};
            out->n_cpus++;
        }
    out->n_cores = out->n_cpus;
}

/* hwloc's number of a node to ours, in the order in which they are met. */
static int32_t node_of(int32_t *known, int32_t *n_nodes, int32_t os_index)
{
    int32_t n = 0;
    while (n < *n_nodes && known[n] != os_index)
        n++;
    if (n == *n_nodes) known[(*n_nodes)++] = os_index;
    return n;
}

static int32_t rank_on_core(const ek_sys_topology *t, int32_t core)
{
    int32_t rank = 0;
    for (int32_t i = 0; i < t->n_cpus; i++)
        rank += t->cpu[i].core == core;
    return rank;
}

static bool is_before(const ek_sys_cpu_place *a, const ek_sys_cpu_place *b)
{
    if (a->node != b->node) return a->node < b->node;
    if (a->rank != b->rank) return a->rank < b->rank;
    return a->core < b->core;
}

static void insert_sorted(ek_sys_topology *t, ek_sys_cpu_place place)
{
    int32_t at = t->n_cpus++;
    for (; at > 0 && is_before(&place, &t->cpu[at - 1]); at--)
        t->cpu[at] = t->cpu[at - 1];
    t->cpu[at] = place;
}

static void take_cpus(hwloc_topology_t machine, ek_sys_topology *out)
{
    int32_t known[EK_SYS_CPUS_MAX];
    *out = (ek_sys_topology){.is_here = hwloc_topology_is_thissystem(machine) == 1};
    for (hwloc_obj_t pu = NULL; out->n_cpus < EK_SYS_CPUS_MAX;) {
        pu = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_PU, pu);
        if (!pu) break;
        ek_sys_cpu_place place = {.cpu = (int32_t)pu->os_index};
        if (out->is_here && !ek_sys_cpu_allowed(place.cpu)) continue;
        hwloc_obj_t core = hwloc_get_ancestor_obj_by_type(machine, HWLOC_OBJ_CORE, pu);
        /* Without cores each CPU is one; numbers below zero keep clear of those that there are. */
        place.core = core ? (int32_t)core->logical_index : -1 - (int32_t)pu->logical_index;
        place.node = node_of(known, &out->n_nodes, hwloc_bitmap_first(pu->nodeset));
        place.rank = rank_on_core(out, place.core);
        out->n_cores += place.rank == 0;
        insert_sorted(out, place);
    }
}

ek_status ek_sys_topology_read(const char *synthetic, ek_sys_topology *out_topology, ek_err *err)
{
    hwloc_topology_t machine;
    if (hwloc_topology_init(&machine) != 0)
        return ek_err_set(err, EK_ENOMEM, "no memory to read the machine's topology");
    ek_status status = EK_OK;
    if (synthetic && hwloc_topology_set_synthetic(machine, synthetic) != 0)
        status = ek_err_set(err, EK_EINVAL, "'%s' does not describe a topology", synthetic);
    if (status == EK_OK) {
        if (hwloc_topology_load(machine) == 0)
            take_cpus(machine, out_topology);
        else
            make_flat(out_topology);
        if (out_topology->n_cpus == 0) make_flat(out_topology);
    }
    hwloc_topology_destroy(machine);
    return status;
}

/* ---- laying out ---- */

/* The CPUs that threads are divided by: one of each core, or all. */
typedef struct seats {
    const ek_sys_topology *t;
    bool all;
    int32_t n;
} seats;

static bool is_seat(const seats *s, int32_t i)
{
    return s->all || s->t->cpu[i].rank == 0;
}

/* Node of the seat at a position, counted by node. */
static int32_t node_at(const seats *s, int64_t position)
{
    for (int32_t i = 0; i < s->t->n_cpus; i++)
        if (is_seat(s, i) && position-- == 0) return s->t->cpu[i].node;
    return s->t->n_nodes - 1;
}

/* Whether no node has more threads than seats, or there are not enough for all anyhow. */
static bool fits(const seats *s, int32_t n_threads, const int32_t *node)
{
    int32_t left[EK_SYS_CPUS_MAX] = {0};
    if (n_threads > s->n) return true;
    for (int32_t i = 0; i < s->t->n_cpus; i++)
        left[s->t->cpu[i].node] += is_seat(s, i);
    for (int32_t t = 0; t < n_threads; t++)
        if (left[node[t]]-- == 0) return false;
    return true;
}

static int32_t group_end(const int32_t *group, int32_t n_threads, int32_t beg)
{
    int32_t end = beg + 1;
    while (end < n_threads && group[end] == group[beg])
        end++;
    return end;
}

/* Each run of threads on the node where its middle falls. @return number of runs */
static int32_t nodes_by_group(const seats *s, int32_t n_threads, const int32_t *group,
                              int32_t *out_node)
{
    int32_t n_groups = 0;
    for (int32_t beg = 0, end; beg < n_threads; beg = end, n_groups++) {
        end = group_end(group, n_threads, beg);
        int32_t node = node_at(s, (int64_t)(beg + end) * s->n / (2 * (int64_t)n_threads));
        for (int32_t t = beg; t < end; t++)
            out_node[t] = node;
    }
    return n_groups;
}

/* The k-th CPU of a node, from the first again when there are no more. */
static int32_t cpu_of_node(const ek_sys_topology *t, int32_t node, int32_t k)
{
    int32_t beg = 0, n = 0;
    while (t->cpu[beg].node != node)
        beg++;
    while (beg + n < t->n_cpus && t->cpu[beg + n].node == node)
        n++;
    return t->cpu[beg + k % n].cpu;
}

void ek_sys_topology_spread(const ek_sys_topology *topology, int32_t n_threads,
                            const int32_t *group, int32_t *out_cpu, int32_t *out_node)
{
    ek_assert(topology->n_cpus > 0);
    seats s = {.t = topology, .all = n_threads > topology->n_cores};
    s.n = s.all ? topology->n_cpus : topology->n_cores;
    int32_t n_groups = nodes_by_group(&s, n_threads, group, out_node);
    if (n_groups < topology->n_nodes || !fits(&s, n_threads, out_node))
        for (int32_t t = 0; t < n_threads; t++)
            out_node[t] = node_at(&s, (2 * (int64_t)t + 1) * s.n / (2 * (int64_t)n_threads));
    int32_t n_on[EK_SYS_CPUS_MAX] = {0};
    for (int32_t t = 0; t < n_threads; t++)
        out_cpu[t] = cpu_of_node(topology, out_node[t], n_on[out_node[t]]++);
}
