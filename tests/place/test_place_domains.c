/*
 * Goal: nodes and racks are what the topology says, hot experts lie on two of them when asked and
 * stay there, what moves is counted by how far it travels, and without such wishes racks change
 * nothing. Method: small cases worked out by hand; random topologies against a naive count.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "place/inputs.h"
#include "place/rebalance.h"
#include "support/fixtures.h"

enum { SLOTS_MAX = 1024, MOVES_MAX = 2 * SLOTS_MAX, N_RANDOM = 400 };

/* Five devices on three nodes of two racks, none of them in order. */
static const int32_t device_node[5] = {2, 0, 1, 0, 2};
static const int32_t node_rack[3] = {1, 0, 1};
static const ek_place_topology uneven = {
    .n_experts = 4,
    .n_slots = 10,
    .n_devices = 5,
    .n_nodes = 3,
    .n_groups = 1,
    .n_racks = 2,
    .device_node = device_node,
    .node_rack = node_rack,
};

static ek_place_balance solve(const ek_place_topology *t, const ek_place_params *params,
                              const double *loads, int32_t *slot_expert)
{
    ek_place_balance balance;
    ek_place_hint hint = {0};
    ek_arena scratch = ek_fixture_arena(ek_place_scratch_bytes(t));
    assert_int_equal(ek_place_layer(t, params, loads, &hint, scratch, slot_expert, &balance),
                     EK_OK);
    ek_fixture_arena_free(scratch.beg);
    return balance;
}

static int32_t naive_domain(const ek_place_topology *t, ek_place_domain domain, int32_t device)
{
    int32_t node = t->device_node ? t->device_node[device] : device / (t->n_devices / t->n_nodes);
    if (domain == EK_PLACE_NODE) return node;
    int32_t n_racks = t->n_racks > 1 ? t->n_racks : 1;
    return t->node_rack ? t->node_rack[node] : node / (t->n_nodes / n_racks);
}

/* Whether an expert has live replicas on two domains. */
static bool is_spread(const ek_place_topology *t, ek_place_domain domain, const int32_t *slots,
                      int32_t expert)
{
    int32_t first = -1;
    for (int32_t d = 0, s = 0; d < t->n_devices; d++) {
        int32_t n = t->device_slots ? t->device_slots[d] : t->n_slots / t->n_devices;
        for (int32_t end = s + n; s < end; s++) {
            if (slots[s] != expert || (t->device_dead && t->device_dead[d])) continue;
            int32_t here = naive_domain(t, domain, d);
            if (first >= 0 && here != first) return true;
            first = here;
        }
    }
    return false;
}

/* The n hottest experts, lower id first where loads are equal. */
static void hottest(const double *loads, int32_t n_experts, int32_t n, int32_t *out)
{
    bool taken[512] = {false};
    for (int32_t i = 0; i < n; i++) {
        int32_t most = -1;
        for (int32_t e = 0; e < n_experts; e++)
            if (!taken[e] && (most < 0 || loads[e] > loads[most])) most = e;
        taken[most] = true;
        out[i] = most;
    }
}

static int32_t naive_together(const ek_place_topology *t, const ek_place_params *params,
                              const double *loads, const int32_t *slots)
{
    int32_t hot[512], n_together = 0;
    int32_t n = params->spread_hottest < t->n_experts ? params->spread_hottest : t->n_experts;
    hottest(loads, t->n_experts, n, hot);
    for (int32_t i = 0; i < n; i++)
        n_together += !is_spread(t, params->spread_over, slots, hot[i]);
    return n_together;
}

static void test_distances(void **state)
{
    (void)state;
    static const ek_place_distance expected[5][5] = {
        {EK_PLACE_SAME_DEVICE, EK_PLACE_SAME_RACK, EK_PLACE_ACROSS_RACKS, EK_PLACE_SAME_RACK,
         EK_PLACE_SAME_NODE},
        {EK_PLACE_SAME_RACK, EK_PLACE_SAME_DEVICE, EK_PLACE_ACROSS_RACKS, EK_PLACE_SAME_NODE,
         EK_PLACE_SAME_RACK},
        {EK_PLACE_ACROSS_RACKS, EK_PLACE_ACROSS_RACKS, EK_PLACE_SAME_DEVICE, EK_PLACE_ACROSS_RACKS,
         EK_PLACE_ACROSS_RACKS},
        {EK_PLACE_SAME_RACK, EK_PLACE_SAME_NODE, EK_PLACE_ACROSS_RACKS, EK_PLACE_SAME_DEVICE,
         EK_PLACE_SAME_RACK},
        {EK_PLACE_SAME_NODE, EK_PLACE_SAME_RACK, EK_PLACE_ACROSS_RACKS, EK_PLACE_SAME_RACK,
         EK_PLACE_SAME_DEVICE},
    };
    for (int32_t a = 0; a < 5; a++)
        for (int32_t b = 0; b < 5; b++)
            assert_int_equal(ek_place_distance_of(&uneven, a, b), expected[a][b]);
    const ek_place_topology even = {.n_devices = 8, .n_nodes = 4, .n_racks = 2};
    assert_int_equal(ek_place_distance_of(&even, 0, 1), EK_PLACE_SAME_NODE);
    assert_int_equal(ek_place_distance_of(&even, 1, 2), EK_PLACE_SAME_RACK);
    assert_int_equal(ek_place_distance_of(&even, 3, 4), EK_PLACE_ACROSS_RACKS);
    const ek_place_topology one_rack = {.n_devices = 8, .n_nodes = 4};
    assert_int_equal(ek_place_distance_of(&one_rack, 3, 4), EK_PLACE_SAME_RACK);
}

/* Slots of devices 0 to 4 in pairs; what is nearest follows from the table above. */
static void test_sources(void **state)
{
    (void)state;
    const int32_t slots[10] = {0, 1, 1, -1, 2, -1, 2, 3, -1, 3};
    ek_place_distance distance;
    assert_int_equal(ek_place_source(&uneven, slots, 8, 0, &distance), 0); /* node 2 */
    assert_int_equal(distance, EK_PLACE_SAME_NODE);
    assert_int_equal(ek_place_source(&uneven, slots, 8, 1, &distance), 1); /* not slot 2 */
    assert_int_equal(distance, EK_PLACE_SAME_NODE);
    assert_int_equal(ek_place_source(&uneven, slots, 8, 2, &distance), 6); /* the same rack */
    assert_int_equal(distance, EK_PLACE_SAME_RACK);
    assert_int_equal(ek_place_source(&uneven, slots, 5, 0, &distance), 0);
    assert_int_equal(distance, EK_PLACE_ACROSS_RACKS);
    assert_int_equal(ek_place_source(&uneven, slots, 8, 3, &distance), 9);
    assert_int_equal(distance, EK_PLACE_SAME_DEVICE);

    const bool dead[5] = {true, false, false, false, false};
    ek_place_topology t = uneven;
    t.device_dead = dead;
    assert_int_equal(ek_place_source(&t, slots, 8, 0, &distance), -1);
    assert_int_equal(distance, EK_PLACE_FROM_STORAGE);
    assert_int_equal(ek_place_source(&t, slots, 8, 1, NULL), 2);
}

static void test_moves_are_counted(void **state)
{
    (void)state;
    int32_t slots[10] = {0, 1, 1, -1, 2, -1, 2, 3, -1, 3};
    const ek_place_move moves[] = {
        {8, 0, -1, -1},            /* a copy, from device 0 of the same node */
        {5, 0, -1, -1},            /* across racks: 0 is on node 2 only */
        {4, 1, 2, 2},              /* a swap of devices 2 and 1; 2 is on device 1's node, too */
        {3, 2, 2, EK_PLACE_EMPTY}, /* moved over, on its device */
    };
    const int32_t after[10] = {0, 1, -1, 2, 1, 0, 2, 3, 0, 3};
    int64_t n[EK_PLACE_N_DISTANCES] = {0};
    ek_place_moves_apply(&uneven, moves, (int32_t)EK_COUNT_OF(moves), slots, n);
    assert_memory_equal(slots, after, sizeof after);
    assert_int_equal(n[EK_PLACE_SAME_DEVICE], 1);
    assert_int_equal(n[EK_PLACE_SAME_NODE], 2);
    assert_int_equal(n[EK_PLACE_SAME_RACK], 0);
    assert_int_equal(n[EK_PLACE_ACROSS_RACKS], 2);
    assert_int_equal(n[EK_PLACE_FROM_STORAGE], 0);
}

/*
 * Two racks of two nodes, a device each; two hot experts of six, eight slots. Balance alone would
 * leave the spares with expert 0; asked for both, each has two, on different racks.
 */
static void test_spread_by_hand(void **state)
{
    (void)state;
    const ek_place_topology t = {
        .n_experts = 6, .n_slots = 8, .n_devices = 4, .n_nodes = 4, .n_groups = 1, .n_racks = 2};
    const double loads[6] = {60, 12, 10, 10, 10, 10};
    ek_place_params params;
    int32_t slots[8], n_replicas[6] = {0};
    ek_place_params_default(&params);
    ek_place_balance free_choice = solve(&t, &params, loads, slots);
    assert_int_equal(free_choice.n_together, 0); /* nobody asked */
    assert_false(is_spread(&t, EK_PLACE_RACK, slots, 1));

    params.spread_hottest = 2;
    params.spread_over = EK_PLACE_RACK;
    ek_place_balance balance = solve(&t, &params, loads, slots);
    for (int32_t s = 0; s < 8; s++)
        n_replicas[slots[s]]++;
    assert_int_equal(balance.n_together, 0);
    assert_int_equal(balance.n_duplicates, 0);
    assert_true(is_spread(&t, EK_PLACE_RACK, slots, 0));
    assert_true(is_spread(&t, EK_PLACE_RACK, slots, 1));
    assert_int_equal(n_replicas[0], 2);
    assert_int_equal(n_replicas[1], 2);
    /* 30 + 6 on both, beside 20 and 20; or 30 + 10 where the sixes lie apart: 40 of 28 at most. */
    assert_true(balance.max_over_mean <= 40.0 / 28.0 + 1e-9);

    ek_place_topology short_of_slots = t;
    const int32_t device_slots[4] = {2, 2, 2, 1};
    short_of_slots.n_slots = 7;
    short_of_slots.device_slots = device_slots;
    balance = solve(&short_of_slots, &params, loads, slots);
    assert_int_equal(balance.n_together, 1); /* one spare slot, which one of the two gets */

    ek_place_topology grouped = t;
    grouped.n_groups = grouped.n_nodes = 2;
    grouped.n_racks = 1;
    assert_int_equal(solve(&grouped, &params, loads, slots).n_together, 2);
}

/* A placement of before: expert 0 on one rack, and a spare that is better used for it. */
static void test_rebalance_spreads_by_hand(void **state)
{
    (void)state;
    const ek_place_topology t = {
        .n_experts = 4, .n_slots = 6, .n_devices = 2, .n_nodes = 2, .n_groups = 1, .n_racks = 2};
    const double loads[4] = {40, 10, 10, 10};
    const ek_place_move_params params = {
        .target = 1e9, .max_moves = 6, .spread_hottest = 1, .spread_over = EK_PLACE_RACK};
    int32_t slots[6] = {0, 1, 2, 1, 2, 3}, n_steps, n_replicas;
    ek_place_move moves[13];
    ek_place_balance balance;
    ek_arena scratch = ek_fixture_arena(ek_place_rebalance_bytes(&t));
    assert_int_equal(ek_place_rebalance(&t, &params, loads, scratch, slots, moves, &n_steps,
                                        &n_replicas, &balance),
                     EK_OK);
    ek_fixture_arena_free(scratch.beg);
    assert_int_equal(n_steps, 1);
    assert_int_equal(n_replicas, 1);
    assert_int_equal(moves[0].expert, 0);
    assert_in_range(moves[0].slot, 3, 4); /* not 3's only replica */
    assert_int_equal(balance.n_together, 0);
    assert_true(is_spread(&t, EK_PLACE_RACK, slots, 0));
}

/* Nothing asked for: racks, and nodes of any size, are only names. */
static void test_racks_change_nothing(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 41);
    for (int32_t i = 0; i < N_RANDOM; i++) {
        ek_place_random problem;
        ek_place_params params;
        int32_t with[SLOTS_MAX], without[SLOTS_MAX];
        ek_place_input_random(&rng, &problem);
        const ek_place_topology before = problem.topology;
        ek_place_input_racks(&rng, &problem);
        ek_place_params_default(&params);
        params.mode = i % 2 ? EK_PLACE_BEST : EK_PLACE_QUICK;
        ek_place_balance a = solve(&before, &params, problem.loads, without);
        ek_place_balance b = solve(&problem.topology, &params, problem.loads, with);
        assert_memory_equal(with, without, (size_t)before.n_slots * sizeof *with);
        assert_true(b.max_over_mean <= a.max_over_mean);
        assert_true(b.max_over_mean >= b.lower_bound - 1e-9);
    }
}

/* What was asked for is there wherever there is room, and the balance says where there is not. */
static void test_random_spread(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 42);
    int32_t n_asked = 0, n_together = 0, n_roomy = 0;
    for (int32_t i = 0; i < N_RANDOM; i++) {
        ek_place_random problem;
        ek_place_params params;
        int32_t slots[SLOTS_MAX];
        ek_place_input_random(&rng, &problem);
        ek_place_topology *t = &problem.topology;
        if (t->n_groups > 1 || t->n_nodes == 1) continue;
        ek_place_input_racks(&rng, &problem);
        ek_place_params_default(&params);
        params.mode = i % 2 ? EK_PLACE_BEST : EK_PLACE_QUICK;
        params.spread_hottest = 1 + i % 6;
        params.spread_over = t->n_racks > 1 && i % 4 < 3 ? EK_PLACE_RACK : EK_PLACE_NODE;
        memset(problem.device_dead, 0, sizeof problem.device_dead);
        ek_place_balance balance = solve(t, &params, problem.loads, slots);
        ek_place_input_check(t, slots);
        assert_int_equal(balance.n_together, naive_together(t, &params, problem.loads, slots));
        assert_int_equal(balance.n_duplicates, ek_place_input_duplicates(t, slots));
        n_asked += params.spread_hottest;
        n_together += balance.n_together;
        if (t->n_slots - t->n_experts < params.spread_hottest) continue;
        n_roomy++;
        assert_int_equal(balance.n_together, 0);
    }
    print_message("%d experts asked for, %d together; %d problems with spares for all\n", n_asked,
                  n_together, n_roomy);
    assert_true(n_roomy > N_RANDOM / 4);
}

/* After every step of a rebalance, who was on two domains before is so still. */
static void test_random_rebalance_keeps_spread(void **state)
{
    (void)state;
    static ek_place_move moves[MOVES_MAX + 1];
    ek_rng rng;
    ek_rng_init(&rng, 43);
    int32_t n_steps_seen = 0, n_mended = 0;
    for (int32_t i = 0; i < N_RANDOM; i++) {
        ek_place_random problem;
        ek_place_params params;
        int32_t slots[SLOTS_MAX], at[SLOTS_MAX], hot[8], n_steps, n_replicas;
        int64_t n_by_distance[EK_PLACE_N_DISTANCES] = {0};
        ek_place_balance balance;
        ek_place_input_random(&rng, &problem);
        ek_place_topology *t = &problem.topology;
        if (t->n_groups > 1 || t->n_nodes == 1) continue;
        ek_place_input_racks(&rng, &problem);
        memset(problem.device_dead, 0, sizeof problem.device_dead);
        ek_place_params_default(&params);
        (void)solve(t, &params, problem.loads, slots);
        memcpy(at, slots, sizeof at);
        for (int32_t e = 0; e < t->n_experts; e++) /* other experts are hot now */
            problem.loads[e] = 1.0 + (double)ek_rng_below(&rng, 1000);
        const ek_place_move_params wish = {
            .target = 1.05,
            .max_moves = t->n_slots,
            .spread_hottest = t->n_experts < 5 ? t->n_experts : 5,
            .spread_over = i % 2 ? EK_PLACE_RACK : EK_PLACE_NODE,
        };
        params.spread_hottest = wish.spread_hottest;
        params.spread_over = wish.spread_over;
        int32_t n_before = naive_together(t, &params, problem.loads, slots);
        ek_arena scratch = ek_fixture_arena(ek_place_rebalance_bytes(t));
        assert_int_equal(ek_place_rebalance(t, &wish, problem.loads, scratch, slots, moves,
                                            &n_steps, &n_replicas, &balance),
                         EK_OK);
        ek_fixture_arena_free(scratch.beg);
        ek_place_input_check(t, slots);
        assert_int_equal(balance.n_together, naive_together(t, &params, problem.loads, slots));
        assert_true(balance.n_together <= n_before);
        n_mended += n_before - balance.n_together;
        hottest(problem.loads, t->n_experts, wish.spread_hottest, hot);
        for (int32_t k = 0; k < n_steps; k++) {
            bool before[8];
            for (int32_t h = 0; h < wish.spread_hottest; h++)
                before[h] = is_spread(t, wish.spread_over, at, hot[h]);
            ek_place_moves_apply(t, &moves[k], 1, at, n_by_distance);
            for (int32_t h = 0; h < wish.spread_hottest; h++)
                assert_true(!before[h] || is_spread(t, wish.spread_over, at, hot[h]));
        }
        assert_memory_equal(at, slots, (size_t)t->n_slots * sizeof *at);
        int64_t n_travelled = 0;
        for (int32_t distance = 0; distance < EK_PLACE_N_DISTANCES; distance++)
            n_travelled += n_by_distance[distance];
        assert_int_equal(n_travelled, n_replicas);
        n_steps_seen += n_steps;
    }
    print_message("%d steps, %d experts put on two domains\n", n_steps_seen, n_mended);
    assert_true(n_steps_seen > 1000 && n_mended > 100);
}

/* Groups on nodes of different sizes: each on one node, and the bound is the largest node's. */
static void test_groups_on_uneven_nodes(void **state)
{
    (void)state;
    const int32_t nodes[6] = {0, 0, 0, 0, 1, 1};
    const ek_place_topology t = {.n_experts = 8,
                                 .n_slots = 18,
                                 .n_devices = 6,
                                 .n_nodes = 2,
                                 .n_groups = 2,
                                 .device_node = nodes};
    const double loads[8] = {5, 5, 5, 5, 10, 10, 10, 10};
    ek_place_params params;
    int32_t slots[18];
    ek_place_params_default(&params);
    ek_place_balance balance = solve(&t, &params, loads, slots);
    ek_place_input_check(&t, slots);
    for (int32_t s = 0; s < 18; s++)
        assert_true(slots[s] < 0 ||
                    (slots[s] >= 4) == (s < 12));         /* the heavy group: four devices */
    assert_float_equal(balance.max_over_mean, 1.0, 1e-9); /* 40 on four, 20 on two */
    assert_float_equal(balance.lower_bound, 1.0, 1e-9);
}

static void check_refused(ek_place_topology t, const char *word)
{
    ek_place_params params;
    ek_err err;
    ek_place_params_default(&params);
    assert_int_equal(ek_place_check(&t, &params, &err), EK_EINVAL);
    if (!strstr(err.text, word)) fail_msg("'%s' does not speak of %s", err.text, word);
}

static void test_refused(void **state)
{
    (void)state;
    const int32_t bad_node[5] = {0, 1, 2, 3, 0}, no_member[5] = {0, 0, 2, 2, 2};
    const int32_t bad_rack[3] = {0, -1, 1}, empty_rack[3] = {0, 0, 0};
    ek_place_topology t = uneven;
    t.device_node = bad_node;
    check_refused(t, "device 3 is in node 3 of 3");
    t = uneven;
    t.device_node = no_member;
    check_refused(t, "node 1 has no device");
    t = uneven;
    t.node_rack = bad_rack;
    check_refused(t, "node 1 is in rack -1 of 2");
    t = uneven;
    t.node_rack = empty_rack;
    check_refused(t, "rack 1 has no node");
    t = uneven;
    t.node_rack = NULL;
    check_refused(t, "3 nodes do not divide evenly over 2 racks");
    t = uneven;
    t.n_racks = 4;
    check_refused(t, "number of racks 4 is outside 1..3");
    t = uneven;
    t.n_nodes = 6;
    check_refused(t, "number of nodes 6 is outside 1..5");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_distances),
        cmocka_unit_test(test_sources),
        cmocka_unit_test(test_moves_are_counted),
        cmocka_unit_test(test_spread_by_hand),
        cmocka_unit_test(test_rebalance_spreads_by_hand),
        cmocka_unit_test(test_racks_change_nothing),
        cmocka_unit_test(test_random_spread),
        cmocka_unit_test(test_random_rebalance_keeps_spread),
        cmocka_unit_test(test_groups_on_uneven_nodes),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
