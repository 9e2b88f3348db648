/*
 * The experts as text for Prometheus: figures per layer, and the hottest and coldest few experts by
 * name.
 *
 * The whole matrix would be thousands of series at each scrape; it is had as JSON from /v1/experts
 * instead. Here the text is bounded: 48 layers of 128 experts take less than 200 KB, whatever the
 * traffic.
 */
#ifndef EK_TELEMETRY_PROM_EXPERTS_H
#define EK_TELEMETRY_PROM_EXPERTS_H

#include <stddef.h>
#include <stdint.h>

#include "telemetry/experts.h"
#include "telemetry/prometheus.h"

#define EK_PROM_EXPERTS_TOP_MAX 64

/**
 * Render balance, idle experts, tokens, busy and service time per layer, the top_k hottest experts
 * and the top_k coldest ones. Coldest are those with the smallest share of their layer's tokens,
 * the ones without any before all others (lower layer, then lower id first); layers without traffic
 * have none.
 * @param window_us what "load" looks back on (10 s is usual); counters and service times are since
 *                 start
 * @param top_k     0..EK_PROM_EXPERTS_TOP_MAX
 * @param out       not NUL-terminated
 * @return bytes that the whole text takes; when that is > bytes nothing beyond `bytes` was written
 * Any thread, lock-free.
 */
size_t ek_telemetry_experts_render(const ek_expert_stats *stats, int64_t window_us, int32_t top_k,
                                   ek_prom_format format, char *out, size_t bytes);

#endif
