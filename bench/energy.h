/*
 * Energy that the processor packages used, where the kernel lets us read their counters (powercap:
 * Intel and AMD machines of one's own; hardly any virtual machine, and root only on most systems).
 */
#ifndef EK_BENCH_ENERGY_H
#define EK_BENCH_ENERGY_H

#include <stdbool.h>
#include <stdint.h>

#define EK_BENCH_POWERCAP  "/sys/class/powercap"
#define EK_BENCH_ZONES_MAX 16

/** Zero-initialise, then ek_bench_energy_open. */
typedef struct ek_bench_energy {
    struct {
        char path[256];
        uint64_t range_uj; /* the counter begins anew after this much */
        uint64_t last_uj;
    } zone[EK_BENCH_ZONES_MAX]; /* packages, not the cores and memories within them */
    int32_t n_zones;            /* 0: not readable */
} ek_bench_energy;

/** Find the counters. @param root like EK_BENCH_POWERCAP. @return whether there are any */
bool ek_bench_energy_open(ek_bench_energy *energy, const char *root);

/**
 * Joules since the last call (or the opening). One overflow of a counter in between is seen, two
 * are not: they wrap after minutes at the least. @return below 0: not readable (any more)
 */
double ek_bench_energy_lap(ek_bench_energy *energy);

#endif
