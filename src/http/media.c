#include "http/media.h"

#include "http/head.h"

static ek_str trim(ek_str text)
{
    while (text.len && (text.data[0] == ' ' || text.data[0] == '\t'))
        text = (ek_str){text.data + 1, text.len - 1};
    while (text.len && (text.data[text.len - 1] == ' ' || text.data[text.len - 1] == '\t'))
        text.len--;
    return text;
}

/* What stands before the next `mark`, which is none inside of quotes; *rest begins behind it. */
static ek_str take_part(ek_str *rest, char mark)
{
    bool quoted = false;
    size_t n = 0;
    for (; n < rest->len && (quoted || rest->data[n] != mark); n++) {
        if (quoted && rest->data[n] == '\\' && n + 1 < rest->len) {
            n++;
        } else if (rest->data[n] == '"') {
            quoted = !quoted;
        }
    }
    ek_str part = {rest->data, n};
    size_t skip = n < rest->len ? n + 1 : n;
    *rest = (ek_str){rest->data + skip, rest->len - skip};
    return trim(part);
}

/* "0.25" in thousandths; 0 for what is no weight: a client that cannot say it does not want it. */
static int32_t read_weight(ek_str text)
{
    if (text.len == 0 || text.len > 5 || text.data[0] < '0' || text.data[0] > '1') return 0;
    int32_t weight = (text.data[0] - '0') * 1000;
    if (text.len > 1 && text.data[1] != '.') return 0;
    int32_t unit = 100;
    for (size_t i = 2; i < text.len; i++, unit /= 10) {
        if (text.data[i] < '0' || text.data[i] > '9') return 0;
        weight += (text.data[i] - '0') * unit;
    }
    return weight > 1000 ? 0 : weight;
}

static ek_str unquote(ek_str text)
{
    if (text.len >= 2 && text.data[0] == '"' && text.data[text.len - 1] == '"')
        return (ek_str){text.data + 1, text.len - 2};
    return text;
}

/* How closely a range names the type: 3 itself, 2 its kind, 1 anything, 0 another. */
static int32_t closeness(ek_str range, const char *type)
{
    if (ek_http_head_same(range, type)) return 3;
    if (ek_str_eqz(range, "*/*")) return 1;
    ptrdiff_t slash = ek_str_find(range, EK_STR("/*"));
    if (slash <= 0 || (size_t)slash + 2 != range.len) return 0;
    ek_str kind = {range.data, (size_t)slash + 1};
    return ek_str_starts(ek_str_from(type), kind) ? 2 : 0;
}

int32_t ek_http_media_weight(ek_str accept, const char *type, const char *version)
{
    int32_t best_close = 0, best_weight = 0;
    while (accept.len) {
        ek_str parts = take_part(&accept, ',');
        int32_t close = closeness(take_part(&parts, ';'), type);
        int32_t weight = 1000;
        while (parts.len) {
            ek_str value = take_part(&parts, ';');
            ek_str name = take_part(&value, '=');
            if (ek_http_head_same(name, "q")) weight = read_weight(value);
            if (ek_http_head_same(name, "version") && !ek_str_eqz(unquote(value), version))
                close = 0;
        }
        if (close == 0 || close < best_close) continue;
        if (close > best_close || weight > best_weight) best_weight = weight;
        best_close = close;
    }
    return best_weight;
}
