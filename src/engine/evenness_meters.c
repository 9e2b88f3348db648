#include "engine/evenness_meters.h"

#include <stdio.h>

#define MILLIONTHS    1e-6
#define SECONDS_OF_US 1e-6

/* ---- registration ---- */

static void init_route(ek_evenness_meters *m, ek_metrics *metrics)
{
    static const char *const outcomes[EK_EVENNESS_OUTCOMES] = {"executed", "rerouted", "deferred",
                                                               "degraded"};
    m->plans = ek_telemetry_counter(metrics, "evenkeel_route_plans_total", NULL,
                                    "Route plans made: one per layer and micro-batch.");
    m->stale_plans =
        ek_telemetry_counter(metrics, "evenkeel_route_stale_plans_total", NULL,
                             "Plans made as by `static`, because loads were too old to go by.");
    m->bent = ek_telemetry_counter(metrics, "evenkeel_route_bent_tokens_total", NULL,
                                   "Tokens, in a layer each, planned while load bent some score.");
    m->changed =
        ek_telemetry_counter(metrics, "evenkeel_route_changed_tokens_total", NULL,
                             "Tokens, in a layer each, whose experts are not the model's choice.");
    m->undone = ek_telemetry_counter(metrics, "evenkeel_route_undone_total", NULL,
                                     "Substitutions that the quality budget took back.");
    m->closed = ek_telemetry_counter(metrics, "evenkeel_route_closed_experts_total", NULL,
                                     "Experts of a batch that coalescing left unread.");
    m->coalesced =
        ek_telemetry_counter(metrics, "evenkeel_route_coalesced_tokens_total", NULL,
                             "Tokens, in a layer each, that coalescing moved to other experts.");
    for (int i = 0; i < EK_EVENNESS_OUTCOMES; i++) {
        char labels[64];
        snprintf(labels, sizeof labels, "outcome=\"%s\"", outcomes[i]);
        m->slots[i] = ek_telemetry_counter(metrics, "evenkeel_route_token_slots_total", labels,
                                           "Choices of an expert for a token, by what became of "
                                           "them.");
    }
    m->loss_mean = ek_telemetry_gauge(metrics, "evenkeel_route_score_loss_mean", NULL, MILLIONTHS,
                                      "Mean share of gate score given up for load, since start.");
    m->shadow_divergence =
        ek_telemetry_gauge(metrics, "evenkeel_route_shadow_divergence_nats", NULL, MILLIONTHS,
                           "Mean divergence of the bent gate from the model's, of sampled tokens.");
    m->version = ek_telemetry_gauge(metrics, "evenkeel_route_params_version", NULL, 1,
                                    "Version of the routing parameters in force.");
}

static void init_states(ek_evenness_meters *m, ek_metrics *metrics, int32_t n_devices)
{
    static const char *const states[EK_KEEL_BREAKER_STATES] = {"closed", "derated", "open",
                                                               "half_open"};
    char labels[64];
    for (int i = 0; i < EK_KEEL_BREAKER_STATES; i++) {
        snprintf(labels, sizeof labels, "state=\"%s\"", states[i]);
        m->breakers[i] = ek_telemetry_gauge(metrics, "evenkeel_route_breakers", labels, 1,
                                            "Breakers of experts, of all layers, by state.");
    }
    for (int kind = 0; kind < EK_DETECT_N_KINDS; kind++) {
        snprintf(labels, sizeof labels, "kind=\"%s\"",
                 ek_telemetry_detect_name((ek_detect_kind)kind));
        m->alerts[kind] = ek_telemetry_gauge(metrics, "evenkeel_alerts", labels, 1,
                                             "Alerts that are raised, by kind.");
    }
    m->samples = ek_telemetry_counter(metrics, "evenkeel_load_samples_total", NULL,
                                      "Samples of load that were published.");
    m->missed_samples =
        ek_telemetry_counter(metrics, "evenkeel_load_samples_missed_total", NULL,
                             "Samples of load that came late, failed or could not be published.");
    for (int32_t d = 0; d < n_devices; d++) {
        snprintf(labels, sizeof labels, "device=\"%d\"", (int)d);
        m->device_load[d] =
            ek_telemetry_gauge(metrics, "evenkeel_device_utilisation_ratio", labels, MILLIONTHS,
                               "Share of its time that a device computes experts, smoothed.");
        m->device_queue[d] = ek_telemetry_gauge(
            metrics, "evenkeel_device_queue_rows_max", labels, 1,
            "Most rows that a device had waiting at once, in any layer, in the last sample.");
    }
}

static void init_rebalance(ek_evenness_meters *m, ek_metrics *metrics)
{
    static const char *const ends[EK_EVENNESS_ENDS] = {"finished", "failed", "timeout"};
    for (int i = 0; i < EK_EVENNESS_ENDS; i++) {
        char labels[64];
        snprintf(labels, sizeof labels, "end=\"%s\"", ends[i]);
        m->rebalances[i] = ek_telemetry_counter(metrics, "evenkeel_rebalances_total", labels,
                                                "Rebalances of a layer, by how they ended.");
    }
    m->moved = ek_telemetry_counter(metrics, "evenkeel_rebalance_moved_replicas_total", NULL,
                                    "Replicas that rebalancing moved.");
    m->commit_age =
        ek_telemetry_gauge(metrics, "evenkeel_rebalance_last_commit_age_seconds", NULL,
                           SECONDS_OF_US, "Time since replicas last moved; -1: they never did.");
}

void ek_engine_evenness_meters_init(ek_evenness_meters *meters, ek_metrics *metrics,
                                    int32_t n_devices)
{
    *meters = (ek_evenness_meters){0};
    init_route(meters, metrics);
    init_states(meters, metrics, n_devices);
    init_rebalance(meters, metrics);
}

/* ---- telling ---- */

static int64_t millionths(double value)
{
    return (int64_t)(value * 1e6 + 0.5);
}

static void tell_route(const ek_evenness_meters *m, const ek_keel_report *board)
{
    const ek_route_stats *r = &board->route;
    const int64_t outcomes[EK_EVENNESS_OUTCOMES] = {r->n_executed, r->n_rerouted, r->n_deferred,
                                                    r->n_degraded};
    ek_counter_follow(m->plans, (uint64_t)r->n_plans);
    ek_counter_follow(m->stale_plans, (uint64_t)r->n_stale_plans);
    ek_counter_follow(m->bent, (uint64_t)r->n_bent);
    ek_counter_follow(m->changed, (uint64_t)r->n_changed);
    ek_counter_follow(m->undone, (uint64_t)r->n_undone);
    ek_counter_follow(m->closed, (uint64_t)r->n_closed);
    ek_counter_follow(m->coalesced, (uint64_t)r->n_coalesced);
    for (int i = 0; i < EK_EVENNESS_OUTCOMES; i++)
        ek_counter_follow(m->slots[i], (uint64_t)outcomes[i]);
    if (r->n_tokens > 0) ek_gauge_set(m->loss_mean, millionths(r->loss_sum / (double)r->n_tokens));
    if (r->n_shadow > 0)
        ek_gauge_set(m->shadow_divergence,
                     millionths(r->shadow_divergence_sum / (double)r->n_shadow));
    ek_gauge_set(m->version, board->params_version);
}

static void tell_rebalance(const ek_evenness_meters *m, const ek_keel_report *board)
{
    const ek_place_controller_stats *s = &board->rebalance;
    const int64_t ends[EK_EVENNESS_ENDS] = {s->n_finished, s->n_failed, s->n_timeouts};
    for (int i = 0; i < EK_EVENNESS_ENDS; i++)
        ek_counter_follow(m->rebalances[i], (uint64_t)ends[i]);
    ek_counter_follow(m->moved, (uint64_t)s->n_replicas);
    ek_gauge_set(m->commit_age,
                 s->last_commit_us < 0 ? -1000000 : board->told_us - s->last_commit_us);
}

void ek_engine_evenness_meters_tell(const ek_evenness_meters *meters, const ek_keel_report *board,
                                    const int32_t n_alerts[EK_DETECT_N_KINDS])
{
    tell_route(meters, board);
    tell_rebalance(meters, board);
    for (int i = 0; i < EK_KEEL_BREAKER_STATES; i++)
        ek_gauge_set(meters->breakers[i], board->breakers[i]);
    for (int kind = 0; kind < EK_DETECT_N_KINDS; kind++)
        ek_gauge_set(meters->alerts[kind], n_alerts[kind]);
}

void ek_engine_evenness_meters_load(const ek_evenness_meters *meters, ek_load_view *view)
{
    ek_load_view_stats stats;
    ek_telemetry_load_view_stats_get(view, &stats);
    ek_counter_follow(meters->samples, stats.n_published);
    ek_counter_follow(meters->missed_samples, stats.n_missed + stats.n_late + stats.n_blocked);
    const ek_load_snapshot *snapshot = ek_telemetry_load_view_pin(view);
    for (int32_t d = 0; snapshot && d < snapshot->n_experts; d++) {
        double sum = 0;
        int32_t longest = 0;
        for (int32_t l = 0; l < snapshot->n_layers; l++) {
            int64_t cell = (int64_t)l * snapshot->n_experts + d;
            sum += (double)snapshot->utilisation[cell];
            if (snapshot->queue && snapshot->queue[cell] > longest) longest = snapshot->queue[cell];
        }
        ek_gauge_set(meters->device_queue[d], longest);
        ek_gauge_set(meters->device_load[d], millionths(sum / snapshot->n_layers));
    }
    ek_telemetry_load_view_unpin(view, snapshot);
}
