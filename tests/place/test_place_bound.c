/*
 * Goal: no placement is below the bounds, and the tight one is where a small node's best placement
 * is. Method: cases by hand; tiny nodes against every placement there is; random problems against
 * what the solver finds.
 */
#include <float.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "place/inputs.h"
#include "place/place.h"
#include "support/fixtures.h"

enum { N_TINY = 400, N_RANDOM = 200 };

static void assert_near(double got, double expected)
{
    if (fabs(got - expected) > 1e-12 * fmax(1.0, fabs(expected)))
        fail_msg("%.17g is not %.17g", got, expected);
}

/*
 * Two nodes of two devices. On the first, three experts of 10: with a spare slot 15 each, without
 * one two of them meet, 20. The second node has nothing to do.
 */
static void test_by_hand(void **state)
{
    (void)state;
    ek_place_topology t = {
        .n_experts = 6, .n_slots = 8, .n_devices = 4, .n_nodes = 2, .n_groups = 2};
    const double loads[6] = {10, 10, 10, 0, 0, 0};
    const double mean = 30.0 / 4.0;
    assert_near(ek_place_lower_bound(&t, loads), 15.0 / mean);
    /* One spare slot: one of them is cut, and each device has one and a half. */
    assert_near(ek_place_tight_bound(&t, loads, 0.0), 15.0 / mean);
    const int32_t slots[4] = {2, 1, 2, 1};
    t.n_slots = 6;
    t.device_slots = slots;
    assert_near(ek_place_tight_bound(&t, loads, 0.0), 20.0 / mean);
    assert_near(ek_place_tight_bound(&t, loads, 20.0 / mean), 20.0 / mean);

    /*
     * Six experts in six slots of three devices: beside 12 lies another one, the lightest at best.
     */
    const double crowded[12] = {4, 12, 1, 4, 4, 1, 0, 0, 0, 0, 0, 0};
    t = (ek_place_topology){
        .n_experts = 12, .n_slots = 12, .n_devices = 6, .n_nodes = 2, .n_groups = 2};
    assert_near(ek_place_lower_bound(&t, crowded), 12.0 / (26.0 / 6.0));
    assert_near(ek_place_tight_bound(&t, crowded, 0.0), 13.0 / (26.0 / 6.0));
    /* Three spare slots: 12 is cut in three, each beside a 4, and one of these has a 1 as well. */
    t.n_slots = 18;
    assert_near(ek_place_tight_bound(&t, crowded, 0.0), 9.0 / (26.0 / 6.0));
}

/* Elsewhere it is the other bound. */
static void test_without_nodes(void **state)
{
    (void)state;
    ek_place_topology t = {
        .n_experts = 3, .n_slots = 4, .n_devices = 2, .n_nodes = 1, .n_groups = 1};
    const double loads[3] = {8, 3, 3}, none[3] = {0};
    assert_near(ek_place_tight_bound(&t, loads, 0.0), ek_place_lower_bound(&t, loads));
    t.n_experts = 2;
    t.n_nodes = t.n_groups = 2;
    assert_near(ek_place_tight_bound(&t, none, 0.0), 1.0);
}

/* One node's devices, slots and experts, small enough to try everything. */
typedef struct tiny {
    int32_t n_devices, n_per_device, n_experts;
    double load[5];
    int32_t slot[6]; /* -1: empty */
    double least;
} tiny;

static void weigh(tiny *t)
{
    int32_t count[5] = {0};
    double busiest = 0.0;
    for (int32_t s = 0; s < t->n_devices * t->n_per_device; s++)
        if (t->slot[s] >= 0) count[t->slot[s]]++;
    for (int32_t e = 0; e < t->n_experts; e++)
        if (count[e] == 0) return;
    for (int32_t d = 0; d < t->n_devices; d++) {
        double load = 0.0;
        uint32_t held = 0;
        for (int32_t s = d * t->n_per_device; s < (d + 1) * t->n_per_device; s++) {
            int32_t e = t->slot[s];
            if (e < 0) continue;
            if (held >> e & 1) return; /* twice on a device */
            held |= UINT32_C(1) << e;
            load += t->load[e] / count[e];
        }
        busiest = fmax(busiest, load);
    }
    t->least = fmin(t->least, busiest);
}

static void try_everything(tiny *t)
{
    int32_t n_slots = t->n_devices * t->n_per_device, s = 0;
    for (int32_t i = 0; i < n_slots; i++)
        t->slot[i] = -1;
    t->least = INFINITY;
    while (s < n_slots) {
        weigh(t);
        for (s = 0; s < n_slots && ++t->slot[s] == t->n_experts; s++)
            t->slot[s] = -1;
    }
}

static void test_every_placement_of_tiny_nodes(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 17);
    int32_t n_exact = 0, n_better = 0;
    for (int32_t i = 0; i < N_TINY; i++) {
        tiny n = {.n_devices = 2 + i % 2, .n_per_device = i % 2 ? 2 : 1 + i / 2 % 3};
        int32_t n_slots = n.n_devices * n.n_per_device;
        n.n_experts = 1 + (int32_t)ek_rng_below(&rng, (uint64_t)(n_slots < 5 ? n_slots : 5));
        double loads[10] = {0}, total = 0.0;
        for (int32_t e = 0; e < n.n_experts; e++) {
            n.load[e] = loads[e] = (double)(1 + ek_rng_below(&rng, 30));
            total += loads[e];
        }
        try_everything(&n);
        /* The other node's experts weigh nothing. */
        const ek_place_topology t = {.n_experts = 2 * n.n_experts,
                                     .n_slots = 2 * n_slots,
                                     .n_devices = 2 * n.n_devices,
                                     .n_nodes = 2,
                                     .n_groups = 2};
        double mean = total / t.n_devices, best = n.least / mean;
        double lower = ek_place_lower_bound(&t, loads),
               tight = ek_place_tight_bound(&t, loads, 0.0);
        assert_true(lower <= best * (1 + 1e-12));
        assert_true(tight <= best * (1 + 1e-12) && tight >= lower);
        assert_near(ek_place_tight_bound(&t, loads, best), tight);
        n_exact += tight >= best * (1 - 1e-12);
        n_better += tight > lower * (1 + 1e-12);
    }
    print_message("tight: exact in %d of %d, above the other bound in %d\n", n_exact, N_TINY,
                  n_better);
    assert_true(n_exact > N_TINY * 9 / 10 && n_better > N_TINY / 4);
}

/* Bounds are below what the solver finds, on nodes of any size, with and without a hint. */
static void test_random_nodes(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 18);
    int32_t n_seen = 0;
    for (int32_t i = 0; n_seen < N_RANDOM; i++) {
        ek_place_random problem;
        ek_place_params params;
        ek_place_hint hint = {0};
        ek_place_balance balance;
        int32_t slots[1024];
        ek_place_input_random(&rng, &problem);
        const ek_place_topology *t = &problem.topology;
        if (t->n_nodes == 1 || t->n_groups != t->n_nodes) continue;
        n_seen++;
        ek_place_params_default(&params);
        ek_arena scratch = ek_fixture_arena(ek_place_scratch_bytes(t));
        assert_int_equal(ek_place_layer(t, &params, problem.loads, &hint, scratch, slots, &balance),
                         EK_OK);
        ek_fixture_arena_free(scratch.beg);
        if (balance.n_duplicates > 0) continue; /* bounds are for placements without */
        double tight = ek_place_tight_bound(t, problem.loads, 0.0);
        double known = ek_place_tight_bound(t, problem.loads, balance.max_over_mean);
        assert_true(tight >= balance.lower_bound - 1e-12);
        assert_true(tight <= balance.max_over_mean * (1 + 1e-9));
        assert_true(known >= tight - 1e-9 && known <= balance.max_over_mean * (1 + 1e-9));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_without_nodes),
        cmocka_unit_test(test_every_placement_of_tiny_nodes),
        cmocka_unit_test(test_random_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
