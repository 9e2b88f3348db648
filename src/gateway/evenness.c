#include "gateway/evenness.h"

#include "http/json_out.h"
#include "route/policy.h"
#include "sys/clock.h"
#include "sys/mem.h"

#define US_PER_NS 1000

/** All that is told, read once. */
typedef struct facts {
    ek_keel_report e;
    int32_t n_layers;
    int64_t *rows;        /* (n_layers, n_devices) owned; further ones lie in the same block */
    int64_t *busy_ns;     /* (n_layers, n_devices) */
    int32_t *slot_expert; /* (n_layers, n_slots) */
} facts;

static double ratio(double a, double b)
{
    return b > 0.0 ? a / b : 0.0;
}

/* ---- devices ---- */

/* Of this moment, so it is mostly seen in the middle of a layer. */
static void add_queues(const ek_queues *queues, ek_buf *json)
{
    ek_http_buf_addz(json, ",\"queue_rows\":");
    for (int32_t d = 0; d < ek_telemetry_queues_devices(queues); d++) {
        ek_http_buf_addz(json, d ? "," : "[");
        ek_http_json_int(json, ek_telemetry_queues_rows(queues, d));
    }
    ek_http_buf_addz(json, "]");
}

/** null as long as there is no sample. */
static void add_utilisation(ek_load_view *view, ek_buf *json)
{
    const ek_load_snapshot *snapshot = ek_telemetry_load_view_pin(view);
    ek_http_buf_addz(json, ",\"utilisation\":");
    if (!snapshot) {
        ek_http_buf_addz(json, "null");
        return;
    }
    ek_http_buf_addz(json, "[");
    for (int32_t l = 0; l < snapshot->n_layers; l++) {
        for (int32_t d = 0; d < snapshot->n_experts; d++) {
            ek_http_buf_addz(json, d ? "," : l ? ",[" : "[");
            ek_http_json_number(
                json, (double)snapshot->utilisation[(int64_t)l * snapshot->n_experts + d]);
        }
        ek_http_buf_addz(json, "]");
    }
    ek_http_buf_addz(json, "]");
    if (snapshot->queue) {
        ek_http_buf_addz(json, ",\"queue_rows_max\":[");
        for (int32_t l = 0; l < snapshot->n_layers; l++) {
            for (int32_t d = 0; d < snapshot->n_experts; d++) {
                ek_http_buf_addz(json, d ? "," : l ? ",[" : "[");
                ek_http_json_int(json, snapshot->queue[(int64_t)l * snapshot->n_experts + d]);
            }
            ek_http_buf_addz(json, "]");
        }
        ek_http_buf_addz(json, "]");
    }
    ek_http_json_add_number(json, "utilisation_age_s",
                            1e-6 *
                                (double)ek_telemetry_load_view_age_us(snapshot, ek_sys_now_us()));
    ek_telemetry_load_view_unpin(view, snapshot);
}

/** For each layer and device the experts that it has. */
static void add_placement(const facts *f, ek_buf *json)
{
    ek_http_buf_addz(json, ",\"placement\":[");
    for (int32_t l = 0; l < f->n_layers; l++) {
        const int32_t *slots = f->slot_expert + (int64_t)l * f->e.n_slots;
        for (int32_t d = 0; d < f->e.n_devices; d++) {
            bool is_first = true;
            ek_http_buf_addz(json, d ? ",[" : l ? ",[[" : "[[");
            for (int32_t s = f->e.slot_beg[d]; s < f->e.slot_beg[d + 1]; s++) {
                if (slots[s] < 0) continue;
                if (!is_first) ek_http_buf_addz(json, ",");
                ek_http_json_int(json, slots[s]);
                is_first = false;
            }
            ek_http_buf_addz(json, "]");
        }
        ek_http_buf_addz(json, "]");
    }
    ek_http_buf_addz(json, "]");
}

static void add_device_balance(const facts *f, ek_buf *json)
{
    ek_http_buf_addz(json, ",\"balance\":[");
    for (int32_t l = 0; l < f->n_layers; l++) {
        ek_balance balance;
        ek_telemetry_balance(f->rows + (int64_t)l * f->e.n_devices, f->e.n_devices, &balance);
        ek_http_buf_addf(json, "%s{\"layer\":%d", l ? "," : "", (int)l);
        ek_http_json_add_number(json, "max_over_mean", balance.max_over_mean);
        ek_http_json_add_number(json, "cv", balance.cv);
        ek_http_json_add_int(json, "busiest", balance.hottest);
        ek_http_buf_addz(json, "}");
    }
    ek_http_buf_addz(json, "]");
}

/* null where threads are not pinned, and for a device on several nodes. */
static void add_numa_nodes(const int32_t *node, int32_t n_devices, ek_buf *json)
{
    if (!node) {
        ek_http_buf_addz(json, ",\"numa_nodes\":null");
        return;
    }
    for (int32_t d = 0; d < n_devices; d++) {
        ek_http_buf_addz(json, d ? "," : ",\"numa_nodes\":[");
        if (node[d] >= 0)
            ek_http_json_int(json, node[d]);
        else
            ek_http_buf_addz(json, "null");
    }
    ek_http_buf_addz(json, "]");
}

static void add_devices(const facts *f, ek_engine *engine, ek_buf *json)
{
    ek_http_buf_addf(json, ",\"devices\":{\"count\":%d", (int)f->e.n_devices);
    ek_http_json_add_int(json, "slots", f->e.n_slots);
    ek_http_json_add_matrix(json, "tokens", f->rows, f->n_layers, f->e.n_devices, 1);
    ek_http_json_add_matrix(json, "busy_us", f->busy_ns, f->n_layers, f->e.n_devices, US_PER_NS);
    add_utilisation(ek_engine_load_view(engine), json);
    add_queues(ek_engine_queues(engine), json);
    add_numa_nodes(ek_engine_device_nodes(engine), f->e.n_devices, json);
    add_device_balance(f, json);
    add_placement(f, json);
    ek_http_buf_addz(json, "}");
}

/* ---- routing ---- */

static void add_routing(const ek_keel_report *e, ek_buf *json)
{
    static const char *const states[EK_KEEL_BREAKER_STATES] = {"closed", "derated", "open",
                                                               "half_open"};
    const ek_route_stats *r = &e->route;
    ek_http_buf_addz(json, ",\"routing\":{\"policy\":");
    ek_http_json_string(json, ek_str_from(ek_route_policies[e->policy].name));
    ek_http_json_add_int(json, "version", e->params_version);
    ek_http_json_add_int(json, "tokens", r->n_tokens);
    ek_http_json_add_int(json, "bent", r->n_bent);
    ek_http_json_add_int(json, "changed", r->n_changed);
    ek_http_json_add_int(json, "undone", r->n_undone);
    ek_http_json_add_int(json, "closed_experts", r->n_closed);
    ek_http_json_add_int(json, "coalesced", r->n_coalesced);
    ek_http_json_add_number(json, "score_loss_mean", ratio(r->loss_sum, (double)r->n_tokens));
    ek_http_json_add_number(json, "score_loss_max", r->loss_max);
    ek_http_json_add_int(json, "executed", r->n_executed);
    ek_http_json_add_int(json, "rerouted", r->n_rerouted);
    ek_http_json_add_int(json, "deferred", r->n_deferred);
    ek_http_json_add_int(json, "degraded", r->n_degraded);
    ek_http_json_add_int(json, "plans", r->n_plans);
    ek_http_json_add_int(json, "stale_plans", r->n_stale_plans);
    if (e->policy == EK_ROUTE_POLICY_ADAPTIVE) ek_http_json_add_number(json, "gain", e->gain);
    ek_http_buf_addf(json, ",\"shadow\":{\"tokens\":%lld", (long long)r->n_shadow);
    ek_http_json_add_int(json, "changed", r->n_shadow_changed);
    ek_http_json_add_number(json, "score_loss_mean",
                            ratio(r->shadow_loss_sum, (double)r->n_shadow));
    ek_http_json_add_number(json, "divergence_mean",
                            ratio(r->shadow_divergence_sum, (double)r->n_shadow));
    ek_http_buf_addz(json, "},\"breakers\":{");
    for (int i = 0; i < EK_KEEL_BREAKER_STATES; i++)
        ek_http_buf_addf(json, "%s\"%s\":%lld", i ? "," : "", states[i], (long long)e->breakers[i]);
    ek_http_buf_addz(json, "}}");
}

/* ---- rebalancing and alerts ---- */

static void add_rebalance(const ek_keel_report *e, ek_buf *json)
{
    static const char *const states[] = {"idle", "ready", "waiting"};
    const ek_place_controller_stats *s = &e->rebalance;
    if (!e->rebalances) {
        ek_http_buf_addz(json, ",\"rebalance\":null");
        return;
    }
    ek_http_buf_addf(json, ",\"rebalance\":{\"state\":\"%s\"", states[s->state]);
    ek_http_json_add_int(json, "begun", s->n_rebalances);
    ek_http_json_add_int(json, "finished", s->n_finished);
    ek_http_json_add_int(json, "failed", s->n_failed);
    ek_http_json_add_int(json, "timeouts", s->n_timeouts);
    ek_http_json_add_int(json, "steps", s->n_steps);
    ek_http_json_add_int(json, "moved_replicas", s->n_replicas);
    ek_http_json_add_int(json, "moved_bytes", s->bytes);
    ek_http_json_add_int(json, "reclaimed", s->n_reclaimed);
    if (s->last_commit_us >= 0)
        ek_http_json_add_number(json, "last_commit_age_s",
                                1e-6 * (double)(ek_sys_now_us() - s->last_commit_us));
    else
        ek_http_buf_addz(json, ",\"last_commit_age_s\":null");
    ek_http_buf_addf(json, ",\"last_look\":{\"layer\":%d", (int)e->outlook.layer);
    ek_http_json_add_string(json, "verdict", ek_place_verdict_name(e->outlook.verdict));
    ek_http_json_add_number(json, "now", e->outlook.now);
    ek_http_json_add_number(json, "then", e->outlook.then);
    ek_http_buf_addz(json, "}}");
}

static void add_alert(const ek_alert *alert, ek_buf *json)
{
    ek_http_buf_addz(json, "{\"kind\":");
    ek_http_json_string(json, ek_str_from(ek_telemetry_detect_name(alert->kind)));
    ek_http_json_add_int(json, "layer", alert->layer);
    ek_http_json_add_int(json, "expert", alert->expert);
    ek_http_json_add_number(json, "since_s", 1e-6 * (double)(ek_sys_now_us() - alert->since_us));
    ek_http_json_add_number(json, "value", alert->value);
    ek_http_json_add_number(json, "limit", alert->limit);
    if (alert->explained_by >= 0)
        ek_http_json_add_string(json, "explained_by",
                                ek_telemetry_detect_name((ek_detect_kind)alert->explained_by));
    ek_http_json_add_string(json, "evidence", alert->evidence);
    ek_http_json_add_string(json, "next_step", alert->next_step);
    ek_http_buf_addz(json, "}");
}

static void add_alerts(const ek_keel_report *e, ek_buf *json)
{
    int32_t n = e->n_alerts < EK_KEEL_ALERTS_MAX ? e->n_alerts : EK_KEEL_ALERTS_MAX;
    ek_http_buf_addf(json, ",\"alerts_raised\":%d,\"alerts\":[", (int)e->n_alerts);
    for (int32_t i = 0; i < n; i++) {
        if (i) ek_http_buf_addz(json, ",");
        add_alert(&e->alert[i], json);
    }
    ek_http_buf_addz(json, "]");
}

/* ---- all of it ---- */

static bool read_facts(ek_engine *engine, int64_t window_us, facts *out_facts)
{
    ek_expert_stats *devices = ek_engine_devices(engine);
    ek_keel_report shape; /* how much there is to read does not change */
    ek_engine_evenness_get(engine, &shape, NULL);
    facts f = {.n_layers = ek_telemetry_experts_layers(devices)};
    size_t n_cells = (size_t)f.n_layers * (size_t)shape.n_devices;
    size_t n_slots = (size_t)f.n_layers * (size_t)shape.n_slots;
    f.rows = ek_sys_calloc(1, 2 * n_cells * sizeof(int64_t) + n_slots * sizeof(int32_t));
    if (!f.rows) return false;
    f.busy_ns = f.rows + n_cells;
    f.slot_expert = (int32_t *)(void *)(f.busy_ns + n_cells);
    ek_telemetry_experts_read(devices, window_us, f.rows, NULL, f.busy_ns);
    ek_engine_evenness_get(engine, &f.e, f.slot_expert);
    *out_facts = f;
    return true;
}

bool ek_gateway_evenness_add(ek_engine *engine, int64_t window_us, ek_buf *json)
{
    facts f;
    if (!read_facts(engine, window_us, &f)) return false;
    add_devices(&f, engine, json);
    add_routing(&f.e, json);
    add_rebalance(&f.e, json);
    add_alerts(&f.e, json);
    ek_sys_free(f.rows);
    return true;
}
