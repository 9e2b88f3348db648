#include "place/core.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"

/*
 * Which device is lightest is asked for every replica: a tournament of the devices that still have
 * room. A leaf's key is the load in fixed point above the device's number, so that one integer
 * compare decides and equal loads fall to the lower device, on every machine alike. A change walks
 * from its leaf to the root past siblings whose places are known beforehand: no branch and no
 * address depends on loads.
 */
#define DEVICE_BITS 11 /* EK_PLACE_DEVICES_MAX is 1,024 */
#define DEVICE_MASK (((uint64_t)1 << DEVICE_BITS) - 1)
#define LOAD_BITS   50         /* total load of the problem scaled to this */
#define NO_ROOM     UINT64_MAX /* loses against every device */

typedef struct tournament {
    uint64_t *key; /* (2 * n_leaves) key[1] is the winner's, key[n_leaves + device] the leaves' */
    int32_t n_leaves; /* a power of two */
} tournament;

static void play(const tournament *t, int32_t device, uint64_t key)
{
    int32_t i = t->n_leaves + device;
    t->key[i] = key;
    for (; i > 1; i >>= 1) {
        uint64_t other = t->key[i ^ 1];
        key = other < key ? other : key;
        t->key[i >> 1] = key;
    }
}

static int32_t leaves_of(int32_t n_devices)
{
    int32_t n = 1;
    while (n < n_devices)
        n *= 2;
    return n;
}

size_t ek_place_pack_bytes(int32_t n_experts, int32_t n_devices)
{
    return 2 * (size_t)n_experts * sizeof(int32_t) +
           2 * (size_t)leaves_of(n_devices) * sizeof(uint64_t) +
           (size_t)n_devices * (sizeof(int32_t) + sizeof(uint64_t)) + 5 * EK_CACHE_LINE;
}

/*
 * Experts by the load of one replica, heaviest first: those with one replica are in order already,
 * the few with more are sorted by insertion and merged in.
 */
static void order_by_replica(const ek_place_core *core, int32_t *out_order, ek_arena scratch)
{
    int32_t n = core->n_experts, n_many = 0, n_out = 0, i = 0, last = 0;
    int32_t *many = ek_new(&scratch, int32_t, n);
    for (; i < n; i++) {
        int32_t e = core->order[i];
        if (core->count[e] == 1) continue;
        double load = core->replica_load[e];
        int32_t at = n_many++;
        while (at > 0 && core->replica_load[many[at - 1]] < load) {
            many[at] = many[at - 1];
            at--;
        }
        many[at] = e;
        last = i + 1;
    }
    i = 0;
    for (int32_t m = 0; m < n_many; out_order[n_out++] = many[m++]) {
        double load = core->replica_load[many[m]];
        for (; i < n; i++) {
            int32_t e = core->order[i];
            if (core->count[e] > 1) continue;
            if (core->replica_load[e] <= load) break;
            out_order[n_out++] = e;
        }
    }
    for (; i < last; i++)
        if (core->count[core->order[i]] == 1) out_order[n_out++] = core->order[i];
    memcpy(out_order + n_out, core->order + i, (size_t)(n - i) * sizeof *out_order);
}

/* A replica into the device's next slot. @return whether the device has room for another one */
static bool put(ek_place_core *core, int32_t *next_slot, int32_t device, int32_t expert,
                double load)
{
    int32_t s = next_slot[device]++;
    core->slot_expert[s] = expert;
    core->slot_load[s] = (float)load;
    core->device_load[device] += load;
    return s + 1 < core->slot_beg[device + 1];
}

/*
 * All replicas of one expert. Devices that took one stay out of the tournament until all are
 * placed: distinct devices, as long as enough have room.
 * @return whether they are distinct
 */
static bool put_many(ek_place_core *core, const tournament *t, int32_t *next_slot, int32_t expert,
                     uint64_t step, uint64_t *taken)
{
    int32_t n_taken = 0;
    bool distinct = true;
    for (int32_t r = 0; r < core->count[expert]; r++) {
        if (t->key[1] == NO_ROOM) {
            distinct = false;
            for (; n_taken > 0; n_taken--)
                play(t, (int32_t)(taken[n_taken - 1] & DEVICE_MASK), taken[n_taken - 1]);
        }
        uint64_t key = t->key[1];
        int32_t device = (int32_t)(key & DEVICE_MASK);
        if (put(core, next_slot, device, expert, core->replica_load[expert]))
            taken[n_taken++] = key + step;
        play(t, device, NO_ROOM);
    }
    for (; n_taken > 0; n_taken--)
        play(t, (int32_t)(taken[n_taken - 1] & DEVICE_MASK), taken[n_taken - 1]);
    return distinct;
}

bool ek_place_pack(ek_place_core *core, ek_arena scratch)
{
    int32_t *order = ek_new(&scratch, int32_t, core->n_experts);
    int32_t *next_slot = ek_new(&scratch, int32_t, core->n_devices);
    uint64_t *taken = ek_new(&scratch, uint64_t, core->n_devices);
    tournament t = {.n_leaves = leaves_of(core->n_devices)};
    t.key = ek_new(&scratch, uint64_t, 2 * t.n_leaves);
    order_by_replica(core, order, scratch);
    memset(core->slot_expert, 0xff, (size_t)core->n_slots * sizeof *core->slot_expert);
    memset(core->slot_load, 0, (size_t)core->n_slots * sizeof *core->slot_load);

    bool distinct = true;
    double scale = ldexp(1.0, LOAD_BITS) / (core->mean * core->n_devices);
    memset(t.key, 0xff, 2 * (size_t)t.n_leaves * sizeof *t.key);
    for (int32_t d = 0; d < core->n_devices; d++) {
        core->device_load[d] = 0.0;
        next_slot[d] = core->slot_beg[d];
        if (next_slot[d] < core->slot_beg[d + 1]) play(&t, d, (uint64_t)d);
    }
    for (int32_t i = 0; i < core->n_experts; i++) {
        int32_t e = order[i];
        double load = core->replica_load[e];
        uint64_t step = (uint64_t)(int64_t)(load * scale) << DEVICE_BITS;
        if (core->count[e] > 1) {
            distinct &= put_many(core, &t, next_slot, e, step, taken);
            continue;
        }
        uint64_t key = t.key[1];
        int32_t device = (int32_t)(key & DEVICE_MASK);
        play(&t, device, put(core, next_slot, device, e, load) ? key + step : NO_ROOM);
    }
    return distinct;
}
