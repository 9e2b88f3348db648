#include "place/core.h"

#include <math.h>
#include <string.h>

/*
 * A min-heap of the devices that still have room. A key is the load in fixed point above the
 * device's number, so that one integer compare decides and equal loads fall to the lower device, on
 * every machine alike.
 */
#define DEVICE_BITS 11 /* EK_PLACE_DEVICES_MAX is 1,024 */
#define DEVICE_MASK (((uint64_t)1 << DEVICE_BITS) - 1)
#define LOAD_BITS   50 /* total load of the problem scaled to this */

typedef struct room_heap {
    uint64_t *key; /* key[n] is always UINT64_MAX, so that a lone child has a sibling that loses */
    int32_t n;
} room_heap;

static void sift_up(room_heap *heap, int32_t hole, uint64_t moving)
{
    while (hole > 0 && moving < heap->key[(hole - 1) / 2]) {
        heap->key[hole] = heap->key[(hole - 1) / 2];
        hole = (hole - 1) / 2;
    }
    heap->key[hole] = moving;
}

/*
 * Replace the root: the hole goes down to a leaf, then the key comes up from there. A device that
 * just got a replica is among the fuller ones, so it hardly ever has to come up, and the way down
 * has no branch that depends on loads.
 */
static void replace_top(room_heap *heap, uint64_t moving)
{
    uint64_t *key = heap->key;
    int32_t hole = 0;
    for (int32_t child = 1; child < heap->n; child = 2 * hole + 1) {
        child += key[child + 1] < key[child];
        key[hole] = key[child];
        hole = child;
    }
    sift_up(heap, hole, moving);
}

static void push(room_heap *heap, uint64_t key)
{
    int32_t hole = heap->n++;
    heap->key[heap->n] = UINT64_MAX;
    sift_up(heap, hole, key);
}

static void pop(room_heap *heap)
{
    uint64_t last = heap->key[--heap->n];
    heap->key[heap->n] = UINT64_MAX;
    if (heap->n > 0) replace_top(heap, last);
}

/*
 * Experts by the load of one replica, heaviest first: those with one replica are in order already,
 * the few with more are sorted by insertion and merged in.
 */
static void order_by_replica(const ek_place_core *core, int32_t *out_order, ek_arena scratch)
{
    int32_t n = core->n_experts, n_many = 0, n_out = 0;
    int32_t *many = ek_new(&scratch, int32_t, n);
    for (int32_t i = 0; i < n; i++) {
        int32_t e = core->order[i];
        if (core->count[e] == 1) continue;
        double load = core->replica_load[e];
        int32_t at = n_many++;
        while (at > 0 && core->replica_load[many[at - 1]] < load) {
            many[at] = many[at - 1];
            at--;
        }
        many[at] = e;
    }
    for (int32_t i = 0, m = 0; i < n || m < n_many;) {
        while (i < n && core->count[core->order[i]] > 1)
            i++;
        if (m < n_many &&
            (i == n || core->replica_load[many[m]] >= core->replica_load[core->order[i]]))
            out_order[n_out++] = many[m++];
        else if (i < n)
            out_order[n_out++] = core->order[i++];
    }
}

/* A replica into the device's next slot. @return whether the device has room for another one */
static bool put(ek_place_core *core, int32_t *next_slot, int32_t device, int32_t expert)
{
    int32_t s = next_slot[device]++;
    core->slot_expert[s] = expert;
    core->slot_load[s] = (float)core->replica_load[expert];
    core->device_load[device] += core->replica_load[expert];
    return next_slot[device] < core->slot_beg[device + 1];
}

bool ek_place_pack(ek_place_core *core, ek_arena scratch)
{
    int32_t *order = ek_new(&scratch, int32_t, core->n_experts);
    int32_t *next_slot = ek_new(&scratch, int32_t, core->n_devices);
    uint64_t *taken = ek_new(&scratch, uint64_t, core->n_devices);
    room_heap heap = {ek_new(&scratch, uint64_t, core->n_devices + 1), 0};
    order_by_replica(core, order, scratch);
    memset(core->slot_expert, 0xff, (size_t)core->n_slots * sizeof *core->slot_expert);
    memset(core->slot_load, 0, (size_t)core->n_slots * sizeof *core->slot_load);

    bool distinct = true;
    double scale = ldexp(1.0, LOAD_BITS) / (core->mean * core->n_devices);
    for (int32_t d = 0; d < core->n_devices; d++) {
        core->device_load[d] = 0.0;
        next_slot[d] = core->slot_beg[d];
        if (next_slot[d] < core->slot_beg[d + 1]) push(&heap, (uint64_t)d);
    }
    for (int32_t i = 0; i < core->n_experts; i++) {
        int32_t e = order[i];
        double load = core->replica_load[e];
        uint64_t step = (uint64_t)(int64_t)(load * scale) << DEVICE_BITS;
        if (core->count[e] == 1) {
            uint64_t key = heap.key[0];
            if (put(core, next_slot, (int32_t)(key & DEVICE_MASK), e))
                replace_top(&heap, key + step);
            else
                pop(&heap);
            continue;
        }
        /*
         * All replicas leave the heap before any comes back: distinct devices, as long as enough
         * have room.
         */
        int32_t n_taken = 0;
        for (int32_t r = 0; r < core->count[e]; r++) {
            if (heap.n == 0) {
                distinct = false;
                for (int32_t t = 0; t < n_taken; t++)
                    push(&heap, taken[t]);
                n_taken = 0;
            }
            uint64_t key = heap.key[0];
            pop(&heap);
            if (put(core, next_slot, (int32_t)(key & DEVICE_MASK), e))
                taken[n_taken++] = key + step;
        }
        for (int32_t t = 0; t < n_taken; t++)
            push(&heap, taken[t]);
    }
    return distinct;
}
