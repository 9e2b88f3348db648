/*
 * Splitting batches over replicas: conservation, and that the busiest device is as light as any
 * split in whole tokens could make it - checked against a flow argument made independently here,
 * and against the LP optimum that ../shared gives for real batches.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "route/split.h"
#include "support/fixtures.h"

#define EXPERTS_MAX 384
#define SLOTS_MAX   512
#define DEVICES_MAX 64

typedef struct problem {
    ek_route_replicas replicas;
    int32_t slot_expert[SLOTS_MAX];
    int32_t slot_beg[DEVICES_MAX + 1];
    int32_t tokens[EXPERTS_MAX];
    int32_t quota[SLOTS_MAX];
    int32_t device[DEVICES_MAX];
} problem;

static void build(problem *p, int32_t n_experts, int32_t n_devices, ek_arena *arena)
{
    ek_err err;
    if (ek_route_replicas_build(p->slot_expert, p->slot_beg, n_experts, n_devices, arena,
                                &p->replicas, &err) != EK_OK)
        fail_msg("%s", err.text);
}

static void split(problem *p)
{
    ek_arena scratch = ek_fixture_arena(ek_route_split_bytes(&p->replicas));
    assert_int_equal(ek_route_split(&p->replicas, p->tokens, scratch, p->quota, p->device), EK_OK);
    ek_fixture_arena_free(scratch.beg);
}

/* Quotas add up to the tokens, devices to the quotas. @return the busiest device's load */
static int32_t check_sums(const problem *p)
{
    const ek_route_replicas *r = &p->replicas;
    int32_t device[DEVICES_MAX] = {0}, busiest = 0;
    for (int32_t e = 0; e < r->n_experts; e++) {
        int32_t sum = 0;
        for (int32_t i = r->beg[e]; i < r->beg[e + 1]; i++) {
            assert_true(p->quota[i] >= 0);
            sum += p->quota[i];
            device[r->device[i]] += p->quota[i];
        }
        assert_int_equal(sum, p->tokens[e]);
    }
    assert_memory_equal(device, p->device, (size_t)r->n_devices * sizeof *device);
    for (int32_t d = 0; d < r->n_devices; d++)
        busiest = device[d] > busiest ? device[d] : busiest;
    return busiest;
}

/*
 * Can all tokens be placed with at most `cap` a device? Unit-capacity augmentation in the plainest
 * form: each token in turn looks, depth by depth, for a chain of moves that makes room.
 */
static bool feasible(const problem *p, int32_t cap)
{
    const ek_route_replicas *r = &p->replicas;
    int32_t flow[SLOTS_MAX] = {0}, load[DEVICES_MAX] = {0};
    for (int32_t e = 0; e < r->n_experts; e++)
        for (int32_t t = 0; t < p->tokens[e]; t++) {
            int32_t via[DEVICES_MAX], into[DEVICES_MAX], queue[DEVICES_MAX], n = 0;
            memset(via, 0xff, sizeof via);
            memset(into, 0xff, sizeof into);
            for (int32_t i = r->beg[e]; i < r->beg[e + 1]; i++)
                if (into[r->device[i]] < 0) {
                    into[r->device[i]] = i;
                    queue[n++] = r->device[i];
                }
            int32_t end = -1;
            for (int32_t q = 0; q < n && end < 0; q++) {
                int32_t d = queue[q];
                if (load[d] < cap) {
                    end = d;
                    break;
                }
                for (int32_t f = 0; f < r->n_experts; f++)
                    for (int32_t i = r->beg[f]; i < r->beg[f + 1]; i++)
                        for (int32_t j = r->beg[f];
                             flow[i] > 0 && r->device[i] == d && j < r->beg[f + 1]; j++)
                            if (into[r->device[j]] < 0) {
                                into[r->device[j]] = j;
                                via[r->device[j]] = i;
                                queue[n++] = r->device[j];
                            }
            }
            if (end < 0) return false;
            load[end]++;
            for (int32_t d = end;;) {
                flow[into[d]]++;
                if (via[d] < 0) break;
                flow[via[d]]--;
                d = r->device[via[d]];
            }
        }
    return true;
}

static void random_problem(ek_rng *rng, problem *p, ek_arena *arena)
{
    int32_t n_devices = 2 + (int32_t)ek_rng_below(rng, 7);
    int32_t n_experts = 2 + (int32_t)ek_rng_below(rng, 14);
    int32_t n_slots = 0;
    for (int32_t d = 0; d < n_devices; d++) {
        p->slot_beg[d] = n_slots;
        n_slots += 1 + (int32_t)ek_rng_below(rng, 5);
    }
    p->slot_beg[n_devices] = n_slots;
    for (int32_t s = 0; s < n_slots; s++)
        p->slot_expert[s] = (int32_t)ek_rng_below(rng, (uint64_t)n_experts + 1) - 1;
    for (int32_t e = 0; e < n_experts && n_slots >= n_experts; e++)
        p->slot_expert[(e * 7) % n_slots] = e; /* may overwrite; repaired below */
    for (int32_t e = 0; e < n_experts; e++) {
        bool there = false;
        for (int32_t s = 0; s < n_slots; s++)
            there |= p->slot_expert[s] == e;
        if (!there) { /* shrink to the experts that have a slot */
            n_experts = e > 0 ? e : 1;
            break;
        }
    }
    for (int32_t s = 0; s < n_slots; s++)
        if (p->slot_expert[s] >= n_experts) p->slot_expert[s] = -1;
    bool first = false;
    for (int32_t s = 0; s < n_slots; s++)
        first |= p->slot_expert[s] == 0;
    if (!first) p->slot_expert[0] = 0;
    for (int32_t e = 0; e < n_experts; e++)
        p->tokens[e] = (int32_t)ek_rng_below(rng, ek_rng_below(rng, 4) == 0 ? 60 : 8);
    build(p, n_experts, n_devices, arena);
}

static void test_optimal(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 77);
    for (int32_t i = 0; i < 2000; i++) {
        problem p;
        uint8_t memory[8192];
        ek_arena arena = ek_arena_over(memory, sizeof memory);
        random_problem(&rng, &p, &arena);
        split(&p);
        int32_t busiest = check_sums(&p);
        assert_true(busiest == 0 || !feasible(&p, busiest - 1));
    }
}

static void test_assign(void **state)
{
    (void)state;
    ek_rng rng;
    ek_rng_init(&rng, 78);
    for (int32_t i = 0; i < 500; i++) {
        problem p;
        uint8_t memory[8192];
        uint16_t id[1024], slot[1024];
        int32_t n_ids = 0, given[SLOTS_MAX] = {0};
        ek_arena arena = ek_arena_over(memory, sizeof memory);
        random_problem(&rng, &p, &arena);
        for (int32_t e = 0; e < p.replicas.n_experts; e++)
            for (int32_t t = 0; t < p.tokens[e]; t++)
                id[n_ids++] = (uint16_t)e;
        for (int32_t k = n_ids - 1; k > 0; k--) {
            int32_t other = (int32_t)ek_rng_below(&rng, (uint64_t)k + 1);
            uint16_t swap = id[k];
            id[k] = id[other];
            id[other] = swap;
        }
        int32_t counted[EXPERTS_MAX];
        ek_route_count(id, n_ids, p.replicas.n_experts, counted);
        assert_memory_equal(counted, p.tokens, (size_t)p.replicas.n_experts * sizeof *counted);
        split(&p);
        ek_arena scratch = ek_fixture_arena(ek_route_split_bytes(&p.replicas));
        assert_int_equal(ek_route_assign(&p.replicas, p.quota, id, n_ids, scratch, slot), EK_OK);
        ek_fixture_arena_free(scratch.beg);
        for (int32_t k = 0; k < n_ids; k++) {
            assert_int_equal(p.slot_expert[slot[k]], id[k]);
            given[slot[k]]++;
        }
        for (int32_t r = 0; r < p.replicas.beg[p.replicas.n_experts]; r++)
            assert_int_equal(given[p.replicas.slot[r]], p.quota[r]);
    }
}

static void test_refused(void **state)
{
    (void)state;
    uint8_t memory[4096];
    ek_arena arena = ek_arena_over(memory, sizeof memory);
    ek_route_replicas r;
    ek_err err;
    const int32_t beg[3] = {0, 2, 4};
    const int32_t lost[4] = {0, 1, -1, 1}, high[4] = {0, 1, 3, 2}, fine[4] = {0, 1, 2, 2};
    assert_int_equal(ek_route_replicas_build(lost, beg, 3, 2, &arena, &r, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "expert 2 has no usable replica"));
    assert_int_equal(ek_route_replicas_build(high, beg, 3, 2, &arena, &r, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "slot 2 holds expert 3 of 3"));
    /* Two replicas of expert 2 on one device count as one. */
    assert_int_equal(ek_route_replicas_build(fine, beg, 3, 2, &arena, &r, &err), EK_OK);
    assert_int_equal(r.beg[3] - r.beg[2], 1);
    ek_arena none = ek_arena_over(memory, 0);
    assert_int_equal(ek_route_replicas_build(fine, beg, 3, 2, &none, &r, &err), EK_ENOMEM);
}

/*
 * One real batch set: mean of busiest/mean, and in how many batches no whole-token split could be
 * better.
 */
static bool real_batches(const char *name, int32_t n_tokens, double *out_balance,
                         int32_t *out_n_optimal)
{
    static problem p;
    bool is_k2 = name[0] == 'k';
    int32_t n_devices = is_k2 ? 64 : 32, n_slots = is_k2 ? 448 : 288;
    char file[160];
    ek_fixture_path path;
    snprintf(file, sizeof file, "data/placement/dispatch/%s.p2l.csv", name);
    if (!ek_fixture_shared(file, &path)) return false;
    ek_span csv = ek_fixture_read(path.text);
    const uint8_t *at = csv.data;
    for (int32_t s = 0; s < n_slots; s++, at++) {
        p.slot_expert[s] = 0;
        for (; at < csv.data + csv.len && *at >= '0' && *at <= '9'; at++)
            p.slot_expert[s] = p.slot_expert[s] * 10 + (*at - '0');
    }
    ek_fixture_free(csv);
    for (int32_t d = 0; d <= n_devices; d++)
        p.slot_beg[d] = d * (n_slots / n_devices);
    static uint8_t memory[1 << 16];
    ek_arena arena = ek_arena_over(memory, sizeof memory);
    build(&p, is_k2 ? 384 : 256, n_devices, &arena);
    snprintf(file, sizeof file, "data/placement/dispatch/%s.T%d.ids.u16", name, n_tokens);
    if (!ek_fixture_shared(file, &path)) return false;
    ek_span ids = ek_fixture_read(path.text);
    assert_int_equal(ids.len, (size_t)20 * (size_t)n_tokens * 16);
    *out_balance = 0.0;
    *out_n_optimal = 0;
    for (int32_t b = 0; b < 20; b++) {
        const uint16_t *batch =
            (const uint16_t *)(const void *)ids.data + (int64_t)b * n_tokens * 8;
        ek_route_count(batch, n_tokens * 8, p.replicas.n_experts, p.tokens);
        split(&p);
        int32_t busiest = check_sums(&p);
        *out_n_optimal += n_tokens > 128 || !feasible(&p, busiest - 1);
        *out_balance += busiest / (n_tokens * 8.0 / n_devices) / 20.0;
    }
    ek_fixture_free(ids);
    return true;
}

static void test_real_batches(void **state)
{
    (void)state;
    const struct {
        const char *name;
        double lp_128, lp_1024; /* expected_dispatch.csv, fractional_optimum */
    } sets[] = {
        {"dsv3_zipf0.8", 1.1649, 1.0525}, {"dsv3_zipf1.2", 1.1157, 1.0363},
        {"dsv3_logn0.5", 1.2040, 1.0309}, {"dsv3_logn1.0", 1.1628, 1.0359},
        {"k2_zipf0.8", 1.2950, 1.1144},   {"k2_zipf1.2", 1.2252, 1.0679},
        {"k2_logn0.5", 1.2926, 1.0983},   {"k2_logn1.0", 1.3206, 1.0952},
    };
    for (size_t i = 0; i < EK_COUNT_OF(sets); i++) {
        double balance;
        int32_t n_optimal;
        if (!real_batches(sets[i].name, 1024, &balance, &n_optimal)) skip();
        print_message("%s: T 1024 %.4f (LP %.4f)", sets[i].name, balance, sets[i].lp_1024);
        assert_true(balance <= sets[i].lp_1024 + 0.002);
        if (!real_batches(sets[i].name, 128, &balance, &n_optimal)) skip();
        print_message(", T 128 %.4f (LP %.4f), optimal in %d of 20\n", balance, sets[i].lp_128,
                      n_optimal);
        assert_int_equal(n_optimal, 20);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_optimal),
        cmocka_unit_test(test_assign),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_real_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
