/*
 * Goal: a run reaches every thread exactly once, a barrier holds everybody, and what one thread
 * wrote before either is seen by all after it. Method: plain, unsynchronised arrays that only the
 * pool's ordering makes safe to read (a run under a thread sanitizer proves it), for pools smaller
 * and larger than the machine, with and without sleeping in between.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "sys/clock.h"
#include "sys/pool.h"
#include "sys/thread.h"

enum { THREADS_MAX = 8, PHASES = 20 };

typedef struct work {
    ek_sys_pool *pool;
    int32_t n_threads;
    int32_t calls[THREADS_MAX];   /* by thread; plain */
    int32_t written[THREADS_MAX]; /* by phase; plain */
    int32_t wrong_of[THREADS_MAX];
    ek_sys_ticket ticket;
    int32_t taken[1000];
} work;

static ek_sys_pool *pool_of(int32_t n_threads, bool pin)
{
    ek_sys_pool *pool = NULL;
    assert_int_equal(ek_sys_pool_create(n_threads, pin, &pool), EK_OK);
    assert_int_equal(ek_sys_pool_threads(pool), n_threads);
    return pool;
}

static void count_call(void *ctx, int32_t thread_idx)
{
    ((work *)ctx)->calls[thread_idx]++;
}

static void test_run_reaches_everybody_once(void **state)
{
    (void)state;
    for (int32_t n = 1; n <= THREADS_MAX; n += n == 1 ? 1 : 3) {
        work w = {.pool = pool_of(n, false)};
        for (int32_t run = 1; run <= 500; run++) {
            ek_sys_pool_run(w.pool, count_call, &w);
            for (int32_t i = 0; i < THREADS_MAX; i++)
                assert_int_equal(w.calls[i], i < n ? run : 0);
        }
        ek_sys_pool_destroy(w.pool);
    }
}

/* In every phase each thread writes its slot, waits, and then must read what all others wrote. */
static void exchange(void *ctx, int32_t thread_idx)
{
    work *w = ctx;
    for (int32_t phase = 1; phase <= PHASES; phase++) {
        w->written[thread_idx] = phase;
        ek_sys_pool_barrier(w->pool);
        for (int32_t i = 0; i < w->n_threads; i++)
            if (w->written[i] != phase) w->wrong_of[thread_idx]++;
        ek_sys_pool_barrier(w->pool);
    }
}

static void test_barrier_holds_everybody(void **state)
{
    (void)state;
    for (int32_t n = 1; n <= 4; n++) {
        work w = {.pool = pool_of(n, false), .n_threads = n};
        for (int32_t run = 0; run < 50; run++)
            ek_sys_pool_run(w.pool, exchange, &w);
        for (int32_t i = 0; i < n; i++)
            assert_int_equal(w.wrong_of[i], 0);
        ek_sys_pool_destroy(w.pool);
    }
}

/*
 * One thread comes late to every barrier: the others have gone to sleep by then and must be woken.
 */
static void exchange_slowly(void *ctx, int32_t thread_idx)
{
    work *w = ctx;
    for (int32_t phase = 1; phase <= 5; phase++) {
        if (thread_idx == phase % w->n_threads) ek_sys_sleep_us(2000);
        w->written[thread_idx] = phase;
        ek_sys_pool_barrier(w->pool);
        for (int32_t i = 0; i < w->n_threads; i++)
            if (w->written[i] != phase) w->wrong_of[thread_idx]++;
        ek_sys_pool_barrier(w->pool);
    }
}

static void test_sleepers_are_woken(void **state)
{
    (void)state;
    work w = {.pool = pool_of(3, false), .n_threads = 3};
    for (int32_t run = 0; run < 10; run++) {
        ek_sys_pool_run(w.pool, exchange_slowly, &w);
        ek_sys_sleep_us(run % 2 ? 1000
                                : 0); /* the helpers sleep between some runs, spin between others */
    }
    for (int32_t i = 0; i < 3; i++)
        assert_int_equal(w.wrong_of[i], 0);
    ek_sys_pool_destroy(w.pool);
}

static void take_tickets(void *ctx, int32_t thread_idx)
{
    work *w = ctx;
    (void)thread_idx;
    for (int32_t i; (i = ek_sys_ticket_take(&w->ticket)) < 1000;)
        w->taken[i]++;
}

static void test_tickets_divide_the_work(void **state)
{
    (void)state;
    work w = {.pool = pool_of(4, false)};
    for (int32_t run = 1; run <= 20; run++) {
        ek_sys_ticket_reset(&w.ticket);
        ek_sys_pool_run(w.pool, take_tickets, &w);
        for (int32_t i = 0; i < 1000; i++)
            assert_int_equal(w.taken[i], run);
    }
    ek_sys_pool_destroy(w.pool);
}

static void test_create_and_destroy_unused(void **state)
{
    (void)state;
    for (int i = 0; i < 20; i++)
        ek_sys_pool_destroy(pool_of(1 + i % 4, false));
    ek_sys_pool_destroy(NULL);
}

/* Pinning must not make the process look smaller to whoever asks later. */
static void test_pinning_leaves_the_count_alone(void **state)
{
    (void)state;
    int32_t before = ek_sys_cpu_count();
    for (int round = 0; round < 2; round++) {
        work w = {.pool = pool_of(2, true)};
        ek_sys_pool_run(w.pool, count_call, &w);
        assert_int_equal(w.calls[0], 1);
        assert_int_equal(w.calls[1], 1);
        ek_sys_pool_destroy(w.pool);
        assert_int_equal(ek_sys_cpu_count(), before);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_run_reaches_everybody_once),
        cmocka_unit_test(test_barrier_holds_everybody),
        cmocka_unit_test(test_sleepers_are_woken),
        cmocka_unit_test(test_tickets_divide_the_work),
        cmocka_unit_test(test_create_and_destroy_unused),
        cmocka_unit_test(test_pinning_leaves_the_count_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
