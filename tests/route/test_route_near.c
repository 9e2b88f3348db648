/*
 * Goal: tokens go to near replicas as far as quotas allow, and quotas are kept to the token.
 * Method: a case worked out by hand; small random ones against the best of all ways to hand
 * replicas out.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "route/near.h"
#include "support/fixtures.h"

enum { IDS_MAX = 8, SLOTS_MAX = 16, N_RANDOM = 3000 };

typedef struct problem {
    ek_route_replicas replicas;
    int32_t slot_beg[9], slot_expert[SLOTS_MAX], device_node[8], node_rack[8];
    int32_t quota[SLOTS_MAX];
    uint16_t expert_id[IDS_MAX], home[IDS_MAX];
    int32_t n_ids;
    void *memory;
} problem;

static void open_problem(problem *p, int32_t n_experts, int32_t n_devices)
{
    ek_arena perm = ek_fixture_arena(4096);
    p->memory = perm.beg;
    assert_int_equal(ek_route_replicas_build(p->slot_expert, p->slot_beg, n_experts, n_devices,
                                             &perm, &p->replicas, NULL),
                     EK_OK);
}

static void assign(const problem *p, uint16_t *out_slot, int64_t out_n[EK_ROUTE_N_DISTANCES])
{
    const ek_route_map map = {p->device_node, p->node_rack};
    ek_arena scratch = ek_fixture_arena(ek_route_near_bytes(&p->replicas, p->n_ids));
    assert_int_equal(ek_route_assign_near(&p->replicas, &map, p->quota, p->expert_id, p->home,
                                          p->n_ids, scratch, out_slot, out_n),
                     EK_OK);
    ek_arena less = scratch;
    less.end = less.beg + 16;
    assert_int_equal(ek_route_assign_near(&p->replicas, &map, p->quota, p->expert_id, p->home,
                                          p->n_ids, less, out_slot, out_n),
                     EK_ENOMEM);
    ek_fixture_arena_free(scratch.beg);
}

static int distance(const problem *p, int32_t a, int32_t b)
{
    int32_t node_a = p->device_node[a], node_b = p->device_node[b];
    if (a == b) return EK_ROUTE_SAME_DEVICE;
    if (node_a == node_b) return EK_ROUTE_SAME_NODE;
    return p->node_rack[node_a] == p->node_rack[node_b] ? EK_ROUTE_SAME_RACK
                                                        : EK_ROUTE_ACROSS_RACKS;
}

/*
 * One expert on devices 0 (node 0), 2 (node 1, the same rack) and 4 (another rack), two tokens
 * each. Homes 4, 1, 0, 2, 5, 3: the tokens of 0, 2 and 4 stay, 1 goes to 0 on its node, 5 to 4 on
 * its node, 3 to 2 on its node.
 */
static void test_by_hand(void **state)
{
    (void)state;
    problem p = {
        .slot_beg = {0, 1, 2, 3, 4, 5, 6},
        .slot_expert = {0, -1, 0, -1, 0, -1},
        .device_node = {0, 0, 1, 1, 2, 2},
        .node_rack = {0, 0, 1},
        .quota = {2, 2, 2},
        .home = {4, 1, 0, 2, 5, 3},
        .n_ids = 6,
    };
    const uint16_t expected[6] = {4, 0, 0, 2, 4, 2};
    uint16_t slot[6];
    int64_t n[EK_ROUTE_N_DISTANCES];
    open_problem(&p, 1, 6);
    assign(&p, slot, n);
    assert_memory_equal(slot, expected, sizeof expected);
    assert_int_equal(n[EK_ROUTE_SAME_DEVICE], 3);
    assert_int_equal(n[EK_ROUTE_SAME_NODE], 3);

    /* All at home on device 0: two stay, two go to the next node, two to the other rack. */
    memset(p.home, 0, sizeof p.home);
    assign(&p, slot, n);
    const int64_t all_from_one[EK_ROUTE_N_DISTANCES] = {2, 0, 2, 2};
    assert_memory_equal(n, all_from_one, sizeof n);
    ek_fixture_arena_free(p.memory);
}

/* Fewest that leave their device, of those fewest that leave their node, and so on: all tried. */
static void try_all(const problem *p, int32_t id, int32_t *left, int64_t *n, int64_t *best)
{
    if (id == p->n_ids) {
        for (int level = EK_ROUTE_ACROSS_RACKS; level > 0; level--) {
            /* Compared from the furthest down: by the argument, one order is best at all levels. */
            if (n[level] == best[level]) continue;
            if (n[level] < best[level]) memcpy(best, n, EK_ROUTE_N_DISTANCES * sizeof *n);
            return;
        }
        return;
    }
    int32_t e = p->expert_id[id];
    for (int32_t k = p->replicas.beg[e]; k < p->replicas.beg[e + 1]; k++) {
        int level = distance(p, p->home[id], p->replicas.device[k]);
        if (left[k] == 0) continue;
        left[k]--;
        n[level]++;
        try_all(p, id + 1, left, n, best);
        n[level]--;
        left[k]++;
    }
}

static void random_problem(ek_rng *rng, problem *p)
{
    int32_t n_devices = 2 + (int32_t)ek_rng_below(rng, 6), n_experts = 2;
    memset(p, 0, sizeof *p);
    for (int32_t d = 0; d < n_devices; d++) {
        p->slot_beg[d + 1] = 2 * (d + 1);
        p->device_node[d] = d / 2;
        p->node_rack[d / 2] = d / 4;
        for (int32_t e = 0; e < n_experts; e++)
            p->slot_expert[2 * d + e] = d == 0 || ek_rng_below(rng, 2) ? e : -1;
    }
    open_problem(p, n_experts, n_devices);
    p->n_ids = 1 + (int32_t)ek_rng_below(rng, IDS_MAX);
    for (int32_t i = 0; i < p->n_ids; i++) {
        int32_t e = (int32_t)ek_rng_below(rng, (uint64_t)n_experts);
        int32_t n = p->replicas.beg[e + 1] - p->replicas.beg[e];
        p->expert_id[i] = (uint16_t)e;
        p->home[i] = (uint16_t)ek_rng_below(rng, (uint64_t)n_devices);
        p->quota[p->replicas.beg[e] + (int32_t)ek_rng_below(rng, (uint64_t)n)]++;
    }
}

static void test_as_near_as_can_be(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 9);
    int64_t n_far = 0;
    for (int32_t round = 0; round < N_RANDOM; round++) {
        static problem p;
        uint16_t slot[IDS_MAX];
        int32_t left[SLOTS_MAX], used[SLOTS_MAX] = {0};
        int64_t n[EK_ROUTE_N_DISTANCES], counted[EK_ROUTE_N_DISTANCES] = {0};
        int64_t none[EK_ROUTE_N_DISTANCES] = {0};
        int64_t best[EK_ROUTE_N_DISTANCES] = {0, INT32_MAX, INT32_MAX, INT32_MAX};
        random_problem(&rng, &p);
        assign(&p, slot, n);
        for (int32_t i = 0; i < p.n_ids; i++) {
            assert_int_equal(p.slot_expert[slot[i]], p.expert_id[i]);
            counted[distance(&p, p.home[i], slot[i] / 2)]++;
            used[slot[i]]++;
        }
        for (int32_t k = 0; k < p.replicas.beg[p.replicas.n_experts]; k++)
            assert_int_equal(used[p.replicas.slot[k]], p.quota[k]);
        assert_memory_equal(n, counted, sizeof n);
        memcpy(left, p.quota, sizeof left);
        try_all(&p, 0, left, none, best);
        for (int level = EK_ROUTE_SAME_NODE; level < EK_ROUTE_N_DISTANCES; level++)
            assert_int_equal(n[level], best[level]);
        n_far += n[EK_ROUTE_ACROSS_RACKS];
        ek_fixture_arena_free(p.memory);
    }
    assert_true(n_far > 100);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_as_near_as_can_be),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
