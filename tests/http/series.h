/*
 * Series of a metrics registry, read as /metrics would show them.
 */
#ifndef EK_TESTS_HTTP_SERIES_H
#define EK_TESTS_HTTP_SERIES_H

#include <stdbool.h>
#include <stdint.h>

#include "telemetry/metrics.h"

/**
 * Value of a series: "evenkeel_http_connections", or with labels in braces. Fails the test when
 * there is no such series.
 */
double series_value(const ek_metrics *metrics, const char *series);

/** Wait until a series has a value; false when it does not within the time. */
bool series_awaits(const ek_metrics *metrics, const char *series, double value, int64_t timeout_ms);

#endif
