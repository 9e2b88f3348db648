#include "config/value.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/assert.h"
#include "base/nearest.h"
#include "base/utf8.h"

#define SHOWN_MAX 64 /* bytes of a wrong value that an error repeats */

/* A unit and what it is in the stored unit. Largest first, for printing. */
typedef struct unit {
    const char *name;
    int64_t factor;
} unit;

static const unit durations[] = {{"d", INT64_C(86400000000)},
                                 {"h", INT64_C(3600000000)},
                                 {"m", 60000000},
                                 {"s", 1000000},
                                 {"ms", 1000},
                                 {"us", 1}};
static const unit sizes[] = {{"TiB", INT64_C(1) << 40},
                             {"GiB", INT64_C(1) << 30},
                             {"MiB", INT64_C(1) << 20},
                             {"KiB", INT64_C(1) << 10},
                             {"B", 1}};

typedef struct unit_list {
    const unit *unit;
    size_t n;
    const char *example; /* how an error says it is written */
} unit_list;

static unit_list units_of(const ek_config_key *key)
{
    if (key->type == EK_CONFIG_DURATION)
        return (unit_list){durations, EK_COUNT_OF(durations), "250ms, 30s, 5m or 1h"};
    return (unit_list){sizes, EK_COUNT_OF(sizes), "512B, 64KiB, 4MiB or 2GiB"};
}

/* "engine.threads is "x"; <what>" */
static ek_status refuse(const ek_config_key *key, ek_str text, const char *what, ek_err *err)
{
    bool is_long = text.len > SHOWN_MAX;
    ek_str shown = {text.data, is_long ? SHOWN_MAX : text.len};
    return ek_err_set(err, EK_ECONFIG, "%s.%s is \"%.*s%s\"; %s", key->section, key->name,
                      EK_STR_ARG(shown), is_long ? "..." : "", what);
}

static ek_status refuse_range(const ek_config_key *key, ek_str text, ek_err *err)
{
    char range[EK_CONFIG_RANGE_TEXT_MAX], what[EK_CONFIG_RANGE_TEXT_MAX + 16];
    ek_config_range_print(key, range);
    snprintf(what, sizeof what, "allowed are %s", range);
    return refuse(key, text, what, err);
}

/* Decimal digits at the start of text, saturated at INT64_MAX; returns how many. */
static size_t take_digits(ek_str text, int64_t *out_value)
{
    size_t n = 0;
    int64_t value = 0;
    for (; n < text.len && text.data[n] >= '0' && text.data[n] <= '9'; n++)
        if (__builtin_mul_overflow(value, 10, &value) ||
            __builtin_add_overflow(value, text.data[n] - '0', &value))
            value = INT64_MAX / 10 * 10; /* stays there: the next product overflows again */
    *out_value = value;
    return n;
}

/* A leading zero would be octal to some YAML readers and decimal to others; it is refused. */
static bool digits_plain(ek_str text, size_t n_digits)
{
    return n_digits > 0 && !(n_digits > 1 && text.data[0] == '0');
}

static ek_status parse_int(const ek_config_key *key, ek_str text, int64_t *out_value, ek_err *err)
{
    bool negative = text.len > 0 && text.data[0] == '-';
    ek_str digits = {text.data + negative, text.len - negative};
    int64_t value;
    size_t n = take_digits(digits, &value);
    if (!digits_plain(digits, n) || n != digits.len) {
        char what[64];
        snprintf(what, sizeof what, "write a whole number%s%s", key->zero ? ", or " : "",
                 key->zero ? key->zero : "");
        return refuse(key, text, what, err);
    }
    if (negative) value = -value;
    if (value < key->min || value > key->max) return refuse_range(key, text, err);
    *out_value = value;
    return EK_OK;
}

#define REAL_DECIMALS 6

/* "0.85": digits, and at most REAL_DECIMALS after the point. Kept as millionths. */
static ek_status parse_real(const ek_config_key *key, ek_str text, int64_t *out_value, ek_err *err)
{
    int64_t whole, fraction = 0;
    size_t n_whole = take_digits(text, &whole), n_fraction = 0;
    bool has_point = n_whole < text.len && text.data[n_whole] == '.';
    ek_str rest = {text.data + n_whole + has_point, text.len - n_whole - has_point};
    if (has_point) n_fraction = take_digits(rest, &fraction);
    if (!digits_plain(text, n_whole) || n_fraction != rest.len || n_fraction > REAL_DECIMALS ||
        (has_point && n_fraction == 0)) {
        char what[96];
        snprintf(what, sizeof what, "write a number such as 0.85, with at most %d decimals%s%s",
                 REAL_DECIMALS, key->zero ? ", or " : "", key->zero ? key->zero : "");
        return refuse(key, text, what, err);
    }
    for (size_t i = n_fraction; i < REAL_DECIMALS; i++)
        fraction *= 10;
    int64_t value;
    if (__builtin_mul_overflow(whole, 1000000, &value) ||
        __builtin_add_overflow(value, fraction, &value))
        value = INT64_MAX;
    if (!(key->zero && value == 0) && (value < key->min || value > key->max))
        return refuse_range(key, text, err);
    *out_value = value;
    return EK_OK;
}

static ek_status parse_quantity(const ek_config_key *key, ek_str text, int64_t *out_value,
                                ek_err *err)
{
    unit_list units = units_of(key);
    int64_t value;
    char what[96];
    size_t n = take_digits(text, &value);
    ek_str rest = {text.data + n, text.len - n};
    snprintf(what, sizeof what, "write a whole number with its unit: %s%s%s", units.example,
             key->zero ? ", or " : "", key->zero ? key->zero : "");
    if (!digits_plain(text, n)) return refuse(key, text, what, err);
    bool bare_zero = value == 0 && rest.len == 0;
    for (size_t i = 0; i < units.n; i++) {
        if (!bare_zero && !ek_str_eqz(rest, units.unit[i].name)) continue;
        if (__builtin_mul_overflow(value, units.unit[i].factor, &value)) value = INT64_MAX;
        if (value < key->min || value > key->max) return refuse_range(key, text, err);
        *out_value = value;
        return EK_OK;
    }
    return refuse(key, text, what, err);
}

void ek_config_choices_print(const ek_config_key *key, char *out_text, size_t bytes)
{
    size_t len = 0;
    out_text[0] = '\0';
    for (const ek_config_choice *c = key->choices; c->name && len < bytes; c++) {
        int n = snprintf(out_text + len, bytes - len, "%s%s", len ? ", " : "", c->name);
        len += n > 0 ? (size_t)n : 0;
    }
}

static ek_status parse_choice(const ek_config_key *key, ek_str text, int64_t *out_value,
                              ek_err *err)
{
    ek_nearest nearest = ek_nearest_start(text);
    for (const ek_config_choice *c = key->choices; c->name; c++) {
        if (ek_str_eqz(text, c->name)) {
            *out_value = c->value;
            return EK_OK;
        }
        ek_nearest_offer(&nearest, c->name);
    }
    char names[192], what[256];
    ek_config_choices_print(key, names, sizeof names);
    snprintf(what, sizeof what, "allowed are %s%s%s%s", names,
             nearest.name ? "; did you mean " : "", nearest.name ? nearest.name : "",
             nearest.name ? "?" : "");
    return refuse(key, text, what, err);
}

static ek_status parse_bool(const ek_config_key *key, ek_str text, int64_t *out_value, ek_err *err)
{
    bool is_true = ek_str_eqz(text, "true");
    if (!is_true && !ek_str_eqz(text, "false"))
        return refuse(key, text, "write true or false", err);
    *out_value = is_true;
    return EK_OK;
}

static ek_status parse_number(const ek_config_key *key, ek_str text, int64_t *out_value,
                              ek_err *err)
{
    if (key->zero && ek_str_eqz(text, key->zero)) {
        *out_value = 0;
        return EK_OK;
    }
    switch (key->type) {
    case EK_CONFIG_BOOL: return parse_bool(key, text, out_value, err);
    case EK_CONFIG_INT: return parse_int(key, text, out_value, err);
    case EK_CONFIG_REAL: return parse_real(key, text, out_value, err);
    case EK_CONFIG_DURATION:
    case EK_CONFIG_SIZE: return parse_quantity(key, text, out_value, err);
    case EK_CONFIG_CHOICE: return parse_choice(key, text, out_value, err);
    case EK_CONFIG_TEXT: break;
    }
    return EK_EINTERNAL; /* texts have their own path */
}

/* Well-formed UTF-8 without control characters: what a path, an address or a name can be. */
static bool text_valid(ek_str text)
{
    while (text.len > 0) {
        size_t len = ek_utf8_char_len(text);
        unsigned char first = (unsigned char)text.data[0];
        if (len == 0 || first < 0x20 || first == 0x7f) return false;
        text = (ek_str){text.data + len, text.len - len};
    }
    return true;
}

static ek_status apply_text(const ek_config_key *key, ek_str text, ek_arena *perm,
                            ek_config *config, ek_err *err)
{
    const char *copy = NULL;
    if (text.len < (size_t)key->min)
        return ek_err_set(err, EK_ECONFIG, "%s.%s is empty; it has no meaning without a value",
                          key->section, key->name);
    if (text.len > EK_CONFIG_TEXT_BYTES_MAX)
        return ek_err_set(err, EK_ECONFIG, "%s.%s is longer than %d bytes", key->section, key->name,
                          EK_CONFIG_TEXT_BYTES_MAX);
    if (!text_valid(text))
        return refuse(key, text, "control characters and what is not UTF-8 cannot be used", err);
    if (text.len > 0) {
        copy = ek_arena_try_strz(perm, text);
        if (!copy) return ek_err_set(err, EK_ENOMEM, "the configuration's texts are too long");
    }
    memcpy((char *)config + key->offset, &copy, sizeof copy);
    return EK_OK;
}

static void store_number(const ek_config_key *key, int64_t value, ek_config *config)
{
    char *field = (char *)config + key->offset;
    bool as_bool = value != 0;
    int32_t as_int = (int32_t)value;
    double as_real = (double)value / 1e6;
    if (key->type == EK_CONFIG_REAL)
        memcpy(field, &as_real, sizeof as_real);
    else if (key->type == EK_CONFIG_BOOL)
        memcpy(field, &as_bool, sizeof as_bool);
    else if (key->type == EK_CONFIG_INT || key->type == EK_CONFIG_CHOICE)
        memcpy(field, &as_int, sizeof as_int);
    else
        memcpy(field, &value, sizeof value);
}

static int64_t load_number(const ek_config_key *key, const ek_config *config)
{
    const char *field = (const char *)config + key->offset;
    int64_t value = 0;
    bool as_bool = false;
    int32_t as_int = 0;
    double as_real = 0;
    if (key->type == EK_CONFIG_REAL) {
        memcpy(&as_real, field, sizeof as_real);
        return llround(as_real * 1e6);
    }
    if (key->type == EK_CONFIG_BOOL) {
        memcpy(&as_bool, field, sizeof as_bool);
        return as_bool;
    }
    if (key->type == EK_CONFIG_INT || key->type == EK_CONFIG_CHOICE) {
        memcpy(&as_int, field, sizeof as_int);
        return as_int;
    }
    memcpy(&value, field, sizeof value);
    return value;
}

ek_status ek_config_value_apply(const ek_config_key *key, ek_str text, ek_arena *perm,
                                ek_config *config, ek_err *err)
{
    if (key->type == EK_CONFIG_TEXT) return apply_text(key, text, perm, config, err);
    int64_t value;
    ek_status status = parse_number(key, text, &value, err);
    if (status != EK_OK) return status;
    store_number(key, value, config);
    return EK_OK;
}

/* Millionths as "0.85": no more decimals than there are. */
static void print_real(int64_t value, char out_text[EK_CONFIG_VALUE_TEXT_MAX])
{
    int64_t fraction = value % 1000000;
    int decimals = fraction ? REAL_DECIMALS : 0;
    for (; decimals > 0 && fraction % 10 == 0; fraction /= 10)
        decimals--;
    if (decimals > 0)
        snprintf(out_text, EK_CONFIG_VALUE_TEXT_MAX, "%lld.%0*lld", (long long)(value / 1000000),
                 decimals, (long long)fraction);
    else
        snprintf(out_text, EK_CONFIG_VALUE_TEXT_MAX, "%lld", (long long)(value / 1000000));
}

void ek_config_number_print(const ek_config_key *key, int64_t value,
                            char out_text[EK_CONFIG_VALUE_TEXT_MAX])
{
    if (value == 0 && key->zero) {
        snprintf(out_text, EK_CONFIG_VALUE_TEXT_MAX, "%s", key->zero);
    } else if (key->type == EK_CONFIG_REAL) {
        print_real(value, out_text);
    } else if (key->type == EK_CONFIG_DURATION || key->type == EK_CONFIG_SIZE) {
        unit_list units = units_of(key);
        size_t i = 0;
        while (i + 1 < units.n && (value == 0 || value % units.unit[i].factor != 0))
            i++;
        if (value == 0) /* "0s" and "0B" read better than "0us" */
            i = key->type == EK_CONFIG_DURATION ? 3 : i;
        snprintf(out_text, EK_CONFIG_VALUE_TEXT_MAX, "%lld%s",
                 (long long)(value / units.unit[i].factor), units.unit[i].name);
    } else {
        snprintf(out_text, EK_CONFIG_VALUE_TEXT_MAX, "%lld", (long long)value);
    }
}

void ek_config_range_print(const ek_config_key *key, char out_text[EK_CONFIG_RANGE_TEXT_MAX])
{
    char low[EK_CONFIG_VALUE_TEXT_MAX], high[EK_CONFIG_VALUE_TEXT_MAX];
    /* Where 0 has a word of its own, the numbers begin above it. */
    bool is_real = key->type == EK_CONFIG_REAL;
    ek_config_number_print(key, key->zero && !is_real ? 1 : key->min, low);
    ek_config_number_print(key, key->max, high);
    snprintf(out_text, EK_CONFIG_RANGE_TEXT_MAX, "%s to %s%s%s", low, high,
             key->zero ? ", or " : "", key->zero ? key->zero : "");
}

void ek_config_value_print(const ek_config_key *key, const ek_config *config,
                           char out_text[EK_CONFIG_VALUE_TEXT_MAX])
{
    ek_assert(key->type != EK_CONFIG_TEXT);
    int64_t value = load_number(key, config);
    if (key->type == EK_CONFIG_BOOL) {
        snprintf(out_text, EK_CONFIG_VALUE_TEXT_MAX, "%s", value ? "true" : "false");
        return;
    }
    if (key->type == EK_CONFIG_CHOICE) {
        const ek_config_choice *c = key->choices;
        while (c->name && c->value != value)
            c++;
        ek_assert(c->name != NULL); /* only values of the table are ever stored */
        snprintf(out_text, EK_CONFIG_VALUE_TEXT_MAX, "%s", c->name);
        return;
    }
    ek_config_number_print(key, value, out_text);
}

const char *ek_config_value_text(const ek_config_key *key, const ek_config *config)
{
    ek_assert(key->type == EK_CONFIG_TEXT);
    const char *text;
    memcpy(&text, (const char *)config + key->offset, sizeof text);
    return text;
}
