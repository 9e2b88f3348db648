/*
 * Goal: what is registered and counted comes out as Prometheus text, grouped, escaped and complete,
 * into whatever room there is. Method: whole texts, written out here; rooms of every size; counting
 * threads while the text is made.
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "telemetry/metrics.h"
#include "telemetry/prometheus.h"

static void *memory;
static ek_arena arena;
static ek_metrics *metrics;

static int setup(void **state)
{
    (void)state;
    memory = malloc(EK_METRICS_BYTES_MAX);
    if (!memory) return -1;
    arena = ek_arena_over(memory, EK_METRICS_BYTES_MAX);
    return ek_telemetry_metrics_create(&arena, &metrics) == EK_OK ? 0 : -1;
}

static int teardown(void **state)
{
    (void)state;
    free(memory);
    return 0;
}

/* The whole text, NUL-terminated. */
static const char *render(void)
{
    static char text[1 << 16];
    size_t len = ek_telemetry_metrics_render(metrics, EK_PROM_TEXT, text, sizeof text - 1);
    assert_true(len < sizeof text);
    text[len] = '\0';
    return text;
}

static void test_empty(void **state)
{
    (void)state;
    assert_string_equal(render(), "");
}

static void test_whole_text(void **state)
{
    (void)state;
    static const double bounds[] = {0.001, 0.01, 1};
    ek_counter *ok = ek_telemetry_counter(metrics, "evenkeel_requests_total", "code=\"200\"",
                                          "Requests answered.");
    ek_gauge *inflight =
        ek_telemetry_gauge(metrics, "evenkeel_inflight", NULL, 1, "Requests inside.");
    ek_hist *latency = ek_telemetry_hist(metrics, "evenkeel_latency_seconds", "path=\"chat\"", 1e-6,
                                         bounds, 3, "Time \\ per request,\nwhole.");
    /* Registered after others, rendered with the first of its name. */
    ek_counter *bad =
        ek_telemetry_counter(metrics, "evenkeel_requests_total", "code=\"400\"", "ignored");
    ek_gauge *uptime =
        ek_telemetry_gauge(metrics, "evenkeel_uptime_seconds", NULL, 1e-6, "Since start.");
    ek_counter_add(ok, 41);
    ek_counter_add(ok, 1);
    ek_counter_add(bad, UINT64_MAX);
    ek_gauge_add(inflight, 3);
    ek_gauge_add(inflight, -5);
    ek_gauge_set(uptime, 1500000);
    ek_hist_record(latency, 1000); /* exactly on a bound */
    ek_hist_record(latency, 2000);
    ek_hist_record(latency, 500000);
    ek_hist_record(latency, 90000000); /* above all bounds */
    assert_int_equal(ek_counter_get(ok), 42);
    assert_int_equal(ek_gauge_get(inflight), -2);
    assert_string_equal(render(),
                        "# HELP evenkeel_requests_total Requests answered.\n"
                        "# TYPE evenkeel_requests_total counter\n"
                        "evenkeel_requests_total{code=\"200\"} 42\n"
                        "evenkeel_requests_total{code=\"400\"} 18446744073709551615\n"
                        "# HELP evenkeel_inflight Requests inside.\n"
                        "# TYPE evenkeel_inflight gauge\n"
                        "evenkeel_inflight -2\n"
                        "# HELP evenkeel_latency_seconds Time \\\\ per request,\\nwhole.\n"
                        "# TYPE evenkeel_latency_seconds histogram\n"
                        "evenkeel_latency_seconds_bucket{path=\"chat\",le=\"0.001\"} 1\n"
                        "evenkeel_latency_seconds_bucket{path=\"chat\",le=\"0.01\"} 2\n"
                        "evenkeel_latency_seconds_bucket{path=\"chat\",le=\"1\"} 3\n"
                        "evenkeel_latency_seconds_bucket{path=\"chat\",le=\"+Inf\"} 4\n"
                        "evenkeel_latency_seconds_sum{path=\"chat\"} 90.503\n"
                        "evenkeel_latency_seconds_count{path=\"chat\"} 4\n"
                        "# HELP evenkeel_uptime_seconds Since start.\n"
                        "# TYPE evenkeel_uptime_seconds gauge\n"
                        "evenkeel_uptime_seconds 1.5\n");
}

static void test_hist_without_labels(void **state)
{
    (void)state;
    static const double bounds[] = {1, 2, 64};
    ek_hist *batch = ek_telemetry_hist(metrics, "evenkeel_batch", NULL, 1, bounds, 3, "Size.");
    ek_hist_record(batch, 2);
    ek_hist_record(batch, 64);
    assert_non_null(strstr(render(), "evenkeel_batch_bucket{le=\"1\"} 0\n"
                                     "evenkeel_batch_bucket{le=\"2\"} 1\n"
                                     "evenkeel_batch_bucket{le=\"64\"} 2\n"
                                     "evenkeel_batch_bucket{le=\"+Inf\"} 2\n"
                                     "evenkeel_batch_sum 66\n"
                                     "evenkeel_batch_count 2\n"));
}

static void test_same_series_twice(void **state)
{
    (void)state;
    ek_counter *a = ek_telemetry_counter(metrics, "evenkeel_a_total", "x=\"1\"", "A.");
    assert_ptr_equal(a, ek_telemetry_counter(metrics, "evenkeel_a_total", "x=\"1\"", "A."));
    assert_ptr_not_equal(a, ek_telemetry_counter(metrics, "evenkeel_a_total", NULL, "A."));
    ek_hist *h = ek_telemetry_hist(metrics, "evenkeel_h_seconds", NULL, 1e-6, ek_latency_bounds,
                                   ek_latency_n_bounds, "H.");
    assert_ptr_equal(h, ek_telemetry_hist(metrics, "evenkeel_h_seconds", NULL, 1e-6,
                                          ek_latency_bounds, ek_latency_n_bounds, "H."));
}

static void test_full_registry_fits_its_arena(void **state)
{
    (void)state;
    for (int i = 0; i < EK_METRICS_MAX; i++) {
        char labels[EK_METRICS_LABELS_MAX + 1];
        snprintf(labels, sizeof labels, "i=\"%d\"", i);
        ek_hist *h = ek_telemetry_hist(metrics, "evenkeel_h_seconds", labels, 1e-6,
                                       ek_latency_bounds, ek_latency_n_bounds, "H.");
        ek_hist_record(h, 5000);
    }
    size_t len = ek_telemetry_metrics_render(metrics, EK_PROM_TEXT, NULL, 0);
    char *text = malloc(len);
    assert_non_null(text);
    assert_int_equal(ek_telemetry_metrics_render(metrics, EK_PROM_TEXT, text, len), len);
    static const char last[] = "evenkeel_h_seconds_count{i=\"511\"} 1\n";
    assert_memory_equal(text + len - (sizeof last - 1), last, sizeof last - 1);
    free(text);
}

static void test_too_little_room(void **state)
{
    (void)state;
    static uint8_t small[64];
    ek_arena tight = ek_arena_over(small, sizeof small);
    ek_metrics *none = NULL;
    assert_int_equal(ek_telemetry_metrics_create(&tight, &none), EK_ENOMEM);
    assert_null(none);
    ek_counter_add(ek_telemetry_counter(metrics, "evenkeel_a_total", "x=\"1\"", "Some help."), 7);
    char whole[512], text[512];
    size_t len = ek_telemetry_metrics_render(metrics, EK_PROM_TEXT, whole, sizeof whole);
    assert_true(len < sizeof whole);
    for (size_t room = 0; room <= len; room++) {
        memset(text, '#', sizeof text);
        assert_int_equal(ek_telemetry_metrics_render(metrics, EK_PROM_TEXT, text, room), len);
        for (size_t i = room; i < sizeof text; i++)
            assert_int_equal(text[i], '#');
        /* What was written is a beginning of the whole, without holes. */
        size_t n = 0;
        while (n < room && text[n] == whole[n])
            n++;
        for (size_t i = n; i < room; i++)
            assert_int_equal(text[i], '#');
    }
    assert_memory_equal(text, whole, len);
}

static void test_labels_are_escaped(void **state)
{
    (void)state;
    char labels[64] = "";
    assert_true(ek_telemetry_prom_label(labels, sizeof labels, "model", "a\"b\\c\nd"));
    assert_string_equal(labels, "model=\"a\\\"b\\\\c\\nd\"");
    assert_true(ek_telemetry_prom_label(labels, sizeof labels, "code", "200"));
    assert_string_equal(labels, "model=\"a\\\"b\\\\c\\nd\",code=\"200\"");
    char before[64];
    memcpy(before, labels, sizeof before);
    assert_false(ek_telemetry_prom_label(labels, sizeof labels, "long",
                                         "0123456789012345678901234567890123456789"));
    assert_string_equal(labels, before);
    /* Exactly as much room as it takes, and one byte less. */
    char tight[] = "\0xxxxx";
    assert_true(ek_telemetry_prom_label(tight, 6, "a", "b") && strcmp(tight, "a=\"b\"") == 0);
    tight[0] = '\0';
    assert_false(ek_telemetry_prom_label(tight, 5, "a", "b"));
}

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        double value;
        const char *text;
    } cases[] = {
        {0, "0"},
        {1, "1"},
        {0.1, "0.1"},
        {1e-6, "1e-06"},
        {-2.5, "-2.5"},
        {1e15, "1e+15"},
        {123456789012345, "123456789012345"},
        {0.1 + 0.2, "0.3"},
        {INFINITY, "+Inf"},
        {-INFINITY, "-Inf"},
        {NAN, "NaN"},
    };
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        char text[32];
        ek_telemetry_prom_number(cases[i].value, text);
        assert_string_equal(text, cases[i].text);
    }
}

static void test_latency_ladder(void **state)
{
    (void)state;
    assert_true(ek_latency_bounds[0] == 0.001);
    assert_true(ek_latency_bounds[ek_latency_n_bounds - 1] == 60);
    for (int32_t i = 1; i < ek_latency_n_bounds; i++)
        assert_true(ek_latency_bounds[i] > ek_latency_bounds[i - 1]);
}

/* Whether registering that way ends the process, as a bug must. */
static bool aborts(void (*registration)(void))
{
    pid_t child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        struct rlimit no_core = {0, 0};
        setrlimit(RLIMIT_CORE, &no_core);
        if (!freopen("/dev/null", "w", stderr)) _exit(1);
        registration();
        _exit(0);
    }
    int status;
    assert_int_equal(waitpid(child, &status, 0), child);
    return WIFSIGNALED(status) && WTERMSIG(status) == SIGABRT;
}

static void counter_without_total(void)
{
    ek_telemetry_counter(metrics, "evenkeel_requests", NULL, "H.");
}

static void gauge_with_total(void)
{
    ek_telemetry_gauge(metrics, "evenkeel_requests_total", NULL, 1, "H.");
}

static void name_with_capital(void)
{
    ek_telemetry_gauge(metrics, "evenkeel_Requests", NULL, 1, "H.");
}

static void name_with_hyphen(void)
{
    ek_telemetry_gauge(metrics, "evenkeel-requests", NULL, 1, "H.");
}

static void two_kinds(void)
{
    ek_telemetry_gauge(metrics, "evenkeel_x", NULL, 1, "H.");
    ek_telemetry_hist(metrics, "evenkeel_x", NULL, 1, ek_latency_bounds, ek_latency_n_bounds, "H.");
}

static void falling_bounds(void)
{
    static const double bounds[] = {2, 1};
    ek_telemetry_hist(metrics, "evenkeel_x", NULL, 1, bounds, 2, "H.");
}

static void too_many(void)
{
    for (int i = 0; i <= EK_METRICS_MAX; i++) {
        char labels[32];
        snprintf(labels, sizeof labels, "i=\"%d\"", i);
        ek_telemetry_gauge(metrics, "evenkeel_x", labels, 1, "H.");
    }
}

static void test_wrong_registrations_abort(void **state)
{
    (void)state;
    assert_true(aborts(counter_without_total));
    assert_true(aborts(gauge_with_total));
    assert_true(aborts(name_with_capital));
    assert_true(aborts(name_with_hyphen));
    assert_true(aborts(two_kinds));
    assert_true(aborts(falling_bounds));
    assert_true(aborts(too_many));
}

enum { COUNTS = 20000 };

typedef struct counting {
    ek_counter *counter;
    ek_hist *hist;
} counting;

static void *count_much(void *arg)
{
    const counting *c = arg;
    for (int i = 0; i < COUNTS; i++) {
        ek_counter_add(c->counter, 1);
        ek_hist_record(c->hist, (uint64_t)i);
    }
    return NULL;
}

static void test_render_while_counting(void **state)
{
    (void)state;
    counting c = {
        ek_telemetry_counter(metrics, "evenkeel_a_total", NULL, "A."),
        ek_telemetry_hist(metrics, "evenkeel_h_seconds", NULL, 1e-6, ek_latency_bounds,
                          ek_latency_n_bounds, "H."),
    };
    pthread_t threads[2];
    for (int i = 0; i < 2; i++)
        assert_int_equal(pthread_create(&threads[i], NULL, count_much, &c), 0);
    for (int i = 0; i < 50; i++) {
        /* A scraper refuses a histogram whose last bucket is not its count. */
        const char *text = render();
        const char *inf = strstr(text, "le=\"+Inf\"} "), *count = strstr(text, "_count ");
        assert_true(inf && count);
        assert_int_equal(strtoll(inf + 11, NULL, 10), strtoll(count + 7, NULL, 10));
    }
    for (int i = 0; i < 2; i++)
        pthread_join(threads[i], NULL);
    assert_int_equal(ek_counter_get(c.counter), 2 * COUNTS);
    assert_non_null(strstr(render(), "evenkeel_h_seconds_count 40000\n"));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(test_empty, setup, teardown),
        cmocka_unit_test_setup_teardown(test_whole_text, setup, teardown),
        cmocka_unit_test_setup_teardown(test_hist_without_labels, setup, teardown),
        cmocka_unit_test_setup_teardown(test_same_series_twice, setup, teardown),
        cmocka_unit_test_setup_teardown(test_full_registry_fits_its_arena, setup, teardown),
        cmocka_unit_test_setup_teardown(test_too_little_room, setup, teardown),
        cmocka_unit_test(test_labels_are_escaped),
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_latency_ladder),
        cmocka_unit_test_setup_teardown(test_wrong_registrations_abort, setup, teardown),
        cmocka_unit_test_setup_teardown(test_render_while_counting, setup, teardown),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
