/*
 * Goal: counters in; load view, alerts and placements out. Method: counters that this test writes,
 * and a clock that it turns by hand; what comes out is computed once more by hand.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "keel/keel.h"

#define N_LAYERS  3
#define N_EXPERTS 8
#define DEVICES   4
#define PERIOD_US INT64_C(100000)

typedef struct fixture {
    ek_keel_params params;
    ek_keel_setup setup;
    ek_expert_stats *experts, *devices;
    ek_queues *queues;
    ek_keel *keel;
    ek_keel_news news;
    int64_t now_us;
    void *memory;
} fixture;

typedef struct memory_of_step {
    EK_ALIGNED(64) uint8_t bytes[65536];
} memory_of_step;

static const size_t memory_bytes = (size_t)16 << 20;

static fixture *start(int32_t n_devices, int32_t n_slots)
{
    fixture *f = calloc(1, sizeof *f);
    f->memory = calloc(1, memory_bytes);
    ek_keel_params_default(&f->params);
    f->params.n_devices = n_devices;
    f->params.n_slots = n_slots;
    f->params.min_gain = 0;
    f->setup = (ek_keel_setup){
        .n_layers = N_LAYERS,
        .n_experts = N_EXPERTS,
        .top_k = 2,
        .n_threads = n_devices,
        .knee = 8,
        .bytes_per_expert = 1000,
        .seconds_per_row = 1e-3,
        .link_bytes_per_s = 1e9,
        .sample_us = PERIOD_US,
    };
    f->now_us = 5 * PERIOD_US;
    return f;
}

static void open(fixture *f)
{
    ek_err err = {0};
    ek_arena perm = ek_arena_over(f->memory, memory_bytes);
    assert_int_equal(ek_telemetry_experts_create(N_LAYERS, N_EXPERTS, &perm, &f->experts), EK_OK);
    assert_int_equal(ek_telemetry_experts_create(N_LAYERS, f->params.n_devices, &perm, &f->devices),
                     EK_OK);
    f->setup.experts = f->experts;
    f->setup.devices = f->devices;
    assert_int_equal(ek_telemetry_queues_create(N_LAYERS, f->params.n_devices, &perm, &f->queues),
                     EK_OK);
    f->setup.queues = f->queues;
    /* Exactly as much as it says it takes. */
    ek_arena own = ek_arena_over(perm.beg, ek_keel_bytes(&f->params, &f->setup));
    assert_true(own.end <= perm.end);
    if (ek_keel_create(&f->params, &f->setup, &own, &f->keel, &err) != EK_OK)
        fail_msg("create: %s", err.text);
}

static void end(fixture *f)
{
    free(f->memory);
    free(f);
}

/** One period: layer l's device d was busy so many milliseconds. */
static void pass(fixture *f, int32_t layer, int32_t device, int64_t busy_ms)
{
    if (busy_ms > 0)
        ek_telemetry_experts_add_busy(f->devices, layer, device, busy_ms * 1000000, 10);
    f->now_us += PERIOD_US;
    ek_keel_tick(f->keel, f->now_us, true, &f->news);
}

static void test_slots_of_a_layer(void **state)
{
    (void)state;
    const struct {
        int32_t n_devices, n_slots, want;
    } cases[] = {{1, 0, 8}, {2, 0, 10}, {4, 0, 12}, {4, 9, 9}, {8, 0, 16}, {2, 16, 16}, {1, 8, 8}};
    for (size_t i = 0; i < EK_COUNT_OF(cases); i++) {
        fixture *f = start(cases[i].n_devices, cases[i].n_slots);
        open(f);
        assert_int_equal(ek_keel_n_slots(f->keel), cases[i].want);
        assert_int_equal(ek_keel_slot_beg(f->keel)[cases[i].n_devices], cases[i].want);
        /* Every expert has a place in every layer, and none two on a device. */
        for (int32_t l = 0; l < N_LAYERS; l++) {
            const int32_t *slots = ek_keel_slot_expert(f->keel, l);
            int32_t n_of[N_EXPERTS] = {0};
            for (int32_t d = 0; d < cases[i].n_devices; d++) {
                uint32_t here = 0;
                for (int32_t s = ek_keel_slot_beg(f->keel)[d]; s < ek_keel_slot_beg(f->keel)[d + 1];
                     s++) {
                    if (slots[s] < 0) continue;
                    assert_true((here & 1u << slots[s]) == 0);
                    here |= 1u << slots[s];
                    n_of[slots[s]]++;
                }
            }
            for (int32_t e = 0; e < N_EXPERTS; e++)
                assert_true(n_of[e] >= 1);
        }
        end(f);
    }
}

static void expect_refused(const fixture *f, const char *text)
{
    ek_err err = {0};
    assert_int_equal(ek_keel_check(&f->params, N_EXPERTS, &err), EK_EINVAL);
    if (!strstr(err.text, text)) fail_msg("\"%s\" does not say \"%s\"", err.text, text);
}

static void test_what_cannot_be_is_refused_with_its_key(void **state)
{
    (void)state;
    fixture *f = start(0, 0);
    expect_refused(f, "experts.devices is 0; it must be from 1 to 64");
    f->params.n_devices = 2;
    f->params.n_slots = 7;
    expect_refused(f, "experts.slots is 7; 8 experts on 2 devices take from 8 to 16, or auto");
    f->params.n_slots = 17;
    expect_refused(f, "experts.slots is 17");
    f->params.n_devices = 10;
    f->params.n_slots = 8;
    expect_refused(f, "experts.devices is 10, more than the 8 slots of a layer");
    f->params = (ek_keel_params){.n_devices = 2};
    expect_refused(f, "experts.window");
    end(f);
}

static void test_a_given_placement_is_taken_or_refused(void **state)
{
    (void)state;
    int32_t slots[N_LAYERS * 10];
    for (int32_t i = 0; i < N_LAYERS * 10; i++)
        slots[i] = i % 10 < 8 ? 7 - i % 10 : i % 10 - 8; /* experts 0 and 1 have two */
    fixture *f = start(2, 10);
    f->setup.slot_expert = slots;
    open(f);
    assert_memory_equal(ek_keel_slot_expert(f->keel, 2), slots + 20, 10 * sizeof *slots);
    slots[13] = 6; /* layer 1 loses expert 4 */
    ek_err err = {0};
    ek_arena perm = ek_arena_over(f->memory, memory_bytes);
    assert_int_equal(ek_keel_create(&f->params, &f->setup, &perm, &f->keel, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "layer 1 has no expert 4"));
    slots[13] = 8;
    perm = ek_arena_over(f->memory, memory_bytes);
    assert_int_equal(ek_keel_create(&f->params, &f->setup, &perm, &f->keel, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "layer 1, slot 3: expert 8 of 8"));
    end(f);
}

/** What a device does in a layer counts n_layers times: as if all layers were like it. */
static void test_an_experts_load_is_that_of_its_least_busy_device(void **state)
{
    (void)state;
    int32_t slots[N_LAYERS * 10];
    for (int32_t l = 0; l < N_LAYERS; l++)
        /* device 0: 0 1 2 3 4, device 1: 5 6 7 0 1 */
        for (int32_t s = 0; s < 10; s++)
            slots[l * 10 + s] = s % 8;
    fixture *f = start(2, 10);
    f->setup.slot_expert = slots;
    f->params.rebalance = false;
    open(f);
    assert_null(ek_keel_view(f->keel, f->now_us)); /* load-blind */
    pass(f, 0, 0, 0);                              /* says where to count from */
    assert_null(ek_keel_view(f->keel, f->now_us));
    for (int32_t i = 0; i < 60; i++) { /* six seconds: the smoothing has settled */
        ek_telemetry_experts_add_busy(f->devices, 1, 1, 8000000, 10);
        pass(f, 1, 0, 16);
    }
    /* The longest queues since the sample before, for whoever looks at the load view. */
    ek_telemetry_queues_hand(f->queues, 1, 0, 12, 2);
    ek_telemetry_queues_hand(f->queues, 1, 0, 5, 2);
    ek_telemetry_queues_hand(f->queues, 2, 1, 7, 1);
    ek_telemetry_experts_add_busy(f->devices, 1, 1, 8000000, 10);
    pass(f, 1, 0, 16);
    const ek_load_snapshot *snapshot = ek_telemetry_load_view_pin(ek_keel_load(f->keel));
    const int32_t longest[N_LAYERS * 2] = {0, 0, 12, 0, 0, 7};
    assert_memory_equal(snapshot->queue, longest, sizeof longest);
    ek_telemetry_load_view_unpin(ek_keel_load(f->keel), snapshot);

    const ek_route_view *view = ek_keel_view(f->keel, f->now_us + 30000);
    assert_non_null(view);
    assert_int_equal(view->age_us, 30000);
    assert_int_equal(view->sampled_us, f->now_us);
    const float *u = view->utilisation;
    /* One thread a device; 16 of 100 ms in one of three layers is 0.48, 8 is 0.24. */
    const double want[N_EXPERTS] = {0.24, 0.24, 0.48, 0.48, 0.48, 0.24, 0.24, 0.24};
    for (int32_t e = 0; e < N_EXPERTS; e++) {
        assert_true(u[e] == 0.0f && u[2 * N_EXPERTS + e] == 0.0f);
        assert_true(fabs((double)u[N_EXPERTS + e] - want[e]) < 0.01);
        assert_int_equal(view->n_replicas[e], e < 2 ? 2 : 1);
    }
    uint64_t version = view->version;
    assert_true(ek_keel_view(f->keel, f->now_us + 40000)->version == version);
    pass(f, 1, 0, 0);
    assert_true(ek_keel_view(f->keel, f->now_us)->version == version + 1);
    end(f);
}

static void test_the_tail_is_of_the_last_period(void **state)
{
    (void)state;
    fixture *f = start(2, 0);
    open(f);
    pass(f, 0, 0, 1);
    for (int32_t i = 0; i < 200; i++)
        ek_keel_served(f->keel, i < 195 ? 100 : 9000);
    pass(f, 0, 0, 1);
    int64_t tail_us = ek_keel_view(f->keel, f->now_us)->tail_us;
    assert_true(tail_us >= 9000 && tail_us <= 9000 * 5 / 4); /* one bucket, a quarter wide */
    for (int32_t i = 0; i < 1000; i++)
        ek_keel_served(f->keel, i < 995 ? 100 : 9000);
    pass(f, 0, 0, 1);
    tail_us = ek_keel_view(f->keel, f->now_us)->tail_us;
    assert_true(tail_us >= 100 && tail_us <= 125);
    pass(f, 0, 0, 1);
    assert_int_equal(ek_keel_view(f->keel, f->now_us)->tail_us, 0); /* nothing was served */
    end(f);
}

/** A window of a second whose tokens all go to two experts of layer 2, and evenly elsewhere. */
static void add_hot_window(fixture *f, int32_t *n_raised, int32_t *n_moved)
{
    for (int32_t l = 0; l < N_LAYERS; l++)
        for (int32_t e = 0; e < N_EXPERTS; e++)
            ek_telemetry_experts_add_tokens(f->experts, l, e, l == 2 ? (e < 2 ? 4000 : 10) : 1000);
    for (int32_t i = 0; i < 10; i++) {
        pass(f, 0, 0, 1);
        *n_moved += f->news.moved;
        for (int32_t a = 0; a < f->news.n_alerts; a++)
            *n_raised += f->news.alert[a].is_raised && f->news.alert[a].layer == 2;
    }
}

static void test_skew_is_told_and_moved_away(void **state)
{
    (void)state;
    fixture *f = start(DEVICES, N_EXPERTS);
    open(f);
    int32_t n_raised = 0, n_moved = 0;
    for (int32_t i = 0; i < 12; i++)
        add_hot_window(f, &n_raised, &n_moved);
    assert_true(n_raised > 0);
    ek_alert alerts[8];
    int32_t n = ek_keel_alerts(f->keel, alerts, 8);
    assert_true(n >= 1 && n <= 8);
    assert_true(ek_keel_alert_count(f->keel, EK_DETECT_IMBALANCE) == 1);
    bool imbalance = false;
    for (int32_t i = 0; i < n; i++)
        imbalance |= alerts[i].kind == EK_DETECT_IMBALANCE && alerts[i].layer == 2;
    assert_true(imbalance);

    /* Two hot experts cannot do better than a device each; layers 0 and 1 are left alone. */
    ek_place_controller_stats stats;
    ek_place_outlook outlook;
    assert_true(ek_keel_rebalance_stats(f->keel, &stats, &outlook));
    assert_int_equal(stats.n_steps, n_moved);
    const int32_t *slots = ek_keel_slot_expert(f->keel, 2);
    int32_t device_of[2] = {-1, -1};
    for (int32_t d = 0; d < DEVICES; d++)
        for (int32_t s = ek_keel_slot_beg(f->keel)[d]; s < ek_keel_slot_beg(f->keel)[d + 1]; s++)
            if (slots[s] == 0 || slots[s] == 1) device_of[slots[s]] = d;
    assert_true(device_of[0] != device_of[1]);
    assert_memory_equal(ek_keel_slot_expert(f->keel, 0), ek_keel_slot_expert(f->keel, 1),
                        N_EXPERTS * sizeof *slots);
    end(f);
}

/** The controller's moves are in the shares of the next plan. */
static void test_shares_follow_a_move(void **state)
{
    (void)state;
    int32_t slots[N_LAYERS * N_EXPERTS];
    for (int32_t i = 0; i < N_LAYERS * N_EXPERTS; i++)
        slots[i] = i % N_EXPERTS; /* experts 0 and 1 on device 0 */
    fixture *f = start(DEVICES, N_EXPERTS);
    f->setup.slot_expert = slots;
    open(f);
    int32_t n_raised = 0, n_moved = 0;
    for (int32_t i = 0; i < 12; i++)
        add_hot_window(f, &n_raised, &n_moved);
    assert_true(n_moved > 0);
    const int32_t beg[N_EXPERTS + 1] = {0, 100, 200, 200, 200, 200, 200, 200, 200};
    for (int32_t l = 0; l < N_LAYERS; l++) {
        uint8_t memory[8192];
        ek_arena step = ek_arena_over(memory, sizeof memory);
        assert_true(ek_keel_share_bytes(f->keel) <= sizeof memory);
        ek_keel_shares shares;
        assert_int_equal(ek_keel_share(f->keel, l, beg, &step, &shares), EK_OK);
        int32_t n_devices = 0;
        for (int32_t d = 0; d < DEVICES; d++)
            n_devices += shares.device_beg[d] < shares.device_beg[d + 1];
        assert_int_equal(n_devices, l == 2 ? 2 : 1);
    }
    end(f);
}

/** Device 1 goes: what it had lies on device 0, and shares and loads follow. */
static void test_devices_come_and_go(void **state)
{
    (void)state;
    fixture *f = start(2, 16);
    f->params.rebalance = false;
    open(f);
    int32_t slots[16], beg[N_EXPERTS + 1];
    memory_of_step memory;
    for (int32_t e = 0; e <= N_EXPERTS; e++)
        beg[e] = 10 * e;
    for (int32_t s = 0; s < 16; s++)
        slots[s] = s < N_EXPERTS ? s : -1;
    ek_keel_adopt(f->keel, 1, slots);
    for (int32_t l = 0; l < 2; l++) {
        ek_keel_shares shares;
        ek_arena step = ek_arena_over(&memory, ek_keel_share_bytes(f->keel));
        assert_int_equal(ek_keel_share(f->keel, l, beg, &step, &shares), EK_OK);
        int32_t rows = 0;
        for (int32_t s = shares.device_beg[1]; s < shares.device_beg[2]; s++)
            rows += shares.share_row[2 * s + 1] - shares.share_row[2 * s];
        assert_int_equal(rows, l == 1 ? 0 : 40); /* the other layer is shared as before */
    }
    assert_memory_equal(ek_keel_slot_expert(f->keel, 1), slots, sizeof slots);
    pass(f, 1, 0, 30);
    pass(f, 1, 0, 30);
    const ek_route_view *view = ek_keel_view(f->keel, f->now_us);
    assert_non_null(view);
    for (int32_t e = 0; e < N_EXPERTS; e++) {
        assert_true(view->utilisation[N_EXPERTS + e] > 0); /* no idle replica hides it */
        assert_int_equal(view->n_replicas[N_EXPERTS + e], 1);
    }
    end(f);
}

/** While devices do not say how busy they are, the view they left grows old. */
static void test_unknown_loads_make_no_samples(void **state)
{
    (void)state;
    fixture *f = start(2, 16);
    open(f);
    pass(f, 0, 0, 30);
    pass(f, 0, 0, 30);
    uint64_t version = ek_keel_view(f->keel, f->now_us)->version;
    ek_keel_loads_known(f->keel, false);
    for (int i = 1; i <= 8; i++) {
        pass(f, 0, 0, 90);
        const ek_route_view *view = ek_keel_view(f->keel, f->now_us);
        assert_int_equal(view->version, version);
        assert_int_equal(view->age_us, i * PERIOD_US);
    }
    ek_load_view_stats stats;
    ek_telemetry_load_view_stats_get(ek_keel_load(f->keel), &stats);
    assert_int_equal(stats.n_missed, 8);
    ek_keel_loads_known(f->keel, true);
    pass(f, 0, 0, 10);
    assert_int_equal(ek_keel_view(f->keel, f->now_us)->age_us, 0);
    end(f);
}

static void test_one_device_has_nothing_to_rebalance(void **state)
{
    (void)state;
    fixture *f = start(1, 0);
    open(f);
    ek_place_controller_stats stats;
    ek_place_outlook outlook;
    assert_false(ek_keel_rebalance_stats(f->keel, &stats, &outlook));
    int32_t n_raised = 0, n_moved = 0;
    for (int32_t i = 0; i < 6; i++)
        add_hot_window(f, &n_raised, &n_moved);
    assert_true(n_raised > 0); /* alerts do not depend on devices */
    assert_int_equal(n_moved, 0);
    end(f);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_slots_of_a_layer),
        cmocka_unit_test(test_what_cannot_be_is_refused_with_its_key),
        cmocka_unit_test(test_a_given_placement_is_taken_or_refused),
        cmocka_unit_test(test_an_experts_load_is_that_of_its_least_busy_device),
        cmocka_unit_test(test_the_tail_is_of_the_last_period),
        cmocka_unit_test(test_skew_is_told_and_moved_away),
        cmocka_unit_test(test_shares_follow_a_move),
        cmocka_unit_test(test_devices_come_and_go),
        cmocka_unit_test(test_unknown_loads_make_no_samples),
        cmocka_unit_test(test_one_device_has_nothing_to_rebalance),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
