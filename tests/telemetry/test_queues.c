/*
 * Goal: a queue's depth is what was handed over less what is done, in rows, whoever does it and
 * whoever looks. Method: small cases by hand; threads that work off a queue while one looks.
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

#include "telemetry/queues.h"

static void *memory;

static ek_queues *open_queues(int32_t n_layers, int32_t n_devices)
{
    size_t bytes = ek_telemetry_queues_bytes(n_layers, n_devices);
    memory = malloc(bytes);
    assert_non_null(memory);
    ek_arena arena = ek_arena_over(memory, bytes);
    ek_queues *queues = NULL;
    assert_int_equal(ek_telemetry_queues_create(n_layers, n_devices, &arena, &queues), EK_OK);
    assert_int_equal(ek_telemetry_queues_devices(queues), n_devices);
    return queues;
}

/* Ten rows in three parts each: a row counts as long as a part of it waits. */
static void test_by_hand(void **state)
{
    (void)state;
    ek_queues *q = open_queues(2, 2);
    assert_int_equal(ek_telemetry_queues_rows(q, 0), 0);
    ek_telemetry_queues_hand(q, 0, 0, 10, 3);
    ek_telemetry_queues_hand(q, 0, 1, 4, 1);
    assert_int_equal(ek_telemetry_queues_rows(q, 0), 10);
    assert_int_equal(ek_telemetry_queues_rows(q, 1), 4);
    ek_telemetry_queues_part_done(q, 0, 6); /* 24 parts of 30 */
    assert_int_equal(ek_telemetry_queues_rows(q, 0), 8);
    ek_telemetry_queues_part_done(q, 0, 1); /* 23: the eighth row is not done */
    assert_int_equal(ek_telemetry_queues_rows(q, 0), 8);
    ek_telemetry_queues_part_done(q, 0, 10);
    ek_telemetry_queues_part_done(q, 0, 10);
    assert_int_equal(ek_telemetry_queues_rows(q, 0), 1);
    ek_telemetry_queues_part_done(q, 0, 3);
    assert_int_equal(ek_telemetry_queues_rows(q, 0), 0);
    assert_int_equal(ek_telemetry_queues_rows(q, 1), 4);
    ek_telemetry_queues_hand(q, 1, 0, 7, EK_QUEUES_PARTS_MAX);
    assert_int_equal(ek_telemetry_queues_rows(q, 0), 7);

    int32_t most[4];
    const int32_t expected[4] = {10, 4, 7, 0}, none[4] = {0};
    ek_telemetry_queues_most(q, most);
    assert_memory_equal(most, expected, sizeof most);
    ek_telemetry_queues_most(q, most); /* nothing was handed over since */
    assert_memory_equal(most, none, sizeof most);
    free(memory);
}

enum { N_THREADS = 4, N_ROUNDS = 2000, N_UNITS = 60, UNIT_ROWS = 5 };

typedef struct crew {
    ek_queues *queues;
    pthread_barrier_t barrier;
    bool outside; /* what the reader saw could not have been */
    int64_t seen; /* sum of what it saw */
} crew;

/* Thread 0 hands over, the others work it off; the last one only looks. */
static void *work(void *arg)
{
    crew *c = arg;
    for (int round = 0; round < N_ROUNDS; round++) {
        pthread_barrier_wait(&c->barrier);
        for (int unit = 0; unit < N_UNITS; unit++)
            ek_telemetry_queues_part_done(c->queues, 0, UNIT_ROWS);
        pthread_barrier_wait(&c->barrier);
    }
    return NULL;
}

static void test_threads(void **state)
{
    (void)state;
    crew c = {.queues = open_queues(1, 1)};
    pthread_t thread[N_THREADS];
    enum { N_ROWS = UNIT_ROWS * N_UNITS };
    assert_int_equal(pthread_barrier_init(&c.barrier, NULL, N_THREADS + 1), 0);
    for (int i = 0; i < N_THREADS; i++)
        assert_int_equal(pthread_create(&thread[i], NULL, work, &c), 0);
    for (int round = 0; round < N_ROUNDS; round++) {
        ek_telemetry_queues_hand(c.queues, 0, 0, N_ROWS, N_THREADS);
        pthread_barrier_wait(&c.barrier);
        int32_t last = N_ROWS;
        for (int look = 0; look < 20; look++) {
            int32_t rows = ek_telemetry_queues_rows(c.queues, 0);
            c.outside |= rows < 0 || rows > last;
            c.seen += rows;
            last = rows;
        }
        pthread_barrier_wait(&c.barrier);
        assert_int_equal(ek_telemetry_queues_rows(c.queues, 0), 0);
    }
    for (int i = 0; i < N_THREADS; i++)
        pthread_join(thread[i], NULL);
    assert_false(c.outside);
    assert_true(c.seen > 0);
    pthread_barrier_destroy(&c.barrier);
    free(memory);
}

static void test_text(void **state)
{
    (void)state;
    ek_queues *q = open_queues(1, 2);
    ek_telemetry_queues_hand(q, 0, 1, 12, 2);
    static const char expected[] =
        "# HELP evenkeel_device_queue_rows Rows that a device has been handed and has not computed "
        "yet.\n"
        "# TYPE evenkeel_device_queue_rows gauge\n"
        "evenkeel_device_queue_rows{device=\"0\"} 0\n"
        "evenkeel_device_queue_rows{device=\"1\"} 12\n";
    char text[512];
    size_t len = ek_telemetry_queues_render(q, EK_PROM_TEXT, text, sizeof text);
    assert_int_equal(len, sizeof expected - 1);
    assert_memory_equal(text, expected, len);
    assert_int_equal(ek_telemetry_queues_render(q, EK_PROM_TEXT, text, 10), len);
    free(memory);
}

static void test_refused(void **state)
{
    (void)state;
    static const int32_t bad[][2] = {
        {0, 1}, {1, 0}, {EK_QUEUES_LAYERS_MAX + 1, 1}, {1, EK_QUEUES_DEVICES_MAX + 1}};
    char room[256];
    ek_arena arena = ek_arena_over(room, sizeof room);
    ek_queues *q = NULL;
    for (size_t i = 0; i < EK_COUNT_OF(bad); i++) {
        assert_int_equal(ek_telemetry_queues_bytes(bad[i][0], bad[i][1]), 0);
        assert_int_equal(ek_telemetry_queues_create(bad[i][0], bad[i][1], &arena, &q), EK_ERANGE);
    }
    assert_int_equal(ek_telemetry_queues_create(100, 100, &arena, &q), EK_ENOMEM);
    assert_null(q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_by_hand),
        cmocka_unit_test(test_threads),
        cmocka_unit_test(test_text),
        cmocka_unit_test(test_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
