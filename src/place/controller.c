#include "place/controller.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "base/drift.h"
#include "place/controller_internal.h"
#include "place/part.h"

const char *ek_place_verdict_name(ek_place_verdict verdict)
{
    static const char *const names[] = {"pays",        "required", "no_room", "stale",
                                        "few_windows", "even",     "small",   "dear"};
    return names[verdict];
}

int64_t ek_place_controller_oldest(const ek_place_controller *c, int32_t layer)
{
    int64_t kept = c->n_windows - c->params.n_windows;
    return c->layer[layer].first_window > kept ? c->layer[layer].first_window : kept;
}

/* Has this layer's traffic become another kind than that of its history? */
static bool is_fresh_start(ek_place_controller *c, int32_t layer, const int64_t *tokens)
{
    int32_t n_experts = c->topology.n_experts;
    memset(c->reference, 0, (size_t)n_experts * sizeof *c->reference);
    for (int64_t w = ek_place_controller_oldest(c, layer); w < c->n_windows; w++) {
        const int32_t *row = ek_place_controller_row(c, w, layer);
        for (int32_t e = 0; e < n_experts; e++)
            c->reference[e] += row[e];
    }
    double drift = ek_drift(tokens, c->reference, n_experts);
    return drift - ek_drift_noise(tokens, c->reference, n_experts) > c->params.fresh_start_drift;
}

static void feed_layer(ek_place_controller *c, int32_t layer, double decay, const int64_t *tokens)
{
    int32_t n_experts = c->topology.n_experts;
    double *loads = c->loads + (int64_t)layer * n_experts;
    int64_t cell = ek_place_controller_cell(c, c->n_windows, layer), rows = 0;
    int32_t *row = c->tokens + cell * n_experts;
    if (is_fresh_start(c, layer, tokens)) {
        c->layer[layer].first_window = c->n_windows;
        c->stats.n_fresh_starts++;
        decay = 0.0;
    }
    for (int32_t e = 0; e < n_experts; e++) {
        ek_dassert(tokens[e] >= 0);
        row[e] = (int32_t)(tokens[e] < INT32_MAX ? tokens[e] : INT32_MAX);
        rows += row[e];
        loads[e] = loads[e] * decay + (double)row[e];
    }
    c->rows[cell] = rows;
    c->now[cell] = EK_PLACE_UNMEASURED;
}

void ek_place_controller_feed(ek_place_controller *c, int64_t now_us, int64_t window_us,
                              const int64_t *tokens)
{
    ek_assert(window_us > 0);
    int64_t n_cells = (int64_t)c->n_layers * c->topology.n_experts, any = 0;
    for (int64_t i = 0; any == 0 && i < n_cells; i++)
        any = tokens[i];
    if (any == 0) return;
    int64_t passed_us = c->n_windows > 0 ? now_us - c->stats.last_window_us : 0;
    double decay = exp2(-(double)passed_us / (double)c->params.half_life_us);
    for (int32_t l = 0; l < c->n_layers; l++)
        feed_layer(c, l, decay, tokens + (int64_t)l * c->topology.n_experts);
    c->window[c->n_windows % c->params.n_windows] = (ek_place_window){now_us, window_us};
    c->n_windows++;
    c->stats.last_window_us = now_us;
}

/* Does every expert have a replica, and every live device its shared experts? */
static bool is_complete(const ek_place_controller *c, const int32_t *slots)
{
    bool seen[EK_PLACE_EXPERTS_MAX] = {false};
    int32_t first_pinned = c->routed.n_experts;
    for (int32_t d = 0; d < c->topology.n_devices; d++) {
        int32_t n_shared = 0;
        for (int32_t s = c->slot_beg[d]; s < c->slot_beg[d + 1]; s++) {
            if (slots[s] >= 0) seen[slots[s]] = true;
            n_shared += slots[s] >= first_pinned;
        }
        if (!c->dead[d] && n_shared < c->n_pinned) return false;
    }
    for (int32_t e = 0; e < c->topology.n_experts; e++)
        if (!seen[e]) return false;
    return true;
}

void ek_place_controller_changed(ek_place_controller *c, int32_t layer)
{
    for (int64_t w = 0; w < c->params.n_windows; w++)
        c->now[w * c->n_layers + layer] = EK_PLACE_UNMEASURED;
    c->layer[layer].looked_at = EK_PLACE_NEVER;
    c->layer[layer].is_incomplete = !is_complete(c, ek_place_controller_slots(c, layer));
}

static int32_t live_slots(const ek_place_topology *t)
{
    int32_t n = 0;
    for (int32_t d = 0; d < t->n_devices; d++)
        n += ek_place_is_dead(t, d) ? 0 : ek_place_slots_of(t, d);
    return n;
}

int32_t ek_place_controller_idle_of(const ek_place_controller *c, int32_t layer, int32_t expert)
{
    if (expert < 0 || expert >= c->routed.n_experts) return 0; /* pinned ones are never idle */
    const int32_t *slots = ek_place_controller_slots(c, layer);
    const double *loads = ek_place_controller_loads(c, layer);
    double total = 0.0;
    int32_t count = 0;
    for (int32_t e = 0; e < c->routed.n_experts; e++)
        total += loads[e];
    for (int32_t s = 0; s < c->topology.n_slots; s++)
        count += slots[s] == expert;
    double needed = total > 0.0 ? ceil(loads[expert] * live_slots(&c->routed) / total) : 1.0;
    needed = needed < 1.0 ? 1.0 : needed;
    return needed < count ? count - (int32_t)needed : 0;
}

int32_t ek_place_controller_idle(const ek_place_controller *c, int32_t layer)
{
    int32_t n = 0;
    for (int32_t e = 0; e < c->routed.n_experts; e++)
        n += ek_place_controller_idle_of(c, layer, e);
    return n;
}

void ek_place_controller_fix(ek_place_controller *c, int32_t layer, const bool *slot_fixed)
{
    ek_assert(layer >= 0 && layer < c->n_layers && c->n_pinned == 0);
    c->has_fixed = true;
    memcpy(c->fixed + (int64_t)layer * c->topology.n_slots, slot_fixed,
           (size_t)c->topology.n_slots * sizeof *slot_fixed);
}

const int32_t *ek_place_controller_slots(const ek_place_controller *c, int32_t layer)
{
    ek_assert(layer >= 0 && layer < c->n_layers);
    return c->slot_expert + (int64_t)layer * c->topology.n_slots;
}

const double *ek_place_controller_loads(const ek_place_controller *c, int32_t layer)
{
    ek_assert(layer >= 0 && layer < c->n_layers);
    return c->loads + (int64_t)layer * c->topology.n_experts;
}

void ek_place_controller_stats_get(const ek_place_controller *c,
                                   ek_place_controller_stats *out_stats)
{
    *out_stats = c->stats;
    out_stats->state = c->active.state;
    out_stats->layer = c->active.state == EK_PLACE_IDLE ? -1 : c->active.layer;
}

void ek_place_controller_devices(ek_place_controller *c, int64_t now_us, const bool *dead)
{
    bool changed = false;
    for (int32_t d = 0; d < c->topology.n_devices; d++) {
        bool is_dead = dead && dead[d];
        if (is_dead == c->dead[d]) continue;
        changed = true;
        c->dead[d] = is_dead;
        for (int32_t l = 0; l < c->n_layers; l++)
            for (int32_t s = c->slot_beg[d]; s < c->slot_beg[d + 1]; s++)
                c->slot_expert[(int64_t)l * c->topology.n_slots + s] = EK_PLACE_EMPTY;
    }
    if (!changed) return;
    if (c->active.state != EK_PLACE_IDLE) {
        c->stats.n_failed++;
        ek_place_controller_end(c, now_us);
    }
    for (int32_t l = 0; l < c->n_layers; l++) {
        /* Whatever was decided about this layer was decided about another cluster. */
        c->layer[l].paused_until_us = INT64_MIN;
        ek_place_controller_changed(c, l);
    }
}

ek_status ek_place_controller_adopt(ek_place_controller *c, int64_t now_us, int32_t layer,
                                    const int32_t *slot_expert)
{
    ek_assert(layer >= 0 && layer < c->n_layers);
    ek_status status =
        ek_place_controller_slots_check(&c->topology, c->n_pinned, layer, slot_expert, NULL);
    if (status != EK_OK) return status;
    if (c->active.state != EK_PLACE_IDLE && c->active.layer == layer) {
        c->stats.n_failed++;
        ek_place_controller_end(c, now_us);
    }
    memcpy(c->slot_expert + (int64_t)layer * c->topology.n_slots, slot_expert,
           (size_t)c->topology.n_slots * sizeof *slot_expert);
    ek_place_controller_changed(c, layer);
    return EK_OK;
}
