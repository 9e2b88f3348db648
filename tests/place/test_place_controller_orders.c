/*
 * Goal: whatever the order in which an executor, its failures, the watchdog and dying devices meet,
 * the controller has one rebalance under way at most, its placement is what was confirmed, and it
 * goes on. Method: every sequence of events up to a depth from each of its states, held against the
 * table of allowed transitions and a second bookkeeping of placement and counters.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "place/controller_rig.h"

enum { G = EK_RIG_DEVICES, LAYERS = EK_RIG_LAYERS };

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

static ek_place_rig rig_wide(void)
{
    ek_place_rig r = ek_place_rig_make(WIDE_E, WIDE, wide);
    r.setup.n_shared = 1;
    r.setup.shared_everywhere = true;
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

static void event_next(ek_place_rig *r, book *b, ek_place_state before)
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

static void event_kill(ek_place_rig *r, book *b, bool dead)
{
    const bool devices[G] = {false, dead};
    ek_place_controller_devices(r->c, r->now_us, devices);
    for (int32_t l = 0; dead != b->dead && l < LAYERS; l++)
        for (int32_t s = PER_DEVICE; s < WIDE; s++)
            b->slots[l * WIDE + s] = EK_PLACE_EMPTY;
    b->dead = dead;
}

static void do_event(ek_place_rig *r, book *b, event ev, ek_place_state before)
{
    ek_place_outlook o;
    bool is_out = before == EK_PLACE_WAITING;
    switch (ev) {
    case EV_FEED: ek_place_rig_feed(r, wide_tokens, 1); break;
    case EV_DECIDE:
        if (ek_place_controller_decide(r->c, r->now_us, r->scratch, &o) == EK_AGAIN)
            assert_true(before != EK_PLACE_IDLE);
        else if (ek_place_rig_stats(r).state == EK_PLACE_READY)
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
static void check_all(ek_place_rig *r, const book *b, event ev, ek_place_state before)
{
    ek_place_controller_stats s = ek_place_rig_stats(r);
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

/*
 * Nothing that happened keeps the next rebalance from coming: feed, and carry out what is wanted.
 */
static void check_alive(ek_place_rig *r, book *b)
{
    event_kill(r, b, false);
    for (int32_t round = 0; round < 40; round++) {
        r->now_us += r->params.pause_us;
        ek_place_rig_feed(r, wide_tokens, 1);
        (void)ek_place_controller_watch(r->c, r->now_us);
        ek_place_state state = ek_place_rig_stats(r).state;
        if (state == EK_PLACE_IDLE) do_event(r, b, EV_DECIDE, state);
        while ((state = ek_place_rig_stats(r).state) != EK_PLACE_IDLE)
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
static void walk(ek_place_rig *r, book *b, int32_t depth)
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
        ek_place_state before = ek_place_rig_stats(r).state;
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
            ek_place_rig r = rig_wide();
            book b = {.last_progress_us = r.now_us};
            ek_place_rig_open(&r);
            assert_true(r.bytes <= sizeof((saved *)0)->memory);
            memcpy(b.slots, wide, sizeof b.slots);
            for (size_t i = 0; i < n; i++) {
                ek_place_state before = ek_place_rig_stats(&r).state;
                do_event(&r, &b, ways[way][i], before);
                check_all(&r, &b, ways[way][i], before);
            }
            walk(&r, &b, 0);
            ek_place_rig_close(&r);
        }
    print_message("%lld states walked through\n", (long long)n_nodes_walked);
    assert_true(n_nodes_walked > 5000000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_order_of_events),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
