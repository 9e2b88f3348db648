#include "house.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "http/client.h"
#include "http/series.h"
#include "support/fixtures.h"

#define IDLE_MS 60000

void house_init(house *h)
{
    *h = (house){
        .gateway_params =
            {
                .listen = "127.0.0.1:0",
                .health_listen = "127.0.0.1:0",
                .model_id = HOUSE_MODEL_ID,
                .connections_max = 1024,
                .workers = 2,
                .body_bytes_max = 1 << 20,
                .header_bytes_max = 8192,
                .json_depth_max = 64,
                .messages_max = 64,
                .choices_max = 8,
                .max_tokens_default = 64,
                .header_timeout_us = 10000000,
                .body_timeout_us = 10000000,
                .idle_timeout_us = 60000000,
                .ping_us = 15000000,
                .request_timeout_us = 0,
                .drain_settle_us = 0,
                .drain_timeout_us = 120000000,
                .web_page = true,
            },
        .engine_params =
            {
                .n_threads = 1,
                .kernels = EK_KERNELS_AUTO,
                .kv_bytes = 16 << 20,
                .running_max = 8,
                .queue_max = 64,
                .queue_timeout_us = 0,
                .kv_block_tokens = 16,
                .prefill_chunk_tokens = 256,
                .prefix_cache = true,
                .prefix_ttl_us = 60000000,
                .step_watchdog_us = 60000000,
            },
    };
    ek_route_params_default(&h->engine_params.route);
    ek_keel_params_default(&h->engine_params.keel);
}

void house_open_gateway(house *h)
{
    ek_err err = {0};
    assert_int_equal(ek_sys_region_open(EK_METRICS_BYTES_MAX + 65536, 0, &h->region), EK_OK);
    ek_arena *arena = ek_sys_calloc(1, sizeof *arena);
    *arena = ek_sys_region_arena(&h->region);
    assert_int_equal(ek_telemetry_metrics_create(arena, &h->metrics), EK_OK);
    ek_status status = ek_gateway_create(&h->gateway_params, h->metrics, &h->gateway, &err);
    if (status != EK_OK) print_message("%s\n", err.text);
    assert_int_equal(status, EK_OK);
    h->address = ek_gateway_address(h->gateway);
    h->health = ek_gateway_health_address(h->gateway);
    h->arena = arena;
}

void house_attach(house *h)
{
    ek_err err = {0};
    ek_fixture_path path;
    ek_fixture_build("tests/support/tiny-qwen2moe-f32.gguf", &path);
    ek_status status =
        ek_engine_create(&h->engine_params, path.text, NULL, h->metrics, &h->engine, &err);
    if (status != EK_OK) print_message("%s\n", err.text);
    assert_int_equal(status, EK_OK);
    ek_gateway_attach(h->gateway, h->engine);
}

void house_open(house *h)
{
    house_open_gateway(h);
    house_attach(h);
}

void house_close(house *h)
{
    ek_gateway_destroy(h->gateway);
    ek_engine_destroy(h->engine);
    ek_sys_free(h->arena);
    ek_sys_region_close(&h->region);
    *h = (house){0};
}

house *house_make(void)
{
    house *h = calloc(1, sizeof *h);
    assert_non_null(h);
    house_init(h);
    return h;
}

void house_end(house *h)
{
    house_assert_idle(h);
    house_close(h);
    free(h);
}

double house_metric(const house *h, const char *series)
{
    return series_value(h->metrics, series);
}

bool house_awaits(const house *h, const char *series, double value, int64_t timeout_ms)
{
    return series_awaits(h->metrics, series, value, timeout_ms);
}

void house_assert_idle(const house *h)
{
    static const char *const gauges[] = {
        "evenkeel_http_requests_open",    "evenkeel_http_streams_open",
        "evenkeel_http_generations_open", "evenkeel_http_body_bytes",
        "evenkeel_http_connections",      "evenkeel_requests_running",
        "evenkeel_requests_waiting",      "evenkeel_kv_blocks{state=\"used\"}",
    };
    for (size_t i = 0; i < sizeof gauges / sizeof gauges[0]; i++) {
        if (!h->engine && strncmp(gauges[i], "evenkeel_http", 13) != 0) continue;
        bool zero = house_awaits(h, gauges[i], 0, IDLE_MS);
        if (!zero) print_message("%s is %g\n", gauges[i], house_metric(h, gauges[i]));
        assert_true(zero);
    }
    /*
     * A request that was called off before the step thread took it in is in no gauge, and yet
     * inside.
     */
    int64_t end = now_ms() + IDLE_MS;
    while (h->engine && ek_engine_inflight(h->engine) > 0 && now_ms() < end)
        sleep_ms(2);
    if (h->engine) assert_int_equal(ek_engine_inflight(h->engine), 0);
}
