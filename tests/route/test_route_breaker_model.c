/*
 * The breaker, model-checked: every state that it can reach, with small params, under every
 * sequence of loads, probes and their outcomes, of any length.
 *
 * Time is made finite by what matters of it: times are turned into ages and cut off where a greater
 * age cannot make a difference any more. Two breakers with the same key then behave the same for
 * ever, so a breadth-first search over keys that ends has seen everything. In each state all inputs
 * are tried and the rules are asserted; and from each state, calm samples have to lead to CLOSED
 * and weight 1, heavy ones to OPEN.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "route/breaker.h"

#define PERIOD    INT64_C(100) /* us, to keep numbers small */
#define NOW       INT64_C(1000000)
#define TABLE_MAX (1 << 22)

static const ek_breaker_params small = {
    .derate_load = 0.7,
    .trip_load = 0.85,
    .recover_load = 0.6,
    .derate_weight = 0.5,
    .trip_weight = 0.1,
    .error_share = 0.5,
    .window = 3,
    .window_need = 2,
    .dwell_us = 2 * PERIOD,
    .open_us = 2 * PERIOD,
    .open_max_us = 6 * PERIOD,
    .open_growth = 2,
    .recovery_us = 3 * PERIOD,
    .probes = 2,
};

static const double loads[] = {0.3, 0.65, 0.75, 0.95, NAN};

/** Cuts an age off where it has outlived all times of the params. */
static int64_t cut(int64_t age_us)
{
    int64_t most = 8 * PERIOD;
    return age_us < most ? age_us : most;
}

/** The same breaker as if it were NOW, without what cannot matter: equal bytes, equal future. */
static ek_breaker canonical(const ek_breaker *b, int64_t now_us)
{
    ek_breaker c;
    memset(&c, 0, sizeof c);
    c.state = b->state;
    c.weight = roundf(b->weight * 1024) / 1024;
    for (int32_t i = 0; i < small.window; i++)
        c.recent[EK_BREAKER_WINDOW_MAX - 1 - i] =
            b->recent[(b->newest + EK_BREAKER_WINDOW_MAX - i) % EK_BREAKER_WINDOW_MAX];
    c.newest = EK_BREAKER_WINDOW_MAX - 1;
    c.n_quiet = b->n_quiet < small.window ? b->n_quiet : small.window;
    c.n_probes = b->n_probes;
    c.n_opened = b->n_opened > 0;
    c.probe_failed = b->probe_failed;
    c.since_us = NOW - cut(now_us - b->since_us);
    c.stepped_us = NOW;
    c.closed_us = NOW - cut(now_us - b->closed_us);
    c.open_us = b->open_us;
    return c;
}

/* ---- the set of states seen ---- */

typedef struct search {
    ek_breaker *state; /* (n) in the order found */
    int32_t n;
    int32_t *slot; /* (2 * TABLE_MAX) index + 1 of a state, by hash */
    int64_t n_transitions;
} search;

static bool add(search *s, const ek_breaker *b)
{
    uint64_t hash = 0;
    for (size_t i = 0; i < sizeof *b; i += sizeof hash) {
        uint64_t word = 0;
        size_t n = sizeof *b - i < sizeof word ? sizeof *b - i : sizeof word;
        memcpy(&word, (const char *)b + i, n);
        hash = ek_mix64(hash ^ word);
    }
    for (uint64_t at = hash % (2 * TABLE_MAX);; at = (at + 1) % (2 * TABLE_MAX)) {
        if (s->slot[at] == 0) {
            assert_true(s->n < TABLE_MAX);
            s->slot[at] = s->n + 1;
            s->state[s->n++] = *b;
            return true;
        }
        if (memcmp(&s->state[s->slot[at] - 1], b, sizeof *b) == 0) return false;
    }
}

/* ---- the rules ---- */

static bool arrow_exists(ek_breaker_state from, ek_breaker_state to)
{
    switch (from) {
    case EK_BREAKER_CLOSED: return to == EK_BREAKER_DERATED;
    case EK_BREAKER_DERATED: return to == EK_BREAKER_OPEN || to == EK_BREAKER_CLOSED;
    case EK_BREAKER_OPEN: return to == EK_BREAKER_HALF_OPEN;
    case EK_BREAKER_HALF_OPEN: return to == EK_BREAKER_OPEN || to == EK_BREAKER_CLOSED;
    }
    return false;
}

/** How many of the window's samples are at or above a load. */
static int32_t n_above(const ek_breaker *b, double load)
{
    int32_t n = 0;
    for (int32_t i = 0; i < small.window; i++)
        n += (double)b->recent[(b->newest + EK_BREAKER_WINDOW_MAX - i) % EK_BREAKER_WINDOW_MAX] >=
             load;
    return n;
}

static void check_step(const ek_breaker *before, const ek_breaker *after, int64_t now_us)
{
    assert_true(after->weight >= 0 && after->weight <= 1);
    assert_true((after->weight == 0) == (after->state == EK_BREAKER_OPEN));
    assert_in_range(after->n_probes, 0, small.probes);
    /* The way up is slow, but for the beginning of the half-open ramp. */
    float rise = 0.9f / 3 + 2e-3f;
    if (before->state != EK_BREAKER_OPEN) assert_true(after->weight - before->weight <= rise);
    if (after->state == before->state) return;

    assert_true(arrow_exists(before->state, after->state));
    assert_true(now_us - before->since_us >= small.dwell_us);
    assert_int_equal(after->since_us, now_us);
    assert_false(after->probe_failed);
    int32_t need = small.window_need;
    if (after->state == EK_BREAKER_DERATED) assert_true(n_above(after, small.derate_load) >= need);
    if (after->state == EK_BREAKER_OPEN) {
        assert_true(n_above(after, small.trip_load) >= need || before->probe_failed);
        assert_in_range(after->open_us, small.open_us, small.open_max_us);
        if (before->state == EK_BREAKER_HALF_OPEN)
            assert_true(after->open_us > before->open_us || after->open_us == small.open_max_us);
    }
    if (after->state == EK_BREAKER_HALF_OPEN) {
        assert_true(now_us - before->since_us >= before->open_us);
        assert_true(n_above(after, small.recover_load) <= small.window - need);
        assert_float_equal(after->weight, 0.1, 1e-6);
    }
    if (after->state == EK_BREAKER_CLOSED && before->state == EK_BREAKER_HALF_OPEN)
        assert_true(now_us - before->since_us >= small.recovery_us);
    if (after->state == EK_BREAKER_CLOSED && before->state == EK_BREAKER_DERATED)
        assert_true(n_above(after, small.recover_load) <= small.window - need);
}

/** Samples of one load lead there before all times of the params together have passed. */
static void check_leads_to(const ek_breaker *from, double load, ek_breaker_state state,
                           float weight)
{
    ek_breaker b = *from;
    int64_t now_us = NOW;
    for (int32_t i = 0; i < 40; i++) {
        const ek_breaker_sample sample = {.load = load};
        if (b.state == state && b.weight == weight) return;
        now_us += PERIOD;
        ek_route_breaker_step(&b, &small, &sample, now_us);
    }
    fail_msg("stuck in %s on the way to %s", ek_route_breaker_state_name(b.state),
             ek_route_breaker_state_name(state));
}

/** All inputs of one period: a load, probes asked for before it, and how outstanding ones end. */
static void expand(search *s, int32_t idx)
{
    static const int32_t asks[] = {0, 1, 5};
    static const struct {
        int32_t n_ok, n_failed;
    } ends[] = {{0, 0}, {1, 0}, {0, 1}, {2, 0}, {1, 1}};
    const ek_breaker from = s->state[idx]; /* the array may not move, but grows */
    check_leads_to(&from, 0.1, EK_BREAKER_CLOSED, 1);
    check_leads_to(&from, 0.95, EK_BREAKER_OPEN, 0);
    for (size_t a = 0; a < EK_COUNT_OF(asks); a++) {
        for (size_t e = 0; e < EK_COUNT_OF(ends); e++) {
            ek_breaker asked = from;
            int32_t granted = ek_route_breaker_admit(&asked, &small, asks[a]);
            assert_in_range(granted, 0, asks[a]);
            if (from.state == EK_BREAKER_OPEN || from.probe_failed) assert_int_equal(granted, 0);
            if (from.state < EK_BREAKER_OPEN) assert_int_equal(granted, asks[a]);
            assert_in_range(asked.n_probes, 0, small.probes);
            if (ends[e].n_ok + ends[e].n_failed > asked.n_probes) continue;
            ek_route_breaker_settle(&asked, ends[e].n_ok, ends[e].n_failed);
            for (size_t l = 0; l < EK_COUNT_OF(loads); l++) {
                ek_breaker to = asked;
                const ek_breaker_sample sample = {.load = loads[l]};
                ek_route_breaker_step(&to, &small, &sample, NOW + PERIOD);
                check_step(&asked, &to, NOW + PERIOD);
                ek_breaker key = canonical(&to, NOW + PERIOD);
                add(s, &key);
                s->n_transitions++;
            }
        }
    }
}

static void test_every_reachable_state(void **state)
{
    (void)state;
    search s = {
        .state = calloc(TABLE_MAX, sizeof *s.state),
        .slot = calloc(2 * (size_t)TABLE_MAX, sizeof *s.slot),
    };
    assert_true(s.state && s.slot);
    ek_breaker begin;
    ek_route_breaker_init(&begin);
    ek_breaker key = canonical(&begin, NOW);
    add(&s, &key);
    bool seen[4] = {false};
    for (int32_t i = 0; i < s.n; i++) {
        seen[s.state[i].state] = true;
        expand(&s, i);
    }
    print_message("%d states, %lld transitions\n", s.n, (long long)s.n_transitions);
    for (int32_t i = 0; i < 4; i++)
        assert_true(seen[i]);
    free(s.state);
    free(s.slot);
}

/** From a quiet breaker, all sequences with one loud sample in five do nothing at all. */
static void test_one_loud_sample_in_a_window(void **state)
{
    (void)state;
    for (int32_t pattern = 0; pattern < 1 << 12; pattern++) {
        ek_breaker b;
        ek_route_breaker_init(&b);
        int32_t since_loud = small.window;
        for (int32_t i = 0; i < 12; i++) {
            bool loud = (pattern >> i & 1) && since_loud >= small.window;
            since_loud = loud ? 1 : since_loud + 1;
            const ek_breaker_sample sample = {.load = loud ? 50.0 : 0.5};
            ek_route_breaker_step(&b, &small, &sample, NOW + i * PERIOD);
            assert_int_equal(b.state, EK_BREAKER_CLOSED);
            assert_true(b.weight == 1);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_every_reachable_state),
        cmocka_unit_test(test_one_loud_sample_in_a_window),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
