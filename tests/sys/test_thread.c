/*
 * Goal: threads start, carry their name and end; conditions wake, and their time limits pass on the
 * monotonic clock. Method: one effect each, seen from outside the thread.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "sys/clock.h"
#include "sys/thread.h"

static void read_own_name(void *ctx)
{
    FILE *file = fopen("/proc/thread-self/comm", "r");
    if (!file) return;
    if (fgets(ctx, 32, file)) ((char *)ctx)[strcspn(ctx, "\n")] = '\0';
    fclose(file);
}

static void test_thread_has_its_name_cut(void **state)
{
    (void)state;
    char name[32] = "";
    ek_sys_thread thread = {0};
    assert_int_equal(ek_sys_thread_start(&thread, "a-name-of-20-bytes..", read_own_name, name),
                     EK_OK);
    ek_sys_thread_join(&thread);
    assert_string_equal(name, "a-name-of-20-by");
    ek_sys_thread_join(&thread); /* joined already: nothing happens */
    ek_sys_thread never = {0};
    ek_sys_thread_join(&never);
}

typedef struct gate {
    ek_sys_mutex mutex;
    ek_sys_cond opened;
    bool open;
    int passed;
} gate;

static void pass_gate(void *ctx)
{
    gate *g = ctx;
    ek_sys_mutex_lock(&g->mutex);
    while (!g->open)
        ek_sys_cond_wait(&g->opened, &g->mutex);
    g->passed++;
    ek_sys_mutex_unlock(&g->mutex);
}

static void test_broadcast_wakes_all(void **state)
{
    (void)state;
    gate g = {.open = false};
    ek_sys_thread threads[4] = {0};
    ek_sys_mutex_init(&g.mutex);
    ek_sys_cond_init(&g.opened);
    for (int i = 0; i < 4; i++)
        assert_int_equal(ek_sys_thread_start(&threads[i], "gate", pass_gate, &g), EK_OK);
    ek_sys_mutex_lock(&g.mutex);
    g.open = true;
    ek_sys_cond_broadcast(&g.opened);
    ek_sys_mutex_unlock(&g.mutex);
    for (int i = 0; i < 4; i++)
        ek_sys_thread_join(&threads[i]);
    assert_int_equal(g.passed, 4);
    ek_sys_cond_fini(&g.opened);
    ek_sys_mutex_fini(&g.mutex);
}

static void signal_gate(void *ctx)
{
    gate *g = ctx;
    ek_sys_mutex_lock(&g->mutex);
    g->open = true;
    ek_sys_cond_signal(&g->opened);
    ek_sys_mutex_unlock(&g->mutex);
}

static void test_waits_end_by_time_or_signal(void **state)
{
    (void)state;
    gate g = {.open = false};
    ek_sys_mutex_init(&g.mutex);
    ek_sys_cond_init(&g.opened);
    ek_sys_mutex_lock(&g.mutex);
    int64_t start_us = ek_sys_now_us();
    bool woken = true;
    while (woken && ek_sys_now_us() - start_us < 1000000) /* a wake without a signal is allowed */
        woken = ek_sys_cond_wait_us(&g.opened, &g.mutex, 20000);
    assert_false(woken);
    assert_true(ek_sys_now_us() - start_us >= 20000);
    assert_false(ek_sys_cond_wait_us(&g.opened, &g.mutex, 0));
    ek_sys_thread thread = {0};
    assert_int_equal(ek_sys_thread_start(&thread, "signal", signal_gate, &g), EK_OK);
    while (!g.open)
        assert_true(ek_sys_cond_wait_us(&g.opened, &g.mutex, 60000000));
    ek_sys_mutex_unlock(&g.mutex);
    ek_sys_thread_join(&thread);
    ek_sys_cond_fini(&g.opened);
    ek_sys_mutex_fini(&g.mutex);
}

static void pin_and_look(void *ctx)
{
    ek_sys_thread_pin(0);
    *(int32_t *)ctx = ek_sys_cpu_at(0);
    ek_sys_thread_pin_cpu(-1);      /* no such CPU: nothing happens */
    ek_sys_thread_pin_cpu(1 << 20); /* nor this one */
}

static void test_cpus(void **state)
{
    (void)state;
    int32_t n = ek_sys_cpu_count();
    assert_true(n >= 1);
    int32_t first = ek_sys_cpu_at(0), seen = -1;
    assert_true(first >= 0);
    assert_int_equal(ek_sys_cpu_at(-1), -1);
    ek_sys_thread thread = {0};
    assert_int_equal(ek_sys_thread_start(&thread, "pin", pin_and_look, &seen), EK_OK);
    ek_sys_thread_join(&thread);
    assert_int_equal(seen, first);
}

static void test_clock_goes_on(void **state)
{
    (void)state;
    int64_t ns = ek_sys_now_ns(), us = ek_sys_now_us();
    assert_true(us - ns / 1000 >= 0 && us - ns / 1000 < 1000000);
    ek_sys_sleep_us(3000);
    assert_true(ek_sys_now_us() - us >= 3000);
    ek_sys_sleep_us(0);
    ek_sys_sleep_us(-5);
    int64_t wall_s = ek_sys_wall_s(), wall_us = ek_sys_wall_us();
    assert_true(wall_us / 1000000 - wall_s <= 1);
    assert_true(wall_s > INT64_C(1700000000)); /* late in 2023 */
    assert_true(ek_sys_wall_s() - (int64_t)time(NULL) <= 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_thread_has_its_name_cut),
        cmocka_unit_test(test_broadcast_wakes_all),
        cmocka_unit_test(test_waits_end_by_time_or_signal),
        cmocka_unit_test(test_cpus),
        cmocka_unit_test(test_clock_goes_on),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
