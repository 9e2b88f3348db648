/*
 * The two inner steps of a fresh placement against what they stand for, written out plainly: the
 * sort of experts by load, on loads of every kind, and the packing of replicas onto devices.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "place/core.h"
#include "support/fixtures.h"

#define EXPERTS_MAX 4096
#define SLOTS_MAX   8192
#define DEVICES_MAX 96

typedef struct problem {
    double load[EXPERTS_MAX];
    int32_t slot_beg[DEVICES_MAX + 1];
    ek_place_core core;
    ek_arena scratch;
} problem;

/* Loads of many kinds: flat, integer with ties, with zeros, far apart, close together. */
static double load_of(ek_rng *rng, int32_t kind)
{
    double unit = ek_rng_unit(rng);
    switch (kind) {
    case 0: return 1.0;
    case 1: return floor(unit * 20.0);
    case 2: return unit < 0.3 ? 0.0 : floor(unit * 1e6);
    case 3: return exp(160.0 * unit - 80.0);
    case 4: return 1e7 + floor(unit * 64.0);
    default: return 1000.0 * exp(3.0 * unit);
    }
}

static void setup(problem *p, ek_rng *rng, int32_t kind, int32_t n_experts, int32_t n_devices,
                  ek_arena arena)
{
    p->load[0] = 1.0;
    for (int32_t e = 1; e < n_experts; e++)
        p->load[e] = load_of(rng, kind);
    double total = 0.0;
    for (int32_t e = 0; e < n_experts; e++)
        total += p->load[e];
    for (int32_t d = 0; d < n_devices; d++)
        p->slot_beg[d + 1] =
            p->slot_beg[d] + n_experts / n_devices + 1 + (int32_t)ek_rng_below(rng, 3);
    p->core = (ek_place_core){
        .n_experts = n_experts,
        .n_devices = n_devices,
        .n_slots = p->slot_beg[n_devices],
        .load = p->load,
        .slot_beg = p->slot_beg,
        .mean = total / n_devices,
    };
    p->scratch = arena;
    ek_place_core_init(&p->core, &p->scratch);
}

static void test_sort(void **state)
{
    (void)state;
    static problem p;
    ek_rng rng;
    ek_rng_init(&rng, 21);
    for (int32_t round = 0; round < 90; round++) {
        int32_t n = round < 80 ? 1 + (int32_t)ek_rng_below(&rng, 500) : EXPERTS_MAX;
        ek_arena arena = ek_fixture_arena(ek_place_core_bytes(n, SLOTS_MAX, 1));
        setup(&p, &rng, round % 6, n, 1, arena);
        for (int32_t i = 0; i < n; i++) {
            int32_t e = p.core.order[i];
            assert_int_equal(p.core.rank[e], i);
            if (i == 0) continue;
            /* Loads that are one float are equal here. */
            float before = (float)p.load[p.core.order[i - 1]], here = (float)p.load[e];
            assert_true(before > here || (before == here && p.core.order[i - 1] < e));
        }
        ek_fixture_arena_free(arena.beg);
    }
}

/* Heaviest replica first onto the lightest device with room that lacks the expert. */
static void pack_plainly(const ek_place_core *core, int32_t *out_slot_expert)
{
    double device_load[DEVICES_MAX] = {0};
    int32_t next[DEVICES_MAX];
    bool placed[EXPERTS_MAX] = {false};
    for (int32_t s = 0; s < core->n_slots; s++)
        out_slot_expert[s] = -1;
    memcpy(next, core->slot_beg, (size_t)core->n_devices * sizeof *next);
    for (int32_t i = 0; i < core->n_experts; i++) {
        int32_t e = -1;
        for (int32_t o = 0; o < core->n_experts; o++)
            if (!placed[o] && (e < 0 || core->replica_load[o] > core->replica_load[e])) e = o;
        placed[e] = true;
        bool holds[DEVICES_MAX] = {false};
        for (int32_t r = 0; r < core->count[e]; r++) {
            int32_t best = -1;
            for (int32_t d = 0; d < core->n_devices; d++)
                if (!holds[d] && next[d] < core->slot_beg[d + 1] &&
                    (best < 0 || device_load[d] < device_load[best]))
                    best = d;
            assert_true(best >= 0);
            holds[best] = true;
            out_slot_expert[next[best]++] = e;
            device_load[best] += core->replica_load[e];
        }
    }
}

/*
 * Which of two equal devices comes first is a matter of rounding, so devices are compared by their
 * loads.
 */
static void test_pack(void **state)
{
    (void)state;
    static problem p;
    ek_rng rng;
    ek_rng_init(&rng, 22);
    for (int32_t round = 0; round < 60; round++) {
        int32_t n_devices = 1 + (int32_t)ek_rng_below(&rng, DEVICES_MAX - 1);
        int32_t n = n_devices + (int32_t)ek_rng_below(&rng, 200), plain[SLOTS_MAX];
        ek_arena arena = ek_fixture_arena(ek_place_core_bytes(n, SLOTS_MAX, n_devices));
        setup(&p, &rng, 5, n, n_devices, arena);
        ek_place_counts(&p.core, 0.0f, p.scratch);
        if (!ek_place_pack(&p.core, p.scratch)) {
            ek_fixture_arena_free(arena.beg); /* room ran out: put right by a repair */
            continue;
        }
        pack_plainly(&p.core, plain);
        double busiest = 0.0;
        for (int32_t d = 0; d < n_devices; d++) {
            double load = 0.0, plain_load = 0.0;
            for (int32_t s = p.slot_beg[d]; s < p.slot_beg[d + 1]; s++) {
                int32_t e = p.core.slot_expert[s];
                load += e >= 0 ? p.core.replica_load[e] : 0.0;
                plain_load += plain[s] >= 0 ? p.core.replica_load[plain[s]] : 0.0;
            }
            assert_true(fabs(load - p.core.device_load[d]) < 1e-9 * p.core.mean);
            assert_true(fabs(load - plain_load) < 1e-9 * p.core.mean);
            busiest = fmax(busiest, load);
        }
        assert_true(fabs(busiest - ek_place_busiest(&p.core, NULL)) < 1e-9 * p.core.mean);
        ek_fixture_arena_free(arena.beg);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sort),
        cmocka_unit_test(test_pack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
