/*
 * Goal: the rebalance controller does what its header says at every border: what is worth a move, what
 * comes first, and every order in which an executor, its failures, the watchdog and dying devices can
 * meet. Method: a cluster small enough to compute all figures by hand; then every sequence of events up
 * to a depth from each of its states, held against the table of allowed transitions and a second
 * bookkeeping of placement and counters.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/drift.h"
#include "place/controller.h"
#include "place/inputs.h"
#include "support/fixtures.h"

#define S INT64_C(1000000)

enum { E = 3, G = 2, SLOTS = 4, LAYERS = 2, CELLS = LAYERS * E };

/* Devices {0, 1} and {2, -}. */
static const int32_t start[LAYERS * SLOTS] = {0, 1, 2, -1, 0, 1, 2, -1};

/* Layer 0: devices 9 and 3 of mean 6, which one replica more makes even. Layer 1: even. */
static const int64_t skewed[CELLS] = {600, 300, 300, 300, 300, 600};
static const int64_t even[CELLS] = {300, 300, 600, 300, 300, 600};

typedef struct rig {
    ek_place_controller_setup setup;
    ek_place_controller_params params;
    ek_place_controller *c;
    void *memory; /* owned; of the controller */
    size_t bytes;
    void *scratch_memory; /* owned */
    ek_arena scratch;
    int64_t now_us;
} rig;

static rig rig_params(void)
{
    rig r = {
        .setup = {.topology = {.n_experts = E,
                               .n_slots = SLOTS,
                               .n_devices = G,
                               .n_nodes = 1,
                               .n_groups = 1},
                  .n_layers = LAYERS,
                  .slot_expert = start},
        .now_us = 100 * S,
    };
    ek_place_controller_params_default(&r.params);
    r.params.bytes_per_expert = 29;
    r.params.link_bytes_per_s = 10.0;
    r.params.seconds_per_row = 1e-3;
    r.params.horizon_us = 10 * S;
    r.params.n_windows = 4;
    r.params.n_windows_min = 2;
    r.params.max_step_bytes = 1000;
    return r;
}

static void rig_open(rig *r)
{
    ek_err err = {0};
    r->bytes = ek_place_controller_bytes(&r->setup, &r->params);
    ek_arena perm = ek_fixture_arena(r->bytes);
    r->memory = perm.beg;
    r->scratch = ek_fixture_arena(ek_place_controller_scratch_bytes(&r->setup, &r->params));
    r->scratch_memory = r->scratch.beg;
    if (ek_place_controller_create(&r->setup, &r->params, &perm, &r->c, &err) != EK_OK)
        fail_msg("%s", err.text);
}

static void rig_close(rig *r)
{
    ek_fixture_arena_free(r->memory);
    ek_fixture_arena_free(r->scratch_memory);
}

static void feed(rig *r, const int64_t *tokens, int32_t n_windows)
{
    for (int32_t i = 0; i < n_windows; i++) {
        r->now_us += S;
        ek_place_controller_feed(r->c, r->now_us, S, tokens);
    }
}

/* Look at all layers that there are to look at, or until a rebalance begins. */
static ek_place_outlook decide(rig *r)
{
    ek_place_outlook first = {.layer = -1};
    for (int32_t i = 0; i < LAYERS + 1; i++) {
        ek_place_outlook o;
        if (ek_place_controller_decide(r->c, r->now_us, r->scratch, &o) != EK_OK) return first;
        if (i == 0 || o.verdict <= EK_PLACE_REQUIRED) first = o;
    }
    fail_msg("more layers to look at than there are");
    return first;
}

static ek_place_step next(rig *r)
{
    ek_place_step step;
    assert_int_equal(ek_place_controller_next(r->c, r->now_us, &step), EK_OK);
    return step;
}

static ek_place_controller_stats stats(const rig *r)
{
    ek_place_controller_stats s;
    ek_place_controller_stats_get(r->c, &s);
    return s;
}

static void assert_near(double got, double expected)
{
    if (fabs(got - expected) > 1e-9 * fmax(1.0, fabs(expected)))
        fail_msg("%.17g is not %.17g", got, expected);
}

/* ---- what is worth a move ---- */

static void test_a_gain_by_hand(void **state)
{
    (void)state;
    rig r = rig_params();
    rig_open(&r);
    feed(&r, skewed, 2);
    ek_place_outlook o = decide(&r);
    assert_int_equal(o.verdict, EK_PLACE_PAYS);
    assert_int_equal(o.layer, 0);
    assert_near(o.now, 1.5);
    assert_near(o.then, 1.0);
    assert_near(o.gain, 0.5); /* both windows say the same: no standard error */
    /* 1200 rows/s over 2 devices at 1 ms are 0.6 of the time; 10 s of it, half of which is saved. */
    assert_near(o.saved_s, 3.0);
    assert_near(o.cost_s, 2.9);
    assert_int_equal(o.n_replicas, 1);
    ek_place_controller_stats s = stats(&r);
    assert_int_equal(s.state, EK_PLACE_READY);
    assert_int_equal(s.layer, 0);
    assert_int_equal(s.last_commit_us, -1);

    ek_place_step step = next(&r);
    assert_int_equal(step.layer, 0);
    assert_int_equal(step.n_moves, 1);
    assert_int_equal(step.n_replicas, 1);
    assert_int_equal(step.bytes, 29);
    assert_int_equal(step.moves[0].slot, 3);
    assert_memory_equal(ek_place_controller_slots(r.c, 0), start, SLOTS * sizeof *start);
    r.now_us += S;
    assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, step.id), EK_OK);
    assert_int_equal(ek_place_controller_slots(r.c, 0)[3], step.moves[0].expert);
    s = stats(&r);
    assert_int_equal(s.state, EK_PLACE_IDLE);
    assert_int_equal(s.layer, -1);
    assert_int_equal(s.n_finished, 1);
    assert_int_equal(s.n_replicas, 1);
    assert_int_equal(s.bytes, 29);
    assert_int_equal(s.last_commit_us, r.now_us);
    r.now_us += 2 * S; /* the pause is over: the layer is even now */
    feed(&r, skewed, 1);
    assert_int_equal(decide(&r).verdict, EK_PLACE_EVEN);
    rig_close(&r);
}

static ek_place_outlook outlook_with(const ek_place_controller_params *params,
                                     const int64_t *const *windows, int32_t n_windows)
{
    rig r = rig_params();
    r.params = *params;
    rig_open(&r);
    for (int32_t i = 0; i < n_windows; i++)
        feed(&r, windows[i], 1);
    ek_place_outlook o = decide(&r);
    rig_close(&r);
    return o;
}

static void test_verdicts(void **state)
{
    (void)state;
    static const int64_t *const same[] = {skewed, skewed, skewed};
    ek_place_controller_params p = rig_params().params;
    p.bytes_per_expert = 30; /* 3 s of moving for 3 s of gain */
    assert_int_equal(outlook_with(&p, same, 2).verdict, EK_PLACE_DEAR);
    p.horizon_us = 10 * S + 1;
    assert_int_equal(outlook_with(&p, same, 2).verdict, EK_PLACE_PAYS);
    p.min_gain = 0.500001;
    assert_int_equal(outlook_with(&p, same, 2).verdict,
                     EK_PLACE_EVEN); /* 1.5 - 1 is all there is */
    p = rig_params().params;
    assert_int_equal(outlook_with(&p, same, 1).verdict, EK_PLACE_FEW_WINDOWS);
    assert_int_equal(outlook_with(&p, same, 0).verdict, EK_PLACE_FEW_WINDOWS);
    p.n_windows_min = 3;
    assert_int_equal(outlook_with(&p, same, 2).verdict, EK_PLACE_FEW_WINDOWS);
    assert_int_equal(outlook_with(&p, same, 3).verdict, EK_PLACE_PAYS);
}

/* The mean of one good window and two bad ones is a gain, but not one to bet on. */
static void test_one_window_is_no_history(void **state)
{
    (void)state;
    static const int64_t burst[CELLS] = {4000, 300, 300, 300, 300, 600};
    static const int64_t *const windows[] = {even, even, burst};
    ek_place_controller_params p = rig_params().params;
    p.n_windows_min = 3;
    p.bytes_per_expert = 1;
    p.fresh_start_drift = 1.0; /* never: this is about chance */
    ek_place_outlook o = outlook_with(&p, windows, 3);
    assert_int_equal(o.verdict, EK_PLACE_SMALL);
    assert_true(o.now - o.then > 0.1); /* what the mean alone would have promised */
    assert_true(o.gain < 0.0);
    p.confidence = 0.0;
    assert_int_equal(outlook_with(&p, windows, 3).verdict, EK_PLACE_PAYS);
}

static void test_standard_error_by_hand(void **state)
{
    (void)state;
    /* Layer 0 only: busiest/mean 1.5 -> 1 in one window, (1200 + 300) / 900 -> (600 + 300) / 900
     * or better in the other, as the loads' mean decides which expert is doubled. */
    static const int64_t other[CELLS] = {1200, 300, 300, 300, 300, 600};
    static const int64_t *const windows[] = {skewed, other};
    ek_place_controller_params p = rig_params().params;
    p.confidence = 1.0;
    p.fresh_start_drift = 1.0;
    p.bytes_per_expert = 1;
    ek_place_outlook o = outlook_with(&p, windows, 2);
    assert_int_equal(o.verdict, EK_PLACE_PAYS);
    assert_near(o.now, 0.5 * (1.5 + 1500.0 / 900.0));
    /* Expert 0 in the free slot: 600 on each device of 600, then 900 on each of 900. */
    assert_near(o.then, 1.0);
    double gain_a = 0.5, gain_b = 1500.0 / 900.0 - 1.0, mean = 0.5 * (gain_a + gain_b);
    double error = fabs(gain_a - gain_b) / 2.0; /* sd / sqrt(2) of two values */
    assert_near(o.gain, mean - error);
}

static void test_stale_loads_move_nothing(void **state)
{
    (void)state;
    rig r = rig_params();
    rig_open(&r);
    feed(&r, skewed, 3);
    r.now_us += r.params.stale_us + 1;
    assert_int_equal(decide(&r).verdict, EK_PLACE_STALE);
    assert_int_equal(decide(&r).layer, -1); /* all were looked at */
    static const int64_t nothing[CELLS] = {0};
    feed(&r, nothing, 1); /* no news */
    assert_int_equal(stats(&r).last_window_us, r.now_us - S - r.params.stale_us - 1);
    assert_int_equal(decide(&r).layer, -1);
    feed(&r, skewed, 1);
    assert_int_equal(decide(&r).verdict, EK_PLACE_PAYS);
    rig_close(&r);
}

static void test_loads_are_halved(void **state)
{
    (void)state;
    rig r = rig_params();
    r.params.half_life_us = 2 * S;
    r.params.fresh_start_drift = 1.0;
    rig_open(&r);
    feed(&r, skewed, 1);
    r.now_us += S;
    feed(&r, even, 1); /* two seconds later */
    const double *loads = ek_place_controller_loads(r.c, 0);
    assert_near(loads[0], 300 + 300);
    assert_near(loads[1], 150 + 300);
    assert_near(loads[2], 150 + 600);
    r.now_us += 3 * S;
    feed(&r, even, 1); /* four seconds: a quarter */
    assert_near(ek_place_controller_loads(r.c, 0)[0], 150 + 300);
    rig_close(&r);
}

/* Traffic of another kind: the old windows neither vote on a move nor weigh in the loads. */
static void test_fresh_start(void **state)
{
    (void)state;
    rig r = rig_params();
    rig_open(&r);
    feed(&r, even, 4);
    decide(&r);
    static const int64_t other[CELLS] = {1800, 300, 300, 300, 300, 600};
    /* Shares 1/4 1/4 1/2 against 3/4 1/8 1/8: half of 1/2 + 1/8 + 3/8. */
    assert_near(ek_drift(even, other, E), 0.5);
    feed(&r, other, 1);
    assert_int_equal(stats(&r).n_fresh_starts, 1); /* layer 1 went on as before */
    assert_near(ek_place_controller_loads(r.c, 0)[0], 1800);
    ek_place_outlook o = decide(&r);
    assert_int_equal(o.verdict, EK_PLACE_FEW_WINDOWS); /* one window is not enough */
    assert_int_equal(o.layer, 0);
    feed(&r, other, 1);
    o = decide(&r);
    assert_int_equal(o.verdict, EK_PLACE_PAYS);
    assert_near(o.now, 2100.0 / 1200.0); /* of the new windows alone */
    rig_close(&r);
}

static double always_even(const void *ctx, const int32_t *tokens, const int32_t *slot_expert,
                          ek_arena scratch)
{
    (void)scratch;
    assert_true(tokens[0] > 0 && slot_expert[0] >= 0);
    (*(int32_t *)(uintptr_t)ctx)++;
    return 1.0;
}

/* What the dispatcher evens out by itself is no reason to move. */
static void test_the_dispatcher_counts(void **state)
{
    (void)state;
    int32_t n_calls = 0;
    rig r = rig_params();
    r.setup.balance = always_even;
    r.setup.balance_ctx = &n_calls;
    rig_open(&r);
    feed(&r, skewed, 2);
    assert_int_equal(decide(&r).verdict, EK_PLACE_EVEN);
    assert_int_equal(n_calls, 2 * LAYERS); /* each window of each layer once */
    feed(&r, skewed, 1);
    decide(&r);
    assert_int_equal(n_calls, 3 * LAYERS); /* the placement is the old one: only the new window */
    rig_close(&r);
}

/* The layer that loses most comes first, and only one is under way. */
static void test_worst_layer_first(void **state)
{
    (void)state;
    static const int64_t both[CELLS] = {600, 300, 300, 1800, 600, 300};
    rig r = rig_params();
    rig_open(&r);
    feed(&r, both, 2);
    ek_place_outlook o = decide(&r);
    assert_int_equal(o.verdict, EK_PLACE_PAYS);
    assert_int_equal(o.layer, 1);
    assert_int_equal(ek_place_controller_decide(r.c, r.now_us, r.scratch, &o), EK_AGAIN);
    while (stats(&r).state != EK_PLACE_IDLE)
        assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, next(&r).id), EK_OK);
    o = decide(&r); /* layer 1 pauses */
    assert_int_equal(o.verdict, EK_PLACE_PAYS);
    assert_int_equal(o.layer, 0);
    rig_close(&r);
}

/* ---- devices and shared experts ---- */

static const bool second_dead[G] = {false, true};

static void test_lost_experts_come_first(void **state)
{
    (void)state;
    rig r = rig_params();
    r.setup.topology.n_slots = 6; /* three on each: one device can hold all */
    static const int32_t six[LAYERS * 6] = {0, 1, -1, 2, -1, -1, 0, 1, -1, 2, -1, -1};
    r.setup.slot_expert = six;
    rig_open(&r);
    ek_place_controller_devices(r.c, r.now_us, second_dead);
    ek_place_outlook o = decide(&r); /* without a single window of counts */
    assert_int_equal(o.verdict, EK_PLACE_REQUIRED);
    assert_int_equal(o.n_moves, 1);
    ek_place_step step = next(&r);
    assert_int_equal(step.moves[0].slot, 2);
    assert_int_equal(step.moves[0].expert, 2);
    assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, step.id), EK_OK);
    static const int32_t restored[6] = {0, 1, 2, -1, -1, -1};
    assert_memory_equal(ek_place_controller_slots(r.c, 0), restored, sizeof restored);
    o = decide(&r);
    assert_int_equal(o.verdict, EK_PLACE_REQUIRED);
    assert_int_equal(o.layer, 1);
    step = next(&r);
    ek_place_controller_devices(r.c, r.now_us, NULL); /* it comes back, empty, in the middle */
    assert_int_equal(stats(&r).state, EK_PLACE_IDLE);
    assert_int_equal(stats(&r).n_failed, 1);
    assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, step.id), EK_ESTALE);
    assert_int_equal(ek_place_controller_fail(r.c, r.now_us, step.id), EK_ESTALE);
    assert_int_equal(decide(&r).verdict, EK_PLACE_REQUIRED); /* what lay there is gone */
    rig_close(&r);
}

static void test_no_room_for_the_lost(void **state)
{
    (void)state;
    rig r = rig_params();
    rig_open(&r); /* two slots for three experts when one device is dead */
    ek_place_controller_devices(r.c, r.now_us, second_dead);
    assert_int_equal(decide(&r).verdict, EK_PLACE_NO_ROOM);
    assert_int_equal(decide(&r).layer, -1);
    r.now_us += r.params.pause_us;
    assert_int_equal(decide(&r).verdict, EK_PLACE_NO_ROOM);
    ek_place_controller_devices(r.c, r.now_us, NULL);
    assert_int_equal(decide(&r).verdict, EK_PLACE_REQUIRED);
    rig_close(&r);
}

/* Experts 0..2 routed, 3 shared and on both devices; one slot is free on the second. */
static const int32_t with_shared[LAYERS * 6] = {3, 0, 1, 2, 3, -1, 3, 0, 1, 2, 3, -1};
static const int64_t shared_tokens[LAYERS * 4] = {600, 300, 300, 1200, 300, 300, 600, 1200};

static rig rig_shared(void)
{
    rig r = rig_params();
    r.setup.topology.n_experts = 4;
    r.setup.topology.n_slots = 6;
    r.setup.n_shared = 1;
    r.setup.shared_everywhere = true;
    r.setup.slot_expert = with_shared;
    return r;
}

static void test_shared_everywhere(void **state)
{
    (void)state;
    rig r = rig_shared();
    rig_open(&r);
    feed(&r, shared_tokens, 2);
    ek_place_outlook o = decide(&r);
    assert_int_equal(o.verdict, EK_PLACE_PAYS);
    /* Devices 900 and 300, and 600 of the shared expert's work on each: 1500 of 1200. */
    assert_near(o.now, 1.25);
    assert_near(o.then, 1.0);
    ek_place_step step = next(&r);
    assert_int_equal(step.moves[0].slot, 5);
    assert_true(step.moves[0].expert < 3);
    assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, step.id), EK_OK);
    /* A device that dies and returns lacks its copy, and that comes before anything else. */
    ek_place_controller_devices(r.c, r.now_us, second_dead);
    ek_place_controller_devices(r.c, r.now_us, NULL);
    o = decide(&r);
    assert_int_equal(o.verdict, EK_PLACE_REQUIRED);
    step = next(&r);
    assert_true(step.moves[0].slot >= 3);
    assert_int_equal(step.moves[0].expert, 3);
    assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, step.id), EK_OK);
    while (stats(&r).state != EK_PLACE_IDLE) /* and then the lost one, in the same rebalance */
        assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, next(&r).id), EK_OK);
    const int32_t *slots = ek_place_controller_slots(r.c, 0);
    bool seen[4] = {false};
    for (int32_t s = 0; s < 6; s++)
        if (slots[s] >= 0) seen[slots[s]] = true;
    assert_true(seen[0] && seen[1] && seen[2] && seen[3]);
    assert_int_equal(ek_place_controller_idle(r.c, 0), 0); /* a copy everywhere is never idle */
    rig_close(&r);
}

/* As an expert like others it is the hottest, and gets another replica for balance's sake. */
static void test_shared_as_expert(void **state)
{
    (void)state;
    static const int32_t once[LAYERS * 6] = {3, 0, -1, 2, 1, -1, 3, 0, -1, 2, 1, -1};
    rig r = rig_shared();
    r.setup.shared_everywhere = false;
    r.setup.slot_expert = once;
    rig_open(&r);
    feed(&r, shared_tokens, 2);
    ek_place_outlook o = decide(&r);
    assert_int_equal(o.verdict, EK_PLACE_PAYS);
    assert_near(o.now, 1.5); /* 1800 and 600 */
    while (stats(&r).state != EK_PLACE_IDLE)
        assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, next(&r).id), EK_OK);
    int32_t n_copies = 0;
    for (int32_t s = 0; s < 6; s++)
        n_copies += ek_place_controller_slots(r.c, o.layer)[s] == 3;
    assert_int_equal(n_copies, 2);
    rig_close(&r);
}

/* Idle: more replicas than ceil(load / mean slot's load). The hotter expert gets their slots. */
static void test_idle_replicas_are_reclaimed(void **state)
{
    (void)state;
    static const int32_t doubled[LAYERS * SLOTS] = {0, 1, 0, 2, 0, 1, 0, 2};
    static const int64_t cold[CELLS] = {100, 900, 200, 400, 400, 400}; /* mean slot: 300 */
    rig r = rig_params();
    r.setup.slot_expert = doubled;
    rig_open(&r);
    feed(&r, cold, 2);
    assert_int_equal(ek_place_controller_idle(r.c, 0), 1); /* 100 of 300 needs one, has two */
    assert_int_equal(ek_place_controller_idle(r.c, 1), 0); /* 400 of 300 needs two, has two */
    assert_int_equal(decide(&r).verdict, EK_PLACE_PAYS);
    while (stats(&r).state != EK_PLACE_IDLE)
        assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, next(&r).id), EK_OK);
    assert_int_equal(ek_place_controller_idle(r.c, 0), 0);
    assert_int_equal(stats(&r).n_reclaimed, 1);
    rig_close(&r);
}

static void test_adopt(void **state)
{
    (void)state;
    rig r = rig_params();
    rig_open(&r);
    static const int32_t good[SLOTS] = {2, 1, 0, 1}, wrong[SLOTS] = {0, 1, 3, 2};
    assert_int_equal(ek_place_controller_adopt(r.c, r.now_us, 1, wrong), EK_EINVAL);
    assert_int_equal(ek_place_controller_adopt(r.c, r.now_us, 1, good), EK_OK);
    assert_memory_equal(ek_place_controller_slots(r.c, 0), start, sizeof good);
    assert_memory_equal(ek_place_controller_slots(r.c, 1), good, sizeof good);
    ek_place_controller_devices(r.c, r.now_us, second_dead);
    assert_int_equal(ek_place_controller_adopt(r.c, r.now_us, 1, good), EK_EINVAL);
    rig_close(&r);
}

static void test_setups_are_checked(void **state)
{
    (void)state;
    static const int32_t twice[LAYERS * 6] = {3, 0, 1, 2, 3, -1, 3, 3, 1, 2, 3, -1};
    static const int32_t lacks[LAYERS * 6] = {3, 0, 1, 2, 0, 1, 3, 0, 1, 2, 3, -1};
    ek_err err;
    rig r = rig_shared();
    assert_int_equal(ek_place_controller_check(&r.setup, &r.params, &err), EK_OK);
    r.setup.slot_expert = twice;
    assert_int_equal(ek_place_controller_check(&r.setup, &r.params, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "layer 1: device 0 holds shared expert 3 twice"));
    r.setup.slot_expert = lacks;
    assert_int_equal(ek_place_controller_check(&r.setup, &r.params, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "layer 0: device 1 lacks a shared expert"));
    r.setup.slot_expert = with_shared;
    r.setup.n_shared = 4;
    assert_int_equal(ek_place_controller_check(&r.setup, &r.params, &err), EK_EINVAL);
    r.setup.n_shared = 1;
    r.setup.n_layers = 0;
    assert_int_equal(ek_place_controller_check(&r.setup, &r.params, &err), EK_EINVAL);
    r.setup.n_layers = LAYERS;
    r.setup.topology.n_devices = 0;
    assert_int_equal(ek_place_controller_check(&r.setup, &r.params, &err), EK_EINVAL);
    r = rig_shared();
    r.params.max_step_bytes = 2 * r.params.bytes_per_expert - 1;
    assert_int_equal(ek_place_controller_check(&r.setup, &r.params, &err), EK_EINVAL);
    assert_non_null(strstr(err.text, "a swap has them"));
    r = rig_shared();
    r.params.n_windows_min = r.params.n_windows + 1;
    assert_int_equal(ek_place_controller_check(&r.setup, &r.params, &err), EK_EINVAL);
    r.params.n_windows_min = 1;
    r.params.target = NAN;
    assert_int_equal(ek_place_controller_check(&r.setup, &r.params, &err), EK_EINVAL);
    r.params.target = 1.01;
    static uint8_t little[64];
    ek_arena perm = ek_arena_over(little, sizeof little);
    ek_place_controller *c = NULL;
    assert_int_equal(ek_place_controller_create(&r.setup, &r.params, &perm, &c, &err), EK_ENOMEM);
    assert_null(c);
    rig_open(&r);
    ek_place_outlook o;
    assert_int_equal(ek_place_controller_decide(r.c, r.now_us, perm, &o), EK_ENOMEM);
    rig_close(&r);
}

/* ---- every order of events ---- */

typedef enum event {
    EV_FEED,
    EV_DECIDE,
    EV_NEXT,
    EV_CONFIRM,       /* the step that was handed out last */
    EV_CONFIRM_WRONG, /* one that never was */
    EV_FAIL,
    EV_HALF_TIMEOUT, /* time passes, and the watchdog looks */
    EV_DEVICE_DIES,
    EV_DEVICE_RETURNS,
    EV_ADOPT, /* layer 0's placement, as it was at the start of the last step */
    N_EVENTS,
} event;

enum { DEPTH = 6, ALIVE_EVERY = 1000, PER_DEVICE = 4, WIDE = G * PER_DEVICE, WIDE_E = 5 };

/* Experts 0..3 routed, 4 shared. A device that returns lacks three: more than one step takes. */
static const int32_t wide[LAYERS * WIDE] = {4, 0, 1, -1, 4, 2, 3, -1, 4, 0, 1, -1, 4, 2, 3, -1};
static const int64_t wide_tokens[LAYERS * WIDE_E] = {600, 300, 200, 100, 1200,
                                                     200, 300, 100, 600, 1200};

static rig rig_wide(void)
{
    rig r = rig_shared();
    r.setup.topology.n_experts = WIDE_E;
    r.setup.topology.n_slots = WIDE;
    r.setup.slot_expert = wide;
    r.params.max_step_replicas = 2;
    r.params.bytes_per_expert = 1; /* what is even is worth it */
    return r;
}

typedef struct book {
    ek_place_step step; /* handed out last, with a copy of its moves */
    ek_place_move moves[16];
    int32_t slots[LAYERS * WIDE];
    bool dead;
    int64_t last_progress_us;
} book;

static int64_t n_nodes_walked;

/* What each event may lead to from each state, as bits. */
static const uint8_t allowed[N_EVENTS][3] = {
    /*                     IDLE    READY   WAITING */
    [EV_FEED] = {1, 2, 4},
    [EV_DECIDE] = {1 | 2, 2, 4},
    [EV_NEXT] = {1, 4, 4},
    [EV_CONFIRM] = {1, 2, 1 | 2},
    [EV_CONFIRM_WRONG] = {1, 2, 4},
    [EV_FAIL] = {1, 2, 1},
    [EV_HALF_TIMEOUT] = {1, 1 | 2, 1 | 4},
    [EV_DEVICE_DIES] = {1, 1 | 2, 1 | 4},
    [EV_DEVICE_RETURNS] = {1, 1 | 2, 1 | 4},
    [EV_ADOPT] = {1, 1 | 2, 1 | 4},
};

static void book_carry_out(book *b)
{
    int32_t *slots = b->slots + b->step.layer * WIDE;
    for (int32_t i = 0; i < b->step.n_moves; i++) {
        const ek_place_move *m = &b->moves[i];
        if (m->other_slot >= 0) {
            assert_int_equal(slots[m->slot], m->other_expert);
            assert_int_equal(slots[m->other_slot], m->expert);
            slots[m->other_slot] = m->other_expert;
        }
        slots[m->slot] = m->expert;
    }
}

static void event_next(rig *r, book *b, ek_place_state before)
{
    ek_place_step step;
    ek_status status = ek_place_controller_next(r->c, r->now_us, &step);
    assert_int_equal(status, before == EK_PLACE_READY ? EK_OK : EK_AGAIN);
    if (status != EK_OK) return;
    assert_true(step.n_moves >= 1 && step.n_moves <= 16);
    assert_true(step.n_replicas <= r->params.max_step_replicas);
    assert_true(step.bytes <= r->params.max_step_bytes);
    assert_true(step.id > b->step.id);
    b->step = step;
    memcpy(b->moves, step.moves, (size_t)step.n_moves * sizeof *step.moves);
    b->last_progress_us = r->now_us;
}

static void event_kill(rig *r, book *b, bool dead)
{
    const bool devices[G] = {false, dead};
    ek_place_controller_devices(r->c, r->now_us, devices);
    for (int32_t l = 0; dead != b->dead && l < LAYERS; l++)
        for (int32_t s = PER_DEVICE; s < WIDE; s++)
            b->slots[l * WIDE + s] = EK_PLACE_EMPTY;
    b->dead = dead;
}

static void do_event(rig *r, book *b, event ev, ek_place_state before)
{
    ek_place_outlook o;
    bool is_out = before == EK_PLACE_WAITING;
    switch (ev) {
    case EV_FEED: feed(r, wide_tokens, 1); break;
    case EV_DECIDE:
        if (ek_place_controller_decide(r->c, r->now_us, r->scratch, &o) == EK_AGAIN)
            assert_true(before != EK_PLACE_IDLE);
        else if (stats(r).state == EK_PLACE_READY)
            b->last_progress_us = r->now_us;
        break;
    case EV_NEXT: event_next(r, b, before); break;
    case EV_CONFIRM:
        assert_int_equal(ek_place_controller_confirm(r->c, r->now_us, b->step.id),
                         is_out ? EK_OK : EK_ESTALE);
        if (is_out) book_carry_out(b);
        if (is_out) b->last_progress_us = r->now_us;
        break;
    case EV_CONFIRM_WRONG:
        assert_int_equal(ek_place_controller_confirm(r->c, r->now_us, b->step.id + 1), EK_ESTALE);
        break;
    case EV_FAIL:
        assert_int_equal(ek_place_controller_fail(r->c, r->now_us, b->step.id),
                         is_out ? EK_OK : EK_ESTALE);
        break;
    case EV_HALF_TIMEOUT:
        r->now_us += r->params.step_timeout_us / 2 + 1;
        bool is_late =
            before != EK_PLACE_IDLE && r->now_us - b->last_progress_us > r->params.step_timeout_us;
        assert_int_equal(ek_place_controller_watch(r->c, r->now_us), is_late);
        break;
    case EV_DEVICE_DIES: event_kill(r, b, true); break;
    case EV_DEVICE_RETURNS: event_kill(r, b, false); break;
    case EV_ADOPT:
        assert_int_equal(ek_place_controller_adopt(r->c, r->now_us, 0, b->slots), EK_OK);
        break;
    case N_EVENTS: break;
    }
}

/* What holds after every event, whatever came before. */
static void check_all(rig *r, const book *b, event ev, ek_place_state before)
{
    ek_place_controller_stats s = stats(r);
    if (!(allowed[ev][before] & 1u << s.state))
        fail_msg("event %d led from state %d to %d", ev, before, s.state);
    bool is_active = s.state != EK_PLACE_IDLE;
    assert_int_equal(s.n_rebalances, s.n_finished + s.n_failed + s.n_timeouts + is_active);
    assert_int_equal(s.layer >= 0, is_active);
    for (int32_t l = 0; l < LAYERS; l++) {
        const int32_t *slots = ek_place_controller_slots(r->c, l);
        assert_memory_equal(slots, b->slots + l * WIDE, WIDE * sizeof *slots);
        for (int32_t d = 0; d < G; d++) /* no expert twice on a device */
            for (int32_t i = 0; i < PER_DEVICE; i++)
                for (int32_t k = 0; k < i; k++)
                    assert_true(slots[d * PER_DEVICE + i] < 0 ||
                                slots[d * PER_DEVICE + i] != slots[d * PER_DEVICE + k]);
        for (int32_t i = PER_DEVICE; b->dead && i < WIDE; i++)
            assert_int_equal(slots[i], EK_PLACE_EMPTY);
    }
}

typedef struct saved {
    uint8_t memory[16384];
    book b;
    int64_t now_us;
} saved;

/* Nothing that happened keeps the next rebalance from coming: feed, and carry out what is wanted. */
static void check_alive(rig *r, book *b)
{
    event_kill(r, b, false);
    for (int32_t round = 0; round < 40; round++) {
        r->now_us += r->params.pause_us;
        feed(r, wide_tokens, 1);
        (void)ek_place_controller_watch(r->c, r->now_us);
        ek_place_state state = stats(r).state;
        if (state == EK_PLACE_IDLE) do_event(r, b, EV_DECIDE, state);
        while ((state = stats(r).state) != EK_PLACE_IDLE)
            do_event(r, b, state == EK_PLACE_READY ? EV_NEXT : EV_CONFIRM, state);
    }
    for (int32_t l = 0; l < LAYERS; l++) { /* 1.25 at the start; even now */
        ek_place_balance balance;
        double loads[WIDE_E];
        for (int32_t e = 0; e < WIDE_E; e++)
            loads[e] = (double)wide_tokens[l * WIDE_E + e];
        assert_int_equal(ek_place_measure(&r->setup.topology, loads,
                                          ek_place_controller_slots(r->c, l), r->scratch, &balance),
                         EK_OK);
        assert_true(balance.max_over_mean < 1.1);
    }
}

/* Depth is bounded by DEPTH. The controller's memory is one block, so that it can be put back. */
static void walk(rig *r, book *b, int32_t depth)
{
    static saved stack[DEPTH];
    n_nodes_walked++;
    if (depth == DEPTH) {
        if (n_nodes_walked % ALIVE_EVERY == 0) check_alive(r, b);
        return;
    }
    saved *s = &stack[depth];
    memcpy(s->memory, r->memory, r->bytes);
    s->b = *b;
    s->now_us = r->now_us;
    for (int32_t ev = 0; ev < N_EVENTS; ev++) {
        ek_place_state before = stats(r).state;
        do_event(r, b, (event)ev, before);
        check_all(r, b, (event)ev, before);
        walk(r, b, depth + 1);
        memcpy(r->memory, s->memory, r->bytes);
        *b = s->b;
        r->now_us = s->now_us;
    }
}

static void test_every_order_of_events(void **state)
{
    (void)state;
    /* Ways to begin: nothing known; ready to decide; decided; a step out; a device dead. */
    static const event ways[][6] = {
        {EV_FEED, EV_FEED, EV_DECIDE, EV_NEXT, EV_CONFIRM, EV_FEED},
        {EV_DEVICE_DIES, EV_DEVICE_RETURNS, EV_DECIDE, EV_NEXT, EV_CONFIRM, EV_NEXT},
    };
    n_nodes_walked = 0;
    for (size_t way = 0; way < EK_COUNT_OF(ways); way++)
        for (size_t n = 0; n <= EK_COUNT_OF(ways[0]); n += 2) {
            rig r = rig_wide();
            book b = {.last_progress_us = r.now_us};
            rig_open(&r);
            assert_true(r.bytes <= sizeof((saved *)0)->memory);
            memcpy(b.slots, wide, sizeof b.slots);
            for (size_t i = 0; i < n; i++) {
                ek_place_state before = stats(&r).state;
                do_event(&r, &b, ways[way][i], before);
                check_all(&r, &b, ways[way][i], before);
            }
            walk(&r, &b, 0);
            rig_close(&r);
        }
    print_message("%lld states walked through\n", (long long)n_nodes_walked);
    assert_true(n_nodes_walked > 5000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_gain_by_hand),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_one_window_is_no_history),
        cmocka_unit_test(test_standard_error_by_hand),
        cmocka_unit_test(test_stale_loads_move_nothing),
        cmocka_unit_test(test_loads_are_halved),
        cmocka_unit_test(test_fresh_start),
        cmocka_unit_test(test_the_dispatcher_counts),
        cmocka_unit_test(test_worst_layer_first),
        cmocka_unit_test(test_lost_experts_come_first),
        cmocka_unit_test(test_no_room_for_the_lost),
        cmocka_unit_test(test_shared_everywhere),
        cmocka_unit_test(test_shared_as_expert),
        cmocka_unit_test(test_idle_replicas_are_reclaimed),
        cmocka_unit_test(test_adopt),
        cmocka_unit_test(test_setups_are_checked),
        cmocka_unit_test(test_every_order_of_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
