#include "site.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "series.h"
#include "sys/clock.h"

#define IDLE_MS 60000

typedef struct visit {
    ek_exchange http; /* first: the two are one object */
    site *site;
    int64_t n_left; /* http.lock: bytes of a flood that are not written yet */
} visit;

static const ek_fault_kind unknown_path = {404, "invalid_request_error", "not_found", 0};
static const ek_fault_kind wrong_method = {405, "invalid_request_error", "method_not_allowed", 0};

static ek_exchange *create(void *ctx)
{
    visit *v = ek_sys_calloc(1, sizeof *v);
    v->site = ctx;
    return &v->http;
}

static void begin(ek_exchange *exchange, const ek_head *head)
{
    static const struct {
        const char *path;
        bool posts;
        ek_exchange_plan plan;
    } routes[] = {
        {"/livez", false, EK_EXCHANGE_ON_LOOP},
        {"/echo", true, EK_EXCHANGE_ON_WORKER},
        {"/flood", false, EK_EXCHANGE_ON_WORKER},
        {"/hang", false, EK_EXCHANGE_ON_WORKER},
    };
    ek_fault fault;
    for (size_t i = 0; i < sizeof routes / sizeof routes[0]; i++) {
        if (!ek_str_eqz(exchange->path, routes[i].path)) continue;
        bool reads = ek_str_eqz(head->method, "GET") || ek_str_eqz(head->method, "HEAD");
        if (routes[i].posts ? ek_str_eqz(head->method, "POST") : reads) {
            exchange->plan = routes[i].plan;
            exchange->wants_body = routes[i].posts;
            return;
        }
        exchange->reply.allow = routes[i].posts ? "POST" : "GET, HEAD";
        ek_http_fault_set(&fault, &wrong_method, NULL, "not like that");
        ek_http_exchange_fault(exchange, &fault);
        return;
    }
    ek_http_fault_set(&fault, &unknown_path, NULL, "nothing is there");
    ek_http_exchange_fault(exchange, &fault);
}

static void write_locked(visit *v)
{
    static const char block[8192] = {0};
    ek_exchange *exchange = &v->http;
    while (v->n_left > 0 && exchange->stream.len < EK_STREAM_HIGH_BYTES) {
        ek_http_buf_add(&exchange->stream, (ek_str){block, sizeof block});
        v->n_left -= (int64_t)sizeof block;
        v->site->n_written += (int64_t)sizeof block;
    }
    exchange->stream_done = v->n_left <= 0;
    ek_http_exchange_flush_locked(exchange, ek_sys_now_us());
}

static void run(ek_exchange *exchange)
{
    visit *v = (visit *)exchange;
    if (ek_str_eqz(exchange->path, "/livez")) {
        ek_http_buf_addz(&exchange->reply.body, "{\"status\":\"ok\"}");
        ek_http_exchange_json(exchange);
        return;
    }
    if (ek_str_eqz(exchange->path, "/echo")) {
        ek_http_buf_add(&exchange->reply.body, ek_http_buf_str(&exchange->body));
        ek_http_exchange_json(exchange);
        return;
    }
    ek_sys_mutex_lock(&exchange->lock);
    exchange->phase = EK_EXCHANGE_WAITING;
    if (ek_str_eqz(exchange->path, "/flood") && !exchange->gone) {
        v->n_left = SITE_FLOOD_BYTES;
        ek_http_exchange_stream_locked(exchange);
        write_locked(v);
    }
    ek_sys_mutex_unlock(&exchange->lock);
}

static void room(ek_exchange *exchange)
{
    visit *v = (visit *)exchange;
    if (v->n_left > 0) write_locked(v);
}

static void abandon(ek_exchange *exchange)
{
    visit *v = (visit *)exchange;
    v->site->n_abandoned++;
}

static void ended(const ek_exchange *exchange, int32_t status, int64_t age_us)
{
    (void)exchange;
    assert_true(status >= 200 && age_us >= 0);
}

static void destroy(ek_exchange *exchange)
{
    ek_sys_free(exchange);
}

static const ek_http_handler handler = {
    .create = create,
    .begin = begin,
    .run = run,
    .room = room,
    .abandon = abandon,
    .ended = ended,
    .destroy = destroy,
};

site *site_make(void)
{
    site *s = calloc(1, sizeof *s);
    assert_non_null(s);
    s->service = (ek_http_service){
        .handler = &handler,
        .limits =
            {
                .connections_max = 1024,
                .header_bytes_max = 8192,
                .body_bytes_max = 1 << 20,
                .bodies_bytes_max = 16 << 20,
                .header_timeout_us = 10000000,
                .body_timeout_us = 10000000,
                .idle_timeout_us = 60000000,
            },
    };
    return s;
}

void site_open(site *s)
{
    ek_err err = {0};
    assert_int_equal(ek_sys_region_open(EK_METRICS_BYTES_MAX + 65536, 0, &s->region), EK_OK);
    s->arena = ek_sys_region_arena(&s->region);
    assert_int_equal(ek_telemetry_metrics_create(&s->arena, &s->metrics), EK_OK);
    ek_http_counters_init(s->metrics, &s->service.counters);
    assert_int_equal(ek_http_workers_create(2, 64, &s->service.workers), EK_OK);
    const ek_http_server_params params = {
        .listen = "127.0.0.1:0",
        .service = &s->service,
        .ctx = s,
        .name = "ek-door",
    };
    ek_status status = ek_http_server_create(&params, &s->server, &err);
    if (status != EK_OK) print_message("%s\n", err.text);
    assert_int_equal(status, EK_OK);
    s->address = ek_http_server_address(s->server);
}

site *site_make_open(void)
{
    site *s = site_make();
    site_open(s);
    return s;
}

void site_close(site *s)
{
    ek_http_server_destroy(s->server);
    ek_http_workers_destroy(s->service.workers);
    ek_sys_region_close(&s->region);
    free(s);
}

void site_end(site *s)
{
    static const char *const gauges[] = {"evenkeel_http_requests_open",
                                         "evenkeel_http_streams_open", "evenkeel_http_body_bytes",
                                         "evenkeel_http_connections"};
    for (size_t i = 0; i < sizeof gauges / sizeof gauges[0]; i++) {
        bool zero = site_awaits(s, gauges[i], 0, IDLE_MS);
        if (!zero) print_message("%s is %g\n", gauges[i], site_metric(s, gauges[i]));
        assert_true(zero);
    }
    site_close(s);
}

double site_metric(const site *s, const char *series)
{
    return series_value(s->metrics, series);
}

bool site_awaits(const site *s, const char *series, double value, int64_t timeout_ms)
{
    return series_awaits(s->metrics, series, value, timeout_ms);
}
