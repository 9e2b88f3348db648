#include "openmetrics.h"

#include <ctype.h>
#include <math.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAMILIES_MAX 1024
#define SERIES_MAX   65536
#define NAME_MAX_    200
#define LABELS_MAX   2048

typedef struct family {
    char name[NAME_MAX_];
    char type[16];
    bool has_help;
    bool has_samples;
} family;

/* The buckets of one set of labels, while they pass by. */
typedef struct buckets {
    char labels[LABELS_MAX]; /* without le */
    double last_bound;
    double last_count;
    bool open; /* a bucket came and its _count not yet */
    bool has_inf;
} buckets;

typedef struct reader {
    bool openmetrics;
    int line_no;
    char *why;
    size_t n_why;
    family *families;
    int n_families;
    uint64_t *series; /* hashes of name and labels */
    int n_series;
    buckets hist;
} reader;

static bool fail(reader *r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

static bool fail(reader *r, const char *fmt, ...)
{
    va_list args;
    int n = snprintf(r->why, r->n_why, "line %d: ", r->line_no);
    va_start(args, fmt);
    vsnprintf(r->why + n, r->n_why - (size_t)n, fmt, args);
    va_end(args);
    return false;
}

static size_t name_length(const char *text, bool colons)
{
    size_t n = 0;
    for (; text[n]; n++) {
        bool letter =
            isalpha((unsigned char)text[n]) || text[n] == '_' || (colons && text[n] == ':');
        if (!letter && !(n > 0 && isdigit((unsigned char)text[n]))) break;
    }
    return n;
}

/* ---- HELP and TYPE ---- */

static bool is_help(reader *r, const char *text)
{
    for (const char *c = text; *c; c++) {
        if (*c == '\\') {
            c++;
            bool known = *c == '\\' || *c == 'n' || (r->openmetrics && *c == '"');
            if (!known) return fail(r, "unknown escape in a help text");
        } else if (r->openmetrics && *c == '"') {
            return fail(r, "a quote in a help text is not escaped");
        }
    }
    return text[0] != '\0' || fail(r, "a help text is empty");
}

static bool is_type(reader *r, const char *type)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(type, types[i]) == 0) return true;
    return fail(r, "unknown type %s", type);
}

static bool ends_with(const char *text, const char *end)
{
    size_t n = strlen(text), n_end = strlen(end);
    return n >= n_end && strcmp(text + n - n_end, end) == 0;
}

static bool read_meta(reader *r, char *line)
{
    bool is_help_line = strncmp(line, "# HELP ", 7) == 0;
    if (!is_help_line && strncmp(line, "# TYPE ", 7) != 0)
        return fail(r, "a comment that is neither HELP nor TYPE");
    char *name = line + 7;
    size_t n = name_length(name, true);
    if (n == 0 || n >= NAME_MAX_ || name[n] != ' ') return fail(r, "bad family name");
    name[n] = '\0';
    const char *rest = name + n + 1;
    family *last = r->n_families ? &r->families[r->n_families - 1] : NULL;
    bool goes_on = last && strcmp(last->name, name) == 0 && !last->has_samples;
    if (is_help_line) {
        if (goes_on) return fail(r, "HELP of %s twice, or behind its TYPE", name);
        for (int i = 0; i < r->n_families; i++)
            if (strcmp(r->families[i].name, name) == 0) return fail(r, "family %s twice", name);
        if (r->n_families == FAMILIES_MAX) return fail(r, "too many families");
        last = &r->families[r->n_families++];
        *last = (family){.has_help = true};
        snprintf(last->name, sizeof last->name, "%s", name);
        return is_help(r, rest);
    }
    if (!goes_on || !last->has_help || last->type[0])
        return fail(r, "TYPE of %s without HELP", name);
    if (!is_type(r, rest)) return false;
    snprintf(last->type, sizeof last->type, "%s", rest);
    bool is_counter = strcmp(rest, "counter") == 0;
    if (ends_with(name, "_total") != (is_counter && !r->openmetrics))
        return fail(r, "_total belongs to counters (in OpenMetrics to their samples): %s", name);
    return true;
}

/* ---- samples ---- */

static bool read_label_value(reader *r, const char **at, char *out, size_t bytes)
{
    size_t n = 0;
    for (const char *c = *at; *c; c++) {
        if (*c == '"') {
            out[n] = '\0';
            *at = c + 1;
            return true;
        }
        if (*c == '\\') {
            c++;
            if (*c != '\\' && *c != '"' && *c != 'n') return fail(r, "unknown escape in a label");
        }
        if (n + 1 >= bytes) return fail(r, "a label is too long");
        out[n++] = *c;
    }
    return fail(r, "a label's value has no end");
}

/* {a="b",...}: out_labels gets all but le, out_le the value of le or "". */
static bool read_labels(reader *r, const char **at, char *out_labels, char *out_le, size_t n_le)
{
    char names[32][64];
    int n_names = 0;
    size_t n = 0;
    const char *c = *at + 1;
    for (bool first = true;; first = false) {
        char value[512];
        size_t n_name = name_length(c, false);
        if (n_name == 0 || n_name >= sizeof names[0] || n_names == 32)
            return fail(r, first ? "empty or bad labels" : "bad label name");
        memcpy(names[n_names], c, n_name);
        names[n_names][n_name] = '\0';
        for (int i = 0; i < n_names; i++)
            if (strcmp(names[i], names[n_names]) == 0) return fail(r, "label %s twice", names[i]);
        c += n_name;
        if (c[0] != '=' || c[1] != '"') return fail(r, "a label lacks its =\"");
        c += 2;
        if (!read_label_value(r, &c, value, sizeof value)) return false;
        if (strcmp(names[n_names], "le") == 0) {
            if (strlen(value) >= n_le) return fail(r, "le is too long");
            memcpy(out_le, value, strlen(value) + 1);
        } else {
            int more = snprintf(out_labels + n, LABELS_MAX - n, "%s=%s;", names[n_names], value);
            n += (size_t)more;
            if (n >= LABELS_MAX) return fail(r, "too many labels");
        }
        n_names++;
        if (*c == '}') break;
        if (*c != ',') return fail(r, "no comma between labels");
        c++;
    }
    *at = c + 1;
    return true;
}

static bool read_number(reader *r, const char *text, double *out_value)
{
    static const char *const words[] = {"+Inf", "-Inf", "NaN"};
    static const double values[] = {(double)INFINITY, -(double)INFINITY, (double)NAN};
    for (int i = 0; i < 3; i++) {
        if (strcmp(text, words[i]) != 0) continue;
        *out_value = values[i];
        return true;
    }
    if (text[0] == '\0' || text[strspn(text, "0123456789.eE+-")] != '\0')
        return fail(r, "not a number: \"%s\"", text);
    char *end;
    *out_value = strtod(text, &end);
    return *end == '\0' || fail(r, "not a number: \"%s\"", text);
}

/* OpenMetrics, "Canonical Numbers": floats look like floats, so that each has one text. */
static bool is_canonical(const char *le)
{
    return strcmp(le, "+Inf") == 0 || strpbrk(le, ".e") != NULL;
}

static bool note_series(reader *r, const char *name, const char *labels, const char *le)
{
    uint64_t hash = 14695981039346656037ULL;
    const char *const parts[] = {name, "{", labels, "}", le};
    for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
        for (const char *c = parts[i]; *c; c++)
            hash = (hash ^ (unsigned char)*c) * 1099511628211ULL;
    for (int i = 0; i < r->n_series; i++)
        if (r->series[i] == hash) return fail(r, "series %s{%s} twice", name, labels);
    if (r->n_series == SERIES_MAX) return fail(r, "too many series");
    r->series[r->n_series++] = hash;
    return true;
}

static bool note_bucket(reader *r, const char *labels, const char *le, double count)
{
    double bound;
    if (!le[0]) return fail(r, "a bucket without le");
    if (!read_number(r, le, &bound)) return false;
    if (r->openmetrics && !is_canonical(le)) return fail(r, "le=\"%s\" is not canonical", le);
    buckets *hist = &r->hist;
    if (!hist->open) {
        *hist = (buckets){.open = true, .last_bound = -(double)INFINITY};
        snprintf(hist->labels, sizeof hist->labels, "%s", labels);
    }
    if (strcmp(hist->labels, labels) != 0) return fail(r, "buckets of several series mix");
    if (bound <= hist->last_bound) return fail(r, "bounds do not ascend");
    if (count < hist->last_count) return fail(r, "cumulated counts fall");
    hist->last_bound = bound;
    hist->last_count = count;
    hist->has_inf = isinf(bound) != 0;
    return true;
}

static bool note_histogram(reader *r, const char *suffix, const char *labels, const char *le,
                           double value)
{
    if (strcmp(suffix, "_bucket") == 0) return note_bucket(r, labels, le, value);
    if (le[0]) return fail(r, "le belongs to buckets");
    if (!r->hist.open || !r->hist.has_inf) return fail(r, "no +Inf bucket before %s", suffix);
    if (strcmp(r->hist.labels, labels) != 0) return fail(r, "%s of another series", suffix);
    if (strcmp(suffix, "_sum") == 0) return value >= 0 || fail(r, "a sum below 0");
    if (value != r->hist.last_count) return fail(r, "_count differs from the +Inf bucket");
    r->hist.open = false;
    return true;
}

static bool check_value(reader *r, const family *f, const char *suffix, const char *labels,
                        const char *le, double value)
{
    bool is_histogram = strcmp(f->type, "histogram") == 0;
    if (is_histogram) {
        bool known = strcmp(suffix, "_bucket") == 0 || strcmp(suffix, "_sum") == 0 ||
                     strcmp(suffix, "_count") == 0;
        if (!known) return fail(r, "a histogram has no sample \"%s\"", suffix);
        return note_histogram(r, suffix, labels, le, value);
    }
    if (strcmp(f->type, "counter") == 0) {
        if (strcmp(suffix, r->openmetrics ? "_total" : "") != 0)
            return fail(r, "a counter's sample ends with \"%s\"", suffix);
        return value >= 0 || fail(r, "a counter below 0, or NaN");
    }
    return suffix[0] == '\0' || fail(r, "a gauge's sample has the suffix \"%s\"", suffix);
}

static bool read_sample(reader *r, const char *line)
{
    char name[NAME_MAX_], labels[LABELS_MAX] = "", le[64] = "";
    size_t n = name_length(line, true);
    if (n == 0 || n >= sizeof name) return fail(r, "bad sample name");
    memcpy(name, line, n);
    name[n] = '\0';
    const char *at = line + n;
    if (*at == '{' && !read_labels(r, &at, labels, le, sizeof le)) return false;
    if (*at != ' ') return fail(r, "no space before the value");
    double value;
    if (!read_number(r, at + 1, &value)) return false;
    family *f = r->n_families ? &r->families[r->n_families - 1] : NULL;
    size_t n_family = f ? strlen(f->name) : 0;
    if (!f || !f->type[0] || strncmp(name, f->name, n_family) != 0)
        return fail(r, "%s is not of the family above", name);
    f->has_samples = true;
    return note_series(r, name, labels, le) &&
           check_value(r, f, name + n_family, labels, le, value);
}

/* ---- the text ---- */

static bool read_lines(reader *r, char *text, size_t n)
{
    char *end = text + n;
    bool ended = false;
    for (char *line = text; line < end; r->line_no++) {
        char *stop = memchr(line, '\n', (size_t)(end - line));
        if (!stop) return fail(r, "the last line does not end");
        *stop = '\0';
        if (ended) return fail(r, "text behind # EOF");
        if (strlen(line) != (size_t)(stop - line)) return fail(r, "a NUL");
        if (line[0] == '\0' || strchr(line, '\r')) return fail(r, "a blank line, or a CR");
        if (r->openmetrics && strcmp(line, "# EOF") == 0) {
            ended = true;
        } else if (!(line[0] == '#' ? read_meta(r, line) : read_sample(r, line))) {
            return false;
        }
        line = stop + 1;
    }
    if (r->hist.open) return fail(r, "the last histogram has no _count");
    return ended == r->openmetrics || fail(r, "no # EOF");
}

bool openmetrics_check(const char *text, size_t n, bool openmetrics, char *out_why, size_t bytes)
{
    reader r = {
        .openmetrics = openmetrics,
        .line_no = 1,
        .why = out_why,
        .n_why = bytes,
        .families = calloc(FAMILIES_MAX, sizeof(family)),
        .series = calloc(SERIES_MAX, sizeof(uint64_t)),
    };
    char *copy = malloc(n + 1);
    bool ok = false;
    if (copy && r.families && r.series) {
        memcpy(copy, text, n);
        ok = read_lines(&r, copy, n);
    }
    free(copy);
    free(r.families);
    free(r.series);
    return ok;
}
