#include "place/csv.h"

#include <math.h>

#define NUMBER_MAX 9007199254740992.0 /* 2^53: integers up to here are exact */
#define DIGITS_MAX 32                 /* bytes of one number */

typedef struct reader {
    ek_str text;
    size_t at;
    int32_t line;    /* 1-based */
    size_t line_beg; /* offset of the line's first byte */
    const char *origin;
    double min;
    bool integer;
    ek_err *err;
} reader;

static ek_status fail(const reader *r, size_t at, const char *what)
{
    return ek_err_set(r->err, EK_EFORMAT, "%s:%d:%zu: %s", r->origin, r->line, at - r->line_beg + 1,
                      what);
}

static bool is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void skip_blanks(reader *r)
{
    while (r->at < r->text.len && (r->text.data[r->at] == ' ' || r->text.data[r->at] == '\t'))
        r->at++;
}

/*
 * Digits into a double, counting them; more than 2^53 loses exactness and is caught by the range
 * check.
 */
static double digits(reader *r, int32_t *out_n)
{
    double value = 0.0;
    int32_t n = 0;
    for (; r->at < r->text.len && is_digit(r->text.data[r->at]); r->at++, n++)
        value = value * 10.0 + (r->text.data[r->at] - '0');
    *out_n = n;
    return value;
}

/* [-] digits [. digits] [e [+-] digits]: the numbers that spreadsheets and numpy write. */
static ek_status read_number(reader *r, double *out_value)
{
    skip_blanks(r);
    size_t beg = r->at;
    bool negative = r->at < r->text.len && r->text.data[r->at] == '-';
    r->at += negative;
    int32_t n_whole, n_fraction = 0;
    double value = digits(r, &n_whole);
    if (r->at < r->text.len && r->text.data[r->at] == '.') {
        r->at++;
        double fraction = digits(r, &n_fraction);
        value += fraction / pow(10.0, n_fraction);
    }
    if (n_whole + n_fraction == 0) return fail(r, beg, "a number is expected here");
    if (r->at < r->text.len && (r->text.data[r->at] == 'e' || r->text.data[r->at] == 'E')) {
        r->at++;
        bool down = r->at < r->text.len && r->text.data[r->at] == '-';
        r->at += down || (r->at < r->text.len && r->text.data[r->at] == '+');
        int32_t n_exponent;
        double exponent = digits(r, &n_exponent);
        if (n_exponent == 0) return fail(r, beg, "the exponent has no digits");
        value *= pow(10.0, down ? -exponent : exponent);
    }
    value = negative ? -value : value;
    if (r->at - beg > DIGITS_MAX || !(fabs(value) <= NUMBER_MAX))
        return fail(r, beg, "the number is too large (at most 2^53)");
    if (value < r->min) return fail(r, beg, "the number is too small");
    if (r->integer && value != floor(value)) return fail(r, beg, "a whole number is expected here");
    skip_blanks(r);
    *out_value = value;
    return EK_OK;
}

/*
 * Columns of the first line and lines of the text: commas and line ends, counted before memory is
 * taken.
 */
static void measure(ek_str text, int64_t *out_rows, int64_t *out_columns)
{
    int64_t n_rows = 0, n_columns = 1;
    bool in_line = false;
    for (size_t i = 0; i < text.len; i++) {
        if (text.data[i] == '\n') {
            n_rows += in_line;
            in_line = false;
        } else if (text.data[i] != '\r') {
            in_line = true;
            n_columns += text.data[i] == ',' && n_rows == 0;
        }
    }
    *out_rows = n_rows + in_line;
    *out_columns = n_columns;
}

static ek_status end_line(reader *r)
{
    if (r->at < r->text.len && r->text.data[r->at] == '\r') r->at++;
    if (r->at < r->text.len && r->text.data[r->at] != '\n')
        return fail(r, r->at, "a comma or the end of the line is expected here");
    r->at++;
    r->line++;
    r->line_beg = r->at;
    return EK_OK;
}

static ek_status read_row(reader *r, int32_t n_columns, double *out_row)
{
    for (int32_t c = 0; c < n_columns; c++) {
        if (c > 0) {
            if (r->at >= r->text.len || r->text.data[r->at] != ',')
                return fail(r, r->at, "the line has fewer numbers than the first one");
            r->at++;
        }
        ek_status status = read_number(r, &out_row[c]);
        if (status != EK_OK) return status;
    }
    if (r->at < r->text.len && r->text.data[r->at] == ',')
        return fail(r, r->at, "the line has more numbers than the first one");
    return end_line(r);
}

ek_status ek_place_csv_parse(ek_str text, double min, bool integer, const char *origin,
                             ek_arena *perm, ek_place_table *out_table, ek_err *err)
{
    int64_t n_rows, n_columns;
    measure(text, &n_rows, &n_columns);
    if (n_rows == 0) return ek_err_set(err, EK_EFORMAT, "%s: no numbers in it", origin);
    if (n_rows > EK_PLACE_LAYERS_MAX || n_columns > EK_PLACE_COLUMNS_MAX)
        return ek_err_set(err, EK_EFORMAT, "%s: %lld lines of %lld numbers; at most %d of %d",
                          origin, (long long)n_rows, (long long)n_columns, EK_PLACE_LAYERS_MAX,
                          EK_PLACE_COLUMNS_MAX);
    ek_place_table table = {.n_rows = (int32_t)n_rows, .n_columns = (int32_t)n_columns};
    table.value = ek_try_new(perm, double, (size_t)n_rows *(size_t)n_columns);
    if (!table.value)
        return ek_err_set(err, EK_ENOMEM, "%s: no memory for %lld numbers", origin,
                          (long long)(n_rows * n_columns));
    reader r = {
        .text = text, .line = 1, .origin = origin, .min = min, .integer = integer, .err = err};
    for (int32_t row = 0; row < table.n_rows; row++) {
        ek_status status = read_row(&r, table.n_columns, table.value + (int64_t)row * n_columns);
        if (status != EK_OK) return status;
    }
    *out_table = table;
    return EK_OK;
}
