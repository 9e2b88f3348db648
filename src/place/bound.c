/*
 * Lower bounds on the busiest device: the quick one that every solve reports, and a tighter one for
 * groups on nodes, where the hottest experts of a node cannot be divided evenly.
 */
#include <math.h>

#include "place/part.h"

/* Live devices and slots of a node. */
typedef struct node_size {
    int32_t n_devices;
    int32_t n_slots;
    int32_t n_slots_max; /* of a device */
} node_size;

static void measure_nodes(const ek_place_topology *t, node_size *out_node)
{
    for (int32_t n = 0; n < t->n_nodes; n++)
        out_node[n] = (node_size){0};
    for (int32_t d = 0; d < t->n_devices; d++) {
        if (ek_place_is_dead(t, d)) continue;
        node_size *node = &out_node[ek_place_node_of(t, d)];
        node->n_devices++;
        int32_t n_slots = ek_place_slots_of(t, d);
        node->n_slots += n_slots;
        node->n_slots_max = n_slots > node->n_slots_max ? n_slots : node->n_slots_max;
    }
}

static bool has_node_each(const ek_place_topology *t)
{
    return t->n_groups == t->n_nodes && t->n_nodes > 1;
}

static double group_load(const ek_place_topology *t, const double *loads, int32_t group)
{
    int32_t per_group = t->n_experts / t->n_groups;
    double load = 0.0;
    for (int32_t e = group * per_group; e < (group + 1) * per_group; e++)
        load += loads[e];
    return load;
}

double ek_place_bound_of(const ek_place_topology *t, const double *loads, const ek_place_sum *sum)
{
    int32_t n_live = ek_place_live_devices(t);
    if (sum->total <= 0.0) return 1.0;
    double mean = sum->total / n_live;
    /*
     * One replica of the hottest expert cannot carry less than its share over all slots that could
     * be its own.
     */
    int32_t most = t->n_slots - (t->n_experts - 1);
    most = most < n_live ? most : n_live;
    double lowest = fmax(1.0, sum->most / most / mean);
    if (has_node_each(t)) {
        /*
         * Groups stay on their nodes, one each: the heaviest group's node cannot get rid of its
         * load, be it the largest one that there is.
         */
        node_size node[EK_PLACE_DEVICES_MAX];
        int32_t largest = 0;
        measure_nodes(t, node);
        for (int32_t n = 0; n < t->n_nodes; n++)
            largest = node[n].n_devices > largest ? node[n].n_devices : largest;
        for (int32_t g = 0; g < t->n_groups; g++)
            lowest = fmax(lowest, group_load(t, loads, g) / largest / mean);
    }
    return lowest;
}

double ek_place_lower_bound(const ek_place_topology *t, const double *loads)
{
    ek_place_sum sum = ek_place_sum_of(loads, t->n_experts);
    return ek_place_bound_of(t, loads, &sum);
}

/* ---- the tighter one ---- */

enum {
    HEAVY_MAX = 12,   /* experts of a group that are placed exactly */
    DEVICES_MAX = 32, /* of a node that is looked at */
};
#define LOOKS_MAX 50000 /* at ways that are half made, for a group on a node of one size */

/* Experts of one group. */
typedef struct members {
    int32_t n;
    double total;
    double load[EK_PLACE_EXPERTS_MAX];      /* (n) descending */
    double light[EK_PLACE_EXPERTS_MAX + 1]; /* (n + 1) sums of the lightest so many */
} members;

/*
 * Every way to place the heaviest experts of a group on the devices of a node: how many replicas
 * each, and where. Devices are kept in ascending order of load, so ways that differ in names only
 * are one.
 */
typedef struct search {
    const members *group;
    node_size node;
    int32_t n_heavy;
    double floor; /* load of the busiest device that is not to be undercut */
    double best;  /* load of the busiest device */
    int64_t n_looks;
} search;

/* A way that is half made: experts before `next` are placed. */
typedef struct way {
    double load[DEVICES_MAX];    /* of devices, ascending */
    int32_t n_held[DEVICES_MAX]; /* replicas on them */
    int32_t next;
    int32_t n_spare; /* slots */
} way;

static void search_from(search *s, const way *w);

/* The way with another replica of load `share` on each device of a set. */
static way with_expert(const search *s, const way *w, uint32_t set, int32_t count, double share)
{
    way more = {.next = w->next + 1, .n_spare = w->n_spare - (count - 1)};
    for (int32_t d = 0; d < s->node.n_devices; d++) {
        bool here = set >> d & 1;
        double load = w->load[d] + (here ? share : 0.0);
        int32_t at = d;
        for (; at > 0 && more.load[at - 1] > load; at--) {
            more.load[at] = more.load[at - 1];
            more.n_held[at] = more.n_held[at - 1];
        }
        more.load[at] = load;
        more.n_held[at] = w->n_held[d] + here;
    }
    return more;
}

/*
 * Each choice of `left` more devices from number `from` on; of devices that are all alike the first
 * ones. Depth: at most DEVICES_MAX.
 */
static void search_sets(search *s, const way *w, uint32_t set, int32_t count, int32_t left,
                        int32_t from)
{
    double share = s->group->load[w->next] / count;
    if (left == 0) {
        way more = with_expert(s, w, set, count, share);
        search_from(s, &more);
        return;
    }
    for (int32_t d = from; d + left <= s->node.n_devices; d++) {
        if (w->load[d] + share >= s->best) return; /* and so are those after it */
        bool same = d > from && w->load[d] == w->load[d - 1] && w->n_held[d] == w->n_held[d - 1];
        if (!same && w->n_held[d] < s->node.n_slots_max)
            search_sets(s, w, set | UINT32_C(1) << d, count, left - 1, d + 1);
    }
}

/*
 * What the busiest device comes to at least: its heavy replicas, and where the others' slots do not
 * suffice for the experts that are left, so many of the lightest of them.
 */
static double weigh(const search *s, const way *w)
{
    int32_t n_devices = s->node.n_devices, n_room = n_devices * s->node.n_slots_max;
    int32_t n_left = s->group->n - s->n_heavy;
    double busiest = s->floor;
    for (int32_t d = 0; d < n_devices; d++)
        n_room -= w->n_held[d];
    for (int32_t d = 0; d < n_devices; d++) {
        int32_t elsewhere = n_room - (s->node.n_slots_max - w->n_held[d]);
        int32_t n_here = n_left > elsewhere ? n_left - elsewhere : 0;
        busiest = fmax(busiest, w->load[d] + s->group->light[n_here]);
    }
    return busiest;
}

/* All ways from here. Depth: at most HEAVY_MAX. */
static void search_from(search *s, const way *w)
{
    if (s->best <= s->floor || s->n_looks++ >= LOOKS_MAX) return;
    if (w->next == s->n_heavy) {
        s->best = fmin(s->best, weigh(s, w));
        return;
    }
    int32_t most = w->n_spare + 1 < s->node.n_devices ? w->n_spare + 1 : s->node.n_devices;
    for (int32_t count = 1; count <= most; count++)
        search_sets(s, w, 0, count, count, 0);
}

/*
 * Least load of the busiest device of a node that has this group: more and more of the heaviest
 * experts are placed exactly, the rest like water, until there are too many ways to look at.
 * Whether it is below `enough` does not matter.
 */
static double least_busiest(const members *group, node_size node, double enough, double known)
{
    double lowest = fmax(group->total / node.n_devices, enough);
    if (node.n_slots < group->n) return INFINITY; /* they cannot be there at all */
    if (node.n_devices > DEVICES_MAX) return lowest;
    int32_t n_max = group->n < HEAVY_MAX ? group->n : HEAVY_MAX;
    int64_t n_looks = 0;
    for (int32_t n = 1; n <= n_max && lowest < known; n++) {
        search s = {.group = group,
                    .node = node,
                    .n_heavy = n,
                    .floor = lowest,
                    .best = known,
                    .n_looks = n_looks};
        const way none = {.n_spare = node.n_slots - group->n};
        search_from(&s, &none);
        n_looks = s.n_looks;
        if (n_looks > LOOKS_MAX) break;
        lowest = s.best;
    }
    return lowest;
}

static void take_group(const ek_place_topology *t, const double *loads, int32_t g, members *out)
{
    out->n = t->n_experts / t->n_groups;
    out->total = group_load(t, loads, g);
    for (int32_t i = 0; i < out->n; i++) {
        double load = loads[(int64_t)g * out->n + i];
        int32_t at = i;
        for (; at > 0 && out->load[at - 1] < load; at--)
            out->load[at] = out->load[at - 1];
        out->load[at] = load;
    }
    out->light[0] = 0.0;
    for (int32_t i = 0; i < out->n; i++)
        out->light[i + 1] = out->light[i] + out->load[out->n - 1 - i];
}

static bool same_size(const node_size *a, const node_size *b)
{
    return a->n_devices == b->n_devices && a->n_slots == b->n_slots &&
           a->n_slots_max == b->n_slots_max;
}

double ek_place_tight_bound(const ek_place_topology *t, const double *loads, double known)
{
    ek_place_sum sum = ek_place_sum_of(loads, t->n_experts);
    double bound = ek_place_bound_of(t, loads, &sum);
    if (!has_node_each(t) || sum.total <= 0.0) return bound;
    double mean = sum.total / ek_place_live_devices(t), lowest = bound * mean;
    double most = known > 0.0 ? known * mean : INFINITY;
    node_size node[EK_PLACE_DEVICES_MAX];
    members group;
    measure_nodes(t, node);
    for (int32_t g = 0; g < t->n_groups; g++) {
        double least = INFINITY;
        take_group(t, loads, g, &group);
        /* A group may go to any node; nodes of one size are all alike. */
        for (int32_t n = 0; n < t->n_nodes; n++) {
            bool seen = node[n].n_devices == 0;
            for (int32_t k = 0; k < n; k++)
                seen |= same_size(&node[k], &node[n]);
            if (!seen) least = fmin(least, least_busiest(&group, node[n], lowest, most));
        }
        if (least < INFINITY) lowest = fmax(lowest, least);
    }
    return lowest / mean;
}
