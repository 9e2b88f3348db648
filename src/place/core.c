#include "place/core.h"

#include <string.h>

#include "base/assert.h"

#define DIGIT_BITS   8
#define N_DIGITS     (1 << DIGIT_BITS)
#define N_PASSES_MAX 3
#define LOW_BITS_MAX 10 /* of a key that may be left to the insertion sort */

size_t ek_place_core_bytes(int32_t n_experts, int32_t n_slots, int32_t n_devices)
{
    size_t experts = (size_t)n_experts, slots = (size_t)n_slots;
    size_t state = experts * (3 * sizeof(int32_t) + sizeof(double)) +
                   slots * (2 * sizeof(int32_t) + 3 * sizeof(float)) +
                   (size_t)n_devices * sizeof(double);
    size_t work = 2 * experts * sizeof(uint64_t) + N_PASSES_MAX * N_DIGITS * sizeof(int32_t) +
                  experts * 2 * sizeof(float) + slots * sizeof(int32_t) +
                  ek_place_pack_bytes(n_experts, n_devices);
    return state + work + 24 * EK_CACHE_LINE;
}

static uint32_t float_bits(float f)
{
    uint32_t bits;
    memcpy(&bits, &f, sizeof bits);
    return bits;
}

/* Where each of a pass's digits begins in the output; histogram in, offsets out. */
static void offsets(int32_t *hist)
{
    int32_t sum = 0;
    for (int32_t i = 0; i < N_DIGITS; i++) {
        int32_t here = hist[i];
        hist[i] = sum;
        sum += here;
    }
}

/*
 * Experts by load, heaviest first, equal loads by id: a radix sort, because it is the one step of a
 * quick solve that would otherwise depend on branches nobody can predict. The bits of non-negative
 * floats sort as integers do; their distance from those of the heaviest is the key, of which the
 * lowest bits are left to an insertion sort, which then finds next to nothing to do. How many
 * passes are over bits that differ at all depends on how far apart loads are; two are usual. All
 * of it is stable, so equal loads stay in id order.
 */
static void sort_by_load(ek_place_core *core, ek_arena scratch)
{
    int32_t n = core->n_experts, n_bits = 0, n_passes = 0;
    uint64_t *from = ek_arena_try_raw(&scratch, (size_t)n, sizeof *from, _Alignof(uint64_t));
    uint64_t *to = ek_arena_try_raw(&scratch, (size_t)n, sizeof *to, _Alignof(uint64_t));
    int32_t *hist = ek_new(&scratch, int32_t, N_PASSES_MAX * N_DIGITS);
    uint32_t most = 0, least = UINT32_MAX;
    for (int32_t e = 0; e < n; e++) {
        uint32_t bits = float_bits((float)core->load[e]);
        from[e] = (uint64_t)bits << 32 | (uint32_t)e;
        most = bits > most ? bits : most;
        least = bits < least ? bits : least;
    }
    while (n_bits < 32 && (most - least) >> n_bits != 0)
        n_bits++;
    while (n_bits > n_passes * DIGIT_BITS + (n_passes < 2 ? 0 : LOW_BITS_MAX))
        n_passes++;
    int32_t low = 32 + (n_bits > n_passes * DIGIT_BITS ? n_bits - n_passes * DIGIT_BITS : 0);
    for (int32_t e = 0; e < n; e++) {
        from[e] = ((uint64_t)most << 32) - (from[e] & ~(uint64_t)UINT32_MAX) + (uint32_t)e;
        for (int32_t d = 0; d < n_passes; d++)
            hist[d * N_DIGITS + (int32_t)(from[e] >> (low + d * DIGIT_BITS) & (N_DIGITS - 1))]++;
    }
    for (int32_t d = 0; d < n_passes; d++) {
        int32_t *at = hist + d * N_DIGITS;
        offsets(at);
        for (int32_t i = 0; i < n; i++)
            to[at[from[i] >> (low + d * DIGIT_BITS) & (N_DIGITS - 1)]++] = from[i];
        uint64_t *swap = from;
        from = to;
        to = swap;
    }
    for (int32_t i = 0; i < n; i++) {
        uint64_t moving = from[i];
        int32_t at = i;
        for (; at > 0 && from[at - 1] > moving; at--)
            from[at] = from[at - 1];
        from[at] = moving;
    }
    for (int32_t i = 0; i < n; i++) {
        core->order[i] = (int32_t)(from[i] & UINT32_MAX);
        core->rank[core->order[i]] = i;
    }
}

void ek_place_core_init(ek_place_core *core, ek_arena *perm)
{
    core->order = ek_new(perm, int32_t, core->n_experts);
    core->rank = ek_new(perm, int32_t, core->n_experts);
    core->count = ek_new(perm, int32_t, core->n_experts);
    core->replica_load = ek_new(perm, double, core->n_experts);
    core->slot_expert = ek_new(perm, int32_t, core->n_slots);
    core->slot_device = ek_new(perm, int32_t, core->n_slots);
    core->slot_load = ek_new_aligned(perm, float, core->n_slots);
    core->slot_rest = ek_new_aligned(perm, float, core->n_slots);
    core->slot_promise = ek_new(perm, float, core->n_slots);
    core->device_load = ek_new(perm, double, core->n_devices);
    for (int32_t d = 0; d < core->n_devices; d++)
        for (int32_t s = core->slot_beg[d]; s < core->slot_beg[d + 1]; s++)
            core->slot_device[s] = d;
    sort_by_load(core, *perm);
}

double ek_place_busiest(const ek_place_core *core, int32_t *out_device)
{
    int32_t busiest = 0;
    for (int32_t d = 1; d < core->n_devices; d++)
        if (core->device_load[d] > core->device_load[busiest]) busiest = d;
    if (out_device) *out_device = busiest;
    return core->device_load[busiest];
}

bool ek_place_holds(const ek_place_core *core, int32_t device, int32_t expert, int32_t except_slot)
{
    for (int32_t s = core->slot_beg[device]; s < core->slot_beg[device + 1]; s++)
        if (core->slot_expert[s] == expert && s != except_slot) return true;
    return false;
}

/* What a device's slots see of its load; called whenever that load changes. */
static void refresh_rest(ek_place_core *core, int32_t device)
{
    for (int32_t s = core->slot_beg[device]; s < core->slot_beg[device + 1]; s++)
        core->slot_rest[s] = (float)(core->device_load[device] - (double)core->slot_load[s]);
}

void ek_place_swap(ek_place_core *core, int32_t slot_a, int32_t slot_b)
{
    int32_t device_a = core->slot_device[slot_a], device_b = core->slot_device[slot_b];
    ek_dassert(device_a != device_b);
    double given = (double)core->slot_load[slot_a] - (double)core->slot_load[slot_b];
    core->device_load[device_a] -= given;
    core->device_load[device_b] += given;
    int32_t expert = core->slot_expert[slot_a];
    core->slot_expert[slot_a] = core->slot_expert[slot_b];
    core->slot_expert[slot_b] = expert;
    float load = core->slot_load[slot_a];
    core->slot_load[slot_a] = core->slot_load[slot_b];
    core->slot_load[slot_b] = load;
    refresh_rest(core, device_a);
    refresh_rest(core, device_b);
}
