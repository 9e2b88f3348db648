/*
 * Prometheus' text format 0.0.4 or OpenMetrics 1.0.0, written piece by piece into the caller's
 * memory.
 * Source: github.com/prometheus/docs (exposition formats) and
 * github.com/prometheus/OpenMetrics (specification). They differ in what a counter's family is
 * called (without _total), in the spelling of histogram bounds (1.0, not 1), in one more escape in
 * help texts, and in the last line, "# EOF", which whoever puts texts together adds.
 *
 * A piece that does not fit is left out, and so is everything after it, but the length goes on
 * counting: the caller learns how much room the whole takes and comes again. Pure.
 */
#ifndef EK_TELEMETRY_PROMETHEUS_H
#define EK_TELEMETRY_PROMETHEUS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

typedef enum ek_prom_format { EK_PROM_TEXT, EK_PROM_OPENMETRICS } ek_prom_format;

typedef struct ek_prom {
    ek_prom_format format;
    char *out;   /* borrowed; not NUL-terminated */
    size_t room; /* bytes of out */
    size_t len;  /* bytes of the whole text so far, also what did not fit */
} ek_prom;

/** Plain text as it is. */
void ek_telemetry_prom_text(ek_prom *prom, const char *text);

/**
 * The HELP and TYPE lines, once per name.
 * @param name of the samples; a counter's ends with _total
 * @param type "counter", "gauge" or "histogram"
 */
void ek_telemetry_prom_family(ek_prom *prom, const char *name, const char *type, const char *help);

/**
 * The beginning of a sample's line; its value comes next, by one of the two functions below.
 * @param suffix "" or "_bucket", "_sum", "_count"
 * @param labels, more  escaped label lists without braces ("code=\"200\""); NULL or "": none
 */
void ek_telemetry_prom_series(ek_prom *prom, const char *name, const char *suffix,
                              const char *labels, const char *more);
void ek_telemetry_prom_u64(ek_prom *prom, uint64_t value);
/** Up to 15 significant digits; NaN, +Inf and -Inf as Prometheus spells them. */
void ek_telemetry_prom_f64(ek_prom *prom, double value);

/** Shortest decimal text of a bound or value that reads back to 15 digits, NUL-terminated. */
void ek_telemetry_prom_number(double value, char out_text[32]);

/** The label of a histogram's bound (`le="0.5"`), as the format spells it. */
void ek_telemetry_prom_bound(const ek_prom *prom, double bound, char out_label[48]);

/**
 * Append `name="value"` with backslashes, quotes and newlines escaped (after a comma where out has
 * labels already).
 * @param out NUL-terminated text in `bytes` bytes; unchanged where the label does not fit
 * @return whether it fitted
 */
bool ek_telemetry_prom_label(char *out, size_t bytes, const char *name, const char *value);

#endif
