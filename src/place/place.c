#include "place/place.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "place/core.h"
#include "place/part.h"

/* Shifts of the divisor that are tried in turn; 0 is EPLB's rule and nearly always enough. */
static const float shifts[] = {0.0f, -0.25f, 0.25f, 0.5f, -0.5f, 1.0f};

/*
 * Caps on a replica's load, as shares of a device's mean, that are tried when no shift was good
 * enough.
 */
static const double caps[] = {0.95, 0.88, 0.8, 0.7, 0.6};

/* Swaps of a quick solve: one takes off what separates a greedy packing from EPLB's at its best. */
#define QUICK_SWAPS 1

/* Spares of a part that all ways of handing out are looked at, and how many of these are packed. */
enum { FEW_SPARES = 16, N_WAYS = 6 };
#define FAR_OFF 1.002 /* times the limit: from here on that is worth its time */

/* How many experts a single replica may go to and come from when counts are tuned one by one. */
enum { N_TAKERS = 3, N_GIVERS = 6 };

void ek_place_params_default(ek_place_params *out_params)
{
    *out_params = (ek_place_params){
        .mode = EK_PLACE_BEST,
        .target = 1.00045,
        .effort_swaps = 400,
        .effort_packings = 32,
        .spread_hottest = 0,
    };
}

static int32_t n_groups_of(const ek_place_topology *topology)
{
    return topology->n_groups > 1 ? topology->n_groups : 1;
}

static ek_status check_slots(const ek_place_topology *t, ek_err *err)
{
    int64_t sum = 0, live = 0;
    if (!t->device_slots && t->n_slots % t->n_devices != 0)
        return ek_err_set(err, EK_EINVAL, "%d slots do not divide evenly over %d devices",
                          t->n_slots, t->n_devices);
    for (int32_t d = 0; d < t->n_devices; d++) {
        int32_t n = ek_place_slots_of(t, d);
        if (n < 0) return ek_err_set(err, EK_EINVAL, "device %d has %d slots", d, n);
        sum += n;
        live += ek_place_is_dead(t, d) ? 0 : n;
    }
    if (sum != t->n_slots)
        return ek_err_set(err, EK_EINVAL, "the devices have %lld slots together, n_slots says %d",
                          (long long)sum, t->n_slots);
    if (live < t->n_experts)
        return ek_err_set(err, EK_EINVAL, "%lld slots on live devices cannot hold %d experts",
                          (long long)live, t->n_experts);
    return EK_OK;
}

/*
 * A hierarchical solve gives each node experts_per_group * groups_per_node experts; its live slots
 * must hold them.
 */
static ek_status check_node_room(const ek_place_topology *t, ek_err *err)
{
    int32_t per_node = t->n_experts / t->n_nodes;
    for (int32_t node = 0; node < t->n_nodes; node++) {
        int64_t live = 0;
        for (int32_t d = 0; d < t->n_devices; d++)
            if (ek_place_node_of(t, d) == node && !ek_place_is_dead(t, d))
                live += ek_place_slots_of(t, d);
        if (live < per_node)
            return ek_err_set(
                err, EK_EINVAL,
                "node %d has %lld live slots for %d experts of its groups; place without groups",
                node, (long long)live, per_node);
    }
    return EK_OK;
}

/* Members of each of n domains, by a list of theirs; each has one at least. */
static ek_status check_members(const int32_t *domain, int32_t n_members, int32_t n_domains,
                               const char *member, const char *name, ek_err *err)
{
    bool seen[EK_PLACE_DEVICES_MAX] = {false};
    for (int32_t i = 0; i < n_members; i++) {
        if (domain[i] < 0 || domain[i] >= n_domains)
            return ek_err_set(err, EK_EINVAL, "%s %d is in %s %d of %d", member, i, name, domain[i],
                              n_domains);
        seen[domain[i]] = true;
    }
    for (int32_t d = 0; d < n_domains; d++)
        if (!seen[d]) return ek_err_set(err, EK_EINVAL, "%s %d has no %s", name, d, member);
    return EK_OK;
}

static ek_status check_domains(const ek_place_topology *t, ek_err *err)
{
    int32_t n_racks = t->n_racks > 1 ? t->n_racks : 1;
    if (t->n_nodes < 1 || t->n_nodes > t->n_devices)
        return ek_err_set(err, EK_EINVAL, "number of nodes %d is outside 1..%d (devices)",
                          t->n_nodes, t->n_devices);
    if (!t->device_node && t->n_devices % t->n_nodes != 0)
        return ek_err_set(err, EK_EINVAL, "%d devices do not divide evenly over %d nodes",
                          t->n_devices, t->n_nodes);
    if (t->n_racks < 0 || n_racks > t->n_nodes)
        return ek_err_set(err, EK_EINVAL, "number of racks %d is outside 1..%d (nodes)", t->n_racks,
                          t->n_nodes);
    if (!t->node_rack && t->n_nodes % n_racks != 0)
        return ek_err_set(err, EK_EINVAL, "%d nodes do not divide evenly over %d racks", t->n_nodes,
                          n_racks);
    ek_status status = EK_OK;
    if (t->device_node)
        status = check_members(t->device_node, t->n_devices, t->n_nodes, "device", "node", err);
    if (status == EK_OK && t->node_rack)
        status = check_members(t->node_rack, t->n_nodes, n_racks, "node", "rack", err);
    return status;
}

ek_status ek_place_check(const ek_place_topology *t, const ek_place_params *params, ek_err *err)
{
    if (t->n_experts < 1 || t->n_experts > EK_PLACE_EXPERTS_MAX)
        return ek_err_set(err, EK_EINVAL, "number of experts %d is outside 1..%d", t->n_experts,
                          EK_PLACE_EXPERTS_MAX);
    if (t->n_devices < 1 || t->n_devices > EK_PLACE_DEVICES_MAX)
        return ek_err_set(err, EK_EINVAL, "number of devices %d is outside 1..%d", t->n_devices,
                          EK_PLACE_DEVICES_MAX);
    if (t->n_slots < t->n_experts || t->n_slots > EK_PLACE_SLOTS_MAX)
        return ek_err_set(err, EK_EINVAL, "number of slots %d is outside %d (experts)..%d",
                          t->n_slots, t->n_experts, EK_PLACE_SLOTS_MAX);
    ek_status status = check_domains(t, err);
    if (status != EK_OK) return status;
    int32_t n_groups = n_groups_of(t);
    if (n_groups > 1 && (t->n_experts % n_groups != 0 || n_groups % t->n_nodes != 0))
        return ek_err_set(err, EK_EINVAL,
                          "%d groups must divide %d experts and be a multiple of %d nodes",
                          n_groups, t->n_experts, t->n_nodes);
    if (!(params->target >= 1.0) || params->effort_swaps < 0 || params->effort_packings < 1 ||
        params->spread_hottest < 0)
        return ek_err_set(err, EK_EINVAL,
                          "target must be >= 1, packings >= 1, swaps and spread >= 0");
    if (params->spread_over != EK_PLACE_NODE && params->spread_over != EK_PLACE_RACK)
        return ek_err_set(err, EK_EINVAL, "spread_over must be nodes or racks");
    status = check_slots(t, err);
    if (status == EK_OK && n_groups > 1) status = check_node_room(t, err);
    return status;
}

size_t ek_place_scratch_bytes(const ek_place_topology *t)
{
    size_t core = ek_place_core_bytes(t->n_experts, t->n_slots, t->n_devices);
    size_t mine = (size_t)t->n_experts * sizeof(int32_t) +
                  ((size_t)t->n_groups + 3 * (size_t)t->n_nodes) * sizeof(double) +
                  (size_t)t->n_groups * sizeof(int32_t) + (size_t)t->n_slots * sizeof(int32_t);
    return core + mine + ek_place_part_bytes(t) + 16 * EK_CACHE_LINE;
}

/* One part's solve: the core, how far to go, and the best packing so far. */
typedef struct solver {
    ek_place_core core;
    const ek_place_params *params;
    double limit; /* load of the busiest device that is good enough */
    int32_t n_packings;

    double busiest;       /* of the best packing */
    int32_t n_together;   /* in it, of the experts that are to be spread */
    bool distinct;        /* certainly no two replicas of an expert on one device */
    int32_t n_swaps;      /* that it took */
    int32_t *count;       /* (n_experts) */
    int32_t *slot_expert; /* (n_slots) local ids */
} solver;

/*
 * Pack by the counts that stand in the core, and keep the result if it is better.
 * @return whether it was
 */
static bool try_counts(solver *s, ek_arena scratch)
{
    ek_place_core *core = &s->core;
    if (core->n_spread > 0) ek_place_spread_counts(core);
    bool distinct = ek_place_pack(core, scratch);
    if (!distinct || core->n_spread > 0) ek_place_repair(core);
    if (ek_place_core_together(core) > 0) ek_place_spread_by_copies(core);
    bool quick = s->params->mode == EK_PLACE_QUICK;
    int32_t max_swaps = quick ? QUICK_SWAPS : s->params->effort_swaps;
    int32_t n_swaps = ek_place_refine(core, s->limit, max_swaps);
    s->n_packings++;
    double busiest = ek_place_busiest(core, NULL);
    int32_t n_together = ek_place_core_together(core);
    if (n_together > s->n_together || (n_together == s->n_together && busiest >= s->busiest))
        return false;
    s->busiest = busiest;
    s->n_together = n_together;
    s->distinct = distinct;
    s->n_swaps = n_swaps;
    memcpy(s->count, core->count, (size_t)core->n_experts * sizeof *s->count);
    memcpy(s->slot_expert, core->slot_expert, (size_t)core->n_slots * sizeof *s->slot_expert);
    return true;
}

static bool is_done(const solver *s)
{
    bool good = s->busiest <= s->limit && s->n_together == 0;
    return good || s->n_packings >= s->params->effort_packings || s->params->mode == EK_PLACE_QUICK;
}

static void set_count(ek_place_core *core, int32_t expert, int32_t count)
{
    core->count[expert] = count;
    core->replica_load[expert] = core->load[expert] / count;
}

/* The best packing's counts back into the core. */
static void recall_counts(solver *s)
{
    for (int32_t e = 0; e < s->core.n_experts; e++)
        set_count(&s->core, e, s->count[e]);
}

/* Experts by a key, the largest first, into a short list. */
static void insert_ranked(int32_t *list, double *key, int32_t *n, int32_t max, int32_t expert,
                          double value)
{
    int32_t at = *n;
    while (at > 0 && key[at - 1] < value)
        at--;
    if (at == max) return;
    *n = *n < max ? *n + 1 : max;
    for (int32_t i = *n - 1; i > at; i--) {
        list[i] = list[i - 1];
        key[i] = key[i - 1];
    }
    list[at] = expert;
    key[at] = value;
}

/*
 * One replica from an expert that can spare it to one that weighs on the busiest device, if that
 * packs better. Candidates are few on each side, the most promising first. @return whether a better
 * packing was found
 */
static bool shift_replica(solver *s, ek_arena scratch)
{
    ek_place_core *core = &s->core;
    int32_t taker[N_TAKERS], giver[N_GIVERS], n_takers = 0, n_givers = 0, busiest = 0;
    double taker_key[N_TAKERS], giver_key[N_GIVERS], highest = -1.0;
    for (int32_t d = 0; d < core->n_devices; d++) {
        double load = 0.0;
        for (int32_t i = core->slot_beg[d]; i < core->slot_beg[d + 1]; i++)
            if (s->slot_expert[i] >= 0)
                load += core->load[s->slot_expert[i]] / s->count[s->slot_expert[i]];
        busiest = load > highest ? d : busiest;
        highest = fmax(load, highest);
    }
    for (int32_t i = core->slot_beg[busiest]; i < core->slot_beg[busiest + 1]; i++) {
        int32_t e = s->slot_expert[i];
        if (e >= 0 && s->count[e] < core->n_devices)
            insert_ranked(taker, taker_key, &n_takers, N_TAKERS, e,
                          core->load[e] / s->count[e] / (s->count[e] + 1));
    }
    for (int32_t e = 0; e < core->n_experts; e++)
        if (s->count[e] > 1)
            insert_ranked(giver, giver_key, &n_givers, N_GIVERS, e,
                          -core->load[e] / (s->count[e] - 1));
    for (int32_t t = 0; t < n_takers; t++)
        for (int32_t g = 0; g < n_givers; g++) {
            if (taker[t] == giver[g] || is_done(s)) continue;
            recall_counts(s);
            set_count(core, taker[t], s->count[taker[t]] + 1);
            set_count(core, giver[g], s->count[giver[g]] - 1);
            if (try_counts(s, scratch)) return true;
        }
    return false;
}

/*
 * All ways to hand out few spares, the most promising ones first. The number of spares says whether
 * they are few: of many, those of the heaviest experts are no more than a start.
 */
static void enumerate_counts(solver *s, ek_arena scratch)
{
    ek_place_core *core = &s->core;
    ek_place_handout ways[N_WAYS];
    if (core->n_slots - core->n_experts > FEW_SPARES) return;
    int32_t n = ek_place_counts_enumerate(core, s->busiest, N_WAYS, ways);
    for (int32_t i = 0; i < n && !is_done(s) && ways[i].estimate < s->busiest; i++) {
        for (int32_t rank = 0; rank < core->n_experts; rank++)
            set_count(core, core->order[rank], rank < ways[i].n ? 1 + ways[i].extra[rank] : 1);
        try_counts(s, scratch);
    }
}

static double part_total(ek_place_part *p)
{
    double total = ek_place_sum_of(p->load, p->n_experts).total;
    if (total > 0.0) return total;
    for (int32_t i = 0; i < p->n_experts; i++)
        p->load[i] = 1.0;
    return p->n_experts;
}

/*
 * floor: a busiest device below this is good enough in any case, since another part cannot do
 * better.
 */
static void solve_part(ek_place_part *p, const ek_place_params *params, bool spread, double floor,
                       ek_place_hint *hint, ek_arena scratch, int32_t *out_local, bool *distinct,
                       ek_place_balance *balance)
{
    solver s = {
        .params = params, .busiest = INFINITY, .n_together = INT32_MAX, .slot_expert = out_local};
    s.core = (ek_place_core){
        .n_experts = p->n_experts,
        .n_devices = p->n_devices,
        .n_slots = p->slot_beg[p->n_devices],
        .load = p->load,
        .slot_beg = p->slot_beg,
        .domain_of = spread ? p->domain : NULL,
        .n_spread = !spread                                 ? 0
                    : params->spread_hottest < p->n_experts ? params->spread_hottest
                                                            : p->n_experts,
        .mean = part_total(p) / p->n_devices,
    };
    s.limit = fmax(params->target * s.core.mean, floor);
    s.count = ek_new(&scratch, int32_t, p->n_experts);
    ek_place_core_init(&s.core, &scratch);
    bool quick = params->mode == EK_PLACE_QUICK;
    float best_shift = quick || !hint->valid ? shifts[0] : hint->divisor_shift, first = best_shift;
    ek_place_counts(&s.core, first, scratch);
    try_counts(&s, scratch);
    for (size_t i = 0; i < EK_COUNT_OF(shifts) && !is_done(&s); i++) {
        if (shifts[i] == first) continue;
        ek_place_counts(&s.core, shifts[i], scratch);
        if (try_counts(&s, scratch)) best_shift = shifts[i];
    }
    if (s.busiest > s.limit * FAR_OFF) enumerate_counts(&s, scratch);
    for (size_t i = 0; i < EK_COUNT_OF(caps) && !is_done(&s); i++)
        if (ek_place_counts_capped(&s.core, caps[i] * s.core.mean, scratch))
            try_counts(&s, scratch);
    while (!is_done(&s) && shift_replica(&s, scratch)) {}
    hint->divisor_shift = best_shift;
    hint->valid = true;
    balance->n_packings += s.n_packings;
    balance->n_swaps += s.n_swaps;
    balance->n_together += s.n_together;
    /* A load until ek_place_layer divides it by the mean. */
    balance->max_over_mean = fmax(balance->max_over_mean, s.busiest);
    *distinct &= s.distinct;
}

/*
 * What a unit of load is to each node: one over its live devices, of which each has some; the
 * largest node's is 1, so that equal nodes add up loads as they are.
 */
static void node_weights(const ek_place_topology *t, double *out_weight)
{
    double most = 0.0;
    for (int32_t n = 0; n < t->n_nodes; n++)
        out_weight[n] = 0.0;
    for (int32_t d = 0; d < t->n_devices; d++)
        if (!ek_place_is_dead(t, d)) out_weight[ek_place_node_of(t, d)] += 1.0;
    for (int32_t n = 0; n < t->n_nodes; n++)
        most = fmax(most, out_weight[n]);
    for (int32_t n = 0; n < t->n_nodes; n++)
        out_weight[n] = most / out_weight[n];
}

/*
 * Groups to nodes, the same number to each: heaviest group first to the lightest node with room.
 * Then nodes trade groups while the heaviest gets lighter by it.
 */
static void groups_to_nodes(const ek_place_topology *t, const double *loads, ek_arena scratch,
                            int32_t *out_node)
{
    int32_t n_groups = t->n_groups, per_group = t->n_experts / n_groups;
    int32_t room = n_groups / t->n_nodes;
    double *group_load = ek_new(&scratch, double, n_groups);
    double *node_load = ek_new(&scratch, double, t->n_nodes); /* per live device */
    double *weight = ek_new(&scratch, double, t->n_nodes);
    int32_t *n_in = ek_new(&scratch, int32_t, t->n_nodes);
    node_weights(t, weight);
    for (int32_t e = 0; e < t->n_experts; e++)
        group_load[e / per_group] += loads[e];
    for (int32_t g = 0; g < n_groups; g++)
        out_node[g] = -1;
    for (int32_t i = 0; i < n_groups; i++) {
        int32_t group = -1, node = -1;
        for (int32_t g = 0; g < n_groups; g++)
            if (out_node[g] < 0 && (group < 0 || group_load[g] > group_load[group])) group = g;
        for (int32_t n = 0; n < t->n_nodes; n++)
            if (n_in[n] < room && (node < 0 || node_load[n] < node_load[node])) node = n;
        out_node[group] = node;
        node_load[node] += group_load[group] * weight[node];
        n_in[node]++;
    }
    for (int32_t round = 0; room > 1 && round < n_groups; round++) {
        int32_t heavy = 0, best_a = -1, best_b = -1;
        for (int32_t n = 1; n < t->n_nodes; n++)
            if (node_load[n] > node_load[heavy]) heavy = n;
        double best = node_load[heavy] * (1.0 - 1e-9);
        for (int32_t a = 0; a < n_groups; a++)
            for (int32_t b = 0; out_node[a] == heavy && b < n_groups; b++) {
                double given = group_load[a] - group_load[b];
                double higher = fmax(node_load[heavy] - given * weight[heavy],
                                     node_load[out_node[b]] + given * weight[out_node[b]]);
                if (out_node[b] != heavy && higher < best) {
                    best = higher;
                    best_a = a;
                    best_b = b;
                }
            }
        if (best_a < 0) return;
        double given = group_load[best_a] - group_load[best_b];
        node_load[heavy] -= given * weight[heavy];
        node_load[out_node[best_b]] += given * weight[out_node[best_b]];
        out_node[best_a] = out_node[best_b];
        out_node[best_b] = heavy;
    }
}

/* Load per live device of each node. */
static void weigh_nodes(const ek_place_topology *t, const int32_t *group_node, const double *loads,
                        double *out_node_load)
{
    int32_t per_group = t->n_experts / t->n_groups;
    for (int32_t node = 0; node < t->n_nodes; node++) {
        double load = 0.0;
        int32_t n_live = 0;
        for (int32_t e = 0; e < t->n_experts; e++)
            if (group_node[e / per_group] == node) load += loads[e];
        for (int32_t d = 0; d < t->n_devices; d++)
            n_live += ek_place_node_of(t, d) == node && !ek_place_is_dead(t, d);
        out_node_load[node] = load / n_live;
    }
}

/*
 * Heaviest node first: no placement gets its busiest device below that node's mean, and what it
 * cannot avoid, the others need not either.
 */
static void solve_hierarchical(const ek_place_topology *t, const ek_place_params *params,
                               const double *loads, ek_place_hint *hint, ek_arena scratch,
                               int32_t *out_slot_expert, bool *distinct, ek_place_balance *balance)
{
    int32_t *group_node = ek_new(&scratch, int32_t, t->n_groups);
    int32_t *local = ek_new(&scratch, int32_t, t->n_slots);
    double *node_load = ek_new(&scratch, double, t->n_nodes);
    double floor = 0.0;
    groups_to_nodes(t, loads, scratch, group_node);
    weigh_nodes(t, group_node, loads, node_load);
    for (int32_t i = 0; i < t->n_nodes; i++) {
        ek_arena inner = scratch;
        ek_place_part p;
        int32_t node = 0;
        for (int32_t n = 1; n < t->n_nodes; n++)
            if (node_load[n] > node_load[node]) node = n;
        floor = fmax(floor, node_load[node] * params->target);
        node_load[node] = -1.0; /* done */
        ek_place_part_init(&p, t, node, params->spread_over, &inner);
        for (int32_t e = 0; e < t->n_experts; e++)
            if (group_node[e / (t->n_experts / t->n_groups)] == node)
                ek_place_part_add_expert(&p, e, loads[e]);
        solve_part(&p, params, false, fmax(floor, balance->max_over_mean), hint, inner, local,
                   distinct, balance);
        ek_place_part_write(&p, local, out_slot_expert);
    }
    /* A group's experts stay on its node. */
    balance->n_together =
        params->spread_hottest < t->n_experts ? params->spread_hottest : t->n_experts;
}

static void solve_global(const ek_place_topology *t, const ek_place_params *params,
                         const double *loads, ek_place_hint *hint, ek_arena scratch,
                         int32_t *out_slot_expert, bool *distinct, ek_place_balance *balance)
{
    int32_t *local = ek_new(&scratch, int32_t, t->n_slots);
    ek_place_part p;
    ek_place_part_init(&p, t, -1, params->spread_over, &scratch);
    ek_place_part_add_all(&p, t->n_experts, loads);
    solve_part(&p, params, params->spread_hottest > 0, 0.0, hint, scratch, local, distinct,
               balance);
    ek_place_part_write(&p, local, out_slot_expert);
}

ek_status ek_place_layer(const ek_place_topology *t, const ek_place_params *params,
                         const double *loads, ek_place_hint *hint, ek_arena scratch,
                         int32_t *out_slot_expert, ek_place_balance *out_balance)
{
    ek_status status = ek_place_check(t, params, NULL);
    if (status != EK_OK) return status;
    ek_place_sum sum = ek_place_sum_of(loads, t->n_experts);
    if (!(sum.least >= 0.0) || !isfinite(sum.total)) return EK_EINVAL;
    if (ek_arena_free_bytes(&scratch) < ek_place_scratch_bytes(t)) return EK_ENOMEM;
    ek_place_balance balance = {0};
    bool distinct = true;
    for (int32_t s = 0; s < t->n_slots; s++)
        out_slot_expert[s] = EK_PLACE_EMPTY;
    if (n_groups_of(t) > 1)
        solve_hierarchical(t, params, loads, hint, scratch, out_slot_expert, &distinct, &balance);
    else
        solve_global(t, params, loads, hint, scratch, out_slot_expert, &distinct, &balance);
    if (!distinct || sum.total <= 0.0) {
        ek_place_balance measured;
        status = ek_place_measure(t, loads, out_slot_expert, scratch, &measured);
        ek_assert(status == EK_OK);
        balance.max_over_mean = measured.max_over_mean;
        balance.n_duplicates = measured.n_duplicates;
    } else {
        balance.max_over_mean /= sum.total / ek_place_live_devices(t);
    }
    balance.lower_bound = ek_place_bound_of(t, loads, &sum);
    *out_balance = balance;
    return EK_OK;
}
