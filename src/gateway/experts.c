/*
 * GET /v1/experts?window=10s: the layers x experts matrix, each layer's balance, and what keeps it
 * even, as JSON. On workers.
 */
#include "telemetry/experts.h"
#include "engine/watch.h"
#include "gateway/evenness.h"
#include "gateway/handlers.h"
#include "gateway/state.h"
#include "http/json_out.h"
#include "http/uri.h"
#include "sys/mem.h"
#include "telemetry/balance.h"

#define WINDOW_US_DEFAULT 10000000

typedef struct matrix {
    int32_t n_layers;
    int32_t n_experts;
    int64_t *tokens; /* owned, (n_layers, n_experts) each; one block */
    int64_t *requests;
    int64_t *busy_ns;
} matrix;

static bool read_window(const ek_call *call, int64_t *out_window_us, ek_fault *fault)
{
    ek_str text;
    *out_window_us = WINDOW_US_DEFAULT;
    if (!ek_http_uri_query(call->http.query, "window", &text)) return true;
    ek_status status = EK_OK;
    if (ek_str_eqz(text, "all")) {
        *out_window_us = 0;
    } else {
        status = ek_http_uri_duration_us(text, out_window_us);
    }
    if (status == EK_OK && *out_window_us <= EK_EXPERT_WINDOW_US_MAX) return true;
    return ek_http_fault_set(fault, &ek_gateway_fault_invalid_value, "window",
                             "window is a duration of at most %d s (10s, 500ms, 1m), or all: "
                             "everything since the start",
                             EK_EXPERT_WINDOW_US_MAX / 1000000);
}

static void add_balance(const matrix *m, ek_buf *json)
{
    double sum_ratio = 0;
    double worst_ratio = 0;
    int32_t worst_layer = 0;
    int32_t n_zero = 0;
    ek_http_buf_addz(json, ",\"balance\":[");
    for (int32_t layer = 0; layer < m->n_layers; layer++) {
        ek_balance balance;
        ek_telemetry_balance(m->tokens + (int64_t)layer * m->n_experts, m->n_experts, &balance);
        ek_http_buf_addf(json, "%s{\"layer\":%d,\"tokens\":%lld", layer ? "," : "", layer,
                         (long long)balance.tokens);
        ek_http_json_add_number(json, "max_over_mean", balance.max_over_mean);
        ek_http_json_add_number(json, "cv", balance.cv);
        ek_http_json_add_number(json, "gini", balance.gini);
        ek_http_json_add_number(json, "entropy", balance.entropy);
        ek_http_json_add_number(json, "effective", balance.effective);
        ek_http_json_add_number(json, "top1_share", balance.top1_share);
        ek_http_buf_addf(json, ",\"zero\":%d,\"hottest\":%d}", balance.n_zero, balance.hottest);
        sum_ratio += balance.max_over_mean;
        n_zero += balance.n_zero;
        if (balance.max_over_mean <= worst_ratio) continue;
        worst_ratio = balance.max_over_mean;
        worst_layer = layer;
    }
    ek_http_buf_addz(json, "],\"overall\":{\"max_over_mean\":");
    ek_http_json_number(json, m->n_layers ? sum_ratio / m->n_layers : 0);
    ek_http_json_add_number(json, "worst_max_over_mean", worst_ratio);
    ek_http_buf_addf(json, ",\"worst_layer\":%d,\"zero\":%d}", worst_layer, n_zero);
}

static bool read_matrix(const ek_expert_stats *stats, int64_t window_us, matrix *out_matrix)
{
    matrix m = {
        .n_layers = ek_telemetry_experts_layers(stats),
        .n_experts = ek_telemetry_experts_count(stats),
    };
    size_t n_cells =
        (size_t)m.n_layers * (size_t)m.n_experts; /* bounded by the telemetry's limits */
    m.tokens = ek_sys_calloc(3 * n_cells, sizeof *m.tokens);
    if (!m.tokens) return false;
    m.requests = m.tokens + n_cells;
    m.busy_ns = m.requests + n_cells;
    ek_telemetry_experts_read(stats, window_us, m.tokens, m.requests, m.busy_ns);
    *out_matrix = m;
    return true;
}

void ek_gateway_run_experts(ek_call *call)
{
    ek_engine *engine = ek_gateway_engine(call->gateway);
    ek_buf *json = &call->http.reply.body;
    ek_fault fault;
    int64_t window_us;
    matrix m;
    if (!read_window(call, &window_us, &fault)) {
        ek_gateway_call_fault(call, &fault);
        return;
    }
    if (!read_matrix(ek_engine_experts(engine), window_us, &m)) {
        ek_http_fault_set(&fault, &ek_http_fault_overloaded, NULL, "no memory for the answer");
        ek_gateway_call_fault(call, &fault);
        return;
    }
    ek_http_buf_addz(json, "{\"object\":\"experts\",\"model\":");
    ek_http_json_string(json, ek_str_from(call->gateway->params.model_id));
    ek_http_json_add_number(json, "window_s", (double)window_us * 1e-6);
    ek_http_buf_addf(json, ",\"layers\":%d,\"experts\":%d,\"top_k\":%d", m.n_layers, m.n_experts,
                     call->gateway->info.top_k);
    ek_http_json_add_matrix(json, "tokens", m.tokens, m.n_layers, m.n_experts, 1);
    ek_http_json_add_matrix(json, "requests", m.requests, m.n_layers, m.n_experts, 1);
    ek_http_json_add_matrix(json, "busy_us", m.busy_ns, m.n_layers, m.n_experts, 1000);
    add_balance(&m, json);
    if (!ek_gateway_evenness_add(engine, window_us, json)) json->failed = true;
    ek_http_buf_addz(json, "}");
    ek_sys_free(m.tokens);
    ek_gateway_call_json(call);
}
