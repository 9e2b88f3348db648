#include "base/hist.h"

#include <math.h>

#define SUB_COUNT (1u << EK_HIST_SUB_BITS)

uint32_t ek_hist_bucket_of(uint64_t value)
{
    if (value < SUB_COUNT) return (uint32_t)value;
    uint32_t top_bit = 63u - (uint32_t)__builtin_clzll(value);
    uint32_t octave = top_bit - EK_HIST_SUB_BITS + 1;
    if (octave > EK_HIST_OCTAVES) return EK_HIST_BUCKETS - 1;
    uint32_t sub = (uint32_t)(value >> (octave - 1)) & (SUB_COUNT - 1);
    return (octave << EK_HIST_SUB_BITS) + sub;
}

uint64_t ek_hist_bucket_max(uint32_t bucket)
{
    if (bucket < SUB_COUNT) return bucket;
    if (bucket >= EK_HIST_BUCKETS - 1) return UINT64_MAX;
    uint32_t octave = bucket >> EK_HIST_SUB_BITS;
    uint64_t sub = bucket & (SUB_COUNT - 1);
    return ((SUB_COUNT + sub + 1) << (octave - 1)) - 1;
}

void ek_hist_record(ek_hist *hist, uint64_t value)
{
    atomic_fetch_add_explicit(&hist->bucket[ek_hist_bucket_of(value)], 1, memory_order_relaxed);
    atomic_fetch_add_explicit(&hist->sum, value, memory_order_relaxed);
    atomic_fetch_add_explicit(&hist->count, 1, memory_order_relaxed);
}

void ek_hist_merge(ek_hist *dst, const ek_hist *src)
{
    for (uint32_t i = 0; i < EK_HIST_BUCKETS; i++) {
        uint64_t n = atomic_load_explicit(&src->bucket[i], memory_order_relaxed);
        if (n) atomic_fetch_add_explicit(&dst->bucket[i], n, memory_order_relaxed);
    }
    atomic_fetch_add_explicit(&dst->sum, atomic_load_explicit(&src->sum, memory_order_relaxed),
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&dst->count, atomic_load_explicit(&src->count, memory_order_relaxed),
                              memory_order_relaxed);
}

uint64_t ek_hist_quantile(const ek_hist *hist, double q)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < EK_HIST_BUCKETS; i++)
        total += atomic_load_explicit(&hist->bucket[i], memory_order_relaxed);
    if (total == 0) return 0;
    double clamped = q < 0.0 ? 0.0 : q > 1.0 ? 1.0 : q;
    uint64_t rank = (uint64_t)ceil(clamped * (double)total);
    rank = rank ? rank : 1;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < EK_HIST_BUCKETS; i++) {
        seen += atomic_load_explicit(&hist->bucket[i], memory_order_relaxed);
        if (seen >= rank) return ek_hist_bucket_max(i);
    }
    return ek_hist_bucket_max(EK_HIST_BUCKETS - 1); /* records came in while we counted */
}

uint64_t ek_hist_count_le(const ek_hist *hist, uint64_t value)
{
    uint64_t seen = 0;
    for (uint32_t i = 0; i <= ek_hist_bucket_of(value); i++)
        seen += atomic_load_explicit(&hist->bucket[i], memory_order_relaxed);
    return seen;
}
