#include "http/traceparent.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/rng.h"
#include "http/request_id.h"

/* version "-" trace-id "-" parent-id "-" trace-flags */
#define VERSION_DIGITS 2
#define PARENT_DIGITS  16
#define FLAGS_DIGITS   2

/* n lower-case hex digits from the beginning of *rest, not followed by another. */
static bool take_hex(ek_str *rest, size_t n, ek_str *out_digits)
{
    if (rest->len < n) return false;
    for (size_t i = 0; i < n; i++) {
        char c = rest->data[i];
        if (!((c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'))) return false;
    }
    *out_digits = (ek_str){rest->data, n};
    *rest = (ek_str){rest->data + n, rest->len - n};
    return true;
}

static bool take_dash(ek_str *rest)
{
    if (rest->len == 0 || rest->data[0] != '-') return false;
    *rest = (ek_str){rest->data + 1, rest->len - 1};
    return true;
}

static bool is_zero(ek_str digits)
{
    for (size_t i = 0; i < digits.len; i++)
        if (digits.data[i] != '0') return false;
    return true;
}

bool ek_http_traceparent_parse(ek_str value, char out_trace_id[EK_TRACE_ID_DIGITS + 1])
{
    ek_str version, trace_id, parent, flags;
    bool ok = take_hex(&value, VERSION_DIGITS, &version) && take_dash(&value) &&
              take_hex(&value, EK_TRACE_ID_DIGITS, &trace_id) && take_dash(&value) &&
              take_hex(&value, PARENT_DIGITS, &parent) && take_dash(&value) &&
              take_hex(&value, FLAGS_DIGITS, &flags);
    if (!ok || ek_str_eqz(version, "ff") || is_zero(trace_id) || is_zero(parent)) return false;
    /* Later versions may add parts, but not change these. */
    bool may_go_on = !ek_str_eqz(version, "00");
    if (value.len > 0 && !(may_go_on && value.data[0] == '-')) return false;
    memcpy(out_trace_id, trace_id.data, EK_TRACE_ID_DIGITS);
    out_trace_id[EK_TRACE_ID_DIGITS] = '\0';
    return true;
}

void ek_http_traceparent_of(const ek_head *head, char out_trace_id[EK_TRACE_ID_DIGITS + 1])
{
    ek_str value;
    out_trace_id[0] = '\0';
    int32_t n = ek_http_head_count(head, "traceparent", &value);
    if (n == 0 || (n == 1 && ek_http_traceparent_parse(value, out_trace_id))) return;
    uint64_t bits = ek_http_fresh_bits();
    snprintf(out_trace_id, EK_TRACE_ID_DIGITS + 1, "%016" PRIx64 "%016" PRIx64, bits,
             ek_mix64(bits));
}
