#include "cluster/probe.h"

#include <string.h>

#include "base/assert.h"
#include "sys/clock.h"
#include "sys/mem.h"

#define ALL_US      2000000 /* of the whole test: a worker waits three seconds for heartbeats */
#define SMALL_N     9
#define SMALL_BYTES 64
#define SMALL_US    500000 /* of small messages; one there always is */
#define LONG_N      3      /* of each length, the best counts: TCP's window opens, machines pause */
#define LONG_US     50000  /* a shorter echo says little: the next length is tried */
#define REPEAT_US   1000000 /* no echo again that is likely to end after this */

static const size_t long_bytes[] = {(size_t)16 << 10, (size_t)256 << 10, (size_t)4 << 20};

/* A body that a stretch of zeros, or of another probe's bytes, cannot be taken for. */
static void fill(uint8_t *bytes, size_t n, uint64_t seq)
{
    uint64_t x = (seq + 1) * UINT64_C(0x9e3779b97f4a7c15);
    for (size_t i = 0; i < n; i++) {
        x = x * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        bytes[i] = (uint8_t)(x >> 56);
    }
}

/* One message there and back. @param bytes (2 * n) of room */
static ek_status echo(ek_link *link, uint32_t epoch, uint64_t seq, uint8_t *bytes, size_t n,
                      int64_t until_us, int64_t *out_us, ek_err *err)
{
    ek_wire_header header = ek_link_wire_header(EK_WIRE_PROBE, epoch);
    fill(bytes, n, seq);
    header.seq = seq;
    header.body_bytes = (uint32_t)n;
    int64_t beg_us = ek_sys_now_us();
    ek_status status = ek_link_send(link, &header, (ek_span){bytes, n}, until_us);
    if (status == EK_OK) status = ek_link_receive(link, &header, bytes + n, n, until_us);
    *out_us = ek_sys_now_us() - beg_us;
    if (status == EK_AGAIN || status == EK_ETIMEOUT)
        return ek_err_set(err, EK_ETIMEOUT,
                          "self-test of its data link: %zu bytes were not there and back in %d s",
                          n, ALL_US / 1000000);
    if (status != EK_OK)
        return ek_err_set(err, status, "self-test of its data link: %s", link->broken.text);
    if (header.kind != EK_WIRE_PROBED || header.epoch != epoch || header.seq != seq ||
        header.body_bytes != n || memcmp(bytes, bytes + n, n) != 0)
        return ek_err_set(err, EK_EFORMAT,
                          "self-test of its data link: %zu bytes came back as others", n);
    return EK_OK;
}

/* Sorts them, too. */
static int64_t median(int64_t *us, int32_t n)
{
    for (int32_t i = 1; i < n; i++)
        for (int32_t k = i; k > 0 && us[k - 1] > us[k]; k--) {
            int64_t swap = us[k];
            us[k] = us[k - 1];
            us[k - 1] = swap;
        }
    return us[n / 2];
}

static ek_status measure(ek_link *link, uint32_t epoch, size_t bytes_max, uint8_t *bytes,
                         ek_link_quality *out_quality, ek_err *err)
{
    int64_t beg_us = ek_sys_now_us(), until_us = beg_us + ALL_US;
    int64_t small_us[SMALL_N], took_us = 0;
    uint64_t seq = 0;
    int32_t n_small = 0;
    ek_status status = EK_OK;
    while (n_small < SMALL_N && (n_small == 0 || ek_sys_now_us() - beg_us < SMALL_US)) {
        status = echo(link, epoch, seq++, bytes, SMALL_BYTES, until_us, &small_us[n_small], err);
        if (status != EK_OK) return status;
        n_small++;
    }
    out_quality->latency_us = median(small_us, n_small);
    for (size_t i = 0; i < EK_COUNT_OF(long_bytes) && long_bytes[i] <= bytes_max; i++) {
        int64_t least_us = INT64_MAX;
        for (int32_t k = 0; k < LONG_N; k++) {
            if (k > 0 && ek_sys_now_us() - beg_us + took_us > REPEAT_US) break;
            status = echo(link, epoch, seq++, bytes, long_bytes[i], until_us, &took_us, err);
            if (status != EK_OK) return status;
            if (took_us < least_us) least_us = took_us;
        }
        /* All but the latency; on a busy machine a small message may take as long as a long one. */
        int64_t moving_us = least_us - (small_us[0] < least_us / 2 ? small_us[0] : least_us / 2);
        if (moving_us < 1) moving_us = 1;
        out_quality->bytes_per_s = 2 * (int64_t)long_bytes[i] * 1000000 / moving_us;
        if (least_us >= LONG_US) break;
    }
    return EK_OK;
}

ek_status ek_cluster_probe(ek_link *link, uint32_t epoch, size_t bytes_max,
                           ek_link_quality *out_quality, ek_err *err)
{
    size_t room = long_bytes[EK_COUNT_OF(long_bytes) - 1];
    ek_link_quality quality = {.latency_us = -1, .bytes_per_s = -1};
    uint8_t *bytes = ek_sys_calloc(2, room);
    if (!bytes) return ek_err_set(err, EK_ENOMEM, "no memory to test its data link");
    ek_status status = measure(link, epoch, bytes_max, bytes, &quality, err);
    ek_sys_free(bytes);
    if (status == EK_OK) *out_quality = quality;
    return status;
}

ek_status ek_cluster_probe_judge(const ek_link_quality *quality, const ek_cluster_params *params,
                                 ek_err *err)
{
    if (params->link_latency_max_us > 0 && quality->latency_us > params->link_latency_max_us)
        return ek_err_set(err, EK_ERANGE,
                          "its data link takes %.3f ms there and back; cluster.link_latency_max is "
                          "%.3f ms",
                          1e-3 * (double)quality->latency_us,
                          1e-3 * (double)params->link_latency_max_us);
    if (params->link_bandwidth_min > 0 && quality->bytes_per_s >= 0 &&
        quality->bytes_per_s < params->link_bandwidth_min)
        return ek_err_set(
            err, EK_ERANGE,
            "its data link carries %.3f MB/s; cluster.link_bandwidth_min is %.3f MB/s",
            1e-6 * (double)quality->bytes_per_s, 1e-6 * (double)params->link_bandwidth_min);
    return EK_OK;
}
