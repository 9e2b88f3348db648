/*
 * Log-linear histogram of non-negative integers (latencies in microseconds, sizes in tokens).
 *
 * Values below 2^EK_HIST_SUB_BITS are exact; above, each octave has 2^EK_HIST_SUB_BITS buckets, so
 * a quantile is off by at most 1/2^(EK_HIST_SUB_BITS+1) = 1.6 % of its value. Recording is one
 * relaxed atomic add: any thread may record, any thread may read, a reader sees a state in which
 * single records may be missing but none is torn. Merging is addition.
 */
#ifndef EK_BASE_HIST_H
#define EK_BASE_HIST_H

#include <stdatomic.h>
#include <stdint.h>

#define EK_HIST_SUB_BITS 5
#define EK_HIST_OCTAVES  32 /* values from 2^37 up fall into the last bucket */
#define EK_HIST_BUCKETS  ((EK_HIST_OCTAVES + 1) << EK_HIST_SUB_BITS)

typedef struct ek_hist {
    _Atomic uint64_t count;
    _Atomic uint64_t sum;
    _Atomic uint64_t bucket[EK_HIST_BUCKETS];
} ek_hist;

void ek_hist_record(ek_hist *hist, uint64_t value);

/** Add every record of src to dst. */
void ek_hist_merge(ek_hist *dst, const ek_hist *src);

/** Value below or at which the share q in [0, 1] of the records lies; 0 for an empty histogram. */
uint64_t ek_hist_quantile(const ek_hist *hist, double q);

/**
 * How many records are <= value. The bucket that holds value counts as a whole, so that a record of
 * exactly value is in; exact where value is a bucket's highest.
 */
uint64_t ek_hist_count_le(const ek_hist *hist, uint64_t value);

/** Bucket of a value, and the highest value a bucket holds: for export and tests. */
uint32_t ek_hist_bucket_of(uint64_t value);
uint64_t ek_hist_bucket_max(uint32_t bucket);

#endif
