#include "telemetry/service.h"

#include <math.h>

#define SUB_COUNT (1u << EK_SERVICE_SUB_BITS)

uint32_t ek_telemetry_service_bucket_of(uint64_t us)
{
    if (us < SUB_COUNT) return (uint32_t)us;
    uint32_t octave = 64u - (uint32_t)__builtin_clzll(us) - EK_SERVICE_SUB_BITS;
    uint32_t sub = (uint32_t)(us >> (octave - 1)) & (SUB_COUNT - 1);
    uint32_t bucket = (octave << EK_SERVICE_SUB_BITS) + sub;
    return bucket < EK_SERVICE_BUCKETS ? bucket : EK_SERVICE_BUCKETS - 1;
}

uint64_t ek_telemetry_service_bucket_max(uint32_t bucket)
{
    if (bucket < SUB_COUNT) return bucket;
    if (bucket >= EK_SERVICE_BUCKETS - 1) return UINT64_MAX;
    uint32_t octave = bucket >> EK_SERVICE_SUB_BITS;
    uint64_t sub = bucket & (SUB_COUNT - 1);
    return ((SUB_COUNT + sub + 1) << (octave - 1)) - 1;
}

void ek_telemetry_service_record(ek_service_hist *hist, uint64_t us)
{
    atomic_fetch_add_explicit(&hist->bucket[ek_telemetry_service_bucket_of(us)], 1,
                              memory_order_relaxed);
    atomic_fetch_add_explicit(&hist->sum_us, us, memory_order_relaxed);
}

uint64_t ek_telemetry_service_count(const ek_service_hist *hist)
{
    uint64_t total = 0;
    for (uint32_t i = 0; i < EK_SERVICE_BUCKETS; i++)
        total += atomic_load_explicit(&hist->bucket[i], memory_order_relaxed);
    return total;
}

uint64_t ek_telemetry_service_quantile(const ek_service_hist *hist, double q)
{
    uint64_t total = ek_telemetry_service_count(hist);
    if (total == 0) return 0;
    double clamped = q < 0.0 ? 0.0 : q > 1.0 ? 1.0 : q;
    uint64_t rank = (uint64_t)ceil(clamped * (double)total);
    rank = rank ? rank : 1;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < EK_SERVICE_BUCKETS - 1; i++) {
        seen += atomic_load_explicit(&hist->bucket[i], memory_order_relaxed);
        if (seen >= rank) return ek_telemetry_service_bucket_max(i);
    }
    return ek_telemetry_service_bucket_max(EK_SERVICE_BUCKETS - 2) + 1;
}
