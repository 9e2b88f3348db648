#include "telemetry/experts.h"

#include <stdatomic.h>
#include <stdbool.h>

#include "base/assert.h"
#include "base/size.h"

#define COUNTERS_PER_LINE (EK_CACHE_LINE / (int32_t)sizeof(uint64_t))
#define NS_PER_US         1000

#define BEING_WRITTEN INT64_MAX

/*
 * Two slots more than the window has periods: its two ends, and the one that may be being written.
 */
#define FINE_PERIOD_US   EK_EXPERT_WINDOW_SAMPLE_US
#define FINE_SLOTS       103
#define FINE_WINDOW_US   10000000
#define COARSE_PERIOD_US 1000000
#define COARSE_SLOTS     63

enum { FIGURE_TOKENS, FIGURE_REQUESTS, FIGURE_BUSY, N_FIGURES };

/*
 * What all counters stood at, at one time. 32 bits are enough, since only differences over at most
 * a minute are formed of them, and those are right modulo 2^32; busy time is kept in microseconds
 * for that. No two snapshots of a slot have the same time, so the time is its version, too: values
 * are stored with release and loaded with acquire, and a reader that got one of a newer snapshot is
 * bound to find another time afterwards.
 */
typedef struct snapshot {
    _Atomic int64_t at_us;   /* BEING_WRITTEN while the sampler is at it */
    _Atomic uint32_t *value; /* (N_FIGURES, n_layers, n_experts) */
} snapshot;

typedef struct ring {
    snapshot *slot; /* (n_slots) */
    int32_t n_slots;
    int64_t period_us;
    int64_t due_us;          /* sampler's own */
    _Atomic int64_t n_taken; /* since start; slot n_taken % n_slots is the next */
} ring;

struct ek_expert_stats {
    int32_t n_layers;
    int32_t n_experts;
    int32_t row; /* counters from one layer to the next: rows begin on cache lines */
    _Atomic uint64_t *counter[N_FIGURES]; /* (n_layers, row) each; busy in nanoseconds */
    ek_service_hist *service;             /* (n_layers, n_experts) */
    ring fine;
    ring coarse;
};

static bool sizes_valid(int32_t n_layers, int32_t n_experts)
{
    return n_layers >= 1 && n_layers <= EK_EXPERTS_LAYERS_MAX && n_experts >= 1 &&
           n_experts <= EK_EXPERTS_PER_LAYER_MAX;
}

static int32_t row_length(int32_t n_experts)
{
    return (n_experts + COUNTERS_PER_LINE - 1) / COUNTERS_PER_LINE * COUNTERS_PER_LINE;
}

size_t ek_telemetry_experts_bytes(int32_t n_layers, int32_t n_experts)
{
    if (!sizes_valid(n_layers, n_experts)) return 0;
    /* With the maxima above all of this stays below 4 GB. */
    size_t cells = (size_t)n_layers * (size_t)n_experts;
    size_t counters = N_FIGURES * (size_t)n_layers * (size_t)row_length(n_experts);
    size_t slots = FINE_SLOTS + COARSE_SLOTS;
    size_t snapshots = slots * (sizeof(snapshot) + N_FIGURES * cells * sizeof(uint32_t));
    size_t padding = (slots + 16) * EK_CACHE_LINE; /* one alignment per array at most */
    return sizeof(ek_expert_stats) + counters * sizeof(uint64_t) + cells * sizeof(ek_service_hist) +
           snapshots + padding;
}

static void ring_init(ring *r, ek_arena *perm, int32_t n_slots, int64_t period_us, size_t n_values)
{
    r->slot = ek_new(perm, snapshot, n_slots);
    r->n_slots = n_slots;
    r->period_us = period_us;
    r->due_us = INT64_MIN;
    for (int32_t i = 0; i < n_slots; i++)
        r->slot[i].value = ek_new_aligned(perm, _Atomic uint32_t, n_values);
}

ek_status ek_telemetry_experts_create(int32_t n_layers, int32_t n_experts, ek_arena *perm,
                                      ek_expert_stats **out_stats)
{
    if (!sizes_valid(n_layers, n_experts)) return EK_ERANGE;
    if (ek_arena_free_bytes(perm) < ek_telemetry_experts_bytes(n_layers, n_experts))
        return EK_ENOMEM;
    size_t cells = (size_t)n_layers * (size_t)n_experts;
    ek_expert_stats *stats = ek_new(perm, ek_expert_stats, 1);
    stats->n_layers = n_layers;
    stats->n_experts = n_experts;
    stats->row = row_length(n_experts);
    for (int32_t f = 0; f < N_FIGURES; f++)
        stats->counter[f] =
            ek_new_aligned(perm, _Atomic uint64_t, (size_t)n_layers *(size_t)stats->row);
    stats->service = ek_new_aligned(perm, ek_service_hist, cells);
    ring_init(&stats->fine, perm, FINE_SLOTS, FINE_PERIOD_US, N_FIGURES * cells);
    ring_init(&stats->coarse, perm, COARSE_SLOTS, COARSE_PERIOD_US, N_FIGURES * cells);
    *out_stats = stats;
    return EK_OK;
}

int32_t ek_telemetry_experts_layers(const ek_expert_stats *stats)
{
    return stats->n_layers;
}

int32_t ek_telemetry_experts_count(const ek_expert_stats *stats)
{
    return stats->n_experts;
}

static _Atomic uint64_t *counter_of(const ek_expert_stats *stats, int32_t figure, int32_t layer,
                                    int32_t expert)
{
    ek_dassert(layer >= 0 && layer < stats->n_layers);
    ek_dassert(expert >= 0 && expert < stats->n_experts);
    return &stats->counter[figure][(size_t)layer * (size_t)stats->row + (size_t)expert];
}

void ek_telemetry_experts_add_tokens(ek_expert_stats *stats, int32_t layer, int32_t expert,
                                     int64_t n_tokens)
{
    atomic_fetch_add_explicit(counter_of(stats, FIGURE_TOKENS, layer, expert), (uint64_t)n_tokens,
                              memory_order_relaxed);
}

void ek_telemetry_experts_add_request(ek_expert_stats *stats, int32_t layer, int32_t expert)
{
    atomic_fetch_add_explicit(counter_of(stats, FIGURE_REQUESTS, layer, expert), 1,
                              memory_order_relaxed);
}

void ek_telemetry_experts_add_load(ek_expert_stats *stats, int32_t layer, int32_t expert,
                                   int64_t busy_ns)
{
    atomic_fetch_add_explicit(counter_of(stats, FIGURE_BUSY, layer, expert), (uint64_t)busy_ns,
                              memory_order_relaxed);
}

void ek_telemetry_experts_add_busy(ek_expert_stats *stats, int32_t layer, int32_t expert,
                                   int64_t busy_ns, int64_t service_us)
{
    ek_telemetry_experts_add_load(stats, layer, expert, busy_ns);
    size_t cell = (size_t)layer * (size_t)stats->n_experts + (size_t)expert;
    ek_telemetry_service_record(&stats->service[cell], service_us > 0 ? (uint64_t)service_us : 0);
}

const ek_service_hist *ek_telemetry_experts_service(const ek_expert_stats *stats, int32_t layer,
                                                    int32_t expert)
{
    return &stats->service[(size_t)layer * (size_t)stats->n_experts + (size_t)expert];
}

/* A counter as snapshots keep it. */
static uint32_t counter_short(const ek_expert_stats *stats, int32_t figure, int32_t layer,
                              int32_t expert)
{
    uint64_t value =
        atomic_load_explicit(counter_of(stats, figure, layer, expert), memory_order_relaxed);
    return (uint32_t)(figure == FIGURE_BUSY ? value / NS_PER_US : value);
}

static void take_snapshot(const ek_expert_stats *stats, snapshot *snap, int64_t now_us)
{
    atomic_store_explicit(&snap->at_us, BEING_WRITTEN, memory_order_relaxed);
    size_t at = 0;
    for (int32_t f = 0; f < N_FIGURES; f++)
        for (int32_t l = 0; l < stats->n_layers; l++)
            for (int32_t e = 0; e < stats->n_experts; e++)
                atomic_store_explicit(&snap->value[at++], counter_short(stats, f, l, e),
                                      memory_order_release);
    atomic_store_explicit(&snap->at_us, now_us, memory_order_release);
}

static void ring_sample(const ek_expert_stats *stats, ring *r, int64_t now_us)
{
    if (now_us < r->due_us) return;
    /*
     * Due times stand on a grid, so that a sampler that is a little late does not lengthen every
     * window.
     */
    bool on_grid = r->due_us != INT64_MIN && now_us - r->due_us < r->period_us;
    r->due_us = (on_grid ? r->due_us : now_us) + r->period_us;
    int64_t n_taken = atomic_load_explicit(&r->n_taken, memory_order_relaxed);
    take_snapshot(stats, &r->slot[n_taken % r->n_slots], now_us);
    /* Released for find_base. */
    atomic_store_explicit(&r->n_taken, n_taken + 1, memory_order_release);
}

void ek_telemetry_experts_sample(ek_expert_stats *stats, int64_t now_us)
{
    ring_sample(stats, &stats->fine, now_us);
    ring_sample(stats, &stats->coarse, now_us);
}

/* Acquires what ring_sample released: the slots before this number are complete. */
static int64_t taken(const ring *r)
{
    return atomic_load_explicit(&r->n_taken, memory_order_acquire);
}

static int64_t slot_time(const ring *r, int64_t i)
{
    return atomic_load_explicit(&r->slot[i % r->n_slots].at_us, memory_order_acquire);
}

/*
 * The newest snapshot that is at least window_us older than the last sample, and its time. NULL:
 * recording began later than that, and all counters were zero then. Once the ring is full, its
 * oldest is as far back as anybody can look.
 */
static const snapshot *find_base(const ek_expert_stats *stats, int64_t window_us,
                                 int64_t *out_at_us)
{
    const ring *fine = &stats->fine;
    const ring *r = window_us <= FINE_WINDOW_US ? fine : &stats->coarse;
    for (;;) {
        int64_t n_fine = taken(fine), n_taken = taken(r);
        if (n_fine == 0 || n_taken == 0) return NULL;
        int64_t until_us = slot_time(fine, n_fine - 1) - window_us;
        /* The slot after the newest is the one that is written next: leave it alone. */
        bool is_full = n_taken >= r->n_slots;
        int64_t oldest = is_full ? n_taken - r->n_slots + 1 : 0;
        int64_t i = n_taken - 1, at_us = slot_time(r, i);
        while (i > oldest && at_us > until_us)
            at_us = slot_time(r, --i);
        /* A sampler that went on meanwhile may have written over any of these: look again. */
        if (taken(fine) != n_fine || taken(r) != n_taken) continue;
        if (at_us > until_us && !is_full) return NULL;
        *out_at_us = at_us;
        return &r->slot[i % r->n_slots];
    }
}

static void read_totals(const ek_expert_stats *stats, int32_t layer, int64_t *const out[N_FIGURES])
{
    for (int32_t f = 0; f < N_FIGURES; f++)
        for (int32_t e = 0; out[f] && e < stats->n_experts; e++)
            out[f][e] =
                (int64_t)atomic_load_explicit(counter_of(stats, f, layer, e), memory_order_relaxed);
}

static void read_since(const ek_expert_stats *stats, const snapshot *base, int32_t layer,
                       int64_t *const out[N_FIGURES])
{
    for (int32_t f = 0; f < N_FIGURES; f++) {
        size_t row =
            ((size_t)f * (size_t)stats->n_layers + (size_t)layer) * (size_t)stats->n_experts;
        int64_t unit = f == FIGURE_BUSY ? NS_PER_US : 1;
        for (int32_t e = 0; out[f] && e < stats->n_experts; e++) {
            uint32_t then =
                atomic_load_explicit(&base->value[row + (size_t)e], memory_order_acquire);
            out[f][e] = (int64_t)(uint32_t)(counter_short(stats, f, layer, e) - then) * unit;
        }
    }
}

void ek_telemetry_experts_read_layer(const ek_expert_stats *stats, int32_t layer, int64_t window_us,
                                     int64_t *out_tokens, int64_t *out_requests,
                                     int64_t *out_busy_ns)
{
    ek_assert(layer >= 0 && layer < stats->n_layers);
    int64_t *const out[N_FIGURES] = {out_tokens, out_requests, out_busy_ns};
    int64_t window =
        window_us < EK_EXPERT_WINDOW_US_MAX ? window_us : (int64_t)EK_EXPERT_WINDOW_US_MAX;
    for (;;) {
        int64_t at_us = 0;
        const snapshot *base = window > 0 ? find_base(stats, window, &at_us) : NULL;
        if (!base) {
            read_totals(stats, layer, out);
            return;
        }
        read_since(stats, base, layer, out);
        /* Every load above was an acquire, so this one is no older than what they have seen. */
        int64_t still_us = atomic_load_explicit(&base->at_us, memory_order_relaxed);
        if (still_us == at_us) return;
    }
}

void ek_telemetry_experts_read(const ek_expert_stats *stats, int64_t window_us, int64_t *out_tokens,
                               int64_t *out_requests, int64_t *out_busy_ns)
{
    for (int32_t l = 0; l < stats->n_layers; l++) {
        size_t row = (size_t)l * (size_t)stats->n_experts;
        ek_telemetry_experts_read_layer(stats, l, window_us, out_tokens ? out_tokens + row : NULL,
                                        out_requests ? out_requests + row : NULL,
                                        out_busy_ns ? out_busy_ns + row : NULL);
    }
}
