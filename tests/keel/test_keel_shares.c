/*
 * Goal: shares are the plan's rows, each exactly once, on devices that have the expert. Method:
 * random placements and plans of many shapes; what a share list must be is checked row by row.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "keel/shares.h"

#define EXPERTS_MAX 40
#define DEVICES_MAX 9
#define SLOTS_MAX   (EXPERTS_MAX * DEVICES_MAX)

typedef struct fixture {
    ek_rng rng;
    int32_t n_experts, n_devices, n_slots;
    int32_t slot_beg[DEVICES_MAX + 1];
    int32_t slot_expert[SLOTS_MAX];
    int32_t expert_beg[EXPERTS_MAX + 1];
    ek_route_replicas replicas;
    uint8_t memory[1 << 16];
    uint8_t step[1 << 17];
} fixture;

/** Every expert somewhere; further slots hold anything, or nothing. */
static void draw_placement(fixture *f)
{
    f->n_experts = 1 + (int32_t)ek_rng_below(&f->rng, EXPERTS_MAX);
    f->n_devices = 1 + (int32_t)ek_rng_below(&f->rng, DEVICES_MAX);
    f->n_slots = f->n_experts + (int32_t)ek_rng_below(&f->rng, 2 * (uint32_t)f->n_experts);
    if (f->n_slots < f->n_devices) f->n_slots = f->n_devices;
    for (int32_t d = 0; d <= f->n_devices; d++)
        f->slot_beg[d] = f->n_slots * d / f->n_devices;
    for (int32_t s = 0; s < f->n_slots; s++)
        f->slot_expert[s] =
            s < f->n_experts ? s : (int32_t)ek_rng_below(&f->rng, (uint32_t)f->n_experts + 1) - 1;
    for (int32_t s = f->n_slots - 1; s > 0; s--) {
        int32_t other = (int32_t)ek_rng_below(&f->rng, (uint32_t)s + 1);
        int32_t expert = f->slot_expert[s];
        f->slot_expert[s] = f->slot_expert[other];
        f->slot_expert[other] = expert;
    }
    ek_arena memory = ek_arena_over(f->memory, sizeof f->memory);
    assert_int_equal(ek_route_replicas_build(f->slot_expert, f->slot_beg, f->n_experts,
                                             f->n_devices, &memory, &f->replicas, NULL),
                     EK_OK);
}

static void draw_plan(fixture *f, uint32_t most)
{
    f->expert_beg[0] = 0;
    for (int32_t e = 0; e < f->n_experts; e++) {
        int32_t n = ek_rng_below(&f->rng, 3) ? (int32_t)ek_rng_below(&f->rng, most + 1) : 0;
        f->expert_beg[e + 1] = f->expert_beg[e] + n;
    }
}

static bool holds(const fixture *f, int32_t device, int32_t expert)
{
    for (int32_t s = f->slot_beg[device]; s < f->slot_beg[device + 1]; s++)
        if (f->slot_expert[s] == expert) return true;
    return false;
}

static void expect_whole(const fixture *f, const ek_keel_shares *shares)
{
    uint8_t seen[4096] = {0};
    int32_t n_rows = f->expert_beg[f->n_experts];
    assert_true((size_t)n_rows <= sizeof seen);
    assert_int_equal(shares->device_beg[0], 0);
    assert_int_equal(shares->device_beg[shares->n_devices], shares->n_shares);
    for (int32_t d = 0; d < shares->n_devices; d++) {
        for (int32_t i = shares->device_beg[d]; i < shares->device_beg[d + 1]; i++) {
            int32_t e = shares->share_expert[i];
            int32_t beg = shares->share_row[2 * i], end = shares->share_row[2 * i + 1];
            assert_true(beg < end && beg >= f->expert_beg[e] && end <= f->expert_beg[e + 1]);
            assert_true(shares->n_devices == 1 || holds(f, d, e));
            for (int32_t row = beg; row < end; row++)
                assert_int_equal(seen[row]++, 0);
        }
    }
    for (int32_t row = 0; row < n_rows; row++)
        assert_int_equal(seen[row], 1);
}

static void test_every_row_once_where_its_expert_is(void **state)
{
    (void)state;
    fixture *f = calloc(1, sizeof *f);
    ek_rng_init(&f->rng, 77);
    for (int32_t i = 0; i < 4000; i++) {
        draw_placement(f);
        draw_plan(f, i % 5 == 0 ? 1 : 60);
        size_t bytes = ek_keel_shares_bytes(f->n_experts, f->n_slots, f->n_devices);
        assert_true(bytes <= sizeof f->step);
        for (int32_t knee = 0; knee <= 16; knee += 8) {
            ek_keel_shares shares;
            ek_arena step = ek_arena_over(f->step, bytes);
            assert_int_equal(
                ek_keel_shares_split(&f->replicas, f->expert_beg, knee, &step, &shares), EK_OK);
            assert_int_equal(shares.n_devices, f->n_devices);
            expect_whole(f, &shares);
        }
        ek_keel_shares whole;
        ek_arena step = ek_arena_over(f->step, ek_keel_shares_bytes(f->n_experts, f->n_experts, 1));
        assert_int_equal(ek_keel_shares_whole(f->expert_beg, f->n_experts, &step, &whole), EK_OK);
        assert_int_equal(whole.n_devices, 1);
        expect_whole(f, &whole);
    }
    free(f);
}

/** Below the knee a second replica is a second reading of the same weights. */
static void test_small_batches_read_each_expert_once(void **state)
{
    (void)state;
    fixture *f = calloc(1, sizeof *f);
    ek_rng_init(&f->rng, 3);
    for (int32_t i = 0; i < 500; i++) {
        draw_placement(f);
        draw_plan(f, 2);
        int32_t n_active = 0;
        for (int32_t e = 0; e < f->n_experts; e++)
            n_active += f->expert_beg[e] < f->expert_beg[e + 1];
        ek_keel_shares shares;
        ek_arena step = ek_arena_over(f->step, sizeof f->step);
        assert_int_equal(ek_keel_shares_split(&f->replicas, f->expert_beg, 100, &step, &shares),
                         EK_OK);
        assert_int_equal(shares.n_shares, n_active);
    }
    free(f);
}

static void test_too_little_memory_takes_nothing(void **state)
{
    (void)state;
    fixture *f = calloc(1, sizeof *f);
    ek_rng_init(&f->rng, 5);
    draw_placement(f);
    draw_plan(f, 20);
    size_t enough = ek_keel_shares_bytes(f->n_experts, f->n_slots, f->n_devices);
    int32_t n_refused = 0;
    for (size_t bytes = 0; bytes <= enough; bytes += 8) {
        ek_keel_shares shares;
        ek_arena step = ek_arena_over(f->step, bytes);
        ek_status status = ek_keel_shares_split(&f->replicas, f->expert_beg, 8, &step, &shares);
        assert_true(status == EK_OK || status == EK_ENOMEM);
        if (status == EK_OK) continue;
        n_refused++;
        assert_true(step.beg == f->step);
        assert_true(bytes < enough);
    }
    assert_true(n_refused > 0);
    free(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_row_once_where_its_expert_is),
        cmocka_unit_test(test_small_batches_read_each_expert_once),
        cmocka_unit_test(test_too_little_memory_takes_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
