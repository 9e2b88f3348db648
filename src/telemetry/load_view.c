#include "telemetry/load_view.h"

#include <math.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <string.h>

#include "base/assert.h"
#include "telemetry/experts.h"

#define NO_SNAPSHOT  (-1)
#define NS_PER_US    1000.0
#define LATE_PERIODS 1.5

/*
 * A snapshot's memory. The count of pins keeps the sampler from writing to it: a reader first
 * counts itself in and then looks whether the slot is still the newest; the sampler first makes
 * another slot the newest and then, one sample later, looks whether anybody is counted in. Both go
 * by the single order of sequentially consistent operations, so at least one of them sees the
 * other.
 */
typedef struct slot {
    ek_load_snapshot snapshot; /* the first member: what readers hold is turned back into a slot */
    float *utilisation;
    float *raw;
    int32_t *queue;
    _Alignas(EK_CACHE_LINE) _Atomic int32_t n_pins;
} slot;

struct ek_load_view {
    ek_load_view_params params;
    size_t n_cells;
    int32_t n_slots;
    slot *slots; /* (n_slots) */
    _Alignas(EK_CACHE_LINE) _Atomic int32_t newest;
    _Atomic uint64_t n_published, n_missed, n_late, n_blocked;
    /* The sampler's own. */
    int64_t *base_ns; /* (n_cells) busy time at base_us */
    int64_t base_us;
    bool has_base;
};

static bool params_valid(const ek_load_view_params *p)
{
    return p->n_layers >= 1 && p->n_layers <= EK_EXPERTS_LAYERS_MAX && p->n_experts >= 1 &&
           p->n_experts <= EK_EXPERTS_PER_LAYER_MAX && p->n_readers >= 1 &&
           p->n_readers <= EK_LOAD_VIEW_READERS_MAX && p->capacity > 0.0 && isfinite(p->capacity) &&
           p->half_life_us > 0 && p->sample_us > 0;
}

/* The newest, one for each reader that has yet to let go of an older one, and one to write to. */
static int32_t slots_of(const ek_load_view_params *p)
{
    return p->n_readers + 2;
}

size_t ek_telemetry_load_view_bytes(const ek_load_view_params *p)
{
    if (!params_valid(p)) return 0;
    /* With the maxima above all of this stays below 1 GB. */
    size_t cells = (size_t)p->n_layers * (size_t)p->n_experts, slots = (size_t)slots_of(p);
    size_t per_slot = sizeof(slot) + cells * (2 * sizeof(float) + sizeof(int32_t));
    return sizeof(ek_load_view) + slots * (per_slot + 4 * EK_CACHE_LINE) + cells * sizeof(int64_t) +
           4 * EK_CACHE_LINE;
}

ek_status ek_telemetry_load_view_create(const ek_load_view_params *params, ek_arena *perm,
                                        ek_load_view **out_view)
{
    if (!params_valid(params)) return EK_ERANGE;
    if (ek_arena_free_bytes(perm) < ek_telemetry_load_view_bytes(params)) return EK_ENOMEM;
    ek_load_view *view = ek_new(perm, ek_load_view, 1);
    view->params = *params;
    view->n_cells = (size_t)params->n_layers * (size_t)params->n_experts;
    view->n_slots = slots_of(params);
    view->slots = ek_new(perm, slot, view->n_slots);
    for (int32_t i = 0; i < view->n_slots; i++) {
        slot *s = &view->slots[i];
        s->utilisation = ek_new_aligned(perm, float, view->n_cells);
        s->raw = ek_new_aligned(perm, float, view->n_cells);
        s->queue = ek_new_aligned(perm, int32_t, view->n_cells);
        s->snapshot = (ek_load_snapshot){
            .n_layers = params->n_layers,
            .n_experts = params->n_experts,
            .utilisation = s->utilisation,
            .raw = s->raw,
        };
    }
    view->base_ns = ek_new_aligned(perm, int64_t, view->n_cells);
    atomic_init(&view->newest, NO_SNAPSHOT);
    *out_view = view;
    return EK_OK;
}

static void count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

static bool went_backwards(const ek_load_view *view, const int64_t *busy_ns)
{
    for (size_t i = 0; i < view->n_cells; i++)
        if (busy_ns[i] < view->base_ns[i]) return true;
    return false;
}

static void rebase(ek_load_view *view, int64_t now_us, const int64_t *busy_ns)
{
    memcpy(view->base_ns, busy_ns, view->n_cells * sizeof *busy_ns);
    view->base_us = now_us;
    view->has_base = true;
}

/* A slot that nobody reads and nobody can come to read; NULL: all are pinned. */
static slot *slot_free(ek_load_view *view, int32_t newest)
{
    for (int32_t i = 0; i < view->n_slots; i++) {
        if (i == newest) continue;
        /* Zero also acquires what the last unpin released: all reads of the slot are over. */
        if (atomic_load_explicit(&view->slots[i].n_pins, memory_order_seq_cst) == 0)
            return &view->slots[i];
    }
    return NULL;
}

static void slot_fill(const ek_load_view *view, slot *s, const slot *before, int64_t now_us,
                      const int64_t *busy_ns, const int32_t *queue)
{
    int64_t passed_us = now_us - view->base_us;
    double busy_max_ns = (double)passed_us * NS_PER_US * view->params.capacity;
    double kept = before ? exp2(-(double)passed_us / (double)view->params.half_life_us) : 0.0;
    for (size_t i = 0; i < view->n_cells; i++) {
        double raw = (double)(busy_ns[i] - view->base_ns[i]) / busy_max_ns;
        double old = before ? (double)before->utilisation[i] : 0.0;
        s->raw[i] = (float)raw;
        s->utilisation[i] = (float)(old * kept + raw * (1.0 - kept));
    }
    if (queue) memcpy(s->queue, queue, view->n_cells * sizeof *queue);
    s->snapshot.queue = queue ? s->queue : NULL;
    s->snapshot.version = before ? before->snapshot.version + 1 : 1;
    s->snapshot.taken_us = now_us;
    s->snapshot.sample_us = passed_us;
}

ek_status ek_telemetry_load_view_sample(ek_load_view *view, int64_t now_us, const int64_t *busy_ns,
                                        const int32_t *queue)
{
    if (!view->has_base || went_backwards(view, busy_ns)) {
        rebase(view, now_us, busy_ns);
        return EK_AGAIN;
    }
    int64_t passed_us = now_us - view->base_us;
    if (passed_us <= 0) return EK_AGAIN;
    if ((double)passed_us > LATE_PERIODS * (double)view->params.sample_us) count(&view->n_late);
    /* Only this thread ever stores it. */
    int32_t newest = atomic_load_explicit(&view->newest, memory_order_relaxed);
    slot *s = slot_free(view, newest);
    if (!s) {
        count(&view->n_blocked);
        return EK_EFULL;
    }
    const slot *before = newest == NO_SNAPSHOT ? NULL : &view->slots[newest];
    slot_fill(view, s, before, now_us, busy_ns, queue);
    rebase(view, now_us, busy_ns);
    /* Releases the snapshot to whoever loads its number in pin. */
    atomic_store_explicit(&view->newest, (int32_t)(s - view->slots), memory_order_seq_cst);
    count(&view->n_published);
    return EK_OK;
}

void ek_telemetry_load_view_miss(ek_load_view *view)
{
    count(&view->n_missed);
}

const ek_load_snapshot *ek_telemetry_load_view_pin(ek_load_view *view)
{
    for (;;) {
        int32_t i = atomic_load_explicit(&view->newest, memory_order_seq_cst);
        if (i == NO_SNAPSHOT) return NULL;
        slot *s = &view->slots[i];
        atomic_fetch_add_explicit(&s->n_pins, 1, memory_order_seq_cst);
        /*
         * Still the newest: the sampler has not come to look for a slot to write, and will see us.
         */
        if (atomic_load_explicit(&view->newest, memory_order_seq_cst) == i) return &s->snapshot;
        atomic_fetch_sub_explicit(&s->n_pins, 1, memory_order_release);
    }
}

void ek_telemetry_load_view_unpin(ek_load_view *view, const ek_load_snapshot *snapshot)
{
    if (!snapshot) return;
    slot *s = (slot *)(uintptr_t)snapshot;
    ek_assert(s >= view->slots && s < view->slots + view->n_slots);
    /* Released for slot_free, which writes here only after it has seen that the reader is done. */
    int32_t n_before = atomic_fetch_sub_explicit(&s->n_pins, 1, memory_order_release);
    ek_assert(n_before > 0);
}

int64_t ek_telemetry_load_view_age_us(const ek_load_snapshot *snapshot, int64_t now_us)
{
    if (!snapshot) return INT64_MAX;
    return now_us > snapshot->taken_us ? now_us - snapshot->taken_us : 0;
}

void ek_telemetry_load_view_stats_get(const ek_load_view *view, ek_load_view_stats *out_stats)
{
    *out_stats = (ek_load_view_stats){
        .n_published = atomic_load_explicit(&view->n_published, memory_order_relaxed),
        .n_missed = atomic_load_explicit(&view->n_missed, memory_order_relaxed),
        .n_late = atomic_load_explicit(&view->n_late, memory_order_relaxed),
        .n_blocked = atomic_load_explicit(&view->n_blocked, memory_order_relaxed),
    };
}
