#include "route/split.h"

#include <stdbool.h>
#include <string.h>

#define N_SWEEPS 3 /* of levelling before augmenting paths finish the job */

/*
 * A second replica of an expert on one device relieves nobody: the device's first one takes its
 * tokens too.
 */
static bool held_before(const int32_t *slot_expert, int32_t first_slot, int32_t slot)
{
    for (int32_t s = first_slot; s < slot; s++)
        if (slot_expert[s] == slot_expert[slot]) return true;
    return false;
}

ek_status ek_route_replicas_build(const int32_t *slot_expert, const int32_t *slot_beg,
                                  int32_t n_experts, int32_t n_devices, ek_arena *perm,
                                  ek_route_replicas *out_replicas, ek_err *err)
{
    if (n_experts < 1 || n_devices < 1 || n_devices > EK_ROUTE_DEVICES_MAX ||
        slot_beg[n_devices] > EK_ROUTE_SLOTS_MAX)
        return ek_err_set(err, EK_EINVAL, "%d experts in %d slots on %d devices is out of range",
                          n_experts, slot_beg[n_devices], n_devices);
    int32_t n_slots = slot_beg[n_devices];
    ek_route_replicas r = {.n_experts = n_experts, .n_slots = n_slots, .n_devices = n_devices};
    r.beg = ek_try_new(perm, int32_t, n_experts + 1);
    r.slot = ek_try_new(perm, int32_t, n_slots);
    r.device = ek_try_new(perm, int32_t, n_slots);
    if (!r.beg || !r.slot || !r.device)
        return ek_err_set(err, EK_ENOMEM, "no memory for %d replicas", n_slots);
    for (int32_t d = 0; d < n_devices; d++)
        for (int32_t s = slot_beg[d]; s < slot_beg[d + 1]; s++) {
            if (slot_expert[s] >= n_experts)
                return ek_err_set(err, EK_EINVAL, "slot %d holds expert %d of %d", s,
                                  slot_expert[s], n_experts);
            if (slot_expert[s] >= 0 && !held_before(slot_expert, slot_beg[d], s))
                r.beg[slot_expert[s] + 1]++;
        }
    for (int32_t e = 0; e < n_experts; e++) {
        if (r.beg[e + 1] == 0)
            return ek_err_set(err, EK_EINVAL, "expert %d has no usable replica", e);
        r.beg[e + 1] += r.beg[e];
    }
    /* beg[e] serves as the write position and is moved back afterwards. */
    for (int32_t d = 0; d < n_devices; d++)
        for (int32_t s = slot_beg[d]; s < slot_beg[d + 1]; s++) {
            if (slot_expert[s] < 0 || held_before(slot_expert, slot_beg[d], s)) continue;
            int32_t at = r.beg[slot_expert[s]]++;
            r.slot[at] = s;
            r.device[at] = d;
        }
    for (int32_t e = n_experts; e > 0; e--)
        r.beg[e] = r.beg[e - 1];
    r.beg[0] = 0;
    *out_replicas = r;
    return EK_OK;
}

size_t ek_route_split_bytes(const ek_route_replicas *r)
{
    size_t replicas = (size_t)r->beg[r->n_experts];
    return sizeof(int32_t) *
               (3 * (size_t)r->n_experts + 3 * replicas + 6 * (size_t)r->n_devices + 8) +
           12 * EK_CACHE_LINE;
}

/* One split in progress. */
typedef struct splitter {
    const ek_route_replicas *r;
    int32_t *quota;
    int32_t *load; /* (n_devices) */
    int32_t *many; /* (n_many) experts with tokens and more than one replica */
    int32_t n_many;
    int32_t *on_beg;     /* (n_devices + 1) replicas of those experts, by device */
    int32_t *on;         /* replica indices */
    int32_t *replica_of; /* expert of a replica index, for those */
    int32_t *via;   /* (n_devices) replica on the previous device of the path; -1: not reached */
    int32_t *into;  /* (n_devices) replica on this device of the path */
    int32_t *queue; /* (n_devices) */
} splitter;

/* Lay the tokens of two replicas so that their devices come out even, or as even as can be. */
static void level_pair(splitter *sp, int32_t at)
{
    int32_t a = sp->r->device[at], b = sp->r->device[at + 1];
    int32_t n = sp->quota[at] + sp->quota[at + 1];
    int32_t rest_a = sp->load[a] - sp->quota[at], rest_b = sp->load[b] - sp->quota[at + 1];
    int32_t to_a = (n + rest_b - rest_a) >> 1; /* rounds down, also below zero */
    to_a = to_a < 0 ? 0 : to_a > n ? n : to_a;
    sp->quota[at] = to_a;
    sp->quota[at + 1] = n - to_a;
    sp->load[a] = rest_a + to_a;
    sp->load[b] = rest_b + n - to_a;
}

/*
 * The same for any number of replicas: fill the lowest devices up to a common level, like water.
 * `order` has room for all of them.
 */
static void level_many(splitter *sp, int32_t beg, int32_t end, int32_t *order)
{
    const int32_t *device = sp->r->device;
    int32_t n = end - beg;
    int64_t tokens = 0;
    for (int32_t i = 0; i < n; i++) {
        int32_t replica = beg + i;
        tokens += sp->quota[replica];
        sp->load[device[replica]] -= sp->quota[replica];
        int32_t rest = sp->load[device[replica]], at = i;
        for (; at > 0 && sp->load[device[order[at - 1]]] > rest; at--)
            order[at] = order[at - 1];
        order[at] = replica;
    }
    int64_t sum = sp->load[device[order[0]]];
    int32_t n_filled = 1;
    while (n_filled < n && sum + tokens > (int64_t)n_filled * sp->load[device[order[n_filled]]])
        sum += sp->load[device[order[n_filled++]]];
    int32_t level = (int32_t)((sum + tokens) / n_filled);
    int32_t n_one_more = (int32_t)((sum + tokens) % n_filled);
    for (int32_t i = 0; i < n; i++) {
        int32_t replica = order[i];
        int32_t *load = &sp->load[device[replica]];
        int32_t to = i < n_filled ? level + (i < n_one_more) : *load;
        sp->quota[replica] = to - *load;
        *load = to;
    }
}

/* Even start: an expert's tokens in equal parts, and all loads from that. */
static void start_equal(splitter *sp, const int32_t *tokens)
{
    const ek_route_replicas *r = sp->r;
    for (int32_t e = 0; e < r->n_experts; e++) {
        int32_t beg = r->beg[e], n = r->beg[e + 1] - beg;
        if (n == 1) {
            sp->quota[beg] = tokens[e];
            sp->load[r->device[beg]] += tokens[e];
            continue;
        }
        int32_t part = tokens[e] / n, n_one_more = tokens[e] % n;
        for (int32_t i = 0; i < n; i++) {
            sp->quota[beg + i] = part + (i < n_one_more);
            sp->load[r->device[beg + i]] += sp->quota[beg + i];
        }
        if (tokens[e] > 0) sp->many[sp->n_many++] = e;
    }
}

static void level_all(splitter *sp, int32_t *order)
{
    for (int32_t sweep = 0; sweep < N_SWEEPS; sweep++)
        for (int32_t i = 0; i < sp->n_many; i++) {
            int32_t beg = sp->r->beg[sp->many[i]], end = sp->r->beg[sp->many[i] + 1];
            if (end - beg == 2)
                level_pair(sp, beg);
            else
                level_many(sp, beg, end, order);
        }
}

/* Which movable replicas lie on each device: the edges that augmenting paths walk. */
static void index_devices(splitter *sp)
{
    const ek_route_replicas *r = sp->r;
    for (int32_t i = 0; i < sp->n_many; i++)
        for (int32_t k = r->beg[sp->many[i]]; k < r->beg[sp->many[i] + 1]; k++) {
            sp->on_beg[r->device[k] + 1]++;
            sp->replica_of[k] = sp->many[i];
        }
    for (int32_t d = 0; d < r->n_devices; d++)
        sp->on_beg[d + 1] += sp->on_beg[d];
    for (int32_t i = 0; i < sp->n_many; i++)
        for (int32_t k = r->beg[sp->many[i]]; k < r->beg[sp->many[i] + 1]; k++)
            sp->on[sp->on_beg[r->device[k]]++] = k;
    for (int32_t d = r->n_devices; d > 0; d--)
        sp->on_beg[d] = sp->on_beg[d - 1];
    sp->on_beg[0] = 0;
}

/*
 * Breadth first from the busiest device over replicas that have tokens to give, until a device is
 * reached that can take at least one and still be lighter than the busiest was. @return that
 * device, or -1: then every device that could relieve the busiest one is as full as it, and no
 * split of whole tokens is better.
 */
static int32_t find_path(splitter *sp, int32_t busiest)
{
    const ek_route_replicas *r = sp->r;
    int32_t head = 0, tail = 0;
    memset(sp->via, 0xff, (size_t)r->n_devices * sizeof *sp->via);
    sp->queue[tail++] = busiest;
    while (head < tail) {
        int32_t d = sp->queue[head++];
        for (int32_t i = sp->on_beg[d]; i < sp->on_beg[d + 1]; i++) {
            int32_t from = sp->on[i];
            if (sp->quota[from] == 0) continue;
            int32_t e = sp->replica_of[from];
            for (int32_t to = r->beg[e]; to < r->beg[e + 1]; to++) {
                int32_t next = r->device[to];
                if (sp->via[next] >= 0 || next == busiest) continue;
                sp->via[next] = from;
                sp->into[next] = to;
                if (sp->load[next] <= sp->load[busiest] - 2) return next;
                sp->queue[tail++] = next;
            }
        }
    }
    return -1;
}

/* Move as many tokens along the path as its ends and its replicas allow. */
static void push_along(splitter *sp, int32_t busiest, int32_t last)
{
    int32_t n = (sp->load[busiest] - sp->load[last]) / 2;
    for (int32_t d = last; d != busiest; d = sp->r->device[sp->via[d]])
        n = sp->quota[sp->via[d]] < n ? sp->quota[sp->via[d]] : n;
    for (int32_t d = last; d != busiest; d = sp->r->device[sp->via[d]]) {
        sp->quota[sp->via[d]] -= n;
        sp->quota[sp->into[d]] += n;
    }
    sp->load[busiest] -= n;
    sp->load[last] += n;
}

ek_status ek_route_split(const ek_route_replicas *r, const int32_t *tokens, ek_arena scratch,
                         int32_t *out_quota, int32_t *out_device)
{
    if (ek_arena_free_bytes(&scratch) < ek_route_split_bytes(r)) return EK_ENOMEM;
    size_t n_replicas = (size_t)r->beg[r->n_experts];
    splitter sp = {.r = r, .quota = out_quota, .load = out_device};
    sp.many = ek_new(&scratch, int32_t, r->n_experts);
    sp.on_beg = ek_new(&scratch, int32_t, r->n_devices + 1);
    sp.on = ek_new(&scratch, int32_t, n_replicas);
    sp.replica_of = ek_new(&scratch, int32_t, n_replicas);
    sp.via = ek_new(&scratch, int32_t, r->n_devices);
    sp.into = ek_new(&scratch, int32_t, r->n_devices);
    sp.queue = ek_new(&scratch, int32_t, r->n_devices);
    memset(out_device, 0, (size_t)r->n_devices * sizeof *out_device);
    start_equal(&sp, tokens);
    level_all(&sp, sp.on);
    index_devices(&sp);
    for (;;) {
        int32_t busiest = 0;
        for (int32_t d = 1; d < r->n_devices; d++)
            if (sp.load[d] > sp.load[busiest]) busiest = d;
        int32_t last = find_path(&sp, busiest);
        if (last < 0) return EK_OK;
        push_along(&sp, busiest, last);
    }
}

void ek_route_count(const uint16_t *expert_id, int32_t n_ids, int32_t n_experts,
                    int32_t *out_tokens)
{
    memset(out_tokens, 0, (size_t)n_experts * sizeof *out_tokens);
    for (int32_t i = 0; i < n_ids; i++)
        out_tokens[expert_id[i]]++;
}

/* The replica that an expert's next token goes to, and how many more after it. */
typedef struct hand_out {
    int32_t left;
    uint16_t slot;
    uint16_t replica; /* offset within the expert */
} hand_out;

ek_status ek_route_assign(const ek_route_replicas *r, const int32_t *quota,
                          const uint16_t *expert_id, int32_t n_ids, ek_arena scratch,
                          uint16_t *out_slot)
{
    hand_out *next = ek_try_new(&scratch, hand_out, r->n_experts);
    if (!next) return EK_ENOMEM;
    for (int32_t e = 0; e < r->n_experts; e++)
        next[e] = (hand_out){quota[r->beg[e]], (uint16_t)r->slot[r->beg[e]], 0};
    for (int32_t i = 0; i < n_ids; i++) {
        int32_t e = expert_id[i];
        hand_out *h = &next[e];
        while (EK_UNLIKELY(h->left == 0)) {
            h->replica++;
            h->left = quota[r->beg[e] + h->replica];
            h->slot = (uint16_t)r->slot[r->beg[e] + h->replica];
        }
        h->left--;
        out_slot[i] = h->slot;
    }
    return EK_OK;
}
