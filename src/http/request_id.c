#include "http/request_id.h"

#include <inttypes.h>
#include <stdio.h>

#include "base/rng.h"
#include "sys/clock.h"

uint64_t ek_http_fresh_bits(void)
{
    /* Two threads may read the same nanosecond, but never stand on the same stack. */
    int here = 0;
    uint64_t where = (uint64_t)(uintptr_t)&here;
    return ek_mix64((uint64_t)ek_sys_now_ns() ^ ek_mix64(where ^ (uint64_t)ek_sys_wall_s()));
}

void ek_http_request_id(char out_id[EK_REQUEST_ID_MAX + 1])
{
    uint64_t bits = ek_http_fresh_bits();
    snprintf(out_id, EK_REQUEST_ID_MAX + 1, "req-%016" PRIx64 "%016" PRIx64, bits, ek_mix64(bits));
}

bool ek_http_request_id_ok(ek_str id)
{
    if (id.len == 0 || id.len > EK_REQUEST_ID_MAX) return false;
    for (size_t i = 0; i < id.len; i++) {
        char c = id.data[i];
        bool plain = (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
        if (!plain && c != '.' && c != '_' && c != ':' && c != '-') return false;
    }
    return true;
}

void ek_http_request_id_of(const ek_head *head, char out_id[EK_REQUEST_ID_MAX + 1])
{
    ek_str id;
    if (head && ek_http_head_field(head, "x-request-id", &id) && ek_http_request_id_ok(id)) {
        memcpy(out_id, id.data, id.len);
        out_id[id.len] = '\0';
    } else {
        ek_http_request_id(out_id);
    }
}
