/*
 * Goal: a paced device takes the time that its figures say, and slows when it is busy nearly
 * always. Method: times computed by hand; a clock that the test turns.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "base/attr.h"
#include "worker/pace.h"

static void takes_the_longer_of_reading_and_computing(void **state EK_UNUSED)
{
    ek_pace pace = {.params = {.bytes_per_s = 1000000, .gops_per_s = 0.001, .latency_us = 100}};
    assert_true(ek_worker_pace_is_on(&pace.params));
    /* A million bytes and operations a second. */
    assert_int_equal(ek_worker_pace_end_us(&pace, 5000, 20000, 10000), 5000 + 20000 + 100);
    assert_int_equal(ek_worker_pace_end_us(&pace, 5000, 20000, 30000), 5000 + 30000 + 100);
    pace.params.gops_per_s = 0;
    assert_int_equal(ek_worker_pace_end_us(&pace, 0, 20000, 1e18), 20000 + 100);
    const ek_worker_pace none = {.contention = true};
    assert_false(ek_worker_pace_is_on(&none));
}

static void slows_when_it_is_busy(void **state EK_UNUSED)
{
    ek_pace pace = {.params = {.bytes_per_s = 1000000, .contention = true}};
    int64_t now_us = 0;
    /* Busy half of the time, for long: no contention. */
    for (int i = 0; i < 1000; i++) {
        int64_t end_us = ek_worker_pace_end_us(&pace, now_us, 10000, 0);
        assert_int_equal(end_us - now_us, 10000);
        ek_worker_pace_done(&pace, now_us, end_us);
        now_us = end_us + 10000;
    }
    assert_true(pace.utilisation > 0.48 && pace.utilisation < 0.52);
    /* Always busy: after a while 1 / 0.65 of the time. */
    int n = 0;
    int64_t took_us = 0;
    for (; n < 1000; n++) {
        int64_t end_us = ek_worker_pace_end_us(&pace, now_us, 10000, 0);
        took_us = end_us - now_us;
        if (took_us > 10000) break;
        ek_worker_pace_done(&pace, now_us, end_us);
        now_us = end_us;
    }
    assert_int_equal(took_us, 15384);
    assert_in_range(n, 100, 140); /* from 1/2 to 0.85 takes ln(0.5 / 0.15) = 1.2 time constants */
    /* Idle for a while: as quick as before. */
    assert_int_equal(ek_worker_pace_end_us(&pace, now_us, 10000, 0) - now_us, 15384);
    ek_worker_pace_done(&pace, now_us + 1000000, now_us + 1010000);
    assert_int_equal(ek_worker_pace_end_us(&pace, now_us, 10000, 0) - now_us, 10000);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(takes_the_longer_of_reading_and_computing),
        cmocka_unit_test(slows_when_it_is_busy),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
