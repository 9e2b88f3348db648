#include "keel/keel.h"

#include <string.h>

#include "base/assert.h"
#include "keel/keel_internal.h"

/* ---- placements ---- */

static void count_replicas(ek_keel *keel, int32_t layer)
{
    const ek_route_replicas *r = &keel->layers[layer].replicas;
    int32_t *n = keel->n_replicas + (int64_t)layer * r->n_experts;
    for (int32_t e = 0; e < r->n_experts; e++)
        n[e] = r->beg[e + 1] - r->beg[e];
}

void ek_keel_layer_set(ek_keel *keel, int32_t layer, const int32_t *slot_expert)
{
    ek_keel_layer *l = &keel->layers[layer];
    memcpy(l->slot_expert, slot_expert, (size_t)keel->params.n_slots * sizeof *slot_expert);
    ek_arena memory = ek_arena_over(l->memory, keel->replicas_bytes);
    ek_status status = ek_route_replicas_build(slot_expert, keel->slot_beg, keel->setup.n_experts,
                                               keel->params.n_devices, &memory, &l->replicas, NULL);
    ek_assert(status == EK_OK); /* every expert has a slot, and there is memory for all slots */
    count_replicas(keel, layer);
}

void ek_keel_adopt(ek_keel *keel, int32_t layer, const int32_t *slot_expert)
{
    ek_assert(!keel->controller);
    ek_keel_layer_set(keel, layer, slot_expert);
    keel->has_view = false; /* experts' loads are those of other devices now */
}

void ek_keel_loads_known(ek_keel *keel, bool are_known)
{
    keel->is_blind = !are_known;
}

/* ---- within a step ---- */

/** An expert is as busy as the least busy device that has it. */
static void spread_loads(ek_keel *keel, const ek_load_snapshot *snapshot)
{
    int32_t n_experts = keel->setup.n_experts, n_devices = keel->params.n_devices;
    for (int32_t l = 0; l < keel->setup.n_layers; l++) {
        const ek_route_replicas *r = &keel->layers[l].replicas;
        const float *of_device = snapshot->utilisation + (int64_t)l * n_devices;
        float *of_expert = keel->utilisation + (int64_t)l * n_experts;
        for (int32_t e = 0; e < n_experts; e++) {
            float least = of_device[r->device[r->beg[e]]];
            for (int32_t i = r->beg[e] + 1; i < r->beg[e + 1]; i++)
                if (of_device[r->device[i]] < least) least = of_device[r->device[i]];
            of_expert[e] = least;
        }
    }
}

const ek_route_view *ek_keel_view(ek_keel *keel, int64_t now_us)
{
    const ek_load_snapshot *snapshot = ek_telemetry_load_view_pin(keel->load);
    if (!snapshot) return NULL;
    if (!keel->has_view || keel->view.version != snapshot->version) {
        spread_loads(keel, snapshot);
        keel->view = (ek_route_view){
            .version = snapshot->version,
            .utilisation = keel->utilisation,
            .sampled_us = snapshot->taken_us,
            .tail_us = keel->tail_us,
            .n_replicas = keel->n_replicas,
        };
        keel->has_view = true;
    }
    keel->view.age_us = ek_telemetry_load_view_age_us(snapshot, now_us);
    ek_telemetry_load_view_unpin(keel->load, snapshot);
    return &keel->view;
}

ek_status ek_keel_share(const ek_keel *keel, int32_t layer, const int32_t *expert_beg,
                        ek_arena *step, ek_keel_shares *out_shares)
{
    if (keel->params.n_devices == 1)
        return ek_keel_shares_whole(expert_beg, keel->setup.n_experts, step, out_shares);
    return ek_keel_shares_split(&keel->layers[layer].replicas, expert_beg, keel->setup.knee, step,
                                out_shares);
}

size_t ek_keel_share_bytes(const ek_keel *keel)
{
    return ek_keel_shares_bytes(keel->setup.n_experts, keel->params.n_slots,
                                keel->params.n_devices);
}

void ek_keel_served(ek_keel *keel, int64_t service_us)
{
    keel->served[ek_telemetry_service_bucket_of(service_us > 0 ? (uint64_t)service_us : 0)]++;
}

/* ---- looking at it ---- */

int32_t ek_keel_n_slots(const ek_keel *keel)
{
    return keel->params.n_slots;
}

int32_t ek_keel_n_devices(const ek_keel *keel)
{
    return keel->params.n_devices;
}

const int32_t *ek_keel_slot_expert(const ek_keel *keel, int32_t layer)
{
    return keel->layers[layer].slot_expert;
}

const int32_t *ek_keel_slot_beg(const ek_keel *keel)
{
    return keel->slot_beg;
}

int32_t ek_keel_alerts(const ek_keel *keel, ek_alert *out_alerts, int32_t max)
{
    int32_t n = 0;
    for (int32_t kind = 0; kind < EK_DETECT_N_KINDS; kind++) {
        bool of_no_layer = kind == EK_DETECT_STALE_VIEW;
        for (int32_t l = 0; l < (of_no_layer ? 1 : keel->setup.n_layers); l++) {
            ek_alert alert;
            if (!ek_telemetry_detect_get(keel->detect, (ek_detect_kind)kind, l, &alert)) continue;
            if (n < max) out_alerts[n] = alert;
            n++;
        }
    }
    return n;
}

int32_t ek_keel_alert_count(const ek_keel *keel, ek_detect_kind kind)
{
    return ek_telemetry_detect_count(keel->detect, kind);
}

bool ek_keel_rebalance_stats(const ek_keel *keel, ek_place_controller_stats *out_stats,
                             ek_place_outlook *out_last)
{
    if (!keel->controller) return false;
    ek_place_controller_stats_get(keel->controller, out_stats);
    *out_last = keel->outlook;
    return true;
}

ek_load_view *ek_keel_load(ek_keel *keel)
{
    return keel->load;
}
