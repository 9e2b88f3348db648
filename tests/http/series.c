#include "series.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "client.h"

/* The text that /metrics would give, without going through a server. */
static char *metrics_text(const ek_metrics *metrics)
{
    size_t room = ek_telemetry_metrics_render(metrics, EK_PROM_TEXT, NULL, 0) + 4096;
    char *text = malloc(room + 1);
    assert_non_null(text);
    size_t n = ek_telemetry_metrics_render(metrics, EK_PROM_TEXT, text, room);
    assert_true(n <= room);
    text[n] = '\0';
    return text;
}

double series_value(const ek_metrics *metrics, const char *series)
{
    char *text = metrics_text(metrics);
    size_t n = strlen(series);
    double value = 0;
    bool found = false;
    for (const char *line = text; line && !found; line = strchr(line, '\n')) {
        line += *line == '\n';
        found = strncmp(line, series, n) == 0 && line[n] == ' ';
        if (found) value = strtod(line + n, NULL);
    }
    if (!found) print_message("no series %s\n", series);
    assert_true(found);
    free(text);
    return value;
}

bool series_awaits(const ek_metrics *metrics, const char *series, double value, int64_t timeout_ms)
{
    int64_t end = now_ms() + timeout_ms;
    while (series_value(metrics, series) != value) {
        if (now_ms() >= end) return false;
        sleep_ms(2);
    }
    return true;
}
