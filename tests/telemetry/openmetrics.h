/*
 * A reader of metrics texts that forgives nothing, written from the formats' rules alone:
 * OpenMetrics 1.0.0, and Prometheus' text format 0.0.4. Nothing of it is shared with the writer.
 */
#ifndef EK_TESTS_TELEMETRY_OPENMETRICS_H
#define EK_TESTS_TELEMETRY_OPENMETRICS_H

#include <stdbool.h>
#include <stddef.h>

/**
 * Read a whole text. Checked are, in both formats: HELP and TYPE of a family before its samples,
 * once, and all of its samples together; names, label syntax and escapes; no label and no series
 * twice; numbers; histograms with ascending bounds, counts that do not fall, and +Inf like _count.
 * In OpenMetrics also: family names without a counter's _total, and unique; suffixes by type;
 * canonical bounds; no blank line; # EOF at the end, and nothing behind it.
 * @param out_why   what is wrong and in which line; written when false
 * @return whether it is right
 */
bool openmetrics_check(const char *text, size_t n, bool openmetrics, char *out_why, size_t bytes);

#endif
