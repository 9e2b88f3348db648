#include "place/controller.h"

#include <math.h>
#include <string.h>

#include "base/assert.h"
#include "place/controller_internal.h"
#include "place/part.h"

#define SECOND_US INT64_C(1000000)

void ek_place_controller_params_default(ek_place_controller_params *out_params)
{
    /* A replica of 25 MB over 10 GB/s; an expert whose device multiplies at some 50 TFLOP/s. */
    *out_params = (ek_place_controller_params){
        .bytes_per_expert = 25000000,
        .link_bytes_per_s = 10e9,
        .seconds_per_row = 2e-6,
        .horizon_us = 60 * SECOND_US,
        .min_gain = 0.02,
        .confidence = 3.0,
        .half_life_us = 10 * SECOND_US,
        .stale_us = 30 * SECOND_US,
        .n_windows = 16,
        .n_windows_min = 3,
        .fresh_start_drift = 0.15,
        .target = 1.01,
        .max_replicas = 32,
        .max_step_replicas = 8,
        .max_step_bytes = INT64_C(1) << 30,
        .pause_us = 1 * SECOND_US,
        .step_timeout_us = 10 * SECOND_US,
    };
}

static ek_status params_check(const ek_place_controller_params *p, ek_err *err)
{
    const struct {
        bool good;
        const char *text;
    } rules[] = {
        {p->bytes_per_expert > 0 && p->link_bytes_per_s > 0.0 && isfinite(p->link_bytes_per_s),
         "bytes_per_expert and link_bytes_per_s must be above 0"},
        {p->rack_bytes_per_s >= 0.0 && isfinite(p->rack_bytes_per_s) && p->far_bytes_per_s >= 0.0 &&
             isfinite(p->far_bytes_per_s),
         "rack_bytes_per_s and far_bytes_per_s must not be negative"},
        {p->seconds_per_row > 0.0 && isfinite(p->seconds_per_row) && p->horizon_us > 0,
         "seconds_per_row and horizon must be above 0"},
        {p->min_gain >= 0.0 && isfinite(p->min_gain) && p->confidence >= 0.0 &&
             isfinite(p->confidence),
         "min_gain and confidence must not be negative"},
        {p->half_life_us > 0 && p->stale_us > 0, "half_life and stale must be above 0"},
        {p->n_windows >= 1 && p->n_windows <= EK_PLACE_WINDOWS_MAX && p->n_windows_min >= 1 &&
             p->n_windows_min <= p->n_windows,
         "windows must be 1 to 256, windows_min 1 to windows"},
        {p->fresh_start_drift > 0.0, "fresh_start_drift must be above 0; 1 and more is never"},
        {p->target >= 1.0 && isfinite(p->target), "target must be 1 or more"},
        {p->max_replicas >= 2 && p->max_step_replicas >= 2 &&
             p->max_step_bytes / 2 >= p->bytes_per_expert,
         "a rebalance and a step must be allowed two replicas and their bytes: a swap has them"},
        {p->pause_us >= 0 && p->step_timeout_us > 0,
         "pause must not be negative, step_timeout above 0"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(rules); i++)
        if (!rules[i].good) return ek_err_set(err, EK_EINVAL, "%s", rules[i].text);
    return EK_OK;
}

static int32_t pinned_of(const ek_place_controller_setup *setup)
{
    return setup->shared_everywhere ? setup->n_shared : 0;
}

/* The topology without pinned experts. out_slots (n_devices) is what it points to. */
static ek_place_topology routed_topology(const ek_place_topology *whole, int32_t n_pinned,
                                         int32_t *out_slots)
{
    ek_place_topology routed = *whole;
    for (int32_t d = 0; d < whole->n_devices; d++)
        out_slots[d] = ek_place_slots_of(whole, d) - n_pinned;
    routed.n_experts -= n_pinned;
    routed.n_slots -= n_pinned * whole->n_devices;
    routed.device_slots = out_slots;
    return routed;
}

ek_status ek_place_controller_slots_check(const ek_place_topology *t, int32_t n_pinned,
                                          int32_t layer, const int32_t *slots, ek_err *err)
{
    int32_t first_pinned = t->n_experts - n_pinned;
    for (int32_t d = 0, beg = 0; d < t->n_devices; d++) {
        int32_t end = beg + ek_place_slots_of(t, d), n_empty = 0, n_shared = 0;
        for (int32_t s = beg; s < end; s++) {
            if (slots[s] < EK_PLACE_EMPTY || slots[s] >= t->n_experts)
                return ek_err_set(err, EK_EINVAL, "layer %d, slot %d: expert %d of %d", layer, s,
                                  slots[s], t->n_experts);
            if (slots[s] >= 0 && ek_place_is_dead(t, d))
                return ek_err_set(err, EK_EINVAL, "layer %d, slot %d: device %d is dead", layer, s,
                                  d);
            n_empty += slots[s] < 0;
            n_shared += slots[s] >= first_pinned;
            for (int32_t other = beg; slots[s] >= first_pinned && other < s; other++)
                if (slots[other] == slots[s])
                    return ek_err_set(err, EK_EINVAL,
                                      "layer %d: device %d holds shared expert %d twice", layer, d,
                                      slots[s]);
        }
        if (!ek_place_is_dead(t, d) && n_shared + n_empty < n_pinned)
            return ek_err_set(err, EK_EINVAL,
                              "layer %d: device %d lacks a shared expert and a slot for it", layer,
                              d);
        beg = end;
    }
    return EK_OK;
}

static ek_status setup_check(const ek_place_controller_setup *setup, ek_err *err)
{
    const ek_place_topology *t = &setup->topology;
    ek_place_params solve;
    ek_place_params_default(&solve);
    solve.spread_hottest = setup->spread_hottest;
    solve.spread_over = setup->spread_over;
    if (setup->n_layers < 1 || setup->n_layers > EK_PLACE_CONTROLLER_LAYERS_MAX)
        return ek_err_set(err, EK_EINVAL, "number of layers %d is outside 1..%d", setup->n_layers,
                          EK_PLACE_CONTROLLER_LAYERS_MAX);
    if (setup->n_shared < 0 || setup->n_shared >= t->n_experts)
        return ek_err_set(err, EK_EINVAL, "%d of %d experts cannot be shared", setup->n_shared,
                          t->n_experts);
    int32_t slots[EK_PLACE_DEVICES_MAX], n_pinned = pinned_of(setup);
    if (t->n_devices < 1 || t->n_devices > EK_PLACE_DEVICES_MAX)
        return ek_err_set(err, EK_EINVAL, "number of devices %d is outside 1..%d", t->n_devices,
                          EK_PLACE_DEVICES_MAX);
    for (int32_t d = 0; d < t->n_devices; d++)
        if (ek_place_slots_of(t, d) < n_pinned)
            return ek_err_set(err, EK_EINVAL, "device %d has %d slots for %d shared experts", d,
                              ek_place_slots_of(t, d), n_pinned);
    ek_place_topology routed = routed_topology(t, n_pinned, slots);
    return ek_place_check(&routed, &solve, err);
}

ek_status ek_place_controller_check(const ek_place_controller_setup *setup,
                                    const ek_place_controller_params *params, ek_err *err)
{
    ek_status status = params_check(params, err);
    if (status == EK_OK) status = setup_check(setup, err);
    for (int32_t l = 0; status == EK_OK && l < setup->n_layers; l++)
        status = ek_place_controller_slots_check(
            &setup->topology, pinned_of(setup), l,
            setup->slot_expert + (int64_t)l * setup->topology.n_slots, err);
    return status;
}

int32_t ek_place_controller_moves_max(const ek_place_controller_setup *setup,
                                      const ek_place_controller_params *params)
{
    /* A copy for each lost expert or missing shared one, or a rebalance of so many replicas. */
    const ek_place_topology *t = &setup->topology;
    int32_t required = t->n_experts + pinned_of(setup) * t->n_devices;
    int32_t most = EK_PLACE_MOVES_PER_SLOT * t->n_slots;
    int32_t chosen = params->max_replicas < most ? params->max_replicas : most;
    return required > chosen ? required : chosen;
}

size_t ek_place_controller_bytes(const ek_place_controller_setup *setup,
                                 const ek_place_controller_params *params)
{
    const ek_place_topology *t = &setup->topology;
    size_t layers = (size_t)setup->n_layers, experts = (size_t)t->n_experts;
    size_t windows = (size_t)params->n_windows, devices = (size_t)t->n_devices;
    size_t per_window = sizeof(ek_place_window) +
                        layers * (experts * sizeof(int32_t) + sizeof(int64_t) + sizeof(double));
    size_t per_layer = (size_t)t->n_slots * sizeof(int32_t) + experts * sizeof(double) +
                       sizeof(ek_place_layer_state) + (size_t)t->n_slots * sizeof(bool);
    return sizeof(ek_place_controller) + windows * per_window + layers * per_layer +
           (size_t)ek_place_controller_moves_max(setup, params) * sizeof(ek_place_move) +
           experts * sizeof(int64_t) + devices * (5 * sizeof(int32_t) + sizeof(bool)) +
           19 * EK_CACHE_LINE;
}

/* NULL stays NULL. */
static const int32_t *list_copy(const int32_t *list, int32_t n, ek_arena *perm)
{
    if (!list) return NULL;
    int32_t *copy = ek_new(perm, int32_t, n);
    memcpy(copy, list, (size_t)n * sizeof *copy);
    return copy;
}

static void topology_copy(ek_place_controller *c, const ek_place_controller_setup *setup,
                          ek_arena *perm)
{
    const ek_place_topology *t = &setup->topology;
    c->topology = *t;
    c->n_pinned = pinned_of(setup);
    int32_t *whole = ek_new(perm, int32_t, t->n_devices);
    int32_t *routed = ek_new(perm, int32_t, t->n_devices);
    c->dead = ek_new(perm, bool, t->n_devices);
    c->slot_beg = ek_new(perm, int32_t, t->n_devices + 1);
    for (int32_t d = 0; d < t->n_devices; d++) {
        whole[d] = ek_place_slots_of(t, d);
        c->dead[d] = ek_place_is_dead(t, d);
        c->slot_beg[d + 1] = c->slot_beg[d] + whole[d];
    }
    c->topology.device_slots = whole;
    c->topology.device_dead = c->dead;
    c->topology.device_node = list_copy(t->device_node, t->n_devices, perm);
    c->topology.node_rack = list_copy(t->node_rack, t->n_nodes, perm);
    c->routed = routed_topology(&c->topology, c->n_pinned, routed);
}

ek_status ek_place_controller_create(const ek_place_controller_setup *setup,
                                     const ek_place_controller_params *params, ek_arena *perm,
                                     ek_place_controller **out_controller, ek_err *err)
{
    ek_status status = ek_place_controller_check(setup, params, err);
    if (status != EK_OK) return status;
    size_t bytes = ek_place_controller_bytes(setup, params);
    if (ek_arena_free_bytes(perm) < bytes)
        return ek_err_set(err, EK_ENOMEM, "the rebalance controller needs %zu bytes", bytes);
    ek_place_controller *c = ek_new(perm, ek_place_controller, 1);
    int64_t n_experts = setup->topology.n_experts, n_slots = setup->topology.n_slots;
    int64_t n_cells = (int64_t)params->n_windows * setup->n_layers;
    c->params = *params;
    c->n_layers = setup->n_layers;
    c->spread_hottest = setup->spread_hottest;
    c->spread_over = setup->spread_over;
    c->balance = setup->balance;
    c->balance_ctx = setup->balance_ctx;
    c->balance_scratch_bytes = setup->balance ? setup->balance_scratch_bytes : 0;
    c->moves_max = ek_place_controller_moves_max(setup, params);
    topology_copy(c, setup, perm);
    c->slot_expert = ek_new(perm, int32_t, setup->n_layers * n_slots);
    memcpy(c->slot_expert, setup->slot_expert,
           (size_t)(setup->n_layers * n_slots) * sizeof(int32_t));
    c->loads = ek_new(perm, double, setup->n_layers *n_experts);
    c->fixed = ek_new(perm, bool, setup->n_layers *n_slots);
    c->window = ek_new(perm, ek_place_window, params->n_windows);
    c->tokens = ek_new(perm, int32_t, n_cells * n_experts);
    c->rows = ek_new(perm, int64_t, n_cells);
    c->now = ek_new(perm, double, n_cells);
    c->reference = ek_new(perm, int64_t, n_experts);
    c->layer = ek_new(perm, ek_place_layer_state, setup->n_layers);
    c->active.moves = ek_new(perm, ek_place_move, c->moves_max);
    c->stats.layer = c->active.layer = -1;
    c->stats.last_commit_us = c->stats.last_window_us = -1;
    for (int32_t l = 0; l < c->n_layers; l++) {
        c->layer[l].paused_until_us = INT64_MIN;
        ek_place_controller_changed(c, l);
    }
    *out_controller = c;
    return EK_OK;
}
