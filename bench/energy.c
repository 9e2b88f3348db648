#include "energy.h"

#include <inttypes.h>
#include <stdio.h>

static bool read_number(const char *folder, const char *name, uint64_t *out_value)
{
    char path[320];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "r");
    if (!file) return false;
    const bool ok = fscanf(file, "%" SCNu64, out_value) == 1;
    fclose(file);
    return ok;
}

bool ek_bench_energy_open(ek_bench_energy *energy, const char *root)
{
    for (int i = 0; i < EK_BENCH_ZONES_MAX; i++) {
        char path[sizeof energy->zone[0].path];
        uint64_t now_uj = 0, range_uj = 0;
        snprintf(path, sizeof path, "%s/intel-rapl:%d", root, i);
        if (!read_number(path, "energy_uj", &now_uj) ||
            !read_number(path, "max_energy_range_uj", &range_uj) || now_uj > range_uj)
            continue;
        energy->zone[energy->n_zones].range_uj = range_uj;
        energy->zone[energy->n_zones].last_uj = now_uj;
        snprintf(energy->zone[energy->n_zones++].path, sizeof path, "%s", path);
    }
    return energy->n_zones > 0;
}

double ek_bench_energy_lap(ek_bench_energy *energy)
{
    double sum_uj = 0;
    for (int32_t i = 0; i < energy->n_zones; i++) {
        uint64_t now_uj = 0;
        if (!read_number(energy->zone[i].path, "energy_uj", &now_uj)) {
            energy->n_zones = 0;
            break;
        }
        const uint64_t last_uj = energy->zone[i].last_uj;
        sum_uj += now_uj >= last_uj ? (double)(now_uj - last_uj)
                                    : (double)(energy->zone[i].range_uj - last_uj + now_uj);
        energy->zone[i].last_uj = now_uj;
    }
    return energy->n_zones > 0 ? sum_uj * 1e-6 : -1.0;
}
