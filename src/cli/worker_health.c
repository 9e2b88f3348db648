#include "cli/worker_health.h"

#include <stdatomic.h>
#include <stdio.h>

#include "gateway/faults.h"
#include "http/server.h"
#include "http/service.h"
#include "sys/log.h"
#include "sys/mem.h"
#include "telemetry/metrics.h"
#include "telemetry/prometheus.h"

#define CONNECTIONS_MAX 64
#define HEADER_BYTES    8192
#define BODY_BYTES      4096
#define TIMEOUT_US      10000000
#define IDLE_US         75000000
#define RETRY_S         5 /* Retry-After of a worker that is not ready */

struct ek_cli_health {
    ek_sys_region region; /* of metrics */
    ek_arena perm;
    ek_metrics *metrics;
    ek_http_service service;
    ek_http_server *server;
    ek_cli_health_post post;
    _Atomic(const ek_cli_health_post *) attached; /* NULL: nobody serves yet. Release: attach */
};

/* A request: the exchange first, as http/service.h wants it. */
typedef struct health_call {
    ek_exchange http;
    ek_cli_health *health; /* borrowed */
    void (*run)(struct health_call *call);
} health_call;

static const ek_cli_health_post *post_of(const health_call *call)
{
    return atomic_load_explicit(&call->health->attached, memory_order_acquire); /* of attach */
}

/* ---- health ---- */

static void reply_health(health_call *call, const char *trouble)
{
    ek_http_buf_addf(&call->http.reply.body, "{\"status\":\"%s\"}", trouble ? trouble : "ok");
    ek_http_exchange_json(&call->http);
    if (!trouble) return;
    call->http.reply.status = 503;
    call->http.reply.retry_s = RETRY_S;
}

static bool is_stuck(const ek_cli_health_post *post)
{
    return post && !ek_worker_healthy(post->worker, post->watchdog_us);
}

static bool is_draining(const ek_cli_health_post *post)
{
    ek_worker_figures figures;
    ek_worker_figures_read(post->worker, &figures);
    return figures.draining;
}

/* A worker that is stuck helps nobody and has to be restarted; one that loads or drains is well. */
static void run_live(health_call *call)
{
    reply_health(call, is_stuck(post_of(call)) ? "unhealthy" : NULL);
}

static void run_ready(health_call *call)
{
    const ek_cli_health_post *post = post_of(call);
    if (!post)
        reply_health(call, "loading");
    else if (is_draining(post))
        reply_health(call, "draining");
    else
        reply_health(call, is_stuck(post) ? "unhealthy" : NULL);
}

static void run_version(health_call *call)
{
    ek_http_buf_addz(&call->http.reply.body,
                     "{\"name\":\"evenkeel\",\"version\":\"" EK_VERSION "\"}");
    ek_http_exchange_json(&call->http);
}

/* ---- metrics ---- */

static void add(ek_prom *prom, const char *name, const char *type, const char *help, double value)
{
    ek_telemetry_prom_family(prom, name, type, help);
    ek_telemetry_prom_series(prom, name, "", NULL, NULL);
    ek_telemetry_prom_f64(prom, value);
}

static void add_refused(ek_prom *prom, const ek_worker_figures *f)
{
    static const char *const reasons[EK_WORKER_REFUSALS] = {
        [EK_WORKER_STRANGER] = "reason=\"stranger\"",
        [EK_WORKER_REFUSED] = "reason=\"refused\"",
        [EK_WORKER_FULL] = "reason=\"full\"",
    };
    static const char name[] = "evenkeel_worker_connections_refused_total";
    ek_telemetry_prom_family(prom, name, "counter",
                             "Connections turned away: strangers, fronts that were told why, and "
                             "those beyond the room for connections.");
    for (int i = 0; i < EK_WORKER_REFUSALS; i++) {
        ek_telemetry_prom_series(prom, name, "", reasons[i], NULL);
        ek_telemetry_prom_u64(prom, f->refused[i]);
    }
}

static void render(ek_prom *prom, const ek_cli_health_post *post)
{
    ek_worker_figures f = {0};
    const ek_resident *r = post ? post->resident : NULL;
    if (post) ek_worker_figures_read(post->worker, &f);
    add(prom, "evenkeel_worker_ready", "gauge",
        "1 while fronts are served; 0 while experts are loaded, and while it drains.",
        post && !f.draining);
    add(prom, "evenkeel_worker_experts", "gauge",
        "Experts in memory; one of each layer counts for itself.",
        r ? (double)ek_link_set_count(&r->setup.set) : 0);
    add(prom, "evenkeel_worker_weight_bytes", "gauge", "Bytes of their weights.",
        r ? (double)r->expert_bytes : 0);
    add(prom, "evenkeel_worker_load_seconds", "gauge", "Time that loading them took.",
        r ? (double)r->load_us * 1e-6 : 0);
    add(prom, "evenkeel_worker_fronts", "gauge", "Fronts that are joined.", f.n_fronts);
    add(prom, "evenkeel_worker_fronts_joined_total", "counter", "Times that a front was let in.",
        (double)f.fronts_joined);
    add(prom, "evenkeel_worker_queue_dispatches", "gauge",
        "Dispatches that wait until those before them are computed.", f.n_waiting);
    add(prom, "evenkeel_worker_layers_total", "counter",
        "Dispatches computed: a layer of a front's step, or of half a step.", (double)f.layers);
    add(prom, "evenkeel_worker_rows_total", "counter",
        "Rows computed: a token counts once for each of its experts that are here.",
        (double)f.rows);
    add(prom, "evenkeel_worker_busy_seconds_total", "counter",
        "Time in which dispatches were computed, for all fronts.", (double)f.busy_us * 1e-6);
    add_refused(prom, &f);
    add(prom, "evenkeel_worker_certificate_not_after_timestamp_seconds", "gauge",
        "When the worker's certificate ends, seconds since 1970.",
        post ? (double)post->certificate_end_s : 0);
}

/* Renderers say how much room they want; what they count may have grown meanwhile: ask again. */
static bool add_registry(const ek_metrics *metrics, ek_buf *text)
{
    for (size_t need = 0;;) {
        if (!ek_http_buf_reserve(text, need)) return false;
        size_t room = text->cap - text->len;
        need = ek_telemetry_metrics_render(metrics, EK_PROM_TEXT, text->data + text->len, room);
        if (need > room) continue;
        text->len += need;
        return true;
    }
}

static bool add_worker(const ek_cli_health_post *post, ek_buf *text)
{
    for (size_t need = 0;;) {
        if (!ek_http_buf_reserve(text, need)) return false;
        ek_prom prom = {.out = text->data + text->len, .room = text->cap - text->len};
        render(&prom, post);
        need = prom.len;
        if (need > prom.room) continue;
        text->len += need;
        return true;
    }
}

static void run_metrics(health_call *call)
{
    ek_buf *text = &call->http.reply.body;
    bool ok = add_worker(post_of(call), text) && add_registry(call->health->metrics, text);
    ek_http_exchange_json(&call->http); /* a text that failed becomes an error */
    if (ok) call->http.reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
}

/* ---- requests ---- */

static const struct {
    const char *path;
    void (*run)(health_call *call);
} routes[] = {
    {"/health", run_live},        {"/health/live", run_live}, {"/livez", run_live},
    {"/liveness", run_live},      {"/ready", run_ready},      {"/readyz", run_ready},
    {"/health/ready", run_ready}, {"/readiness", run_ready},  {"/metrics", run_metrics},
    {"/version", run_version},
};

static ek_exchange *create(void *ctx)
{
    health_call *call = ek_sys_calloc(1, sizeof *call);
    if (!call) return NULL;
    call->health = ctx;
    return &call->http;
}

static void begin(ek_exchange *exchange, const ek_head *head)
{
    health_call *call = (health_call *)exchange;
    ek_fault fault;
    for (size_t i = 0; i < EK_COUNT_OF(routes) && !call->run; i++)
        if (ek_str_eqz(exchange->path, routes[i].path)) call->run = routes[i].run;
    if (!call->run) {
        ek_http_fault_set(&fault, &ek_gateway_fault_not_found, NULL,
                          "there is no such path here; a worker has /health, /ready and /metrics");
        ek_http_exchange_fault(exchange, &fault);
    } else if (!ek_str_eqz(head->method, "GET") && !ek_str_eqz(head->method, "HEAD")) {
        exchange->reply.allow = "GET, HEAD";
        ek_http_fault_set(&fault, &ek_gateway_fault_method_not_allowed, NULL,
                          "this path takes GET, HEAD");
        ek_http_exchange_fault(exchange, &fault);
    } else {
        exchange->plan = EK_EXCHANGE_ON_LOOP;
    }
}

static void run(ek_exchange *exchange)
{
    health_call *call = (health_call *)exchange;
    call->run(call);
}

/* Nothing here streams, and nothing is computed for a client that could leave. */
static void nothing(ek_exchange *exchange EK_UNUSED) {}

static void ended(const ek_exchange *exchange, int32_t status, int64_t age_us)
{
    ek_log(EK_LOG_DEBUG, "cli", "health", "client=%s status=%d ms=%.1f", exchange->client, status,
           (double)age_us * 1e-3);
}

static void destroy(ek_exchange *exchange)
{
    ek_sys_free(exchange);
}

static const ek_http_handler handler = {
    .create = create,
    .begin = begin,
    .run = run,
    .room = nothing,
    .abandon = nothing,
    .ended = ended,
    .destroy = destroy,
};

/* ---- life ---- */

static ek_status open_metrics(ek_cli_health *health, ek_err *err)
{
    ek_status status = ek_sys_region_open(EK_METRICS_BYTES_MAX, 0, &health->region);
    if (status != EK_OK) return ek_err_set(err, status, "no memory for the metrics");
    health->perm = ek_sys_region_arena(&health->region);
    status = ek_telemetry_metrics_create(&health->perm, &health->metrics);
    if (status != EK_OK) return ek_err_set(err, status, "no memory for the metrics");
    ek_gauge_set(ek_telemetry_gauge(health->metrics, "evenkeel_build_info",
                                    "version=\"" EK_VERSION "\"", 1,
                                    "Always 1; the label says which version this is."),
                 1);
    ek_http_counters_init(health->metrics, &health->service.counters);
    return EK_OK;
}

ek_status ek_cli_health_open(const char *listen, ek_cli_health **out_health, ek_err *err)
{
    ek_cli_health *health = ek_sys_calloc(1, sizeof *health);
    if (!health) return ek_err_set(err, EK_ENOMEM, "no memory for an HTTP server");
    health->service.handler = &handler;
    health->service.limits = (ek_http_limits){
        .connections_max = CONNECTIONS_MAX,
        .header_bytes_max = HEADER_BYTES,
        .body_bytes_max = BODY_BYTES,
        .bodies_bytes_max = (size_t)CONNECTIONS_MAX * BODY_BYTES,
        .header_timeout_us = TIMEOUT_US,
        .body_timeout_us = TIMEOUT_US,
        .idle_timeout_us = IDLE_US,
    };
    const ek_http_server_params params = {
        .listen = listen,
        .service = &health->service,
        .ctx = health,
        .name = "ek-door-health",
    };
    ek_status status = open_metrics(health, err);
    if (status == EK_OK) status = ek_http_server_create(&params, &health->server, err);
    if (status != EK_OK) {
        ek_cli_health_close(health);
        return status;
    }
    *out_health = health;
    return EK_OK;
}

void ek_cli_health_attach(ek_cli_health *health, const ek_cli_health_post *post)
{
    health->post = *post;
    /* Acquired by post_of. */
    atomic_store_explicit(&health->attached, &health->post, memory_order_release);
}

const char *ek_cli_health_address(const ek_cli_health *health)
{
    return ek_http_server_address(health->server);
}

void ek_cli_health_close(ek_cli_health *health)
{
    if (!health) return;
    ek_http_server_destroy(health->server);
    ek_sys_region_close(&health->region);
    ek_sys_free(health);
}
