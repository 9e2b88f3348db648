/*
 * Goal: counters add up, windows hold exactly what happened in them, and readers, the sampler and
 * the writers do not disturb each other. Method: a clock that the test sets; then all three kinds
 * of threads at once (a run under a thread sanitizer shows races, the figures show torn reads).
 */
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "telemetry/experts.h"

#define MS INT64_C(1000)
#define S  INT64_C(1000000)

typedef struct fixture {
    void *memory; /* owned */
    ek_expert_stats *stats;
} fixture;

static fixture open_stats(int32_t n_layers, int32_t n_experts)
{
    fixture f = {0};
    size_t bytes = ek_telemetry_experts_bytes(n_layers, n_experts);
    f.memory = malloc(bytes);
    assert_non_null(f.memory);
    ek_arena arena = ek_arena_over(f.memory, bytes);
    assert_int_equal(ek_telemetry_experts_create(n_layers, n_experts, &arena, &f.stats), EK_OK);
    return f;
}

static void test_counters_add_up(void **state)
{
    (void)state;
    fixture f = open_stats(2, 3);
    assert_int_equal(ek_telemetry_experts_layers(f.stats), 2);
    assert_int_equal(ek_telemetry_experts_count(f.stats), 3);
    ek_telemetry_experts_add_tokens(f.stats, 0, 2, 5);
    ek_telemetry_experts_add_tokens(f.stats, 1, 0, 7);
    ek_telemetry_experts_add_tokens(f.stats, 1, 0, 1);
    ek_telemetry_experts_add_request(f.stats, 1, 2);
    ek_telemetry_experts_add_busy(f.stats, 0, 1, 1500, 10);
    int64_t tokens[6], requests[6], busy[6];
    ek_telemetry_experts_read(f.stats, 0, tokens, requests, busy);
    static const int64_t expected_tokens[] = {0, 0, 5, 8, 0, 0};
    static const int64_t expected_requests[] = {0, 0, 0, 0, 0, 1};
    static const int64_t expected_busy[] = {0, 1500, 0, 0, 0, 0};
    assert_memory_equal(tokens, expected_tokens, sizeof tokens);
    assert_memory_equal(requests, expected_requests, sizeof requests);
    assert_memory_equal(busy, expected_busy, sizeof busy);
    int64_t row[3] = {-1, -1, -1};
    ek_telemetry_experts_read_layer(f.stats, 1, 0, row, NULL, NULL);
    assert_memory_equal(row, expected_tokens + 3, sizeof row);
    ek_telemetry_experts_read(f.stats, 0, NULL, NULL, NULL);
    free(f.memory);
}

static void test_sizes_are_checked(void **state)
{
    (void)state;
    static uint8_t memory[64];
    ek_arena arena = ek_arena_over(memory, sizeof memory);
    ek_expert_stats *stats = NULL;
    assert_int_equal(ek_telemetry_experts_create(0, 1, &arena, &stats), EK_ERANGE);
    assert_int_equal(ek_telemetry_experts_create(1, 0, &arena, &stats), EK_ERANGE);
    assert_int_equal(ek_telemetry_experts_create(-1, INT32_MAX, &arena, &stats), EK_ERANGE);
    assert_int_equal(ek_telemetry_experts_create(1, EK_EXPERTS_PER_LAYER_MAX + 1, &arena, &stats),
                     EK_ERANGE);
    assert_int_equal(ek_telemetry_experts_create(1, 1, &arena, &stats), EK_ENOMEM);
    assert_null(stats);
    assert_int_equal(ek_telemetry_experts_bytes(0, 1), 0);
    /* What the header promises for a large model. */
    assert_true(ek_telemetry_experts_bytes(48, 128) < 18000000);
    assert_true(ek_telemetry_experts_bytes(EK_EXPERTS_LAYERS_MAX, EK_EXPERTS_PER_LAYER_MAX) >
                (size_t)2 << 30);
}

/* Tokens of expert 0 within the window. */
static int64_t tokens_in(const fixture *f, int64_t window_us)
{
    int64_t tokens[2];
    ek_telemetry_experts_read(f->stats, window_us, tokens, NULL, NULL);
    return tokens[0];
}

static void test_window_before_any_sample(void **state)
{
    (void)state;
    fixture f = open_stats(1, 2);
    ek_telemetry_experts_add_tokens(f.stats, 0, 0, 4);
    assert_int_equal(tokens_in(&f, 10 * S), 4);
    ek_telemetry_experts_sample(f.stats, 5 * S);
    /* Longer than there are samples: what came before the first one is in. */
    assert_int_equal(tokens_in(&f, 10 * S), 4);
    free(f.memory);
}

static void test_windows_are_exact(void **state)
{
    (void)state;
    fixture f = open_stats(1, 2);
    /* One token more in each 100 ms than in the one before: 1, 2, ... 1500. */
    int64_t total = 0;
    const int64_t start_us = 12345 * S;
    ek_telemetry_experts_sample(f.stats, start_us);
    for (int64_t i = 1; i <= 1500; i++) {
        ek_telemetry_experts_add_tokens(f.stats, 0, 0, i);
        ek_telemetry_experts_add_request(f.stats, 0, 1);
        ek_telemetry_experts_add_busy(f.stats, 0, 1, 3000, 1);
        total += i;
        ek_telemetry_experts_sample(f.stats, start_us + i * 100 * MS);
        if (i < 5 || i % 250 == 0) {
            assert_int_equal(tokens_in(&f, 100 * MS), i);
            assert_int_equal(tokens_in(&f, 0), total);
        }
        if (i >= 100) /* the last hundred: i-99 .. i */
            assert_int_equal(tokens_in(&f, 10 * S), 100 * i - 4950);
    }
    /* 150 s have passed; the last 60 s and the last 30 s, which are kept to the second. */
    assert_int_equal(tokens_in(&f, 60 * S), 600 * 1500 - 600 * 599 / 2);
    assert_int_equal(tokens_in(&f, 30 * S), 300 * 1500 - 300 * 299 / 2);
    assert_int_equal(tokens_in(&f, 3600 * S), tokens_in(&f, 60 * S)); /* no window is longer */
    int64_t requests[2], busy[2];
    ek_telemetry_experts_read(f.stats, 2 * S, NULL, requests, busy);
    assert_int_equal(requests[1], 20);
    assert_int_equal(busy[1], 20 * 3000);
    free(f.memory);
}

static void test_what_came_after_the_sample_is_in(void **state)
{
    (void)state;
    fixture f = open_stats(1, 2);
    ek_telemetry_experts_sample(f.stats, 1 * S);
    ek_telemetry_experts_add_tokens(f.stats, 0, 0, 3);
    ek_telemetry_experts_sample(f.stats, 1 * S + 100 * MS);
    ek_telemetry_experts_add_tokens(f.stats, 0, 0, 4);
    assert_int_equal(tokens_in(&f, 100 * MS), 7);
    free(f.memory);
}

static void test_sampler_that_comes_too_often_or_too_late(void **state)
{
    (void)state;
    fixture f = open_stats(1, 2);
    /* Each millisecond: only every hundredth call takes a snapshot, or 10 s would not fit. */
    for (int64_t ms = 0; ms <= 20000; ms++) {
        if (ms == 11000) ek_telemetry_experts_add_tokens(f.stats, 0, 0, 9);
        ek_telemetry_experts_sample(f.stats, ms * MS);
    }
    assert_int_equal(tokens_in(&f, 10 * S), 9);
    assert_int_equal(tokens_in(&f, 9 * S), 0);
    /* Then not for a minute: the window begins where the last snapshot before it stood. */
    ek_telemetry_experts_add_tokens(f.stats, 0, 0, 2);
    ek_telemetry_experts_sample(f.stats, 80 * S);
    assert_int_equal(tokens_in(&f, 10 * S), 2);
    assert_int_equal(tokens_in(&f, 100 * MS), 2);
    free(f.memory);
}

static void test_counters_past_32_bits(void **state)
{
    (void)state;
    fixture f = open_stats(1, 2);
    ek_telemetry_experts_add_tokens(f.stats, 0, 0, (INT64_C(1) << 32) - 5);
    ek_telemetry_experts_add_busy(f.stats, 0, 0, (INT64_C(1) << 32) * 1000 - 2000, 1);
    ek_telemetry_experts_sample(f.stats, 1 * S);
    ek_telemetry_experts_add_tokens(f.stats, 0, 0, 20);
    ek_telemetry_experts_add_busy(f.stats, 0, 0, 7000, 1);
    ek_telemetry_experts_sample(f.stats, 2 * S);
    int64_t tokens[2], busy[2];
    ek_telemetry_experts_read(f.stats, 1 * S, tokens, NULL, busy);
    assert_int_equal(tokens[0], 20);
    assert_int_equal(busy[0], 7000);
    ek_telemetry_experts_read(f.stats, 0, tokens, NULL, busy);
    assert_int_equal(tokens[0], (INT64_C(1) << 32) + 15);
    assert_int_equal(busy[0], (INT64_C(1) << 32) * 1000 + 5000);
    free(f.memory);
}

static void test_service_times(void **state)
{
    (void)state;
    fixture f = open_stats(2, 2);
    for (int i = 1; i <= 100; i++)
        ek_telemetry_experts_add_busy(f.stats, 1, 1, 0, i);
    ek_telemetry_experts_add_busy(f.stats, 1, 1, 0, -3); /* clocks of two threads may disagree */
    const ek_service_hist *hist = ek_telemetry_experts_service(f.stats, 1, 1);
    assert_int_equal(ek_telemetry_service_count(hist), 101);
    assert_int_equal(hist->sum_us, 5050);
    uint64_t median = ek_telemetry_service_quantile(hist, 0.5);
    assert_true(median >= 50 && median <= 63);
    assert_int_equal(ek_telemetry_service_quantile(hist, 0.0), 0);
    assert_int_equal(ek_telemetry_service_count(ek_telemetry_experts_service(f.stats, 0, 1)), 0);
    assert_int_equal(
        ek_telemetry_service_quantile(ek_telemetry_experts_service(f.stats, 0, 1), 0.9), 0);
    free(f.memory);
}

static void test_service_buckets_tile_the_numbers(void **state)
{
    (void)state;
    uint64_t low = 0;
    for (uint32_t i = 0; i + 1 < EK_SERVICE_BUCKETS; i++) {
        uint64_t high = ek_telemetry_service_bucket_max(i);
        assert_true(high >= low);
        assert_int_equal(ek_telemetry_service_bucket_of(low), i);
        assert_int_equal(ek_telemetry_service_bucket_of(high), i);
        assert_true(high <= low + low / 4); /* a quarter at most */
        low = high + 1;
    }
    assert_true(low > UINT64_C(58000000) && low < UINT64_C(60000000));
    assert_int_equal(ek_telemetry_service_bucket_of(low), EK_SERVICE_BUCKETS - 1);
    assert_int_equal(ek_telemetry_service_bucket_of(UINT64_MAX), EK_SERVICE_BUCKETS - 1);
    static ek_service_hist hist;
    ek_telemetry_service_record(&hist, UINT64_MAX / 2);
    assert_int_equal(ek_telemetry_service_quantile(&hist, 0.5), low);
}

enum { LAYERS = 3, EXPERTS = 5, ROUNDS = 30000 };

typedef struct storm {
    ek_expert_stats *stats;
    _Atomic bool stop;
    _Atomic int64_t n_wrong;
    _Atomic int64_t n_reads;
} storm;

static void *write_storm(void *arg)
{
    storm *s = arg;
    for (int32_t i = 0; i < ROUNDS; i++) {
        int32_t layer = i % LAYERS, expert = i % EXPERTS;
        ek_telemetry_experts_add_tokens(s->stats, layer, expert, 2);
        ek_telemetry_experts_add_request(s->stats, layer, expert);
        ek_telemetry_experts_add_busy(s->stats, layer, expert, 1000, i % 200);
    }
    return NULL;
}

static void *read_storm(void *arg)
{
    storm *s = arg;
    int64_t tokens[LAYERS * EXPERTS], total[LAYERS * EXPERTS];
    while (!atomic_load(&s->stop)) {
        ek_telemetry_experts_read(s->stats, 200 * MS, tokens, NULL, NULL);
        ek_telemetry_experts_read(s->stats, 0, total, NULL, NULL);
        for (int32_t i = 0; i < LAYERS * EXPERTS; i++)
            /* A difference of two states, the first not later than the second. */
            if (tokens[i] < 0 || tokens[i] > total[i]) atomic_fetch_add(&s->n_wrong, 1);
        atomic_fetch_add(&s->n_reads, 1);
    }
    return NULL;
}

static void *sample_storm(void *arg)
{
    storm *s = arg;
    /* As fast as it goes: rings turn over many times while readers are inside them. */
    for (int64_t now_us = 1; !atomic_load(&s->stop); now_us += 100 * MS)
        ek_telemetry_experts_sample(s->stats, now_us);
    return NULL;
}

static void test_everybody_at_once(void **state)
{
    (void)state;
    fixture f = open_stats(LAYERS, EXPERTS);
    storm s = {.stats = f.stats};
    pthread_t writers[2], readers[2], sampler;
    assert_int_equal(pthread_create(&sampler, NULL, sample_storm, &s), 0);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(pthread_create(&readers[i], NULL, read_storm, &s), 0);
        assert_int_equal(pthread_create(&writers[i], NULL, write_storm, &s), 0);
    }
    for (int i = 0; i < 2; i++)
        pthread_join(writers[i], NULL);
    while (atomic_load(&s.n_reads) < 100) {}
    atomic_store(&s.stop, true);
    for (int i = 0; i < 2; i++)
        pthread_join(readers[i], NULL);
    pthread_join(sampler, NULL);
    assert_int_equal(s.n_wrong, 0);
    int64_t tokens[LAYERS * EXPERTS], requests[LAYERS * EXPERTS], busy[LAYERS * EXPERTS], sum = 0;
    ek_telemetry_experts_read(f.stats, 0, tokens, requests, busy);
    for (int32_t i = 0; i < LAYERS * EXPERTS; i++) {
        sum += tokens[i];
        assert_int_equal(tokens[i], 2 * requests[i]);
        assert_int_equal(busy[i], 1000 * requests[i]);
    }
    assert_int_equal(sum, 2 * 2 * ROUNDS);
    free(f.memory);
}

enum { TURN_EXPERTS = 256, TURN_ROUNDS = 20000, TURN_WINDOW = 100 };

/* Every cell gets one token between two samples, and the ring turns over as fast as it can. */
static void *turn_ring(void *arg)
{
    storm *s = arg;
    for (int64_t round = 1; round <= TURN_ROUNDS || atomic_load(&s->n_reads) < 100; round++) {
        for (int32_t e = 0; e < TURN_EXPERTS; e++)
            ek_telemetry_experts_add_tokens(s->stats, 0, e, 1);
        ek_telemetry_experts_sample(s->stats, round * 100 * MS);
    }
    atomic_store(&s->stop, true);
    return NULL;
}

static void test_snapshots_are_not_torn(void **state)
{
    (void)state;
    fixture f = open_stats(1, TURN_EXPERTS);
    storm s = {.stats = f.stats};
    pthread_t sampler;
    assert_int_equal(pthread_create(&sampler, NULL, turn_ring, &s), 0);
    while (!atomic_load(&s.stop)) {
        int64_t tokens[TURN_EXPERTS], total[TURN_EXPERTS];
        ek_telemetry_experts_read(f.stats, 0, total, NULL, NULL);
        ek_telemetry_experts_read(f.stats, 10 * S, tokens, NULL, NULL);
        /*
         * The slot that the window begins at is the next but one to be written. Whoever got only a
         * part of the old snapshot from it sees fewer tokens than came in a hundred rounds.
         */
        for (int32_t e = 0; e < TURN_EXPERTS && total[0] > TURN_WINDOW; e++)
            if (tokens[e] < TURN_WINDOW) s.n_wrong++;
        s.n_reads++;
    }
    pthread_join(sampler, NULL);
    assert_int_equal(s.n_wrong, 0);
    free(f.memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_counters_add_up),
        cmocka_unit_test(test_sizes_are_checked),
        cmocka_unit_test(test_window_before_any_sample),
        cmocka_unit_test(test_windows_are_exact),
        cmocka_unit_test(test_what_came_after_the_sample_is_in),
        cmocka_unit_test(test_sampler_that_comes_too_often_or_too_late),
        cmocka_unit_test(test_counters_past_32_bits),
        cmocka_unit_test(test_service_times),
        cmocka_unit_test(test_service_buckets_tile_the_numbers),
        cmocka_unit_test(test_everybody_at_once),
        cmocka_unit_test(test_snapshots_are_not_torn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
