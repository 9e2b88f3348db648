/*
 * Least activation: conservation, and that no quotas could make the busiest device wait less.
 *
 * Small problems are checked against every way of activating replicas, with the token split, whose
 * optimality has a test of its own, for the tokens of each. Larger ones are checked against
 * bounds: on activations by an independent search for seats, on time by the token split and by a
 * hash that spreads tokens blindly. Real batches have the shape and the target of a decode batch.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "route/activate.h"
#include "support/fixtures.h"

#define EXPERTS_MAX 1024
#define SLOTS_MAX   4096
#define DEVICES_MAX 1024

typedef struct problem {
    ek_route_replicas replicas;
    int32_t slot_expert[SLOTS_MAX];
    int32_t slot_beg[DEVICES_MAX + 1];
    int32_t tokens[EXPERTS_MAX];
    int32_t quota[SLOTS_MAX];
    ek_route_activation activation;
} problem;

static uint8_t memory[1 << 20];

static void build(problem *p, int32_t n_experts, int32_t n_devices)
{
    ek_arena arena = ek_arena_over(memory, sizeof memory);
    ek_err err;
    if (ek_route_replicas_build(p->slot_expert, p->slot_beg, n_experts, n_devices, &arena,
                                &p->replicas, &err) != EK_OK)
        fail_msg("%s", err.text);
}

static void solve(problem *p, int32_t knee)
{
    ek_arena scratch = ek_fixture_arena(ek_route_activate_bytes(&p->replicas));
    assert_int_equal(
        ek_route_activate(&p->replicas, p->tokens, knee, scratch, p->quota, &p->activation), EK_OK);
    ek_fixture_arena_free(scratch.beg);
}

/** What quotas mean for the devices, counted plainly. */
static ek_route_activation measure(const ek_route_replicas *r, const int32_t *quota, int32_t knee)
{
    static int32_t load[DEVICES_MAX], active[DEVICES_MAX];
    ek_route_activation found = {0};
    memset(load, 0, sizeof load);
    memset(active, 0, sizeof active);
    for (int32_t k = 0; k < r->beg[r->n_experts]; k++) {
        load[r->device[k]] += quota[k];
        active[r->device[k]] += quota[k] > 0;
        found.n_active += quota[k] > 0;
    }
    for (int32_t d = 0; d < r->n_devices; d++) {
        int64_t reading = (int64_t)knee * active[d];
        int64_t time = reading > load[d] ? reading : load[d];
        found.busiest = time > found.busiest ? time : found.busiest;
        found.n_active_max = active[d] > found.n_active_max ? active[d] : found.n_active_max;
        found.n_tokens_max = load[d] > found.n_tokens_max ? load[d] : found.n_tokens_max;
    }
    return found;
}

static void check_sums(const problem *p, int32_t knee)
{
    const ek_route_replicas *r = &p->replicas;
    for (int32_t e = 0; e < r->n_experts; e++) {
        int64_t sum = 0;
        for (int32_t i = r->beg[e]; i < r->beg[e + 1]; i++) {
            assert_true(p->quota[i] >= 0);
            sum += p->quota[i];
        }
        assert_int_equal(sum, p->tokens[e]);
    }
    ek_route_activation found = measure(r, p->quota, knee);
    assert_int_equal(found.busiest, p->activation.busiest);
    assert_int_equal(found.n_active, p->activation.n_active);
    assert_int_equal(found.n_active_max, p->activation.n_active_max);
    assert_int_equal(found.n_tokens_max, p->activation.n_tokens_max);
    assert_true(p->activation.bound <= p->activation.busiest);
}

/* Experts on devices at random, each at least once; some slots are dead. */
static void draw(ek_rng *rng, problem *p, int32_t n_experts, int32_t n_devices, int32_t spare_max)
{
    int32_t n_slots = 0, at = 0;
    int32_t least = (n_experts + n_devices - 1) / n_devices;
    for (int32_t d = 0; d < n_devices; d++) {
        p->slot_beg[d] = n_slots;
        n_slots += least + (int32_t)ek_rng_below(rng, (uint64_t)spare_max + 1);
    }
    p->slot_beg[n_devices] = n_slots;
    assert_true(n_slots <= SLOTS_MAX);
    for (int32_t s = 0; s < n_slots; s++)
        p->slot_expert[s] = (int32_t)ek_rng_below(rng, (uint64_t)n_experts + 1) - 1;
    int32_t first = (int32_t)ek_rng_below(rng, (uint64_t)n_slots);
    for (int32_t e = 0; e < n_experts; e++, at++)
        p->slot_expert[(first + at) % n_slots] = e;
    for (int32_t e = 0; e < n_experts; e++)
        p->tokens[e] = (int32_t)ek_rng_below(rng, ek_rng_below(rng, 4) == 0 ? 40 : 6);
    build(p, n_experts, n_devices);
}

/* ---- against everything that could be done ---- */

/** The best time if only these replicas may get tokens. */
static int64_t time_of_set(const problem *p, uint32_t set, int32_t knee)
{
    const ek_route_replicas *r = &p->replicas;
    int32_t beg[16], slot[32], device[32], quota[32], load[DEVICES_MAX];
    ek_route_replicas some = {r->n_experts, r->n_slots, r->n_devices, beg, slot, device};
    int32_t n = 0;
    for (int32_t e = 0; e < r->n_experts; e++) {
        beg[e] = n;
        for (int32_t k = r->beg[e]; k < r->beg[e + 1]; k++)
            if (set >> k & 1) {
                slot[n] = r->slot[k];
                device[n++] = r->device[k];
            }
        if (beg[e] == n) return INT64_MAX;
    }
    beg[r->n_experts] = n;
    static uint8_t mem[1 << 14];
    assert_int_equal(ek_route_split(&some, p->tokens, ek_arena_over(mem, sizeof mem), quota, load),
                     EK_OK);
    return measure(&some, quota, knee).busiest;
}

static void test_against_all(void **state)
{
    (void)state;
    static problem p;
    ek_rng rng;
    ek_rng_init(&rng, 5);
    int32_t n_problems = 0, n_optimal = 0, n_above_knee = 0;
    double gap_sum = 0, gap_max = 0;
    for (int32_t i = 0; i < 1500; i++) {
        int32_t knee = (int32_t)ek_rng_below(&rng, 24);
        draw(&rng, &p, 2 + (int32_t)ek_rng_below(&rng, 4), 2 + (int32_t)ek_rng_below(&rng, 4), 2);
        int32_t n_replicas = p.replicas.beg[p.replicas.n_experts];
        if (n_replicas > 11) continue;
        solve(&p, knee);
        check_sums(&p, knee);
        int64_t best = INT64_MAX;
        for (uint32_t set = 1; set < 1u << n_replicas; set++) {
            int64_t time = time_of_set(&p, set, knee);
            best = time < best ? time : best;
        }
        assert_true(p.activation.bound <= best && best <= p.activation.busiest);
        n_problems++;
        n_optimal += p.activation.busiest == best;
        n_above_knee += p.activation.n_tokens_max > (int64_t)knee * p.activation.n_active_max;
        if (best == 0) continue;
        double gap = (double)(p.activation.busiest - best) / (double)best;
        gap_sum += gap;
        gap_max = gap > gap_max ? gap : gap_max;
    }
    print_message("%d of %d optimal, %d above the knee; gap mean %.4f, worst %.3f\n", n_optimal,
                  n_problems, n_above_knee, gap_sum / n_problems, gap_max);
    assert_true(n_problems > 1000 && n_above_knee > 200);
    assert_true(n_optimal >= 0.99 * n_problems && gap_sum / n_problems < 0.001 && gap_max < 0.1);
}

/* ---- against bounds ---- */

/** Can every expert with tokens have a seat with at most `cap` of them on a device? */
static bool seats(const problem *p, int32_t cap)
{
    static int32_t at[EXPERTS_MAX], n_on[DEVICES_MAX], via[DEVICES_MAX], queue[DEVICES_MAX];
    const ek_route_replicas *r = &p->replicas;
    memset(n_on, 0, sizeof n_on);
    memset(at, 0xff, sizeof at);
    for (int32_t e = 0; e < r->n_experts; e++) {
        if (p->tokens[e] == 0) continue;
        int32_t n = 0, end = -1;
        memset(via, 0xff, sizeof via); /* expert that would move to a device */
        for (int32_t k = r->beg[e]; k < r->beg[e + 1]; k++) {
            via[r->device[k]] = e;
            queue[n++] = r->device[k];
        }
        for (int32_t q = 0; q < n && end < 0; q++) {
            if (n_on[queue[q]] < cap) end = queue[q];
            for (int32_t f = 0; f < e && end < 0; f++)
                for (int32_t k = r->beg[f]; at[f] == queue[q] && k < r->beg[f + 1]; k++)
                    if (via[r->device[k]] < 0) {
                        via[r->device[k]] = f;
                        queue[n++] = r->device[k];
                    }
        }
        if (end < 0) return false;
        n_on[end]++;
        for (int32_t d = end;;) {
            int32_t f = via[d], left = at[f];
            at[f] = d;
            if (f == e) break;
            d = left;
        }
    }
    return true;
}

/** A replica that has nothing to do with anything. */
static int32_t of_hash(const ek_route_replicas *r, int32_t expert, uint64_t what)
{
    uint64_t n = (uint64_t)(r->beg[expert + 1] - r->beg[expert]);
    return r->beg[expert] + (int32_t)(ek_mix64(what) % n);
}

static int64_t time_of_hash(const problem *p, int32_t knee)
{
    static int32_t quota[SLOTS_MAX];
    const ek_route_replicas *r = &p->replicas;
    memset(quota, 0, sizeof quota);
    for (int32_t e = 0; e < r->n_experts; e++)
        for (int32_t t = 0; t < p->tokens[e]; t++)
            quota[of_hash(r, e, (uint64_t)(e * 4099 + t))]++;
    return measure(r, quota, knee).busiest;
}

static int64_t time_of_split(const problem *p, int32_t knee)
{
    static int32_t quota[SLOTS_MAX], load[DEVICES_MAX];
    ek_arena scratch = ek_fixture_arena(ek_route_split_bytes(&p->replicas));
    assert_int_equal(ek_route_split(&p->replicas, p->tokens, scratch, quota, load), EK_OK);
    ek_fixture_arena_free(scratch.beg);
    return measure(&p->replicas, quota, knee).busiest;
}

static void test_any_shape(void **state)
{
    (void)state;
    static problem p;
    ek_rng rng;
    ek_rng_init(&rng, 6);
    const int32_t devices[] = {1, 2, 3, 7, 32, 100, 1024};
    int32_t n_optimal = 0, n = 0;
    for (int32_t i = 0; i < 700; i++) {
        int32_t n_devices = devices[i % 7];
        int32_t n_experts = 1 + (int32_t)ek_rng_below(&rng, n_devices > 100 ? 1024 : 160);
        int32_t knee = i % 3 == 0 ? INT32_MAX : (int32_t)ek_rng_below(&rng, 60);
        draw(&rng, &p, n_experts, n_devices, 3);
        solve(&p, knee);
        check_sums(&p, knee);
        assert_true(p.activation.busiest <= time_of_split(&p, knee));
        assert_true(p.activation.busiest <= time_of_hash(&p, knee));
        if (p.activation.busiest == 0) continue;
        n++;
        n_optimal += p.activation.busiest == p.activation.bound;
        if (p.activation.n_tokens_max > (int64_t)knee * p.activation.n_active_max) continue;
        if (knee == INT32_MAX) { /* nothing but weights counts: each expert once, and no better */
            int32_t n_experts_active = 0;
            for (int32_t e = 0; e < n_experts; e++)
                n_experts_active += p.tokens[e] > 0;
            assert_int_equal(p.activation.n_active, n_experts_active);
            assert_int_equal(p.activation.busiest, p.activation.bound);
            assert_true(seats(&p, p.activation.n_active_max));
            assert_false(seats(&p, p.activation.n_active_max - 1));
        }
    }
    print_message("%d of %d proven optimal\n", n_optimal, n);
    assert_true(n_optimal > 0.95 * n);
}

/** Without a knee it is the token split, whatever devices read. */
static void test_no_knee(void **state)
{
    (void)state;
    static problem p;
    ek_rng rng;
    ek_rng_init(&rng, 7);
    for (int32_t i = 0; i < 300; i++) {
        draw(&rng, &p, 20, 8, 4);
        solve(&p, 0);
        check_sums(&p, 0);
        assert_int_equal(p.activation.busiest, p.activation.bound);
        assert_int_equal(p.activation.busiest, time_of_split(&p, 0));
    }
}

/** Same problem, same answer; and an arena that is too small is said so, with nothing written. */
static void test_contract(void **state)
{
    (void)state;
    static problem p;
    int32_t again[SLOTS_MAX];
    ek_rng rng;
    ek_rng_init(&rng, 8);
    draw(&rng, &p, 100, 16, 6);
    solve(&p, 12);
    memcpy(again, p.quota, sizeof again);
    solve(&p, 12);
    assert_memory_equal(again, p.quota, (size_t)p.replicas.beg[100] * sizeof *again);
    size_t bytes = ek_route_activate_bytes(&p.replicas) - 1;
    ek_arena scratch = ek_fixture_arena(bytes);
    memset(p.quota, 0x55, sizeof p.quota);
    memcpy(again, p.quota, sizeof again);
    assert_int_equal(ek_route_activate(&p.replicas, p.tokens, 12, scratch, p.quota, &p.activation),
                     EK_ENOMEM);
    assert_memory_equal(again, p.quota, sizeof again);
    ek_fixture_arena_free(scratch.beg);

    assert_int_equal(ek_route_knee(44e6, 4.8e12, 44e-9), 208);
    assert_int_equal(ek_route_knee(1e9, 1, 1e-9), INT32_MAX);
    assert_int_equal(ek_route_knee(0, 1, 1), 0);
    assert_int_equal(ek_route_knee(1, 0.0 / 0.0 * 0, 1), 0);
}

/* ---- batches of 64 tokens over 512 slots ---- */

enum { REAL_EXPERTS = 256, REAL_SLOTS = 512, REAL_DEVICES = 32 };

/**
 * Place by history as balancers do: a slot more to whichever expert's replicas are hottest, then
 * the hottest replica to the lightest device that has room and not yet this expert.
 */
static bool place_by_history(const char *set, problem *p)
{
    char file[160];
    ek_fixture_path path;
    snprintf(file, sizeof file, "data/placement/dispatch/%s.hist.csv", set);
    if (!ek_fixture_shared(file, &path)) return false;
    ek_span csv = ek_fixture_read(path.text);
    const uint8_t *at = csv.data;
    double load[REAL_EXPERTS], device[REAL_DEVICES] = {0};
    int32_t count[REAL_EXPERTS], used[REAL_DEVICES] = {0};
    for (int32_t e = 0; e < REAL_EXPERTS; e++, at++) {
        count[e] = 1;
        for (load[e] = 0; at < csv.data + csv.len && *at >= '0' && *at <= '9'; at++)
            load[e] = 10 * load[e] + (*at - '0');
    }
    ek_fixture_free(csv);
    for (int32_t s = REAL_EXPERTS; s < REAL_SLOTS; s++) {
        int32_t hottest = 0;
        for (int32_t e = 1; e < REAL_EXPERTS; e++)
            if (count[e] < REAL_DEVICES && load[e] / count[e] > load[hottest] / count[hottest])
                hottest = e;
        count[hottest]++;
    }
    int32_t left[REAL_EXPERTS];
    memcpy(left, count, sizeof left);
    memset(p->slot_expert, 0xff, sizeof p->slot_expert);
    for (int32_t d = 0; d <= REAL_DEVICES; d++)
        p->slot_beg[d] = d * (REAL_SLOTS / REAL_DEVICES);
    for (int32_t s = 0; s < REAL_SLOTS; s++) {
        int32_t e = -1, lightest = -1;
        for (int32_t f = 0; f < REAL_EXPERTS; f++)
            if (left[f] > 0 && (e < 0 || load[f] / count[f] > load[e] / count[e])) e = f;
        for (int32_t d = 0; d < REAL_DEVICES; d++) {
            bool is_held = used[d] == REAL_SLOTS / REAL_DEVICES;
            for (int32_t i = 0; i < used[d]; i++)
                is_held |= p->slot_expert[p->slot_beg[d] + i] == e;
            if (!is_held && (lightest < 0 || device[d] < device[lightest])) lightest = d;
        }
        left[e]--;
        if (lightest < 0) continue; /* no room beside its equals: the slot stays empty */
        p->slot_expert[p->slot_beg[lightest] + used[lightest]++] = e;
        device[lightest] += load[e] / count[e];
    }
    build(p, REAL_EXPERTS, REAL_DEVICES);
    return true;
}

static void test_real_batches(void **state)
{
    (void)state;
    static problem p;
    const char *const sets[] = {"dsv3_zipf0.8", "dsv3_zipf1.2", "dsv3_logn0.5", "dsv3_logn1.0"};
    const int32_t knee = 208;
    for (size_t i = 0; i < EK_COUNT_OF(sets); i++) {
        char file[160];
        ek_fixture_path path;
        if (!place_by_history(sets[i], &p)) skip();
        snprintf(file, sizeof file, "data/placement/dispatch/%s.T128.ids.u16", sets[i]);
        if (!ek_fixture_shared(file, &path)) skip();
        ek_span ids = ek_fixture_read(path.text);
        double hash = 0, least = 0;
        for (int32_t b = 0; b < 20; b++) {
            const uint16_t *id = (const uint16_t *)(const void *)ids.data + b * 128 * 8;
            int32_t quota[SLOTS_MAX] = {0};
            ek_route_count(id, 64 * 8, 256, p.tokens);
            for (int32_t j = 0; j < 64 * 8; j++)
                quota[of_hash(&p.replicas, id[j], (uint64_t)j)]++;
            solve(&p, knee);
            check_sums(&p, knee);
            assert_int_equal(p.activation.busiest, p.activation.bound);
            assert_true(p.activation.n_tokens_max <= knee);
            hash += measure(&p.replicas, quota, knee).n_active_max / 20.0;
            least += p.activation.n_active_max / 20.0;
        }
        print_message("%s: most activated device %.2f by hash, %.2f\n", sets[i], hash, least);
        assert_true(least <= 0.5 * hash);
        ek_fixture_free(ids);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_against_all),  cmocka_unit_test(test_any_shape),
        cmocka_unit_test(test_no_knee),      cmocka_unit_test(test_contract),
        cmocka_unit_test(test_real_batches),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
