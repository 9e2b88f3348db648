#include "telemetry/prometheus.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

static void put(ek_prom *prom, const char *text, size_t n)
{
    if (prom->len <= prom->room && n <= prom->room - prom->len)
        memcpy(prom->out + prom->len, text, n);
    else if (prom->len <= prom->room)
        prom->room = prom->len; /* nothing shorter may follow where a longer piece is missing */
    prom->len += n;
}

void ek_telemetry_prom_text(ek_prom *prom, const char *text)
{
    put(prom, text, strlen(text));
}

void ek_telemetry_prom_family(ek_prom *prom, const char *name, const char *type, const char *help)
{
    bool is_open = prom->format == EK_PROM_OPENMETRICS;
    size_t n_name = strlen(name);
    if (is_open && strcmp(type, "counter") == 0) n_name -= strlen("_total");
    ek_telemetry_prom_text(prom, "# HELP ");
    put(prom, name, n_name);
    put(prom, " ", 1);
    for (const char *c = help; *c; c++) { /* the formats' escapes in help texts */
        if (is_open && *c == '"')
            put(prom, "\\\"", 2);
        else if (*c == '\n')
            put(prom, "\\n", 2);
        else if (*c == '\\')
            put(prom, "\\\\", 2);
        else
            put(prom, c, 1);
    }
    ek_telemetry_prom_text(prom, "\n# TYPE ");
    put(prom, name, n_name);
    put(prom, " ", 1);
    ek_telemetry_prom_text(prom, type);
    put(prom, "\n", 1);
}

void ek_telemetry_prom_series(ek_prom *prom, const char *name, const char *suffix,
                              const char *labels, const char *more)
{
    const char *first = labels ? labels : "", *second = more ? more : "";
    ek_telemetry_prom_text(prom, name);
    ek_telemetry_prom_text(prom, suffix);
    if (*first || *second) {
        put(prom, "{", 1);
        ek_telemetry_prom_text(prom, first);
        if (*first && *second) put(prom, ",", 1);
        ek_telemetry_prom_text(prom, second);
        put(prom, "}", 1);
    }
    put(prom, " ", 1);
}

void ek_telemetry_prom_u64(ek_prom *prom, uint64_t value)
{
    char text[24];
    put(prom, text, (size_t)snprintf(text, sizeof text, "%llu\n", (unsigned long long)value));
}

void ek_telemetry_prom_number(double value, char out_text[32])
{
    if (isnan(value))
        snprintf(out_text, 32, "NaN");
    else if (isinf(value))
        snprintf(out_text, 32, value > 0 ? "+Inf" : "-Inf");
    else
        snprintf(out_text, 32, "%.15g", value);
}

void ek_telemetry_prom_f64(ek_prom *prom, double value)
{
    char text[32];
    ek_telemetry_prom_number(value, text);
    ek_telemetry_prom_text(prom, text);
    put(prom, "\n", 1);
}

void ek_telemetry_prom_bound(const ek_prom *prom, double bound, char out_label[48])
{
    char number[32];
    ek_telemetry_prom_number(bound, number);
    /* OpenMetrics: a float's text is a float's, so that each number has one. */
    bool is_whole = !strchr(number, '.') && !strchr(number, 'e') && !strchr(number, 'n');
    const char *rest = is_whole && prom->format == EK_PROM_OPENMETRICS ? ".0" : "";
    snprintf(out_label, 48, "le=\"%s%s\"", number, rest);
}

bool ek_telemetry_prom_label(char *out, size_t bytes, const char *name, const char *value)
{
    size_t start = strlen(out), n_escapes = 0;
    for (const char *c = value; *c; c++)
        n_escapes += *c == '"' || *c == '\\' || *c == '\n';
    /* comma, =, two quotes, NUL */
    size_t need = strlen(name) + strlen(value) + n_escapes + 4 + (start > 0);
    if (need > bytes - start) return false;
    char *at = out + start;
    at += snprintf(at, bytes - start, "%s%s=\"", start ? "," : "", name);
    for (const char *c = value; *c; c++) {
        if (*c == '"' || *c == '\\' || *c == '\n') *at++ = '\\';
        *at++ = *c == '\n' ? 'n' : *c;
    }
    *at++ = '"';
    *at = '\0';
    return true;
}
