/*
 * Goal: the rebalance controller judges as its header says: what is worth a move, what comes first,
 * what devices that die and shared experts ask for. Method: a cluster small enough to compute all
 * figures by hand.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/drift.h"
#include "place/controller_rig.h"
#include "support/fixtures.h"

#define S EK_RIG_S

enum { E = 3, G = EK_RIG_DEVICES, SLOTS = 4, LAYERS = EK_RIG_LAYERS, CELLS = LAYERS * E };

/* Devices {0, 1} and {2, -}. */
static const int32_t start[LAYERS * SLOTS] = {0, 1, 2, -1, 0, 1, 2, -1};

/* Layer 0: devices 9 and 3 of mean 6, which one replica more makes even. Layer 1: even. */
static const int64_t skewed[CELLS] = {600, 300, 300, 300, 300, 600};
static const int64_t even[CELLS] = {300, 300, 600, 300, 300, 600};

static ek_place_rig rig_params(void)
{
    return ek_place_rig_make(E, SLOTS, start);
}

/* Look at all layers that there are to look at, or until a rebalance begins. */
static ek_place_outlook decide(ek_place_rig *r)
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

static ek_place_step next(ek_place_rig *r)
{
    ek_place_step step;
    assert_int_equal(ek_place_controller_next(r->c, r->now_us, &step), EK_OK);
    return step;
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
    ek_place_rig r = rig_params();
    ek_place_rig_open(&r);
    ek_place_rig_feed(&r, skewed, 2);
    ek_place_outlook o = decide(&r);
    assert_int_equal(o.verdict, EK_PLACE_PAYS);
    assert_int_equal(o.layer, 0);
    assert_near(o.now, 1.5);
    assert_near(o.then, 1.0);
    assert_near(o.gain, 0.5); /* both windows say the same: no standard error */
    /*
     * 1200 rows/s over 2 devices at 1 ms are 0.6 of the time; 10 s of it, half of which is saved.
     */
    assert_near(o.saved_s, 3.0);
    assert_near(o.cost_s, 2.9);
    assert_int_equal(o.n_replicas, 1);
    ek_place_controller_stats s = ek_place_rig_stats(&r);
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
    s = ek_place_rig_stats(&r);
    assert_int_equal(s.state, EK_PLACE_IDLE);
    assert_int_equal(s.layer, -1);
    assert_int_equal(s.n_finished, 1);
    assert_int_equal(s.n_replicas, 1);
    assert_int_equal(s.bytes, 29);
    assert_int_equal(s.last_commit_us, r.now_us);
    r.now_us += 2 * S; /* the pause is over: the layer is even now */
    ek_place_rig_feed(&r, skewed, 1);
    assert_int_equal(decide(&r).verdict, EK_PLACE_EVEN);
    ek_place_rig_close(&r);
}

/*
 * The same move from another rack, and from another node of one rack: dearer links make it not
 * worth while, and what is moved is counted by where it comes from.
 */
static void test_far_weights_cost_more(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        bool one_rack = i % 2, dear = i / 2;
        ek_place_rig r = rig_params();
        r.setup.topology.n_nodes = 2;
        r.setup.topology.n_racks = one_rack ? 1 : 2;
        r.params.rack_bytes_per_s = one_rack && dear ? 9.5 : 0.0;
        r.params.far_bytes_per_s = dear ? 9.5 : 0.0;
        ek_place_rig_open(&r);
        ek_place_rig_feed(&r, skewed, 2);
        ek_place_outlook o = decide(&r);
        assert_near(o.cost_s, dear ? 29.0 / 9.5 : 2.9);
        assert_int_equal(o.verdict, dear ? EK_PLACE_DEAR : EK_PLACE_PAYS);
        if (!dear) {
            ek_place_step step = next(&r);
            assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, step.id), EK_OK);
            ek_place_controller_stats s = ek_place_rig_stats(&r);
            assert_int_equal(s.n_from[one_rack ? EK_PLACE_SAME_RACK : EK_PLACE_ACROSS_RACKS], 1);
            assert_int_equal(s.n_from[EK_PLACE_SAME_NODE], 0);
        }
        ek_place_rig_close(&r);
    }
}

/* Asked for, a rebalance that pays leaves the hot expert on two racks. */
static void test_controller_spreads(void **state)
{
    (void)state;
    ek_place_rig r = rig_params();
    r.setup.topology.n_nodes = r.setup.topology.n_racks = 2;
    r.setup.spread_over = EK_PLACE_RACK;
    r.setup.spread_hottest = -1;
    ek_err err;
    assert_int_equal(ek_place_controller_check(&r.setup, &r.params, &err), EK_EINVAL);
    r.setup.spread_hottest = 1;
    ek_place_rig_open(&r);
    ek_place_rig_feed(&r, skewed, 2);
    assert_int_equal(decide(&r).verdict, EK_PLACE_PAYS);
    ek_place_step step = next(&r);
    assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, step.id), EK_OK);
    int32_t n_together = -1;
    ek_arena scratch = r.scratch;
    assert_int_equal(ek_place_together(&r.setup.topology, EK_PLACE_RACK, 1,
                                       ek_place_controller_loads(r.c, 0),
                                       ek_place_controller_slots(r.c, 0), scratch, &n_together),
                     EK_OK);
    assert_int_equal(n_together, 0);
    ek_place_rig_close(&r);
}

static ek_place_outlook outlook_with(const ek_place_controller_params *params,
                                     const int64_t *const *windows, int32_t n_windows)
{
    ek_place_rig r = rig_params();
    r.params = *params;
    ek_place_rig_open(&r);
    for (int32_t i = 0; i < n_windows; i++)
        ek_place_rig_feed(&r, windows[i], 1);
    ek_place_outlook o = decide(&r);
    ek_place_rig_close(&r);
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
    ek_place_rig r = rig_params();
    ek_place_rig_open(&r);
    ek_place_rig_feed(&r, skewed, 3);
    r.now_us += r.params.stale_us + 1;
    assert_int_equal(decide(&r).verdict, EK_PLACE_STALE);
    assert_int_equal(decide(&r).layer, -1); /* all were looked at */
    static const int64_t nothing[CELLS] = {0};
    ek_place_rig_feed(&r, nothing, 1); /* no news */
    assert_int_equal(ek_place_rig_stats(&r).last_window_us, r.now_us - S - r.params.stale_us - 1);
    assert_int_equal(decide(&r).layer, -1);
    ek_place_rig_feed(&r, skewed, 1);
    assert_int_equal(decide(&r).verdict, EK_PLACE_PAYS);
    ek_place_rig_close(&r);
}

static void test_loads_are_halved(void **state)
{
    (void)state;
    ek_place_rig r = rig_params();
    r.params.half_life_us = 2 * S;
    r.params.fresh_start_drift = 1.0;
    ek_place_rig_open(&r);
    ek_place_rig_feed(&r, skewed, 1);
    r.now_us += S;
    ek_place_rig_feed(&r, even, 1); /* two seconds later */
    const double *loads = ek_place_controller_loads(r.c, 0);
    assert_near(loads[0], 300 + 300);
    assert_near(loads[1], 150 + 300);
    assert_near(loads[2], 150 + 600);
    r.now_us += 3 * S;
    ek_place_rig_feed(&r, even, 1); /* four seconds: a quarter */
    assert_near(ek_place_controller_loads(r.c, 0)[0], 150 + 300);
    ek_place_rig_close(&r);
}

/* Traffic of another kind: the old windows neither vote on a move nor weigh in the loads. */
static void test_fresh_start(void **state)
{
    (void)state;
    ek_place_rig r = rig_params();
    ek_place_rig_open(&r);
    ek_place_rig_feed(&r, even, 4);
    decide(&r);
    static const int64_t other[CELLS] = {1800, 300, 300, 300, 300, 600};
    /* Shares 1/4 1/4 1/2 against 3/4 1/8 1/8: half of 1/2 + 1/8 + 3/8. */
    assert_near(ek_drift(even, other, E), 0.5);
    ek_place_rig_feed(&r, other, 1);
    assert_int_equal(ek_place_rig_stats(&r).n_fresh_starts, 1); /* layer 1 went on as before */
    assert_near(ek_place_controller_loads(r.c, 0)[0], 1800);
    ek_place_outlook o = decide(&r);
    assert_int_equal(o.verdict, EK_PLACE_FEW_WINDOWS); /* one window is not enough */
    assert_int_equal(o.layer, 0);
    ek_place_rig_feed(&r, other, 1);
    o = decide(&r);
    assert_int_equal(o.verdict, EK_PLACE_PAYS);
    assert_near(o.now, 2100.0 / 1200.0); /* of the new windows alone */
    ek_place_rig_close(&r);
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
    ek_place_rig r = rig_params();
    r.setup.balance = always_even;
    r.setup.balance_ctx = &n_calls;
    ek_place_rig_open(&r);
    ek_place_rig_feed(&r, skewed, 2);
    assert_int_equal(decide(&r).verdict, EK_PLACE_EVEN);
    assert_int_equal(n_calls, 2 * LAYERS); /* each window of each layer once */
    ek_place_rig_feed(&r, skewed, 1);
    decide(&r);
    assert_int_equal(n_calls, 3 * LAYERS); /* the placement is the old one: only the new window */
    ek_place_rig_close(&r);
}

/* The layer that loses most comes first, and only one is under way. */
static void test_worst_layer_first(void **state)
{
    (void)state;
    static const int64_t both[CELLS] = {600, 300, 300, 1800, 600, 300};
    ek_place_rig r = rig_params();
    ek_place_rig_open(&r);
    ek_place_rig_feed(&r, both, 2);
    ek_place_outlook o = decide(&r);
    assert_int_equal(o.verdict, EK_PLACE_PAYS);
    assert_int_equal(o.layer, 1);
    assert_int_equal(ek_place_controller_decide(r.c, r.now_us, r.scratch, &o), EK_AGAIN);
    while (ek_place_rig_stats(&r).state != EK_PLACE_IDLE)
        assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, next(&r).id), EK_OK);
    o = decide(&r); /* layer 1 pauses */
    assert_int_equal(o.verdict, EK_PLACE_PAYS);
    assert_int_equal(o.layer, 0);
    ek_place_rig_close(&r);
}

/* ---- devices and shared experts ---- */

static const bool second_dead[G] = {false, true};

static void test_lost_experts_come_first(void **state)
{
    (void)state;
    ek_place_rig r = rig_params();
    r.setup.topology.n_slots = 6; /* three on each: one device can hold all */
    static const int32_t six[LAYERS * 6] = {0, 1, -1, 2, -1, -1, 0, 1, -1, 2, -1, -1};
    r.setup.slot_expert = six;
    ek_place_rig_open(&r);
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
    assert_int_equal(ek_place_rig_stats(&r).state, EK_PLACE_IDLE);
    assert_int_equal(ek_place_rig_stats(&r).n_failed, 1);
    assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, step.id), EK_ESTALE);
    assert_int_equal(ek_place_controller_fail(r.c, r.now_us, step.id), EK_ESTALE);
    assert_int_equal(decide(&r).verdict, EK_PLACE_REQUIRED); /* what lay there is gone */
    ek_place_rig_close(&r);
}

static void test_no_room_for_the_lost(void **state)
{
    (void)state;
    ek_place_rig r = rig_params();
    ek_place_rig_open(&r); /* two slots for three experts when one device is dead */
    ek_place_controller_devices(r.c, r.now_us, second_dead);
    assert_int_equal(decide(&r).verdict, EK_PLACE_NO_ROOM);
    assert_int_equal(decide(&r).layer, -1);
    r.now_us += r.params.pause_us;
    assert_int_equal(decide(&r).verdict, EK_PLACE_NO_ROOM);
    ek_place_controller_devices(r.c, r.now_us, NULL);
    assert_int_equal(decide(&r).verdict, EK_PLACE_REQUIRED);
    ek_place_rig_close(&r);
}

/* Experts 0..2 routed, 3 shared and on both devices; one slot is free on the second. */
static const int32_t with_shared[LAYERS * 6] = {3, 0, 1, 2, 3, -1, 3, 0, 1, 2, 3, -1};
static const int64_t shared_tokens[LAYERS * 4] = {600, 300, 300, 1200, 300, 300, 600, 1200};

static ek_place_rig rig_shared(void)
{
    ek_place_rig r = ek_place_rig_make(4, 6, with_shared);
    r.setup.n_shared = 1;
    r.setup.shared_everywhere = true;
    return r;
}

static void test_shared_everywhere(void **state)
{
    (void)state;
    ek_place_rig r = rig_shared();
    ek_place_rig_open(&r);
    ek_place_rig_feed(&r, shared_tokens, 2);
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
    while (ek_place_rig_stats(&r).state !=
           EK_PLACE_IDLE) /* and then the lost one, in the same rebalance */
        assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, next(&r).id), EK_OK);
    const int32_t *slots = ek_place_controller_slots(r.c, 0);
    bool seen[4] = {false};
    for (int32_t s = 0; s < 6; s++)
        if (slots[s] >= 0) seen[slots[s]] = true;
    assert_true(seen[0] && seen[1] && seen[2] && seen[3]);
    assert_int_equal(ek_place_controller_idle(r.c, 0), 0); /* a copy everywhere is never idle */
    ek_place_rig_close(&r);
}

/* As an expert like others it is the hottest, and gets another replica for balance's sake. */
static void test_shared_as_expert(void **state)
{
    (void)state;
    static const int32_t once[LAYERS * 6] = {3, 0, -1, 2, 1, -1, 3, 0, -1, 2, 1, -1};
    static const int64_t tokens[LAYERS * 4] = {600, 300, 300, 2400, 300, 300, 300, 2400};
    ek_place_rig r = rig_shared();
    r.setup.shared_everywhere = false;
    r.setup.slot_expert = once;
    ek_place_rig_open(&r);
    ek_place_rig_feed(&r, tokens, 2);
    ek_place_outlook o = decide(&r);
    assert_int_equal(o.verdict, EK_PLACE_PAYS);
    assert_near(o.now, 5.0 / 3.0); /* 3000 and 600 */
    while (ek_place_rig_stats(&r).state != EK_PLACE_IDLE)
        assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, next(&r).id), EK_OK);
    int32_t n_copies = 0;
    for (int32_t s = 0; s < 6; s++)
        n_copies += ek_place_controller_slots(r.c, o.layer)[s] == 3;
    assert_int_equal(n_copies, 2);
    ek_place_rig_close(&r);
}

/* Idle: more replicas than ceil(load / mean slot's load). The hotter expert gets their slots. */
static void test_idle_replicas_are_reclaimed(void **state)
{
    (void)state;
    static const int32_t doubled[LAYERS * SLOTS] = {0, 1, 0, 2, 0, 1, 0, 2};
    static const int64_t cold[CELLS] = {100, 900, 200, 400, 400, 400}; /* mean slot: 300 */
    ek_place_rig r = rig_params();
    r.setup.slot_expert = doubled;
    ek_place_rig_open(&r);
    ek_place_rig_feed(&r, cold, 2);
    assert_int_equal(ek_place_controller_idle(r.c, 0), 1); /* 100 of 300 needs one, has two */
    assert_int_equal(ek_place_controller_idle(r.c, 1), 0); /* 400 of 300 needs two, has two */
    assert_int_equal(decide(&r).verdict, EK_PLACE_PAYS);
    while (ek_place_rig_stats(&r).state != EK_PLACE_IDLE)
        assert_int_equal(ek_place_controller_confirm(r.c, r.now_us, next(&r).id), EK_OK);
    assert_int_equal(ek_place_controller_idle(r.c, 0), 0);
    assert_int_equal(ek_place_rig_stats(&r).n_reclaimed, 1);
    ek_place_rig_close(&r);
}

static void test_adopt(void **state)
{
    (void)state;
    ek_place_rig r = rig_params();
    ek_place_rig_open(&r);
    static const int32_t good[SLOTS] = {2, 1, 0, 1}, wrong[SLOTS] = {0, 1, 3, 2};
    assert_int_equal(ek_place_controller_adopt(r.c, r.now_us, 1, wrong), EK_EINVAL);
    assert_int_equal(ek_place_controller_adopt(r.c, r.now_us, 1, good), EK_OK);
    assert_memory_equal(ek_place_controller_slots(r.c, 0), start, sizeof good);
    assert_memory_equal(ek_place_controller_slots(r.c, 1), good, sizeof good);
    ek_place_controller_devices(r.c, r.now_us, second_dead);
    assert_int_equal(ek_place_controller_adopt(r.c, r.now_us, 1, good), EK_EINVAL);
    ek_place_rig_close(&r);
}

static void test_setups_are_checked(void **state)
{
    (void)state;
    static const int32_t twice[LAYERS * 6] = {3, 0, 1, 2, 3, -1, 3, 3, 1, 2, 3, -1};
    static const int32_t lacks[LAYERS * 6] = {3, 0, 1, 2, 0, 1, 3, 0, 1, 2, 3, -1};
    ek_err err;
    ek_place_rig r = rig_shared();
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
    ek_place_rig_open(&r);
    ek_place_outlook o;
    assert_int_equal(ek_place_controller_decide(r.c, r.now_us, perm, &o), EK_ENOMEM);
    ek_place_rig_close(&r);
}

/* ---- slots that stay ---- */

/* Where memory for replicas is bounded by what was there from the start: workers of a cluster. */
static void test_what_is_fixed_stays(void **state)
{
    (void)state;
    ek_place_rig r = rig_params();
    static const bool all[SLOTS] = {true, true, true, true};
    static const bool own[SLOTS] = {true, true, true, false}; /* the empty one may be filled */
    ek_place_rig_open(&r);
    for (int32_t l = 0; l < LAYERS; l++)
        ek_place_controller_fix(r.c, l, all);
    ek_place_rig_feed(&r, skewed, 2);
    /* It would pay, but nothing may change: no rebalance begins, however often it looks. */
    for (int32_t i = 0; i < 3; i++) {
        assert_int_equal(decide(&r).verdict, EK_PLACE_SMALL);
        ek_place_rig_feed(&r, skewed, 1);
    }
    assert_int_equal(ek_place_rig_stats(&r).n_rebalances, 0);
    ek_place_controller_fix(r.c, 0, own);
    ek_place_rig_feed(&r, skewed, 1);
    assert_int_equal(decide(&r).verdict, EK_PLACE_PAYS);
    ek_place_step step = next(&r);
    assert_int_equal(step.n_moves, 1);
    assert_int_equal(step.moves[0].slot, 3);
    assert_int_equal(step.moves[0].expert, 0);
    assert_int_equal(step.moves[0].other_slot, -1); /* a copy: the first one stays where it is */
    ek_place_rig_close(&r);
}

/* A device that died leaves its expert to be put where there is room, and nowhere else. */
static void test_what_was_lost_goes_where_there_is_room(void **state)
{
    (void)state;
    ek_place_rig r = rig_params();
    static const bool dead[G] = {false, true};
    static const bool full[SLOTS] = {true, true, true, true};
    /* Device 0 has a slot of its own for a third expert here. */
    static const int32_t slots[] = {3, 1};
    r.setup.topology.device_slots = slots;
    static const int32_t begin[LAYERS * SLOTS] = {0, 1, -1, 2, 0, 1, -1, 2};
    r.setup.slot_expert = begin;
    ek_place_rig_open(&r);
    for (int32_t l = 0; l < LAYERS; l++)
        ek_place_controller_fix(r.c, l, full);
    ek_place_controller_devices(r.c, r.now_us, dead);
    assert_int_equal(decide(&r).verdict, EK_PLACE_NO_ROOM);
    static const bool room[SLOTS] = {true, true, false, true};
    ek_place_controller_fix(r.c, 0, room);
    r.now_us += 2 * r.params.pause_us;
    ek_place_outlook o = decide(&r);
    assert_int_equal(o.verdict, EK_PLACE_REQUIRED);
    assert_int_equal(o.layer, 0);
    ek_place_step step = next(&r);
    assert_int_equal(step.moves[0].slot, 2);
    assert_int_equal(step.moves[0].expert, 2);
    ek_place_rig_close(&r);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_what_is_fixed_stays),
        cmocka_unit_test(test_what_was_lost_goes_where_there_is_room),
        cmocka_unit_test(test_a_gain_by_hand),
        cmocka_unit_test(test_verdicts),
        cmocka_unit_test(test_far_weights_cost_more),
        cmocka_unit_test(test_controller_spreads),
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
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
