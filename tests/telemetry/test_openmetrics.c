/*
 * Goal: both formats of the metrics text obey their rules, and the strict reader that says so finds
 * each kind of breach. Method: a golden text, a registry with all kinds of series read strictly,
 * and texts that break one rule each.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "openmetrics.h"
#include "telemetry/experts.h"
#include "telemetry/metrics.h"
#include "telemetry/prom_experts.h"

#define TEXT_BYTES (1 << 20)

static uint8_t *memory;
static ek_arena arena;
static ek_metrics *metrics;

static int open_metrics(void **state)
{
    (void)state;
    memory = malloc(EK_METRICS_BYTES_MAX);
    assert_non_null(memory);
    arena = ek_arena_over(memory, EK_METRICS_BYTES_MAX);
    return ek_telemetry_metrics_create(&arena, &metrics) == EK_OK ? 0 : -1;
}

static int close_metrics(void **state)
{
    (void)state;
    free(memory);
    return 0;
}

static const double bounds[] = {0.001, 1, 60};

static void fill(void)
{
    ek_counter_add(ek_telemetry_counter(metrics, "evenkeel_a_total", "code=\"200\"", "As."), 7);
    ek_counter_add(ek_telemetry_counter(metrics, "evenkeel_a_total", "code=\"404\"", "As."), 1);
    ek_gauge_set(ek_telemetry_gauge(metrics, "evenkeel_b", NULL, 1, "Says \"b\", \\ and\nmore."),
                 -3);
    ek_hist *hist =
        ek_telemetry_hist(metrics, "evenkeel_c_seconds", NULL, 1e-6, bounds, 3, "Seconds.");
    ek_hist_record(hist, 500);
    ek_hist_record(hist, 2000000);
}

static void test_golden(void **state)
{
    (void)state;
    char text[4096];
    fill();
    size_t n = ek_telemetry_metrics_render(metrics, EK_PROM_OPENMETRICS, text, sizeof text - 1);
    text[n] = '\0';
    assert_string_equal(text, "# HELP evenkeel_a As.\n"
                              "# TYPE evenkeel_a counter\n"
                              "evenkeel_a_total{code=\"200\"} 7\n"
                              "evenkeel_a_total{code=\"404\"} 1\n"
                              "# HELP evenkeel_b Says \\\"b\\\", \\\\ and\\nmore.\n"
                              "# TYPE evenkeel_b gauge\n"
                              "evenkeel_b -3\n"
                              "# HELP evenkeel_c_seconds Seconds.\n"
                              "# TYPE evenkeel_c_seconds histogram\n"
                              "evenkeel_c_seconds_bucket{le=\"0.001\"} 1\n"
                              "evenkeel_c_seconds_bucket{le=\"1.0\"} 1\n"
                              "evenkeel_c_seconds_bucket{le=\"60.0\"} 2\n"
                              "evenkeel_c_seconds_bucket{le=\"+Inf\"} 2\n"
                              "evenkeel_c_seconds_sum 2.0005\n"
                              "evenkeel_c_seconds_count 2\n");
}

/* Registry and experts together, as the server joins them. */
static void test_both_formats_are_right(void **state)
{
    (void)state;
    fill();
    ek_expert_stats *stats = NULL;
    assert_int_equal(ek_telemetry_experts_create(2, 4, &arena, &stats), EK_OK);
    ek_telemetry_experts_add_tokens(stats, 1, 3, 10);
    ek_telemetry_experts_add_busy(stats, 1, 3, 2500000, 100);
    char *text = malloc(TEXT_BYTES);
    assert_non_null(text);
    for (int open = 0; open < 2; open++) {
        ek_prom_format format = open ? EK_PROM_OPENMETRICS : EK_PROM_TEXT;
        char why[256] = "";
        size_t n = ek_telemetry_metrics_render(metrics, format, text, TEXT_BYTES);
        n += ek_telemetry_experts_render(stats, 0, 4, format, text + n, TEXT_BYTES - n);
        assert_true(n < TEXT_BYTES - 16);
        if (open) n += (size_t)snprintf(text + n, TEXT_BYTES - n, "# EOF\n");
        bool ok = openmetrics_check(text, n, open, why, sizeof why);
        if (!ok) print_message("%s\n", why);
        assert_true(ok);
        assert_false(openmetrics_check(text, n, !open, why, sizeof why));
    }
    free(text);
}

#define META(name, type) "# HELP " name " Help.\n# TYPE " name " " type "\n"
#define COUNTER          META("a", "counter") "a_total 1\n"
#define HIST             META("h", "histogram")
#define END              "# EOF\n"

static void test_the_reader_forgives_nothing(void **state)
{
    (void)state;
    static const char *const good[] = {
        END,
        COUNTER END,
        COUNTER META("b", "gauge") "b{x=\"\\\\\\\"\\n\"} -1.5e-05\nb{x=\"2\"} NaN\n" END,
        HIST "h_bucket{le=\"1.0\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n" END,
    };
    static const char *const bad[] = {
        "",
        COUNTER,
        COUNTER "# EOF",
        COUNTER END "\n",
        COUNTER "\n" END,
        "a_total 1\n" END,
        "# TYPE a counter\na_total 1\n" END,
        COUNTER COUNTER END,
        META("a_total", "counter") "a_total 1\n" END,
        META("a", "counter") "a 1\n" END,
        META("a", "counter") "a_total -1\n" END,
        META("a", "counter") "b_total 1\n" END,
        META("a", "number") "a 1\n" END,
        META("a", "gauge") "a 1\na 2\n" END,
        META("a", "gauge") "a{} 1\n" END,
        META("a", "gauge") "a{x=\"1\",x=\"2\"} 1\n" END,
        META("a", "gauge") "a{x=\"1\" } 1\n" END,
        META("a", "gauge") "a{x=\"\\t\"} 1\n" END,
        META("a", "gauge") "a{1x=\"1\"} 1\n" END,
        META("a", "gauge") "a{x=\"1} 1\n" END,
        META("a", "gauge") "a one\n" END,
        META("a", "gauge") "a 0x10\n" END,
        META("a", "gauge") "a  1\n" END,
        META("a", "gauge") "a 1 \n" END,
        META("a", "gauge") "a_total 1\n" END,
        META("1a", "gauge") END,
        "# HELP a say \"a\"\n# TYPE a gauge\na 1\n" END,
        "# a comment\n" END,
        COUNTER META("a", "gauge") "a 1\n" END, /* a counter and a gauge of one family name */
        HIST "h_bucket{le=\"1\"} 1\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n" END,
        HIST "h_bucket{le=\"1.0\"} 1\nh_sum 3\nh_count 1\n" END,
        HIST "h_bucket{le=\"1.0\"} 3\nh_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 2\n" END,
        HIST "h_bucket{le=\"2.0\"} 1\nh_bucket{le=\"1.0\"} 2\nh_bucket{le=\"+Inf\"} 2\nh_sum "
             "3\nh_count 2\n" END,
        HIST "h_bucket{le=\"+Inf\"} 2\nh_sum 3\nh_count 1\n" END,
        HIST "h_bucket{le=\"+Inf\"} 2\nh_sum 3\n" END,
        HIST "h_bucket 2\nh_sum 3\nh_count 2\n" END,
        HIST "h 2\n" END,
    };
    char why[256];
    for (size_t i = 0; i < EK_COUNT_OF(good); i++) {
        bool ok = openmetrics_check(good[i], strlen(good[i]), true, why, sizeof why);
        if (!ok) print_message("%s in:\n%s", why, good[i]);
        assert_true(ok);
    }
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++) {
        bool ok = openmetrics_check(bad[i], strlen(bad[i]), true, why, sizeof why);
        if (ok) print_message("taken:\n%s", bad[i]);
        assert_false(ok);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_golden, open_metrics, close_metrics),
        cmocka_unit_test_setup_teardown(test_both_formats_are_right, open_metrics, close_metrics),
        cmocka_unit_test(test_the_reader_forgives_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
