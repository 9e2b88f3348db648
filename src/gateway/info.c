/*
 * What the server says of itself: models, health, version, load, properties, metrics. All from
 * memory; only the metrics' text is long enough for a worker.
 */
#include <string.h>

#include "engine/watch.h"
#include "gateway/handlers.h"
#include "gateway/state.h"
#include "http/json_out.h"
#include "http/media.h"
#include "http/uri.h"
#include "sys/mem.h"
#include "telemetry/prom_experts.h"

#define METRICS_WINDOW_US  10000000 /* what the experts' load looks back on */
#define METRICS_EXPERTS    10       /* hottest and coldest experts that are named, each */
#define MODEL_ID_BYTES_MAX 512

/* ---- models ---- */

static void add_model(const ek_gateway *gateway, ek_buf *json)
{
    ek_http_buf_addz(json, "{\"id\":");
    ek_http_json_string(json, ek_str_from(gateway->params.model_id));
    ek_http_buf_addz(json, ",\"object\":\"model\",\"created\":");
    ek_http_json_int(json, gateway->started_s);
    ek_http_buf_addz(json, ",\"owned_by\":\"evenkeel\"");
    if (ek_gateway_engine(gateway)) {
        const ek_engine_info *info = &gateway->info;
        ek_http_buf_addf(json,
                         ",\"max_model_len\":%d,\"meta\":{\"architecture\":", info->context_tokens);
        ek_http_json_string(json, ek_str_from(info->arch));
        ek_http_buf_addf(json, ",\"layers\":%d,\"experts\":%d,\"experts_per_token\":%d",
                         info->n_layers, info->n_experts, info->top_k);
        ek_http_buf_addf(json, ",\"n_vocab\":%d", info->n_vocab);
        ek_http_buf_addf(json, ",\"params_total\":%lld,\"params_active\":%lld",
                         (long long)info->params_total, (long long)info->params_active);
        if (info->overlay_method)
            ek_http_buf_addf(json, ",\"gate_overlay\":{\"method\":\"%s\",\"sha256\":\"%s\"}",
                             info->overlay_method, info->overlay_sha256);
        ek_http_buf_addz(json, "}");
    }
    ek_http_buf_addz(json, "}");
}

void ek_gateway_run_models(ek_call *call)
{
    ek_http_buf_addz(&call->http.reply.body, "{\"object\":\"list\",\"data\":[");
    add_model(call->gateway, &call->http.reply.body);
    ek_http_buf_addz(&call->http.reply.body, "]}");
    ek_gateway_call_json(call);
}

void ek_gateway_run_model(ek_call *call)
{
    char id[MODEL_ID_BYTES_MAX];
    size_t n = 0;
    ek_status status = ek_http_uri_decode(call->tail, id, sizeof id, &n);
    if (status == EK_OK && ek_str_eqz((ek_str){id, n}, call->gateway->params.model_id)) {
        add_model(call->gateway, &call->http.reply.body);
        ek_gateway_call_json(call);
        return;
    }
    ek_fault fault;
    ek_http_fault_set(&fault, &ek_gateway_fault_model_not_found, "model",
                      "this model is not served here; GET /v1/models lists what is");
    ek_gateway_call_fault(call, &fault);
}

/* ---- health ---- */

static void reply_health(ek_call *call, const char *status, int32_t retry_s)
{
    ek_http_buf_addf(&call->http.reply.body, "{\"status\":\"%s\"}", status);
    ek_gateway_call_json(call);
    if (retry_s == 0) return;
    call->http.reply.status = 503;
    call->http.reply.retry_s = retry_s;
}

/* There is no engine yet: it loads, or something keeps it from being served. */
static void reply_not_there(ek_call *call)
{
    ek_gateway *gateway = call->gateway;
    char held[EK_GATEWAY_HOLD_MAX];
    ek_sys_mutex_lock(&gateway->hold_lock);
    memcpy(held, gateway->held, sizeof held);
    ek_sys_mutex_unlock(&gateway->hold_lock);
    if (held[0] == '\0') {
        reply_health(call, "loading", 5);
        return;
    }
    ek_buf *json = &call->http.reply.body;
    ek_http_buf_addz(json, "{\"status\":\"held\"");
    ek_http_json_add_string(json, "why", held);
    ek_http_buf_addz(json, "}");
    ek_gateway_call_json(call);
    call->http.reply.status = 503;
    call->http.reply.retry_s = 5;
}

/*
 * A process whose engine is stuck helps nobody and has to be restarted; one that loads or drains is
 * alive.
 */
void ek_gateway_run_live(ek_call *call)
{
    const ek_engine *engine = ek_gateway_engine(call->gateway);
    bool stuck = engine && !ek_engine_healthy(engine);
    reply_health(call, stuck ? "unhealthy" : "ok", stuck ? 5 : 0);
}

void ek_gateway_run_ready(ek_call *call)
{
    const ek_engine *engine = ek_gateway_engine(call->gateway);
    if (ek_gateway_mode_now(call->gateway) != EK_GATEWAY_SERVING) {
        reply_health(call, "draining", 5);
    } else if (!engine) {
        reply_not_there(call);
    } else if (!ek_engine_healthy(engine)) {
        reply_health(call, "unhealthy", 5);
    } else {
        reply_health(call, "ok", 0);
    }
}

void ek_gateway_run_version(ek_call *call)
{
    ek_http_buf_addz(&call->http.reply.body,
                     "{\"name\":\"evenkeel\",\"version\":\"" EK_VERSION "\"}");
    ek_gateway_call_json(call);
}

/* ---- load and properties ---- */

/* For routers in front, in vLLM's word: requests that hold places in the engine. */
void ek_gateway_run_load(ek_call *call)
{
    ek_buf *json = &call->http.reply.body;
    ek_http_buf_addz(json, "{\"server_load\":");
    ek_http_json_int(json, ek_gauge_get(call->gateway->counters.generations_open));
    ek_http_buf_addz(json, "}");
    ek_gateway_call_json(call);
}

/* For tools that know llama.cpp's server: what they look up there, in its words. */
void ek_gateway_run_props(ek_call *call)
{
    const ek_engine_info *info = &call->gateway->info;
    ek_buf *json = &call->http.reply.body;
    ek_http_buf_addf(json, "{\"default_generation_settings\":{\"n_ctx\":%d},\"total_slots\":%d",
                     info->context_tokens, info->running_max);
    ek_http_buf_addz(json, ",\"model_alias\":");
    ek_http_json_string(json, ek_str_from(call->gateway->params.model_id));
    ek_http_buf_addz(json, ",\"build_info\":\"evenkeel " EK_VERSION "\"}");
    ek_gateway_call_json(call);
}

/* ---- metrics ---- */

/*
 * All renderers say how much room they want; what they count may have grown meanwhile, so ask
 * again.
 */
static bool add_registry(const ek_metrics *metrics, ek_prom_format format, ek_buf *text)
{
    for (size_t need = ek_telemetry_metrics_render(metrics, format, NULL, 0);;) {
        if (!ek_http_buf_reserve(text, need)) return false;
        size_t room = text->cap - text->len;
        need = ek_telemetry_metrics_render(metrics, format, text->data + text->len, room);
        if (need > room) continue;
        text->len += need;
        return true;
    }
}

static bool add_experts(const ek_expert_stats *stats, ek_prom_format format, ek_buf *text)
{
    for (size_t need = 0;;) {
        if (!ek_http_buf_reserve(text, need)) return false;
        size_t room = text->cap - text->len;
        need = ek_telemetry_experts_render(stats, METRICS_WINDOW_US, METRICS_EXPERTS, format,
                                           text->data + text->len, room);
        if (need > room) continue;
        text->len += need;
        return true;
    }
}

static bool add_queues(const ek_queues *queues, ek_prom_format format, ek_buf *text)
{
    for (size_t need = 0;;) {
        if (!ek_http_buf_reserve(text, need)) return false;
        size_t room = text->cap - text->len;
        need = ek_telemetry_queues_render(queues, format, text->data + text->len, room);
        if (need > room) continue;
        text->len += need;
        return true;
    }
}

/* Prometheus asks for both and weighs them; who has no preference gets the older one. */
static ek_prom_format wanted_format(ek_str accept)
{
    int32_t open = ek_http_media_weight(accept, "application/openmetrics-text", "1.0.0");
    int32_t text = ek_http_media_weight(accept, "text/plain", "0.0.4");
    return open > text ? EK_PROM_OPENMETRICS : EK_PROM_TEXT;
}

void ek_gateway_run_metrics(ek_call *call)
{
    ek_prom_format format = wanted_format(call->http.accept);
    ek_engine *engine = ek_gateway_engine(call->gateway);
    ek_buf *text = &call->http.reply.body;
    bool ok = add_registry(call->gateway->metrics, format, text) &&
              (!engine || (add_experts(ek_engine_experts(engine), format, text) &&
                           add_queues(ek_engine_queues(engine), format, text)));
    if (format == EK_PROM_OPENMETRICS) ek_http_buf_addz(text, "# EOF\n");
    ok = ok && !text->failed;
    ek_gateway_call_json(call); /* a text that failed becomes an error */
    if (!ok) return;
    call->http.reply.content_type =
        format == EK_PROM_OPENMETRICS ? "application/openmetrics-text; version=1.0.0; charset=utf-8"
                                      : "text/plain; version=0.0.4; charset=utf-8";
}
