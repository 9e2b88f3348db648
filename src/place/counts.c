#include <math.h>
#include <string.h>

#include "place/core.h"

/*
 * Sift the root of a max-heap of (priority, expert) down. Equal priorities: the lower rank wins, by
 * order of building.
 */
static void sift_down(float *priority, int32_t *expert, int32_t n)
{
    float moving = priority[0];
    int32_t moving_expert = expert[0];
    int32_t hole = 0;
    for (int32_t child = 1; child < n; child = 2 * hole + 1) {
        if (child + 1 < n && priority[child + 1] > priority[child]) child++;
        if (!(priority[child] > moving)) break;
        priority[hole] = priority[child];
        expert[hole] = expert[child];
        hole = child;
    }
    priority[hole] = moving;
    expert[hole] = moving_expert;
}

typedef struct priority_heap {
    float *priority;
    int32_t *expert;
    int32_t n;
} priority_heap;

/* Priority of an expert's next replica; negative: it gets no more. */
static float priority_of(const ek_place_core *core, int32_t expert, float shift)
{
    /* A replica more than there are devices could only sit beside another one. */
    return core->count[expert] < core->n_devices
               ? (float)core->load[expert] / ((float)core->count[expert] + shift)
               : -1.0f;
}

/* Hand out what slots are left, one by one, to the highest priority. */
static void give_spares(ek_place_core *core, priority_heap *heap, int32_t n_spare, float shift)
{
    for (; n_spare > 0 && heap->n > 0 && heap->priority[0] >= 0.0f; n_spare--) {
        int32_t e = heap->expert[0];
        core->count[e]++;
        heap->priority[0] = priority_of(core, e, shift);
        sift_down(heap->priority, heap->expert, heap->n);
    }
    /* Dividing by one is what most experts would do. */
    memcpy(core->replica_load, core->load, (size_t)core->n_experts * sizeof *core->load);
    for (int32_t e = 0; e < core->n_experts; e++)
        if (core->count[e] > 1) core->replica_load[e] = core->load[e] / core->count[e];
}

static priority_heap heap_new(const ek_place_core *core, ek_arena *scratch)
{
    return (priority_heap){
        .priority = ek_new(scratch, float, core->n_experts),
        .expert = ek_new(scratch, int32_t, core->n_experts),
    };
}

void ek_place_counts(ek_place_core *core, float shift, ek_arena scratch)
{
    priority_heap heap = heap_new(core, &scratch);
    int32_t n_spare = core->n_slots - core->n_experts;
    int32_t n = n_spare < core->n_experts ? n_spare : core->n_experts;
    for (int32_t e = 0; e < core->n_experts; e++)
        core->count[e] = 1;
    /*
     * Descending order is already a max-heap; and before the n-th gets a spare, each of those
     * before it has one.
     */
    for (; heap.n < n; heap.n++) {
        heap.expert[heap.n] = core->order[heap.n];
        heap.priority[heap.n] = priority_of(core, core->order[heap.n], shift);
    }
    give_spares(core, &heap, n_spare, shift);
}

bool ek_place_counts_capped(ek_place_core *core, double cap, ek_arena scratch)
{
    priority_heap heap = heap_new(core, &scratch);
    int64_t n_spare = core->n_slots;
    for (int32_t i = 0; i < core->n_experts; i++) {
        int32_t e = core->order[i];
        double n = ceil(core->load[e] / cap);
        core->count[e] = n < 1.0 ? 1 : n > core->n_devices ? core->n_devices : (int32_t)n;
        n_spare -= core->count[e];
        /* In descending order of load; those with one replica keep that order, and a heap. */
        if (core->count[e] == 1 && core->load[e] <= cap / 2) {
            heap.expert[heap.n] = e;
            heap.priority[heap.n++] = priority_of(core, e, 0.0f);
        }
    }
    if (n_spare < 0) return false;
    give_spares(core, &heap, (int32_t)n_spare, 0.0f);
    return true;
}
