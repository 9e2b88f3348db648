/*
 * Goal: the engine's metrics say what happened, under the names that docs and dashboards use.
 * Method: a known history on the toy model, then the rendered Prometheus text is searched for
 * whole lines.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "answers.h"
#include "base/attr.h"
#include "sys/clock.h"
#include "sys/mem.h"
#include "toy_model.h"

#define TEXT_BYTES ((size_t)1 << 20)

static void has_line(const char *text, const char *line)
{
    char wanted[256];
    snprintf(wanted, sizeof wanted, "\n%s\n", line);
    if (!strstr(text, wanted)) fail_msg("no line \"%s\" in:\n%s", line, text);
}

static void has_lines(const char *text, const char *const *lines, size_t n)
{
    for (size_t i = 0; i < n; i++)
        has_line(text, lines[i]);
}

static void render(const ek_metrics *metrics, char *text)
{
    size_t n = ek_telemetry_metrics_render(metrics, EK_PROM_TEXT, text, TEXT_BYTES - 1);
    assert_true(n < TEXT_BYTES);
    text[n] = '\0';
}

static void check_idle(const char *text)
{
    static const char *const lines[] = {
        "evenkeel_requests_running 0",          "evenkeel_requests_waiting 0",
        "evenkeel_kv_blocks{state=\"used\"} 0", "evenkeel_kv_cache_usage_ratio 0",
        "vllm:num_requests_running 0",          "vllm:num_requests_waiting 0",
        "vllm:kv_cache_usage_perc 0",
    };
    has_lines(text, lines, EK_COUNT_OF(lines));
}

/*
 * Three that end by length (the second and third find two blocks), one too late, one canceled.
 * Returns how many tokens the canceled one had got.
 */
static int32_t make_history(ek_engine *engine)
{
    int32_t prompt[40];
    for (int32_t i = 0; i < 40; i++)
        prompt[i] = 3 + i;
    ek_request_params params = answer_request(prompt, 40, 5);
    params.ignore_eos = true;
    for (int i = 0; i < 3; i++)
        ek_sys_free(answer_get(engine, &params));
    params.deadline_us = 1;
    ek_sys_free(answer_get(engine, &params));
    params.deadline_us = 0;
    params.max_tokens = 2000;
    ek_request *request = answer_submit(engine, &params);
    ek_engine_cancel(engine, request);
    answer *canceled = answer_wait(engine, request);
    int32_t n_tokens = canceled->n_tokens;
    ek_sys_free(canceled);
    return n_tokens;
}

static void has_number(const char *text, const char *name, uint64_t number)
{
    char line[128];
    snprintf(line, sizeof line, "%s %llu", name, (unsigned long long)number);
    has_line(text, line);
}

static void the_text_says_what_happened(void **state)
{
    (void)state;
    ek_metrics *metrics;
    ek_sys_region region;
    assert_int_equal(ek_sys_region_open(EK_METRICS_BYTES_MAX + TEXT_BYTES, 0, &region), EK_OK);
    ek_arena arena = ek_sys_region_arena(&region);
    char *text = ek_new(&arena, char, TEXT_BYTES);
    assert_int_equal(ek_telemetry_metrics_create(&arena, &metrics), EK_OK);
    ek_engine_params params = toy_params();
    params.kv_bytes = 200 * toy_block_bytes(&params);
    ek_engine *engine = toy_engine(&params, metrics);
    render(metrics, text);
    check_idle(text);
    has_line(text, "evenkeel_kv_blocks{state=\"free\"} 200");

    toy.step_us = 200; /* long enough for the cancel to come before the end */
    int32_t n_more = make_history(engine);
    answer_assert_idle(engine);
    render(metrics, text);
    check_idle(text);
    static const char *const lines[] = {
        "evenkeel_requests_finished_total{reason=\"length\"} 3",
        "evenkeel_requests_finished_total{reason=\"canceled\"} 1",
        "evenkeel_requests_finished_total{reason=\"timeout\"} 1",
        "evenkeel_requests_finished_total{reason=\"stop\"} 0",
        "evenkeel_requests_finished_total{reason=\"queue_timeout\"} 0",
        "evenkeel_requests_finished_total{reason=\"error\"} 0",
        "evenkeel_preemptions_total 0",
        "evenkeel_slow_steps_total 0",
        "evenkeel_request_seconds_count 5",
        "evenkeel_kv_blocks_evicted_total 0",
        "# TYPE evenkeel_step_seconds histogram",
        "# TYPE evenkeel_queue_seconds histogram",
        "# TYPE evenkeel_step_tokens histogram",
        "# TYPE vllm:num_requests_waiting gauge",
    };
    has_lines(text, lines, EK_COUNT_OF(lines));
    ek_engine_load load;
    ek_engine_load_get(engine, &load);
    has_number(text, "evenkeel_prompt_tokens_total", load.prompt_tokens);
    has_number(text, "evenkeel_prefix_cache_hit_tokens_total", load.cached_tokens);
    has_number(text, "evenkeel_completion_tokens_total", (uint64_t)(15 + n_more));
    has_number(text, "evenkeel_ttft_seconds_count", (uint64_t)(3 + (n_more > 0)));
    has_number(text, "evenkeel_inter_token_seconds_count",
               (uint64_t)(12 + (n_more > 1 ? n_more - 1 : 0)));
    assert_true(load.cached_tokens >= 64 && load.prompt_tokens >= 120);
    ek_engine_destroy(engine);
    ek_sys_region_close(&region);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(the_text_says_what_happened)};
    return cmocka_run_group_tests_name("engine/metrics", tests, NULL, NULL);
}
