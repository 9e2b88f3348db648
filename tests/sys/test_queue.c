/*
 * Goal: the queue keeps order, says full and closed instead of waiting, loses nothing and gives
 * nothing twice. Method: each answer on its own; then producers and consumers at once, every item
 * counted (a run under a thread sanitizer shows missing ordering, too).
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "base/attr.h"
#include "sys/clock.h"
#include "sys/queue.h"
#include "sys/thread.h"

static ek_sys_queue *queue_of(size_t capacity)
{
    ek_sys_queue *queue = NULL;
    assert_int_equal(ek_sys_queue_create(capacity, &queue), EK_OK);
    return queue;
}

static void *item(uintptr_t number)
{
    return (void *)number;
}

static void test_order_and_full(void **state)
{
    (void)state;
    ek_sys_queue *queue = queue_of(3);
    void *out[8];
    /* Several rounds, so that the ring wraps at every offset. */
    for (uintptr_t round = 1; round < 10; round++) {
        for (uintptr_t i = 0; i < 3; i++)
            assert_int_equal(ek_sys_queue_push(queue, item(10 * round + i)), EK_OK);
        assert_int_equal(ek_sys_queue_push(queue, item(99)), EK_EFULL);
        assert_int_equal(ek_sys_queue_len(queue), 3);
        assert_int_equal(ek_sys_queue_pop(queue, out, 2, 0), 2);
        assert_ptr_equal(out[0], item(10 * round));
        assert_ptr_equal(out[1], item(10 * round + 1));
        assert_int_equal(ek_sys_queue_pop(queue, out, 8, -1), 1);
        assert_ptr_equal(out[0], item(10 * round + 2));
    }
    assert_int_equal(ek_sys_queue_pop(queue, out, 8, 0), 0);
    ek_sys_queue_destroy(queue);
    ek_sys_queue_destroy(NULL);
}

static void test_timeout_passes(void **state)
{
    (void)state;
    ek_sys_queue *queue = queue_of(1);
    void *out;
    int64_t start_us = ek_sys_now_us();
    assert_int_equal(ek_sys_queue_pop(queue, &out, 1, 20000), 0);
    assert_true(ek_sys_now_us() - start_us >= 20000);
    /* A time limit beyond all time is no limit, not an overflow; the item is there already. */
    assert_int_equal(ek_sys_queue_push(queue, item(1)), EK_OK);
    assert_int_equal(ek_sys_queue_pop(queue, &out, 1, INT64_MAX), 1);
    ek_sys_queue_destroy(queue);
}

static void test_close_refuses_and_drains(void **state)
{
    (void)state;
    ek_sys_queue *queue = queue_of(4);
    void *out[4];
    assert_int_equal(ek_sys_queue_push(queue, item(1)), EK_OK);
    assert_false(ek_sys_queue_closed(queue));
    ek_sys_queue_close(queue);
    assert_true(ek_sys_queue_closed(queue));
    assert_int_equal(ek_sys_queue_push(queue, item(2)), EK_EDRAINING);
    assert_int_equal(ek_sys_queue_pop(queue, out, 4, -1), 1);
    assert_ptr_equal(out[0], item(1));
    assert_int_equal(ek_sys_queue_pop(queue, out, 4, -1), 0); /* at once, not for ever */
    ek_sys_queue_destroy(queue);
}

static void test_impossible_capacity(void **state)
{
    (void)state;
    ek_sys_queue *queue = NULL;
    assert_int_equal(ek_sys_queue_create(SIZE_MAX / sizeof(void *) + 1, &queue), EK_ENOMEM);
    assert_int_equal(ek_sys_queue_create(SIZE_MAX / sizeof(void *), &queue), EK_ENOMEM);
    assert_null(queue);
}

static void wait_for_item(void *ctx)
{
    void *out;
    ek_sys_queue_pop(ctx, &out, 1, -1);
}

static void test_close_wakes_everybody(void **state)
{
    (void)state;
    ek_sys_queue *queue = queue_of(1);
    ek_sys_thread threads[3] = {0};
    for (int i = 0; i < 3; i++)
        assert_int_equal(ek_sys_thread_start(&threads[i], "waiter", wait_for_item, queue), EK_OK);
    ek_sys_sleep_us(5000);
    ek_sys_queue_close(queue);
    for (int i = 0; i < 3; i++)
        ek_sys_thread_join(&threads[i]); /* hangs, and so fails, where one was not woken */
    ek_sys_queue_destroy(queue);
}

enum { PRODUCERS = 3, CONSUMERS = 3, ITEMS = 20000 };

typedef struct stress {
    ek_sys_queue *queue;
    int32_t payload[PRODUCERS]
                   [ITEMS]; /* written before the push, read after the pop, without a lock */
    _Atomic int32_t next_producer;
    _Atomic int32_t seen[PRODUCERS];
    _Atomic int32_t misordered;
} stress;

static void produce(void *ctx)
{
    stress *s = ctx;
    int32_t self = atomic_fetch_add(&s->next_producer, 1);
    for (int32_t i = 0; i < ITEMS;) {
        s->payload[self][i] = i + 1;
        ek_status status = ek_sys_queue_push(s->queue, &s->payload[self][i]);
        if (status == EK_OK)
            i++;
        else
            ek_sys_sleep_us(10); /* full: the consumers have to catch up */
    }
}

static void consume(void *ctx)
{
    stress *s = ctx;
    int32_t last[PRODUCERS] = {0};
    void *out[7];
    for (size_t n; (n = ek_sys_queue_pop(s->queue, out, 7, -1)) > 0;)
        for (size_t i = 0; i < n; i++) {
            ptrdiff_t offset = (int32_t *)out[i] - &s->payload[0][0];
            int32_t producer = (int32_t)(offset / ITEMS), value = *(int32_t *)out[i];
            /* One consumer sees one producer's items in their order, if not all of them. */
            if (value <= last[producer]) atomic_fetch_add(&s->misordered, 1);
            last[producer] = value;
            atomic_fetch_add(&s->seen[producer], 1);
        }
}

static void test_many_to_many(void **state)
{
    (void)state;
    static stress s;
    s.queue = queue_of(64);
    ek_sys_thread producers[PRODUCERS] = {0}, consumers[CONSUMERS] = {0};
    for (int i = 0; i < CONSUMERS; i++)
        assert_int_equal(ek_sys_thread_start(&consumers[i], "consumer", consume, &s), EK_OK);
    for (int i = 0; i < PRODUCERS; i++)
        assert_int_equal(ek_sys_thread_start(&producers[i], "producer", produce, &s), EK_OK);
    for (int i = 0; i < PRODUCERS; i++)
        ek_sys_thread_join(&producers[i]);
    ek_sys_queue_close(s.queue);
    for (int i = 0; i < CONSUMERS; i++)
        ek_sys_thread_join(&consumers[i]);
    for (int i = 0; i < PRODUCERS; i++)
        assert_int_equal(s.seen[i], ITEMS);
    assert_int_equal(s.misordered, 0);
    ek_sys_queue_destroy(s.queue);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_full),           cmocka_unit_test(test_timeout_passes),
        cmocka_unit_test(test_close_refuses_and_drains), cmocka_unit_test(test_impossible_capacity),
        cmocka_unit_test(test_close_wakes_everybody),    cmocka_unit_test(test_many_to_many),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
