#include "sys/logfmt.h"

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>

#include "base/utf8.h"

#define SPEC_MAX 32 /* "%-+ #0123.456ll" and a letter; longer ones are not printed */
#define CONV_MAX 64 /* text of one number: %f of 1e300 is cut */

static void put(ek_sys_line *line, const char *text, size_t n)
{
    if (line->cut || n > line->room - line->len) {
        line->cut = true;
        return;
    }
    memcpy(line->data + line->len, text, n);
    line->len += n;
}

static void put_escaped(ek_sys_line *line, const char *text, size_t n)
{
    for (size_t i = 0; i < n && !line->cut;) {
        unsigned char c = (unsigned char)text[i];
        size_t len = ek_utf8_char_len((ek_str){text + i, n - i});
        if (c == '"' || c == '\\') {
            char pair[2] = {'\\', (char)c};
            put(line, pair, 2);
        } else if (c == '\n' || c == '\r' || c == '\t') {
            put(line, c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t", 2);
        } else if (c < 0x20 || c == 0x7f || len == 0) {
            char hex[8];
            put(line, hex, (size_t)snprintf(hex, sizeof hex, "\\x%02x", c));
            len = 1;
        } else {
            put(line, text + i, len);
        }
        i += len;
    }
}

static bool is_plain(const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        unsigned char c = (unsigned char)text[i];
        if (c <= 0x20 || c >= 0x7f || c == '"' || c == '=' || c == '\\') return false;
    }
    return n > 0;
}

/* A value whose quotes the format does not give: quoted where a reader could not tell its end. */
static void put_value(ek_sys_line *line, const char *text, size_t n)
{
    if (line->in_quotes) {
        put_escaped(line, text, n);
    } else if (is_plain(text, n)) { /* all ASCII: it can be cut anywhere */
        size_t left = line->room - line->len;
        put(line, text, n < left ? n : left);
        line->cut = line->cut || n > left;
    } else {
        put(line, "\"", 1);
        line->in_quotes = !line->cut;
        put_escaped(line, text, n);
        put(line, "\"", 1);
        if (!line->cut) line->in_quotes = false;
    }
}

/* One conversion specification: `spec` is its text, with the values of '*' put in. */
typedef struct conversion {
    char spec[SPEC_MAX];
    size_t n_spec;
    int precision; /* -1: none */
    char length;   /* 'h', 'H' (hh), 'l', 'L' (ll), 'z', 'j', 't', or 0 */
    char letter;
} conversion;

static void spec_add(conversion *conv, const char *text)
{
    for (; *text && conv->n_spec + 1 < SPEC_MAX; text++)
        conv->spec[conv->n_spec++] = *text;
    conv->spec[conv->n_spec] = '\0';
}

static void spec_add_number(conversion *conv, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    spec_add(conv, text);
}

static const char *copy_while(conversion *conv, const char *fmt, const char *set)
{
    for (; *fmt && strchr(set, *fmt); fmt++)
        spec_add(conv, (char[2]){*fmt, '\0'});
    return fmt;
}

static const char *parse_precision(conversion *conv, const char *fmt, int star)
{
    if (star >= 0) {
        conv->precision = star;
        spec_add_number(conv, star);
        return fmt;
    }
    conv->precision = 0;
    for (; *fmt >= '0' && *fmt <= '9'; fmt++) {
        spec_add(conv, (char[2]){*fmt, '\0'});
        if (conv->precision < 100000) conv->precision = conv->precision * 10 + (*fmt - '0');
    }
    return fmt;
}

static const char *parse_length(conversion *conv, const char *fmt)
{
    const char *start = fmt;
    fmt = copy_while(conv, fmt, "hlzjt");
    if (fmt == start) return fmt;
    bool twice = fmt - start == 2;
    conv->length = *start == 'h'   ? (twice ? 'H' : 'h')
                   : *start == 'l' ? (twice ? 'L' : 'l')
                                   : *start;
    return fmt;
}

static intmax_t take_signed(va_list *args, char length)
{
    switch (length) {
    case 'l': return va_arg(*args, long);
    case 'L': return va_arg(*args, long long);
    case 'z': return va_arg(*args, ssize_t);
    case 'j': return va_arg(*args, intmax_t);
    case 't': return va_arg(*args, ptrdiff_t);
    default: return va_arg(*args, int); /* int, and what is promoted to it */
    }
}

static uintmax_t take_unsigned(va_list *args, char length)
{
    switch (length) {
    case 'l': return va_arg(*args, unsigned long);
    case 'L': return va_arg(*args, unsigned long long);
    case 'z': return va_arg(*args, size_t);
    case 'j': return va_arg(*args, uintmax_t);
    case 't': return (uintmax_t)va_arg(*args, ptrdiff_t);
    default: return va_arg(*args, unsigned);
    }
}

/* Numbers are printed by snprintf, as intmax_t: the length modifier is replaced by 'j'. */
static void put_number(ek_sys_line *line, const conversion *conv, va_list *args)
{
    char spec[SPEC_MAX + 4], text[CONV_MAX];
    size_t n = conv->n_spec;
    while (n > 0 && strchr("hlzjt", conv->spec[n - 1]))
        n--;
    memcpy(spec, conv->spec, n);
    int len;
    if (strchr("di", conv->letter)) {
        snprintf(spec + n, sizeof spec - n, "j%c", conv->letter);
        len = snprintf(text, sizeof text, spec, take_signed(args, conv->length));
    } else if (strchr("uxXo", conv->letter)) {
        snprintf(spec + n, sizeof spec - n, "j%c", conv->letter);
        len = snprintf(text, sizeof text, spec, take_unsigned(args, conv->length));
    } else if (conv->letter == 'p') {
        snprintf(spec + n, sizeof spec - n, "p");
        len = snprintf(text, sizeof text, spec, va_arg(*args, void *));
    } else {
        snprintf(spec + n, sizeof spec - n, "%c", conv->letter);
        len = snprintf(text, sizeof text, spec, va_arg(*args, double));
    }
    if (len < 0) return;
    put(line, text, (size_t)len < sizeof text ? (size_t)len : sizeof text - 1);
}

static const char *put_conversion(ek_sys_line *line, const char *fmt, va_list *args)
{
    conversion conv = {.precision = -1};
    const char *start = fmt;
    spec_add(&conv, "%");
    fmt = copy_while(&conv, fmt + 1, "-+ #0");
    if (*fmt == '*') {
        spec_add_number(&conv, va_arg(*args, int));
        fmt++;
    }
    fmt = copy_while(&conv, fmt, "0123456789");
    if (*fmt == '.') {
        spec_add(&conv, ".");
        int star = -1;
        if (*++fmt == '*') {
            int value = va_arg(*args, int);
            star = value < 0 ? 0 : value;
            fmt++;
        }
        fmt = parse_precision(&conv, fmt, star);
    }
    fmt = parse_length(&conv, fmt);
    conv.letter = *fmt;
    if (conv.letter == '%') {
        put(line, "%", 1);
    } else if (conv.letter == 'c') {
        char c = (char)va_arg(*args, int);
        put_value(line, &c, 1);
    } else if (conv.letter == 's') {
        const char *text = va_arg(*args, const char *);
        if (!text) text = "(null)";
        put_value(line, text,
                  conv.precision >= 0 ? strnlen(text, (size_t)conv.precision) : strlen(text));
    } else if (conv.letter && strchr("diuxXopfFeEgG", conv.letter)) {
        put_number(line, &conv, args);
    } else {
        put(line, start,
            (size_t)(fmt - start)); /* a bug of the caller; shown rather than guessed at */
        return fmt;
    }
    return fmt + 1;
}

void ek_sys_logfmt_append(ek_sys_line *line, const char *fmt, va_list args)
{
    va_list copy; /* a parameter of array type could not be handed on by address */
    va_copy(copy, args);
    while (*fmt && !line->cut) {
        if (*fmt == '%') {
            fmt = put_conversion(line, fmt, &copy);
            continue;
        }
        put(line, fmt, 1);
        if (*fmt == '"' && !line->cut) line->in_quotes = !line->in_quotes;
        fmt++;
    }
    va_end(copy);
}
