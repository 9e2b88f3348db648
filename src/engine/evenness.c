#include "engine/evenness.h"

#include <string.h>

#include "engine/engine_internal.h"
#include "sys/log.h"

#define TELL_US 1000000 /* how often the board is written anew */

size_t ek_engine_evenness_bytes(int32_t n_layers, int32_t n_slots)
{
    return (size_t)n_layers * (size_t)n_slots * sizeof(int32_t) + EK_CACHE_LINE;
}

/* ---- the board ---- */

static void count_breakers(const ek_evenness *e, int64_t out_states[EK_KEEL_BREAKER_STATES])
{
    memset(out_states, 0, EK_KEEL_BREAKER_STATES * sizeof *out_states);
    for (int32_t l = 0; l < e->n_layers; l++) {
        const ek_breaker *breakers = ek_route_breakers(e->router, l);
        for (int32_t i = 0; i < e->n_experts; i++)
            out_states[breakers[i].state]++;
    }
}

/* Written under the lock, read by the step thread without it: nobody else writes. */
static void write_board(ek_evenness *e, int64_t now_us)
{
    int32_t n_slots = ek_keel_n_slots(e->keel);
    ek_keel_report *board = &e->board;
    const ek_route_params *params = ek_route_params_of(e->router);
    ek_sys_mutex_lock(&e->lock);
    board->told_us = now_us;
    board->n_devices = ek_keel_n_devices(e->keel);
    board->n_slots = n_slots;
    memcpy(board->slot_beg, ek_keel_slot_beg(e->keel),
           ((size_t)board->n_devices + 1) * sizeof *board->slot_beg);
    board->policy = params->policy;
    board->params_version = ek_route_params_version(e->router);
    board->route = *ek_route_stats_of(e->router);
    board->gain = ek_route_gain(e->router);
    count_breakers(e, board->breakers);
    board->rebalances = ek_keel_rebalance_stats(e->keel, &board->rebalance, &board->outlook);
    board->n_alerts = ek_keel_alerts(e->keel, board->alert, EK_KEEL_ALERTS_MAX);
    for (int32_t l = 0; l < e->n_layers; l++)
        memcpy(e->slot_expert + (int64_t)l * n_slots, ek_keel_slot_expert(e->keel, l),
               (size_t)n_slots * sizeof *e->slot_expert);
    ek_sys_mutex_unlock(&e->lock);
}

static void tell(ek_evenness *e, int64_t now_us)
{
    int32_t n_alerts[EK_DETECT_N_KINDS];
    e->next_us = now_us + TELL_US;
    write_board(e, now_us);
    for (int kind = 0; kind < EK_DETECT_N_KINDS; kind++)
        n_alerts[kind] = ek_keel_alert_count(e->keel, (ek_detect_kind)kind);
    ek_engine_evenness_meters_tell(&e->meters, &e->board, n_alerts);
    ek_engine_evenness_meters_load(&e->meters, ek_keel_load(e->keel));
}

/* ---- the log ---- */

static void log_news(const ek_keel_news *news)
{
    for (int32_t i = 0; i < news->n_alerts; i++) {
        const ek_alert *alert = &news->alert[i];
        if (alert->is_raised)
            ek_log(EK_LOG_WARN, "engine", "alert", "kind=%s layer=%d evidence=\"%s\" next=\"%s\"",
                   ek_telemetry_detect_name(alert->kind), (int)alert->layer, alert->evidence,
                   alert->next_step);
        else
            ek_log(EK_LOG_INFO, "engine", "alert_over", "kind=%s layer=%d",
                   ek_telemetry_detect_name(alert->kind), (int)alert->layer);
    }
    const ek_place_outlook *o = &news->outlook;
    if (news->looked && o->verdict <= EK_PLACE_REQUIRED)
        ek_log(EK_LOG_INFO, "engine", "rebalance",
               "layer=%d why=%s now=%.3f then=%.3f replicas=%d saves_s=%.3f costs_s=%.3f",
               (int)o->layer, ek_place_verdict_name(o->verdict), o->now, o->then,
               (int)o->n_replicas, o->saved_s, o->cost_s);
    else if (news->looked)
        ek_log(EK_LOG_DEBUG, "engine", "rebalance_not", "layer=%d why=%s now=%.3f then=%.3f",
               (int)o->layer, ek_place_verdict_name(o->verdict), o->now, o->then);
    if (news->moved)
        ek_log(EK_LOG_DEBUG, "engine", "moved", "layer=%d replicas=%d bytes=%lld", (int)news->layer,
               (int)news->n_replicas, (long long)news->bytes);
}

/* ---- life ---- */

void ek_engine_evenness_init(ek_evenness *evenness, ek_router *router, ek_keel *keel,
                             int32_t n_layers, int32_t n_experts, ek_metrics *metrics,
                             ek_arena *perm)
{
    *evenness =
        (ek_evenness){.router = router, .keel = keel, .n_layers = n_layers, .n_experts = n_experts};
    evenness->slot_expert = ek_new(perm, int32_t, n_layers * (int64_t)ek_keel_n_slots(keel));
    ek_sys_mutex_init(&evenness->lock);
    ek_engine_evenness_meters_init(&evenness->meters, metrics, ek_keel_n_devices(keel));
    tell(evenness, 0); /* what there is from the start: placement, policy, closed breakers */
}

void ek_engine_evenness_fini(ek_evenness *evenness)
{
    if (evenness->router) ek_sys_mutex_fini(&evenness->lock);
}

void ek_engine_evenness_tick(ek_evenness *evenness, int64_t now_us)
{
    ek_evenness *e = evenness;
    bool view_is_used = ek_route_params_of(e->router)->policy != EK_ROUTE_POLICY_STATIC;
    ek_keel_tick(e->keel, now_us, view_is_used, &e->news);
    log_news(&e->news);
    if (now_us >= e->next_us || e->news.n_alerts > 0 || e->news.moved) tell(e, now_us);
}

void ek_engine_evenness_get(ek_engine *engine, ek_keel_report *out_report, int32_t *out_slot_expert)
{
    ek_evenness *e = &engine->evenness;
    ek_sys_mutex_lock(&e->lock);
    *out_report = e->board;
    if (out_slot_expert)
        memcpy(out_slot_expert, e->slot_expert,
               (size_t)e->n_layers * (size_t)e->board.n_slots * sizeof *out_slot_expert);
    ek_sys_mutex_unlock(&e->lock);
}
