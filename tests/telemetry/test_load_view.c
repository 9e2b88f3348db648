/*
 * Goal: a snapshot says what the samples said, never changes while somebody has it, and costs
 * nobody a wait. Method: samples worked out by hand; readers that hold on for long; then a sampler
 * that publishes as fast as it can against readers that check every cell of what they pinned (a run
 * under a thread sanitizer shows races, the cells show torn or early reads).
 */
#include <math.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "telemetry/load_view.h"

#define MS  INT64_C(1000)    /* in microseconds */
#define MSN INT64_C(1000000) /* in nanoseconds */

typedef struct fixture {
    void *memory; /* owned */
    ek_load_view *view;
} fixture;

static const ek_load_view_params small = {
    .n_layers = 1,
    .n_experts = 2,
    .n_readers = 2,
    .capacity = 2.0,
    .half_life_us = 100 * MS,
    .sample_us = 100 * MS,
};

static fixture open_view(const ek_load_view_params *params)
{
    fixture f = {0};
    size_t bytes = ek_telemetry_load_view_bytes(params);
    f.memory = aligned_alloc(EK_CACHE_LINE, (bytes + EK_CACHE_LINE - 1) & ~(size_t)63);
    assert_non_null(f.memory);
    ek_arena arena = ek_arena_over(f.memory, bytes);
    assert_int_equal(ek_telemetry_load_view_create(params, &arena, &f.view), EK_OK);
    return f;
}

static void assert_near(float got, double expected)
{
    if (fabs((double)got - expected) > 1e-6) fail_msg("%.9g is not %.9g", (double)got, expected);
}

static ek_load_view_stats stats(const fixture *f)
{
    ek_load_view_stats s;
    ek_telemetry_load_view_stats_get(f->view, &s);
    return s;
}

static void test_utilisation_by_hand(void **state)
{
    (void)state;
    fixture f = open_view(&small);
    assert_null(ek_telemetry_load_view_pin(f.view));
    assert_int_equal(ek_telemetry_load_view_age_us(NULL, 5), INT64_MAX);
    int64_t busy[2] = {7 * MSN, 0};
    assert_int_equal(ek_telemetry_load_view_sample(f.view, 1000 * MS, busy, NULL), EK_AGAIN);
    assert_null(ek_telemetry_load_view_pin(f.view)); /* where counting starts is no sample */

    busy[0] += 100 * MSN;
    busy[1] += 20 * MSN;
    const int32_t queue[2] = {3, 0};
    assert_int_equal(ek_telemetry_load_view_sample(f.view, 1100 * MS, busy, queue), EK_OK);
    const ek_load_snapshot *s = ek_telemetry_load_view_pin(f.view);
    assert_int_equal(s->version, 1);
    assert_int_equal(s->taken_us, 1100 * MS);
    assert_int_equal(s->sample_us, 100 * MS);
    assert_int_equal(s->n_layers, 1);
    assert_int_equal(s->n_experts, 2);
    assert_near(s->raw[0], 0.5); /* 100 ms of work in 100 ms of two threads */
    assert_near(s->raw[1], 0.1);
    assert_near(s->utilisation[0], 0.5); /* the first one is taken as it is */
    assert_int_equal(s->queue[0], 3);
    assert_int_equal(ek_telemetry_load_view_age_us(s, 1130 * MS), 30 * MS);
    assert_int_equal(ek_telemetry_load_view_age_us(s, 1090 * MS), 0);
    ek_telemetry_load_view_unpin(f.view, s);

    busy[0] += 200 * MSN; /* full for 100 ms, which is one half-life */
    assert_int_equal(ek_telemetry_load_view_sample(f.view, 1200 * MS, busy, NULL), EK_OK);
    s = ek_telemetry_load_view_pin(f.view);
    assert_int_equal(s->version, 2);
    assert_near(s->raw[0], 1.0);
    assert_near(s->utilisation[0], 0.5 * 0.5 + 0.5 * 1.0);
    assert_near(s->utilisation[1], 0.5 * 0.1);
    assert_null(s->queue);
    ek_telemetry_load_view_unpin(f.view, s);
    ek_telemetry_load_view_unpin(f.view, NULL);
    free(f.memory);
}

/*
 * The longer a sample looks back, the more it counts; late and missing ones are counted and aged.
 */
static void test_late_and_missing_samples(void **state)
{
    (void)state;
    fixture f = open_view(&small);
    int64_t busy[2] = {0, 0};
    assert_int_equal(ek_telemetry_load_view_sample(f.view, 0, busy, NULL), EK_AGAIN);
    busy[0] = 100 * MSN;
    assert_int_equal(ek_telemetry_load_view_sample(f.view, 100 * MS, busy, NULL), EK_OK);
    ek_telemetry_load_view_miss(f.view);
    ek_telemetry_load_view_miss(f.view);
    const ek_load_snapshot *s = ek_telemetry_load_view_pin(f.view);
    assert_int_equal(ek_telemetry_load_view_age_us(s, 350 * MS), 250 * MS);
    ek_telemetry_load_view_unpin(f.view, s);
    busy[0] += 600 * MSN;
    assert_int_equal(ek_telemetry_load_view_sample(f.view, 400 * MS, busy, NULL), EK_OK);
    s = ek_telemetry_load_view_pin(f.view);
    assert_near(s->raw[0], 1.0);
    assert_near(s->utilisation[0], 0.5 * 0.125 + 0.875); /* three half-lives */
    ek_telemetry_load_view_unpin(f.view, s);
    assert_int_equal(stats(&f).n_missed, 2);
    assert_int_equal(stats(&f).n_late, 1);
    assert_int_equal(stats(&f).n_published, 2);
    /* No time has passed, or it ran backwards: nothing to divide by. */
    assert_int_equal(ek_telemetry_load_view_sample(f.view, 400 * MS, busy, NULL), EK_AGAIN);
    assert_int_equal(ek_telemetry_load_view_sample(f.view, 390 * MS, busy, NULL), EK_AGAIN);
    free(f.memory);
}

static void test_counters_that_begin_anew(void **state)
{
    (void)state;
    fixture f = open_view(&small);
    int64_t busy[2] = {50 * MSN, 50 * MSN};
    assert_int_equal(ek_telemetry_load_view_sample(f.view, 0, busy, NULL), EK_AGAIN);
    busy[1] = 0;
    assert_int_equal(ek_telemetry_load_view_sample(f.view, 100 * MS, busy, NULL), EK_AGAIN);
    busy[1] = 40 * MSN;
    assert_int_equal(ek_telemetry_load_view_sample(f.view, 200 * MS, busy, NULL), EK_OK);
    const ek_load_snapshot *s = ek_telemetry_load_view_pin(f.view);
    assert_near(s->raw[0], 0.0);
    assert_near(s->raw[1], 0.2);
    ek_telemetry_load_view_unpin(f.view, s);
    free(f.memory);
}

/*
 * What is pinned stays as it is, however much is published; one reader too many blocks, and is
 * seen.
 */
static void test_pins_hold(void **state)
{
    (void)state;
    fixture f = open_view(&small);
    int64_t busy[2] = {0, 0}, now_us = 0;
    const ek_load_snapshot *held[3];
    assert_int_equal(ek_telemetry_load_view_sample(f.view, now_us, busy, NULL), EK_AGAIN);
    for (int32_t i = 0; i < 2; i++) {
        busy[0] += (i + 1) * 20 * MSN;
        assert_int_equal(ek_telemetry_load_view_sample(f.view, now_us += 100 * MS, busy, NULL),
                         EK_OK);
        held[i] = ek_telemetry_load_view_pin(f.view);
    }
    for (int32_t i = 0; i < 20; i++) {
        busy[0] += 200 * MSN;
        assert_int_equal(ek_telemetry_load_view_sample(f.view, now_us += 100 * MS, busy, NULL),
                         EK_OK);
    }
    for (int32_t i = 0; i < 2; i++) {
        assert_int_equal(held[i]->version, i + 1);
        assert_int_equal(held[i]->taken_us, (i + 1) * 100 * MS);
        assert_near(held[i]->raw[0], 0.1 * (i + 1));
    }
    held[2] = ek_telemetry_load_view_pin(f.view); /* a third, where two were announced */
    assert_int_equal(held[2]->version, 22);
    busy[0] += 20 * MSN;
    assert_int_equal(ek_telemetry_load_view_sample(f.view, now_us += 100 * MS, busy, NULL), EK_OK);
    busy[0] += 60 * MSN;
    assert_int_equal(ek_telemetry_load_view_sample(f.view, now_us += 100 * MS, busy, NULL),
                     EK_EFULL);
    assert_int_equal(stats(&f).n_blocked, 1);
    ek_telemetry_load_view_unpin(f.view, held[0]);
    assert_int_equal(ek_telemetry_load_view_sample(f.view, now_us += 100 * MS, busy, NULL), EK_OK);
    held[0] = ek_telemetry_load_view_pin(f.view);
    assert_int_equal(held[0]->version, 24);
    assert_int_equal(held[0]->sample_us, 200 * MS); /* the blocked time is in */
    assert_near(held[0]->raw[0], 0.15);
    for (int32_t i = 0; i < 3; i++)
        ek_telemetry_load_view_unpin(f.view, held[i]);
    free(f.memory);
}

static void test_params_are_checked(void **state)
{
    (void)state;
    static uint8_t memory[64];
    ek_arena arena = ek_arena_over(memory, sizeof memory);
    ek_load_view *view = NULL;
    assert_int_equal(ek_telemetry_load_view_create(&small, &arena, &view), EK_ENOMEM);
    const struct {
        int32_t n_layers, n_experts, n_readers;
        double capacity;
        int64_t half_life_us, sample_us;
    } bad[] = {{0, 1, 1, 1, 1, 1},    {1, 0, 1, 1, 1, 1},   {1, 1025, 1, 1, 1, 1},
               {1, 1, 0, 1, 1, 1},    {1, 1, 65, 1, 1, 1},  {1, 1, 1, 0, 1, 1},
               {1, 1, 1, NAN, 1, 1},  {1, 1, 1, 1, 0, 1},   {1, 1, 1, 1, 1, 0},
               {1025, 1, 1, 1, 1, 1}, {1, 1, 1, -1.0, 1, 1}};
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++) {
        const ek_load_view_params p = {bad[i].n_layers, bad[i].n_experts,    bad[i].n_readers,
                                       bad[i].capacity, bad[i].half_life_us, bad[i].sample_us};
        assert_int_equal(ek_telemetry_load_view_create(&p, &arena, &view), EK_ERANGE);
        assert_int_equal(ek_telemetry_load_view_bytes(&p), 0);
    }
    assert_null(view);
}

/* ---- all at once ---- */

enum { N_READERS = 4, N_CELLS = 3 * 40, N_SAMPLES = 20000 };

typedef struct crowd {
    ek_load_view *view;
    _Atomic bool is_over;
    _Atomic int64_t n_pinned;
} crowd;

/* Cell i of version v has spent 1 + (v + i) % 50 percent of the sample: a reader can tell. */
static double expected_raw(uint64_t version, int32_t cell)
{
    return 0.01 * (double)(1 + (version + (uint64_t)cell) % 50);
}

static void *reader_main(void *arg)
{
    crowd *c = arg;
    uint64_t latest = 0;
    while (!atomic_load_explicit(&c->is_over, memory_order_acquire)) {
        const ek_load_snapshot *s = ek_telemetry_load_view_pin(c->view);
        if (!s) continue;
        uint64_t version = s->version;
        if (version < latest) abort(); /* never back in time */
        latest = version;
        for (int32_t round = 0; round < 3; round++)
            for (int32_t i = 0; i < N_CELLS; i++) {
                double off = (double)s->raw[i] - expected_raw(version, i);
                if (fabs(off) > 1e-6 || s->queue[i] != (int32_t)version) abort();
            }
        if (s->version != version) abort();
        ek_telemetry_load_view_unpin(c->view, s);
        atomic_fetch_add_explicit(&c->n_pinned, 1, memory_order_relaxed);
    }
    return NULL;
}

static void test_readers_beside_the_sampler(void **state)
{
    (void)state;
    static const ek_load_view_params params = {
        .n_layers = 3,
        .n_experts = 40,
        .n_readers = N_READERS,
        .capacity = 1.0,
        .half_life_us = 100 * MS,
        .sample_us = 100 * MS,
    };
    fixture f = open_view(&params);
    crowd c = {.view = f.view};
    pthread_t reader[N_READERS];
    for (int32_t i = 0; i < N_READERS; i++)
        assert_int_equal(pthread_create(&reader[i], NULL, reader_main, &c), 0);
    static int64_t busy[N_CELLS];
    static int32_t queue[N_CELLS];
    int64_t now_us = 0;
    assert_int_equal(ek_telemetry_load_view_sample(f.view, now_us, busy, NULL), EK_AGAIN);
    /* With no more readers than announced nothing ever blocks. */
    for (uint64_t version = 1; version <= N_SAMPLES; version++) {
        now_us += 100 * MS;
        for (int32_t i = 0; i < N_CELLS; i++) {
            busy[i] += (int64_t)(1 + (version + (uint64_t)i) % 50) * MSN;
            queue[i] = (int32_t)version;
        }
        assert_int_equal(ek_telemetry_load_view_sample(f.view, now_us, busy, queue), EK_OK);
    }
    while (atomic_load_explicit(&c.n_pinned, memory_order_relaxed) < 100) {}
    atomic_store_explicit(&c.is_over, true, memory_order_release);
    for (int32_t i = 0; i < N_READERS; i++)
        assert_int_equal(pthread_join(reader[i], NULL), 0);
    print_message("%lld snapshots read beside %d published\n", (long long)atomic_load(&c.n_pinned),
                  N_SAMPLES);
    assert_int_equal(stats(&f).n_published, N_SAMPLES);
    assert_int_equal(stats(&f).n_blocked, 0);
    free(f.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_utilisation_by_hand),
        cmocka_unit_test(test_late_and_missing_samples),
        cmocka_unit_test(test_counters_that_begin_anew),
        cmocka_unit_test(test_pins_hold),
        cmocka_unit_test(test_params_are_checked),
        cmocka_unit_test(test_readers_beside_the_sampler),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
