/*
 * Service times of one expert: a histogram small enough to have one per layer and expert.
 *
 * The histogram of base/hist.h takes 8.5 KB, which for 48 layers of 128 experts is 52 MB; this one
 * keeps four buckets per octave up to a minute in 808 bytes (5 MB for the same model), so that a
 * quantile is at most a quarter too high. Recording is two relaxed atomic adds; any thread may
 * record or read.
 */
#ifndef EK_TELEMETRY_SERVICE_H
#define EK_TELEMETRY_SERVICE_H

#include <stdatomic.h>
#include <stdint.h>

#define EK_SERVICE_SUB_BITS 2
#define EK_SERVICE_BUCKETS  (25 << EK_SERVICE_SUB_BITS) /* the last one holds all from 58.7 s up */

typedef struct ek_service_hist {
    _Atomic uint64_t sum_us;
    _Atomic uint64_t bucket[EK_SERVICE_BUCKETS];
} ek_service_hist;

void ek_telemetry_service_record(ek_service_hist *hist, uint64_t us);

/** Records of all buckets. */
uint64_t ek_telemetry_service_count(const ek_service_hist *hist);

/**
 * Microseconds at or below which the share q in [0, 1] of the records lies: a bucket's upper end,
 * but the lower one of the last bucket, which has no upper; 0 when empty.
 */
uint64_t ek_telemetry_service_quantile(const ek_service_hist *hist, double q);

/** Bucket of a value, and the highest value a bucket holds: for export and tests. */
uint32_t ek_telemetry_service_bucket_of(uint64_t us);
uint64_t ek_telemetry_service_bucket_max(uint32_t bucket);

#endif
