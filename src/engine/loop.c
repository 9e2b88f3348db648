#include "engine/loop.h"

#include "engine/crew.h"
#include "engine/engine_internal.h"
#include "engine/step.h"
#include "sys/clock.h"
#include "sys/log.h"

#define TICK_US   100000 /* how often things that age are looked at */
#define INBOX_MAX 64     /* requests taken in between two steps */

/* Packing weights may keep a request waiting so long, and gets this part of a step's time. */
#define PACK_IDLE_US   20000
#define PACK_STEP_PART 10

static void take_in(ek_engine *engine, int64_t timeout_us)
{
    void *items[INBOX_MAX];
    size_t n = ek_sys_queue_pop(engine->inbox, items, INBOX_MAX, timeout_us);
    for (size_t i = 0; i < n; i++) {
        if (items[i] == engine) {
            /*
             * Acquires what whoever nudges wanted to be seen, also when its nudge was one too
             * many.
             */
            atomic_exchange_explicit(&engine->nudged, false, memory_order_acq_rel);
            continue;
        }
        ek_engine_crew_queue(engine, items[i]);
    }
}

/* What ages: the experts' windows, the prefix cache, and two sums that are told now and then. */
static void tick(ek_engine *engine, int64_t now_us)
{
    if (now_us < engine->tick_us) return;
    engine->tick_us = now_us + TICK_US;
    ek_telemetry_experts_sample(engine->stats, now_us);
    ek_telemetry_experts_sample(engine->device_stats, now_us);
    ek_engine_kv_expire(engine->kv, now_us);
    int64_t plan_ns, total_ns;
    ek_engine_forward_times(engine->forward, &plan_ns, &total_ns);
    ek_gauge_set(engine->meters.plan_time, plan_ns);
    ek_gauge_set(engine->meters.forward_time, total_ns);
}

/* Devices in other processes come and go: rows are shared out among those that are there. */
static void follow_devices(ek_engine *engine)
{
    ek_dispatcher *d = engine->dispatcher;
    bool loads_known;
    if (!engine->params.source) return;
    bool changed = d->ops->devices_changed(d, &loads_known);
    ek_keel_loads_known(engine->keel, loads_known);
    if (!changed) return;
    for (int32_t l = 0; l < engine->shape.n_layers; l++) {
        d->ops->device_slots(d, l, ek_keel_slot_beg(engine->keel), engine->slot_scratch);
        ek_keel_adopt(engine->keel, l, engine->slot_scratch);
    }
}

/* Loads are sampled as often as the router wants them; the rest of it follows from that. */
static void keep_even(ek_engine *engine, int64_t now_us)
{
    ek_route_adopt(engine->router);
    follow_devices(engine);
    if (now_us >= ek_keel_due_us(engine->keel)) ek_engine_evenness_tick(&engine->evenness, now_us);
}

/* A little of the weights between steps, more while nobody waits. */
static void pack_on(ek_engine *engine, int64_t step_us)
{
    int64_t budget_us = step_us > 0 ? step_us / PACK_STEP_PART : PACK_IDLE_US;
    if (ek_expert_pack_some(engine->packed, engine->pool, budget_us))
        ek_engine_forward_refresh(engine->forward);
    const ek_pack_progress progress = ek_expert_pack_progress(engine->packed);
    ek_gauge_set(engine->meters.packed_bytes, progress.packed_bytes);
    if (progress.packed_bytes < progress.total_bytes) return;
    engine->packing = false;
    ek_log(EK_LOG_INFO, "engine", "packed", "bytes=%lld seconds=%.1f",
           (long long)progress.packed_bytes,
           (double)(ek_sys_now_us() - engine->pack_us) / 1000000.0);
}

static int64_t sleep_us(const ek_engine *engine, int64_t now_us)
{
    if (engine->packing) return 0;
    int64_t due = ek_engine_crew_due(engine);
    if (engine->tick_us < due) due = engine->tick_us;
    if (ek_keel_due_us(engine->keel) < due) due = ek_keel_due_us(engine->keel);
    return due > now_us ? due - now_us : 0;
}

void ek_engine_loop_run(void *ctx)
{
    ek_engine *engine = ctx;
    bool worked = false;
    while (!atomic_load_explicit(&engine->stopping, memory_order_acquire)) {
        take_in(engine, worked ? 0 : sleep_us(engine, ek_sys_now_us()));
        int64_t now_us = ek_sys_now_us();
        tick(engine, now_us);
        keep_even(engine, now_us);
        ek_engine_crew_drop(engine, now_us);
        ek_engine_crew_admit(engine, now_us);
        worked = ek_engine_step_run(engine, now_us);
        ek_engine_crew_deliver(engine);
        if (engine->packing) pack_on(engine, worked ? ek_sys_now_us() - now_us : 0);
    }
    /* Nobody submits any more, but what was submitted last may still lie in the inbox. */
    while (ek_sys_queue_len(engine->inbox) > 0)
        take_in(engine, 0);
    ek_engine_crew_dismiss(engine, ek_sys_now_us());
    ek_engine_crew_deliver(engine);
}
