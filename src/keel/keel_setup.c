/*
 * How a keel is made: sizes, checks, the first placement.
 */
#include <string.h>

#include "base/assert.h"
#include "base/size.h"
#include "keel/keel_internal.h"

#define SPARE_SHARE  8       /* one slot in so many is for replicas, where nobody says otherwise */
#define HALF_LIFE_US 1000000 /* of the smoothed load */

/* ---- what params come to ---- */

void ek_keel_params_default(ek_keel_params *out_params)
{
    *out_params = (ek_keel_params){
        .n_devices = 1,
        .rebalance = true,
        .window_us = 1000000,
        .horizon_us = 60000000,
        .min_gain = 0.02,
        .pause_us = 1000000,
    };
}

int32_t ek_keel_slots(const ek_keel_params *params, int32_t n_experts)
{
    if (params->n_slots > 0) return params->n_slots;
    if (params->n_devices <= 1) return n_experts;
    int32_t wanted = n_experts + (n_experts + SPARE_SHARE - 1) / SPARE_SHARE;
    int32_t even = (wanted + params->n_devices - 1) / params->n_devices * params->n_devices;
    int64_t most = (int64_t)params->n_devices * n_experts; /* each expert once on each device */
    return even > most ? (int32_t)most : even;
}

ek_status ek_keel_check(const ek_keel_params *params, int32_t n_experts, ek_err *err)
{
    int32_t n_devices = params->n_devices;
    if (n_devices < 1 || n_devices > EK_KEEL_DEVICES_MAX)
        return ek_err_set(err, EK_EINVAL, "experts.devices is %d; it must be from 1 to %d",
                          (int)n_devices, EK_KEEL_DEVICES_MAX);
    int32_t n_slots = ek_keel_slots(params, n_experts);
    if (n_slots < n_experts || n_slots > (int64_t)n_devices * n_experts)
        return ek_err_set(err, EK_EINVAL,
                          "experts.slots is %d; %d experts on %d devices take from %d to %lld, or "
                          "auto",
                          (int)n_slots, (int)n_experts, (int)n_devices, (int)n_experts,
                          (long long)n_devices * n_experts);
    if (n_slots < n_devices)
        return ek_err_set(err, EK_EINVAL,
                          "experts.devices is %d, more than the %d slots of a layer; choose fewer "
                          "devices or more experts.slots",
                          (int)n_devices, (int)n_slots);
    if (params->window_us < 1 || params->horizon_us < 1 || params->pause_us < 0 ||
        !(params->min_gain >= 0.0))
        return ek_err_set(err, EK_EINVAL,
                          "experts.window and experts.rebalance_horizon must be above 0, "
                          "experts.rebalance_pause and experts.rebalance_min_gain not below");
    return EK_OK;
}

/* ---- parts ---- */

static ek_place_topology topology_of(const ek_keel *keel)
{
    return (ek_place_topology){
        .n_experts = keel->setup.n_experts,
        .n_slots = keel->params.n_slots,
        .n_devices = keel->params.n_devices,
        .n_nodes = 1,
        .n_groups = 1,
        .device_slots = keel->device_slots,
    };
}

static ek_place_controller_params controller_params(const ek_keel *keel)
{
    ek_place_controller_params p;
    ek_place_controller_params_default(&p);
    p.bytes_per_expert = keel->setup.bytes_per_expert;
    p.link_bytes_per_s = keel->setup.link_bytes_per_s;
    p.seconds_per_row = keel->setup.seconds_per_row;
    p.horizon_us = keel->params.horizon_us;
    p.min_gain = keel->params.min_gain;
    p.pause_us = keel->params.pause_us;
    p.half_life_us = 10 * keel->params.window_us;
    p.stale_us = 30 * keel->params.window_us;
    if (p.max_step_bytes / 2 < p.bytes_per_expert) p.max_step_bytes = 2 * p.bytes_per_expert;
    return p;
}

static ek_load_view_params load_params(const ek_keel_params *params, const ek_keel_setup *setup)
{
    return (ek_load_view_params){
        .n_layers = setup->n_layers,
        .n_experts = params->n_devices,
        .n_readers = EK_KEEL_READERS_MAX,
        .capacity = (double)setup->n_threads / params->n_devices / setup->n_layers,
        .half_life_us = HALF_LIFE_US,
        .sample_us = setup->sample_us,
    };
}

/** What a placed window comes to when its rows are split as shares are. */
static double balance_of_split(const void *ctx, const int32_t *tokens, const int32_t *slot_expert,
                               ek_arena scratch)
{
    const ek_keel *keel = ctx;
    ek_route_replicas replicas;
    int32_t n_devices = keel->params.n_devices;
    if (ek_route_replicas_build(slot_expert, keel->slot_beg, keel->setup.n_experts, n_devices,
                                &scratch, &replicas, NULL) != EK_OK)
        return n_devices; /* an expert is lost: as bad as it can be */
    int32_t *quota = ek_new(&scratch, int32_t, keel->params.n_slots);
    int32_t *rows = ek_new(&scratch, int32_t, n_devices);
    ek_status status = ek_route_split(&replicas, tokens, scratch, quota, rows);
    ek_assert(status == EK_OK); /* balance_bytes counted it */
    int64_t sum = 0, most = 0;
    for (int32_t d = 0; d < n_devices; d++) {
        sum += rows[d];
        if (rows[d] > most) most = rows[d];
    }
    return sum > 0 ? (double)most * n_devices / (double)sum : 1.0;
}

static size_t replicas_bytes(const ek_keel_params *params, const ek_keel_setup *setup)
{
    size_t n = (size_t)setup->n_experts + 1 + 2 * (size_t)params->n_slots;
    return ek_size_align(n * sizeof(int32_t) + 3 * sizeof(int64_t), EK_CACHE_LINE);
}

static size_t balance_bytes(const ek_keel_params *params, const ek_keel_setup *setup)
{
    /* Lists, and what shares take besides: quotas and the split's scratch. */
    return replicas_bytes(params, setup) +
           ek_keel_shares_bytes(setup->n_experts, params->n_slots, params->n_devices);
}

static ek_place_controller_setup controller_setup(const ek_keel *keel, const int32_t *slot_expert)
{
    return (ek_place_controller_setup){
        .topology = topology_of(keel),
        .n_layers = keel->setup.n_layers,
        .slot_expert = slot_expert,
        .balance = balance_of_split,
        .balance_ctx = keel,
        .balance_scratch_bytes = balance_bytes(&keel->params, &keel->setup),
    };
}

static bool rebalances(const ek_keel_params *params)
{
    return params->rebalance && params->n_devices > 1;
}

static ek_detect_params detect_params(const ek_keel_setup *setup)
{
    ek_detect_params p;
    ek_telemetry_detect_params_default(&p);
    p.sample_us = setup->sample_us;
    return p;
}

/* ---- sizes ---- */

size_t ek_keel_bytes(const ek_keel_params *params, const ek_keel_setup *setup)
{
    ek_keel keel = {.params = *params, .setup = *setup};
    keel.params.n_slots = ek_keel_slots(params, setup->n_experts);
    size_t layers = (size_t)setup->n_layers, experts = (size_t)setup->n_experts;
    size_t slots = (size_t)keel.params.n_slots, devices = (size_t)params->n_devices;
    const ek_load_view_params load = load_params(params, setup);
    const ek_detect_params detect = detect_params(setup);
    const ek_place_topology topology = topology_of(&keel);
    size_t bytes = sizeof(ek_keel) + (2 * devices + 1) * sizeof(int32_t);
    bytes += layers * (sizeof(ek_keel_layer) + replicas_bytes(&keel.params, setup));
    bytes += 2 * layers * slots * sizeof(int32_t); /* ours, and the first one as it came */
    bytes += layers * devices * (sizeof(int64_t) + sizeof(int32_t));
    bytes += layers * experts * (sizeof(float) + sizeof(int32_t) + 2 * sizeof(int64_t));
    bytes += ek_telemetry_load_view_bytes(&load);
    bytes += ek_telemetry_detect_bytes(&detect, setup->n_layers, setup->n_experts);
    bytes += ek_place_scratch_bytes(&topology); /* of the first placement */
    if (rebalances(params)) {
        const ek_place_controller_params p = controller_params(&keel);
        const ek_place_controller_setup s = controller_setup(&keel, NULL);
        bytes += ek_place_controller_bytes(&s, &p) + ek_place_controller_scratch_bytes(&s, &p);
    }
    return bytes + 32 * EK_CACHE_LINE;
}

/* ---- making it ---- */

static void take_arrays(ek_keel *keel, ek_arena *perm)
{
    int32_t n_devices = keel->params.n_devices, n_slots = keel->params.n_slots;
    size_t layers = (size_t)keel->setup.n_layers;
    size_t cells = layers * (size_t)keel->setup.n_experts;
    keel->device_slots = ek_new(perm, int32_t, n_devices);
    keel->slot_beg = ek_new(perm, int32_t, n_devices + 1);
    for (int32_t d = 0; d < n_devices; d++) {
        keel->slot_beg[d + 1] = (int32_t)((int64_t)n_slots * (d + 1) / n_devices);
        keel->device_slots[d] = keel->slot_beg[d + 1] - keel->slot_beg[d];
    }
    keel->layers = ek_new(perm, ek_keel_layer, layers);
    keel->replicas_bytes = replicas_bytes(&keel->params, &keel->setup);
    for (size_t l = 0; l < layers; l++) {
        keel->layers[l].slot_expert = ek_new(perm, int32_t, n_slots);
        keel->layers[l].memory = ek_arena_alloc(perm, keel->replicas_bytes, 1, EK_CACHE_LINE);
    }
    keel->busy_ns = ek_new(perm, int64_t, layers * (size_t)n_devices);
    if (keel->setup.queues) keel->queue = ek_new(perm, int32_t, layers * (size_t)n_devices);
    keel->utilisation = ek_new(perm, float, cells);
    keel->n_replicas = ek_new(perm, int32_t, cells);
    keel->total = ek_new(perm, int64_t, cells);
    keel->window = ek_new(perm, int64_t, cells);
}

/** As even as one can be that knows no loads: the same for every layer. */
static ek_status place_first(const ek_keel *keel, ek_arena *perm, int32_t **out_slots)
{
    const ek_place_topology topology = topology_of(keel);
    size_t n_slots = (size_t)keel->params.n_slots, layers = (size_t)keel->setup.n_layers;
    ek_place_params params;
    ek_place_hint hint = {0};
    ek_place_balance balance;
    ek_place_params_default(&params);
    int32_t *slots = ek_new(perm, int32_t, layers * n_slots);
    ek_arena scratch = *perm;
    double *loads = ek_try_new(&scratch, double, keel->setup.n_experts); /* none: all equal */
    if (!loads) return EK_ENOMEM;
    ek_status status = ek_place_layer(&topology, &params, loads, &hint, scratch, slots, &balance);
    for (size_t l = 1; status == EK_OK && l < layers; l++)
        memcpy(slots + l * n_slots, slots, n_slots * sizeof *slots);
    *out_slots = slots;
    return status;
}

/** Every expert in every layer, nothing out of range. */
static ek_status check_slots(const ek_keel *keel, const int32_t *slots, ek_err *err)
{
    int32_t n_slots = keel->params.n_slots, n_experts = keel->setup.n_experts;
    for (int32_t l = 0; l < keel->setup.n_layers; l++) {
        const int32_t *layer = slots + (int64_t)l * n_slots;
        for (int32_t s = 0; s < n_slots; s++)
            if (layer[s] < EK_PLACE_EMPTY || layer[s] >= n_experts)
                return ek_err_set(err, EK_EINVAL, "placement: layer %d, slot %d: expert %d of %d",
                                  (int)l, (int)s, (int)layer[s], (int)n_experts);
        for (int32_t e = 0; e < n_experts; e++) {
            int32_t s = 0;
            while (s < n_slots && layer[s] != e)
                s++;
            if (s == n_slots)
                return ek_err_set(err, EK_EINVAL, "placement: layer %d has no expert %d", (int)l,
                                  (int)e);
        }
    }
    return EK_OK;
}

static ek_status open_controller(ek_keel *keel, const int32_t *slots, ek_arena *perm, ek_err *err)
{
    if (!rebalances(&keel->params)) return EK_OK;
    const ek_place_controller_params p = controller_params(keel);
    const ek_place_controller_setup s = controller_setup(keel, slots);
    ek_status status = ek_place_controller_create(&s, &p, perm, &keel->controller, err);
    if (status != EK_OK) return status;
    keel->scratch_bytes = ek_place_controller_scratch_bytes(&s, &p);
    keel->scratch = ek_arena_try_raw(perm, keel->scratch_bytes, 1, EK_CACHE_LINE);
    return keel->scratch ? EK_OK : EK_ENOMEM;
}

ek_status ek_keel_create(const ek_keel_params *params, const ek_keel_setup *setup, ek_arena *perm,
                         ek_keel **out_keel, ek_err *err)
{
    ek_status status = ek_keel_check(params, setup->n_experts, err);
    if (status != EK_OK) return status;
    if (ek_arena_free_bytes(perm) < ek_keel_bytes(params, setup))
        return ek_err_set(err, EK_ENOMEM, "no memory for %d devices' bookkeeping",
                          (int)params->n_devices);
    ek_keel *keel = ek_new_aligned(perm, ek_keel, 1);
    keel->params = *params;
    keel->params.n_slots = ek_keel_slots(params, setup->n_experts);
    keel->setup = *setup;
    keel->setup.slot_expert = NULL;
    take_arrays(keel, perm);

    const ek_load_view_params load = load_params(params, setup);
    const ek_detect_params detect = detect_params(setup);
    status = ek_telemetry_load_view_create(&load, perm, &keel->load);
    if (status == EK_OK)
        status = ek_telemetry_detect_create(&detect, setup->n_layers, setup->n_experts,
                                            setup->top_k, perm, &keel->detect);
    if (status != EK_OK)
        return ek_err_set(err, status, "%d layers of %d experts cannot be watched",
                          (int)setup->n_layers, (int)setup->n_experts);
    const int32_t *slots = setup->slot_expert;
    if (slots) {
        status = check_slots(keel, slots, err);
    } else {
        int32_t *first = NULL;
        status = place_first(keel, perm, &first);
        slots = first;
        if (status != EK_OK) ek_err_set(err, status, "the experts cannot be placed");
    }
    if (status == EK_OK) status = open_controller(keel, slots, perm, err);
    if (status != EK_OK) return status;
    for (int32_t l = 0; l < setup->n_layers; l++)
        ek_keel_layer_set(keel, l, slots + (int64_t)l * keel->params.n_slots);
    *out_keel = keel;
    return EK_OK;
}
